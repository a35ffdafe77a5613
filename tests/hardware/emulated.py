"""The kernels for a GPU, compiled for this processor: so they are tested on machines without one."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from neverseen.hardware import fused_small_changes

_SOURCE = Path(fused_small_changes.__file__).parent / "small_changes.cu"


@functools.cache
def emulated() -> Any:
    """Return what launches a kernel; skip the test if there is no compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = Path(tempfile.mkdtemp())
    try:
        options = ["-O2", "-std=c++17", "-fwrapv", "-ffp-contract=off", "-shared", "-fPIC", f'-DSOURCE="{_SOURCE}"']
        source = Path(__file__).with_name("emulated.cpp")
        subprocess.run([compiler, *options, str(source), "-o", str(folder / "emulated.so")], check=True)
        library = ctypes.CDLL(str(folder / "emulated.so"))
    finally:
        shutil.rmtree(folder)

    def launch(name: str, blocks: tuple[int, int], *arguments: Any) -> None:
        for row in range(blocks[1]):
            library.in_row(row)
            getattr(library, name)(
                *(
                    ctypes.c_longlong(each) if isinstance(each, int) else ctypes.c_void_p(each.data_ptr())
                    for each in arguments
                )
            )

    return launch
