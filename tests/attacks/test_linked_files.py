"""The promise: an archive that `export` reports as written holds the whole store.

The keys or the certificates of a store may be links, to another disk for example. An archive of links alone could be
imported nowhere, and would be found useless when the store is gone.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from neverseen import StoreDamagedError, store
from tests.store.test_store import BACKBONE, LABELS, ROWS, classifier


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with store.create(tmp_path / "s", BACKBONE, classifier()) as made:
        receipts = made.learn(ROWS[:9], LABELS[:9])
        made.publish()
        made.forget(receipts[:1])
        made.publish()
    return tmp_path / "s"


def move_away(path: Path) -> Path:
    """Put a link in the place of a file or folder, and return where it is now."""
    away = path.parent.parent / f"{path.name} elsewhere"
    path.rename(away)
    path.symlink_to(away)
    return away


@pytest.mark.parametrize("name", ["keys.json", "signing.json", "ledger.sqlite", "certificates", "sums", "versions"])
def test_links_are_followed(folder: Path, tmp_path: Path, name: str) -> None:
    away = move_away(folder / name)
    digest = store.write_archive(folder, tmp_path / "s.tar")
    shutil.rmtree(folder)
    shutil.rmtree(away) if away.is_dir() else away.unlink()
    assert store.read_archive(tmp_path / "again", tmp_path / "s.tar") == digest
    with store.open(tmp_path / "again") as again:
        assert again.learn(ROWS[9:10], LABELS[9:10])  # with the keys
        assert len(again.certificates()) == 2
        assert len(again.predict(ROWS)) == len(ROWS)


def test_two_names_of_one_file_are_two_files(folder: Path, tmp_path: Path) -> None:
    os.link(folder / "store.json", folder / ("0" * 64))
    store.write_archive(folder, tmp_path / "s.tar")
    with tarfile.open(tmp_path / "s.tar") as archive:
        assert all(member.isreg() for member in archive)


@pytest.mark.parametrize("name", ["keys.json", "certificates/00000001.json", "versions/00000002.safetensors"])
def test_no_archive_without_a_file_that_the_store_needs(folder: Path, tmp_path: Path, name: str) -> None:
    path = folder / name
    path.unlink()
    if name == "keys.json":
        path.symlink_to(tmp_path / "a disk that is not there")
    with pytest.raises(StoreDamagedError, match=f"{name} is missing"):
        store.write_archive(folder, tmp_path / "s.tar")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["s"]
