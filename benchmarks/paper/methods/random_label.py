"""RandomLabel: give the forgotten samples wrong labels at random, and fine-tune on both sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from benchmarks.paper.methods.descent import Descent, GradientMethod, require_retained
from benchmarks.paper.methods.interface import Request, Samples, Tensor


class RandomLabel(GradientMethod):
    """Descends on the cross-entropy of the retained samples and the relabelled forgotten ones, shuffled together.

    A forgotten sample gets one of the other classes, each as likely, drawn once for the request.
    """

    @dataclass(frozen=True)
    class Settings(Descent):
        """Public settings: 10 epochs at 0.013."""

        learning_rate: float = 0.013

    name: ClassVar[str] = "random_label"
    reads_retained: ClassVar[bool] = True

    def update(self, request: Request) -> None:
        """Relabel, then descend on both."""
        retained, forgotten = require_retained(request), request.forgotten
        labels = other_labels(forgotten.labels, self.start.n_classes, self.random(1))
        both = Samples(torch.cat([retained.inputs, forgotten.inputs]), torch.cat([retained.labels, labels]))
        self.descend(both, self.cross_entropy)


def other_labels(labels: Tensor, n_classes: int, random: Any) -> Tensor:
    """Return for each label another one, each of the others as likely."""
    if n_classes < 2:
        raise ValueError(f"random labels need at least two classes; got {n_classes}")
    shift = torch.randint(1, n_classes, labels.shape, generator=random, device=random.device)
    return (labels + shift.to(labels.device)) % n_classes
