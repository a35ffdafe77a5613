"""First on the path of a process: it runs as if neither PyTorch nor pandas were installed, and starts in half the time.

scikit-learn imports pandas wherever it is.
"""

from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_find = PathFinder.find_spec


def _found(name: str, *given: Any, **named: Any) -> ModuleSpec | None:
    return None if name in ("torch", "pandas") else _find(name, *given, **named)


PathFinder.find_spec = _found  # type: ignore[method-assign, assignment]
