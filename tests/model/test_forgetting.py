"""The model on raw samples: receipts, refusals, and forgetting that leaves no trace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    FeaturesMovedError,
    FileRejectedError,
    ForgettingModel,
    InputError,
    Key,
    KeyMissingError,
    Keyring,
    NotLearnedError,
    RandomProjection,
    ReceiptRejectedError,
)
from neverseen.backbones import Precomputed
from neverseen.backbones.contents import fingerprint
from tests import oracle
from tests.samples import clustered

KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
ROWS, LABELS = clustered("forgetting", 60, 6, 3)
IDS = [f"sample {row}" for row in range(len(ROWS))]


class Letters:
    """A toy backbone for texts: how often each of the letters a to f occurs, and a drift that tests can set."""

    name, n_features = "letters", 6

    def __init__(self, drift: float = 0.0) -> None:
        self.drift = drift

    def extract(self, samples: Any) -> np.ndarray:
        counts = [[text.count(letter) + self.drift * len(text) for letter in "abcdef"] for text in samples]
        return np.array(counts, np.float32).reshape(len(samples), 6)

    def digest(self) -> str:
        return "ab" * 32


def settings_of(**more: Any) -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(24, seed=1), 2**9, track_classes=True, hardware="numpy", **more)


def new(backbone: Any = None, keys: Keyring | None = KEYS) -> ForgettingModel:
    return ForgettingModel(backbone or Precomputed(6), settings_of(), keys)


def taught() -> tuple[ForgettingModel, list[bytes]]:
    model = new()
    return model, model.learn(ROWS, LABELS, IDS)


def saved(model: ForgettingModel, tmp_path: Path) -> bytes:
    model.save(tmp_path / "model")
    return (tmp_path / "model").read_bytes()


def refused(model: ForgettingModel, receipts: Any, reason: str, tmp_path: Path, row: int = 0) -> str:
    before = saved(model, tmp_path)
    with pytest.raises(ReceiptRejectedError, match="Nothing was changed") as refusal:
        model.forget(receipts)
    assert (refusal.value.reason, refusal.value.row) == (reason, row)
    assert saved(model, tmp_path) == before
    return str(refusal.value)


# -- learning and forgetting -----------------------------------------------------------------------


def test_what_is_shown_of_a_model_counts_its_samples() -> None:
    model, receipts = taught()
    backbone, classes = repr(model.backbone.name), len(model.classes_)
    assert repr(model) == f"<ForgettingModel on {backbone}, 60 samples of {classes} classes>"
    assert repr(model.without(receipts[:7])) == f"<Without: 53 samples of {classes} classes are left>"
    assert repr(new()) == f"<ForgettingModel on {backbone}, 0 samples of 0 classes>"


def test_forgetting_by_receipt_is_never_having_learned(tmp_path: Path) -> None:
    model, receipts = taught()
    assert all(type(receipt) is bytes for receipt in receipts)
    model.forget(receipts[:7])
    model.forget(receipts[20])  # a single one
    model.forget([])
    rest = [row for row in range(60) if row >= 7 and row != 20]
    never = new()
    never.learn(ROWS[rest], LABELS[rest], [IDS[row] for row in rest])
    assert model.digest() == never.digest()
    assert saved(model, tmp_path) == saved(never, tmp_path)
    assert len(model) == 52


def test_forgetting_by_sample(tmp_path: Path) -> None:
    model, _ = taught()
    model.forget(ROWS[:5], LABELS[:5])
    model.forget(ROWS[5:9], LABELS[5:9], ids=IDS[5:9])
    never = new()
    never.learn(ROWS[9:], LABELS[9:], IDS[9:])
    assert saved(model, tmp_path) == saved(never, tmp_path)


def test_forgetting_a_class_uses_up_its_receipts(tmp_path: Path) -> None:
    model, receipts = taught()
    label = LABELS[3]
    model.forget_class(label)
    rest = [row for row in range(60) if LABELS[row] != label]
    never = new()
    never.learn(ROWS[rest], LABELS[rest], [IDS[row] for row in rest])
    assert saved(model, tmp_path) == saved(never, tmp_path)
    refused(model, [receipts[3]], "used", tmp_path)
    with pytest.raises(NotLearnedError, match="holds no sample of class"):
        model.forget_class(label)


def test_the_last_sample_can_go(tmp_path: Path) -> None:
    model, receipts = taught()
    model.forget(receipts[::-1])
    assert saved(model, tmp_path) == saved(new(), tmp_path)
    assert model.digest() == new().digest()
    assert len(model) == 0
    assert model.classes_.tolist() == []
    refused(model, [receipts[0]], "used", tmp_path)
    with pytest.raises(NotLearnedError, match="holds no samples"):
        model.forget(ROWS[:1], LABELS[:1])
    with pytest.raises(NotLearnedError):
        model.forget_class(LABELS[0])
    model.learn(ROWS, LABELS)
    assert model.digest() == taught()[0].digest()


def test_nothing_to_learn_is_fine() -> None:
    model = new()
    before = model.digest()
    assert model.learn([], []) == []
    assert model.learn(ROWS[:0], LABELS[:0], [], []) == []
    model.forget([], [])
    assert model.digest() == before


operation = st.one_of(
    st.tuples(st.just("learn"), st.integers(0, 19)),
    st.tuples(st.just("receipt"), st.integers(0, 19)),
    st.tuples(st.just("sample"), st.integers(0, 19)),
    st.tuples(st.just("class"), st.integers(0, 2)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(operation, max_size=20))
def test_any_history_ends_in_what_remains(tmp_path_factory: pytest.TempPathFactory, history: list[Any]) -> None:
    tmp_path = tmp_path_factory.mktemp("history")
    model, receipts = new(), {}
    held: set[int] = set()
    for verb, number in history:
        row = slice(number, number + 1)
        if verb == "learn" and number not in held:
            (receipts[number],) = model.learn(ROWS[row], LABELS[row], IDS[row])
            held.add(number)
        elif verb == "receipt" and number in receipts:
            if number in held:
                model.forget(receipts[number])
                held.discard(number)
            else:
                refused(model, receipts[number], "used", tmp_path)
        elif verb == "sample" and number in held:
            model.forget(ROWS[row], LABELS[row])
            held.discard(number)
        elif verb == "class" and any(LABELS[row] == number for row in held):
            model.forget_class(number)
            held = {row for row in held if LABELS[row] != number}
    rest = sorted(held)
    never = new()
    never.learn(ROWS[rest], LABELS[rest], [IDS[row] for row in rest])
    assert model.digest() == never.digest()
    assert saved(model, tmp_path) == saved(never, tmp_path)


# -- receipts ----------------------------------------------------------------------------------------


def test_receipts_are_the_specified_ones() -> None:
    model = new()
    (receipt,) = model.learn(ROWS[:1], LABELS[:1], ["né"], [("team", 4)])
    configuration = model.classifier.configuration().digest()
    about, mark, id_text, owner, label, features = oracle.receipt_parts(receipt, KEYS.receipts[0].reveal())
    assert about == configuration[:16]
    assert mark == fingerprint(ROWS[0])
    assert (id_text, owner, label) == ('"n\\u00e9"', '{"tuple":["team",4]}', str(LABELS[0]))
    assert features == oracle.quantise([float(np.float32(value)) for value in ROWS[0]])
    assert model.read_receipt(receipt) == {"id": "né", "label": LABELS[0], "owner": ("team", 4)}


def test_ids_and_owners_are_optional() -> None:
    model = new()
    first, second = model.learn(ROWS[:2], LABELS[:2])
    about = model.read_receipt(first)
    assert about["owner"] is None
    assert about["id"] != model.read_receipt(second)["id"]
    assert len(about["id"]) == 16


def test_a_forged_receipt(tmp_path: Path) -> None:
    model, receipts = taught()
    forged = bytearray(receipts[5])
    forged[40] ^= 1
    assert "altered" in refused(model, [receipts[4], bytes(forged)], "altered", tmp_path, row=1)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 140), change=st.integers(1, 255))
def test_a_flipped_byte_changes_nothing(place: int, change: int) -> None:
    altered = bytearray(FLIPPED[1][0])
    altered[place % len(altered)] ^= change
    with pytest.raises(ReceiptRejectedError):
        FLIPPED[0].forget([FLIPPED[1][1], bytes(altered)])
    assert len(FLIPPED[0]) == 60
    assert FLIPPED[0].digest() == FLIPPED[2]


FLIPPED = (*taught(), taught()[0].digest())


def test_a_receipt_cut_short(tmp_path: Path) -> None:
    model, receipts = taught()
    refused(model, [receipts[5][:-1]], "truncated", tmp_path)
    refused(model, [receipts[5][:3]], "truncated", tmp_path)


def test_a_receipt_used_twice(tmp_path: Path) -> None:
    model, receipts = taught()
    model.forget(receipts[:1])
    assert "was used already" in refused(model, receipts[:1], "used", tmp_path)
    assert "listed twice in one request" in refused(model, [receipts[2], receipts[2]], "repeated", tmp_path, row=1)


def test_a_receipt_is_used_up_even_if_the_same_sample_is_still_held(tmp_path: Path) -> None:
    """Two people hand in the same picture: the one cannot forget it for the other."""
    model = new()
    mine, yours = model.learn(ROWS[[0, 0]], LABELS[[0, 0]], owners=["me", "you"])
    model.forget(mine)
    refused(model, mine, "used", tmp_path)
    assert len(model) == 1
    (again,) = model.learn(ROWS[:1], LABELS[:1])
    refused(model, mine, "used", tmp_path)
    model.forget([yours, again])
    assert len(model) == 0


def test_a_receipt_stays_used_up_when_its_id_is_learned_again(tmp_path: Path) -> None:
    model, receipts = taught()
    model.forget(receipts[0])
    model.learn(ROWS[1:2], LABELS[:1], IDS[:1])  # another sample under the same id
    refused(model, receipts[0], "used", tmp_path)


def test_a_receipt_of_another_key(tmp_path: Path) -> None:
    model, _ = taught()
    stranger = new(keys=Keyring.generate())
    refused(model, stranger.learn(ROWS[:1], LABELS[:1]), "key", tmp_path)


def test_a_receipt_of_another_model_under_the_same_keys(tmp_path: Path) -> None:
    model, _ = taught()
    for stranger in (
        ForgettingModel(Precomputed(6), settings_of().set_params(gamma=2**10), KEYS),
        ForgettingModel(Precomputed(6, "other source"), settings_of(), KEYS),
    ):
        refused(model, stranger.learn(ROWS[:1], LABELS[:1]), "model", tmp_path)


def test_rotated_keys_honour_old_receipts(tmp_path: Path) -> None:
    keys = Keyring.create(tmp_path / "keys.json")
    model = new(keys=keys)
    (old,) = model.learn(ROWS[:1], LABELS[:1])
    keys.rotate()
    (middle,) = model.learn(ROWS[1:2], LABELS[1:2])
    keys.rotate()
    (newest,) = model.learn(ROWS[2:3], LABELS[2:3])
    model.save(tmp_path / "stored")
    again = ForgettingModel.load(tmp_path / "stored", Precomputed(6), Keyring.load(tmp_path / "keys.json"))
    again.forget([newest, old])
    keys.rotate(keep=0)
    refused(model, middle, "key", tmp_path)


def test_what_is_no_receipt(tmp_path: Path) -> None:
    model, receipts = taught()
    refused(model, [b""], "foreign", tmp_path)
    refused(model, b"\x89PNG and so on", "foreign", tmp_path)
    for wrong in ([receipts[0].hex()], ROWS[:2], [None]):
        with pytest.raises(InputError, match=r"receipts are bytes; row 0 is of type .* forget\(samples, labels\)"):
            model.forget(wrong)
    with pytest.raises(InputError, match="receipts hold their ids"):
        model.forget(receipts[:1], ids=IDS[:1])
    with pytest.raises(InputError, match="put it into a list"):
        model.forget("receipt")


# -- forgetting by sample ----------------------------------------------------------------------------


def test_a_sample_never_learned(tmp_path: Path) -> None:
    model, _ = taught()
    before = saved(model, tmp_path)
    with pytest.raises(NotLearnedError, match=r"does not hold 1 of the 2 samples") as refusal:
        model.forget([ROWS[0], ROWS[1] + 1], LABELS[:2])
    assert not isinstance(refusal.value, FeaturesMovedError)
    assert refusal.value.rows == (1,)
    with pytest.raises(NotLearnedError) as refusal:
        model.forget(ROWS[:1], ["another label"])
    assert not isinstance(refusal.value, FeaturesMovedError)
    assert saved(model, tmp_path) == before


def test_features_that_moved_are_told_from_samples_never_learned(tmp_path: Path) -> None:
    backbone = Letters()
    model = new(backbone)
    texts, labels = ["a cab", "fed a bead", "deaf"], ["x", "y", "x"]
    receipts = model.learn(texts, labels, ["1", "2", "3"])
    backbone.drift = 0.3
    before = saved(model, tmp_path)
    for ids in (None, ["1", "2"]):
        with pytest.raises(
            FeaturesMovedError, match=r"learned this very sample \(row 0; 2 of 2 in all\).*receipt"
        ) as moved:
            model.forget(texts[:2], labels[:2], ids=ids)
        assert moved.value.rows == (0, 1)
    with pytest.raises(NotLearnedError) as refusal:
        model.forget(["a new text"], ["x"])
    assert type(refusal.value) is NotLearnedError
    with pytest.raises(NotLearnedError) as refusal:
        model.forget(texts[:1], ["y"])  # learned as x
    assert type(refusal.value) is NotLearnedError
    assert saved(model, tmp_path) == before
    model.forget(receipts)  # the receipt does not care
    assert len(model) == 0


def test_asking_twice_for_one_is_not_called_moved() -> None:
    model, _ = taught()
    with pytest.raises(NotLearnedError) as refusal:
        model.forget(ROWS[[0, 0]], LABELS[[0, 0]])
    assert type(refusal.value) is NotLearnedError
    assert refusal.value.rows == (1,)


def test_which_of_two_equal_samples_must_be_said(tmp_path: Path) -> None:
    model = new()
    first, second = model.learn(ROWS[[0, 0]], LABELS[[0, 0]], ["1", "2"])
    before = saved(model, tmp_path)
    with pytest.raises(InputError, match="learned 2 times under different ids"):
        model.forget(ROWS[:1], LABELS[:1])
    with pytest.raises(NotLearnedError, match="under the id of row 0"):
        model.forget(ROWS[:1], LABELS[:1], ids=["3"])
    assert saved(model, tmp_path) == before
    model.forget(ROWS[:1], LABELS[:1], ids=["1"])
    refused(model, first, "used", tmp_path)
    model.learn(ROWS[:1], LABELS[:1], ["4"])
    model.forget(ROWS[[0, 0]], LABELS[[0, 0]])  # both, so there is nothing to choose
    refused(model, second, "used", tmp_path)
    assert len(model) == 0


# -- what a call is given ----------------------------------------------------------------------------


def test_ids_in_use_are_refused(tmp_path: Path) -> None:
    model, _ = taught()
    before = saved(model, tmp_path)
    with pytest.raises(InputError, match="belongs to a sample the model holds"):
        model.learn(ROWS[:2] + 1, LABELS[:2], ["new", "sample 3"])
    with pytest.raises(InputError, match="given twice in one call"):
        model.learn(ROWS[:2] + 1, LABELS[:2], ["new", "new"])
    assert saved(model, tmp_path) == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: model.learn(ROWS, LABELS[:-1]), "60 samples and 59 labels"),
        (lambda model: model.learn(ROWS, None), "labels must be a sequence"),
        (lambda model: model.learn(ROWS, LABELS, IDS[1:]), "60 samples and 59 ids"),
        (lambda model: model.learn(ROWS, LABELS, owners=["me"]), "60 samples and 1 owners"),
        (lambda model: model.learn(ROWS, LABELS, owners="me"), "owners must be a sequence with one value for each sample"),
        (lambda model: model.learn(ROWS[:1], ["x" * 70_000]), "one of the labels is 70002 bytes long"),
        (lambda model: model.learn(ROWS[:1], ["x"], ["x" * 70_000]), "one of the ids is 70002 bytes long"),
        (lambda model: model.learn(ROWS[:1], ["x"], [{}]), "no canonical form"),
        (lambda model: model.learn(["text"], ["x"]), "must be a row of 6 features"),
        (lambda model: model.learn(ROWS[:1] * np.nan, ["x"]), "NaN"),
        (lambda model: model.learn(ROWS[:1, :3], ["x"]), "must be a row of 6 features"),
        (lambda model: model.forget(ROWS[:1], LABELS[:2]), "1 samples and 2 labels"),
        (lambda model: model.forget(ROWS[:1], LABELS[:1], ids=[]), "1 samples and 0 ids"),
    ],
)  # fmt: skip
def test_unusable_input_changes_nothing(call: Callable[[ForgettingModel], Any], words: str, tmp_path: Path) -> None:
    model, _ = taught()
    before = saved(model, tmp_path)
    with pytest.raises(InputError, match=words):
        call(model)
    assert saved(model, tmp_path) == before


def test_what_it_is_made_of_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="a backbone has a name, n_features, extract and digest; int has not"):
        ForgettingModel(3)  # type: ignore[arg-type]
    for wrong in (settings_of().fit(ROWS, LABELS), "ridge"):
        with pytest.raises(ConfigurationError, match="must be an AnalyticClassifier that holds no samples"):
            ForgettingModel(Precomputed(6), wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="keys must be a neverseen.Keyring; got Key"):
        ForgettingModel(Precomputed(6), settings_of(), Key(bytes(32)))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="not the keyring's membership key"):
        ForgettingModel(Precomputed(6), settings_of(key=Key(bytes(32))), KEYS)
    with pytest.raises(ConfigurationError, match="set up for another backbone"):
        ForgettingModel(Precomputed(6), settings_of(backbone="00" * 32), KEYS)
    with pytest.raises(ConfigurationError, match="backbone must be a backbone's digest"):
        AnalyticClassifier(backbone="mine").digest()


def test_the_settings_given_stay_as_they_are() -> None:
    settings_given = settings_of()
    model = ForgettingModel(Precomputed(6), settings_given, KEYS)
    model.learn(ROWS, LABELS)
    assert settings_given.backbone is None
    assert not hasattr(settings_given, "classes_")
    key = Key.generate()
    assert ForgettingModel(Precomputed(6), settings_of(key=key)).keys.membership == key  # type: ignore[union-attr]


def test_the_backbone_is_part_of_what_the_model_is() -> None:
    model, other = new(), new(Precomputed(6, "other source"))
    assert model.digest() != other.digest()
    for each in (model, other):
        each.learn(ROWS, LABELS)
    assert model.digest() != other.digest()
    assert np.array_equal(model.classifier.weights_, other.classifier.weights_)


class Based(Letters):
    class base:  # noqa: N801
        name = "letters of 1890"

        @staticmethod
        def holds(mark: bytes) -> bool:
            return mark == fingerprint("a cab")


def test_the_base_set_is_neither_learned_nor_forgotten() -> None:
    model = new(Based())
    model.learn(["deaf"], ["x"])
    before = model.digest()
    for verb in (model.learn, model.forget):
        with pytest.raises(
            InputError, match=r"sample 1 belongs to the base set 'letters of 1890'.*neither learned nor"
        ):
            verb(["deaf", "a cab"], ["x", "x"])
    assert model.digest() == before


class Remembering(Letters):
    """With what a cache of features offers."""

    def __init__(self) -> None:
        super().__init__()
        self.discarded: list[bytes] = []
        self.remembered: list[bytes] = []
        self.cleared = 0

    def extract(self, samples: Any, *, remember: bool = True) -> np.ndarray:
        self.remembered += [fingerprint(sample) for sample in samples] if remember else []
        return super().extract(samples)

    def remember(self, prints: Any, features: np.ndarray) -> None:
        assert len(features) == len(prints)
        self.remembered += prints

    def discard(self, prints: Any) -> None:
        self.discarded += prints

    def clear(self) -> None:
        self.cleared += 1


def test_a_cache_does_not_outlast_what_is_forgotten() -> None:
    backbone = Remembering()
    model = new(backbone)
    receipts = model.learn(["a cab", "deaf", "fed a bead", "dab"], ["x", "x", "y", "y"])
    with pytest.raises(NotLearnedError):
        model.forget(["deaf"], ["y"])
    assert backbone.discarded == []  # a refused request has no effect at all
    model.predict(["fade"])
    assert len(backbone.remembered) == 4  # what is learned, and nothing else
    with pytest.raises(InputError):
        model.learn(["ace", "bee"], ["x", "x"], [1, 1])
    assert (len(backbone.remembered), backbone.discarded) == (4, [])
    model.forget(receipts[0])
    model.forget(["deaf"], ["x"])
    assert backbone.discarded == [fingerprint("a cab"), fingerprint("deaf")]
    with pytest.raises(NotLearnedError):
        model.forget_class("x")
    assert backbone.cleared == 0
    model.forget_class("y")
    assert backbone.cleared == 1


@pytest.mark.parametrize("part", ["discard", "clear"])
def test_half_a_cache_is_refused(part: str) -> None:
    """Features that it remembers would stay when their samples are forgotten."""
    backbone = Letters()
    setattr(backbone, part, lambda *prints: None)
    with pytest.raises(
        ConfigurationError, match="has some of remember, discard and clear: a backbone that remembers features"
    ):
        new(backbone)


# -- predicting, saving ------------------------------------------------------------------------------


def test_predictions_are_the_classifiers() -> None:
    model, _ = taught()
    plain = settings_of().fit(ROWS.astype(np.float32), LABELS)
    assert np.array_equal(model.predict(ROWS), plain.predict(ROWS.astype(np.float32)))
    assert np.array_equal(model.predict_proba(ROWS), plain.predict_proba(ROWS.astype(np.float32)))
    assert model.score(ROWS, LABELS) == plain.score(ROWS.astype(np.float32), LABELS)
    assert model.classes_.tolist() == plain.classes_.tolist()


def test_saved_and_loaded(tmp_path: Path) -> None:
    model, receipts = taught()
    raw = saved(model, tmp_path)
    for key in (KEYS.membership, *KEYS.receipts):
        assert key.reveal().hex().encode() not in raw
    again = ForgettingModel.load(tmp_path / "model", Precomputed(6), KEYS, hardware="numpy")
    assert again.digest() == model.digest()
    again.forget(receipts[:3])
    model.forget(receipts[:3])
    assert saved(again, tmp_path) == saved(model, tmp_path)
    with pytest.raises(InputError, match="belongs to a sample the model holds"):
        again.learn(ROWS[:1], LABELS[:1], IDS[9:10])


def test_loading_what_does_not_fit(tmp_path: Path) -> None:
    model, receipts = taught()
    model.save(tmp_path / "model")
    with pytest.raises(ConfigurationError, match="holds a model of another backbone; this is other"):
        ForgettingModel.load(tmp_path / "model", Precomputed(6, "other"), KEYS)
    with pytest.raises(FileRejectedError, match="not the key given"):
        ForgettingModel.load(tmp_path / "model", Precomputed(6), Keyring.generate())
    settings_of().fit(ROWS, LABELS).save(tmp_path / "plain")
    with pytest.raises(ConfigurationError, match=r"features alone: use AnalyticClassifier.load"):
        ForgettingModel.load(tmp_path / "plain", Precomputed(6))
    keyless = ForgettingModel.load(tmp_path / "model", Precomputed(6))
    assert keyless.predict(ROWS[:3]).tolist() == model.predict(ROWS[:3]).tolist()
    for call in (
        lambda: keyless.learn(ROWS, LABELS),
        lambda: keyless.forget(receipts),
        lambda: keyless.forget(ROWS, LABELS),
    ):
        with pytest.raises(KeyMissingError, match="loaded without its keys"):
            call()


def test_learning_from_many_threads_loses_nothing() -> None:
    model = new()
    receipts: list[bytes] = []

    def learn(start: int) -> None:
        receipts.extend(model.learn(ROWS[start : start + 10], LABELS[start : start + 10]))

    threads = [threading.Thread(target=learn, args=[start]) for start in range(0, 60, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.digest() == taught()[0].digest()
    model.forget(receipts)
    assert len(model) == 0


# -- merging, settings -------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["first", "second", "neither"]), min_size=60, max_size=60), st.data())
@settings(max_examples=25)
def test_merged_models_are_the_model_that_learned_both(places: list[str], data: st.DataObject) -> None:
    models, receipts = {name: new() for name in ("first", "second")}, list[bytes]()
    rows = [row for row, name in enumerate(places) if name != "neither"]
    for row in rows:
        receipts += models[places[row]].learn(ROWS[row : row + 1], LABELS[row : row + 1], IDS[row : row + 1])
    merged = models["first"].merge(models["second"])
    assert merged is models["first"]
    assert len(merged) == len(rows)
    gone = data.draw(st.sets(st.sampled_from(range(len(rows))))) if rows else set()
    merged.forget([receipts[each] for each in gone])
    never, left = new(), [row for each, row in enumerate(rows) if each not in gone]
    never.learn(ROWS[left], [LABELS[row] for row in left], [IDS[row] for row in left])
    assert merged.digest() == never.digest()
    if left:
        assert np.array_equal(merged.decision_function(ROWS), never.classifier.decision_function(ROWS))


def test_a_merge_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    model, _ = taught()
    before = saved(model, tmp_path)
    key = KEYS.membership
    newer = Keyring(key, [Key(bytes([9] * 32)), *KEYS.receipts])
    others: list[tuple[Any, type[Exception], str]] = [
        (model, InputError, "a model cannot be merged with itself"),
        (settings_of(), InputError, "merge takes another ForgettingModel; got AnalyticClassifier"),
        (taught()[0], InputError, "both models hold samples under the same id"),
        (new(keys=newer), ConfigurationError, "has a receipt key that this one lacks"),
        (new(keys=Keyring(Key(bytes(32)), KEYS.receipts)), ConfigurationError, "different membership keys"),
        (new(Letters()), ConfigurationError, "different configurations"),
    ]
    for other, error, words in others:
        with pytest.raises(error, match=words):
            model.merge(other)
    model.save(tmp_path / "m")
    with pytest.raises(KeyMissingError):
        ForgettingModel.load(tmp_path / "m", Precomputed(6)).merge(new())
    assert saved(model, tmp_path) == before
    assert saved(new(keys=newer).merge(model), tmp_path) == before  # it has all keys


def test_settings_can_be_read_and_a_clone_has_them_and_nothing_else(tmp_path: Path) -> None:
    model, receipts = taught()
    found = model.get_params()
    assert (found["backbone"], found["classifier"], found["keys"]) == (model.backbone, model.classifier, KEYS)
    assert found["classifier__gamma"] == 2**9
    assert set(model.get_params(deep=False)) == {"backbone", "classifier", "keys"}
    again = clone(model)
    assert (again.backbone, again.keys, len(again), len(model)) == (model.backbone, KEYS, 0, 60)
    assert again.digest() == new().digest()
    assert saved(again.merge(model), tmp_path) == saved(model, tmp_path)
    again.forget(receipts)
    assert len(model) == 60
    model.save(tmp_path / "m")
    with pytest.raises(KeyMissingError):
        clone(ForgettingModel.load(tmp_path / "m", Precomputed(6)))
