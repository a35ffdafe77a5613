"""Our own kinds pass the checks that others run on theirs; and what is wrong with a kind is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from neverseen import (
    AnalyticClassifier,
    CheckFailedError,
    ConfigurationError,
    Encoder,
    FileRejectedError,
    GaussianKernel,
    Identity,
    Key,
    RandomProjection,
    TwoStreams,
    UnknownKindError,
    encoding,
    store,
)
from neverseen import hardware as hardware_module
from neverseen.backbones import Cached, Precomputed, recipes
from neverseen.checks import check_backbone, check_database, check_encoder, check_hardware, yield_checks
from neverseen.hardware import Array, Hardware
from neverseen.hardware.numpy_cpu import NumpyHardware
from tests.networks_for_stores import Letters
from tests.samples import features

ENCODERS = [
    Identity(),
    Identity(scale=0.5),
    RandomProjection(40, seed=3),
    *(RandomProjection(40, seed=3, activation=each) for each in ("tanh", "sigmoid", "gelu", "sign")),
    GaussianKernel(features("checked centres", 9, 6), 0.7),
    GaussianKernel(features("checked centres", 9, 6), 0.7, scale=2.0),
    TwoStreams(20, seed=3),
]


@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
@pytest.mark.parametrize("place", range(6))
def test_encoders(encoder: Encoder, place: int) -> None:
    list(yield_checks(encoder))[place]()


def test_backbones(tmp_path: Path) -> None:
    check_backbone(Precomputed(7))
    check_backbone(Cached(Precomputed(7), tmp_path))
    check_backbone(Letters(), ["a cab", "deaf", "fed a bead"])


def test_hardware(hardware: Hardware) -> None:
    check_hardware(hardware)


def test_databases(url: str) -> None:
    check_database(url)
    check_database(url)  # it leaves nothing that disturbs


# -- what is wrong is found --------------------------------------------------------------------------


class Doubled(Encoder):
    """Each quantised feature twice, the second time with the other sign: another package's encoder."""

    kind = "doubled"

    def configuration(self) -> dict[str, Any]:
        return {"kind": self.kind}

    @classmethod
    def from_configuration(cls, settings: dict[str, Any], array: np.ndarray | None) -> Doubled:
        return cls()

    def code_size(self, n_features: int) -> int:
        return 2 * n_features

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        return hardware.array(np.concatenate([quantised, -quantised], axis=1))


class Wide(Doubled):
    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        return hardware.array(np.concatenate([quantised, -quantised], axis=1).astype(np.int16))


class Centred(Doubled):
    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        middle = quantised.mean(axis=0).astype(np.int8) if len(quantised) else 0
        return super().expand(quantised // 2 - middle // 2, hardware)


class Nameless(Doubled):
    def configuration(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Encoder]], type[Encoder]]:
    monkeypatch.setattr(encoding.kinds, "_kinds", dict(encoding.kinds._kinds))
    return encoding.register


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (Nameless, "configuration_is_json: configuration.. must have the encoder's kind"),
        (Wide, "codes_are_small_integers: expand must return int8; it returned int16"),
        (Centred, "codes_depend_on_their_sample_alone: the code of a sample must not depend"),
        (Doubled, "saved_and_made_again: .* cannot be saved: it is not registered. Give it a kind"),
    ],
)
def test_what_is_wrong_with_an_encoder_is_named(wrong: type[Encoder], why: str) -> None:
    with pytest.raises(CheckFailedError, match=why):
        check_encoder(wrong())


def test_what_is_wrong_with_a_backbone_is_named() -> None:
    class Shouting(Letters):
        def extract(self, samples: Any) -> np.ndarray:
            return super().extract(samples) + len(samples)

    class Keeping(Letters):
        def discard(self, prints: Any) -> None: ...

    class Unregistered(Letters):
        recipe: ClassVar = {"kind": "letters of mine"}

    texts = ["a cab", "deaf", "fed a bead"]
    with pytest.raises(CheckFailedError, match="features_depend_on_their_sample_alone: the features of a sample"):
        check_backbone(Shouting(), texts)
    with pytest.raises(CheckFailedError, match="a_cache_loses_what_it_must: it has discard: a cache needs all"):
        check_backbone(Keeping(), texts)
    with pytest.raises(CheckFailedError, match="the kind of its recipe is not registered"):
        check_backbone(Unregistered(), texts)
    with pytest.raises(CheckFailedError, match="give three samples, all different"):
        check_backbone(Letters(), ["one", "one", "two"])


def test_what_is_wrong_with_a_hardware_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rounding(NumpyHardware):
        def rint(self, array: np.ndarray) -> np.ndarray:
            return np.floor(array + 0.5)

    class Unregistered(NumpyHardware):
        name = "unregistered"

    with pytest.raises(CheckFailedError, match="conversions: rint must round ties to even"):
        check_hardware(Rounding())
    with pytest.raises(CheckFailedError, match="chosen_by_name: it raised UnknownKindError"):
        check_hardware(Unregistered())
    monkeypatch.setattr(hardware_module.kinds, "_kinds", dict(hardware_module.kinds._kinds))
    hardware_module.register("unregistered", Unregistered)
    check_hardware(Unregistered())


def test_what_is_wrong_with_a_database_is_named() -> None:
    with pytest.raises(
        CheckFailedError, match="what_is_committed_stays: it raised UnknownKindError: the database 'my'"
    ):
        check_database("my://database")


@pytest.mark.parametrize("samples", [0, 4])
def test_the_ledger_of_a_store_is_not_checked_as_a_database(tmp_path: Path, url: str, samples: int) -> None:
    """The checks write to it: rows that no sums are of, and forgets that a certificate would then list."""
    rows = np.arange(16, dtype=np.float32).reshape(4, 4)
    with store.create(tmp_path / "s", Precomputed(4), ledger=url) as made:
        if samples:
            made.learn(rows[:samples], ["a", "b"] * (samples // 2))
        number = made.publish(always=True).number
    for check in yield_checks(url):
        with pytest.raises(CheckFailedError, match="give an empty database: this one is the ledger of a store"):
            check()
    with store.open(tmp_path / "s") as made:
        assert (made.ledger.total(), made.ledger.pending()) == (samples, [])
        assert made.publish().number == number


# -- other packages' kinds in files ------------------------------------------------------------------


def test_an_encoder_of_another_package_is_saved_and_loaded_by_name(
    tmp_path: Path, registered: Callable[[type[Encoder]], type[Encoder]]
) -> None:
    registered(Doubled)
    check_encoder(Doubled())
    X, y = features("doubled", 12, 5), list("ab" * 6)
    model = AnalyticClassifier(Doubled(), 2**8, key=Key(bytes(32))).fit(X, y)
    model.save(tmp_path / "model")
    assert AnalyticClassifier.load(tmp_path / "model").digest() == model.digest()
    with store.create(tmp_path / "store", Precomputed(5), AnalyticClassifier(Doubled(), 2**8)) as made:
        made.learn(X, y)
        made.publish()
        digest = made.digest()
    with store.open(tmp_path / "store", write=False) as again:
        assert again.digest() == digest
    del encoding.kinds._kinds["doubled"]  # as where that package is not installed
    with pytest.raises(FileRejectedError, match="the encoder 'doubled' is not known; known are .*Import the package"):
        AnalyticClassifier.load(tmp_path / "model")
    with pytest.raises(UnknownKindError, match="cannot be opened here: the encoder 'doubled' is not known"):
        store.open(tmp_path / "store")


def test_a_backbone_of_another_package_is_made_again_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Letters):
        recipe: ClassVar = {"kind": "letters of mine"}

    with pytest.raises(ConfigurationError, match="a recipe is a dict whose kind is one of"):
        store.create(tmp_path / "store", Mine(), AnalyticClassifier(Identity(), 2**8))
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(recipes.kinds, "_kinds", dict(recipes.kinds._kinds))
    recipes.register("letters of mine", "texts", lambda recipe, folder: Mine())
    with store.create(tmp_path / "store", Mine(), AnalyticClassifier(Identity(), 2**8)) as made:
        made.learn(["abc", "xyz"], ["a", "b"])
    with store.open(tmp_path / "store") as again:
        again.learn(["deaf"], ["b"])
    del recipes.kinds._kinds["letters of mine"]
    with (
        store.open(tmp_path / "store") as again,
        pytest.raises(UnknownKindError, match="'letters of mine' is not known"),
    ):
        again.learn(["more"], ["b"])


class KeepsDiscarded(Cached):
    def discard(self, fingerprints: Any) -> None:
        pass


class KeepsCleared(Cached):
    def clear(self) -> None:
        pass


class KeepsAll(Cached):
    def extract(self, samples: Any, *, remember: bool = True) -> np.ndarray:
        return super().extract(samples, remember=True)


class KeepsNone(Cached):
    def remember(self, fingerprints: Any, features: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (KeepsDiscarded, "discard must drop the features of these samples alone"),
        (KeepsCleared, "clear must drop all features"),
        (KeepsAll, "remember=False must keep nothing"),
        (KeepsNone, "it must give the features that it was told to remember"),
    ],
)
def test_a_cache_that_keeps_what_it_must_lose_does_not_pass(kind: type[Cached], words: str, tmp_path: Path) -> None:
    """Nothing was looked for after discard and clear."""
    with pytest.raises(CheckFailedError, match=words):
        check_backbone(kind(Precomputed(3), tmp_path))


def test_a_cache_in_use_is_left_as_it_is(tmp_path: Path) -> None:
    """The check emptied it."""
    cache = Cached(Precomputed(3), tmp_path)
    rows = np.array([[1.0, 2.0, 3.0]], np.float32)
    cache.extract(rows)
    with pytest.raises(CheckFailedError, match="give an empty cache"):
        check_backbone(cache)
    assert len(cache) == 1
    cache.clear()
    check_backbone(cache)
    assert len(cache) == 0
