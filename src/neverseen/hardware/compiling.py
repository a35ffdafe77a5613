"""Compiles the kernels, if there is a compiler. It uses only the standard library, as it runs when a package is built.

The compiler is optional: without the kernels everything works, and takes longer.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import zlib
from pathlib import Path

LIBRARY = "_kernels.so"
_SOURCES = ("kernels.c", "kernels_tiles.h", "kernels_updates.h")
_OPTIONS = ["-O3", "-std=gnu11", "-fno-math-errno", "-fwrapv", "-Wno-psabi", "-shared", "-fPIC", "-pthread"]
_SECONDS = 300  # a compiler that takes longer than this is stuck


def version(folder: Path) -> int:
    """Return the number of the source in a folder. Each source has its own number, which its library carries."""
    checksum = 0
    for name in _SOURCES:
        checksum = zlib.crc32((folder / name).read_bytes(), checksum)
    return checksum & 0x7FFFFFFF


def compile_library(folder: Path) -> str | None:
    """Compile the kernels in a folder with ``$CC`` or ``cc``; return None, or the reason if that fails.

    The library is replaced in one step, so a process that uses the old one is not disturbed. If compiling fails, no
    library is left.
    """
    library = folder / LIBRARY
    compiler = os.environ.get("CC") or "cc"
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".kernels-") as place:
            made = Path(place) / LIBRARY
            number = f"-DNS_VERSION={version(folder)}"
            command = [*shlex.split(compiler), *_OPTIONS, number, str(folder / _SOURCES[0]), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS)  # noqa: S603
            made.replace(library)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        library.unlink(missing_ok=True)
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").split("\n")[0]
        return f"{compiler}: {said or getattr(error, 'strerror', None) or type(error).__name__}"
    return None
