"""The promise: a store builds on no file of its folder that is not what it wrote, and says which file is wrong.

The attacker can write to the folder, or hands over an archive, and has no key: he alters the sums, the description or a
manifest, and makes all names and digests fit, for none of them is keyed. What a certificate states is compared with it.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from neverseen.certificates import check_chain
from neverseen.hardware import choose
from neverseen.statistics import Statistics
from neverseen.store.snapshots import read_snapshot, write_snapshot
from tests.attacks.test_rollback import refused
from tests.test_store import IDS, LABELS, ROWS, never, new, opened


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


def noted(folder: Path, key: str, value: str | None = None) -> str:
    """Return a note of the ledger, and put another in its place."""
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as ledger:
        ((found,),) = ledger.execute("SELECT value FROM neverseen_meta WHERE key = ?", (key,))
        if value is not None:
            ledger.execute("UPDATE neverseen_meta SET value = ? WHERE key = ?", (value, key))
    return str(found)


# -- sums --------------------------------------------------------------------------------------------


def alter_sums(folder: Path, change: Callable[[Statistics], None]) -> None:
    """Change the sums of a store, and name the new ones in its ledger."""
    sums = read_snapshot(folder / "sums", noted(folder, "snapshot"), choose("numpy"))
    change(sums)
    noted(folder, "snapshot", write_snapshot(folder / "sums", sums))


def shift_a_class(sums: Statistics) -> None:
    rows = {name: np.array(row) for name, row in sums.sums.items()}
    row = next(iter(rows.values()))
    row -= np.sign(row)
    sums.sums = rows


def shift_the_matrix(sums: Statistics) -> None:
    matrix = np.array(sums.gram)
    matrix[0, 1] -= 1
    matrix[1, 0] -= 1
    sums.gram = matrix


@pytest.mark.parametrize("change", [shift_a_class, shift_the_matrix])
def test_sums_are_altered_and_nothing_was_changed_since_the_certificate(
    change: Callable[[Statistics], None], folder: Path
) -> None:
    alter_sums(folder, change)
    refused(folder, "the sums in .* are not those that certificate 2 states, and the ledger has no change since")


def test_the_journal_is_altered_in_place_of_the_sums(tmp_path: Path) -> None:
    """What was learned is not folded yet: the sums are the snapshot and a journal that is gone, as are its samples."""
    folder = tmp_path / "s"
    with new(folder) as made:
        made.learn(ROWS[:20], LABELS[:20], IDS[:20])
        made.publish()
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as ledger:
        ledger.execute("DELETE FROM neverseen_journal")
        ledger.execute("DELETE FROM neverseen_classes")
    refused(folder, "the ledger of .* has 0 samples and 0 forgotten since certificate 1, which states 20: restore")


def test_an_empty_store_has_sums(tmp_path: Path) -> None:
    """They would be part of every later certificate."""
    folder = tmp_path / "s"
    new(folder).close()
    alter_sums(folder, lambda sums: setattr(sums, "gram", np.eye(24, dtype=np.int64)))
    refused(folder, "not those of any samples: there is no class, and the Gram matrix is not zero")


def test_the_store_of_the_tests_is_not_refused(folder: Path) -> None:
    """So that the refusals above are refusals of the attack."""
    alter_sums(folder, lambda sums: None)
    with opened(folder) as made:
        assert made.digest() == never(list(range(2, 20)))
        made.learn(ROWS[30:32], LABELS[30:32])
    with opened(folder) as made:  # what is not published yet is not compared
        assert made.publish().number == 3
        check_chain(made.certificates(), made.description.public_key)
