"""Sums over samples: the whole state of a model.

For codes c and one-hot labels y the statistics are ``G = Σ c'c``, one sum ``Σ c`` per class (the columns of ``B = Σ
c'y``) and one count per class, all integers. Integer sums have no rounding error: whatever the order and the
batches in which samples are added and removed, the bits are those of the remaining samples. Nothing derived from the
sums is ever mixed into them.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from neverseen.engine.arithmetic import MAX_SAMPLES, class_sums, gram, wide_matmul
from neverseen.engine.classes import ClassGrams, ClassSums
from neverseen.engine.packing import pack_triangle, unpack_triangle
from neverseen.engine.systems import MOST_ASIDE, ChangedSystem, IntegerSystem
from neverseen.engine.waiting import Batch, Waiting
from neverseen.errors import ConfigurationError, HardwareError, InputError, LimitError, NotLearnedError, NotTrackedError
from neverseen.hardware import Array, Hardware, choose
from neverseen.labels import LabelIndex, in_class_order
from neverseen.targets import PART, Classes, Targets

_FEW_ROWS = 512
"""Smaller batches wait, to be added together: a pass over the matrix takes as long for one sample as for many."""
MANY_ROWS = 2048
"""Number of waiting samples at which they are added."""


class Statistics:
    """Gram matrix, class sums and class counts of a multiset of samples.

    Small changes wait, as codes, until the Gram matrix is needed or `settle` is called. Sums of integers do not depend
    on the time at which they are computed.

    Parameters
    ----------
    size : int
        Number of codes d.
    hardware : Hardware, optional
        Where the Gram matrix lives.
    track_classes : bool
        Also keep a Gram matrix for each class, so that a class can be removed without its samples.
    class_folder : path, optional
        Keep these matrices in files there.
    targets : Targets, optional
        What the labels stand for. By default each is a class, which is a column of B.

    Attributes
    ----------
    gram : int64 array of shape (d, d)
    sums : dict of str to int64 ndarray of shape (d,)
        By canonical label text.

    Examples
    --------
    >>> all_of_it = Statistics.of(np.array([[1, 2], [3, 4]], np.int8), ["a", "b"])
    >>> rest = Statistics.of(np.array([[3, 4]], np.int8), ["b"])
    >>> all_of_it.subtract(Statistics.of(np.array([[1, 2]], np.int8), ["a"]))
    >>> all_of_it == rest, all_of_it.digest() == rest.digest()
    (True, True)
    """

    def __init__(
        self,
        size: int,
        hardware: Hardware | None = None,
        track_classes: bool = False,
        class_folder: str | os.PathLike[str] | None = None,
        targets: Targets | None = None,
    ) -> None:
        self.targets = Classes() if targets is None else targets
        self.size = size
        self.hardware = choose("numpy") if hardware is None else hardware
        self._gram: Array | None = self.hardware.zeros(size, size)
        self._sums = ClassSums(size, self.hardware)
        self._waiting = Waiting()
        self._system: IntegerSystem | None = None  # with the Gram matrix as it is
        self._lock, self._torn = threading.RLock(), False
        self.counts: dict[str, int] = {}
        self._in_order: tuple[list[str], list[str]] = [], []  # classes as they came, and in class order
        self.class_grams = ClassGrams(size, class_folder) if track_classes else None

    @classmethod
    def of(
        cls,
        codes: Array,
        labels: Any,
        hardware: Hardware | None = None,
        track_classes: bool = False,
        targets: Targets | None = None,
    ) -> Statistics:
        """Return the statistics of a batch.

        Parameters
        ----------
        codes : int8 array of shape (n, d), entries in -127..127
        labels : sequence of n labels, or LabelIndex
        """
        hardware = choose("numpy") if hardware is None else hardware
        index = labels if isinstance(labels, LabelIndex) else LabelIndex(labels)
        if codes.ndim != 2 or str(codes.dtype).rpartition(".")[2] != "int8":
            raise InputError(f"codes must be an int8 matrix; got dtype {codes.dtype}, shape {tuple(codes.shape)}")
        if len(codes) != len(index.positions):
            raise InputError(f"there are {len(codes)} codes and {len(index.positions)} labels")
        few = 0 < len(codes) < _FEW_ROWS
        lengths, least = hardware.measured(codes) if few else (np.zeros(0), int(codes.min()) if len(codes) else 0)
        if least < -127:
            raise InputError("codes must lie in -127..127; got -128")
        if targets is not None and not targets.one_hot:
            return cls._of_rows(codes, lengths, index, hardware, targets)
        batch = cls.__new__(cls)
        batch.size, batch.hardware, batch.targets = codes.shape[1], hardware, targets or Classes()
        batch._gram, batch._sums, batch._waiting = None, ClassSums(batch.size, hardware), Waiting()
        batch._system, batch._in_order = None, ([], [])
        batch._lock, batch._torn = threading.RLock(), False
        counts = np.bincount(index.positions, minlength=len(index.texts)).tolist()
        batch.counts = {name: count for name, count in zip(index.texts, counts, strict=True) if count}
        batch.class_grams = ClassGrams(batch.size) if track_classes else None
        batch._sums.change(index.texts, class_sums(codes, index.positions, len(index.texts), hardware), 1)
        batch._forget_empty()
        if batch.class_grams is None and len(codes) < _FEW_ROWS:
            batch._waiting = Waiting().plus([Batch(codes, 1, lengths)])
            return batch
        if batch.class_grams is None:
            batch._gram = gram(codes, hardware)
        else:  # the whole is the sum of the classes: one Gram matrix each, and no more work in all
            batch._gram = hardware.zeros(batch.size, batch.size)
            for name in batch.counts:
                position = index.texts.index(name)
                part = gram(codes[np.flatnonzero(index.positions == position)], hardware)
                hardware.add_in_place(batch._gram, part, 1)
                batch.class_grams.put(name, pack_triangle(hardware.numpy(part)))
        return batch

    @classmethod
    def _of_rows(
        cls, codes: Array, lengths: np.ndarray, index: LabelIndex, hardware: Hardware, targets: Targets
    ) -> Statistics:
        """Return the statistics of a batch whose labels are not classes."""
        batch = cls(codes.shape[1], hardware, targets=targets)
        used, place = np.unique(index.positions, return_inverse=True)
        weights = np.ones(len(codes), np.int64)
        for first in range(0, len(used), PART):
            rows = targets.columns([index.texts[each] for each in used[first : first + PART]])
            mine = np.flatnonzero((first <= place) & (place < first + PART))
            at, some = place[mine] - first, codes if len(mine) == len(codes) else codes[mine]
            weights[mine] = rows.weights[at]
            y = rows.values[at] * rows.weights[at][:, None]  # (n, C), up to `largest` in magnitude
            if max(np.abs(y).max(initial=0), rows.weights.max()) > targets.largest or rows.weights.min() < 1:
                raise InputError(f"a target is beyond {targets.largest}, the limit of {targets}")
            for name, count in zip(rows.names, rows.present[at].sum(axis=0).tolist(), strict=True):
                batch.counts[name] = batch.counts.get(name, 0) + count
            # |B_ij| <= 127 n largest, which is far below 2**63: a product modulo 2**64 is exact.
            cross = wide_matmul(hardware.contiguous(some.T), hardware.array(y), hardware)  # (d, C)
            batch._sums.change(rows.names, hardware.contiguous(cross.T), 1)
        if (weights == 1).all() and len(codes) < _FEW_ROWS:
            batch._waiting = Waiting().plus([Batch(codes, 1, lengths)])
            return batch
        for bit in range(int(weights.max()).bit_length()):  # Σ w c'c, one Gram matrix for each bit of the weights
            chosen = np.flatnonzero(weights >> bit & 1)
            if len(chosen):
                part = codes if len(chosen) == len(codes) else codes[chosen]
                batch._add(hardware.int64(gram(part, hardware)) << bit, 1)
        return batch

    def __getstate__(self) -> dict[str, Any]:
        self.settle()  # a copy may be read-only
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_system", "_in_order")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self._system, self._in_order = threading.RLock(), None, ([], [])

    @property
    def gram(self) -> Array:
        """The Gram matrix."""
        with self._lock:
            self._gram = self.hardware.int64(self.settle())  # that of a batch may be narrower
            return self._gram

    @gram.setter
    def gram(self, matrix: Array) -> None:
        self._gram, self._system = matrix, None

    @property
    def sums(self) -> dict[str, np.ndarray]:
        """The sum of the codes of each class, as a copy."""
        names = list(self._sums)
        return dict(zip(names, self.hardware.numpy(self._sums.of(names)), strict=True))

    @sums.setter
    def sums(self, sums: dict[str, np.ndarray]) -> None:
        self._sums = ClassSums(self.size, self.hardware)
        if sums:
            self._sums.change(list(sums), self.hardware.array(np.stack(list(sums.values()))), 1)

    def settle(self) -> Array:
        """Add the waiting samples, and return the Gram matrix. If a check fails, they keep waiting."""
        with self._lock:
            self._require_whole()
            if self._waiting:
                self._take_in(self._waiting.added_up(self.hardware))
            if self._gram is None:
                self._gram = self.hardware.zeros(self.size, self.size)
            return self._gram

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep other threads from adding the waiting samples, even by reading the sums: a `system` depends on them."""
        with self._lock:
            yield

    def system(self, gamma: int, most_aside: int = MOST_ASIDE) -> ChangedSystem:
        """Return ``G + gamma I``. A few waiting samples stay beside the matrix.

        It is valid until the next change, or until somebody reads the sums: use it while they are `still`.
        """
        with self._lock:
            self._require_whole()
            aside = len(self._waiting)
            if self._system is None or self._system.gamma != gamma or aside > most_aside:
                self._gram = self.hardware.int64(self.settle())
                self._system = IntegerSystem(self._gram, gamma, self.hardware, measure=True)
            elif not self._system.has_room_for(aside):  # waiting samples must not decide whether sums are refused
                self.settle()
                return self.system(gamma, most_aside)
            return ChangedSystem(self._system, *self._waiting.joined(self.hardware), self.settle)

    def _require_whole(self) -> None:
        if self._torn:
            raise HardwareError(
                "an earlier change of these sums was cut off half-way; load the model, or open the store, again"
            )

    def _take_in(self, parts: list[tuple[Array, int]]) -> None:
        """Add the waiting samples. An interrupt half-way must not leave false sums."""
        before, self._torn = self._torn, True
        self._waiting = Waiting()
        for part in parts:
            self._add(*part)
        self._torn = before

    def _forget_empty(self) -> None:
        for name in [name for name in self._sums if name not in self.counts]:
            self._sums.remove(name)

    def _add(self, matrix: Array, sign: int) -> None:
        self._system = None
        if self._gram is None and sign > 0:
            self._gram = matrix
            return
        zeros = self.hardware.zeros
        # That of a batch may be narrower.
        self._gram = zeros(self.size, self.size) if self._gram is None else self.hardware.int64(self._gram)
        self.hardware.add_in_place(self._gram, matrix, sign)

    def copied(self, tracked: bool = False) -> Statistics:
        """Return a copy of the sums; of the Gram matrices of classes only if they are asked for."""
        with self._lock:
            twin = Statistics(self.size, self.hardware, targets=self.targets)
            if tracked and self.class_grams is not None:
                twin.class_grams = ClassGrams(self.size, self.class_grams.folder)
                twin.class_grams.change(self.class_grams, 1)
            twin._gram = self.settle() + 0
            names = list(self._sums)
            twin._sums.change(names, self._sums.of(names), 1)
            twin.counts = dict(self.counts)
            return twin

    def packed(self) -> np.ndarray:
        """Return the upper triangle of the Gram matrix, row by row."""
        return pack_triangle(self.hardware.numpy(self.gram))

    def fill(self, packed: np.ndarray, rows: np.ndarray, classes: list[str], counts: list[int]) -> None:
        """Hold sums that were `packed`, with a row of `cross` transposed and a count for each class, in class order."""
        self.gram = self.hardware.array(unpack_triangle(packed, self.size))
        self.counts = dict(zip(classes, counts, strict=True))
        self.sums = {name: np.array(row) for name, row in zip(classes, rows, strict=True)}

    @property
    def total(self) -> int:
        """Number of samples."""
        return self.targets.total(self.counts)

    @property
    def classes(self) -> list[str]:
        """Canonical texts of the columns, in class order: the classes with samples, unless `targets` are others."""
        names, (known, ordered) = list(self.counts), self._in_order
        if known != names:  # what another thread notes meanwhile may be of earlier classes
            ordered = in_class_order(names)
            self._in_order = names, ordered
        return list(ordered)

    def cross(self) -> np.ndarray:
        """Return B: int64 of shape (d, C), classes in class order. It is a transposed view, so it costs little."""
        return self.hardware.numpy(self._sums.of(self.classes)).T

    def cross_here(self, columns: list[int] | None = None) -> Array:
        """Return `cross`, or some columns of it, in the hardware's memory, row by row."""
        classes = self.classes
        names = classes if columns is None else [classes[column] for column in columns]
        return self.hardware.contiguous(self._sums.of(names).T)

    def class_rows(self) -> Array:
        """Return the columns of `cross` as rows, in the hardware's memory."""
        return self._sums.of(self.classes)

    def add(self, codes: Array, labels: Any) -> None:
        """Add samples."""
        self.merge(Statistics.of(codes, labels, self.hardware, self.class_grams is not None, self.targets))

    def remove(self, codes: Array, labels: Any) -> None:
        """Remove samples that were added before."""
        self.subtract(Statistics.of(codes, labels, self.hardware, self.class_grams is not None, self.targets))

    def merge(self, other: Statistics) -> None:
        """Add the statistics of other samples."""
        with self._lock:
            self.require_room(other)
            self._change(other, 1)

    def require_room(self, other: Statistics) -> None:
        """Raise what `merge` would raise."""
        self._require_like(other)
        most = MAX_SAMPLES // self.targets.largest
        if self.total + other.total > most:
            raise LimitError(f"{self.total} + {other.total} samples exceed the {most} whose sums fit 64 bits")

    def subtract(self, other: Statistics) -> None:
        """Subtract the statistics of samples that are part of these.

        If counts or sums show that they are not part, it raises and changes nothing. The test is necessary, not
        sufficient: only the holdings (`neverseen.holdings`) know which samples are held.
        """
        with self._lock:
            self.require_part(other)
            self._change(other, -1)

    def require_part(self, other: Statistics) -> None:
        """Raise what `subtract` would raise."""
        self._require_like(other)
        for name, count in other.counts.items():
            held = self.counts.get(name, 0)
            if count > held:
                raise NotLearnedError(f"{held} samples of class {name} are held; {count} were to be removed")
            if count == held and not np.array_equal(self._sums.row(name), other._sums.row(name)):
                raise NotLearnedError(f"the samples of class {name} to be removed are not among those held")

    def remove_class(self, name: str) -> None:
        """Remove a whole class by its own sums; needs `track_classes`."""
        if self.class_grams is None:
            raise NotTrackedError(
                "class sums are not kept; set track_classes=True before learning, or forget by sample"
            )
        if name not in self.counts:
            raise NotLearnedError(f"class {name} is not held")
        with self._lock:
            matrix = self.hardware.array(unpack_triangle(self.class_grams.packed(name), self.size))
            total = self.settle()
            self._torn, self._system = True, None
            self.hardware.add_in_place(total, matrix, -1)
            self.class_grams.put(name, None)
            self._sums.remove(name)
            del self.counts[name]
            self._torn = False

    def _require_like(self, other: Statistics) -> None:
        if self.size != other.size:
            raise ConfigurationError(f"statistics over {self.size} and {other.size} codes cannot be combined")
        if self.targets != other.targets:
            raise ConfigurationError(f"statistics of {self.targets} and of {other.targets} cannot be combined")
        if (self.class_grams is None) != (other.class_grams is None):
            raise ConfigurationError("one of the statistics keeps class sums and the other does not")
        if other._gram is not None or self.class_grams is not None:
            other.settle()  # `_change` will want its sums: a check that fails must do so before anything is changed

    def _change(self, other: Statistics, sign: int) -> None:
        self._require_whole()
        few = other._gram is None and self.class_grams is None
        matrix = None if few else other.settle()
        self._torn = True
        if self.class_grams is not None and other.class_grams is not None:
            self.class_grams.change(other.class_grams, sign)
        for name, count in list(other.counts.items()):  # which may be these very ones
            self.counts[name] = self.counts.get(name, 0) + sign * count
            if self.counts[name] == 0:
                del self.counts[name]
                if self.class_grams is not None:
                    self.class_grams.put(name, None)
        names = list(other._sums)
        self._sums.change(names, self._here(other._sums.of(names), other.hardware), sign)
        self._forget_empty()
        if matrix is not None:
            if self._gram is None:  # not the other's own
                self._gram = self.hardware.zeros(self.size, self.size)
            self._add(self._here(matrix, other.hardware), sign)
        else:
            self._waiting = self._waiting.plus(
                [
                    Batch(self._here(codes, other.hardware), sign * its_sign, lengths)
                    for codes, its_sign, lengths in other._waiting.batches
                ]
            )
            if len(self._waiting) >= MANY_ROWS:
                try:
                    parts = self._waiting.added_up(self.hardware)
                except HardwareError:  # they keep waiting, and the next caller who needs the sums gets the error
                    pass
                else:
                    self._take_in(parts)
        self._torn = False

    def _here(self, array: Array, hardware: Hardware) -> Array:
        return array if hardware is self.hardware else self.hardware.array(hardware.numpy(array))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        return (
            self.size == other.size
            and self.targets == other.targets
            and self.counts == other.counts
            and np.array_equal(self.cross(), other.cross())
            and np.array_equal(self.hardware.numpy(self.gram), other.hardware.numpy(other.gram))
        )

    __hash__ = None  # type: ignore[assignment]

    def digest(self) -> str:
        """Return the SHA-256 of the sums, in hex: equal exactly when the statistics are."""
        hasher = hashlib.sha256(b"neverseen:statistics:1" + struct.pack("<Q", self.size))
        for name, row in zip(self.classes, self.cross().T, strict=True):
            hasher.update(struct.pack("<Q", len(name)) + name.encode() + struct.pack("<Q", self.counts[name]))
            hasher.update(row.astype("<i8").tobytes())
        matrix = self.hardware.numpy(self.gram)
        for row in range(self.size):
            hasher.update(matrix[row, row:].astype("<i8").tobytes())
        return hasher.hexdigest()
