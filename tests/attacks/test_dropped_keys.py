"""The promise: no receipt is handed out under a key that is not on disk.

Keys are rotated by another process while a store is open. A receipt under a key that was dropped opens nothing, and its
owner could not have the sample forgotten by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from neverseen import ConfigurationError, ForgettingModel, Keyring, ReceiptRejectedError, store
from neverseen.service.edge.errors import Refusal
from tests.services import BACKBONE as SERVED
from tests.services import KEYS, SIZE, new_store, running, samples
from tests.services import classifier as served_classifier
from tests.store.test_store import BACKBONE, IDS, LABELS, ROWS, classifier

RECIPE = {"kind": "features", "n_features": SIZE, "name": "precomputed"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with store.create(tmp_path / "s", BACKBONE, classifier()) as made:
        made.learn(ROWS[:4], LABELS[:4], IDS[:4])
    return tmp_path / "s" / "keys.json"


@pytest.mark.parametrize("keep", [0, 1, None])
def test_a_rotation_while_the_store_is_open(path: Path, keep: int | None) -> None:
    with store.open(path.parent, backbone=BACKBONE) as made:
        before = made.learn(ROWS[4:5], LABELS[4:5], IDS[4:5])
        Keyring.load(path).rotate(keep=keep)
        receipts = made.learn(ROWS[5:6], LABELS[5:6], IDS[5:6])
        assert made.required_keys().receipts == Keyring.load(path).receipts
    with store.open(path.parent, backbone=BACKBONE) as again:
        again.forget(receipts)
        if keep == 0:
            with pytest.raises(ReceiptRejectedError, match="the key was dropped"):
                again.forget(before)
        else:
            again.forget(before)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_rotation_between_the_seal_and_the_commit(path: Path, keep: int) -> None:
    """The change was made, under receipts that no key on disk opens."""
    with store.open(path.parent, backbone=BACKBONE) as made:
        change = made.learning(ROWS[4:6], LABELS[4:6], IDS[4:6])
        Keyring.load(path).rotate(keep=keep)
        if keep == 0:
            with pytest.raises(ConfigurationError, match="has been dropped meanwhile, .* Nothing was changed"):
                made.commit(change)
            assert made.ledger.total() == 4
            change = made.learning(ROWS[4:6], LABELS[4:6], IDS[4:6])  # what to do
        made.commit(change)
    with store.open(path.parent, backbone=BACKBONE) as again:
        again.forget(list(change.receipts))
        assert again.ledger.total() == 4


def test_a_key_file_that_is_gone_or_older(path: Path) -> None:
    """Nothing is learned, and samples can be forgotten all the same."""
    old = path.read_bytes()
    with store.open(path.parent, backbone=BACKBONE) as made:
        made.required_keys().rotate()
        receipts = made.learn(ROWS[4:6], LABELS[4:6], IDS[4:6])
        newest = path.read_bytes()
        path.unlink()
        with pytest.raises(ConfigurationError, match=r"the key file keys.json is gone"):
            made.learn(ROWS[6:7], LABELS[6:7], IDS[6:7])
        path.touch(0o600)
        path.write_bytes(old)
        with pytest.raises(ConfigurationError, match="older than the keys in use"):
            made.learn(ROWS[6:7], LABELS[6:7], IDS[6:7])
        assert made.ledger.total() == 6
        made.forget(receipts[:1])
        path.write_bytes(newest)
        made.learn(ROWS[6:7], LABELS[6:7], IDS[6:7])
        path.write_bytes(old)
        made.required_keys().rotate()  # puts back what an older copy lost
    with store.open(path.parent, backbone=BACKBONE) as again:
        again.forget(receipts[1:])


def test_dropped_keys_do_not_come_back(tmp_path: Path) -> None:
    """They were dropped for a reason."""
    path = tmp_path / "keys.json"
    mine = Keyring.create(path)
    dropped = mine.receipts
    Keyring.load(path).rotate(keep=0)
    mine.rotate()
    assert not set(dropped) & set(mine.receipts)
    assert len(mine.receipts) == 2
    assert Keyring.load(path).receipts == mine.receipts


def test_an_older_file_from_before_keys_were_dropped(tmp_path: Path) -> None:
    """It does not pass for a rotation, and the newest key is not lost with it."""
    path = tmp_path / "keys.json"
    older = Keyring.create(path)
    mine, before = Keyring.load(path), path.read_bytes()
    Keyring.load(path).rotate(keep=0)
    (newest,) = mine.current()
    path.write_bytes(before)
    with pytest.raises(ConfigurationError, match="older than the keys in use"):
        mine.current()
    mine.rotate()
    assert mine.receipts[1:] == (newest,)
    assert Keyring.load(path).receipts == mine.receipts
    path.write_bytes(before)
    with pytest.raises(ConfigurationError, match="older than the keys in use"):
        mine.current()
    assert older.receipts[0] not in mine.receipts


def test_an_older_file_that_was_rotated_does_not_take_the_newest_key(path: Path) -> None:
    """The store has the only copy of the key: its receipts could never be opened again."""
    older = path.read_bytes()
    with store.open(path.parent, backbone=BACKBONE) as made:
        made.required_keys().rotate()
        receipts = made.learn(ROWS[4:5], LABELS[4:5], IDS[4:5])
        path.write_bytes(older)
        Keyring.load(path).rotate()  # by somebody who sees the older copy
        with pytest.raises(ConfigurationError, match="is older than the keys in use"):
            made.learn(ROWS[5:6], LABELS[5:6], IDS[5:6])
        assert made.verdicts(receipts)[0].error is None
        other = Keyring.load(path).receipts[0]
        made.required_keys().rotate()  # what to do: it puts back what was lost, and drops nothing
        assert other in Keyring.load(path).receipts
        made.learn(ROWS[5:6], LABELS[5:6], IDS[5:6])
    with store.open(path.parent, backbone=BACKBONE) as again:
        again.forget(receipts)


def test_keys_of_another_model_seal_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    model = ForgettingModel(BACKBONE, classifier(), keys=Keyring.create(path))
    path.unlink()
    Keyring.create(path)
    with pytest.raises(ConfigurationError, match="keys of another model"):
        model.learn(ROWS[:2], LABELS[:2])
    assert len(model) == 0


def test_a_service_follows_a_rotation(tmp_path: Path) -> None:
    """Also when a request is sent again: its receipts are made anew."""
    path = tmp_path / "elsewhere.json"
    Keyring(KEYS.membership, KEYS.receipts).save(path)
    new_store(tmp_path / "s")
    with running(tmp_path / "s", keyring=Keyring.load(path)) as service:
        headers = service.admin | {"Idempotency-Key": "one"}
        service.learn(range(4), headers)
        Keyring.load(path).rotate(keep=0)
        again = service.client.post("/v1/samples", json={"samples": samples(range(4))}, headers=headers)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "receipts_gone")
        receipts = service.learn(range(4, 6))
    with running(tmp_path / "s", keyring=Keyring.load(path)) as service:
        assert service.forget(receipts).status_code == 202


def _gone(path: Path, older: bytes) -> None:
    path.unlink()


def _older(path: Path, older: bytes) -> None:
    path.write_bytes(older)


def _damaged(path: Path, older: bytes) -> None:
    path.write_bytes(b"{}")


def _open_to_others(path: Path, older: bytes) -> None:
    path.write_bytes(path.read_bytes())
    path.chmod(0o644)


FAULTS: dict[Callable[[Path, bytes], None], str] = {
    _gone: "keys.json is gone",
    _older: "keys.json is older than the keys in use",
    _damaged: "it is damaged, or not a file of format",
    _open_to_others: "others may read or change it",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_service_whose_key_file_is_not_the_newest(tmp_path: Path, fault: Callable[[Path, bytes], None]) -> None:
    """It says so, learns nothing and forgets; the writer goes on, and one that fails begins again with the same keys."""
    store.create(tmp_path / "s", SERVED, served_classifier(), recipe=RECIPE).close()
    path = tmp_path / "s" / "keys.json"
    with running(tmp_path / "s", keyring=None) as service:
        older = path.read_bytes()
        Keyring.load(path).rotate(keep=0)
        newest = path.read_bytes()
        headers = service.admin | {"Idempotency-Key": "one"}
        receipts = service.learn(range(4), headers)
        fault(path, older)

        def refused() -> None:
            for rows, headed in ((range(4), headers), ([4], service.admin)):  # sent again, and new
                answer = service.client.post("/v1/samples", json={"samples": samples(rows)}, headers=headed)
                assert answer.status_code == 503, answer.text
                assert FAULTS[fault] in answer.json()["error"]["message"]
                assert str(tmp_path) not in answer.text
            answer = service.client.get("/readyz")
            assert answer.status_code == 503
            assert FAULTS[fault] in answer.json()["error"]["message"]
            assert service.service.writer.alive

        refused()
        failures = "neverseen_writer_failures_total"
        assert f"{failures} 0" in service.service.metrics.text().decode()
        assert service.forget(receipts[:1]).status_code == 202
        with pytest.raises(Refusal):
            service.service.writer.ask(lambda _: 1 // 0).result(30)
        end = time.monotonic() + 60
        while not service.service.writer.alive:
            assert time.monotonic() < end
            time.sleep(0.01)
        refused()
        assert f"{failures} 1" in service.service.metrics.text().decode()
        assert service.forget(receipts[1:2]).status_code == 202
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_bytes(newest)
        assert service.client.get("/readyz").status_code == 200
        assert len(service.learn(range(5, 6))) == 1
        assert service.forget(receipts[2:]).status_code == 202


def test_a_store_that_looks_at_no_receipt_refuses_those_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are answered, each for itself, and the writer goes on."""

    def closed(*_: object) -> None:
        raise ConfigurationError("not now")

    with running(tmp_path / "s") as service:
        receipts = service.learn(range(2))
        with monkeypatch.context() as patched:
            patched.setattr(store.Store, "verdicts", closed)
            answer = service.forget(receipts)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert "not now" in answer.text
        assert service.forget(receipts).status_code == 202
