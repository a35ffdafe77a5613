from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from neverseen import ConfigurationError, FileRejectedError, Key, Keyring


def test_the_file_is_private_and_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = Keyring.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loaded = Keyring.load(path)
    assert loaded.membership == keys.membership
    assert loaded.receipts == keys.receipts
    assert list(tmp_path.iterdir()) == [path]


def test_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Keyring.create(tmp_path / "created")
        Keyring.generate().save(tmp_path / "saved")
    finally:
        os.umask(before)
    for name in ("created", "saved"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_keys_are_never_overwritten_by_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    Keyring.create(path)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"already exists: open it with Keyring.load"):
        Keyring.create(path)
    assert path.read_bytes() == before


def test_rotation_is_on_disk_before_it_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.json"
    keys = Keyring.create(path)
    first = keys.receipts
    keys.rotate()
    assert keys.receipts[1:] == first
    assert keys.receipts[0] != first[0]
    assert Keyring.load(path).receipts == keys.receipts
    assert Keyring.load(path).membership == keys.membership
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    rotated = keys.receipts
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keys.rotate()
    assert keys.receipts == rotated
    monkeypatch.undo()
    assert Keyring.load(path).receipts == rotated


def test_rotations_of_two_processes_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    one = Keyring.create(path)
    two = Keyring.load(path)
    one.rotate()
    two.rotate()
    assert set(one.receipts) < set(two.receipts)
    assert Keyring.load(path).receipts == two.receipts
    script = f"from neverseen import Keyring; keys = Keyring.load({str(path)!r}); [keys.rotate() for _ in range(5)]"
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert len(Keyring.load(path).receipts) == 13


def test_saving_never_loses_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = Keyring.create(path)
    before = path.read_bytes()
    for other in (Keyring.generate(), Keyring.generate(keys.membership)):
        with pytest.raises(FileExistsError, match="holds other keys, which would be lost"):
            other.save(path)
    assert path.read_bytes() == before
    more = Keyring(keys.membership, [Key.generate(), *keys.receipts])
    more.save(path)
    assert Keyring.load(path).receipts == more.receipts
    (tmp_path / "other").write_text("notes")
    with pytest.raises(FileRejectedError):
        keys.save(tmp_path / "other")


def test_links_and_other_folders_lead_to_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vault").mkdir()
    Keyring.create(tmp_path / "vault" / "keys.json")
    (tmp_path / "link").symlink_to(tmp_path / "vault" / "keys.json")
    monkeypatch.chdir(tmp_path)
    keys = Keyring.load("link")
    monkeypatch.chdir(tmp_path / "vault")
    keys.rotate()
    assert (tmp_path / "link").is_symlink()
    assert len(Keyring.load(tmp_path / "vault" / "keys.json").receipts) == 2


def test_old_keys_can_be_dropped() -> None:
    keys = Keyring.generate()
    for _ in range(4):
        keys.rotate()
    assert len(keys.receipts) == 5
    newest = keys.receipts[0]
    keys.rotate(keep=1)
    assert list(keys.receipts[1:]) == [newest]
    keys.rotate(keep=0)
    assert len(keys.receipts) == 1
    wrong: Any
    for wrong in (-1, 1.5, "all"):
        with pytest.raises(ConfigurationError, match="keep must be a number of keys, 0 or more"):
            keys.rotate(keep=wrong)


def test_rotations_at_once_lose_no_key(tmp_path: Path) -> None:
    keys = Keyring.create(tmp_path / "keys.json")
    threads = [threading.Thread(target=keys.rotate) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys.receipts)) == 13
    assert Keyring.load(tmp_path / "keys.json").receipts == keys.receipts


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    Keyring.create(path)
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(FileRejectedError, match=f"mode {mode:o}.*chmod 600"):
            Keyring.load(path)
    path.chmod(0o400)
    Keyring.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"format":"neverseen-keys-2","membership":"00","receipts":[]}',
        b'{"format":"neverseen-keys-1","membership":"' + b"0" * 64 + b'","receipts":[]}',
        b'{"format":"neverseen-keys-1","membership":"'
        + b"0" * 64
        + b'","receipts":["'
        + b"0" * 64
        + b'"]}',  # the same
        b'{"format":"neverseen-keys-1","membership":"' + b"0" * 62 + b'","receipts":["' + b"1" * 64 + b'"]}',  # short
        b'{"format":"neverseen-keys-1","membership":"' + b"g" * 64 + b'","receipts":["' + b"1" * 64 + b'"]}',
        b'{"format":"neverseen-keys-1","membership":"' + b"0" * 64 + b'","more":1,"receipts":["' + b"1" * 64 + b'"]}',
        b" " * (2**20 + 1),
    ],
)
def test_other_files_are_refused_and_not_quoted(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(FileRejectedError, match="damaged, or not a file of format neverseen-keys-1") as refusal:
        Keyring.load(path)
    assert "000000" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no key file .*none: make one with Keyring.create"):
        Keyring.load(tmp_path / "none")
    for call in (Keyring.create, Keyring.generate().save):
        with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere for keys does not exist"):
            call(tmp_path / "nowhere" / "keys")


def test_keys_do_not_show() -> None:
    keys = Keyring.generate()
    shown = repr(keys) + repr(keys.membership) + str(keys.receipts)
    for key in (keys.membership, *keys.receipts):
        assert key.reveal().hex() not in shown
        assert repr(key.reveal()) not in shown


def test_what_a_keyring_is_made_of_is_checked() -> None:
    key, other = Key(bytes(32)), Key(bytes([1] * 32))
    wrong: Any
    for wrong in ((key, []), (bytes(32), [key]), (key, [bytes(32)])):
        with pytest.raises(ConfigurationError, match="at least one receipt key"):
            Keyring(*wrong)
    with pytest.raises(ConfigurationError, match="must all be different"):
        Keyring(key, [key])
    assert Keyring(key, [other]).receipts == (other,)
    assert Keyring.generate(key).membership == key


def test_keys_for_a_purpose_are_made_from_others() -> None:
    key = Key(bytes(32))
    assert key.derive(b"one") == Key(bytes(32)).derive(b"one")
    assert len({key, key.derive(b"one"), key.derive(b"two"), key.derive(b"one").derive(b"one")}) == 4


def test_what_a_killed_rotation_leaves_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds keys: those that the next rotation drops would stay on disk."""
    path = tmp_path / "keys.json"
    keys = Keyring.create(path)
    child = os.fork()
    if not child:
        monkeypatch.setattr(Path, "replace", lambda *_: os._exit(9))
        keys.rotate()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.name.startswith(".keys.json.")
    others = {tmp_path / ".keys.json.bak", tmp_path / ".other.json.abcdefgh", tmp_path / "keys.json.abcdefgh"}
    for other in others:
        other.write_bytes(b"somebody's own")
    keys.rotate(keep=0)
    assert set(tmp_path.iterdir()) == {path} | others
