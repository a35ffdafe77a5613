"""Locks of objects that cannot hold their own: it would be cloned, pickled and compared with the parameters."""

from __future__ import annotations

import os
import threading
from weakref import WeakKeyDictionary

_LOCKS: WeakKeyDictionary[object, threading.RLock] = WeakKeyDictionary()
os.register_at_fork(after_in_child=_LOCKS.clear)  # those who held them are not in the child, and will not let go


def own_lock(owner: object) -> threading.RLock:
    """Return the lock of an object, which no other object shares."""
    return _LOCKS.setdefault(owner, threading.RLock())  # one operation of a dict: no two threads get different ones
