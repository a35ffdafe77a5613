"""NegGrad+: descend on the retained samples and ascend on the forgotten ones, in the same step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.paper.methods.descent import Descent, GradientMethod, batches, endless, require_retained
from benchmarks.paper.methods.interface import Request


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
        alpha, size = self.settings.alpha, self.settings.batch_size
        retained, optimiser = require_retained(request), self.optimiser()
        random, forgotten_random = self.random(), self.random(1)
        forgotten = endless(request.forgotten, size, forgotten_random)
        for _ in range(self.epochs):
            for batch in batches(retained, size, random):
                optimiser.zero_grad(set_to_none=True)
                (alpha * self.cross_entropy(batch, random)).backward()
                gone = next(forgotten, None) if alpha < 1 else None
                if gone is not None:  # the gradients of both add up
                    ((alpha - 1) * self.cross_entropy(gone, forgotten_random)).backward()
                optimiser.step()
