"""The promise: one process writes a store, and a certificate is signed about all that its ledger says.

The sums of a writer are in its memory. If another process changed the ledger meanwhile, they would not be those of the
samples held, and a certificate would be false. The lock in the folder does not see a ledger that two folders share.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neverseen import LedgerError, store
from neverseen.errors import StoreDamagedError, StoreLockedError
from neverseen.model.exact import ExactModel
from neverseen.proof.certificates import check_chain
from neverseen.store import Store, agreement, recovery, snapshots, sums
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, classifier, new, opened

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
    read = sums.read_model
    with opened(tmp_path / "s") as first:

        def slow(*about: Any) -> ExactModel:
            made = read(*about)
            first.forget(receipts[:1])
            return made

        with monkeypatch.context() as patch:
            patch.setattr(recovery, "require_held", lambda *_: None)  # as if it had come a moment later
            patch.setattr(recovery, "require_stated", lambda *_: None)
            patch.setattr(recovery, "read_model", slow)
            with pytest.raises(StoreLockedError, match="another process changed the ledger"):
                opened(tmp_path / "copy")
        assert first.publish().after.samples == COUNT - 1


def test_a_seal_while_the_store_is_being_opened(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal starts the numbering of changes again, so two different changes can have the same number."""
    shared(tmp_path, url)
    with opened(tmp_path / "s") as first:
        first.seal()
        receipts = first.learn(ROWS[COUNT : COUNT + 1], LABELS[:1], IDS[COUNT : COUNT + 1])
    shutil.copytree(tmp_path / "s" / "sums", tmp_path / "copy" / "sums", dirs_exist_ok=True)
    shutil.copytree(tmp_path / "s" / "certificates", tmp_path / "copy" / "certificates", dirs_exist_ok=True)
    looked = agreement.require_stated

    def slow(*about: Any) -> None:
        looked(*about)
        patch.undo()
        with opened(tmp_path / "s") as first:
            first.forget(receipts)
            first.scrub()
            first.learn(ROWS[COUNT + 1 : COUNT + 2], LABELS[:1], IDS[COUNT + 1 : COUNT + 2])

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "require_stated", slow)
        with pytest.raises(StoreLockedError, match="another process changed the ledger"):
            opened(tmp_path / "copy")
    with opened(tmp_path / "s") as again:
        again.publish()
        again.check()


def test_a_fold_while_a_reader_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal of one snapshot is not added to another, also if the first one comes back."""
    with new(tmp_path / "s") as made:
        filled(made)
        made.scrub()
        before, read = made.digest(), snapshots.read_snapshot
        learned: list[bytes] = []

        def slow(*about: Any) -> Any:
            found = read(*about)
            if not learned:
                learned.extend(made.learn(ROWS[COUNT:], LABELS[COUNT:], IDS[COUNT:]))
                made.scrub()
                made.learn(ROWS[:1], LABELS[:1], ["another"])
            return found

        named = sums.snapshot_of
        names = [named(made._open_parts())] * 2  # as if it were back whenever it is asked for
        with monkeypatch.context() as patch, opened(tmp_path / "s", write=False) as reader:
            patch.setattr(sums, "read_snapshot", slow)
            patch.setattr(sums, "snapshot_of", lambda parts: names.pop() if names else named(parts))
            with pytest.raises(StoreDamagedError, match="changed while it was being read"):
                reader.statistics()
            assert reader.statistics() == made.statistics()
        assert made.digest() != before


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


def forked(*steps: Callable[[], object]) -> list[str]:
    """Return what each step raised in a forked process, or that it raised nothing."""
    mouth, ear = os.pipe()
    child = os.fork()
    if not child:
        try:
            for step in steps:
                try:
                    step()
                    said = "done"
                except Exception as error:
                    said = f"{type(error).__name__}: {error}"
                os.write(ear, said.encode() + b"\n")
        finally:
            os._exit(0)
    os.close(ear)
    with os.fdopen(mouth, "rb") as answers:
        found = answers.read().decode().splitlines()
    os.waitpid(child, 0)
    return found


def test_a_forked_process_writes_nothing(tmp_path: Path, url: str) -> None:
    """It has the lock and the claim of the first: both wrote, and the first signed for what the other forgot."""
    with store.create(tmp_path / "s", BACKBONE, classifier(), keys=KEYS, ledger=url) as made:
        receipts = filled(made)
        found = forked(
            lambda: made.forget(receipts[:1]),
            lambda: made.learn(ROWS[COUNT:], LABELS[COUNT:], IDS[COUNT:]),
            lambda: made.publish(always=True),
            made.scrub,
            lambda: opened(tmp_path / "s"),
        )
        assert ["opened by process" in each and "Open the store after the fork" in each for each in found[:4]] == [
            True
        ] * 4
        assert "StoreLockedError" in found[4]
        assert len(found) == 5
        assert made.ledger.total() == COUNT
        made.forget(receipts[:1])
        assert made.publish().forgotten == 1
        made.check()


def test_a_forked_process_does_not_wait_for_a_thread_that_is_not_there(tmp_path: Path) -> None:
    """A thread was changing the store when the process was forked, and holds its lock for ever in the other."""
    with new(tmp_path / "s") as made:
        receipts, inside, done = filled(made), threading.Event(), threading.Event()

        def change() -> None:
            with made._exact().locked():
                inside.set()
                done.wait()

        thread = threading.Thread(target=change)
        thread.start()
        inside.wait()
        steps: list[Callable[[], object]] = [
            lambda: made.learn(ROWS[COUNT:], LABELS[COUNT:], IDS[COUNT:]),
            lambda: made.forget(receipts[:1]),
            lambda: made.forget_class(LABELS[0]),
            lambda: made.verdicts(receipts),
            made.publish,
            made.scrub,
            made.digest,
            made.statistics,
            made.check,
        ]
        try:
            found = forked(lambda: signal.alarm(20), *steps)
        finally:
            done.set()
            thread.join()
        assert found[0] == "done"
        assert ["Open the store after the fork" in each for each in found[1:]] == [True] * len(steps)


def test_a_forked_process_that_closes_leaves_the_lock(tmp_path: Path, url: str) -> None:
    with store.create(tmp_path / "s", BACKBONE, classifier(), keys=KEYS, ledger=url) as made:
        receipts = filled(made)
        assert forked(made.close) == ["done"]
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()} on"):
            opened(tmp_path / "s")
        made.forget(receipts[:1])


def test_close_does_not_wait_for_forked_processes(tmp_path: Path) -> None:
    """They have the file of the lock open."""
    mouth, ear = os.pipe()
    with new(tmp_path / "s"):
        child = os.fork()
        if not child:
            os.close(ear)
            os.read(mouth, 1)  # until the other end is closed
            os._exit(0)
    opened(tmp_path / "s").close()
    os.close(ear)
    os.close(mouth)
    assert os.waitpid(child, 0)[1] == 0


def test_a_writer_that_was_killed_leaves_no_lock_to_its_children(tmp_path: Path) -> None:
    """A worker that it had forked, and that outlived it, kept everybody out."""
    new(tmp_path / "s").close()
    mouth, ear = os.pipe()
    writer = os.fork()
    if not writer:
        opened(tmp_path / "s")
        if not os.fork():  # the worker, which lives until the other end is closed
            os.close(ear)
            os.read(mouth, 1)
        os._exit(0)
    assert os.waitpid(writer, 0)[1] == 0
    opened(tmp_path / "s").close()
    os.close(ear)
    os.close(mouth)


def test_a_fork_inside_a_transaction_commits_once(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        with made.ledger.writing() as writing:
            writing.set_meta("mine", "yes")
            (said,) = forked(lambda: made.ledger._database._commit(None, "write"))  # type: ignore[arg-type]
            assert "opened by process" in said
        assert made.ledger.meta("mine") == "yes"


def test_no_certificate_is_signed_if_ledger_and_sums_differ(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = filled(made)
        with made.ledger.writing() as writing:  # as if somebody else had
            writing.remove([next(made.ledger.samples()).number])
        with pytest.raises(StoreDamagedError, match="not of the same samples"):
            made.publish()
        assert made.published_number == 1
        assert len(list((tmp_path / "s" / "certificates").iterdir())) == 1
        assert len(receipts) == COUNT
