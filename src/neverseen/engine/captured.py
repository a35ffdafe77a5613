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
from neverseen.engine.preconditioning import MOST_CORRECTIONS, Inverse
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
    lefts: Array  # (k, d), and the next: rows that correct the inverse
    rights: Array


@dataclass
class _Base:
    """What stays the same for many changes, at places that stay the same for ever."""

    system: IntegerSystem
    inverse: Array
    gram: Array  # float64
    matrix: Array  # a copy of the inverse
    probe: Array  # a random vector r
    image: Array  # (G + gamma) r, modulo 2**64


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
            if self._across is None or len(self._across) != columns:
                self._across = random_vector(columns, hardware)
            steps, rests, lefts, rights, told = self._run(
                2 if limb >= _WIDE_LIMB else 3,
                base.gram,
                base.matrix,
                *_corrections(inverse, system.size, hardware),
                *(_filled(part, MOST_ASIDE, hardware) for part in system.aside),
                base.probe,
                base.image,
                self._across,
                _filled(codes, padded, hardware),
                hardware.array(np.concatenate([wanted, np.zeros((padded - count, columns))])),
                steps,
                rests,
                hardware.array(few),
            )
            numbers = hardware.numpy(told)
        worst, top, wrong = numbers[:3].tolist()
        if not (worst < 1.0 and np.isfinite(numbers).all() and top < 2.0**52):
            return None
        if wrong:
            raise HardwareError(
                "a product computed on this machine fails its check: the processor, memory or numerical library is at "
                "fault; nothing was changed. Try hardware='numpy', or another machine"
            )
        slips, residuals, doubts, near = numbers[3:].reshape(4, columns)
        return Moved(
            steps, rests, slips, residuals, doubts, np.flatnonzero(near).tolist(), top, lefts[:count], rights[:count]
        )

    def _begun(self, system: IntegerSystem, inverse: Inverse) -> _Base:
        hardware, found = self._hardware, self._base
        if found is not None and found.system is system and found.inverse is inverse.matrix:
            return found
        if found is None:
            probe = random_vector(system.size, hardware)
            gram, matrix = hardware.float64(system.gram), hardware.copied(inverse.matrix)
        else:
            probe, gram, matrix = found.probe, found.gram, found.matrix
            self._base = None  # until both are there
            gram[:], matrix[:] = hardware.float64(system.gram), inverse.matrix
        image = hardware.wrapping_matvec(system.gram, probe) + system.gamma * probe
        self._base = _Base(system, inverse.matrix, gram, matrix, probe, image)
        return self._base


def _filled(rows: Array, count: int, hardware: Hardware) -> Array:
    """Return int8 rows with rows of zeros behind them."""
    if len(rows) == count:
        return rows
    return hardware.concatenate([rows, hardware.int8(hardware.zeros(count - len(rows), rows.shape[1]))], 0)


def _corrections(inverse: Inverse, size: int, hardware: Hardware) -> tuple[Array, Array]:
    """Return the rows that correct an inverse, `MOST_CORRECTIONS` each, with zeros behind them."""
    found = inverse.corrections
    if found is not None and found.count == inverse.count:
        return found.lefts, found.rights
    rows = tuple(hardware.float64(hardware.zeros(MOST_CORRECTIONS, size)) for _ in range(2))
    if found is not None:
        rows[0][: inverse.count], rows[1][: inverse.count] = found.lefts[: inverse.count], found.rights[: inverse.count]
    return rows[0], rows[1]
