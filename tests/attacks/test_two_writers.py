"""The promise: one process writes a store, and a certificate is signed about all that its ledger says.

The sums of a writer are in its memory. If another process changed the ledger meanwhile, they would not be those of the
samples held, and a certificate would be false. The lock in the folder does not see a ledger that two folders share.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from neverseen import LedgerError, store
from neverseen.errors import StoreLockedError
from neverseen.model.exact import ExactModel
from neverseen.proof.certificates import check_chain
from neverseen.store import Store
from tests.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, classifier, new, opened

COUNT = 20


def filled(made: Store) -> list[bytes]:
    receipts = made.learn(ROWS[:COUNT], LABELS[:COUNT], IDS[:COUNT])
    made.publish()
    return receipts


def shared(tmp_path: Path, url: str) -> list[bytes]:
    """Make a store whose ledger is elsewhere, and a copy of its folder."""
    with store.create(tmp_path / "s", BACKBONE, classifier(), keys=KEYS, ledger=url) as made:
        receipts = filled(made)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    return receipts


def test_a_ledger_that_two_folders_share_has_one_writer(tmp_path: Path, url: str) -> None:
    receipts = shared(tmp_path, url)
    with opened(tmp_path / "s") as first, opened(tmp_path / "copy") as second:
        before = sorted((tmp_path / "s").rglob("*"))
        changes: list[Callable[[], object]] = [
            lambda: first.forget(receipts[:1]),
            lambda: first.learn(ROWS[COUNT:], LABELS[COUNT:], IDS[COUNT:]),
            lambda: first.publish(always=True),
            first.publish,
            first.seal,
            first.scrub,
        ]
        for change in changes:
            with pytest.raises(LedgerError, match="another process has opened its store for writing"):
                change()
        assert sorted((tmp_path / "s").rglob("*")) == before
        assert second.ledger.total() == COUNT
        second.forget(receipts[:1])
        certificate = second.publish()
        assert (certificate.learned, certificate.forgotten, certificate.after.samples) == (0, 1, COUNT - 1)
    with opened(tmp_path / "copy") as again:
        again.check()
        check_chain(again.certificates(), again.description.public_key)


def test_a_change_while_the_store_is_being_opened(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = shared(tmp_path, url)
    read = Store._read_model
    with opened(tmp_path / "s") as first:

        def slow(self: Store, *about: object) -> ExactModel:
            made = read(self, *about)  # type: ignore[arg-type]
            first.forget(receipts[:1])
            return made

        with monkeypatch.context() as patch:
            patch.setattr(Store, "_require_held", lambda *_: None)  # as if it had come a moment later
            patch.setattr(Store, "_require_stated", lambda *_: None)
            patch.setattr(Store, "_read_model", slow)
            with pytest.raises(StoreLockedError, match="another process changed the ledger"):
                opened(tmp_path / "copy")
        assert first.publish().after.samples == COUNT - 1


def test_close_waits_for_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of the folder was free while the change was on its way."""
    with new(tmp_path / "s") as made:
        receipts = filled(made)
    first = opened(tmp_path / "s")
    on_its_way, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    batch = ExactModel.batch

    def slow(*about: object) -> object:
        on_its_way.set()
        go_on.wait(30)
        assert not closed.is_set()
        return batch(*about)  # type: ignore[arg-type]

    def closing() -> None:
        first.close()
        closed.set()

    change = first.forgetting(receipts[:1])
    with monkeypatch.context() as patch:
        patch.setattr(ExactModel, "batch", slow)
        forget = threading.Thread(target=first._intake.commit, args=(first._exact(), change))
        close = threading.Thread(target=closing)
        forget.start()
        assert on_its_way.wait(30)
        close.start()
        with pytest.raises(StoreLockedError):
            opened(tmp_path / "s")
        go_on.set()
        forget.join(30)
        close.join(30)
    with opened(tmp_path / "s") as second:
        assert second.ledger.total() == COUNT - 1
        assert second.publish().after.samples == COUNT - 1
        second.check()


def test_nothing_is_changed_after_close(tmp_path: Path) -> None:
    """A thread that has the model in hand already comes after `close`."""
    with new(tmp_path / "s") as made:
        receipts = filled(made)
        model, change = made._exact(), made.forgetting(receipts[:1])
    with pytest.raises(LedgerError, match="closed here"):
        made._intake.commit(model, change)
    with opened(tmp_path / "s") as again:
        assert again.ledger.total() == COUNT


def test_whoever_died_bars_nobody(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        filled(made)
        shutil.copytree(tmp_path / "s", tmp_path / "died")  # the note is in the ledger
    for name, noted in (("s", False), ("died", True)):
        with opened(tmp_path / name, write=False) as reader:
            assert (reader.ledger.meta("writer") is not None) is noted
        with opened(tmp_path / name) as again:
            again.learn(ROWS[COUNT:], LABELS[COUNT:], IDS[COUNT:])
