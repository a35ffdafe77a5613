from __future__ import annotations

import json
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from neverseen import (
    AnalyticClassifier,
    CertificateRejectedError,
    ConfigurationError,
    FileRejectedError,
    ForgettingModel,
    GaussianKernel,
    HardwareError,
    Identity,
    InputError,
    Key,
    Keyring,
    NotLearnedError,
    RandomProjection,
)
from neverseen import encoding as encoding_module
from neverseen.backbones import Precomputed
from neverseen.encoding import Encoder
from neverseen.engine.following import Following
from neverseen.engine.statistics import Statistics
from neverseen.hardware import Hardware, choose
from neverseen.holdings import FORGET, LEARN, Change
from neverseen.io.tensorfile import _checksum
from neverseen.labels import LabelIndex, canonical_json, from_text
from neverseen.model.configuration import Configuration, empty_digest
from neverseen.model.exact import ExactModel
from neverseen.model.versions import Version, read_version, write_version
from neverseen.proof.certificates import (
    Certificate,
    State,
    check_chain,
    check_state,
    is_mine,
    issue,
)
from neverseen.proof.receipts import commitment
from neverseen.proof.signing import SigningKey
from tests.samples import clustered, features

X, Y = clustered("versions", 60, 6, 3)
QUANTISED = encoding_module.quantise(X)
LABELS = [["ant", ("bee", 1), None][position] for position in Y]
ENCODERS: dict[str, Encoder] = {
    "projection": RandomProjection(40, seed=9),
    "identity": Identity(),
    "kernel": GaussianKernel(features("version centres", 33, 6), 0.4),
}


def model_of(kind: str, rows: int = 60, hardware: Hardware | None = None, backbone: str | None = None) -> ExactModel:
    configuration = Configuration(ENCODERS[kind], 2**9, 40, backbone)
    model = ExactModel.in_memory(configuration, 6, Key(bytes(32)), hardware or choose("numpy"))
    model.apply(Change(LEARN, QUANTISED[:rows], LabelIndex(LABELS[:rows])))
    return model


def version_of(kind: str = "projection", rows: int = 60) -> Version:
    return Version.of(model_of(kind, rows))


def written(version: Version, folder: Path) -> bytes:
    write_version(folder / "version", version)
    return (folder / "version").read_bytes()


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_version_answers_as_the_model_does(kind: str, hardware: Hardware, tmp_path: Path) -> None:
    model = model_of(kind, hardware=hardware, backbone="ab" * 32)
    write_version(tmp_path / "7", Version.of(model))
    assert stat.S_IMODE((tmp_path / "7").stat().st_mode) == 0o600
    version = read_version(tmp_path / "7", hardware)
    assert version.digest() == model.digest()
    assert version.classes == model.classes
    assert version.configuration.digest() == model.configuration_digest
    assert version.n_features == 6
    expected, _ = model.scores(QUANTISED)
    assert np.array_equal(version.scores(QUANTISED), expected)
    assert version.scores(QUANTISED[:0]).shape == (0, 3)
    best = [from_text(model.classes[place]) for place in expected.argmax(axis=1)]
    assert version.predict(QUANTISED).tolist() == best
    version.check(model.statistics)
    assert written(version, tmp_path) == (tmp_path / "7").read_bytes()


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_version_of_a_model_that_forgot_is_that_of_one_that_never_learned(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    model.weights()
    for row in range(59, 39, -1):  # followed one by one
        model.apply(Change(FORGET, QUANTISED[row : row + 1], LabelIndex(LABELS[row : row + 1])))
        model.weights()
    forgot = Version.of(model)
    forgot.check(model.statistics)
    assert written(forgot, tmp_path) == written(version_of(kind, 40), tmp_path)


def test_weights_and_sums_are_those_that_a_certificate_states() -> None:
    model, version = model_of("projection"), version_of()
    stated = State(model.statistics.digest(), model.digest(), 60, 3)
    version.check_stated(model.statistics, 7, stated)
    with pytest.raises(CertificateRejectedError, match="the weights do not match certificate 7") as weights:
        version.check_stated(model.statistics, 7, replace(stated, model="0" * 64))
    model.apply(Change(FORGET, QUANTISED[:1], LabelIndex(LABELS[:1])))
    with pytest.raises(CertificateRejectedError, match="the sums do not match certificate 7") as sums:
        version.check_stated(model.statistics, 7, stated)
    assert [(each.value.number, each.value.undecided) for each in (weights, sums)] == [(7, False), (7, True)]
    none = State.empty(model.configuration_digest.hex())
    Version.empty(model.configuration).check_stated(Statistics(0), 7, none)  # whose sums have no digest
    altered = Version.of(model)
    altered.weights = altered.weights.copy()
    altered.weights[0, 0] += 1
    with pytest.raises(CertificateRejectedError) as wrong:
        altered.check_stated(model.statistics, 7, State(model.statistics.digest(), altered.digest(), 59, 3))
    assert not wrong.value.undecided


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_version_without_samples(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    model.apply(Change(FORGET, QUANTISED, LabelIndex(LABELS)))
    raw = written(Version.of(model), tmp_path)
    assert raw == written(Version.empty(model.configuration), tmp_path)
    version = read_version(tmp_path / "version")
    assert version.digest() == empty_digest(model.configuration)
    assert version.classes == []
    version.check(Statistics(0))
    version.check(model.statistics)
    with pytest.raises(NotLearnedError, match="holds no samples"):
        version.predict(QUANTISED)
    with pytest.raises(CertificateRejectedError, match="of different classes"):
        version.check(model_of(kind).statistics)


def test_checks_fail_with_the_reason() -> None:
    model, version = model_of("projection"), version_of()
    with pytest.raises(CertificateRejectedError, match="are not proved"):
        version.check(model_of("projection", 59).statistics)
    with pytest.raises(CertificateRejectedError, match="not an int64 array of shape"):
        version.check(model_of("identity").statistics)
    version.weights[3, 1] += 1
    with pytest.raises(CertificateRejectedError, match="column 1 are not proved"):
        version.check(model.statistics)


def test_samples_are_checked() -> None:
    version = version_of()
    for wrong in (QUANTISED[0], QUANTISED[:, :5], QUANTISED.astype(np.float64)):
        with pytest.raises(InputError, match=r"int8 features of shape \(n, 6\)"):
            version.scores(wrong)


def test_custom_encoders_are_refused(tmp_path: Path) -> None:
    class Custom(Identity):
        pass

    with pytest.raises(ConfigurationError, match="the encoder Custom cannot be saved: it is not registered"):
        write_version(tmp_path / "x", Version.empty(Configuration(Custom(), 1, 40)))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_version(tmp_path / "x")


def test_others_can_read_the_file(tmp_path: Path) -> None:
    version = version_of("kernel")
    write_version(tmp_path / "version", version)
    tensors = load_file(tmp_path / "version")
    assert set(tensors) == {"centres", "rests", "weights"}
    assert np.array_equal(tensors["weights"], version.weights)
    assert np.array_equal(tensors["rests"], version.witness.rests)


# -- files that are refused -----------------------------------------------------------------------------


@settings(max_examples=150)
@given(data=st.data())
def test_damage_is_found(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole, path = (tmp_path_factory.getbasetemp() / name for name in ("whole", "damaged"))
    if not whole.exists():
        write_version(whole, version_of("identity"))
    raw = bytearray(whole.read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    match data.draw(st.sampled_from(["change", "insert", "delete", "cut"])):
        case "change":
            raw[place] ^= data.draw(st.integers(1, 255))
        case "insert":
            raw.insert(place, data.draw(st.integers(0, 255)))
        case "delete":
            del raw[place]
        case _:
            del raw[place:]
    if bytes(raw) == whole.read_bytes():
        return
    path.write_bytes(raw)
    with pytest.raises(FileRejectedError, match="damaged is not a version that can be used: "):
        read_version(path)


def forged(raw: bytes, change: Callable[[dict[str, Any], dict[str, Any]], bytes | None]) -> bytes:
    """A file with another description, header or body, and a checksum to fit."""
    (length,) = struct.unpack_from("<Q", raw)
    header, body = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    about = json.loads(header.pop("__metadata__")["neverseen"])
    del about["sha256"]
    body = change(about, header) or body
    about["sha256"] = _checksum(about, header, [memoryview(body)])
    head = canonical_json(header | {"__metadata__": {"neverseen": canonical_json(about)}}).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + body


def setting(**fields: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda about, header: about.update(fields)


def tensor(name: str, **fields: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda about, header: header.setdefault(name, {}).update(fields)


def without(name: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda about, header: (about.pop(name, None), header.pop(name, None))[:0] or None


PROJECTION = {
    "encoder": {"codes": 6, "kind": "random-projection", "seed": 0},
    "format": 1,
    "gamma": 64,
    "grid_bits": 40,
}
FORGERIES: list[tuple[Callable[[dict[str, Any], dict[str, Any]], Any], str]] = [
    (setting(format="neverseen-version-2"), "its format is 'neverseen-version-2'; this version reads"),
    (setting(format="neverseen-model-1"), "its format is 'neverseen-model-1'"),
    (setting(number=7), "does not have the fields of a version"),
    (without("bits"), "does not have the fields of a version"),
    (setting(bits=0), "impossible number of bits"),
    (setting(bits=61), "impossible number of bits"),
    (setting(bits=1.5), "impossible number of bits"),
    (setting(unproved=[3]), "not a list of columns"),
    (setting(unproved=[1, 0]), "not a list of columns"),
    (setting(unproved=[True]), "not a list of columns"),
    (setting(unproved=7), "damaged|contradicts itself|something else"),
    # A file of some bytes whose first prediction would take gigabytes.
    (setting(configuration=PROJECTION, n_features=2**31 // 6 + 1), "has more than 2[*][*]31 signs: use fewer codes"),
    (setting(configuration=PROJECTION, n_features=2**200), "has more than 2[*][*]31 signs: use fewer codes"),
    (setting(n_features=0), "number of features is not a number"),
    (setting(n_features=5), "does not fit its settings"),
    (setting(n_features="6"), "number of features is not a number"),
    (setting(classes=["null"]), "does not fit its settings"),
    (setting(classes=[]), "but no classes"),
    (setting(classes=["null", '{"tuple":["bee",1]}', '"ant"']), "not in order"),
    (setting(classes=["null", "null", '"ant"']), "not in order"),
    (setting(classes=["null", '"ant"', "[]"]), "not the .*text of a label"),
    (setting(classes=["null", '"ant"', 7]), "not as text"),
    (setting(classes="null"), "is not the text|not in order"),
    (setting(configuration={}), "damaged|contradicts itself|something else"),
    (setting(configuration={"encoder": {"kind": "other"}}), "the encoder 'other' is not known"),
    (
        setting(configuration={"encoder": {"kind": "identity"}, "format": 1, "gamma": 0, "grid_bits": 40}),
        "gamma must be",
    ),
    (
        setting(configuration={"encoder": {"kind": "identity"}, "format": 2, "gamma": 1, "grid_bits": 40}),
        "configuration has impossible settings",
    ),
    (tensor("weights", dtype="F64"), "damaged|contradicts itself|something else"),
    (tensor("weights", dtype="U8"), "tensors are misplaced"),
    (tensor("weights", shape=[18]), "does not fit its settings"),
    (tensor("weights", shape=[-6, -3]), "a tensor has no shape"),
    (tensor("weights", shape=[6, True]), "a tensor has no shape"),
    (tensor("weights", shape=[2**40, 2**40]), "tensors are misplaced"),
    (tensor("weights", shape=[0, 2**70]), "tensors are misplaced|damaged"),
    (tensor("weights", data_offsets=[0, 144]), "tensors are misplaced"),
    (tensor("weights", note=1), "tensors are misplaced"),
    (tensor("zeros", dtype="I8", shape=[0], data_offsets=[216, 216]), "a tensor too many"),
    (without("weights"), "extra bytes after its tensors"),
    (lambda about, header: bytes(400), "extra bytes after its tensors"),
    (lambda about, header: bytes(216), "does not fit its settings"),  # zeros have a narrower type
]


@pytest.mark.parametrize(("change", "words"), FORGERIES)
def test_files_that_contradict_themselves_are_refused(change: Any, words: str, tmp_path: Path) -> None:
    raw = written(version_of("identity"), tmp_path)
    assert forged(raw, lambda about, header: None) == raw
    (tmp_path / "version").write_bytes(forged(raw, change))
    with pytest.raises(FileRejectedError, match=f"version is not a version that can be used: .*({words})"):
        read_version(tmp_path / "version")


@pytest.mark.parametrize(
    "change", [setting(n_features=6), setting(bits=2), setting(bits=True), setting(unproved=[0]), setting(classes=None)]
)
def test_empty_versions_that_are_not_quite_empty_are_refused(change: Any, tmp_path: Path) -> None:
    raw = written(Version.empty(Configuration(Identity(), 1, 40)), tmp_path)
    (tmp_path / "version").write_bytes(forged(raw, change))
    with pytest.raises(FileRejectedError):
        read_version(tmp_path / "version")


def test_the_one_form_of_the_description_is_demanded(tmp_path: Path) -> None:
    raw = written(version_of("identity"), tmp_path)
    for old, new in ((b'\\"bits\\":', b'\\"bits\\": '), (b'"__metadata__":{', b'"__metadata__":{"a":"b",')):
        (length,) = struct.unpack_from("<Q", raw)
        head = raw[8 : 8 + length].rstrip(b" ").replace(old, new)
        head += b" " * (-len(head) % 8)
        (tmp_path / "version").write_bytes(struct.pack("<Q", len(head)) + head + raw[8 + length :])
        with pytest.raises(FileRejectedError, match="canonical form"):
            read_version(tmp_path / "version")


def test_a_version_with_a_forged_weight_is_read_and_fails_its_check(tmp_path: Path) -> None:
    """The checksum finds damage, not forgery. The digest in the certificate and the witness find that."""
    model, version = model_of("identity"), version_of("identity")
    weights = version.weights.copy()
    weights[2, 2] -= 1
    other = Version(version.configuration, 6, version.classes, weights, version.witness)
    write_version(tmp_path / "version", other)
    read = read_version(tmp_path / "version")
    assert read.digest() != model.digest()
    with pytest.raises(CertificateRejectedError, match="column 2 are not proved"):
        read.check(model.statistics)
    lazy = Version(version.configuration, 6, version.classes, weights, replace(version.witness, unproved=(0, 1, 2)))
    with pytest.raises(CertificateRejectedError, match="row 2 of column 2 is wrong"):
        lazy.check(model.statistics)


# -- with certificates ----------------------------------------------------------------------------------


def test_a_published_history_can_be_checked_by_outsiders(tmp_path: Path) -> None:
    """Learn, publish, forget by receipt, publish: signature and chain, mine, weights, retrain."""
    key, issued = SigningKey.generate(), list[Certificate]()
    model = ForgettingModel(Precomputed(6), AnalyticClassifier(ENCODERS["projection"], 2**9), Keyring.generate())
    receipts = model.learn(X, LABELS)

    def publish(learned: int, forgotten: list[bytes]) -> Statistics:
        exact, previous = model.classifier.exact, issued[-1] if issued else None
        assert exact is not None
        version, sums = Version.of(exact), exact.statistics
        number, configuration = len(issued) + 1, exact.configuration_digest.hex()
        write_version(tmp_path / str(number), version)
        before = previous.after if previous else State.empty(configuration)
        after = State(sums.digest(), version.digest(), sums.total, len(version.classes))
        proofs = [commitment(receipt) for receipt in forgotten]
        issued.append(
            issue(number, None, configuration, before, after, learned, len(proofs), proofs, 40, previous, key)
        )
        return sums

    publish(60, [])
    model.forget(receipts[50:])
    sums = publish(0, receipts[50:])

    read = [Certificate.from_json(certificate.to_json()) for certificate in issued]
    check_chain(read, key.public)
    assert [is_mine(read[1], receipt) for receipt in receipts] == [False] * 50 + [True] * 10
    assert not any(is_mine(read[0], receipt) for receipt in receipts)
    version = read_version(tmp_path / "2")
    version.check(sums)
    check_state(read[1], State(sums.digest(), version.digest(), sums.total, len(version.classes)))
    again = ForgettingModel(Precomputed(6), AnalyticClassifier(ENCODERS["projection"], 2**9), Keyring.generate())
    again.learn(X[:50], LABELS[:50])
    retrained = again.classifier.exact
    assert retrained is not None
    check_state(read[1], State(retrained.statistics.digest(), again.digest(), 50, len(version.classes)))
    with pytest.raises(CertificateRejectedError, match="certificate 1: it states another state"):
        check_state(read[0], State(sums.digest(), version.digest(), sums.total, len(version.classes)))
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[2] / "docs" / "certificate.schema.json").read_text())
    for certificate in read:
        jsonschema.validate(json.loads(certificate.to_json()), schema)


def test_weights_that_no_witness_proves_are_solved_for_before_they_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Followed weights that are wrong have no witness. They must not be signed as unproved ones."""
    rows, names = clustered("confirmed", 40, 6, 3)
    model = AnalyticClassifier(RandomProjection(16), 2**9, key=Key(bytes(32)), hardware="numpy").fit(rows, names)
    model.digest()
    model.forget(rows[:1], names[:1])
    exact = model.exact
    assert exact is not None
    followed = exact.solution()
    assert isinstance(followed, Following)
    assert not Version.of(exact).witness.unproved
    wrong = replace(followed, steps=followed.steps + 64)
    monkeypatch.setattr(ExactModel, "solution", lambda _: wrong)
    with pytest.raises(HardwareError, match="not those of a solve"):
        Version.of(exact)
