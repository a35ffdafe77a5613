"""SCRUB: a student that obeys its teacher on the retained samples and disobeys it on the forgotten ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from benchmarks.paper.methods.descent import Descent, GradientMethod, batches, require_retained, shared, step
from benchmarks.paper.methods.interface import Network, Request, Start, Tensor


class SCRUB(GradientMethod):
    """Alternates epochs of max steps and min steps (Kurmanji et al., 2023).

    Max steps ascend on ``KL(teacher || student)`` over the forgotten samples; min steps descend on
    ``alpha * KL(teacher || student) + gamma * cross-entropy`` over the retained ones. Both distributions are softened
    by T and the divergence is multiplied by T squared. The first `max_steps` epochs begin with an epoch of max steps,
    and every epoch ends with one of min steps.

    The teacher is the original, in evaluation mode; both see the same augmented batch. As with epochs, `max_steps` is a
    budget for all requests: each gets ``ceil(max_steps / n_requests)``.

    Where student and teacher agree, the divergence is at its minimum and has no slope. A network in training mode
    leaves that point by its batch statistics; a linear head cannot, so on heads the very first epoch of max steps does
    nothing, and those that follow min steps do.
    """

    @dataclass(frozen=True)
    class Settings(Descent):
        """Public settings: alpha 0.5, gamma 1, T 2, 3 max steps in 10 epochs of Adam at 5e-4.

        Not its weight decay of 0.1, which pulls a network that has little to forget far below where it began.

        Attributes
        ----------
        alpha, gamma : float
            Weights of the divergence and of the cross-entropy in min steps.
        temperature : float
            T.
        max_steps : int
            Epochs that begin with max steps.
        """

        learning_rate: float = 5e-4
        optimiser: str = "adam"
        alpha: float = 0.5
        gamma: float = 1.0
        temperature: float = 2.0
        max_steps: int = 3

    name: ClassVar[str] = "scrub"
    reads_retained: ClassVar[bool] = True

    def prepare(self, start: Start) -> None:
        """Copy the original twice."""
        super().prepare(start)
        self.teacher: Network = copy.deepcopy(self.model).eval()

    def update(self, request: Request) -> None:
        """Alternate between the two kinds of epoch."""
        retained, chosen = require_retained(request), self.settings
        optimiser, random, forgotten_random = self.optimiser(), self.random(), self.random(1)
        for epoch in range(self.epochs):
            if epoch < shared(chosen.max_steps, self.start.n_requests):
                for batch in batches(request.forgotten, chosen.batch_size, forgotten_random):
                    _, divergence = self._against(batch.inputs, forgotten_random)
                    step(optimiser, -divergence)
            for batch in batches(retained, chosen.batch_size, random):
                logits, divergence = self._against(batch.inputs, random)
                truth = nn.functional.cross_entropy(logits, batch.labels)
                step(optimiser, chosen.alpha * divergence + chosen.gamma * truth)

    def _against(self, inputs: Tensor, random: Any) -> tuple[Tensor, Tensor]:
        """Return the student's logits and its divergence from the teacher, on one augmented batch."""
        if self.start.augment is not None:
            inputs = self.start.augment(inputs, random)
        with torch.no_grad():
            taught = self.teacher(inputs)
        logits = self.forward(inputs)
        return logits, divergence(logits, taught, self.settings.temperature)


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return ``T^2 KL(softmax(teacher / T) || softmax(student / T))``, the mean over rows."""
    log_student = nn.functional.log_softmax(student / temperature, 1)
    log_teacher = nn.functional.log_softmax(teacher / temperature, 1)
    return nn.functional.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True) * temperature**2
