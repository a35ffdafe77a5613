"""The promise: when a sample is learned, the key of its receipt is on disk.

Keys are rotated by another process while a store is open. A receipt under a key that was dropped opens nothing, and its
owner could not have the sample forgotten by it. A rotation that drops keys later is its maker's decision. On systems and
file systems without locks, it can come while the change is committed.
"""

from __future__ import annotations

import errno
import fcntl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from neverseen import ConfigurationError, ForgettingModel, Key, Keyring, ReceiptRejectedError, store
from neverseen.holdings import Decision
from neverseen.io.files import locked_folder
from neverseen.proof import keys as module
from neverseen.service.errors import Refusal
from neverseen.store.ledger_holdings import LedgerHoldings
from tests.services import BACKBONE as SERVED
from tests.services import KEYS, SIZE, new_store, running, samples
from tests.services import classifier as served_classifier
from tests.store.test_store import BACKBONE, IDS, LABELS, ROWS, classifier
from tests.waiting import eventually

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


@pytest.mark.parametrize("whose", ["another process's", "the store's own"])
def test_a_rotation_during_the_commit_waits_for_its_end(
    whose: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The samples were learned, and their receipts handed out, under a key that was gone by then."""
    seen: list[tuple[bool, tuple[Key, ...]]] = []
    record = LedgerHoldings.record

    def while_keys_are_rotated(self: LedgerHoldings, decision: Decision) -> None:
        thread.start()
        thread.join(0.3)
        record(self, decision)
        seen.append((thread.is_alive(), Keyring.load(path).receipts))

    with store.open(path.parent, backbone=BACKBONE) as made:
        keys = made.required_keys() if whose == "the store's own" else Keyring.load(path)
        before, thread = keys.receipts, threading.Thread(target=keys.rotate, args=[0])
        with monkeypatch.context() as patched:
            patched.setattr(LedgerHoldings, "record", while_keys_are_rotated)
            made.learn(ROWS[4:6], LABELS[4:6], IDS[4:6])
        thread.join(30)
        assert not thread.is_alive()
        assert seen == [(True, before)]
        assert not {*Keyring.load(path).receipts} & {*before}  # from now on
        receipts = made.learn(ROWS[6:7], LABELS[6:7], IDS[6:7])
        made.forget(receipts)
        assert made.ledger.total() == 6


def test_a_folder_that_somebody_does_not_let_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever. Others who learn do not keep anybody waiting: a key file may be that of many stores."""
    monkeypatch.setattr(module, "_PATIENCE", 0.1)
    with store.open(path.parent, backbone=BACKBONE) as made:
        with locked_folder(path.parent):
            with pytest.raises(ConfigurationError, match="has the folder of the key file keys.json locked"):
                made.learn(ROWS[4:6], LABELS[4:6], IDS[4:6])
            assert made.ledger.total() == 4
        with locked_folder(path.parent, shared_within=1):
            made.learn(ROWS[4:6], LABELS[4:6], IDS[4:6])
        assert made.ledger.total() == 6


def test_a_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with store.open(path.parent, backbone=BACKBONE) as made:
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", none)
            receipts = made.learn(ROWS[4:6], LABELS[4:6], IDS[4:6])
        made.forget(receipts)


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


def test_a_key_file_that_cannot_be_used_is_called_by_its_name(path: Path) -> None:
    """A service's clients are told what is wrong, and not where its files are."""
    keys, whole = Keyring.load(path), path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(
        ConfigurationError, match=r"no receipt is sealed: keys.json is not a usable key file: it is dam"
    ):
        keys.current()
    path.write_bytes(whole)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"others may read .*chmod 600 keys.json$"):
        keys.current()
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigurationError, match=r"no receipt is sealed: there is no key file keys.json: make one"):
        keys.current()


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
        eventually(lambda: service.service.writer.alive)
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
