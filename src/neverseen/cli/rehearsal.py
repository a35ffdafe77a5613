"""A change up to the moment at which it would be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from neverseen.errors import NeverseenError
from neverseen.store import Store


class _EnoughError(NeverseenError):
    """Ends a rehearsal: every check has passed. To the model it is a refusal, after which it is as it was."""


def rehearsed(model: Store, change: Callable[[], None]) -> None:
    """Raise what a forget would raise, and change nothing.

    The store goes through all its checks, and stops where it would write to its ledger: nothing is changed before
    that, on disk or in memory.

    Parameters
    ----------
    model : Store
    change : callable
        Calls ``model.forget`` or ``model.forget_class``.
    """

    def stop(*_: Any) -> NoReturn:
        raise _EnoughError

    exact = model._exact()
    vars(exact).update(_record_learn=stop, _record_forget=stop, _record_forget_class=stop)
    try:
        change()
    except _EnoughError:
        return
    finally:
        for name in ("_record_learn", "_record_forget", "_record_forget_class"):
            vars(exact).pop(name)
