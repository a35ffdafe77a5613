"""``effect = "immediate"``: every answer after an acknowledgement is that of the model that never saw the sample."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neverseen import AnalyticClassifier, ConfigurationError, NotLearnedError, RandomProjection, store
from neverseen.encoding import quantise
from neverseen.service import Settings
from tests.services import BACKBONE, KEYS, LABELS, QUICK, ROWS, Running, classifier, new_store, running
from tests.waiting import eventually

HELD_BACK = Settings(quiet=0.0, max_delay=0.0, seal_after=1000, min_batch=10_000, effect="immediate")


def labels_of(service: Running, rows: np.ndarray) -> list[str]:
    body = {"samples": [{"features": row.tolist()} for row in rows]}
    answer = service.client.post("/v1/predict", json=body, headers=service.admin)
    assert answer.status_code == 200, answer.text
    return [each["label"] for each in answer.json()["predictions"]]


def expected(kept: list[int], rows: np.ndarray) -> list[str]:
    model = AnalyticClassifier(RandomProjection(24, seed=1), 2**9, hardware="numpy")
    return [str(name) for name in model.fit(ROWS[kept], [LABELS[row] for row in kept]).predict(rows)]


def test_answers_follow_each_change_without_a_publication(tmp_path: Path) -> None:
    with running(tmp_path / "shop", HELD_BACK) as service:
        receipts = service.learn(range(60))
        kept = list(range(60))
        assert labels_of(service, ROWS[60:62]) == expected(kept, ROWS[60:62])
        cats = [row for row in range(60) if LABELS[row] == "cat"]
        asked = ROWS[[row for row in range(60, 200) if LABELS[row] == "cat"][:3]]
        answers = set[tuple[str, ...]]()
        for row in cats[:-1]:
            assert service.forget([receipts[row]]).status_code in (200, 202)
            kept.remove(row)
            answers.add(tuple(labels_of(service, asked)))
            assert labels_of(service, asked) == expected(kept, asked)
        assert len(answers) > 1  # they do change
        assert labels_of(service, ROWS[60:200]) == expected(kept, ROWS[60:200])  # more than are proved one by one
        assert service.service.writer.published.number == 0


def test_answers_are_those_of_the_published_version_by_default(tmp_path: Path) -> None:
    with running(tmp_path / "shop", replace(QUICK, min_batch=10_000)) as service:
        service.learn(range(60))
        body = {"samples": [{"features": ROWS[0].tolist()}]}
        answer = service.client.post("/v1/predict", json=body, headers=service.admin)
        assert answer.json()["error"]["code"] == "nothing_published"
        assert service.client.get("/v1/model", headers=service.admin).json()["effect"] == "published"


def test_new_classes_and_gone_ones(tmp_path: Path) -> None:
    with running(tmp_path / "shop", HELD_BACK) as service:
        body = {"samples": [{"features": ROWS[0].tolist()}]}
        answer = service.client.post("/v1/predict", json=body, headers=service.admin)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "nothing_published")
        rows = [row for row in range(60) if LABELS[row] != "emu"]
        receipts = dict(zip(rows, service.learn(rows), strict=True))
        emus = [row for row in range(60) if LABELS[row] == "emu"]
        assert "emu" not in labels_of(service, ROWS[emus])
        theirs = dict(zip(emus, service.learn(emus), strict=True))
        assert "emu" in labels_of(service, ROWS[emus])
        assert service.forget(list(theirs.values())).status_code in (200, 202)
        assert "emu" not in labels_of(service, ROWS[emus])
        assert service.forget(list(receipts.values())).status_code in (200, 202)
        answer = service.client.post("/v1/predict", json=body, headers=service.admin)
        assert answer.json()["error"]["code"] == "nothing_published"
        assert service.client.get("/v1/model", headers=service.admin).json()["effect"] == "immediate"


def test_no_answer_waits_for_a_publication_or_comes_from_before_a_change(tmp_path: Path) -> None:
    """While the model is locked, as it is during a publication, its ready weights answer; others wait for it."""
    folder = new_store(tmp_path / "shop")
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        receipts = opened.learn(ROWS[:60], LABELS[:60])
        exact = opened._exact()
        asked = quantise(ROWS[60:61])
        opened.weigh()
        before = opened.held_labels(asked)
        done = threading.Event()

        def ask() -> None:
            opened.held_labels(asked)
            done.set()

        with exact.locked():
            thread = threading.Thread(target=ask)
            thread.start()
            assert done.wait(60)
        thread.join()
        opened.forget(receipts[:1])
        done.clear()
        with exact.locked():
            thread = threading.Thread(target=ask)
            thread.start()
            assert not done.wait(0.2)  # it must not answer with the weights of before
        thread.join(60)
        assert done.is_set()
        assert before[1] == opened.held_labels(asked)[1]


@pytest.mark.parametrize("effect", ["published", "immediate"])
def test_a_service_takes_features_by_the_scale_of_its_store(tmp_path: Path, effect: str) -> None:
    folder, scaled = tmp_path / "shop", AnalyticClassifier(RandomProjection(24, activation="gelu", scale=0.3), 2**9)
    store.create(folder, BACKBONE, scaled, keys=KEYS).close()
    (folder / "service").mkdir(mode=0o700)
    rows = ROWS.astype(np.float32)
    np.savez(folder / "service" / "probe.npz", features=rows[60:], labels=np.array(LABELS[60:]))
    with running(folder, Settings(quiet=0.0, max_delay=0.0, effect=effect)) as service:
        service.learn(range(60))
        points = eventually(lambda: service.client.get("/v1/history", headers=service.admin).json()["points"])
        fresh = scaled.fit(rows[:60], LABELS[:60])
        assert labels_of(service, ROWS[60:]) == fresh.predict(rows[60:]).tolist()
    assert points[0]["accuracy"] == fresh.score(rows[60:], LABELS[60:])


def test_a_store_predicts_what_it_holds(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "shop")
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        with pytest.raises(NotLearnedError, match="holds no samples"):
            opened.predict_held(ROWS[:1])
        opened.weigh()  # of nothing
        receipts = opened.learn(ROWS[:60], LABELS[:60])
        opened.publish()
        opened.forget(receipts[:30])
        fresh = classifier().fit(ROWS[30:60], LABELS[30:60])
        assert np.array_equal(opened.predict_held(ROWS[60:]), fresh.predict(ROWS[60:]))
        assert opened.published_number == 1
        opened.scrub()
        opened.weigh()
        assert np.array_equal(opened.predict_held(ROWS[60:]), fresh.predict(ROWS[60:]))


def test_an_answer_of_long_labels_is_refused_before_it_is_written(tmp_path: Path) -> None:
    small = replace(HELD_BACK, max_json=6000)
    with running(tmp_path / "shop", small) as service:
        long = "x" * 150
        body = {"samples": [{"features": row.tolist(), "label": long} for row in ROWS[:4]]}
        assert service.client.post("/v1/samples", json=body, headers=service.admin).status_code == 201
        asked = {"samples": [{"features": row.tolist()} for row in ROWS[:45]]}
        answer = service.client.post("/v1/predict", json=asked, headers=service.admin)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_scores_are_not_shown_at_once() -> None:
    with pytest.raises(ConfigurationError, match="needs output"):
        Settings(effect="immediate", output="scores")
    with pytest.raises(ConfigurationError, match="effect must be one of published, immediate"):
        Settings(effect="later")


def test_forgets_and_predictions_at_once(tmp_path: Path) -> None:
    """Whoever asks after an acknowledgement gets an answer without the sample, whatever else happens meanwhile."""
    with running(tmp_path / "shop", replace(HELD_BACK, min_batch=1)) as service:
        receipts = service.learn(range(60))
        stop, kept = threading.Event(), list(range(60))
        failed: list[str] = []

        def ask() -> None:
            while not stop.is_set():
                body = {"samples": [{"features": ROWS[70].tolist()}]}
                answer = service.client.post("/v1/predict", json=body, headers=service.admin)
                if answer.status_code != 200:
                    failed.append(answer.text)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 60
            for row in range(20):
                assert service.forget([receipts[row]]).status_code in (200, 202)
                kept.remove(row)
                assert labels_of(service, ROWS[71:73]) == expected(kept, ROWS[71:73])
                assert time.monotonic() < end
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failed
