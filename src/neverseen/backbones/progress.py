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
    """Show a bar while samples are worked on, where somebody can see it.

    Within another bar of the same thread nothing is shown: the outer one wins. Nothing is shown either without the
    package rich.

    Parameters
    ----------
    what : str
        Words before the bar.
    total : int
        Number of samples.
    batch : int
        Samples that are worked on in one go; of no more than these no bar is shown.
    shown : bool, optional
        Whether to show it; by default if stderr is a terminal and there is more than one batch.

    Yields
    ------
    callable
        To be called with the number of samples that were done.

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
