"""Files are written whole or not at all, and secrets are read only from files that are private."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest

from neverseen.errors import FileRejectedError
from neverseen.io.files import create_file, leftovers_of, locked_folder, read_secret, replace_file, require_file


def test_a_file_is_private_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, [b"first"])
    replace_file(path, [b"sec", b"ond"])
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_file_as_it_was_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    for write in (replace_file, create_file):
        with pytest.raises(OSError, match="No space left") as caught:
            write(path, [b"new"])
        assert caught.value.filename == str(path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_takes_nobodys_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    if not links:  # as on FAT

        def unsupported(*_: object) -> NoReturn:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", unsupported)
    path = tmp_path / "file"
    create_file(path, [b"mine"])
    with pytest.raises(FileExistsError):
        create_file(path, [b"yours"])
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"mine", [path])


def test_leftovers_are_those_of_one_file(tmp_path: Path) -> None:
    left, folder = tmp_path / ".keys.json.abcdefgh", tmp_path / ".keys.json.abcdefg_"
    folder.mkdir()
    for path in (left, tmp_path / ".keys.json.bak", tmp_path / "keys.json.abcdefgh", tmp_path / ".other.abcdefgh"):
        path.touch()
    assert leftovers_of(tmp_path / "keys.json") == [left]
    assert sorted(leftovers_of(tmp_path / "keys.json", folders=True)) == sorted([left, folder])


def test_a_secret_is_private_and_not_too_long(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    replace_file(path, [b"0123456789"])
    assert read_secret(path, 10) == b"0123456789"
    assert read_secret(path, 5) == b"012345"  # one byte more than the limit: too long
    path.chmod(0o640)
    with pytest.raises(FileRejectedError, match=r"others may read or change it \(mode 640\)"):
        read_secret(path, 10)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    require_file(Path(__file__), "a file")
    with pytest.raises(FileNotFoundError, match="there is no .*absent: give a key file"):
        require_file(tmp_path / "absent", "a key file")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(FileRejectedError, match="is a folder, a pipe or a device: give a key file"):
            require_file(path, "a key file")


@pytest.mark.parametrize("first", ["parent", "child"])
def test_a_forked_process_has_no_part_in_a_lock(tmp_path: Path, first: str) -> None:
    """It neither holds the folder after its parent has let go, nor lets go of it before."""
    go, told = os.pipe(), os.pipe()

    def is_free() -> bool:
        handle = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(handle)
        return True

    with locked_folder(tmp_path):
        child = os.fork()
        if child and first == "child":
            assert os.read(told[0], 1) == b"x"
            assert not is_free()
        if not child and first == "parent":
            os.read(go[0], 1)
    if not child:
        os.write(told[1], b"x")
        os._exit(0)
    try:
        assert is_free()
    finally:
        os.write(go[1], b"x")
        os.waitpid(child, 0)
        for end in (*go, *told):
            os.close(end)
