"""A store that may not be written: predictions, status and checks work, changes are refused, and nothing is made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.errors import LedgerError
from neverseen.ledger import Ledger, in_file, sqlite
from tests.cli.test_cli import NAMES, ROWS, _here, answer, run, write_csv

__all__ = ["_here"]


def new() -> None:
    write_csv("all.csv", ROWS, NAMES)
    settings = AnalyticClassifier(RandomProjection(24), gamma=512)
    with store.create("shop", Precomputed(8), settings) as model:
        receipts = model.learn(ROWS, NAMES)
        model.publish()
        model.forget(receipts[0])
        model.publish()
        Path("mine").write_bytes(receipts[0])


def state(folder: str) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(Path(folder).rglob("*"))
    }


@pytest.fixture
def mounted() -> Iterator[str]:
    """A store on a read-only mount; else, where this user is bound by permissions, in a read-only folder."""
    new()
    Path("mount").mkdir()
    mount = shutil.which("mount")
    commands = [["--bind", "shop", "mount"], ["-o", "remount,ro,bind", "mount"]]
    if os.geteuid() == 0 and mount:
        done = [subprocess.run([mount, *words], capture_output=True, check=False).returncode for words in commands[:1]]
        if done == [0]:
            try:
                if subprocess.run([mount, *commands[1]], capture_output=True, check=False).returncode:
                    pytest.skip("this user may not mount")
                yield "mount"
            finally:
                subprocess.run([str(shutil.which("umount")), "mount"], check=True)
            return
        pytest.skip("this user may not mount")
    if os.geteuid() == 0:
        pytest.skip("there is no mount")
    Path("shop").chmod(0o555)
    try:
        yield "shop"
    finally:
        Path("shop").chmod(0o755)


def look(folder: str) -> None:
    """Do all that reads."""
    assert answer("status", folder)["samples"] == 47
    assert len(answer("predict", folder, "all.csv")["predictions"]) == 48
    assert len(answer("history", folder)) == 2
    run("certificate", folder)
    run("verify", "chain", folder)
    run("verify", "weights", folder)
    assert answer("verify", "mine", folder, "--receipt", "mine")["held"] == [None]
    run("export", folder, "out.safetensors")


def test_a_read_only_mount_is_read(mounted: str) -> None:
    before = state("shop")
    look(mounted)
    for words in (["learn", "all.csv"], ["publish"], ["seal"], ["forget", "--receipts", "mine"]):
        refused = run(words[0], mounted, *words[1:], code=1)
        assert "cannot be written: it is mounted read-only" in refused
        assert "predict, status, history" in refused
    with pytest.raises(PermissionError, match="write=False"):
        store.open(mounted, backbone=Precomputed(8))
    assert state("shop") == before
    assert not list(Path().glob("receipts*"))


def test_a_read_only_mount_follows_who_writes_elsewhere(mounted: str) -> None:
    if mounted == "shop":
        pytest.skip("this user may not mount")
    with store.open(mounted, write=False) as reader:
        assert reader.published_number == 2
        with store.open("shop", backbone=Precomputed(8)) as writer:
            writer.learn(ROWS, NAMES)
            assert (reader.published_number, reader.status()["samples"]) == (2, 95)
            writer.publish()
            assert reader.published_number == 3
            assert len(reader.predict(ROWS)) == 48
        assert (reader.published_number, reader.status()["samples"]) == (3, 95)


def test_a_ledger_that_may_not_be_written_is_read_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a mount: told that it may not write, the ledger makes no file and changes none."""
    new()
    before = state("shop")
    monkeypatch.setattr(sqlite, "may_write", lambda path: False)
    look("shop")
    assert state("shop") == before
    with Ledger(in_file(Path("shop/ledger.sqlite").absolute())) as ledger:
        with pytest.raises(LedgerError, match="may not be written here"), ledger.writing() as writing:
            writing.set_meta("a", "b")
        rows = ledger.samples()
        next(rows)
        os.utime("shop/ledger.sqlite", (1, 1))  # somebody else wrote it
        with pytest.raises(LedgerError, match="changed while it was being read"):
            list(rows)


def test_a_log_that_cannot_be_carried_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy made while a writer was at work, without the file that tells readers where the log ends."""
    new()
    with store.open("shop", backbone=Precomputed(8)) as writer:
        writer.learn(ROWS, NAMES)
        Path("copy").mkdir()
        for name in ("ledger.sqlite", "ledger.sqlite-wal", "store.json"):
            shutil.copy(f"shop/{name}", f"copy/{name}")
        assert Path("copy/ledger.sqlite-wal").stat().st_size
    monkeypatch.setattr(sqlite, "may_write", lambda path: False)
    monkeypatch.setattr(sqlite.SQLite, "_mode", lambda self: "mode=ro&immutable=0&readonly_shm=1")
    assert "open the store once where it may" in run("status", "copy", code=1)
