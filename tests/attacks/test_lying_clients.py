"""Promise: a client of a federation can spoil its model with lies, but they leave with it, to the last bit.

The server sees sums, not samples. It refuses sums that no samples can have, where that is cheap to see. Other lies it
cannot see: labels that are wrong, samples that nobody has, a matrix that is no Gram matrix and looks like one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import AnalyticClassifier, ConfigurationError, Federation, FileRejectedError, Identity
from neverseen.io.files import replace_file
from neverseen.io.tensorfile import pack, unpack
from tests.samples import clustered

X, Y = clustered("lying clients", 90, 3, 3)
Edit = Callable[[dict[str, np.ndarray]], None]


def client(rows: slice, labels: Any = None) -> AnalyticClassifier:
    return AnalyticClassifier(Identity(), gamma=2**8, hardware="numpy").fit(
        X[rows], Y[rows] if labels is None else labels
    )


def honest() -> Federation:
    federation = Federation(AnalyticClassifier(Identity(), gamma=2**8, hardware="numpy"))
    federation.join("north", client(slice(0, 30)))
    federation.join("south", client(slice(30, 60)))
    return federation


def forged(tmp_path: Path, edit: Edit) -> Path:
    """The file of a client that has changed its sums."""
    path = tmp_path / "part"
    client(slice(60, 90)).save(path, include_key=False)
    about, tensors = unpack(path, "neverseen-model-1")
    changed = {name: np.array(array) for name, array in tensors.items()}
    edit(changed)
    replace_file(path, pack(about, changed))
    return path


def indefinite(tensors: dict[str, np.ndarray]) -> None:
    """No 2 x 2 minor is negative, but ``(1, 1, 1)`` has a negative square."""
    a = int(tensors["gram"].max())
    tensors["gram"] = np.array([a, -a, -a, a, -a, a]).astype(tensors["gram"].dtype)
    tensors["sums"] = tensors["sums"] * 0


def too_large(tensors: dict[str, np.ndarray]) -> None:
    tensors["sums"] = tensors["sums"] + 127 * 90


def negative(tensors: dict[str, np.ndarray]) -> None:
    tensors["gram"] = -tensors["gram"]


@pytest.mark.parametrize("edit", [too_large, negative])
def test_sums_that_no_samples_have_are_refused(edit: Edit, tmp_path: Path) -> None:
    federation = honest()
    before = federation.classifier.digest(), federation.clients
    with pytest.raises(FileRejectedError, match="its sums are not those of any samples"):
        federation.join("liar", forged(tmp_path, edit))
    assert (federation.classifier.digest(), federation.clients) == before


def test_a_lie_that_is_not_seen_leaves_with_the_liar(tmp_path: Path) -> None:
    federation = honest()
    before, score = federation.classifier.digest(), federation.classifier.score(X[:60], Y[:60])
    federation.join(
        "swapped",
        AnalyticClassifier(Identity(), gamma=2**8).fit(np.repeat(X[:60], 4, 0), np.repeat((Y[:60] + 1) % 3, 4)),
    )
    assert federation.classifier.score(X[:60], Y[:60]) < score - 0.3
    federation.join("indefinite", forged(tmp_path, indefinite))
    federation.join("late", client(slice(60, 90)))
    for name in ("swapped", "indefinite", "late"):
        federation.leave(name)
    assert federation.classifier.digest() == before


def test_nothing_is_added_behind_the_clients() -> None:
    """What is merged into the sum itself is no client's: it stayed, whoever left, and `clients` did not name it."""
    federation = honest()
    before, clients = federation.classifier.digest(), federation.clients
    for other in (client(slice(60, 90)), honest().classifier):
        with pytest.raises(ConfigurationError, match="join or replace it in the federation"):
            federation.classifier.merge(other)
    whole, part = federation.classifier.exact, client(slice(0, 30)).exact
    assert whole is not None
    assert part is not None
    with pytest.raises(ConfigurationError, match="join or replace it in the federation"):
        whole.merge(part, subtract=True)
    assert (federation.classifier.digest(), federation.clients) == (before, clients)
    federation.leave("south")
    assert federation.classifier.digest() == client(slice(0, 30)).digest()
