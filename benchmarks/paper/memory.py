"""What a step costs: time with the device synchronised, and peak memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Elapsed:
    """Seconds of a `timed` block; 0 until it ends."""

    seconds: float = 0.0


class Peak:
    """Peak memory of a `peak_memory` block; 0 until it ends.

    Attributes
    ----------
    bytes : int
    source : str
        "cuda": the most that PyTorch's allocator had given out on the device at a time, what was there before the
        block included; other libraries and the CUDA context are not counted. "resident": the most memory the process
        had resident during the block, on Linux. "resident since the start": the same since the process began, where
        the mark cannot be set back.
    """

    bytes: int = 0
    source: str = ""


def synchronise(device: Any) -> None:
    """Wait until a CUDA device has done all that it was asked; nothing on a CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def timed(device: Any) -> Iterator[Elapsed]:
    """Measure the wall time of a block, from a device at rest to a device at rest.

    Examples
    --------
    >>> with timed("cpu") as elapsed:
    ...     total = sum(range(1000))
    >>> elapsed.seconds > 0
    True
    """
    elapsed = Elapsed()
    synchronise(device)
    start = time.perf_counter()
    try:
        yield elapsed
    finally:
        synchronise(device)
        elapsed.seconds = time.perf_counter() - start


@contextmanager
def peak_memory(device: Any) -> Iterator[Peak]:
    """Measure the peak memory of a block: the device's on CUDA, the process's on a CPU. See `Peak`."""
    peak = Peak()
    if torch.device(device).type == "cuda":
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        try:
            yield peak
        finally:
            synchronise(device)
            peak.bytes, peak.source = int(torch.cuda.max_memory_allocated(device)), "cuda"
    else:
        was_reset = _reset_resident()
        try:
            yield peak
        finally:
            high_water = _high_water() if was_reset else None
            if high_water is None:
                peak.bytes, peak.source = _since_the_start(), "resident since the start"
            else:
                peak.bytes, peak.source = high_water, "resident"


def _reset_resident() -> bool:
    """Set the process's high-water mark to what is resident now, where Linux lets it."""
    try:
        _CLEAR.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _high_water() -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith("VmHWM:")]
    return int(found[0].split()[1]) * 1024 if found else None


def _since_the_start() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
