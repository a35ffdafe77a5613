from __future__ import annotations

import copy
import json
import os
import stat
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    FileRejectedError,
    ForgettingModel,
    GaussianKernel,
    HardwareError,
    Identity,
    Key,
    KeyMissingError,
    Keyring,
    RandomProjection,
    ReceiptRejectedError,
)
from neverseen.backbones import Precomputed
from neverseen.io.tensorfile import pack, unpack
from neverseen.model.versions import Version
from tests.samples import clustered, features

X, Y = clustered("saving", 30, 4, 3)
LABELS = [["ant", ("bee", 1), None][position] for position in Y]
KEY = Key(bytes(range(32)))
ENCODERS = {
    "projection": RandomProjection(12, seed=9),
    "identity": Identity(),
    "kernel": GaussianKernel(features("saved centres", 7, 4), 0.4),
    "tanh": RandomProjection(12, seed=9, activation="tanh"),
    "scaled kernel": GaussianKernel(features("saved centres", 7, 4), 0.4, scale=3.0),
}


def model_of(kind: str = "projection", track_classes: bool = True, key: Key | None = KEY) -> AnalyticClassifier:
    return AnalyticClassifier(ENCODERS[kind], 2**9, track_classes=track_classes, key=key, hardware="numpy").fit(
        X, LABELS
    )


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("track_classes", [False, True])
def test_round_trip(kind: str, track_classes: bool, tmp_path: Path) -> None:
    model = model_of(kind, track_classes)
    model.save(tmp_path / "one")
    loaded = AnalyticClassifier.load(tmp_path / "one")
    assert loaded.digest() == model.digest()
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert np.array_equal(loaded.decision_function(X), model.decision_function(X))
    loaded.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    loaded.forget(X[:7], LABELS[:7])
    assert loaded.digest() == model.forget(X[:7], LABELS[:7]).digest()
    if track_classes:
        assert loaded.forget_class("ant").digest() == model.forget_class("ant").digest()


def test_the_file_of_a_model_that_forgot_is_that_of_one_that_never_learned(tmp_path: Path) -> None:
    model = model_of().forget(X[10:], LABELS[10:])
    model.save(tmp_path / "forgot")
    AnalyticClassifier(ENCODERS["projection"], 2**9, track_classes=True, key=KEY).fit(X[:10], LABELS[:10]).save(
        tmp_path / "never"
    )
    assert (tmp_path / "forgot").read_bytes() == (tmp_path / "never").read_bytes()


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_model_without_samples_can_be_saved(kind: str, tmp_path: Path) -> None:
    new = AnalyticClassifier(ENCODERS[kind], 2**9, track_classes=True, key=KEY)
    new.save(tmp_path / "new")
    emptied = model_of(kind).forget(X, LABELS)
    emptied.save(tmp_path / "emptied")
    assert (tmp_path / "new").read_bytes() == (tmp_path / "emptied").read_bytes()
    loaded = AnalyticClassifier.load(tmp_path / "new")
    assert loaded.digest() == new.digest()
    assert loaded.fit(X, LABELS).digest() == model_of(kind).digest()


def test_the_file_is_laid_out_as_documented(tmp_path: Path) -> None:
    model_of().save(tmp_path / "model")
    raw = (tmp_path / "model").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    header = json.loads(raw[8 : 8 + length])
    about = json.loads(header.pop("__metadata__")["neverseen"])
    assert about["format"] == "neverseen-model-1"
    assert about["key"] == KEY.reveal().hex()
    assert about["classes"] == ["null", '"ant"', '{"tuple":["bee",1]}']
    assert sum(about["counts"]) == 30
    place = 0
    for name in sorted(header):
        assert header[name]["data_offsets"][0] == place
        place = header[name]["data_offsets"][1]
    assert len(raw) == 8 + length + place
    tensors = load_file(tmp_path / "model")
    codes = ENCODERS["projection"].encode(X).astype(np.int64)
    assert tensors["gram"].tolist() == (codes.T @ codes)[np.triu_indices(12)].tolist()
    assert tensors["gram"].dtype == np.int16
    assert tensors["members"].shape == (30, 16)
    assert set(tensors) == {"gram", "sums", "members", "class_gram.000000", "class_gram.000001", "class_gram.000002"}


def test_the_file_is_private_and_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    model_of().save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        model_of("identity").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere for model does not exist"):
        model_of().save(tmp_path / "nowhere" / "model")


def test_the_key_can_stay_outside_the_file(tmp_path: Path) -> None:
    model = model_of()
    model.save(tmp_path / "model", include_key=False)
    raw = (tmp_path / "model").read_bytes()
    assert KEY.reveal() not in raw
    assert KEY.reveal().hex().encode() not in raw
    keyless = AnalyticClassifier.load(tmp_path / "model")
    assert keyless.digest() == model.digest()
    assert keyless.predict(X).tolist() == model.predict(X).tolist()
    for verb in (keyless.forget, keyless.partial_fit):
        with pytest.raises(KeyMissingError, match="Load it with key="):
            verb(X[:1], LABELS[:1])
    with pytest.raises(KeyMissingError):
        keyless.merge(model)
    keyless.forget_class("ant")  # needs no sample, and so no key
    keyless.save(tmp_path / "again")
    loaded = AnalyticClassifier.load(tmp_path / "again", key=KEY)
    row = next(row for row in range(30) if LABELS[row] != "ant")
    assert (
        loaded.forget(X[row : row + 1], LABELS[row : row + 1]).digest()
        == model.forget_class("ant").forget(X[row : row + 1], LABELS[row : row + 1]).digest()
    )


def test_a_wrong_key_is_refused(tmp_path: Path) -> None:
    model_of().save(tmp_path / "with")
    model_of().save(tmp_path / "without", include_key=False)
    for name in ("with", "without"):
        with pytest.raises(FileRejectedError, match="not the key given"):
            AnalyticClassifier.load(tmp_path / name, key=Key(bytes(32)))
        assert AnalyticClassifier.load(tmp_path / name, key=KEY).digest() == model_of().digest()


@pytest.mark.parametrize("track_classes", [False, True])
def test_a_file_read_without_its_key_is_written_again_byte_for_byte(track_classes: bool, tmp_path: Path) -> None:
    model_of(track_classes=track_classes).save(tmp_path / "one", include_key=False)
    AnalyticClassifier.load(tmp_path / "one").save(tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    copied = copy.deepcopy(AnalyticClassifier.load(tmp_path / "one"))
    copied.save(tmp_path / "three")
    assert (tmp_path / "three").read_bytes() == (tmp_path / "one").read_bytes()


def test_what_was_saved_without_its_key_takes_no_other_key(tmp_path: Path) -> None:
    """Under another key nobody could find the old samples again, and with the next save its own key was refused."""
    keys, others = Keyring.generate(), Keyring.generate()
    settings = AnalyticClassifier(ENCODERS["projection"], 2**9, track_classes=True)
    model = ForgettingModel(Precomputed(X.shape[1]), settings, keys)
    receipts = model.learn(X, LABELS)
    model.save(tmp_path / "model")
    keyless = ForgettingModel.load(tmp_path / "model", Precomputed(X.shape[1]))
    keyless.forget_class("ant")
    keyless.save(tmp_path / "model")
    with pytest.raises(FileRejectedError, match="not the key given"):
        ForgettingModel.load(tmp_path / "model", Precomputed(X.shape[1]), others)
    model.forget_class("ant")
    again = ForgettingModel.load(tmp_path / "model", Precomputed(X.shape[1]), keys)
    row = next(row for row in range(30) if LABELS[row] != "ant")
    again.forget([receipts[row]])
    model.forget([receipts[row]])
    assert again.digest() == model.digest()


def test_a_file_of_0_1_0_that_does_not_say_under_which_key(tmp_path: Path) -> None:
    """No key fits it. Without a key it is read, and stays as it is; the guide says how to put the check back."""
    path, settings = tmp_path / "model", AnalyticClassifier(ENCODERS["projection"], 2**9, track_classes=True)
    keys, others = Keyring.generate(), Keyring.generate()
    model = ForgettingModel(Precomputed(X.shape[1]), settings, keys)
    receipts = model.learn(X, LABELS)
    model.save(path)
    about, tensors = parts(path)
    rewritten(path, about | {"key_check": None}, tensors)
    before = path.read_bytes()
    for wrong in (keys, others):
        with pytest.raises(FileRejectedError, match=r"does not say under which key: version 0\.1\.0 .*upgrade\.md"):
            ForgettingModel.load(path, Precomputed(X.shape[1]), wrong)
    keyless = ForgettingModel.load(path, Precomputed(X.shape[1]))
    assert keyless.digest() == model.digest()
    keyless.save(path)
    assert path.read_bytes() == before
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "upgrade.md").read_text("utf-8")
    said: dict[str, Any] = {}
    exec(guide.partition("```python\n")[2].partition("```")[0], said)  # noqa: S102
    for tried, refusal in ((others, pytest.raises(ReceiptRejectedError)), (keys, nullcontext())):
        said["name_key"](path, tried.membership)
        with refusal:
            ForgettingModel.load(path, Precomputed(X.shape[1]), tried).forget(receipts[:1], dry_run=True)
        rewritten(path, about | {"key_check": None}, tensors)


def test_a_model_without_samples_takes_any_key(tmp_path: Path) -> None:
    """There is nothing that another key could not find."""
    model_of().forget(X, LABELS).save(tmp_path / "model", include_key=False)
    with pytest.raises(FileRejectedError, match="not the key given"):
        AnalyticClassifier.load(tmp_path / "model", key=Key(bytes(32)))
    AnalyticClassifier.load(tmp_path / "model").save(tmp_path / "model")
    assert (
        AnalyticClassifier.load(tmp_path / "model", key=Key(bytes(32))).fit(X, LABELS).digest() == model_of().digest()
    )


@pytest.mark.parametrize("check", ["", "00", 7, [], "0" * 15 + "G", "A" * 16, "0" * 17, "0" * 16 + "\n"])
def test_a_check_that_no_key_has_is_refused(check: Any, tmp_path: Path) -> None:
    model_of().save(tmp_path / "model", include_key=False)
    about, tensors = parts(tmp_path / "model")
    rewritten(tmp_path / "model", about | {"key_check": check}, tensors)
    with pytest.raises(FileRejectedError):
        AnalyticClassifier.load(tmp_path / "model")


def test_a_torn_model_never_replaces_a_good_file(tmp_path: Path) -> None:
    model = model_of()
    model.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()
    model._model._torn = True
    with pytest.raises(HardwareError, match="cut off half-way"):
        model.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == before


def test_tracking_is_saved_as_it_is_not_as_it_is_set(tmp_path: Path) -> None:
    model = model_of(track_classes=False).set_params(track_classes=True)
    model.save(tmp_path / "model")
    assert AnalyticClassifier.load(tmp_path / "model").track_classes is False


def test_settings_of_a_loaded_model_change_nothing_that_it_gave(tmp_path: Path) -> None:
    model_of().save(tmp_path / "model")
    loaded = AnalyticClassifier.load(tmp_path / "model", hardware="numpy")
    assert loaded.exact is not None
    version, view, means = Version.of(loaded.exact), loaded.without(X[:3], LABELS[:3]), loaded.means()

    def given() -> tuple[Any, ...]:
        return version.digest(), view.digest(), view.decision_function(X).tolist(), means.novelty(X).tolist()

    before = given()
    loaded.set_params(encoder__seed=10).fit(X[:9], LABELS[:9])
    assert given() == before


def test_models_with_custom_encoders_are_not_saved(tmp_path: Path) -> None:
    class Custom(Identity):
        pass

    model = AnalyticClassifier(Custom(), key=KEY).fit(X, LABELS)
    with pytest.raises(ConfigurationError, match="the encoder Custom cannot be saved: it is not registered"):
        model.save(tmp_path / "model")


SAVED: dict[str, bytes] = {}


def saved_bytes(tmp: Path) -> bytes:
    if not SAVED:
        model_of().save(tmp)
        SAVED["model"] = tmp.read_bytes()
    return SAVED["model"]


@given(data=st.data())
@settings(max_examples=300)
def test_any_damaged_byte_is_noticed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    raw = bytearray(saved_bytes(path))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    with pytest.raises(FileRejectedError, match="not a model that can be loaded|label|encoder"):
        AnalyticClassifier.load(path)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -1, -100])
def test_a_file_cut_short_or_grown_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    raw = saved_bytes(path)
    path.write_bytes(raw[:size])
    with pytest.raises(FileRejectedError, match="cut short"):
        AnalyticClassifier.load(path)
    path.write_bytes(raw + b"\0")
    with pytest.raises(FileRejectedError):
        AnalyticClassifier.load(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    save_file({"weights": np.zeros(3)}, path)
    with pytest.raises(FileRejectedError, match="safetensors file of another program"):
        AnalyticClassifier.load(path)
    save_file({"weights": np.zeros(3)}, path, metadata={"neverseen": '{"format":"neverseen-model-9"}'})
    with pytest.raises(
        FileRejectedError, match="its format is 'neverseen-model-9'; this version reads 'neverseen-model-1'"
    ):
        AnalyticClassifier.load(path)
    for text in ("{", "[]", "[" * 100_000, '"x"'):
        save_file({"weights": np.zeros(3)}, path, metadata={"neverseen": text})
        with pytest.raises(FileRejectedError):
            AnalyticClassifier.load(path)
    path.write_bytes(b"\x80\x04\x95 a pickle, say")
    with pytest.raises(FileRejectedError, match="not a safetensors file"):
        AnalyticClassifier.load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        AnalyticClassifier.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        AnalyticClassifier.load(tmp_path)


def rewritten(path: Path, about: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write a file with a right checksum whose content was tampered with, by the layout in the specification."""
    import hashlib

    header: dict[str, Any] = {}
    place = 0
    names = {"int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "float64": "F64"}
    for name in sorted(tensors):
        end = place + tensors[name].nbytes
        header[name] = {
            "data_offsets": [place, end],
            "dtype": names[str(tensors[name].dtype)],
            "shape": list(tensors[name].shape),
        }
        place = end
    blob = b"".join(np.ascontiguousarray(tensors[name]).tobytes() for name in sorted(tensors))

    def canonical(value: Any) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    checksum = hashlib.sha256(canonical(about).encode() + canonical(header).encode() + blob).hexdigest()
    header["__metadata__"] = {"neverseen": canonical(about | {"sha256": checksum})}
    head = canonical(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + blob)


def parts(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with safe_open(path, "numpy") as file:
        about = json.loads(file.metadata()["neverseen"])
    del about["sha256"]
    return about, load_file(path)


def test_rewriting_reproduces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    model_of().save(path)
    rewritten(tmp_path / "again", *parts(path))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("counts", [1, 2]), ("counts", [10, 10, -3]), ("counts", [True, 10, 10]), ("counts", "abc"),
        ("classes", ['"ant"', "null", '{"tuple":["bee",1]}']), ("classes", ["x", "y", "z"]), ("classes", []),
        ("classes", ["null", "null", '"ant"']), ("n_features", 0), ("n_features", "4"), ("n_features", -1),
        ("key", "00"), ("key_check", "00"), ("surprise", 1), ("track_classes", "yes"), ("sums", np.full((3, 12), -(2**63))), ("key", 7), ("configuration", {}), ("track_classes", False),
        ("configuration", {"encoder": {"kind": "quantum"}, "format": 1, "gamma": 512, "grid_bits": 40}),
        ("configuration", {"encoder": {"kind": "random-projection", "codes": 2**40, "seed": 0}, "format": 1, "gamma": 512, "grid_bits": 40}),
        ("configuration", {"encoder": {"kind": "random-projection", "codes": 12, "seed": 9}, "format": 1, "gamma": 0, "grid_bits": 40}),
        ("configuration", {"encoder": {"kind": "random-projection", "codes": 12, "seed": 9}, "format": 1, "gamma": 512.0, "grid_bits": 40}),
        ("configuration", {"encoder": {"kind": "random-projection", "codes": 12, "seed": 9}, "format": 2, "gamma": 512, "grid_bits": 40}),
        *(("configuration", {"encoder": {"kind": "random-projection", "codes": 12, "seed": 9} | more, "format": 1, "gamma": 512, "grid_bits": 40})
          for more in ({"activation": "relu"}, {"activation": "swish"}, {"activation": ["tanh"]}, {"scale": None}, {"scale": 1.0}, {"scale": "0x1p0"}, {"scale": "nan"}, {"scale": "0x1p5000"})),
        ("gram", np.zeros(3, np.int32)), ("gram", np.full(78, -5, np.int64)), ("gram", np.full(78, 2**60)),
        ("gram", np.zeros(78)), ("gram", None), ("sums", np.zeros((3, 12), np.int32)), ("sums", np.full((3, 12), 10**6)),
        ("members", np.zeros((29, 16), np.uint8)), ("members", None), ("class_gram.000000", np.zeros(78, np.int8)),
        ("class_gram.000001", None), ("stowaway", np.zeros(1, np.int8)),
    ],
)  # fmt: skip
def test_contents_that_contradict_each_other_are_refused(place: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    model_of().save(path)
    about, tensors = parts(path)
    if place in about or place == "surprise":
        about[place] = value
    elif value is None:
        del tensors[place]
    else:
        tensors[place] = value
    rewritten(path, about, tensors)
    with pytest.raises(FileRejectedError):
        AnalyticClassifier.load(path)


def test_tickets_that_contradict_the_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    model = ForgettingModel(Precomputed(X.shape[1]), AnalyticClassifier(ENCODERS["projection"], 2**9))
    model.learn(X, LABELS)
    model.save(path)
    about, tensors = parts(path)
    tickets = tensors["tickets"]
    assert tickets.shape == (30, 48)
    assert about["configuration"]["backbone"] == model.backbone.digest()
    rewritten(path, about, tensors)
    assert AnalyticClassifier.load(path).digest() == model.digest()
    strange = tickets.copy()
    strange[0, 32:] = 0  # of a sample that is not held
    doubled = np.concatenate([tickets[:1], tickets[:-1]])
    crowded = tickets.copy()
    crowded[:, 32:] = tickets[0, 32:]  # thirty tickets for one sample
    for wrong in (strange, doubled, crowded, tickets[::-1], tickets[:, :-1], tickets[:0], tickets.astype(np.int8)):
        rewritten(path, about, tensors | {"tickets": wrong})
        with pytest.raises(FileRejectedError, match="its tickets"):
            AnalyticClassifier.load(path)
    for wrong_digest in ("ab", "AB" * 32, 7, None):
        rewritten(path, about | {"configuration": about["configuration"] | {"backbone": wrong_digest}}, tensors)
        with pytest.raises(FileRejectedError):
            AnalyticClassifier.load(path)


def altered(path: Path, about: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """The same file with other contents, and with the checksum of these."""
    found, arrays = unpack(path, "neverseen-model-1")
    for place, value in about.items():
        part, *rest = place.split(".")
        inner = found
        for name in [part, *rest][:-1]:
            inner = inner[name]
        inner[[part, *rest][-1]] = value
    path.write_bytes(b"".join(bytes(part) for part in pack(found, arrays | tensors)))
    return path


@pytest.mark.parametrize(
    "about",
    [
        {"configuration.encoder.bandwidth": "0x1p99999"},
        {"configuration.format": True},
        {"configuration.format": 1.0},
        {"configuration.encoder.shape": [7.0, 4.0]},
        {"key_check": None},
        {"key": " ".join(f"{byte:02x}" for byte in range(32))},
        {"key": bytes(range(32)).hex().upper()},
        {"n_features": 10**9},
        {"n_features": 4.0},
        {"counts": {}},
    ],
    ids=str,
)
def test_what_no_model_is_saved_as_is_refused(about: dict[str, Any], tmp_path: Path) -> None:
    """Section 8.4 of the specification: of one content there is one file."""
    model_of("kernel", track_classes=False).save(tmp_path / "model")
    AnalyticClassifier.load(altered(tmp_path / "model", {}, {}))
    with pytest.raises(FileRejectedError):
        AnalyticClassifier.load(altered(tmp_path / "model", about, {}))


@pytest.mark.parametrize("tensor", ["centres", "gram"])
def test_integers_of_another_width_are_refused(tensor: str, tmp_path: Path) -> None:
    model_of("kernel", track_classes=False).save(tmp_path / "model")
    _, tensors = unpack(tmp_path / "model", "neverseen-model-1")
    with pytest.raises(FileRejectedError):
        AnalyticClassifier.load(altered(tmp_path / "model", {}, {tensor: tensors[tensor].astype(np.int64)}))


@pytest.mark.parametrize("classes", [None, False, 0, "", {}])
@pytest.mark.parametrize("n_features", [0, 0.0, False])
def test_a_model_without_samples_has_an_empty_list_of_classes(classes: Any, n_features: Any, tmp_path: Path) -> None:
    AnalyticClassifier(ENCODERS["kernel"], 2**9, key=KEY).save(tmp_path / "model")
    with pytest.raises(FileRejectedError):
        AnalyticClassifier.load(altered(tmp_path / "model", {"classes": classes, "n_features": n_features}, {}))
