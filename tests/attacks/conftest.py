"""A store to attack: it has learned, forgotten, published and sealed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.store.test_store import IDS, LABELS, ROWS, new


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "s"
    with new(folder) as made:
        receipts = made.learn(ROWS[:20], LABELS[:20], IDS[:20])
        made.publish()
        made.forget(receipts[:2])
        made.seal()
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "s"))
