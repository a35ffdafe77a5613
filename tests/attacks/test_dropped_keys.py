"""The promise: no receipt is handed out under a key that is not on disk.

Keys are rotated by another process while a store is open. A receipt under a key that was dropped opens nothing, and its
owner could not have the sample forgotten by it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from neverseen import ConfigurationError, ForgettingModel, Keyring, ReceiptRejectedError, store
from tests.services import KEYS, new_store, running, samples
from tests.store.test_store import BACKBONE, IDS, LABELS, ROWS, classifier


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
            with pytest.raises(ReceiptRejectedError, match="or the key was dropped"):
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
