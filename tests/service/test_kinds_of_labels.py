"""A service that learns label sets, numbers or weighted classes: answers of the library, within limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
import numpy as np
import pytest

from neverseen import AnalyticClassifier, ConfigurationError, Encoder, RandomProjection, TwoStreams, store
from neverseen.client import Client, ServiceError
from neverseen.errors import InputError, LimitError
from neverseen.service import Settings
from neverseen.service.core import Service
from neverseen.service.errors import Refusal
from neverseen.service.operations.settings import service_folder
from neverseen.service.predicting import lists_of
from neverseen.service.reception.contents import Bounds, learned
from neverseen.service.writer.room import Room
from neverseen.targets import Classes, LabelSets, Numbers, Targets, WeightedClasses
from tests.samples import clustered
from tests.services import BACKBONE, KEYS, QUICK, Running, running

ROWS, CLUSTERS = clustered("kinds of labels", 40, 6, 3)
ROWS = ROWS.astype(np.float32).astype(np.float64)
BY_HAND = replace(QUICK, min_batch=10_000, max_labels=60)


class Kind(NamedTuple):
    targets: Targets
    labels: list[dict[str, Any]]  # of the three clusters, as fields of a sample
    given: list[Any]  # the same, as the library takes them
    gamma: int | Literal["auto"] = 2**8
    encoder: Encoder = RandomProjection(16, seed=1)
    class_weight: str | None = None


KINDS = {
    "sets": Kind(
        LabelSets(),
        [{"labels": ["red", "round"]}, {"labels": ["round", 7]}, {"labels": []}],
        [["red", "round"], ["round", 7], []],
    ),
    "numbers": Kind(
        Numbers(2, bits=4),
        [{"numbers": [0.5, -2]}, {"numbers": [1.25, 100]}, {"numbers": [0.1, 7]}],
        [[0.5, -2.0], [1.25, 100.0], [0.1, 7.0]],
    ),
    "weighted": Kind(
        WeightedClasses(),
        [{"label": "cat", "weight": 3}, {"label": "dog", "weight": 1}, {"label": 5, "weight": 20}],
        [("cat", 3), ("dog", 1), (5, 20)],
    ),
}

WAYS = {  # of other models
    "two streams": Kind(Classes(), [{"label": each} for each in "abc"], list("abc"), encoder=TwoStreams(8, seed=1)),
    "a chosen gamma": Kind(Classes(), [{"label": each} for each in "abc"], list("abc"), gamma="auto"),
    "balanced": Kind(Classes(), [{"label": each} for each in "abc"], list("abc"), class_weight="balanced"),
    "sets, and a chosen gamma": KINDS["sets"]._replace(gamma="auto"),
}


@pytest.fixture(params=list(KINDS), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def kind(name: str) -> Kind:
    return KINDS[name]


def classifier(kind: Kind) -> AnalyticClassifier:
    grid_bits = 20 if kind.targets.kind == "numbers" else 40
    balanced: dict[str, Any] = {}
    if kind.class_weight is not None:
        balanced = {"class_weight": kind.class_weight, "track_classes": True}
    return AnalyticClassifier(
        kind.encoder, kind.gamma, grid_bits=grid_bits, targets=kind.targets, hardware="numpy", **balanced
    )


def new_store(folder: Path, kind: Kind) -> Path:
    store.create(folder, BACKBONE, classifier(kind), keys=KEYS).close()
    return folder


@pytest.fixture(scope="module")
def service(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(new_store(tmp_path_factory.mktemp(name) / "s", KINDS[name]), BY_HAND) as found:
        yield found


def sent(kind: Kind, rows: Any, ids: bool = True) -> list[dict[str, Any]]:
    return [
        {"features": ROWS[row].tolist()} | kind.labels[CLUSTERS[row]] | ({"id": f"s{row}"} if ids else {})
        for row in rows
    ]


def given(kind: Kind, rows: Any) -> list[Any]:
    return [kind.given[CLUSTERS[row]] for row in rows]


def never(kind: Kind, rows: Any) -> AnalyticClassifier:
    """The model in memory that learned these rows, and nothing else."""
    model = classifier(kind)
    model.backbone = BACKBONE.digest()
    rows = list(rows)
    return model.fit(ROWS[rows].astype(np.float32), given(kind, rows))


def post(service: Running, path: str, body: Any, status: int = 200, **more: Any) -> Any:
    answer = service.client.post(path, json=body, headers=service.admin | more)
    assert answer.status_code == status, answer.text
    return answer.json()


def publish(service: Running) -> str:
    post(service, "/v1/publish?below_min_batch=true", {})
    found: str = service.client.get("/v1/model", headers=service.admin).json()["digest"]
    return found


def clear(service: Running) -> None:
    """Forget whatever is held."""
    while True:
        rows = service.service.writer.ask(lambda opened: [row.id for row in opened.ledger.samples()]).result(30)
        if not rows:
            return
        held = [int(json.loads(each)[1:]) for each in rows]
        kind = next(each for each in KINDS.values() if each.targets == service.service.targets)
        post(service, "/v1/forget", {"samples": sent(kind, held)}, 202)


def test_answers_are_those_of_the_library(service: Running, kind: Kind) -> None:
    clear(service)
    keyed = {"Idempotency-Key": f"learn {kind.targets.kind}".replace(" ", "-")}
    first = post(service, "/v1/samples", {"samples": sent(kind, range(20))}, 201, **keyed)
    again = post(service, "/v1/samples", {"samples": sent(kind, range(20))}, 201, **keyed)
    assert first["receipts"] == again["receipts"]
    model, rows = never(kind, range(20)), ROWS[20:].astype(np.float32)
    assert publish(service) == model.digest()
    found = post(service, "/v1/predict", {"samples": [{"features": row} for row in ROWS[20:].tolist()]})["predictions"]
    field = {"label-sets": "labels", "numbers": "numbers"}.get(kind.targets.kind, "label")
    assert [each[field] for each in found] == kind.targets.said(model.predict(rows))
    assert all(set(each) == {field} for each in found)
    about = service.client.get("/v1/model", headers=service.admin).json()
    assert about["targets"] == kind.targets.configuration()
    assert about["samples"] == 20
    assert about["classes"] == len(about["class_counts"])
    counts: dict[Any, int] = {}
    held: list[Any] = kind.targets.labels(given(kind, range(20)))
    for label in held:
        names = [] if field == "numbers" else [label[0]] if field == "label" else label
        for each in names:
            counts[each] = counts.get(each, 0) + 1
    assert {each["label"]: each["samples"] for each in about["class_counts"]} == counts
    gone, test = range(3), [{**each} for each in sent(kind, range(20, 40), ids=False)]
    for about_them in ({"receipts": first["receipts"][:3]}, {"samples": sent(kind, gone)}):
        asked = post(service, "/v1/what-if", about_them | {"test": test})
        view = model.without(ROWS[:3].astype(np.float32), given(kind, gone))
        truth = given(kind, range(20, 40))
        assert (asked["now"]["samples"], asked["without"]["samples"]) == (20, 17)
        assert asked["without"]["digest"] == never(kind, range(3, 20)).digest()
        assert asked["measure"] == kind.targets.measure
        assert (asked["now"]["score"], asked["without"]["score"]) == (model.score(rows, truth), view.score(rows, truth))
        pairs = zip(kind.targets.said(model.predict(rows)), kind.targets.said(view.predict(rows)), strict=True)
        assert asked["changed"] == sum(one != other for one, other in pairs)
        dry = post(service, "/v1/forget?dry_run=true", about_them)["effect"]
        assert dry["samples"] == 3
        assert sum(each["samples"] for each in dry["classes"]) == sum(
            0 if field == "numbers" else 1 if field == "label" else len(label) for label in given(kind, gone)
        )
    whole = post(service, "/v1/what-if", {"receipts": first["receipts"], "test": test})
    assert (whole["without"]["samples"], whole["without"]["score"], whole["changed"]) == (0, None, 20)
    assert whole["without"]["classes"] == []


@pytest.mark.parametrize("seed", range(2))
def test_a_random_history_leaves_no_trace(service: Running, kind: Kind, seed: int) -> None:
    clear(service)
    assert_no_trace(service, kind, seed)


@pytest.mark.parametrize("way", WAYS)
def test_nor_does_one_of_another_model(way: str, tmp_path: Path) -> None:
    with running(new_store(tmp_path / "s", WAYS[way]), BY_HAND) as service:
        assert_no_trace(service, WAYS[way], 0)


def assert_no_trace(service: Running, kind: Kind, seed: int) -> None:
    """After any learns, forgets and publications, the published digest is that of a model that saw what is held."""
    draw = np.random.default_rng(seed)
    held: dict[int, str] = {}
    for _ in range(8):
        if len(held) < 3 or draw.random() < 0.4:
            new = [int(row) for row in draw.permutation(40)[:6] if row not in held]
            found = post(service, "/v1/samples", {"samples": sent(kind, new)}, 201) if new else {"receipts": []}
            held |= dict(zip(new, found["receipts"], strict=True))
        else:
            gone = [int(row) for row in draw.permutation(list(held))[: draw.integers(1, 4)]]
            if draw.random() < 0.5:
                post(service, "/v1/forget", {"receipts": [held[row] for row in gone]}, 202)
            else:
                post(service, "/v1/forget", {"samples": sent(kind, gone, bool(draw.integers(2)))}, 202)
            held = {row: receipt for row, receipt in held.items() if row not in gone}
        if draw.random() < 0.3:
            publish(service)
    expected = never(kind, sorted(held)).digest()
    assert publish(service) == expected
    checks = post(service, "/v1/verify", {"certificate": 1, "checks": ["signature", "chain"]})["checks"]
    assert all(each["passed"] for each in checks)
    newest = service.client.get("/v1/certificates").json()["certificates"][0]["number"]
    (weights,) = post(service, "/v1/verify", {"certificate": newest, "checks": ["weights"]})["checks"]
    assert weights["passed"], weights


def test_the_client(service: Running, kind: Kind) -> None:
    clear(service)
    token = service.admin["Authorization"].removeprefix("Bearer ")
    rows = list(range(12))
    labels: dict[str, Any] = {"labels": given(kind, rows)}
    test: dict[str, Any] = {"test_labels": given(kind, range(12, 20))}
    if kind.targets.kind == "numbers":
        labels, test = {"numbers": given(kind, rows)}, {"test_numbers": np.array(given(kind, range(12, 20)))}
    elif kind.targets.kind == "label-sets":
        labels = {"labels": [set(label) for label in given(kind, rows)]}
    else:
        pairs = given(kind, rows)
        labels = {"labels": [each[0] for each in pairs], "weights": [each[1] for each in pairs]}
        test = {"test_labels": [each[0] for each in given(kind, range(12, 20))]}
        test["test_weights"] = [each[1] for each in given(kind, range(12, 20))]
    with Client(service.url, token) as client:
        receipts = client.learn(ROWS[rows], ids=[f"s{row}" for row in rows], **labels).receipts
        client.publish(below_min_batch=True)
        model = never(kind, rows)
        answers = client.predict(ROWS[12:20]).labels
        expected = model.predict(ROWS[12:20].astype(np.float32))
        assert [list(each) if isinstance(each, list) else each for each in answers] == list(
            expected.tolist() if isinstance(expected, np.ndarray) else expected
        )
        found = client.what_if(receipts[:2], test=ROWS[12:20], **test)
        assert (found.measure, found.now.accuracy) == (kind.targets.measure, None)
        assert found.now.score == model.score(ROWS[12:20].astype(np.float32), given(kind, range(12, 20)))
        effect = client.forget(samples=ROWS[rows[:4]], dry_run=True, **{each: labels[each][:4] for each in labels})
        assert effect.samples == 4
        client.forget(receipts)
        with pytest.raises(InputError, match="labels"):
            client.learn(ROWS[:1])
        with pytest.raises(InputError, match="not both"):
            client.learn(ROWS[:1], ["x"], numbers=[1])
        for wrong in ({"labels": ["x"]}, {"numbers": [[1.0, 2.0, 3.0]]}, {"labels": [("a", "b")], "weights": [1]}):
            with pytest.raises(ServiceError):
                client.learn(ROWS[:1], **wrong)


WRONG: dict[str, list[Any]] = {
    "sets": [
        {"label": "red"},
        {"labels": "red"},
        {"labels": None},
        {"labels": ["red", None]},
        {"labels": [True]},
        {"labels": [""]},
        {"labels": [1.5]},
        {"labels": ["x" * 151]},
        {"labels": [["red"]]},
        {"labels": ["red"], "weight": 1},
        {"labels": [str(place) for place in range(61)]},
    ],
    "numbers": [
        {"label": "red"},
        {"numbers": 1.5},
        {"numbers": [1.5]},
        {"numbers": [1, 2, 3]},
        {"numbers": [1, "2"]},
        {"numbers": [1, True]},
        {"numbers": [1, None]},
        {"numbers": [1, 2.0**16 + 1]},
        {"numbers": [1, 1e300]},
        {"numbers": list(range(61))},
    ],
    "weighted": [
        {"label": "cat"},
        {"label": "cat", "weight": 0},
        {"label": "cat", "weight": 1001},
        {"label": "cat", "weight": 1.5},
        {"label": "cat", "weight": "3"},
        {"label": ["cat"], "weight": 3},
        {"labels": ["cat"], "weight": 3},
    ],
}


def test_labels_that_cannot_be(service: Running, name: str) -> None:
    """They are refused before anything is computed, in small bodies and in those that a process apart reads."""
    before = service.digest()
    for label in WRONG[name]:
        for padding in ("", " " * 40_000):
            body = json.dumps({"samples": [{"features": ROWS[0].tolist()} | label]}) + padding
            for path in ("/v1/samples", "/v1/forget"):
                headers = service.admin | {"Content-Type": "application/json"}
                answer = service.client.post(path, content=body, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request"), answer.text
    for word in ("NaN", "Infinity", "1e999"):
        body = '{"samples": [{"features": [1,2,3,4,5,6], "numbers": [1, ' + word + "]}]}"
        answer = service.client.post(
            "/v1/samples", content=body, headers=service.admin | {"Content-Type": "application/json"}
        )
        assert answer.status_code in (400, 422), word
    assert service.digest() == before
    test = {"test": [{"features": ROWS[0].tolist()} | WRONG[name][0]], "receipts": ["TlNSMQAB"]}
    assert post(service, "/v1/what-if", test, 422)["error"]["code"] == "invalid_request"


def test_labels_in_forms(kind: Kind) -> None:
    from PIL import Image

    written = BytesIO()
    Image.new("RGB", (4, 4)).save(written, "PNG")
    bounds = Bounds("images", 6, 10, 100, 10**6, 10**6, 10**6, targets=kind.targets.configuration(), max_labels=60)
    for labels, good in (
        (json.dumps([list(each) for each in kind.given]), True),
        (json.dumps(["red", "round", "large"]), False),
        (json.dumps([[None]] * 3), False),
    ):
        files = [("files", ("a.png", written.getvalue(), "image/png"))] * 3
        request = httpx.Request("POST", "http://x", data={"labels": labels}, files=files)
        content, kind_of_body = request.read(), request.headers["content-type"]
        if good:
            found = learned(content, kind_of_body, bounds, lambda _: None).labels
            assert kind.targets.labels(found) == kind.targets.labels(kind.given)
        else:
            with pytest.raises(Refusal):
                learned(content, kind_of_body, bounds, lambda _: None)


def test_the_document_is_about_these_labels(service: Running, kind: Kind) -> None:
    made = service.client.get("/openapi.json").json()
    schemas = made["components"]["schemas"]
    fields = set(kind.labels[0])
    for name in ("LabelledSample", "TestSample"):
        assert fields < set(schemas[name]["properties"])
        assert set(schemas[name]["required"]) == {"features", *fields}
    assert ("label" in schemas["LabelledSample"]["properties"]) == ("label" in fields)
    example = made["paths"]["/v1/samples"]["post"]["requestBody"]["content"]["application/json"]["example"]
    clear(service)
    post(service, "/v1/samples", example, 201)
    given = {"samples": [{name: value for name, value in example["samples"][0].items() if name != "id"}]}
    post(service, "/v1/forget", given, 202)
    assert "score" in schemas["ModelState"]["required"]


def test_scores_of_label_sets() -> None:
    kind = KINDS["sets"]
    model = never(kind, range(20))
    assert model.exact is not None
    from neverseen.model.versions import Version

    version = Version.of(model.exact)
    scores = version.scores(version.configuration.encoder.quantise(ROWS[20:24].astype(np.float32)))
    expected = model.decision_function(ROWS[20:24].astype(np.float32))  # null, 7, red, round
    for row, found in zip(expected, lists_of(version, scores, Settings(output="scores")), strict=True):
        assert found["scores"] == dict(zip(["7", "red", "round"], row[1:].tolist(), strict=True))
        assert found["threshold"] == row[0] / 2
        over = {name for name, score in found["scores"].items() if score >= found["threshold"]}
        assert set(map(str, found["labels"])) == over
    for found in lists_of(version, scores, Settings(output="top-k", top_k=2)):
        assert len(found["top"]) == 2
        assert found["top"][0]["score"] >= found["top"][1]["score"]


def test_refused_at_the_start(tmp_path: Path, kind: Kind) -> None:
    place = new_store(tmp_path / "s", kind)
    with pytest.raises(ConfigurationError, match="effect = 'immediate' needs classes without weights"):
        Service(place, Settings(effect="immediate"), BACKBONE, KEYS).start()
    if kind.targets.kind == "numbers":
        with pytest.raises(ConfigurationError, match="numbers are answered as they are"):
            Service(place, Settings(output="scores"), BACKBONE, KEYS).start()
    if kind.targets.kind != "weighted-classes":
        np.savez(service_folder(place) / "probe.npz", features=ROWS[:2], labels=np.array(["x", "y"]))
        with pytest.raises(ConfigurationError, match=r"probe\.npz measures the share of correct classes"):
            Service(place, QUICK, BACKBONE, KEYS).start()
    store.open(place, backbone=BACKBONE, keys=KEYS).close()


def test_numbers_that_could_not_be_published(tmp_path: Path) -> None:
    """Few samples, chosen badly, can have weights beyond 64 bits: then no version could be shown any more."""
    worst = np.tile(ROWS[:1], (4, 1)) / 10
    for grid_bits, fits in ((40, False), (22, True)):
        settings = AnalyticClassifier(RandomProjection(16, scale=1.0), 2**8, grid_bits=grid_bits, targets=Numbers())
        store.create(tmp_path / str(grid_bits), BACKBONE, settings, keys=KEYS).close()
        service = Service(tmp_path / str(grid_bits), QUICK, BACKBONE, KEYS)
        if not fits:
            with pytest.raises(ConfigurationError, match="grid_bits of at most 22"):
                service.start()
        else:
            service.start()
            service.stop()
        with store.open(tmp_path / str(grid_bits), backbone=BACKBONE, keys=KEYS) as opened:
            opened.learn(worst, [4096.0] * 4)
            opened.publish()
            with nullcontext() if fits else pytest.raises(LimitError, match="too large for 64-bit scores"):
                opened.predict(worst)  # as the service does before it shows a version


def test_too_many_labels(tmp_path: Path) -> None:
    """Labels of sets are limited like classes, in each request and in the model."""
    kind = KINDS["sets"]
    with running(new_store(tmp_path / "s", kind), replace(BY_HAND, max_classes=6, max_new_classes=4)) as service:
        body = [
            {"features": ROWS[0].tolist(), "labels": [f"n{place}" for place in range(start, start + 3)]}
            for start in (0, 3, 6)
        ]
        assert post(service, "/v1/samples", {"samples": body[:2]}, 422)["error"]["code"] == "too_many_classes"
        post(service, "/v1/samples", {"samples": body[:1]}, 201)  # with null, four columns
        assert post(service, "/v1/samples", {"samples": body[1:2]}, 422)["error"]["code"] == "too_many_classes"


def test_numbers_that_do_not_fit_into_memory() -> None:
    model = never(KINDS["numbers"], range(3))
    assert model.exact is not None
    Room(QUICK, 2**40).require_columns(model.exact.statistics, 4096)
    with pytest.raises(ConfigurationError, match="4096 numbers take"):
        Room(QUICK, 2**28).require_columns(model.exact.statistics, 4096)
