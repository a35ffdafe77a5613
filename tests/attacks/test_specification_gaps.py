"""Promise: whoever follows the specification gets the same bits, whatever the numbers, labels and seeds are.

The attacks use what a second implementation would meet first: numbers that float32 cannot hold, labels that one batch
accepts and another does not, and integers that a JSON reader made of floats cannot hold.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import (
    AnalyticClassifier,
    ForgettingModel,
    GaussianKernel,
    Identity,
    InputError,
    Key,
    LabelError,
    RandomProjection,
)
from neverseen.backbones import Precomputed
from neverseen.client.samples import receipt_bytes
from neverseen.engine.statistics import Statistics
from neverseen.hardware import choose
from neverseen.holdings import LEARN, Change, MemoryHoldings
from neverseen.labels import LabelIndex, canonical_json, require_classes
from neverseen.model.configuration import Configuration
from neverseen.model.exact import ExactModel
from neverseen.service.reception.contents import from_base64
from neverseen.sources.receipts import read_receipts
from neverseen.store import create
from neverseen.targets import LabelSets, Numbers, Targets, WeightedClasses
from tests import oracle
from tests.chromium import browser

# -- features that float32 cannot hold -------------------------------------------------------------------

TINY = [1e-310, 2e-310]
ROWS = [
    TINY,
    [1e-40, 3e-45],  # subnormal in float32
    [1 + 2**-24, 1.0],  # a tie of float32, to even: 1
    [1 + 3 * 2**-24, -1.0],  # a tie, to even: 1 + 2**-22
    [2.0**-150, 2.0**-149],  # half of the least float32: to even, 0
    [3.4028235677973362e38, 1.0],  # just below where float32 becomes infinite
]


def test_a_row_below_the_range_of_float32() -> None:
    assert oracle.quantise(TINY) == [10, 20]
    assert oracle.quantise(oracle.float32_row(TINY)) == [0, 0]
    assert Precomputed(2).extract(np.array([TINY])).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("row", ROWS)
def test_a_model_on_features_of_a_backbone_rounds_them_to_float32_first(row: list[float]) -> None:
    samples = [np.array(row), np.array([3.0, -4.0])]
    model = ForgettingModel(Precomputed(2), AnalyticClassifier(Identity(), gamma=1))
    model.learn(samples, ["a", "b"], ids=["x", "y"])
    quantised = [oracle.quantise(oracle.float32_row(sample.tolist())) for sample in samples]
    held = model.classifier.__dict__["_model"].statistics
    assert held.digest() == Statistics.of(np.array(quantised, np.int8), ["a", "b"]).digest()


@pytest.mark.parametrize("row", ROWS)
def test_a_classifier_takes_rows_as_they_are(row: list[float]) -> None:
    model = AnalyticClassifier(Identity(), gamma=1, hardware="numpy").fit(np.array([row, [3.0, -4.0]]), ["a", "b"])
    expected = [oracle.quantise(row), oracle.quantise([3.0, -4.0])]
    held: Any = model.__dict__["_model"]
    assert held.statistics.digest() == Statistics.of(np.array(expected, np.int8), ["a", "b"]).digest()


def test_integers_are_rounded_once() -> None:
    odd = 2**60 + 2**36 + 1  # by way of float64 it would be a tie of float32, and go the other way
    assert Precomputed(1).extract(np.array([[odd]])).tolist() == [[float(2**60 + 2**37)]]
    assert oracle.float32_row([odd]) == [float(2**60 + 2**37)]


@pytest.mark.parametrize("value", [3.5e38, np.inf, np.nan, 1e300])
def test_what_is_beyond_float32_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="NaN, infinite or beyond float32"):
        Precomputed(2).extract(np.array([[value, 1.0]]))


# -- float labels -----------------------------------------------------------------------------------------

BATCHES: list[Any] = [
    [0.5, 1.5],
    [0.5, "a"],
    ["a", 0.5],
    [None, 0.5],
    [np.float32(0.5), "a"],
    [np.float16(0.5), 1],
    (0.5, 2),
    np.array([0.5, 1.5]),
    np.array([0.5, "a"], dtype=object),
    [1e300 + 0.5, 2.0**-1074],
]


def learners() -> dict[str, Callable[[Path, Any], Any]]:
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])

    def classifier(_: Path, labels: Any) -> Any:
        return AnalyticClassifier(Identity(), gamma=1, hardware="numpy").partial_fit(rows, labels)

    def fitted(_: Path, labels: Any) -> Any:
        return AnalyticClassifier(Identity(), gamma=1, hardware="numpy").fit(rows, labels)

    def forgetting(_: Path, labels: Any) -> Any:
        model = ForgettingModel(Precomputed(2), AnalyticClassifier(Identity(), gamma=1))
        return model.learn(rows, labels, ids=["x", "y"])

    def store(folder: Path, labels: Any) -> Any:
        with create(folder / "store", Precomputed(2), AnalyticClassifier(Identity(), gamma=1)) as made:
            return made.learn(rows, labels, ids=["x", "y"])

    return {"partial_fit": classifier, "fit": fitted, "ForgettingModel": forgetting, "store": store}


@pytest.mark.parametrize("learner", learners())
def test_a_label_with_a_fraction_is_refused_whatever_stands_beside_it(learner: str, tmp_path: Path) -> None:
    for place, labels in enumerate(BATCHES):
        (tmp_path / str(place)).mkdir()
        with pytest.raises(LabelError, match="Unknown label type: .* is a number with a fraction"):
            learners()[learner](tmp_path / str(place), labels)


@pytest.mark.parametrize("learner", learners())
@pytest.mark.parametrize("labels", [[1.0, 2.0], [1.0, "a"], [("a", 0.5), "a"], [frozenset({0.5}), 1], [-0.0, None]])
def test_other_labels_with_floats_are_learned_whatever_stands_beside_them(
    learner: str, labels: list[Any], tmp_path: Path
) -> None:
    learners()[learner](tmp_path, labels)


@pytest.mark.parametrize("labels", [[np.nan, 1.0], [np.nan, "a"], np.array([np.inf, 1.0]), ["a", -np.inf]])
def test_labels_that_are_not_finite_are_refused_with_one_error(labels: Any) -> None:
    with pytest.raises(LabelError, match="labels must be finite"):
        learners()["partial_fit"](Path(), labels)


def test_a_class_with_a_fraction_that_is_held_is_read_and_forgotten(tmp_path: Path) -> None:
    """Such classes could be learned beside labels of other kinds; their files stay good."""
    key = Key(bytes(32))
    exact = ExactModel.in_memory(Configuration(Identity(), 1, 40), 2, key, choose("numpy"))
    quantised = np.array([[14, -18], [16, 16]], np.int8)
    exact.apply(Change(LEARN, quantised, LabelIndex([0.5, "a"])))
    held = AnalyticClassifier(Identity(), gamma=1, key=key, hardware="numpy")
    held._model, held.n_features_in_ = exact, 2
    held.save(tmp_path / "model")
    loaded = AnalyticClassifier.load(tmp_path / "model", hardware="numpy")
    assert loaded.digest() == exact.digest()
    assert loaded.classes_.tolist() == [0.5, "a"]
    loaded.forget([[3.0, -4.0]], [0.5])
    assert loaded.classes_.tolist() == ["a"]
    with pytest.raises(LabelError):
        require_classes([0.5])


# -- seeds beyond what JavaScript's numbers hold -------------------------------------------------------------

VECTORS = json.loads((Path(__file__).parents[2] / "docs" / "vectors" / "store.json").read_text())
DESCRIPTION = """(file) => {
  const bytes = Uint8Array.from(file.match(/../g), (pair) => parseInt(pair, 16));
  const length = Number(new DataView(bytes.buffer).getBigUint64(0, true));
  return JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length))).__metadata__.neverseen;
}"""
BY_TEXT = """(text) => {
  const start = text.indexOf('"configuration":') + '"configuration":'.length;
  let depth = 0;
  for (let place = start; ; place += 1) {
    depth += (text[place] === "{") - (text[place] === "}");
    if (depth === 0) return text.slice(start, place + 1);
  }
}"""
BY_SOURCE = """(text) => {
  const keep = (key, value, { source }) =>
    typeof value === "number" && !Number.isSafeInteger(value) ? BigInt(source) : value;
  const raw = (key, value) => (typeof value === "bigint" ? JSON.rawJSON(String(value)) : value);
  return JSON.stringify(JSON.parse(text, keep).configuration, raw);
}"""
NAIVE = "(text) => JSON.stringify(JSON.parse(text).configuration)"


def test_a_browser_reads_a_seed_above_what_its_numbers_hold() -> None:
    """From a version's file, as published, to the digest that the certificate states."""
    with browser() as chromium:
        page = chromium.new_page()
        description = page.evaluate(DESCRIPTION, VECTORS["states"][1]["version"])
        by_text, by_source, naive = (page.evaluate(way, description) for way in (BY_TEXT, BY_SOURCE, NAIVE))
    assert by_text == by_source == VECTORS["configuration_text"]
    stated = json.loads(VECTORS["states"][1]["certificate"])["configuration"]
    assert hashlib.sha256(by_text.encode()).hexdigest() == stated
    assert f'"seed":{2**64 - 1}' in by_text
    assert naive != by_text  # what the specification warns of


def test_the_text_of_a_configuration_stands_in_every_file_that_has_one(tmp_path: Path) -> None:
    """Whatever the settings: so its digest can be taken without reading a number."""
    for encoder in (Identity(), RandomProjection(8, seed=2**64 - 1), GaussianKernel(np.eye(2), 0.3)):
        with create(tmp_path / str(encoder), Precomputed(2), AnalyticClassifier(encoder, gamma=2**40)) as made:
            made.learn(np.eye(2), [2**80, "}"], ids=["a", "{"])
            made.publish()
            settings = canonical_json(made.description.configuration.as_json())
        assert settings.count("{") == settings.count("}") == 2
        for path in (tmp_path / str(encoder) / "store.json", *(tmp_path / str(encoder) / "versions").iterdir()):
            content = path.read_bytes()
            if path.suffix == ".safetensors":
                length = int.from_bytes(content[:8], "little")
                content = json.loads(content[8 : 8 + length])["__metadata__"]["neverseen"].encode()
            assert b'"configuration":' + settings.encode() + b"," in content


# -- receipts as text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alphabet", ["url", "standard"])
@pytest.mark.parametrize("padding", [True, False])
def test_a_receipt_is_read_in_every_spelling_of_base64(alphabet: str, padding: bool, tmp_path: Path) -> None:
    for sample in VECTORS["samples"]:
        token = bytes.fromhex(sample["receipt"])
        word = (base64.urlsafe_b64encode if alphabet == "url" else base64.b64encode)(token).decode()
        word = word if padding else word.rstrip("=")
        place = tmp_path / "receipts.jsonl"
        place.write_text("\n" + json.dumps({"receipt": word, "anything": [1]}) + "\n\n")
        assert read_receipts([place]) == [token]
        assert receipt_bytes(word) == token
        assert from_base64(word, "receipt", 0) == token


# -- labels that are not classes ---------------------------------------------------------------------------

MIXED = [[3.0, -4.0, 1.0], [1.0, 1.0, -2.0], [0.5, 2.0, 0.0], [1.0, 1.0, -2.0], [-7.0, 0.25, 1.0]]
OTHERS: list[tuple[Targets, list[Any], list[Any], list[dict[Any, int]], int]] = [
    (
        LabelSets(),
        [["red", 2], ["red"], [], ["red"], [2, True]],
        [frozenset({"red", 2}), frozenset({"red"}), frozenset(), frozenset({"red"}), frozenset({2, True})],
        [{None: 1, "red": 1, 2: 1}, {None: 1, "red": 1}, {None: 1}, {None: 1, "red": 1}, {None: 1, 2: 1, True: 1}],
        5,
    ),
    (
        Numbers(outputs=2, bits=1),
        [[0.25, 3], [0.75, -1], [0, 0], [0.75, -1], [-8.0, 1.5]],
        [(0, 6), (2, -2), (0, 0), (2, -2), (-16, 3)],
        [{0: 0, 1: 6}, {0: 2, 1: -2}, {0: 0, 1: 0}, {0: 2, 1: -2}, {0: -16, 1: 3}],
        5,
    ),
    (
        WeightedClasses(),
        [("cat", 3), ("dog", 1), ("cat", 1000), ("dog", 1), (7, 2)],
        [("cat", 3), ("dog", 1), ("cat", 1000), ("dog", 1), (7, 2)],
        [{"cat": 3}, {"dog": 1}, {"cat": 1000}, {"dog": 1}, {7: 2}],
        5,
    ),
]


@pytest.mark.parametrize(
    ("targets", "given", "labels", "rows", "count"), OTHERS, ids=lambda each: getattr(each, "kind", "")
)
def test_labels_that_are_not_classes(
    targets: Targets, given: list[Any], labels: list[Any], rows: list[dict[Any, int]], count: int
) -> None:
    """Section 3.1, from the text alone: sums, weights, digests and member digests."""
    model = AnalyticClassifier(Identity(), 8, key=Key(bytes(32)), targets=targets).fit(MIXED, given)
    codes = [oracle.quantise(row) for row in MIXED]
    names = oracle.class_order([name for row in rows for name in row])
    weights = [next(iter(row.values())) if targets.kind == "weighted-classes" else 1 for row in rows]
    told = [{oracle.label_text(name): value for name, value in row.items()} for row in rows]
    y = [[row.get(oracle.label_text(name), 0) for name in names] for row in told]
    gram = [[sum(w * c[i] * c[j] for w, c in zip(weights, codes, strict=True)) for j in range(3)] for i in range(3)]
    cross = [[sum(c[i] * row[k] for c, row in zip(codes, y, strict=True)) for k in range(len(names))] for i in range(3)]
    counts = [sum(oracle.label_text(name) in row for row in told) for name in names]
    settings = oracle.configuration(oracle.identity_configuration(), 8, 40) | {"targets": targets.configuration()}
    digest = hashlib.sha256(oracle.canonical_json(settings).encode()).digest()
    n = oracle.weights(gram, cross, 8, 40)
    exact = model.exact
    assert exact is not None
    assert exact.statistics.digest() == oracle.statistics_digest(oracle.Statistics(gram, cross, counts, names)).hex()
    assert model.digest() == oracle.model_digest(digest, 3, names, n).hex()
    assert exact.statistics.total == count
    members = sorted(
        oracle.member_digest(digest, bytes(32), label, code) for label, code in zip(labels, codes, strict=True)
    )
    assert isinstance(exact.holdings, MemoryHoldings)
    assert exact.holdings.members_array().tobytes() == b"".join(members)
    scores = oracle.scores(codes[0], n)
    found: Any = model.predict(MIXED[:1])[0]
    if targets.kind == "label-sets":
        assert found == frozenset(name for name, s in zip(names[1:], scores[1:], strict=True) if 2 * s >= scores[0])
    elif targets.kind == "numbers":
        assert found.tolist() == [s / 2**41 for s in scores]
    else:
        assert found == names[scores.index(max(scores))]


def test_balanced_classes() -> None:
    """Section 5.1, from the text alone."""
    model = AnalyticClassifier(Identity(), 8, track_classes=True, class_weight="balanced")
    model.fit(MIXED, ["cat", "dog", "cat", "dog", "cat"])
    codes, settings = (
        [oracle.quantise(row) for row in MIXED],
        oracle.configuration(oracle.identity_configuration(), 8, 40),
    )
    parts = [(codes[::2], 2**20 // 3), (codes[1::2], 2**20 // 2)]
    gram = [[sum(w * c[i] * c[j] for part, w in parts for c in part) for j in range(3)] for i in range(3)]
    cross = [[w * sum(c[i] for c in part) for part, w in parts] for i in range(3)]
    n = oracle.weights(gram, cross, 8 * (3 * (2**20 // 3) + 2**20) // 5, 40)
    digest = hashlib.sha256(oracle.canonical_json(settings | {"class_weight": "balanced"}).encode()).digest()
    assert model.digest() == oracle.model_digest(digest, 3, ["cat", "dog"], n).hex()
