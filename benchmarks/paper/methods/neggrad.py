"""NegGrad: gradient ascent on the forgotten samples. The only gradient method that touches no retained sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.paper.methods.descent import Descent, GradientMethod
from benchmarks.paper.methods.interface import Request, Samples, Tensor


class NegGrad(GradientMethod):
    """Ascends on the cross-entropy of the forgotten samples. Nothing bounds that loss: too many steps wreck it.

    Each request gets all epochs: they pass over its own samples alone, so that K requests cost what one does.
    """

    @dataclass(frozen=True)
    class Settings(Descent):
        """Public settings: 5 epochs at 1e-4."""

        epochs: int = 5
        learning_rate: float = 1e-4

    name: ClassVar[str] = "neggrad"
    reads_retained: ClassVar[bool] = False

    @property
    def epochs(self) -> int:
        """Epochs that each request gets."""
        epochs: int = self.settings.epochs
        return epochs

    def update(self, request: Request) -> None:
        """Ascend on the forgotten samples."""
        self.descend(request.forgotten, self._negative)

    def _negative(self, batch: Samples, random: Any) -> Tensor:
        return -self.cross_entropy(batch, random)
