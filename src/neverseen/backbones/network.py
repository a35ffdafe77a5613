"""The base of all networks, whatever runs them: preprocessing, batches, and a digest.

The features of a sample must not depend on the other samples in the call. Kernels round differently for different
shapes, so every batch has the same number of rows: the last one is padded with rows of zeros, whose results are
dropped. Samples of different sizes, such as texts, do not share a batch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neverseen.backbones.base_set import BaseSet
from neverseen.backbones.contents import as_list, content_of
from neverseen.backbones.progress import progress_bar
from neverseen.backbones.protocol import description_digest
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, InputError

Preprocess = Callable[[list[Any]], Any]


class Network(ABC):
    """Base of the backbones that run a network.

    Parameters
    ----------
    preprocess : callable
        From a list of decoded samples to the network's input: an array or a tensor whose first axis counts samples,
        or a dict of these by the input's name. It may also have

        - ``configuration()``: JSON values that identify it, for the digest;
        - ``example()``: a sample, used to find the number of features;
        - ``sizes(samples)``: a number for each sample; only samples with the same number share a batch;
        - ``takes``: ``"texts"``, ``"images"`` or ``"features"``; images by default.
    batch_size : int
        Rows of each batch. Another batch size may change the last bits of the features.
    preprocess_id : str, optional
        Identifies the preprocessing in the digest, if it has no ``configuration()`` and its representation does not
        identify it. Change it whenever you change the preprocessing.
    progress : bool, optional
        Whether to show a bar; by default if stderr is a terminal and there is more than one batch.
    """

    base: BaseSet | None = None
    recipe: dict[str, Any] | None = None
    """How a store makes it again, if that is known (`neverseen.backbones.recipes`)."""
    stands_for: str | None = None

    def __init__(
        self, preprocess: Preprocess, name: str, batch_size: int, preprocess_id: str | None, progress: bool | None
    ) -> None:
        if not callable(preprocess):
            raise ConfigurationError(
                f"preprocess must turn a list of samples into a batch; got {type(preprocess).__name__}. For images, "
                "use neverseen.backbones.Images(size=...)"
            )
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"name must be a text; got {name!r}")
        self.name = name
        self.preprocess = preprocess
        self.takes = getattr(preprocess, "takes", "images")
        self.batch_size = whole_number("batch_size", batch_size, 1, 2**16)
        self.progress = progress
        self._preprocess_id = preprocess_id
        self._preprocessing = preprocessing_description(preprocess, preprocess_id)
        self.n_features = 0

    def extract(self, samples: Any) -> np.ndarray:
        """Return the features of samples, float32 of shape (n, n_features).

        Parameters
        ----------
        samples : iterable of samples, or an array whose first axis counts them
            See `neverseen.backbones.contents`.
        """
        listed = as_list(samples)
        features = np.empty((len(listed), self.n_features), np.float32)
        with progress_bar(self.name, len(listed), batch=self.batch_size, shown=self.progress) as advance:
            for rows in self._batches(listed):
                features[rows] = self._features([content_of(listed[row]) for row in rows], rows)
                advance(len(rows))
        return features

    def digest(self) -> str:
        """Return the SHA-256 of weights, preprocessing and base set, in hex."""
        return self.stands_for or description_digest(self.description())

    def description(self) -> dict[str, Any]:
        """Return the JSON values that `digest` covers."""
        return {
            "name": self.name,
            "features": self.n_features,
            "network": self._network_description(),
            "preprocessing": self._preprocessing,
            "base": None if self.base is None else self.base.description(),
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {self.n_features} features, {self.digest()[:12]}>"

    @abstractmethod
    def _network_description(self) -> dict[str, Any]:
        """Return JSON values that identify the function of this network."""

    @abstractmethod
    def _run(self, inputs: dict[str, Any]) -> np.ndarray:
        """Return the output of the network for inputs of `batch_size` rows, by name; a single input has the name ""."""

    def _batches(self, samples: list[Any]) -> list[list[int]]:
        """Return the rows of each batch."""
        sizes = getattr(self.preprocess, "sizes", None)
        groups: dict[int, list[int]] = {}
        if sizes is None:
            groups[0] = list(range(len(samples)))
        else:
            for row, size in enumerate(sizes([content_of(sample) for sample in samples])):
                groups.setdefault(size, []).append(row)
        step = self.batch_size
        return [rows[first : first + step] for rows in groups.values() for first in range(0, len(rows), step)]

    def _features(self, samples: list[Any], rows: list[int]) -> np.ndarray:
        """Return the checked features of at most one batch of samples; `rows` are their positions in the call."""
        inputs = self._inputs(samples)
        features = self._run({key: self._filled(value) for key, value in inputs.items()})[: len(samples)]
        if features.shape[1] != self.n_features:
            raise ConfigurationError(
                f"{self.name} gave features of shape {features.shape[1:]} where n_features is {self.n_features}"
            )
        whole = np.isfinite(features).all(axis=1)
        if not whole.all():
            raise InputError(
                f"{self.name} gave NaN or infinity for sample {rows[int(np.argmin(whole))]}: leave this sample out. If "
                "it does so for others too, the network's weights are damaged or overflow"
            )
        return features

    def _inputs(self, samples: list[Any]) -> dict[str, Any]:
        """Return the preprocessed inputs of decoded samples, by name; a single input has the name ""."""
        inputs = self.preprocess(samples)
        named = dict(inputs) if isinstance(inputs, Mapping) else {"": inputs}
        for values in named.values():
            self._check_rows(values, len(samples))
        return named

    def _check_rows(self, values: Any, count: int) -> None:
        shape = tuple(getattr(values, "shape", ()))
        is_array = isinstance(values, np.ndarray) or hasattr(values, "new_zeros")  # which a tensor has
        if not is_array or not shape or shape[0] != count:
            raise ConfigurationError(
                f"preprocess must give an array or a tensor with one row for each of {count} samples; got "
                f"{type(values).__name__}" + (f" of shape {shape}" if shape else "")
                + ". For a transform of single samples, use neverseen.backbones.PerSample(transform)"
            )  # fmt: skip

    def _filled(self, values: Any) -> Any:
        """Return an input with zeros added below, up to `batch_size` rows."""
        shape = (self.batch_size - len(values), *values.shape[1:])
        if shape[0] == 0:
            return values
        if isinstance(values, np.ndarray):
            return np.concatenate([values, np.zeros(shape, values.dtype)])
        import torch

        return torch.cat([values, values.new_zeros(shape)])

    def _found_size(self) -> int:
        """Return the number of features, found by running the preprocessing's example."""
        example = getattr(self.preprocess, "example", None)
        if example is None:
            raise ConfigurationError("n_features must be given: the preprocessing has no example() to find it out from")
        try:
            inputs = self._inputs([example()])
        except Exception as error:  # whatever the user's own code raises
            raise ConfigurationError(
                f"n_features must be given: preprocess fails on its own example: {error}"
            ) from error
        return int(self._run({key: self._filled(value) for key, value in inputs.items()}).shape[1])


class PerSample:
    """Preprocessing by a transform of single samples, such as torchvision's.

    Parameters
    ----------
    transform : callable
        From one sample to an array or a tensor, of the same shape for all. Images are passed as PIL images.

    Examples
    --------
    >>> PerSample(lambda text: np.array([len(text)]))(["four", "seven"]).tolist()
    [[4], [5]]
    """

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, samples: list[Any]) -> Any:
        """Return the transformed samples, stacked."""
        parts = [self.transform(_as_pil(sample)) for sample in samples]
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.stack(parts)
        import torch

        return torch.stack(parts)

    def example(self) -> np.ndarray:
        """Return a sample, a black image, to find the shape of the features."""
        return np.zeros((64, 64, 3), np.uint8)

    def __repr__(self) -> str:
        return f"PerSample({self.transform!r})"


def _as_pil(sample: Any) -> Any:
    if not (isinstance(sample, np.ndarray) and sample.dtype == np.uint8 and sample.ndim in (2, 3)):
        return sample
    from PIL import Image

    return Image.fromarray(sample)


def preprocessing_description(preprocess: Preprocess, preprocess_id: str | None) -> dict[str, Any]:
    """Return JSON values that identify the preprocessing in a digest."""
    if preprocess_id is not None and (not isinstance(preprocess_id, str) or not preprocess_id):
        raise ConfigurationError(f"preprocess_id must be a text; got {preprocess_id!r}")
    configuration = getattr(preprocess, "configuration", None)
    if callable(configuration):
        return {"configuration": configuration(), "id": preprocess_id}
    if preprocess_id is not None:
        return {"id": preprocess_id}
    shown = repr(preprocess)
    if re.search("0x[0-9a-fA-F]{4}", shown):  # an address in memory, another one in every process
        raise ConfigurationError(
            f"nothing tells what {type(preprocess).__name__} does from one process to the next: give preprocess_id=, a "
            "text that you change whenever you change the preprocessing"
        )
    return {"shown": shown}
