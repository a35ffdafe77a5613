"""Targets that are numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from neverseen.errors import ConfigurationError, LabelError
from neverseen.labels import (
    Label,
    normalise,
    text,
)
from neverseen.targets.kind import Columns, Targets, register


@register
class Numbers(Targets):
    """Each sample has one or more numbers, and numbers are predicted: ridge regression.

    A number is rounded to the nearest multiple of ``2**-bits`` when it is learned, ties to even.

    Parameters
    ----------
    outputs : int
        How many numbers a sample has. With one, a label may be the number itself.
    bits : int
        From -64 to 64. Choose it so that all numbers stay below ``2**(20 - bits)`` in magnitude: others are refused.

    Examples
    --------
    >>> numbers = Numbers(outputs=2, bits=4)
    >>> numbers.label([0.3, -1.0])
    (5, -16)
    >>> numbers.answers(np.array([[5 << 40, -16 << 40]]), ["0", "1"], grid_bits=40)
    array([[ 0.3125, -1.    ]])
    """

    kind = "numbers"
    measure = "r2"
    largest = 2**20

    def __init__(self, outputs: int = 1, bits: int = 8) -> None:
        for name, value, least, most in (("outputs", outputs, 1, 4096), ("bits", bits, -64, 64)):
            if type(value) is not int or not least <= value <= most:
                raise ConfigurationError(f"{name} must be a whole number from {least} to {most}; got {value!r}")
        self.outputs, self.bits = outputs, bits

    def configuration(self) -> dict[str, Any]:
        return {"bits": self.bits, "kind": self.kind, "outputs": self.outputs}

    @classmethod
    def from_configuration(cls, settings: dict[str, Any]) -> Numbers:
        return cls(settings["outputs"], settings["bits"])

    def label(self, given: Any, any_label: bool = False) -> Label:
        listed = given if isinstance(given, list | tuple | np.ndarray) and np.ndim(given) == 1 else [given]
        numbers: list[Any] = [normalise(each) for each in listed]
        if len(numbers) != self.outputs or any(type(each) not in (int, float) for each in numbers):
            raise LabelError(f"a sample has {self.outputs} numbers to predict; got {given!r}")
        steps, limit = [], 2.0 ** (20 - self.bits)
        for each in numbers:
            if not -limit <= each <= limit:
                raise LabelError(
                    f"the number {each!r} is beyond {limit:g}, the limit for {self.bits} bits: use fewer bits, or "
                    "another unit"
                )
            exact = math.ldexp(each, self.bits) if abs(each) < 2**53 else Fraction(each) * Fraction(2) ** self.bits
            steps.append(round(exact))  # once, ties to even
        return tuple(steps)

    def fits(self, label: Any) -> bool:
        return (
            type(label) is tuple
            and len(label) == self.outputs
            and all(type(each) is int and abs(each) <= self.largest for each in label)
        )

    def columns(self, texts: Sequence[str]) -> Columns:
        values = np.array([self.parsed(each) for each in texts], np.int64).reshape(len(texts), self.outputs)
        names = self._names() if texts else []
        values = values[:, : len(names)]
        return Columns(names, values, np.ones(values.shape, bool), np.ones(len(texts), np.int64))

    def has_columns(self, counts: Mapping[str, int]) -> bool:
        return not counts or (list(counts) == self._names() and len(set(counts.values())) == 1)

    def _names(self) -> list[str]:
        return [text(place) for place in range(self.outputs)]

    def total(self, counts: Mapping[str, int]) -> int:
        return counts.get(text(0), 0)

    def answers(self, scores: np.ndarray, names: Sequence[str], grid_bits: int) -> np.ndarray:
        numbers: np.ndarray = np.ldexp(scores.astype(np.float64), -grid_bits - self.bits)
        return numbers[:, 0] if self.outputs == 1 else numbers

    def score(self, answers: Any, labels: Sequence[Label]) -> float:
        """Return the share of the variance that predictions explain, the mean over all outputs (R²)."""
        truth = np.ldexp(np.array(labels, np.float64).reshape(-1, self.outputs), -self.bits)
        left = ((truth - np.asarray(answers).reshape(truth.shape)) ** 2).sum(axis=0)
        spread = ((truth - truth.mean(axis=0)) ** 2).sum(axis=0)
        return float(np.mean(np.where(spread > 0, 1 - left / np.where(spread > 0, spread, 1), left == 0)))

    def given(self, label: Label) -> list[float]:
        return [math.ldexp(steps, -self.bits) for steps in label]  # type: ignore[attr-defined]

    def said(self, answers: Any) -> list[Any]:
        found: list[Any] = np.asarray(answers, np.float64).reshape(-1, self.outputs).tolist()
        return found

    def classes(self, counts: Mapping[str, int]) -> dict[str, int]:
        return {}
