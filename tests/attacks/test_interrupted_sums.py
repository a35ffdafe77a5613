"""The promise: sums that were cut off half-way, or looked at by two at once, never pass for a model."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import AnalyticClassifier, HardwareError, Identity, Key, RandomProjection, StoreDamagedError, store
from neverseen.backbones import Precomputed
from neverseen.engine.statistics import Statistics
from neverseen.engine.systems import ChangedSystem
from neverseen.hardware import Array
from neverseen.labels import in_class_order
from tests.samples import clustered

ROWS, NUMBERS = clustered("interrupted", 60, 6, 3)
LABELS = NUMBERS.tolist()


def classifier(**settings: Any) -> AnalyticClassifier:
    return AnalyticClassifier(Identity(), 2**9, key=Key(bytes(32)), hardware="numpy", **settings)


def test_adding_up_that_is_cut_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier().fit(ROWS[:40], LABELS[:40])
    model.digest()
    model.forget(ROWS[:4], LABELS[:4])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Statistics, "_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.digest()
    for look in (model.digest, lambda: model.predict(ROWS), lambda: pickle.dumps(model)):
        with pytest.raises(HardwareError, match="cut off half-way"):
            look()


def test_a_store_does_not_publish_sums_that_were_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.create(tmp_path / "s", Precomputed(6), classifier()) as made:
        receipts = made.learn(ROWS[:40], LABELS[:40])
        made.publish()
        made.forget(receipts[:4])

        def no_memory(*_: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(Statistics, "_add", no_memory)
            with pytest.raises(MemoryError):
                made.publish()
        with pytest.raises(HardwareError, match="cut off half-way"):
            made.publish()
        assert made.published_number == 1
    with store.open(tmp_path / "s", backbone=Precomputed(6)) as again:
        assert again.publish().forgotten == 4
        assert again.digest() == classifier(backbone=Precomputed(6).digest()).fit(ROWS[4:40], LABELS[4:40]).digest()


def test_two_that_look_at_once_add_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.ones((8, 6), np.int8)
    sums = Statistics(6)
    sums.add(codes, [0] * 8)
    inside, go = threading.Event(), threading.Event()
    added: list[int] = []
    plain = Statistics._add

    def slowly(self: Statistics, *part: Any) -> None:
        inside.set()
        go.wait(30)
        added.append(1)
        plain(self, *part)

    monkeypatch.setattr(Statistics, "_add", slowly)
    first = threading.Thread(target=sums.settle)
    first.start()
    assert inside.wait(30)
    second = threading.Thread(target=sums.digest)
    second.start()
    go.set()
    first.join(30)
    second.join(30)
    assert added == [1]
    assert sums.gram[0, 0] == 8


@pytest.mark.parametrize("kind", ["forget", "learn", "class"])
def test_a_change_whose_class_sums_are_damaged_is_refused_before_it_is_recorded(tmp_path: Path, kind: str) -> None:
    settings = AnalyticClassifier(RandomProjection(16), 2**12, track_classes=True, hardware="numpy")
    with store.create(tmp_path / "s", Precomputed(6), settings) as made:
        receipts = made.learn(ROWS[:30], LABELS[:30])
        made.seal()
    other = next(row for row in range(30) if LABELS[row] != LABELS[0])
    with store.open(tmp_path / "s", backbone=Precomputed(6)) as made:
        grams = made.statistics().class_grams
        assert grams is not None
        path = grams._packed[str(LABELS[0])].path  # type: ignore[union-attr]
        whole = path.read_bytes()
        path.write_bytes(whole[:4099] + bytes([whole[4099] ^ 1]) + whole[4100:])
        changes: dict[str, Callable[[], object]] = {
            "forget": lambda: made.forget(receipts[:1]),
            "learn": lambda: made.learn(ROWS[30:31], LABELS[:1]),
            "class": lambda: made.forget_class(LABELS[0]),
        }
        before = made.digest(), made.ledger.meta("sequence"), made.ledger.total()
        with pytest.raises(StoreDamagedError, match="block 0 .* is not as it was written") as refusal:
            changes[kind]()
        assert not hasattr(refusal.value, "uncertain")
        assert not hasattr(refusal.value, "receipts")
        assert (made.digest(), made.ledger.meta("sequence"), made.ledger.total()) == before
        assert made.publish().number == 1
        made.forget(receipts[other : other + 1])  # the other classes are whole
        path.write_bytes(whole)
        changes[kind]()
        digest = made.digest()
    with store.open(tmp_path / "s", backbone=Precomputed(6)) as made:
        assert made.digest() == digest
        made.check()


def test_a_class_is_not_forgotten_if_what_waits_cannot_be_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = classifier(track_classes=True)
    learner.partial_fit(ROWS[:30], LABELS[:30])
    before = learner.digest()

    def fails(_: Statistics) -> None:
        raise HardwareError("a check failed")

    with monkeypatch.context() as patch:
        patch.setattr(Statistics, "settle", fails)
        with pytest.raises(HardwareError, match="a check failed"):
            learner.forget_class(LABELS[0])
    assert learner.digest() == before
    learner.forget_class(LABELS[0])


def test_threads_that_start_a_model_lose_nothing() -> None:
    for _ in range(10):
        model = classifier()
        parts = [slice(start, start + 10) for start in range(0, 40, 10)]
        threads = [threading.Thread(target=model.partial_fit, args=(ROWS[part], LABELS[part])) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert model.digest() == classifier().fit(ROWS[:40], LABELS[:40]).digest()


def test_what_is_pickled_beside_a_learning_thread_is_whole() -> None:
    model = classifier().fit(ROWS[:10], LABELS[:10])
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            model.partial_fit(ROWS[10:20], LABELS[10:20])
            model.forget(ROWS[10:20], LABELS[10:20])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        whole = {classifier().fit(ROWS[:stop], LABELS[:stop]).digest() for stop in (10, 20)}
        for _ in range(20):
            copied: AnalyticClassifier = pickle.loads(pickle.dumps(model))  # noqa: S301
            assert copied.digest() in whole
            exact = copied.exact
            assert exact is not None
            assert len(exact.holdings.members_array()) == exact.statistics.total  # type: ignore[attr-defined]
    finally:
        end.set()
        thread.join(30)


def test_a_look_from_another_thread_while_a_change_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody asks for the digest of the sums, which adds up what waits, while these are being used."""
    rows, labels = clustered("looks", 1500, 8, 3)
    names = [str(label) for label in labels]
    opened = store.create(tmp_path / "s", Precomputed(8), AnalyticClassifier(RandomProjection(32), gamma=16))
    looks: list[threading.Thread] = []

    def look(self: ChangedSystem, block: Array) -> Array:
        if not looks:
            looks.append(threading.Thread(target=lambda: opened.statistics().digest()))
            looks[0].start()
            looks[0].join(0.3)  # it waits for us, unless it is let in
        return product(self, block)

    product = ChangedSystem.product
    monkeypatch.setattr(ChangedSystem, "product", look)
    with opened:
        opened.learn(rows[:1490], names[:1490])
        opened.digest()
        for row in range(1490, 1495):
            opened.learn(rows[row : row + 1], names[row : row + 1])
            looks.clear()
            found = opened.digest()
            looks[0].join()
            anew = AnalyticClassifier(RandomProjection(32), gamma=16, backbone=opened.backbone.digest())
            assert found == anew.fit(rows[: row + 1], names[: row + 1]).digest()


def test_a_late_look_at_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began before a class came, and noted its order of the classes just when the weights were being labelled."""
    begun, go = threading.Event(), threading.Event()
    model = classifier().fit(ROWS[:40], [f"class {label}" for label in LABELS[:40]])
    late = threading.Thread(target=lambda: model.classes_)

    def ordered(names: list[str]) -> list[str]:
        if threading.current_thread() is late:
            begun.set()
            go.wait(30)
        return in_class_order(names)

    def noted(self: Statistics, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "_in_order" and value[0] and late.is_alive() and threading.current_thread() is not late:
            go.set()
            late.join(30)

    monkeypatch.setattr("neverseen.engine.statistics.in_class_order", ordered)
    monkeypatch.setattr(Statistics, "__setattr__", noted, raising=False)
    late.start()
    begun.wait(30)
    model.partial_fit(ROWS[40:41], ["a class"])
    found = model.digest()
    assert not late.is_alive()
    monkeypatch.undo()
    anew = classifier().fit(ROWS[:41], [*(f"class {label}" for label in LABELS[:40]), "a class"])
    assert found == model.digest() == anew.digest()
    assert model.predict(ROWS[:41]).tolist() == anew.predict(ROWS[:41]).tolist()
