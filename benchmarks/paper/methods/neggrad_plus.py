"""NegGrad+: descend on the retained samples and ascend on the forgotten ones, in the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.paper.methods.descent import Descent, GradientMethod, endless, require_retained
from benchmarks.paper.methods.interface import Request, Samples, Tensor


class NegGradPlus(GradientMethod):
    """Descends on ``alpha * cross-entropy(retained) - (1 - alpha) * cross-entropy(forgotten)``.

    An epoch is one pass over the retained samples. Each of its batches is met by one of forgotten samples, which go
    round and round. With ``alpha = 1`` no forgotten sample passes the network, and the method is Finetune.
    """

    @dataclass(frozen=True)
    class Settings(Descent):
        """Settings of descent.

        Attributes
        ----------
        alpha : float
            The weight of the retained samples, from 0 to 1.
        """

        epochs: int = 5
        alpha: float = 0.95

    name: ClassVar[str] = "neggrad_plus"
    reads_retained: ClassVar[bool] = True

    def update(self, request: Request) -> None:
        """Descend on one and ascend on the other."""
        alpha, random = self.settings.alpha, self.random(1)
        forgotten = endless(request.forgotten, self.settings.batch_size, random)

        def loss(batch: Samples, retained_random: Any) -> Tensor:
            kept = alpha * self.cross_entropy(batch, retained_random)
            gone = next(forgotten, None) if alpha < 1 else None
            return kept if gone is None else kept - (1 - alpha) * self.cross_entropy(gone, random)

        self.descend(require_retained(request), loss)
