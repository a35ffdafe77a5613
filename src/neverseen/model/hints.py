"""`Hints`: what the last solution of a model saves the next one. Without hints, the bits are the same."""

from __future__ import annotations

import numpy as np

from neverseen.engine.following import Following, can_follow
from neverseen.engine.preconditioning import NoProgressError, Preconditioner, can_correct, corrected
from neverseen.engine.solver import Solution, solve
from neverseen.engine.statistics import Statistics
from neverseen.hardware import Array, Hardware
from neverseen.labels import LabelIndex
from neverseen.model.configuration import Configuration


class Hints:
    """The last solution of a model, and the samples that came or went since."""

    def __init__(self, configuration: Configuration, hardware: Hardware) -> None:
        self._configuration, self._hardware = configuration, hardware
        self._last: tuple[Solution | Following, list[str]] | None = None  # and its classes
        self._changes: list[tuple[Array, np.ndarray, list[str]]] = []  # codes, signs and classes since then

    def copied(self) -> Hints:
        """Return the same hints, to go another way from here. What either does later, the other must not see.

        Solutions are never changed, so both may have the same. What is needed to follow one is made here, once for all
        copies.
        """
        if self._last is not None and isinstance(self._last[0], Solution):
            self._last = Following.of(self._last[0], self._hardware) or self._last[0], self._last[1]
        twin = Hints(self._configuration, self._hardware)
        twin._last, twin._changes = self._last, list(self._changes)
        return twin

    def discard(self) -> None:
        """Drop all of it."""
        self._last, self._changes = None, []

    def note(self, codes: Array | None, index: LabelIndex, sign: int) -> None:
        """Remember a change that the last solution helps with; a larger one makes it useless."""
        if self._last is None or codes is None or not self._helps(self._last[0], self._waiting() + len(index), codes):
            self.discard()
            return
        names = [index.texts[position] for position in index.positions]
        self._changes.append((codes, np.full(len(names), sign), names))

    def solution(self, statistics: Statistics) -> Solution | Following:
        """Return the solution of the sums, all of whose changes since the last one were noted."""
        if self._last is not None and not self._changes:
            return self._last[0]
        cross, classes = statistics.cross_here(), statistics.classes
        solution: Solution | Following | None = self._followed(statistics, cross, classes)
        if solution is None:
            hint = self._corrected(statistics.size)
            self.discard()  # frees the old factor before a new one is made, unless it was corrected
            gamma, grid_bits = self._configuration.gamma, self._configuration.grid_bits
            solution = solve(statistics.gram, cross, gamma, grid_bits, hint=hint, hardware=self._hardware)
        self._last, self._changes = (solution, classes), []
        return solution

    def _waiting(self) -> int:
        """Return how many samples came or went since the last solution."""
        return sum(len(signs) for _, signs, _ in self._changes)

    def _helps(self, solution: Solution | Following, samples: int, codes: Array) -> bool:
        """Return whether a solution helps to the one after so many samples came or went."""
        size = codes.shape[1]
        return can_follow(samples, size, self._hardware) or can_correct(solution.preconditioner, samples, size)

    def _followed(self, statistics: Statistics, cross: Array, classes: list[str]) -> Following | None:
        """Return the solution that the changes since the last one lead to, if they are small."""
        if self._last is None or not can_follow(self._waiting(), statistics.size, self._hardware):
            return None
        earlier, columns = self._last
        following = Following.of(earlier, self._hardware) if isinstance(earlier, Solution) else earlier
        if following is None or not columns:
            return None
        codes, signs = self._changed()
        place = {name: position for position, name in enumerate(classes)}
        targets = np.array([place.get(name, -1) for _, _, names in self._changes for name in names], dtype=np.intp)
        old_place = {name: position for position, name in enumerate(columns)}
        following = following.with_columns([old_place.get(name, -1) for name in classes])
        return following.after(statistics.gram, cross, codes, signs, targets, self._hardware)

    def _corrected(self, size: int) -> Preconditioner | None:
        """Return the inverse behind the last solution, corrected for the changes since, if that saves a factor.

        Where changes are few, it does not: then they were not followed because a new factor is due.
        """
        if self._last is None or not self._last[1]:
            return None
        current, waiting = self._last[0].preconditioner, self._waiting()
        if can_follow(waiting, size, self._hardware) or not can_correct(current, waiting, size):
            return None
        codes, signs = self._changed()
        try:
            return corrected(current, self._hardware.float64(codes), signs, self._hardware)
        except NoProgressError:
            return None

    def _changed(self) -> tuple[Array, np.ndarray]:
        """Return the codes that came or went since the last solution, and their signs."""
        codes = self._hardware.concatenate([codes for codes, _, _ in self._changes], 0)
        return codes, np.concatenate([signs for _, signs, _ in self._changes])
