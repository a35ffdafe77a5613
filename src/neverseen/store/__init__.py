"""A store: a model in a folder, with durable changes, published versions, and forgetting that reaches the disk."""

from neverseen.store.archives import read_archive, write_archive
from neverseen.store.creating import create
from neverseen.store.creating import open_store as open  # noqa: A004 (neverseen.store.open reads as it should)
from neverseen.store.lookups import Holding
from neverseen.store.publications import AUDIT
from neverseen.store.store import Store

__all__ = ["AUDIT", "Holding", "Store", "create", "open", "read_archive", "write_archive"]
