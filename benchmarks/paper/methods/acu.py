"""ACU: the paper's recursion on the Knowledge Tracking Matrix T and the weights W, in float32 and in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from benchmarks.paper.methods.head import one_hot, sums
from benchmarks.paper.methods.interface import Method, Request, Samples, Start, Tensor, settings_of
from benchmarks.paper.methods.recursion import Tracked, forget_as_written, full_precision, learn_as_written
from neverseen import tracking


class ACU(Method):
    """Learns and forgets by `neverseen.tracking`: Appendix D, Algorithm 1 for samples, Algorithm 2 for classes.

    `tracking` evaluates the paper's formulas with care, and raises if T' does not exist or is lost to rounding. Then T
    and W become NaN, for there is no model to go on with, and a note says at which request. ``as_written`` evaluates
    the formulas of Appendix D and Algorithm 1 as they are printed, from left to right, and never refuses. A request is
    forgotten `rows` samples at a time, since one step costs the cube of its samples.
    """

    @dataclass(frozen=True)
    class Settings:
        """Settings of the recursion.

        Attributes
        ----------
        gamma : float
        by_recursion : bool
            Whether the samples are learned by the recursion too. If not, T and W start as the closed form, computed in
            float64: that is kinder to the recursion.
        rows : int
            Samples learned or forgotten at a time.
        track_classes : bool
            Whether to keep ``F'F`` of each class, for Algorithm 2. Without it a class is forgotten by its samples.
        as_written : bool
        """

        gamma: float = 2.0**16
        by_recursion: bool = False
        rows: int = 1024
        track_classes: bool = False
        as_written: bool = False

    reads_retained: ClassVar[bool] = False
    is_exact: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]] = ("codes",)
    dtype: ClassVar[Any]
    model: Tracked

    def prepare(self, start: Start) -> None:
        """Learn all samples."""
        if start.learned is None:
            raise ValueError(f"{self.name} learns for itself: set Start.learned")
        self.settings = settings_of(type(self), start.settings)
        self.n_classes, self.notes, self.steps = start.n_classes, [], 0
        self.classes = list(range(start.n_classes))  # columns of W
        self.grams: dict[int, Tensor] = {}
        size = start.learned.inputs.shape[1]
        like = torch.empty(0, dtype=self.dtype, device=start.device)
        self.model = Tracked(*tracking.start(size, start.n_classes, self.settings.gamma, like=like))
        if self.settings.by_recursion:
            self.learn(start.learned)
        else:
            closed_form = tracking.from_sums(*sums(start.learned, start.n_classes), gamma=self.settings.gamma)
            self.model = Tracked(*(part.to(self.dtype) for part in closed_form))
            self._track(start.learned, 1)

    def learn(self, samples: Samples) -> None:
        """Learn more samples; one of a class that is gone brings its column back."""
        for label in sorted(set(samples.labels.tolist()) - set(self.classes)):
            self.classes.append(label)
            self.model = self.model._replace(W=torch.nn.functional.pad(self.model.W, (0, 1)))
        self._advance(samples, learn_as_written if self.settings.as_written else tracking.learn)
        self._track(samples, 1)

    def forget(self, request: Request) -> None:
        """Forget samples, or a class by its sums if they are kept."""
        if request.label is None or not self.settings.track_classes:
            self._advance(request.forgotten, forget_as_written if self.settings.as_written else tracking.forget_samples)
            self._track(request.forgotten, -1)
        else:
            gram, column = self.grams.pop(request.label), self.classes.index(request.label)
            self._step(partial(tracking.forget_class, self.model.T, self.model.W, gram, None, column))
        if request.label is not None:
            kept = [column for column, label in enumerate(self.classes) if label != request.label]
            if self.model.W.shape[1] > len(kept):  # else Algorithm 2 has dropped it already
                self.model = self.model._replace(W=self.model.W[:, kept])
            self.classes.remove(request.label)

    def _advance(self, samples: Samples, update: Callable[..., tuple[Tensor, Tensor]]) -> None:
        for first in range(0, len(samples.labels), self.settings.rows):
            F = samples.inputs[first : first + self.settings.rows].to(self.dtype)
            labels = samples.labels[first : first + self.settings.rows]
            Y = one_hot(labels, self.n_classes, self.dtype)[:, self.classes]  # (rows, C held)
            self._step(partial(update, *self.model, F, Y))

    def _step(self, update: Callable[[], tuple[Tensor, Tensor]]) -> None:
        self.steps += 1
        if self.notes:  # there is no model any more
            return
        try:
            with full_precision():
                self.model = Tracked(*update())
        except (ArithmeticError, torch.linalg.LinAlgError) as error:
            self.notes.append(f"no model after step {self.steps} of the recursion: {error}")
            self.model = Tracked(*(torch.full_like(part, float("nan")) for part in self.model))

    def _track(self, samples: Samples, sign: int) -> None:
        if self.settings.track_classes:
            for label in samples.labels.unique().tolist():
                F = samples.inputs[samples.labels == label].to(self.dtype)
                with full_precision():
                    gram = F.t() @ F  # (d, d)
                self.grams[label] = self.grams[label] + sign * gram if label in self.grams else sign * gram

    def scores(self, inputs: Tensor) -> Tensor:
        """Return ``codes @ W``, of shape (n, C); -inf for classes that are gone."""
        scores = torch.full((len(inputs), self.n_classes), float("-inf"), dtype=self.dtype, device=inputs.device)
        with full_precision():
            for first in range(0, len(inputs), 4096):
                scores[first : first + 4096, self.classes] = inputs[first : first + 4096].to(self.dtype) @ self.model.W
        return scores

    def parameters(self) -> Tensor:
        """Return W, of shape (d, C), flattened; a class that is gone keeps its place, with zeros."""
        weights = torch.zeros((len(self.model.W), self.n_classes), dtype=torch.float64)
        weights[:, self.classes] = self.model.W.double().cpu()
        return weights.flatten()


class ACUFloat32(ACU):
    """ACU in float32."""

    name: ClassVar[str] = "acu_float32"
    dtype: ClassVar[Any] = torch.float32


class ACUFloat64(ACU):
    """ACU in float64."""

    name: ClassVar[str] = "acu_float64"
    dtype: ClassVar[Any] = torch.float64
