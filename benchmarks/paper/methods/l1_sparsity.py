"""L1-Sparsity: fine-tune on the retained samples with an L1 penalty on the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.paper.methods.descent import Descent, GradientMethod, require_retained
from benchmarks.paper.methods.interface import Request, Samples, Tensor


class L1Sparsity(GradientMethod):
    """Descends on ``cross-entropy(retained) + penalty * sum |parameter|``.

    The penalty falls, epoch by epoch, from `penalty` towards 0 at the end of the last request.
    """

    @dataclass(frozen=True)
    class Settings(Descent):
        """Public settings: 10 epochs at 0.01.

        Attributes
        ----------
        penalty : float
            What the L1 norm of all parameters is multiplied by in the first epoch.
        """

        penalty: float = 5e-4

    name: ClassVar[str] = "l1_sparsity"
    reads_retained: ClassVar[bool] = True

    def update(self, request: Request) -> None:
        """Descend on the penalised loss."""
        self.descend(require_retained(request), self._penalised)

    def _penalised(self, batch: Samples, random: Any) -> Tensor:
        loss = self.cross_entropy(batch, random)
        penalty = self.settings.penalty * (1 - self.epochs_done / (self.epochs * self.start.n_requests))
        if penalty:
            loss = loss + penalty * sum(parameter.abs().sum() for parameter in self.model.parameters())
        return loss
