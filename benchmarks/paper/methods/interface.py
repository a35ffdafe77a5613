"""What an unlearning method is: it is prepared with an original model, is handed requests, and has a model.

A method is one file with one class, named in `benchmarks.paper.methods.METHODS`. It sees retained samples only if it
declares that it reads them: `Request.retained` is None for all others. The functions below hand out no more than that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch

Tensor: TypeAlias = Any  # torch.Tensor
Network: TypeAlias = Any  # torch.nn.Module


class Samples(NamedTuple):
    """Samples on the method's device.

    Attributes
    ----------
    inputs : Tensor
        Images, uint8 (n, height, width, 3); features, float32 (n, d0); or codes, int8 (n, d).
    labels : Tensor
        int64 (n,), from 0 to n_classes - 1.
    """

    inputs: Tensor
    labels: Tensor


class Request(NamedTuple):
    """What is to be forgotten.

    Attributes
    ----------
    forgotten : Samples
    retained : Samples or None
        All samples that stay, before and after; None unless the method declares `reads_retained`.
    label : int or None
        The class, if the request is for a whole class; `forgotten` then holds all its samples that are left.
    """

    forgotten: Samples
    retained: Samples | None = None
    label: int | None = None


@dataclass(frozen=True)
class Start:
    """What a method starts from.

    Attributes
    ----------
    n_classes : int
    device : torch.device
    seed : int
    n_requests : int
        How many requests will come. A budget of epochs is for all of them: each gets ``ceil(epochs / n_requests)``.
    settings : mapping
        The method's own table of the setting, such as ``{"epochs": 10, "learning_rate": 0.01}``. Keys are the fields
        of the method's dataclass `Method.Settings`; those left out have its defaults.
    model : torch.nn.Module or None
        The original: a network on uint8 images, or a `benchmarks.paper.methods.head.Head` on int8 codes. It takes
        inputs as they are and returns logits (n, n_classes). A method copies it and never changes it. None for methods
        that learn for themselves (`Method.learns`).
    learned : Samples or None
        All learned samples, for methods that learn for themselves (`Method.learns`); None for all others.
    augment : callable or None
        ``augment(inputs, generator)`` gives a batch of inputs changed at random, as `training.augmented` does to
        images. None for codes, and where training does not augment.
    train : callable or None
        ``train(samples)`` trains a model as the original was trained, from where it began, on these samples alone, and
        returns it; for `retrain`.
    """

    n_classes: int
    device: Any
    seed: int
    n_requests: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: Network | None = None
    learned: Samples | None = None
    augment: Callable[[Tensor, Any], Tensor] | None = None
    train: Callable[[Samples], Network] | None = None


class Method(ABC):
    """An unlearning method.

    Attributes
    ----------
    name : str
        Its key in `METHODS`.
    reads_retained : bool
        Whether its requests come with the retained samples.
    is_exact : bool
        Whether its definition gives the retrained model, up to rounding.
    learns : bool
        Whether it learns the samples for itself (`Start.learned`) and can learn more (`learn`).
    inputs : tuple of str
        The kinds of input that it works on: "images", "features", "codes".
    Settings : type
        A frozen dataclass: what can be set, with defaults.
    model : object
        The model as it is after the requests so far: a network or a head, T and W, a classifier. `scores` and
        `parameters` read it in one way for all.
    notes : list of str
        What a reader of the results has to know, such as an update that was refused.
    """

    name: ClassVar[str]
    reads_retained: ClassVar[bool]
    is_exact: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    inputs: ClassVar[tuple[str, ...]] = ("images", "codes")
    Settings: ClassVar[type]

    model: Any
    notes: list[str]

    @abstractmethod
    def prepare(self, start: Start) -> None:
        """Take the original model, or learn the samples. Not part of the update time."""

    @abstractmethod
    def forget(self, request: Request) -> None:
        """Answer one request, to the end: after it `scores` are those of the new model. This is the update time."""

    @abstractmethod
    def scores(self, inputs: Tensor) -> Tensor:
        """Return logits or scores, float (n, n_classes), in evaluation mode. A class that is gone has -inf."""

    @abstractmethod
    def parameters(self) -> Tensor:
        """Return all that was learned by gradient or by solving, as one float64 vector on the CPU.

        Running means and variances of batch normalisation are not part of it. A class that is gone has zeros.
        """

    def learn(self, samples: Samples) -> None:
        """Learn more samples, if `learns`."""
        raise NotImplementedError(f"{self.name} cannot learn more samples")

    def digest(self) -> str | None:
        """Return the digest of the model, of methods that have one."""
        return None

    def retrained_digest(self, retained: Samples) -> str | None:
        """Return the digest of a fresh model that learned only these samples, of methods that have one."""
        return None


def request_for(
    method: type[Method], forgotten: Samples, retained: Callable[[], Samples], label: int | None = None
) -> Request:
    """Return the request as this method may see it: the retained samples are not even gathered for one that may not."""
    return Request(forgotten, retained() if method.reads_retained else None, label)


def settings_of(method: type[Method], settings: Mapping[str, Any]) -> Any:
    """Return a method's settings from its table, or say which key it does not have."""
    known = list(getattr(method.Settings, "__dataclass_fields__", {}))
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(f"{method.name} has no setting {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    return method.Settings(**settings)


def generator(device: Any, *numbers: int) -> Any:
    """Return a random generator on a device, seeded by some whole numbers: the same ones give the same draws."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**63
    return torch.Generator(device=device).manual_seed(seed)
