"""neverseen: `neverseen.AnalyticClassifier` on frozen features, through its public interface alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.paper.methods.interface import Method, Request, Samples, Start, Tensor, settings_of
from neverseen import AnalyticClassifier, Encoder, Identity, RandomProjection


class NeverseenExact(Method):
    """Forgets so that the model left is bit for bit the one that never saw the samples.

    `forget` takes the samples away and reads the new weights, so its time covers all of the update, the encoding of
    the forgotten features included. A class is forgotten without its samples if its sums are kept.
    """

    @dataclass(frozen=True)
    class Settings:
        """Settings of the classifier.

        Attributes
        ----------
        codes : int
            Size of the random projection; 0 for none (`neverseen.Identity`).
        projection_seed : int
        gamma : int
        grid_bits : int
        hardware : str
            "auto", "numpy", "torch" or "cuda".
        track_classes : bool
            Whether to keep the sums of each class.
        class_folder : str
            Where to keep them on disk; in memory if empty.
        batch : int
            Features learned at a time.
        """

        codes: int = 2048
        projection_seed: int = 0
        gamma: int = 2**16
        grid_bits: int = 40
        hardware: str = "auto"
        track_classes: bool = False
        class_folder: str = ""
        batch: int = 30_000

    name: ClassVar[str] = "neverseen"
    reads_retained: ClassVar[bool] = False
    is_exact: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]] = ("features",)

    model: AnalyticClassifier

    def prepare(self, start: Start) -> None:
        """Learn all samples."""
        if start.learned is None:
            raise ValueError(f"{self.name} learns for itself: set Start.learned")
        self.settings = settings_of(type(self), start.settings)
        self.n_classes, self.notes = start.n_classes, []
        chosen = self.settings
        self.model = self._new(track_classes=chosen.track_classes, class_folder=chosen.class_folder or None)
        self.learn(start.learned)

    def _new(self, **tracking: Any) -> AnalyticClassifier:
        chosen = self.settings
        encoder: Encoder = RandomProjection(chosen.codes, chosen.projection_seed) if chosen.codes else Identity()
        return AnalyticClassifier(
            encoder, chosen.gamma, grid_bits=chosen.grid_bits, hardware=chosen.hardware, **tracking
        )

    def learn(self, samples: Samples) -> None:
        """Learn more samples, and read the weights."""
        self._teach(self.model, samples)
        self._read()

    def _teach(self, classifier: AnalyticClassifier, samples: Samples) -> None:
        features, labels = as_numpy(samples.inputs), as_numpy(samples.labels)
        for first in range(0, len(labels), self.settings.batch):
            part = slice(first, first + self.settings.batch)
            classifier.partial_fit(features[part], labels[part])

    def forget(self, request: Request) -> None:
        """Forget the samples, or the class by its sums, and read the weights."""
        if request.label is not None and self.settings.track_classes:
            self.model.forget_class(request.label)
        else:
            self.model.forget(as_numpy(request.forgotten.inputs), as_numpy(request.forgotten.labels))
        self._read()

    def _read(self) -> None:
        """Have the new weights solved for; a model that holds no sample has none."""
        held = hasattr(self.model, "classes_")
        self.weights = self.model.weights_ if held else np.zeros((0, 0))  # (d, C)
        self.classes: list[int] = self.model.classes_.tolist() if held else []

    def scores(self, inputs: Tensor) -> Tensor:
        """Return the exact scores as float64, of shape (n, C), on the CPU; -inf for classes that are not held."""
        scores = torch.full((len(inputs), self.n_classes), float("-inf"), dtype=torch.float64)
        if self.classes:
            held = torch.from_numpy(self.model.decision_function(as_numpy(inputs)))
            if len(self.classes) == 2:  # scikit-learn wants their difference; half of it each has the same softmax
                held = torch.stack([-held / 2, held / 2], 1)
            scores[:, self.classes] = held
        return scores

    def parameters(self) -> Tensor:
        """Return the weights, of shape (d, C), flattened."""
        weights = torch.zeros((len(self.weights), self.n_classes), dtype=torch.float64)
        weights[:, self.classes] = torch.from_numpy(self.weights)
        return weights.flatten()

    def digest(self) -> str:
        """Return the classifier's digest: configuration, classes and weights."""
        return self.model.digest()

    def retrained_digest(self, retained: Samples) -> str:
        """Return the digest of a new classifier that learned only these samples."""
        fresh = self._new()
        self._teach(fresh, retained)
        return fresh.digest()


class NeverseenQueued(NeverseenExact):
    """The same, when requests wait for each other, as they do in the service: the weights are read after the last.

    Each request is still checked and taken away by itself, in order.
    """

    name: ClassVar[str] = "neverseen_queued"

    def prepare(self, start: Start) -> None:
        """Learn all samples, and note how many requests there will be."""
        self._expected = start.n_requests
        super().prepare(start)

    def forget(self, request: Request) -> None:
        """Forget the samples; read the weights if no more requests wait."""
        self._expected -= 1
        super().forget(request)

    def _read(self) -> None:
        if not hasattr(self, "weights") or self._expected <= 0:
            super()._read()


def as_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array on the CPU."""
    array: np.ndarray = tensor.cpu().numpy()
    return array
