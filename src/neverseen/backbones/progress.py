"""A progress bar on stderr for work that takes a while."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_local = threading.local()


@contextmanager
def progress_bar(
    what: str, total: int, *, batch: int = 1, shown: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, if somebody can see it.

    A bar inside another one of the same thread is not shown. Without the package rich, no bar is shown.

    Parameters
    ----------
    what : str
        Words before the bar.
    total : int
        Number of samples.
    batch : int
        Number of samples in one step. For a single step, no bar is shown.
    shown : bool, optional
        Whether to show it; by default if stderr is a terminal and there is more than one batch.

    Yields
    ------
    callable
        Call it with the number of samples done.

    Examples
    --------
    >>> with progress_bar("features", 3) as advance:
    ...     advance(3)
    """
    wanted = (total > batch and sys.stderr is not None and sys.stderr.isatty()) if shown is None else shown
    if not wanted or getattr(_local, "busy", False):
        yield _nothing
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield _nothing
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    _local.busy = True
    try:
        with Progress(*columns, console=Console(stderr=True), transient=shown is None) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.advance(task, done)
    finally:
        _local.busy = False


def _nothing(done: int) -> None:
    pass
