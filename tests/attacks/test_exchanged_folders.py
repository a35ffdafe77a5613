"""The promise: what is acknowledged is in the store that is found there later, and in no other.

The attack: while a store is open, put another copy in its place. Somebody restores a backup under a running service,
replaces the ledger, or lets a link point to another copy. SQLite goes on in the file that it has open, even if that is
deleted, and files of sums and certificates go to the other folder.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from neverseen import store
from neverseen.errors import LedgerError
from tests.services import BACKBONE, KEYS, never, new_store, running
from tests.store import test_store as stores
from tests.store.test_store import IDS, LABELS, ROWS, new, opened
from tests.waiting import eventually


def exchange(there: Path, way: str) -> None:
    """Put the copy beside a store in its place. What was there is moved, deleted, or no longer what the link names."""
    copy, moved = there.with_name("copy"), there.with_name("moved")
    if way == "ledger":
        shutil.copytree(there, moved)
        (copy / "ledger.sqlite").replace(there / "ledger.sqlite")
        for ending in ("wal", "shm"):
            (there / f"ledger.sqlite-{ending}").unlink(missing_ok=True)
    elif way == "link":
        there.unlink()
        there.symlink_to(copy)
    else:
        shutil.rmtree(there) if way == "deleted" else there.rename(moved)
        copy.rename(there)


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "ledger.sqlite-shm"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("way", ["link", "folder", "deleted", "ledger"])
def test_nothing_is_written_to_another_store(tmp_path: Path, way: str) -> None:
    there, first = tmp_path / "s", tmp_path / ("first" if way == "link" else "s")
    with new(first) as made:
        made.learn(ROWS[:4], LABELS[:4], IDS[:4])
        made.seal()
    shutil.copytree(first, tmp_path / "copy")
    if way == "link":
        there.symlink_to(first)
    with opened(there) as made:
        made.learn(ROWS[4:6], LABELS[4:6], IDS[4:6])
        exchange(there, way)
        before = contents(there)
        for change in (partial(made.learn, ROWS[6:8], LABELS[6:8]), made.publish, made.seal, made.scrub):
            with pytest.raises(LedgerError, match="when it was opened"):
                change()
        assert contents(there).items() >= before.items()
    with opened(there) as again:
        again.check()
        assert (again.status()["samples"], again.published_number) == (4, 1)
    moved = first if way == "link" else tmp_path / "moved"
    if moved.exists():
        with opened(moved) as again:
            again.check()
            assert (again.status()["samples"], again.published_number) == (6, 1)


def test_a_ledger_in_a_database_elsewhere_changes_nothing_about_that(tmp_path: Path, schema: str) -> None:
    there = tmp_path / "s"
    with store.create(there, stores.BACKBONE, stores.classifier(), keys=stores.KEYS, ledger=schema) as made:
        made.learn(ROWS[:4], LABELS[:4], IDS[:4])
        shutil.copytree(there, tmp_path / "copy")
        exchange(there, "folder")
        before = contents(there)
        for change in (made.publish, made.scrub):
            with pytest.raises(LedgerError, match="when it was opened"):
                change()
        assert contents(there) == before


def test_a_restored_ledger_takes_the_forget_of_a_running_service(tmp_path: Path) -> None:
    new_store(tmp_path / "s")
    with running(tmp_path / "s") as service:
        receipts = service.learn(range(20))
        service.client.post("/v1/seal", headers=service.admin)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    with running(tmp_path / "s") as service:
        exchange(tmp_path / "s", "ledger")
        assert service.forget(receipts[:5]).status_code == 503
        eventually(lambda: service.forget(receipts[:5]).status_code == 202, "the restored store takes no forget")
    with store.open(tmp_path / "s", backbone=BACKBONE, keys=KEYS) as again:
        again.check()
        assert again.digest() == never(range(5, 20))
