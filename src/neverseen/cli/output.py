"""Standard output, and messages for a command that cannot print or is interrupted."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path


class OutputError(OSError):
    """The output of a command could not be written. The command itself has not failed."""


class _Output(io.FileIO):
    """Standard output. Its failures have an error class of their own."""

    def write(self, part: object) -> int:
        try:
            written = super().write(part)  # type: ignore[arg-type]
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None
        if written is None:  # it would have to wait
            raise OutputError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return written


def open_streams() -> None:
    """Prepare the standard streams of this process: every character can be written, and every failure is seen.

    If a stream is closed, its number is taken. Otherwise the next file to be opened would get it, and the messages of
    libraries would go to that file. What is printed to a closed standard output fails.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    if sys.stdout is None:
        handle, encoding = os.open(os.devnull, os.O_RDONLY), "utf-8"
    else:
        handle, encoding = sys.stdout.fileno(), sys.stdout.encoding
    output = _Output(handle, "w", closefd=False)
    ways = {"errors": "backslashreplace", "line_buffering": output.isatty()}
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(output), encoding, **ways)  # type: ignore[arg-type]
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def drop_output() -> None:
    """Drop unwritten output, so that it does not fail again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Outcome:
    """What the running command has done so far, in words: the message if it cannot print, or is interrupted."""

    def __init__(self) -> None:
        self.words = ""
        self.is_done = False

    def note(self, words: str, *, done: bool = True) -> None:
        """Note what the command has done; with ``done=False``, what is known before it is finished."""
        self.words, self.is_done = words, done

    def unprinted(self, why: str) -> str:
        """Return the message for output that could not be written."""
        if self.is_done:
            return f"the command was done, but its output could not be written ({why}). Do not repeat it: {self.words}"
        return f"its output could not be written ({why})" + (f": {self.words}" if self.words else "")

    def interrupted(self) -> str:
        """Return the message for an interrupted command."""
        if self.is_done:
            return f"interrupted when it was done. Do not repeat it: {self.words}"
        return f"interrupted: {self.words or 'nothing was changed'}"


OUTCOME = Outcome()
"""Of the command that this process runs."""
