"""Base training: fine-tune a backbone on a named base set, before it is frozen for good.

The samples of the base set stay in the network's weights for good. So their fingerprints are recorded, and a model on
that backbone neither learns nor forgets them. Use samples that nobody can ask you to forget.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from neverseen.backbones.base_set import BaseSet
from neverseen.backbones.contents import as_list, decoded, fingerprint
from neverseen.backbones.packages import imported
from neverseen.backbones.progress import progress_bar
from neverseen.backbones.pytorch import TorchBackbone
from neverseen.backbones.reproducible import reproducible
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, InputError
from neverseen.labels import LabelIndex, require_classes

_MOMENTUM, _WEIGHT_DECAY = 0.9, 5e-4


def base_train(
    backbone: TorchBackbone,
    samples: Any,
    labels: Iterable[Any],
    *,
    name: str,
    epochs: int = 5,
    learning_rate: float = 0.01,
    batch_size: int = 32,
    seed: int = 0,
    progress: bool | None = None,
) -> TorchBackbone:
    """Return a copy of a backbone, fine-tuned on a base set. Its linear head is dropped after training.

    It minimises the cross-entropy by stochastic gradient descent with momentum 0.9 and weight decay 0.0005. The
    learning rate falls to zero along a cosine. Statistics of batch normalisation do not change. On one machine, the
    same seed gives the same weights.

    Parameters
    ----------
    backbone : TorchBackbone
        It is not changed.
    samples : iterable of samples, or an array whose first axis counts them
        The base set.
    labels : iterable of labels
        One for each sample, of two classes or more.
    name : str
        Name of the base set, such as ``"CIFAR-100, classes 0-49"``.
    epochs : int
        Number of passes over the samples.
    batch_size : int
        Samples in each step.
    seed : int
        For the order of the samples, and for dropout.
    progress : bool, optional
        Whether to show a bar; by default if stderr is a terminal.

    Returns
    -------
    TorchBackbone
        Its ``base`` is the `BaseSet`; its settings hold the mean loss of each epoch.
    """
    torch = imported("torch", "base_train", "pip install torch")
    if not isinstance(backbone, TorchBackbone):
        raise ConfigurationError(
            f"only a TorchBackbone can be trained; got {type(backbone).__name__}. Make it with runtime='torch' "
            "and train it first, then export or cache it"
        )
    if backbone.base is not None:
        raise ConfigurationError(f"the backbone has been trained on a base set already: {backbone.base.name!r}")
    whole_number("epochs", epochs, 1, 10**6)
    whole_number("batch_size", batch_size, 1, 2**16)
    whole_number("seed", seed, 0, 2**63 - 1)
    if not isinstance(learning_rate, int | float) or not 0 < learning_rate < 1e3:
        raise ConfigurationError(f"learning_rate must be a positive number; got {learning_rate!r}")
    labels = list(labels)
    require_classes(labels)
    listed, index = as_list(samples), LabelIndex(labels)
    if len(listed) != len(index) or len(index.texts) < 2:
        raise InputError(
            "a base set needs a label for each sample, of two classes or more; got "
            f"{len(listed)} samples, {len(index)} labels and {len(index.texts)} class(es)"
        )
    settings: dict[str, Any] = {
        "optimiser": "sgd, momentum 0.9, weight decay 0.0005, cosine",
        "epochs": int(epochs),
        "learning_rate": float(learning_rate).hex(),
        "batch_size": int(batch_size),
        "seed": int(seed),
        "classes": index.texts,
    }
    base = BaseSet(name, (fingerprint(sample) for sample in listed), settings)  # checks name and samples before work

    steps = epochs * -(-len(listed) // batch_size)
    losses = []
    with (
        _seeded(int(seed), backbone.device),
        progress_bar(name, epochs * len(listed), batch=0, shown=progress) as advance,
    ):
        training = _Training(backbone, len(index.texts), float(learning_rate), steps)
        order = torch.Generator().manual_seed(int(seed))
        for _ in range(epochs):
            total = 0.0
            for rows in torch.randperm(len(listed), generator=order).split(batch_size):
                chosen = [decoded(listed[row]) for row in rows.tolist()]
                total += training.step(chosen, index.positions[rows.numpy()]) * len(rows)
                advance(len(rows))
            losses.append(total / len(listed))
            if not np.isfinite(losses[-1]):
                raise InputError(
                    f"the loss became {losses[-1]} in epoch {len(losses)}: lower learning_rate, {learning_rate} now"
                )
    record = BaseSet(name, base.fingerprints, settings | {"losses": [loss.hex() for loss in losses]})
    return backbone.with_module(training.module, record)


class _Training:
    """A copy of the backbone's module with a linear head, and its training steps."""

    def __init__(self, backbone: TorchBackbone, n_classes: int, learning_rate: float, steps: int) -> None:
        import torch

        self._backbone = backbone
        self.module = backbone.module_copy().train().requires_grad_(True)
        for part in self.module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
                part.eval()
        self._head = torch.nn.Linear(backbone.n_features, n_classes, device=backbone.device)
        torch.nn.init.zeros_(self._head.weight)
        torch.nn.init.zeros_(self._head.bias)
        parameters = [*self.module.parameters(), *self._head.parameters()]
        self._optimiser = torch.optim.SGD(parameters, lr=learning_rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimiser, steps)

    def step(self, samples: list[Any], positions: np.ndarray) -> float:
        """Train on a few samples, given the positions of their classes; return their mean loss."""
        import torch

        output = self._backbone.output_of(self.module, samples)
        targets = torch.from_numpy(positions).to(self._backbone.device)
        loss = torch.nn.functional.cross_entropy(self._head(output.float()), targets)
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        self._schedule.step()
        return float(loss.detach())


@contextmanager
def _seeded(seed: int, device: Any) -> Iterator[None]:
    """Run PyTorch so that the same seed gives the same weights, and restore its settings and generators after."""
    import torch

    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), reproducible(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that have no deterministic kind
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
