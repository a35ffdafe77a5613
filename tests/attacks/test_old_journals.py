"""The promise: features of forgotten samples leave the journal with the first change after an hour, whoever makes it.

A journal holds the features of what was learned and forgotten in plain bytes, until it is folded into the sums. Each
command is a process of its own and makes one change: if each counted the hour from when it opened the store, no journal
would ever be old.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from neverseen import store
from neverseen.encoding import quantise
from neverseen.store import Store
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, never, new

DAY, HOUR, NOW = 86400.0, 3600.0, 1_700_000_000.0
GONE = 3


def at(folder: Path, when: float) -> Store:
    """Open the store as a command at that time does."""
    return store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy", clock=lambda: when)


def asked(folder: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as database:
        return database.execute(statement).fetchall()


def journal(folder: Path) -> list[bytes]:
    return [payload for (payload,) in asked(folder, "SELECT payload FROM neverseen_journal")]


def oldest(folder: Path) -> list[str]:
    return [value for (value,) in asked(folder, "SELECT value FROM neverseen_meta WHERE key = 'oldest'")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store that forgot a sample at `NOW`."""
    path = tmp_path / "s"
    new(path).close()
    with at(path, NOW) as made:
        receipts = made.learn(ROWS[:10], LABELS[:10], IDS[:10])
    with at(path, NOW) as made:
        made.forget([receipts[GONE]])
    features = quantise(ROWS[GONE : GONE + 1]).tobytes()
    assert [features in row for row in journal(path)] == [True, True]
    return path


def learn(made: Store, row: int) -> None:
    made.learn(ROWS[row : row + 1], LABELS[row : row + 1], IDS[row : row + 1])


def test_one_command_a_day(folder: Path) -> None:
    for day in range(1, 6):
        with at(folder, NOW + day * DAY) as made:
            learn(made, 10 + day)
            made.publish()
        if day % 2:  # the change of the other days is the oldest, and not yet an hour old
            assert journal(folder) == []
            assert oldest(folder) == []
    with at(folder, NOW + 6 * DAY) as made:
        assert made.digest() == never([row for row in [*range(10), *range(11, 16)] if row != GONE])


def test_commands_within_the_hour_do_not_fold(folder: Path) -> None:
    """To write the sums takes long: not at each change."""
    for row, seconds in enumerate((60.0, 600.0, HOUR), 10):
        with at(folder, NOW + seconds) as made:
            learn(made, row)
    assert len(journal(folder)) == 5
    with at(folder, NOW + HOUR + 1) as made:
        learn(made, 20)
    assert journal(folder) == []


def test_what_is_open_for_long_counts_from_the_oldest_change(folder: Path) -> None:
    now = [NOW]
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy", clock=lambda: now[0]) as made:
        now[0] += HOUR + 1
        learn(made, 10)
        assert journal(folder) == []
        now[0] += DAY
        learn(made, 11)  # the first of a new journal
        assert len(journal(folder)) == 1
        assert oldest(folder) == [str(int(now[0]))]
        now[0] += HOUR + 1
        learn(made, 12)
        assert journal(folder) == []


@pytest.mark.parametrize("seconds", [-1.0, -DAY])
def test_a_clock_that_was_set_back(folder: Path, seconds: float) -> None:
    """Nobody knows how old the journal is then, and it is folded."""
    with at(folder, NOW + seconds) as made:
        learn(made, 10)
        assert journal(folder) == []


def test_a_journal_of_an_older_version(folder: Path) -> None:
    asked(folder, "DELETE FROM neverseen_meta WHERE key = 'oldest'")
    with at(folder, NOW) as made:
        learn(made, 10)
        assert journal(folder) == []


def test_a_class_that_is_forgotten_is_a_change(folder: Path) -> None:
    with at(folder, NOW + DAY) as made:
        made.forget_class(int(LABELS[0]))
    assert journal(folder) == []


def test_a_change_that_is_refused_leaves_no_note(folder: Path) -> None:
    with at(folder, NOW) as made:
        made.scrub()
        assert oldest(folder) == []
        with pytest.raises(ValueError, match="belongs to a sample the model holds"):
            made.learn(ROWS[:1], LABELS[:1], IDS[:1])
        assert oldest(folder) == []
