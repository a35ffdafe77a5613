"""gamma="auto": the choice follows from the samples held, through every face, and can be checked."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from neverseen import (
    AnalyticClassifier,
    CertificateRejectedError,
    ConfigurationError,
    FileRejectedError,
    ForgettingModel,
    Identity,
    Key,
    Keyring,
    RandomProjection,
    store,
)
from neverseen.backbones import Precomputed
from neverseen.engine.spectrum import Spectrum
from neverseen.engine.statistics import Statistics
from neverseen.hardware import Hardware
from neverseen.io import tensorfile
from neverseen.labels import canonical_json
from neverseen.model.versions import FORMAT, Version, read_version, write_version
from neverseen.proof.certificates import check_chain
from neverseen.targets import LabelSets, Numbers, Targets, WeightedClasses
from tests import oracle
from tests.samples import clustered

WIDTH, COUNT = 5, 40
X, NUMBERS = clustered("automatic gamma", COUNT, WIDTH, 3)
Y = np.array(["ant", "bee", "cow"])[NUMBERS]
IDS = [f"sample {row}" for row in range(COUNT)]
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
ENCODERS = [Identity(), RandomProjection(7, seed=3)]


def new(encoder: Any = None, **more: Any) -> AnalyticClassifier:
    return AnalyticClassifier(encoder or Identity(), "auto", key=KEYS.membership, **more)


def sums_of(encoder: Any, rows: list[int]) -> oracle.Statistics:
    return oracle.statistics(encoder.encode(X[rows]).tolist(), Y[rows].tolist())


def chosen(encoder: Any, rows: list[int]) -> int:
    sums = sums_of(encoder, rows)
    return oracle.chosen_gamma(sums.gram, sums.cross, len(rows))


# -- histories ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_history_ends_in_the_choice_of_the_remainder(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    encoder = data.draw(st.sampled_from(ENCODERS))
    model, held = new(encoder, track_classes=True), Counter[int]()
    folder = tmp_path_factory.mktemp("saved")
    for _ in range(data.draw(st.integers(1, 6))):
        match data.draw(st.sampled_from(["learn", "forget", "forget one", "forget class", "look", "save", "merge"])):
            case "learn" | "merge" as verb:
                rows = data.draw(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=20))
                if verb == "merge":
                    model.merge(new(encoder, track_classes=True).fit(X[rows], Y[rows]))
                else:
                    model.partial_fit(X[rows], Y[rows])
                held.update(rows)
            case "forget" | "forget one" as verb if held:
                most = 1 if verb == "forget one" else None
                gone = data.draw(st.lists(st.sampled_from(sorted(held.elements())), unique=True, max_size=most))
                model.forget(X[gone], Y[gone])
                held -= Counter(gone)
            case "forget class" if held:
                name = Y[min(held)]
                model.forget_class(name)
                held = Counter({row: count for row, count in held.items() if Y[row] != name})
            case "look":
                model.digest()
            case "save":
                model.save(folder / "model")
                model = AnalyticClassifier.load(folder / "model")
    rows = sorted(held.elements())
    scratch = new(encoder, track_classes=True)
    if rows:
        scratch.fit(X[rows], Y[rows])
        assert model.gamma_ == scratch.gamma_ == chosen(encoder, rows)
        assert np.array_equal(model.decision_function(X), scratch.decision_function(X))
    assert model.digest() == scratch.digest()
    for each, name in ((model, "model"), (scratch, "scratch")):
        each.save(folder / name)
    assert (folder / "model").read_bytes() == (folder / "scratch").read_bytes()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["learn", "forget", "publish", "seal", "reopen"]), st.integers(0, 9))))
def test_a_store_ends_in_the_choice_of_what_it_holds(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]
) -> None:
    folder, receipts = tmp_path_factory.mktemp("history") / "s", dict[int, bytes]()
    made = store.create(folder, Precomputed(WIDTH), AnalyticClassifier(RandomProjection(7, seed=3), "auto"), keys=KEYS)
    made.learn(X[10:20], Y[10:20], IDS[10:20])
    for verb, row in history:
        if verb == "learn" and row not in receipts:
            (receipts[row],) = made.learn(X[row : row + 1], Y[row : row + 1], [IDS[row]])
        elif verb == "forget" and row in receipts:
            made.forget([receipts.pop(row)])
        elif verb == "reopen":
            made.close()
            made = store.open(folder, keys=KEYS)
        elif verb in ("publish", "seal"):
            getattr(made, verb)()
    rows = [*sorted(receipts), *range(10, 20)]
    never = ForgettingModel(Precomputed(WIDTH), AnalyticClassifier(RandomProjection(7, seed=3), "auto"), KEYS)
    never.learn(X[rows], Y[rows])
    certificate = made.seal()
    assert made.digest() == made.version().digest() == never.digest() == certificate.after.model
    codes = RandomProjection(7, seed=3).encode(X[rows].astype(np.float32).astype(np.float64)).tolist()
    sums = oracle.statistics(codes, Y[rows].tolist())
    gamma = oracle.chosen_gamma(sums.gram, sums.cross, len(rows))
    assert made.status()["gamma"] == made.version().gamma == never.gamma_ == gamma
    made.version().check_stated(made.statistics(), certificate.number, certificate.after)
    check_chain(made.certificates())
    made.close()


def test_every_hardware_has_the_same_digest(hardware: Hardware) -> None:
    model = new(RandomProjection(60, seed=1), hardware=hardware.name).fit(X, Y)
    never = new(RandomProjection(60, seed=1), hardware="numpy").fit(X[3:], Y[3:])
    assert model.forget(X[:3], Y[:3]).digest() == never.digest()


def test_hints_change_nothing() -> None:
    model = new(RandomProjection(30, seed=1)).fit(X, Y)
    for row in range(12):
        model.gamma_  # noqa: B018 (the next change starts from here)
        model.forget(X[row : row + 1], Y[row : row + 1])
        kept = model.digest()
        model.discard_hints()
        assert model.digest() == kept


def test_many_samples_keep_their_spectrum_through_small_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, numbers = clustered("many", 3000, WIDTH, 3)
    model = new().fit(rows, numbers)
    model.digest()
    monkeypatch.setattr(Spectrum, "of", None)
    for row in range(3):
        model.forget(rows[row : row + 1], numbers[row : row + 1]).digest()
    monkeypatch.undo()
    assert model.digest() == new().fit(rows[3:], numbers[3:]).digest()


# -- the rest of a model -----------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
def test_weights_and_digest_are_the_oracles(encoder: Any) -> None:
    model, rows = new(encoder).fit(X, Y), list(range(COUNT))
    sums, gamma = sums_of(encoder, rows), chosen(encoder, rows)
    assert model.gamma_ == gamma
    assert model.weights_.tolist() == [
        [value / 2**40 for value in row] for row in oracle.weights(sums.gram, sums.cross, gamma, 40)
    ]
    configuration = canonical_json(
        {"encoder": encoder.configuration(), "format": 1, "gamma": "auto", "grid_bits": 40}
    ).encode()
    assert model.configuration().digest() == hashlib.sha256(configuration).digest()
    assert model.digest() != AnalyticClassifier(encoder, gamma).fit(X, Y).digest()  # other settings


def test_previews_choose_for_what_would_be_left() -> None:
    model = new(RandomProjection(7, seed=3)).fit(X, Y)
    before = model.digest()
    never = new(RandomProjection(7, seed=3)).fit(X[20:], Y[20:])
    assert model.without(X[:20], Y[:20]).digest() == never.digest()
    for row, left in enumerate(model.leave_one_out(X[:3], Y[:3])):
        rest = [*range(row), *range(row + 1, COUNT)]
        one = new(RandomProjection(7, seed=3)).fit(X[rest], Y[rest])
        assert left.scores.tolist() == one.decision_function(X[row : row + 1])[0].tolist()
    assert model.digest() == before


def test_discriminants_take_the_chosen_gamma() -> None:
    model = new().fit(X, Y)
    means = model.means("lda")
    expected = oracle.class_means("lda", Identity().encode(X).tolist(), Y.tolist(), model.gamma_, 40)
    assert means.novelty(X[:5]).tolist() == [
        oracle.novelty(expected, code) for code in Identity().encode(X)[:5].tolist()
    ]
    assert means.digest() == new().fit(X[::-1], Y[::-1]).means("lda").digest()


def test_labels_after_a_change_are_those_of_the_new_choice() -> None:
    model = new(RandomProjection(7, seed=3)).fit(X, Y)
    model.predict(X)
    model.forget(X[:15], Y[:15])
    assert model.predict(X[:2]).tolist() == new(RandomProjection(7, seed=3)).fit(X[15:], Y[15:]).predict(X[:2]).tolist()


# -- settings ----------------------------------------------------------------------------------------


def test_whole_floats_are_whole_numbers() -> None:
    exact = AnalyticClassifier(Identity(), 10**4).fit(X, Y)
    values: list[Any] = [1e4, np.float64(1e4), np.float32(1e4), np.int64(10**4)]
    for gamma in values:
        assert AnalyticClassifier(Identity(), gamma).fit(X, Y).digest() == exact.digest()
    assert exact.gamma_ == 10**4


@pytest.mark.parametrize(
    ("gamma", "words"),
    [
        (10000.5, "a whole number .* got 10000.5: the weights are exact because sums and gamma are integers"),
        (0.5, "got 0.5: the weights are exact"),
        (float("nan"), "got nan"),
        (float("inf"), "got inf"),
        (2.0**41, "between 1 and 2\\*\\*40, or 'auto'; got 2199023255552.0"),
        (0, "got 0"),
        (True, "got True"),
        ("Auto", "or 'auto'; got 'Auto'"),
        (None, "got None"),
    ],
)
def test_other_values_are_refused_with_the_reason(gamma: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        AnalyticClassifier(Identity(), gamma).fit(X, Y)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (
            Numbers(),
            "the sum of the squares of all targets, which a model of Numbers.* choose gamma yourself, .*choose_g",
        ),
        (WeightedClasses(), "counts all samples alike, and WeightedClasses.* do not: choose gamma yourself"),
    ],
    ids=str,
)
def test_targets_whose_sums_say_too_little_are_refused(targets: Targets, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        new(targets=targets).configuration()


def test_label_sets_choose_too(tmp_path: Path) -> None:
    sets = [[name, "all"] if row % 4 else [] for row, name in enumerate(Y)]
    model = new(targets=LabelSets()).fit(X, sets)
    codes, left = Identity().encode(X).tolist(), range(7, COUNT)
    model.gamma_  # noqa: B018 (the next choice starts from here)
    model.forget(X[:7], sets[:7])
    never = new(targets=LabelSets()).fit(X[7:], sets[7:])
    assert model.digest() == never.digest()
    rows = LabelSets().columns([oracle.label_text(frozenset(sets[row])) for row in left]).values
    wide = np.array([codes[row] for row in left])
    squares = int((rows**2).sum())
    assert squares > len(left)
    assert model.gamma_ == oracle.chosen_gamma((wide.T @ wide).tolist(), (wide.T @ rows).tolist(), len(left), squares)
    write_version(tmp_path / "version", version_of(model)[0])
    read_version(tmp_path / "version").check(version_of(never)[1])


def test_balanced_classes_are_refused(tmp_path: Path) -> None:
    settings = new(class_weight="balanced", track_classes=True)
    with pytest.raises(ConfigurationError, match="counts all samples alike"):
        settings.fit(X, Y)
    with pytest.raises(ConfigurationError, match="counts all samples alike"):
        store.create(tmp_path / "s", Precomputed(WIDTH), settings)
    assert not (tmp_path / "s").exists()


def test_without_samples_nothing_is_chosen(tmp_path: Path) -> None:
    model = new()
    with pytest.raises(NotFittedError):
        model.gamma_  # noqa: B018
    forgetting = ForgettingModel(Precomputed(WIDTH), clone(model), KEYS)
    assert forgetting.gamma_ is None
    assert ForgettingModel(Precomputed(WIDTH)).gamma_ == 2**16
    receipts = forgetting.learn(X, Y)
    assert forgetting.gamma_ == forgetting.classifier.gamma_
    forgetting.forget(receipts)
    assert forgetting.gamma_ is None
    with store.create(tmp_path / "s", Precomputed(WIDTH), clone(model), keys=KEYS) as made:
        assert made.status()["gamma"] is None
        receipts = made.learn(X, Y)
        made.publish()
        assert made.status()["gamma"] == made.version().gamma is not None
        made.forget(receipts)
        made.publish()
        assert made.status()["gamma"] is None
        made.version().check(made.statistics())


def test_samples_of_zeros_have_one_candidate() -> None:
    model = new().fit(np.zeros((3, WIDTH)), ["a", "b", "a"])
    assert model.gamma_ == 1
    assert model.predict(np.zeros((1, WIDTH))).tolist() == ["a"]


# -- versions ----------------------------------------------------------------------------------------


def version_of(classifier: AnalyticClassifier) -> tuple[Version, Statistics]:
    model = classifier.exact
    assert model is not None
    return Version.of(model), model.statistics


def test_the_file_of_a_version_is_the_oracles(tmp_path: Path) -> None:
    model = new().fit(X, Y)
    version, statistics = version_of(model)
    write_version(tmp_path / "version", version)
    settings = model.configuration().as_json()
    sums = sums_of(Identity(), list(range(COUNT)))
    assert (tmp_path / "version").read_bytes() == oracle.version_file(settings, WIDTH, sums, model.gamma_, 40)
    again = read_version(tmp_path / "version")
    assert again.gamma == model.gamma_
    again.check(statistics)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    about, tensors = tensorfile.unpack(path, FORMAT)
    change(about)
    path.write_bytes(b"".join(tensorfile.pack(about | {"format": FORMAT}, tensors)))


@pytest.mark.parametrize("gamma", [None, 3, 0, 2**41, 64.0, "64", True])
def test_a_version_with_an_impossible_gamma_is_refused(gamma: Any, tmp_path: Path) -> None:
    write_version(tmp_path / "version", version_of(new().fit(X, Y))[0])
    rewritten(tmp_path / "version", lambda about: about.update(gamma=gamma))
    with pytest.raises(FileRejectedError, match="its gamma is none that sums can choose"):
        read_version(tmp_path / "version")


def test_a_version_says_gamma_exactly_if_the_sums_choose_it(tmp_path: Path) -> None:
    write_version(tmp_path / "version", version_of(new().fit(X, Y))[0])
    rewritten(tmp_path / "version", lambda about: about.pop("gamma"))
    with pytest.raises(FileRejectedError, match="does not have the fields of a version"):
        read_version(tmp_path / "version")
    write_version(tmp_path / "version", version_of(AnalyticClassifier(Identity()).fit(X, Y))[0])
    assert read_version(tmp_path / "version").gamma == 2**16
    rewritten(tmp_path / "version", lambda about: about.update(gamma=2**16))
    with pytest.raises(FileRejectedError, match="does not have the fields of a version"):
        read_version(tmp_path / "version")
    write_version(tmp_path / "version", Version.empty(new().configuration()))
    assert read_version(tmp_path / "version").gamma is None
    rewritten(tmp_path / "version", lambda about: about.update(gamma=64))
    with pytest.raises(FileRejectedError, match="gamma but no classes"):
        read_version(tmp_path / "version")


def test_a_version_with_another_gamma_fails_its_check(tmp_path: Path) -> None:
    """Its weights are those of that gamma, correctly rounded: only the choice is wrong."""
    model = new().fit(X, Y)
    version, statistics = version_of(model)
    fixed = AnalyticClassifier(Identity(), 2 * model.gamma_, key=KEYS.membership).fit(X, Y)
    other, _ = version_of(fixed)
    false = Version(
        version.configuration,
        WIDTH,
        version.classes,
        other.weights,
        other.witness,
        version.hardware,
        2 * model.gamma_,
    )
    with pytest.raises(CertificateRejectedError, match=f"choose gamma = {model.gamma_}, and the version has"):
        false.check(statistics)


def test_a_version_is_not_checked_against_sums_of_no_samples() -> None:
    version, statistics = version_of(new().fit(X, Y))
    for change in ("asymmetric", "negative", "indefinite", "cross"):
        sums = statistics.copied()
        gram, cross = np.array(sums.gram), np.array(sums.cross())
        if change == "asymmetric":
            gram[0, 1] += 1
        elif change == "negative":
            gram[1, 1] = -1
        elif change == "indefinite":
            gram = np.full_like(gram, 9)
            gram[0, 1] = gram[1, 0] = -9
        else:
            cross = cross * 50
        sums.gram = gram
        sums.sums = dict(zip(sums.classes, cross.T, strict=True))
        with pytest.raises(CertificateRejectedError):
            version.check(sums)
