"""Two streams: whatever the history, the weights are those of the samples held, and those of the specification."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import (
    AnalyticClassifier,
    CertificateRejectedError,
    ConfigurationError,
    FileRejectedError,
    ForgettingModel,
    InputError,
    Key,
    Keyring,
    LimitError,
    TwoStreams,
    store,
)
from neverseen.backbones import Precomputed
from neverseen.engine import streams
from neverseen.engine.statistics import Statistics
from neverseen.hardware import Hardware, choose
from neverseen.io import tensorfile
from neverseen.model.versions import Version, read_version, write_version
from neverseen.proof.certificates import check_chain
from neverseen.targets import LabelSets, Numbers, Targets, WeightedClasses
from tests import oracle
from tests.samples import clustered

WIDTH, CODES, COUNT, GAMMA, RATIO = 5, 6, 30, 2**6, 0.6
X, NUMBERS = clustered("two streams", COUNT, WIDTH, 3)
Y = np.array(["ant", "bee", "cow"])[NUMBERS]
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
ENCODER = TwoStreams(CODES, seed=3, compensation_ratio=RATIO)
NUMPY = choose("numpy")


def new(**more: Any) -> AnalyticClassifier:
    return AnalyticClassifier(ENCODER, GAMMA, key=KEYS.membership, **more)


def sums_of(rows: list[int]) -> oracle.Statistics:
    codes = [oracle.two_streams(oracle.quantise(row), CODES, 3) for row in X[rows].tolist()]
    return oracle.statistics(codes, Y[rows].tolist())


def system_of(sums: oracle.Statistics, ratio: float = RATIO) -> tuple[oracle.Matrix, oracle.Matrix, int]:
    return oracle.stream_system(sums.gram, sums.cross, GAMMA, 40, ratio)


# -- histories ---------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_history_ends_in_the_model_of_the_remainder(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    model, held = new(track_classes=True), Counter[int]()
    folder = tmp_path_factory.mktemp("saved")
    for _ in range(data.draw(st.integers(1, 6))):
        match data.draw(st.sampled_from(["learn", "forget", "forget class", "look", "save", "merge"])):
            case "learn" | "merge" as verb:
                rows = data.draw(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=20))
                if verb == "merge":
                    model.merge(new(track_classes=True).fit(X[rows], Y[rows]))
                else:
                    model.partial_fit(X[rows], Y[rows])
                held.update(rows)
            case "forget" if held:
                gone = data.draw(st.lists(st.sampled_from(sorted(held.elements())), unique=True))
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
    scratch = new(track_classes=True)
    if rows:
        scratch.fit(X[rows], Y[rows])
        sums = sums_of(rows)
        assert model.weights_.tolist() == [
            [value / 2**40 for value in row] for row in oracle.weights(*system_of(sums), 40)
        ]
        assert np.array_equal(model.decision_function(X), scratch.decision_function(X))
    assert model.digest() == scratch.digest()
    for each, name in ((model, "model"), (scratch, "scratch")):
        each.save(folder / name)
    assert (folder / "model").read_bytes() == (folder / "scratch").read_bytes()


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["learn", "forget", "publish", "reopen"]), st.integers(0, 9)), max_size=8))
def test_a_store_ends_in_what_it_holds(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]
) -> None:
    folder, receipts = tmp_path_factory.mktemp("history") / "s", dict[int, bytes]()
    made = store.create(folder, Precomputed(WIDTH), new(), keys=KEYS)
    made.learn(X[10:20], Y[10:20], range(10, 20))
    for verb, row in history:
        if verb == "learn" and row not in receipts:
            (receipts[row],) = made.learn(X[row : row + 1], Y[row : row + 1], [row])
        elif verb == "forget" and row in receipts:
            made.forget([receipts.pop(row)])
        elif verb == "publish":
            made.publish()
        elif verb == "reopen":
            made.close()
            made = store.open(folder, keys=KEYS)
    rows = [*sorted(receipts), *range(10, 20)]
    never = ForgettingModel(Precomputed(WIDTH), new(), KEYS)
    never.learn(X[rows], Y[rows])
    certificate = made.seal()
    assert made.digest() == made.version().digest() == never.digest() == certificate.after.model
    made.version().check_stated(made.statistics(), certificate.number, certificate.after)
    check_chain(made.certificates())
    made.close()


def test_every_hardware_has_the_same_digest(hardware: Hardware) -> None:
    settings_: dict[str, Any] = {"gamma": 2**12, "key": Key(bytes(32)), "hardware": hardware.name}
    model = AnalyticClassifier(TwoStreams(64, seed=1), **settings_).fit(X, Y)
    model.digest()
    never = AnalyticClassifier(TwoStreams(64, seed=1), **(settings_ | {"hardware": "numpy"})).fit(X[3:], Y[3:])
    assert model.forget(X[:3], Y[:3]).digest() == never.digest()
    assert np.array_equal(model.decision_function(X), never.decision_function(X))


def test_previews_are_those_of_what_would_be_left() -> None:
    model = new().fit(X, Y)
    before = model.digest()
    assert model.without(X[:20], Y[:20]).digest() == new().fit(X[20:], Y[20:]).digest()
    for row, left in enumerate(model.leave_one_out(X[:2], Y[:2])):
        rest = [*range(row), *range(row + 1, COUNT)]
        one = new().fit(X[rest], Y[rest])
        assert left.scores.tolist() == one.decision_function(X[row : row + 1])[0].tolist()
    assert model.digest() == before


@pytest.mark.parametrize(
    ("targets", "labels"),
    [
        (LabelSets(), [["ant", "bee"][: 1 + number] for number in NUMBERS]),
        (Numbers(bits=4), (NUMBERS / 2).tolist()),
        (WeightedClasses(), [(name, 1 + row % 3) for row, name in enumerate(Y.tolist())]),
    ],
    ids=str,
)
def test_other_targets(targets: Targets, labels: list[Any]) -> None:
    model = new(targets=targets).fit(X, labels)
    model.digest()
    never = new(targets=targets).fit(X[10:], labels[10:])
    assert model.forget(X[:10], labels[:10]).digest() == never.digest()
    gram, cross = never.exact.statistics.gram, never.exact.statistics.cross()  # type: ignore[union-attr]
    system = oracle.stream_system(gram.tolist(), cross.tolist(), GAMMA, 40, RATIO)
    assert never.exact.weights().tolist() == oracle.weights(*system, 40)  # type: ignore[union-attr]


# -- what the specification says ---------------------------------------------------------------------


def test_digest_and_version_are_the_oracles(tmp_path: Path) -> None:
    model, sums = new().fit(X, Y), sums_of(list(range(COUNT)))
    settings_ = oracle.configuration(oracle.two_streams_configuration(CODES, 3, RATIO), GAMMA, 40)
    matrix, right, gamma = system_of(sums)
    weights = oracle.weights(matrix, right, gamma, 40)
    configuration = oracle.configuration_digest(settings_["encoder"], GAMMA, 40)
    assert model.digest() == oracle.model_digest(configuration, WIDTH, sums.classes, weights).hex()
    write_version(tmp_path / "1", Version.of(model.exact))  # type: ignore[arg-type]
    raw = oracle.version_file(settings_, WIDTH, sums._replace(gram=matrix, cross=right), gamma, 40)
    assert (tmp_path / "1").read_bytes() == raw
    version = read_version(tmp_path / "1")
    assert version.predict(ENCODER.quantise(X)).tolist() == model.predict(X).tolist()


def test_the_second_stream_is_fitted_to_what_the_first_leaves_over() -> None:
    model = new().fit(X, Y)
    codes, one_hot = ENCODER.encode(X).astype(float), (model.classes_ == Y[:, None]).astype(float)
    main, second = codes[:, :CODES], codes[:, CODES:]
    ridge = GAMMA * np.eye(CODES)
    W = np.linalg.solve(main.T @ main + ridge, main.T @ one_hot)
    V = np.linalg.solve(second.T @ second + ridge, second.T @ (one_hot - main @ W))
    np.testing.assert_allclose(model.decision_function(X), main @ W + RATIO * second @ V, atol=1e-3)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_right_sides_of_any_size_are_the_oracles(data: st.DataObject) -> None:
    """Also where ``2**p B_c - G_cm N_m`` does not fit 64 bits."""
    bits = data.draw(st.integers(1, 52), label="grid_bits")
    ratio = data.draw(st.sampled_from([2.0**-10, 0.3, 1.0, 1.5, 2.0**10]), label="ratio")
    columns = data.draw(st.sampled_from([1, 6]), label="columns")
    size = data.draw(st.sampled_from([2**6, 2**24, 2**40]), label="size")
    entry = st.integers(-size, size)
    codes = np.array(data.draw(st.lists(st.lists(st.integers(-127, 127), min_size=4, max_size=4), max_size=3)))
    gram = (codes.T @ codes if len(codes) else np.zeros((4, 4), np.int64)) * data.draw(st.sampled_from([1, 2**20]))
    cross = np.array(data.draw(st.lists(st.lists(entry, min_size=columns, max_size=columns), min_size=4, max_size=4)))
    main = np.array(oracle.weights(gram[:2, :2].tolist(), cross[:2].tolist(), 7, bits))
    if abs(main).max() > 2**61:
        return
    _, right, _ = oracle.stream_system(gram.tolist(), cross.tolist(), 7, bits, ratio)
    if max(abs(value) for row in right for value in row) > 2**55:
        with pytest.raises(LimitError, match="too large for two streams"):
            streams.right_side(gram, cross, 7, bits, ratio, main, NUMPY)
    else:
        assert streams.right_side(gram, cross, 7, bits, ratio, main, NUMPY).tolist() == right


def test_systems_that_leave_no_room_are_refused() -> None:
    zeros = np.zeros((4, 1), np.int64)
    huge = np.diag([2**50, 0, 0, 0])
    for gram, cross in ((huge, zeros), (np.diag([1, 1, 1, 1]), zeros + 2**48)):
        with pytest.raises(LimitError):
            streams.solve_streams(gram, cross, 1, 40, 1.0, NUMPY)
    with pytest.raises(LimitError, match=r"at most 2\*\*61"):
        streams.right_side(np.eye(4, dtype=np.int64), zeros, 1, 40, 1.0, np.full((2, 1), 2**62), NUMPY)
    with pytest.raises(InputError, match="even size; got 3"):
        streams.blocks(np.eye(3, dtype=np.int64), 1, NUMPY)


# -- versions and files that somebody altered ------------------------------------------------------------


def test_wrong_weights_of_either_stream_are_refused() -> None:
    model = new().fit(X, Y).exact
    assert model is not None
    for row in (0, CODES):
        version = Version.of(model)
        version.check(model.statistics)
        version.weights = version.weights.copy()
        version.weights[row, 1] += 1
        with pytest.raises(CertificateRejectedError, match="not proved"):
            version.check(model.statistics)
    for wrong, why in ((version.weights[:-1], "the shape"), (np.full_like(version.weights, 2**62), "too large")):
        version.weights = wrong
        with pytest.raises(CertificateRejectedError, match=why):
            version.check(model.statistics)


def test_sums_across_the_streams_that_no_samples_have_are_refused() -> None:
    """Both blocks are those of samples, and the whole is not: the system of the streams does not show it."""
    made_up = Statistics(4)
    made_up.gram = np.array([[9, 0, 9, 9], [0, 9, 9, -8], [9, 9, 9, 0], [9, -8, 0, 9]]) * 1000
    made_up.sums, made_up.counts = {'"a"': np.array([1, 2, 3, 4])}, {'"a"': 9000}
    about = AnalyticClassifier(TwoStreams(2), 1).configuration()
    solution = streams.solve_streams(made_up.gram, made_up.cross(), 1, 40, 1.0, NUMPY)
    honest = new().fit(X, Y).exact
    assert honest is not None
    version = Version(about, 3, ['"a"'], solution.weights, Version.of(honest).witness)
    with pytest.raises(CertificateRejectedError, match="both streams is not positive semidefinite"):
        version.check(made_up)
    made_up.gram = np.array([[2, 1], [0, 2]])
    with pytest.raises(CertificateRejectedError, match="no Gram matrix"):
        version.check(made_up)


def test_settings() -> None:
    for wrong, why in (
        ({"gamma": "auto"}, "two streams need a gamma"),
        ({"class_weight": "balanced", "track_classes": True}, "no class_weight"),
        ({"encoder": TwoStreams(2**19 + 1)}, "n_codes"),
        ({"encoder": TwoStreams(compensation_ratio=0.0)}, "compensation_ratio"),
        ({"encoder": TwoStreams(activation="step")}, "activation must be one of"),
        ({"encoder": TwoStreams(compensation_activation="step")}, "activation must be one of"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            new().set_params(**wrong).fit(X, Y)


@pytest.mark.parametrize("ratio", [np.float32(0.6), "0.6", 2, np.int64(2)], ids=repr)
def test_a_ratio_is_the_float_that_it_stands_for(ratio: Any) -> None:
    given, plain = (TwoStreams(CODES, seed=3, compensation_ratio=each) for each in (ratio, float(ratio)))
    assert given.digest() == plain.digest()
    assert new().set_params(encoder=given).fit(X, Y).digest() == new().set_params(encoder=plain).fit(X, Y).digest()


def test_a_file_with_another_ratio_is_refused(tmp_path: Path) -> None:
    new().fit(X, Y).save(tmp_path / "model")
    about, tensors = tensorfile.unpack(tmp_path / "model", "neverseen-model-1")
    for ratio in ("0x0.0p+0", "nan", 1, "0.6"):
        about["configuration"]["encoder"]["ratio"] = ratio
        (tmp_path / "altered").write_bytes(b"".join(bytes(part) for part in tensorfile.pack(about, dict(tensors))))
        with pytest.raises(FileRejectedError):
            AnalyticClassifier.load(tmp_path / "altered")
