"""Small changes in one go: `neverseen.engine.following` for hardware that is slow to answer, such as a GPU.

A GPU takes longer to begin a product, and far longer to say a number, than to do the work of a small change. So here
nothing depends on what is computed: the operations are always the same, in the same order, and the hardware can capture
and repeat them (`HardwareOf.small_changes`). Every condition is computed along with the rest, and all are read together
at the end. If one does not hold, nothing has changed, and the change is followed step by step.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neverseen.engine.arithmetic import random_vector
from neverseen.engine.preconditioning import MOST_CORRECTIONS, Corrections, Inverse, Owner
from neverseen.engine.systems import MOST_ASIDE, ChangedSystem, IntegerSystem
from neverseen.errors import HardwareError
from neverseen.hardware import Array, Hardware
from neverseen.hardware.protocol import SmallChange

_PADDED = (1, 8, 24, 64)  # changes are filled up with zeros to one of these sizes, because each is captured by itself
_LEAST_LIMB, _WIDE_LIMB, _MOST_LIMB = 8, 22, 24  # bits; with two wide limbs a step of refinement gains enough


class Moved(NamedTuple):
    """A solution after a change; most are as in `neverseen.engine.following.Following`."""

    steps: Array
    rests: Array
    slips: np.ndarray
    residuals: np.ndarray
    doubts: np.ndarray
    near: list[int]  # columns with an entry in doubt
    top: float
    inverse: Inverse  # after the change


@dataclass
class _Rows:
    """Rows at a place that stays the same, with zeros behind them."""

    place: Array
    used: int = 0

    def fill(self, rows: Array, known: int = 0) -> None:
        """Hold these rows, and no others. The first ones are `known` to be here already."""
        count, used = len(rows), self.used
        self.used = max(count, used)  # until the rest is zero
        if known < count:
            self.place[known:count] = rows[known:]
        if count < used:
            self.place[count:used] = 0
        self.used = count


@dataclass
class _Base:
    """What stays the same for many changes, at places that stay the same for ever."""

    system: IntegerSystem
    owner: Owner  # of the inverse
    gram: Array  # float64
    matrix: Array  # a copy of the inverse
    lefts: _Rows  # that correct the inverse
    rights: _Rows
    aside: _Rows  # the samples aside, and their signs
    signs: _Rows
    probe: Array  # a random vector r
    image: Array  # (G + gamma) r, modulo 2**64
    corrections: Corrections | None = None  # whose rows were copied; rows are only ever added to them

    def fill(self, inverse: Inverse, system: ChangedSystem) -> None:
        """Hold what changes with each change: the rows that correct the inverse, and the samples aside."""
        found, count = inverse.corrections, inverse.count
        known = min(count, self.lefts.used, self.rights.used) if found is self.corrections else 0
        self.corrections = None  # until all rows are here
        self.lefts.fill(self.lefts.place[:0] if found is None else found.lefts[:count], known)
        self.rights.fill(self.rights.place[:0] if found is None else found.rights[:count], known)
        self.corrections = found
        codes, signs = system.aside
        self.aside.fill(codes)
        self.signs.fill(signs)


class Captured:
    """The captured operations for one model. They keep what they need at places of their own."""

    def __init__(self, run: SmallChange[Array], hardware: Hardware) -> None:
        self._run, self._hardware = run, hardware
        self._base: _Base | None = None
        self._across: Array | None = None  # a random vector
        self._lock = threading.Lock()  # copies of a model share the places

    def moved(
        self,
        system: ChangedSystem,
        inverse: Inverse,
        codes: Array,
        sign: int,
        wanted: np.ndarray,
        steps: Array,
        rests: Array,
        bounds: tuple[np.ndarray, np.ndarray],
    ) -> Moved | None:
        """Return the solution after a change, or None if it has to be followed step by step.

        Parameters
        ----------
        codes : int8 array of shape (k, d), at most 64
        sign : int
            1 if they are added, and -1 if they are removed.
        wanted : float64 ndarray of shape (k, C), one-hot labels in grid steps
        bounds : slips and residuals
        """
        hardware, count, columns = self._hardware, len(codes), steps.shape[1]
        # A row of A' times integers of so many bits stays below 2**53, and the blocks of a solution below 2**63.
        limb = min(_MOST_LIMB, 53 - math.frexp(system.largest)[1])
        if limb < _LEAST_LIMB:
            return None
        padded = next(size for size in _PADDED if count <= size)
        few = np.concatenate([*bounds, [sign, limb, system.gamma], np.ldexp(1.0, limb * np.arange(-2, 3))])
        with self._lock:
            base = self._begun(system.base, inverse)
            if self._across is None or len(self._across) < columns:
                self._across = random_vector(columns, hardware)
            base.fill(inverse, system)
            steps, rests, lefts, rights, told = self._run(
                2 if limb >= _WIDE_LIMB else 3,
                base.gram,
                base.matrix,
                *(rows.place for rows in (base.lefts, base.rights, base.aside, base.signs)),
                base.probe,
                base.image,
                self._across[:columns],
                _filled(codes, padded, hardware),
                np.concatenate([wanted, np.zeros((padded - count, columns))]),
                steps,
                rests,
                few,
            )
            numbers = hardware.numpy(told)
            worst, top, wrong = numbers[:3].tolist()
            if not (worst < 1.0 and np.isfinite(numbers).all() and top < 2.0**52):
                return None
            if wrong:
                raise HardwareError(
                    "a product computed on this machine fails its check: the processor, memory or numerical library is "
                    "at fault; nothing was changed. Try hardware='numpy', or another machine"
                )
            inverse = inverse.corrected(lefts[:count].T, rights[:count].T)  # before the next change overwrites them
        slips, residuals, doubts, near = numbers[3:].reshape(4, columns)
        return Moved(steps, rests, slips, residuals, doubts, np.flatnonzero(near).tolist(), top, inverse)

    def _begun(self, system: IntegerSystem, inverse: Inverse) -> _Base:
        hardware, found = self._hardware, self._base
        if found is not None and found.system is system and found.owner is inverse.owner:
            return found
        if found is None:
            probe = random_vector(system.size, hardware)
            image = hardware.zeros(system.size)
            gram, matrix = hardware.float64(system.gram), hardware.copied(inverse.matrix)
            corrections = (
                _Rows(hardware.float64(hardware.zeros(MOST_CORRECTIONS, system.size))),
                _Rows(hardware.float64(hardware.zeros(MOST_CORRECTIONS, system.size))),
            )
            aside = (
                _Rows(hardware.int8(hardware.zeros(MOST_ASIDE, system.size))),
                _Rows(hardware.int8(hardware.zeros(MOST_ASIDE, 1))),
            )
        else:
            probe, image, gram, matrix = found.probe, found.image, found.gram, found.matrix
            corrections, aside = (found.lefts, found.rights), (found.aside, found.signs)
            self._base = None  # until all are there
            gram[:], matrix[:] = hardware.float64(system.gram), inverse.matrix
        image[:] = hardware.wrapping_matvec(system.gram, probe) + system.gamma * probe
        self._base = _Base(system, inverse.owner, gram, matrix, *corrections, *aside, probe, image)
        return self._base


def _filled(rows: Array, count: int, hardware: Hardware) -> Array:
    """Return int8 rows with rows of zeros behind them."""
    if len(rows) == count:
        return rows
    return hardware.concatenate([rows, hardware.int8(hardware.zeros(count - len(rows), rows.shape[1]))], 0)
