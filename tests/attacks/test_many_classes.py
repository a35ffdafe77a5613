"""Promise: what is learned can be published: a request after which that could not be done is refused when it comes."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks import siege_service
from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.backbones.reading import Prepared
from neverseen.engine.statistics import Statistics
from neverseen.holdings import LEARN
from neverseen.ledger import Ledger
from neverseen.service import Settings
from neverseen.service.core import Service
from neverseen.service.errors import Refusal
from neverseen.service.writer.applying import apply
from neverseen.service.writer.jobs import Job, LearnSamples
from neverseen.service.writer.room import PIXEL, Room, fitted, memory_for_store, memory_left, needed, per_class
from neverseen.store.sums import fold
from tests.services import (
    BACKBONE,
    KEYS,
    QUICK,
    ROWS,
    SIZE,
    Process,
    Running,
    bearer,
    new_store,
    running,
    samples,
    token,
)
from tests.waiting import eventually

GIB = 2**30


def classes(start: int, count: int) -> list[dict[str, Any]]:
    """Samples of as many classes."""
    features = ROWS[0].tolist()
    return [
        {"features": features, "label": f"class {number}", "id": f"c{number}"} for number in range(start, start + count)
    ]


def learn(service: Running, start: int, count: int, headers: dict[str, str] | None = None) -> httpx.Response:
    given = {"samples": classes(start, count)}
    return service.client.post("/v1/samples", json=given, headers=headers or service.admin)


def refused(answer: httpx.Response, status: int, code: str, setting: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert setting in answer.json()["error"]["message"]


# -- counts ------------------------------------------------------------------------------------------


def test_more_classes_than_allowed(tmp_path: Path) -> None:
    few = Settings(max_classes=10, max_new_classes=6, quiet=0, max_delay=0)
    with running(tmp_path / "s", few) as service:
        refused(learn(service, 0, 7), 422, "too_many_classes", "max_new_classes")
        first = learn(service, 0, 6)
        assert first.status_code == 201
        refused(learn(service, 6, 5), 422, "too_many_classes", "max_classes")
        assert learn(service, 6, 4).status_code == 201
        before = service.digest()
        refused(learn(service, 10, 1), 422, "too_many_classes", "max_classes")
        assert service.digest() == before
        again = [sample | {"id": f"{sample['id']} again"} for sample in classes(0, 10)]
        answer = service.client.post("/v1/samples", json={"samples": again}, headers=service.admin)
        assert answer.status_code == 201  # of known classes more can always be learned
        assert service.forget(first.json()["receipts"][:1]).status_code == 202
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200


def test_one_key_that_brings_class_after_class(tmp_path: Path) -> None:
    slow = Settings(class_burst=10, classes_per_second=1e-6, quiet=0, max_delay=0)  # never refills
    with running(tmp_path / "s", slow) as service:
        eve, ada = (bearer(token(service.folder, name, "learn")) for name in ("eve", "ada"))
        assert learn(service, 0, 8, eve).status_code == 201
        refused(learn(service, 8, 8, eve), 429, "rate_limited", "classes_per_second")
        assert learn(service, 8, 8, ada).status_code == 201


def test_requests_that_wait_together_are_counted_together(tmp_path: Path) -> None:
    opened = store.open(new_store(tmp_path / "s"), backbone=BACKBONE, keys=KEYS, hardware="numpy")
    room = Room(Settings(max_classes=5), 64 * GIB)
    with opened:
        jobs = []
        for number in range(4):  # each fits by itself
            labels = [f"{number} {place}" for place in range(3)]
            prepared: Prepared = opened.prepare(ROWS[number * 3 : number * 3 + 3])
            payload = LearnSamples(prepared, labels, [None] * 3, None)
            jobs.append(Job(LEARN, f"req_{number:024d}", "key", None, 3, payload))
        outcomes = [outcome for _, outcome in apply(opened, jobs, room=room)]
        codes = [outcome.code if isinstance(outcome, Refusal) else None for outcome in outcomes]
        assert codes == [None, *["too_many_classes"] * 3]
        assert len(opened.statistics().counts) == 3


STILL: dict[str, Any] = {"quiet": 10**6, "max_delay": 10**6, "seal_after": 10**6}


def told(service: Running, labels: list[str], headers: dict[str, str]) -> tuple[int, str]:
    """What somebody is told who sends samples with these labels. What is learned is forgotten again."""
    given = [{"features": ROWS[0].tolist(), "label": label} for label in labels]
    answer = service.client.post("/v1/samples", json={"samples": given}, headers=headers)
    if answer.status_code == 201:
        assert service.forget(answer.json()["receipts"]).status_code == 202
        return 201, ""
    return answer.status_code, answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"max_new_classes": 8}, 1000),  # the guess does not matter
        ({"max_new_classes": 9}, 1000),  # the guess may be one too many
        ({"max_classes": 11}, 1000),
        ({"max_classes": 12}, 1000),
        ({}, 9.5),
    ],
)
def test_refusals_do_not_tell_which_classes_others_hold(tmp_path: Path, limits: dict[str, Any], left: float) -> None:
    slow = Settings(**STILL, **limits, class_burst=1000, classes_per_second=1e-6)
    with running(tmp_path / "s", slow) as service:
        receipts = learn(service, 0, 2).json()["receipts"]
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        assert service.forget(receipts[1:]).status_code == 202
        assert learn(service, 2, 1).status_code == 201
        answers = {}
        for guess in ("class never", "class 2", "class 1", "class 0"):
            eve = bearer(token(service.folder, guess, "learn", owner="eve"))
            service.service.callers._classes.take(guess, 1000 - left)
            answers[guess] = told(service, [guess, *(f"{guess} {number}" for number in range(9))], eve)
        assert answers["class 2"] == answers["class never"]  # learned since the publication, by somebody, or not
        assert answers["class 1"] == answers["class 0"]  # forgotten since the publication, or not


def test_a_full_model_does_not_tell_which_classes_others_hold(tmp_path: Path) -> None:
    with running(tmp_path / "s", Settings(**STILL, max_classes=4)) as service:
        eve = bearer(token(service.folder, "eve", "learn", owner="eve"))
        assert learn(service, 0, 2).status_code == 201
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        assert learn(service, 2, 1).status_code == 201
        own = [{"features": ROWS[1].tolist(), "label": "eve's"}]
        for _ in range(2):  # what she has brought herself is known
            assert service.client.post("/v1/samples", json={"samples": own}, headers=eve).status_code == 201
        held, never = (told(service, [guess], eve) for guess in ("class 2", "class never"))
        assert held == never
        assert held[0] == 422
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        assert learn(service, 2, 1, eve).status_code == 201  # now everybody may know


# -- memory ------------------------------------------------------------------------------------------


def test_classes_that_memory_has_no_room_for(tmp_path: Path) -> None:
    narrow = needed(24, 5, tracked=True)
    with running(tmp_path / "s", QUICK) as service:
        service.service.room._memory = narrow
        first = learn(service, 0, 5)
        assert first.status_code == 201
        refused(learn(service, 5, 1), 507, "no_room", "memory")
        assert service.forget(first.json()["receipts"][:2]).status_code == 202  # there is always room to forget
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200
        assert learn(service, 5, 2).status_code == 201
        service.client.post("/v1/publish", headers=service.admin)
        assert service.client.get("/readyz").status_code == 200


def test_what_the_readme_does_has_room() -> None:
    for size, count in ((2048, 1000), (4096, 1000), (8192, 100), (8192, 1000)):
        assert needed(size, count, tracked=False) < 8 * GIB
    for size, count in ((512, 1000), (1024, 1000), (2048, 100)):
        assert needed(size, count, tracked=True) < 8 * GIB
    statistics = Statistics(64, track_classes=True)
    room = Room(Settings(), needed(64, 7, tracked=True))
    assert room.most_classes(statistics) == 7
    assert Room(Settings(), 0).most_classes(statistics) == 0
    assert per_class(64, tracked=True) > per_class(64, tracked=False) > 0


def test_gamma_that_the_sums_choose_takes_more_room(tmp_path: Path) -> None:
    """With 1,024 codes and 600 classes it took 1.4 GB, and the service counted with 0.6 GB."""
    assert needed(1024, 600, tracked=False, chosen=True) > 1_400_000_000
    assert needed(2048, 10, tracked=False, chosen=True) > 900_000_000
    recipe = {"kind": "features", "n_features": SIZE, "name": "precomputed"}
    model = AnalyticClassifier(RandomProjection(24, seed=1), "auto", hardware="numpy")
    store.create(tmp_path / "s", BACKBONE, model, keys=KEYS, recipe=recipe).close()
    with running(tmp_path / "s", QUICK) as service:
        service.service.room._memory = needed(24, 5, tracked=False)
        refused(learn(service, 0, 5), 507, "no_room", "memory")
        service.service.room._memory = needed(24, 5, tracked=False, chosen=True)
        assert learn(service, 0, 5).status_code == 201


def test_memory_is_what_the_smallest_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    free = memory_left(0)
    assert 0 < free < memory_left(2**50) + 1
    assert memory_left(1) == 0
    limit = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setattr("resource.getrlimit", lambda kind: (2**40, 2**40) if kind == resource.RLIMIT_AS else limit)
    assert memory_left(2**50) < 2**40
    monkeypatch.setattr("neverseen.service.writer.room._container_limits", lambda: [2**31])
    assert memory_left(2**50) < 2**31


@pytest.mark.parametrize("memory", [9 * GIB // 8, 2 * GIB, 3 * GIB, 8 * GIB, 64 * GIB])
def test_memory_is_not_given_away_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    monkeypatch.setattr("neverseen.service.writer.room._container_limits", list)
    monkeypatch.setattr("neverseen.service.writer.room._used", lambda: {"VmRSS": 2**27})
    with running(tmp_path / "s", Settings(memory=memory)) as service:
        settings, left = service.service.settings, service.service.room._memory
    apart = (settings.reading_processes + 1) * settings.reading_memory
    assert 2**27 + left + 2 * settings.max_waiting_bytes + apart <= memory  # bodies, and what is made of them
    assert left >= needed(2048, 10, tracked=False)  # the default still works
    assert settings.max_waiting_bytes >= 4 * settings.max_body >= 4 * settings.max_json


@pytest.mark.parametrize("megabytes", [300, 600, 1200, 8000])
def test_a_small_service_takes_small_requests(monkeypatch: pytest.MonkeyPatch, megabytes: int) -> None:
    monkeypatch.setattr("neverseen.service.writer.room.memory_left", lambda setting, apart=0: megabytes * 10**6 - apart)
    small = fitted(Settings())
    apart = (small.reading_processes + 1) * small.reading_memory
    pixels = PIXEL * small.max_waiting_pixels
    assert memory_for_store(small) + 2 * small.max_waiting_bytes + apart <= megabytes * 10**6
    assert apart + 2 * small.max_waiting_bytes + pixels <= megabytes * 10**6
    assert min(small.max_body, small.max_json) >= 2**22  # still a photograph


def test_a_small_service_still_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest memory that the documentation names: only stores of images leave room for pixels."""
    monkeypatch.setattr("neverseen.service.writer.room._container_limits", list)
    monkeypatch.setattr("neverseen.service.writer.room._used", lambda: {"VmRSS": 2**27})
    with running(tmp_path / "s", Settings(memory=700 * 2**20, quiet=0, max_delay=0)) as service:
        answer = learn(service, 0, 10)
        assert answer.status_code == 201, answer.text
        assert service.client.post("/v1/publish", headers=service.admin).status_code == 200


@pytest.mark.parametrize(("memory", "warned"), [(400 * 2**20, True), (2 * GIB, False)])
def test_a_service_without_room_for_a_class_says_so_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, memory: int, warned: bool
) -> None:
    monkeypatch.setattr("neverseen.service.writer.room._container_limits", list)
    monkeypatch.setattr("neverseen.service.writer.room._used", lambda: {"VmRSS": 2**27})
    with running(tmp_path / "s", Settings(memory=memory)) as service:
        assert learn(service, 0, 1).status_code == (507 if warned else 201)
    assert ("new classes will be refused" in caplog.text) is warned


def test_pixels_take_room_only_where_there_are_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neverseen.service.core.memory_for_store", lambda settings: 4 * GIB)
    with running(tmp_path / "s") as service:
        assert service.service.room._memory == 4 * GIB
    siege_service.create(tmp_path / "i")
    pictures = Service(tmp_path / "i", QUICK, siege_service.Thumbnails())
    pictures.start()
    pictures.stop()
    assert pictures.room._memory == 4 * GIB - PIXEL * pictures.settings.max_waiting_pixels


WIDE = """
import neverseen.service.writer.applying
from neverseen.store.sums import fold
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
"""


def test_a_flood_of_tracked_classes_under_a_memory_limit(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    wide = AnalyticClassifier(RandomProjection(768, seed=1), 2**9, track_classes=True, hardware="numpy")
    recipe = {"kind": "features", "n_features": BACKBONE.n_features, "name": "precomputed"}
    store.create(folder, BACKBONE, wide, keys=KEYS, recipe=recipe).close()
    headers = bearer(token(folder, "admin", "admin"))
    settings = "Settings(max_delay=0, quiet=0, max_new_classes=3000, class_burst=1e6)"
    process = Process(folder, settings, first=WIDE)
    with httpx.Client(base_url=process.url, timeout=300, headers=headers) as client:
        good = client.post("/v1/samples", json={"samples": samples(range(10))})
        assert good.status_code == 201, good.text
        flood = client.post("/v1/samples", json={"samples": classes(0, 3000)})
        refused(flood, 507, "no_room", "memory")
        some = client.post("/v1/samples", json={"samples": classes(0, 30)})
        assert some.status_code == 201, some.text
        assert client.post("/v1/forget", json={"receipts": good.json()["receipts"][:3]}).status_code == 202
        assert client.post("/v1/seal").status_code == 200
        assert client.get("/readyz").status_code == 200
    assert process.stop() in (0, -15)
    process = Process(folder, settings, first=WIDE)
    with httpx.Client(base_url=process.url, timeout=300, headers=headers) as client:
        assert client.post("/v1/samples", json={"samples": samples(range(10, 20))}).status_code == 201
        assert client.post("/v1/publish").status_code == 200
        assert client.get("/readyz").status_code == 200
    assert process.stop() in (0, -15)


def test_tracked_classes_hold_no_file_open(tmp_path: Path) -> None:
    with store.open(new_store(tmp_path / "s"), backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        opened.learn(ROWS[:100], [f"class {number}" for number in range(100)])
        before = len(list(Path("/proc/self/fd").iterdir()))
        opened.seal()
        assert len(list(Path("/proc/self/fd").iterdir())) < before + 20
        opened.forget_class("class 7")
        assert opened.seal().after.samples == 99


def test_a_fold_that_fails_keeps_the_sums_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_store(tmp_path / "s")
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        opened.learn(ROWS[:20], [f"class {number % 5}" for number in range(20)])
        with monkeypatch.context() as patched:
            patched.setattr(Ledger, "writing", _full)
            with pytest.raises(OSError, match="No space"):
                fold(opened._open_parts(), opened._exact())
        opened.publish()  # removes files that the ledger does not name
        opened.forget_class("class 3")
        opened.seal()
        digest = opened.digest()
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        assert opened.digest() == digest


def _full(ledger: Ledger) -> Any:
    raise OSError(28, "No space left on device")


# -- what predictions of many classes take -----------------------------------------------------------


def test_scores_of_many_classes_are_limited(tmp_path: Path) -> None:
    chatty = Settings(output="scores", max_scores=50, quiet=0, max_delay=0)
    with running(tmp_path / "s", chatty) as service:
        service.wait(learn(service, 0, 10).json()["request"]["id"])
        for count, status in ((5, 200), (6, 422)):
            asked = {"samples": [{"features": ROWS[row].tolist()} for row in range(count)]}
            answer = service.client.post("/v1/predict", json=asked, headers=service.admin)
            assert answer.status_code == status, answer.text
        assert "max_scores" in answer.json()["error"]["message"]


# -- promises that are being missed ------------------------------------------------------------------


def reasons(service: Running) -> str:
    answer = service.client.get("/readyz")
    return "" if answer.status_code == 200 else str(answer.json()["error"]["message"])


def is_well(service: Running, now: list[float]) -> bool:
    """Let time pass, so that what failed is tried again, and say whether all is well."""
    now[0] += 10
    service.service.writer.poke()
    return reasons(service) == ""


def test_readyz_says_that_publications_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    with running(tmp_path / "s", Settings(quiet=0, max_delay=30), clock=lambda: now[0]) as service:
        with monkeypatch.context() as patched:
            patched.setattr("neverseen.model.versions.Version.of", _no_memory)
            service.learn(range(10))
            failures = service.service.metrics.publish_failures
            eventually(lambda: failures._value.get() > 0)
            assert reasons(service) == ""  # there is time left
            now[0] += 31
            service.service.writer.poke()
            eventually(lambda: "later than max_delay" in reasons(service))
            assert service.client.get("/healthz").status_code == 200
        eventually(lambda: is_well(service, now))


def test_readyz_says_that_seals_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    with running(tmp_path / "s", Settings(quiet=0, max_delay=0, seal_after=50), clock=lambda: now[0]) as service:
        receipts = service.learn(range(10))
        request = service.forget(receipts[:1]).json()["request"]["id"]
        service.wait(request, seconds=120)
        with monkeypatch.context() as patched:
            patched.setattr("neverseen.store.Store.scrub", _no_memory)
            now[0] += 51
            service.service.writer.poke()
            eventually(lambda: "later than seal_after" in reasons(service))
        eventually(lambda: is_well(service, now))
        service.wait(request, "sealed", seconds=120)


def _no_memory(*given: Any, **named: Any) -> Any:
    raise MemoryError
