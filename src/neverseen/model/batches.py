"""Learning from an iterator, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from neverseen.errors import InputError

_PARTS = ("samples", "labels", "ids", "owners")


class Learner(Protocol):
    """What learns samples and gives receipts: a `ForgettingModel`, or a `Store`."""

    def learn(self, samples: Any, labels: Any, *others: Any, **named: Any) -> list[bytes]:
        """Learn samples; return their receipts."""


def learn_batches(model: Learner, batches: Iterable[Any]) -> Iterator[list[bytes]]:
    """Learn batch after batch, and yield the receipts of each once it is learned.

    Each batch is one change, learned as a whole or not at all. Batches are drawn one at a time, and neither their
    samples nor their receipts are kept. So memory is bounded by the largest batch, and by what the model itself keeps.

    Nothing is learned until you ask for the receipts. If the iterator raises, or a batch is refused, the error comes
    through, and the model holds the batches whose receipts you got: no more, no fewer.

    Parameters
    ----------
    model : ForgettingModel or Store
    batches : iterable of batches
        Such as a ``torch.utils.data.DataLoader``. Each batch is a tuple or list of arguments for ``model.learn``,
        ``(samples, labels)``, ``(samples, labels, ids)`` or ``(samples, labels, ids, owners)``; or a mapping of them by
        name. Tensors of PyTorch become arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from neverseen import ForgettingModel, learn_batches
    >>> from neverseen.backbones import Precomputed
    >>> rows = np.random.default_rng(0).normal(size=(60, 5)); labels = np.where(rows[:, 0] > 0, "cat", "dog")
    >>> model = ForgettingModel(Precomputed(5))
    >>> [len(receipts) for receipts in learn_batches(model, ((rows[i::4], labels[i::4]) for i in range(4)))]
    [15, 15, 15, 15]
    """
    for number, batch in enumerate(batches):
        named: Mapping[str, Any] = {}
        if isinstance(batch, Mapping):
            named = batch
        elif isinstance(batch, tuple | list) and len(batch) <= len(_PARTS):
            named = dict(zip(_PARTS, batch, strict=False))
        if not {"samples", "labels"} <= set(named) <= set(_PARTS):
            raise InputError(
                "a batch is (samples, labels), with ids and owners behind if you give them, or a mapping of these by "
                f"name; batch {number} is another {type(batch).__name__}"
            )
        yield model.learn(**{name: _plain(part) for name, part in named.items()})


def _plain(part: Any) -> Any:
    """Return a part of a batch, as an array if it is a tensor on any device."""
    return part.numpy(force=True) if hasattr(part, "numpy") and hasattr(part, "requires_grad") else part
