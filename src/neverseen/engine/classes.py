"""The sums of each class: the sum of its codes and, with class tracking, its own Gram matrix."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.engine.packing import narrowed
from neverseen.errors import NotLearnedError
from neverseen.hardware import Array, Hardware


class ClassSums:
    """The sum of the codes of each class: one row of an int64 array in the hardware's memory.

    Unused rows are zero: nothing remains of a class that is gone.

    Parameters
    ----------
    size : int
        Number of codes d.
    """

    def __init__(self, size: int, hardware: Hardware) -> None:
        self._hardware = hardware
        self._names: list[str] = []  # of the rows
        self._rows: dict[str, int] = {}
        self._table: Array = hardware.zeros(0, size)  # at least as many rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def row(self, name: str) -> np.ndarray:
        """Return the sum of a class."""
        return self._hardware.numpy(self._table[self._rows[name]])

    def of(self, names: list[str]) -> Array:
        """Return the sums of some classes, int64 of shape (C, d), as a copy."""
        rows = [self._rows[name] for name in names]
        if rows == list(range(len(rows))):
            return self._hardware.copied(self._table[: len(rows)])
        return self._table[rows]

    def change(self, names: list[str], sums: Array, sign: int) -> None:
        """Add `sign` times sums, int64 of shape (C, d), to those of the named classes, which may be new.

        Nobody else may go on using the sums.
        """
        new = [name for name in names if name not in self._rows]
        if not self._names and sign > 0:  # the first ones
            self._table, self._names = sums, list(names)
            self._rows = {name: row for row, name in enumerate(names)}
            return
        short = len(self._names) + len(new) - len(self._table)
        if short > 0:  # twice as many rows as there were, so that they are seldom copied
            more = self._hardware.zeros(max(short, len(self._table)), self._table.shape[1])
            self._table = self._hardware.concatenate([self._table, more], 0)
        for name in new:
            self._rows[name] = len(self._names)
            self._names.append(name)
        self._hardware.add_to_rows(self._table, [self._rows[name] for name in names], sums, sign)

    def remove(self, name: str) -> None:
        """Remove a class: the last row takes its place."""
        row, moved = self._rows.pop(name), self._names.pop()
        last = len(self._names)
        if row != last:
            self._table[row] = self._table[last]
            self._rows[moved], self._names[row] = row, moved
        self._table[last] = 0


class ClassGrams:
    """One Gram matrix per class: the upper triangle, packed row by row, in the narrowest integers that hold it.

    **A sum over one sample is that sample.** Keep these only if you need to forget classes without their samples, and
    guard them like the data.

    Parameters
    ----------
    size : int
        Number of codes d.
    folder : path, optional
        Keep the sums in files there instead of memory, in a new folder that is removed with this object.
    """

    def __init__(self, size: int, folder: str | os.PathLike[str] | None = None) -> None:
        self.size = size
        self.folder = None if folder is None else Path(folder).absolute()
        self._packed: dict[str, np.ndarray | Path] = {}
        self._spill: Path | None = None
        self._process = 0  # that made it

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __contains__(self, name: str) -> bool:
        return name in self._packed

    def packed(self, name: str) -> np.ndarray:
        """Return the packed triangle of a class."""
        kept = self._packed[name]
        return np.load(kept, mmap_mode="r", allow_pickle=False) if isinstance(kept, Path) else kept

    def require(self, names: Iterable[str]) -> None:
        """Raise if the sums of one of these classes cannot be read. Classes without sums are passed over."""
        for name in names:
            if name in self:
                self.packed(name)

    def put(self, name: str, packed: np.ndarray | None) -> None:
        """Set the packed triangle of a class, narrowed; None drops the class."""
        kept = self._packed.get(name)
        if packed is None:
            self._packed.pop(name, None)
        else:
            narrow = narrowed(packed)
            self._packed[name] = narrow if self.folder is None else self._write(self.folder, narrow)
        if isinstance(kept, Path) and kept.parent == self._spill and self._process == os.getpid():
            kept.unlink(missing_ok=True)

    def _write(self, folder: Path, packed: np.ndarray) -> Path:
        """Write a new file. No file is written twice: a process forked from this one may still read it."""
        if self._spill is None or self._process != os.getpid():
            folder.mkdir(parents=True, exist_ok=True)
            self._spill = Path(tempfile.mkdtemp(prefix="class-sums-", dir=folder))  # mode 700
            self._process = os.getpid()
            weakref.finalize(self, _remove, self._spill, self._process)
        handle, path = tempfile.mkstemp(suffix=".npy", dir=self._spill)
        with os.fdopen(handle, "wb") as file:
            np.save(file, packed, allow_pickle=False)
        return Path(path)

    def change(self, other: ClassGrams, sign: int) -> None:
        """Add or subtract the sums of another. If a class to be subtracted is missing, nothing changes."""
        missing = [name for name in other if name not in self]
        if sign < 0 and missing:
            raise NotLearnedError(f"no sums are kept for class {missing[0]}")
        for name in other:
            delta = other.packed(name).astype(np.int64)
            if name in self:
                delta *= sign
                delta += self.packed(name)
            self.put(name, delta)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "folder": self.folder,
            "packed": {name: np.array(self.packed(name)) for name in self},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["size"], state["folder"])  # type: ignore[misc]
        for name, packed in state["packed"].items():
            self.put(name, packed)


def _remove(folder: Path, process: int) -> None:
    """Remove a folder, unless it belongs to the process from which this one was forked."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
