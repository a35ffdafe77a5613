"""`Hints`: data from the last solution that saves time in the next. Without hints, the bits are the same."""

from __future__ import annotations

import numpy as np

from neverseen.engine.answering import leading_columns
from neverseen.engine.following import Following, can_follow
from neverseen.engine.solver import Solution
from neverseen.engine.spectrum import Spectrum
from neverseen.engine.statistics import MANY_ROWS, Statistics
from neverseen.hardware import Array, Hardware
from neverseen.labels import LabelIndex
from neverseen.model.configuration import Configuration
from neverseen.model.problem import solved, strength


class Hints:
    """The last solution of a model, and the samples learned or forgotten since."""

    def __init__(self, configuration: Configuration, hardware: Hardware) -> None:
        self._configuration, self._hardware = configuration, hardware
        self._last: tuple[Solution | Following, list[str]] | None = None  # and its classes
        self._changes: list[tuple[Array, np.ndarray, list[str]]] = []  # codes, signs and classes since then
        self._spectrum: Spectrum | None = None  # if the sums choose gamma; the changes are noted in it

    def copied(self) -> Hints:
        """Return a copy of the hints. Later changes to one do not affect the other.

        Solutions never change, so both can share one. The data for following it is computed here, once for all copies.
        """
        followed = self._configuration.followed
        if followed and self._last is not None and isinstance(self._last[0], Solution):
            self._last = Following.of(self._last[0], self._hardware) or self._last[0], self._last[1]
        if self._last is not None and isinstance(self._last[0], Following):
            self._last[0].preconditioner.owner.shares = True
        twin = Hints(self._configuration, self._hardware)
        twin._last, twin._changes, twin._spectrum = self._last, list(self._changes), self._spectrum
        return twin

    def discard(self) -> None:
        """Drop everything."""
        self._last, self._changes, self._spectrum = None, [], None

    def note(self, codes: Array | None, index: LabelIndex, sign: int) -> None:
        """Note a change. If it is too large to be followed, the last solution is dropped."""
        waiting = sum(len(signs) for _, signs, _ in self._changes)
        if not self._configuration.followed or self._last is None or codes is None:
            self.discard()
            return
        if not can_follow(waiting + len(index), codes.shape[1]):
            self.discard()
            return
        names = [index.texts[position] for position in index.positions]
        self._changes.append((codes, np.full(len(names), sign), names))
        if self._spectrum is not None:
            self._spectrum = self._spectrum.after(codes, sign)

    def solution(self, statistics: Statistics) -> Solution | Following:
        """Return the solution of the sums. All changes since the last solution must have been noted."""
        if self._last is not None and not self._changes:
            return self._last[0]
        classes = statistics.classes
        gamma, spectrum = strength(statistics, self._configuration, self._spectrum)
        solution: Solution | Following | None = self._followed(statistics, classes, gamma)
        if solution is None:
            self.discard()  # frees the old inverse before a new factor is made
            solution = solved(statistics, self._configuration, gamma)
        self._last, self._changes, self._spectrum = (solution, classes), [], spectrum
        return solution

    def leading(self, statistics: Statistics, codes: Array) -> np.ndarray | None:
        """Return the column of the greatest score for each of a few samples, -1 where only the weights can tell.

        Returns None if this saves nothing: the weights are known, or there is no earlier solution.
        """
        gamma = self._configuration.gamma
        if gamma == "auto" or self._last is None or not self._changes:
            return None
        if getattr(self._last[0], "captured", None) is not None:
            return None  # where changes are made at once, new weights are there as soon
        classes = statistics.classes
        counts = np.array([statistics.counts[name] for name in classes])
        precondition, grid_bits = self._last[0].preconditioner, self._configuration.grid_bits
        with statistics.still():
            system = statistics.system(gamma, MANY_ROWS)
            return leading_columns(system, statistics.class_rows(), counts, codes, grid_bits, precondition)

    def _followed(self, statistics: Statistics, classes: list[str], gamma: int) -> Following | None:
        """Return the solution after the changes since the last one, if they are small; else None."""
        if self._last is None or self._last[0].gamma != gamma:
            return None
        earlier, columns = self._last
        following = Following.of(earlier, self._hardware) if isinstance(earlier, Solution) else earlier
        if following is None or not columns or not classes:
            return None
        each = [codes for codes, _, _ in self._changes]
        codes = each[0] if len(each) == 1 else self._hardware.concatenate(each, 0)
        signs = np.concatenate([signs for _, signs, _ in self._changes])
        place = {name: position for position, name in enumerate(classes)}
        targets = np.array([place.get(name, -1) for _, _, names in self._changes for name in names], dtype=np.intp)
        if columns != classes:
            old_place = {name: position for position, name in enumerate(columns)}
            following = following.with_columns([old_place.get(name, -1) for name in classes])
        with statistics.still():
            system = statistics.system(gamma)
            return following.after(system, statistics.cross_here, codes, signs, targets)
