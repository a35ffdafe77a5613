"""Samples that wait: added or removed, but not in the Gram matrix yet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neverseen.engine.arithmetic import gram
from neverseen.hardware import Array, Hardware


class Batch(NamedTuple):
    """Samples that were added or removed together."""

    codes: Array  # int8, (n, d)
    sign: int
    lengths: np.ndarray  # (n,): the sum of the magnitudes of each sample's codes


class Joined(NamedTuple):
    """All waiting samples, one after the other."""

    codes: Array | None  # int8, (n, d); None if there are none
    signs: np.ndarray  # (n,), +1 and -1
    lengths: np.ndarray  # (n,)


class Waiting:
    """Waiting samples, in the order in which they came. They never change: `plus` returns others."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._count = 0
        self._known = 0, Joined(None, np.zeros(0), np.zeros(0))  # the first batches, joined

    def __len__(self) -> int:
        return self._count

    def plus(self, batches: list[Batch]) -> Waiting:
        """Return the same with more behind."""
        more = Waiting()
        more.batches, more._known = [*self.batches, *batches], self._known
        more._count = self._count + sum(len(batch.codes) for batch in batches)
        return more

    def joined(self, hardware: Hardware) -> Joined:
        """Return all samples. Those that were joined before, in what this came from, are copied in one go."""
        count, known = self._known
        batches = self.batches[count:]
        if batches:
            codes = [*([] if known.codes is None else [known.codes]), *(batch.codes for batch in batches)]
            known = Joined(
                codes[0] if len(codes) == 1 else hardware.concatenate(codes, 0),
                np.concatenate([known.signs, *(np.full(len(batch.codes), batch.sign) for batch in batches)]),
                np.concatenate([known.lengths, *(batch.lengths for batch in batches)]),
            )
            self._known = len(self.batches), known
        return known

    def added_up(self, hardware: Hardware) -> list[tuple[Array, int]]:
        """Return their Gram matrices, and with which sign each counts."""
        parts = []
        for sign in (1, -1):
            some = [batch.codes for batch in self.batches if batch.sign == sign]
            if some:
                parts.append((gram(hardware.concatenate(some, 0), hardware), sign))
        return parts
