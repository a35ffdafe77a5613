"""A model that lives in a folder: durable changes, published versions, forgetting that reaches the disk."""

from neverseen.store.store import Store, create
from neverseen.store.store import open_store as open  # noqa: A004 (neverseen.store.open reads as it should)

__all__ = ["Store", "create", "open"]
