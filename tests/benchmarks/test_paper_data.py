"""Data, splits and settings of the paper's evaluation."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks.paper import data, pack, protocol, settings
from benchmarks.paper.data import DataError, Dataset
from benchmarks.paper.experiments import EXPERIMENTS, Key, keys
from benchmarks.paper.settings import SettingError

Image = pytest.importorskip("PIL.Image")


def tiny(seed: int = 0, n_classes: int = 100, each: int = 2) -> Dataset:
    rng = np.random.default_rng(seed)
    labels = np.arange(n_classes * each, dtype=np.int64) % n_classes
    images = rng.integers(0, 256, (2, len(labels), 32, 32, 3), dtype=np.uint8)
    return data.canonical(f"cifar{n_classes}", n_classes, images[0], labels, images[1], labels)


PythonPickler: Any = pickle._Pickler


class Python2Pickler(PythonPickler):  # type: ignore[misc]
    """Writes bytes as Python 2 wrote its strings, which is how the official files hold their pixels."""

    dispatch: ClassVar[dict[type, Any]] = dict(PythonPickler.dispatch)

    def save_string(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_string


def official_pickle(value: object) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue()


def write_official(folder: Path, dataset: Dataset) -> None:
    folder.mkdir(parents=True)
    for name, first in (("train", 0), ("test", 2)):
        images, labels = dataset.arrays[first : first + 2]
        batch = {"data": images.transpose(0, 3, 1, 2).reshape(-1, 3072), "fine_labels": labels.tolist()}
        (folder / name).write_bytes(official_pickle(batch))


def write_folders(folder: Path, dataset: Dataset) -> None:
    for name, first in (("train", 0), ("test", 2)):
        images, labels = dataset.arrays[first : first + 2]
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            place = folder / name / f"class {label:03}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{len(labels) - row:04}.png")  # in another order


# -- loaders ---------------------------------------------------------------------------------------


def test_every_source_gives_the_same_data_set(tmp_path: Path) -> None:
    dataset = tiny()
    write_official(tmp_path / "a" / "cifar-100-python", dataset)
    write_folders(tmp_path / "b" / "cifar100", dataset)
    write_folders(tmp_path / "c" / "CIFAR-100-dataset", dataset)
    pack.write(dataset, tmp_path / "d")
    for name in "abcd":
        found = data.load("cifar100", tmp_path / name)
        assert found.digest() == dataset.digest()
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found.arrays, dataset.arrays, strict=True))


def test_cifar10_is_read_from_folders(tmp_path: Path) -> None:
    dataset = tiny(n_classes=10)
    write_folders(tmp_path / "cifar10", dataset)
    assert data.load("cifar10", tmp_path).digest() == dataset.digest()


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_malicious_pickle_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "cifar-100-python"
    write_official(place, tiny())
    (place / "test").write_bytes(pickle.dumps({"data": Malicious(tmp_path / "owned"), "fine_labels": []}))
    with pytest.raises(DataError, match="is not a CIFAR-100 file: .*mkdir has no place in it"):
        data.load("cifar100", tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps({"data": [1, 2]}), pickle.dumps([1])])
def test_a_damaged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "cifar-100-python"
    write_official(place, tiny())
    (place / "train").write_bytes(content)
    with pytest.raises(DataError, match="is not a CIFAR-100 file"):
        data.load("cifar100", tmp_path)


def test_it_says_where_it_looked(tmp_path: Path) -> None:
    for name, number in (("cifar10", 10), ("cifar100", 100)):
        with pytest.raises(DataError) as caught:
            data.load(name, tmp_path)
        message = str(caught.value)
        assert f"no {name} found; looked for" in message
        for place in (f"{name}-pack", name, f"CIFAR-{number}-dataset"):
            assert str(tmp_path / place) in message
        assert "NEVERSEEN_DATA" in message
    with pytest.raises(DataError, match="there is no data set 'mnist'"):
        data.load("mnist", tmp_path)


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    write_folders(tmp_path / "cifar10", tiny(n_classes=9))
    with pytest.raises(DataError, match="has not 10 class folders"):
        data.load("cifar10", tmp_path)
    bad = tmp_path / "cifar10" / "train" / "class 001" / "x.png"
    bad.write_bytes(b"not an image")
    with pytest.raises(DataError, match="is not an image"):
        data.load("cifar10", tmp_path)
    Image.new("RGB", (8, 16)).save(bad)
    with pytest.raises(DataError, match="must be 32 x 32 pixels; got 8 x 16"):
        data.load("cifar10", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no class folders"):
        data.image_folder(tmp_path / "empty")


def test_images_and_labels_are_checked() -> None:
    good = tiny(n_classes=10)
    with pytest.raises(DataError, match="images must be uint8"):
        data.canonical("x", 10, good.train_images.astype(np.float32), *good.arrays[1:])
    with pytest.raises(DataError, match=r"labels must be 0\.\.4; got 0\.\.9"):
        data.canonical("x", 5, *good.arrays)


def test_reduced_keeps_classes_even() -> None:
    dataset = data.synthetic(10)
    part = dataset.reduced(55, 20)
    assert sorted(np.bincount(part.train_labels).tolist()) == [5] * 5 + [6] * 5
    assert np.bincount(part.test_labels).tolist() == [2] * 10
    assert dataset.reduced(0, 0).digest() == dataset.digest()


# -- packs -----------------------------------------------------------------------------------------


def test_a_pack_comes_back_bit_for_bit_in_parts(tmp_path: Path) -> None:
    dataset = tiny(each=13)  # 1300 images: a whole tile, a whole tile, a part of one
    parts = pack.write(dataset, tmp_path, limit=2**20 + 2_000_000)
    assert len(parts) > 1
    with Image.open(parts[0] / "train-000.webp") as tile:
        assert tile.size == (640, 800)
    for part in parts:
        assert sum(path.stat().st_size for path in part.glob("*.webp")) <= 2_000_000
    found = pack.read(tmp_path / "cifar100-pack")
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found.arrays, dataset.arrays, strict=True))
    parts[1].rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="lacks part-1: move them there too"):
        pack.read(tmp_path / "cifar100-pack")


def test_a_damaged_pack_is_refused(tmp_path: Path) -> None:
    dataset = tiny(n_classes=10)
    (part,) = pack.write(dataset, tmp_path)
    Image.new("RGB", (640, 800)).save(part / "test-000.webp", lossless=True)
    with pytest.raises(DataError, match="is damaged"):
        pack.read(part.parent)
    (part / "test-000.webp").write_bytes(b"x")
    with pytest.raises(DataError, match="cannot be read"):
        pack.read(part.parent)
    (part / "about.json").write_text("{}")
    with pytest.raises(DataError, match="is not a part of a packed data set"):
        pack.read(part.parent)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="holds no parts"):
        pack.read(tmp_path / "none")


# -- protocol --------------------------------------------------------------------------------------


SPLIT_0, SPLIT_1, CLASSES_0 = "577b17af2fa0ea1e", "6cd03be8148752ae", "73fac25af363b7d8"


def digest_of(*rows: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(part, dtype="<i8").tobytes() for part in rows)).hexdigest()[:16]


def test_splits_are_disjoint_seeded_and_the_same_for_ever() -> None:
    base, learned = protocol.split(50_000, 20_000, 30_000, seed=0)
    assert (len(base), len(learned)) == (20_000, 30_000)
    assert len(set(base.tolist()) | set(learned.tolist())) == 50_000
    assert digest_of(base, learned) == SPLIT_0
    assert digest_of(*protocol.split(50_000, 20_000, 30_000, seed=1)) == SPLIT_1
    assert digest_of(np.array(protocol.class_order(100, 0))) == CLASSES_0


def test_requests_are_disjoint_and_forget_the_same_for_every_number() -> None:
    for requests in (1, 5, 25, 50, 10_000):
        parts = protocol.sample_requests(10_000, requests)
        assert len(parts) == requests
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert np.concatenate(parts).tolist() == list(range(10_000))
    labels = np.arange(300) % 10
    parts = protocol.class_requests(labels, protocol.class_order(10, 3), 4)
    assert [len(set(labels[part])) for part in parts] == [1] * 4
    assert len({int(labels[part][0]) for part in parts}) == 4
    assert all(len(part) == 30 for part in parts)


def test_alternating_learns_all_and_forgets_only_what_is_learned() -> None:
    held, learned = set(range(40)), set(range(40))
    for new, gone in protocol.alternating(100, 40, 8):
        assert not learned & set(new.tolist())
        held |= set(new.tolist())
        learned |= set(new.tolist())
        assert set(gone.tolist()) <= held
        held -= set(gone.tolist())
    assert held == set(range(40, 100))


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot take 40 base and 70 learned of 100"):
        protocol.split(100, 40, 70, 0)
    with pytest.raises(ValueError, match="cannot forget 5 samples in 6 requests"):
        protocol.sample_requests(5, 6)
    with pytest.raises(ValueError, match="cannot forget 10 of 10 classes"):
        protocol.class_requests(np.arange(10), list(range(10)), 10)
    with pytest.raises(ValueError, match="in 50 cycles"):
        protocol.alternating(100, 40, 50)


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smoke", "cpu", "full"])
def test_settings_are_whole(name: str) -> None:
    setting = settings.read(name)
    found = keys(setting)
    assert len({str(key) for key in found}) == len(found)
    assert {key.experiment for key in found} == set(EXPERIMENTS)
    assert {key.method for key in found if key.experiment == "table1"} >= {"retrain", "neverseen", "scrub"}
    timed = [key for key in found if key.timed]
    assert all(key.experiment == "time" or key.method in ("neverseen", "acu_float32", "acu_float64") for key in timed)


def test_lite0_is_full_on_another_backbone() -> None:
    setting, full = settings.read("lite0"), settings.read("full")
    assert setting.analytic.backbone == "efficientnet-lite0"
    assert (setting.sizes, setting.analytic.gamma) == (full.sizes, full.analytic.gamma)
    assert not {key.method for key in keys(setting) if key.experiment == "table1"} & {"finetune", "retrain"}


def test_budgets_is_full_with_ten_epochs_for_each_request() -> None:
    setting, full = settings.read("budgets"), settings.read("full")
    assert (setting.sizes, setting.base, setting.original) == (full.sizes, full.base, full.original)
    found = keys(setting)
    assert {(key.experiment, key.dataset, key.requests, key.seed) for key in found} == {("table1", "cifar100", 5, 0)}
    for key in found:
        own, usual = setting.method_settings(key.method, False), full.method_settings(key.method, False)
        assert (own["epochs"], usual["epochs"]) == (50, 10)
        assert {name for name in own if own[name] != usual.get(name)} <= {"epochs", "max_steps"}


def test_full_is_the_papers_protocol() -> None:
    setting = settings.read("full")
    assert setting.sizes.base == 20_000
    assert (setting.sizes.learned, setting.sizes.forgotten, setting.analytic.codes) == (30_000, 10_000, 8192)
    table = [key for key in keys(setting) if key.experiment == "table1" and key.method == "neverseen"]
    assert {(key.dataset, key.requests, key.seed) for key in table} == {
        (dataset, requests, seed) for dataset in ("cifar10", "cifar100") for requests in (5, 25) for seed in (0, 1, 2)
    }
    assert Key("dynamics", "cifar100", "neverseen", 50, 0, True) in keys(setting)
    assert Key("stress_singles", "cifar10", "neverseen", 10_000, 0, False) in keys(setting)


def test_unknown_keys_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"

    def refused(text: str, message: str) -> None:
        path.write_text(text)
        with pytest.raises(SettingError, match=message):
            keys(settings.read(str(path)))

    refused('based_on = "smoke"\nwidht = 3', "mine.toml has unknown keys: widht")
    refused('based_on = "smoke"\n[sizes]\nbse = 3', "mine.toml: sizes has unknown keys: bse")
    refused('about = "x"\nwidth = 1', "sizes lacks base")
    refused('based_on = "smoke"\n[experiments.table9]\nrequests = [1]\nmethods = []', "unknown experiments: table9")
    refused('based_on = "smoke"\n[experiments.alternating]\nmethods = ["scrub"]', "alternating is for neverseen")
    refused("x = [", "is not TOML")
    with pytest.raises(SettingError, match="there is no setting 'fll'; there are budgets, cpu, full, lite0, smoke"):
        settings.read("fll")


def test_a_setting_may_say_only_what_is_different(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('based_on = "full"\n[sizes]\nbase = 10\n[experiments.table1]\nrequests = [7]')
    setting, full = settings.read(str(path)), settings.read("full")
    assert (setting.name, setting.sizes.base, setting.sizes.learned) == ("mine", 10, 30_000)
    assert setting.experiments["table1"].requests == (7,)
    assert setting.experiments["table2"] == full.experiments["table2"]
