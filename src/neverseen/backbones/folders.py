"""Where things are kept that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return a folder for things that can be made again, made with mode 700 if it is not there.

    It is inside ``NEVERSEEN_CACHE`` if that is set, else inside ``~/.cache/neverseen``.
    """
    root = os.environ.get("NEVERSEEN_CACHE")
    folder = (Path(root) if root else Path.home() / ".cache" / "neverseen").absolute() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
