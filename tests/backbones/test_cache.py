"""The cache of features: never wrong, never in the way, and empty of what was discarded."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import ConfigurationError, FileRejectedError, InputError
from neverseen.backbones import Backbone, BaseSet, Cached, Precomputed, fingerprint
from neverseen.backbones import cache as cache_module
from neverseen.backbones import contents as contents_module
from tests.samples import uniform_bytes

WIDTH = 6


class Counting(Precomputed):
    """A backbone that counts the samples it sees, and whose features are noise: 32 bits a sample tell from others."""

    def __init__(self, n_features: int = WIDTH, name: str = "counting") -> None:
        super().__init__(n_features, name)
        self.seen = 0

    def extract(self, samples: Any) -> np.ndarray:
        listed = list(samples)
        self.seen += len(listed)
        rows = [noise(str(sample), self.n_features) for sample in listed]
        return np.stack(rows) if rows else np.zeros((0, self.n_features), np.float32)


def noise(sample: str, n_features: int) -> np.ndarray:
    """Finite floats with random mantissas."""
    raw = uniform_bytes(f"noise {sample}", n_features, 4).copy()
    raw[:, 3] = 0x3F  # of the exponent
    return raw.view("<f4")[:, 0].astype(np.float32)


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def traces(folder: Path, samples: Iterable[str], n_features: int = WIDTH) -> set[str]:
    """Return the samples of which any eight bytes, of features or fingerprint, are anywhere in the folder."""
    content = on_disk(folder)
    aligned = (np.frombuffer(content[start : len(content) - (len(content) - start) % 8], "<u8") for start in range(8))
    present = set(np.concatenate([words[words != 0] for words in aligned]).tolist())  # most of a small cache is empty
    found = set()
    for sample in samples:
        features = noise(sample, n_features).tobytes()
        words = np.frombuffer(fingerprint(sample) + features[: len(features) // 8 * 8], "<u8")
        if present.intersection(words.tolist()):
            found.add(sample)
    return found


def test_features_are_extracted_once(tmp_path: Path) -> None:
    counting = Counting()
    cached = Cached(counting, tmp_path)
    assert isinstance(cached, Backbone)
    features = cached.extract(["a", "b", "a"])
    assert np.array_equal(features, np.stack([noise(name, WIDTH) for name in "aba"]))
    assert (counting.seen, len(cached)) == (2, 2)
    assert np.array_equal(cached.extract(["b", "c", "a"])[[2, 0]], features[:2])
    assert (counting.seen, len(cached)) == (3, 3)
    again = Cached(Counting(), tmp_path)  # as another process would
    assert np.array_equal(again.extract(["a", "b", "a"]), features)
    assert again.backbone.seen == 0  # type: ignore[attr-defined]
    assert cached.extract([]).shape == (0, WIDTH)


def test_it_stands_for_its_backbone(tmp_path: Path) -> None:
    counting = Counting()
    counting.base = BaseSet("public", [bytes(16)], {})  # type: ignore[assignment]
    cached = Cached(counting, tmp_path)
    assert (cached.name, cached.n_features, cached.digest()) == ("counting", WIDTH, counting.digest())
    assert cached.base is counting.base
    assert Cached(Counting(name="other"), tmp_path).base is None
    assert repr(cached) == "Cached(Precomputed(6, name='counting'))"


def test_backbones_do_not_share_features(tmp_path: Path) -> None:
    first, second = Cached(Counting(), tmp_path), Cached(Counting(name="other"), tmp_path)
    first.extract(["a"])
    assert len(second) == 0
    second.extract(["a"])
    assert second.backbone.seen == 1  # type: ignore[attr-defined]


def test_the_files_are_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cached = Cached(Counting(), tmp_path / "new" / "folder")
        with cached._open() as database:  # the log is there while it is open
            database.execute("BEGIN IMMEDIATE")
            modes = {stat.S_IMODE(path.stat().st_mode) for path in cached.path.parent.iterdir()}
        assert len(list(cached.path.parent.iterdir())) >= 1
        assert modes == {0o600}
        assert stat.S_IMODE(cached.path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_the_folder_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVERSEEN_CACHE", str(tmp_path / "cache"))
    assert Cached(Counting()).path.parent == tmp_path / "cache" / "features"
    monkeypatch.delenv("NEVERSEEN_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Cached(Counting()).path.parent == tmp_path / ".cache" / "neverseen" / "features"


@pytest.mark.parametrize("n_features", [1, 6, 384, 1280, 5000])
def test_what_is_discarded_is_nowhere_on_disk(tmp_path: Path, n_features: int) -> None:
    cached = Cached(Counting(n_features), tmp_path)
    names = [f"sample {number}" for number in range(40)]
    cached.extract(names)
    assert traces(tmp_path, names, n_features) == set(names)
    cached.discard(fingerprint(name) for name in names[::3])
    with cached._open():  # the log is there while it is open
        assert traces(tmp_path, names, n_features) == set(names) - set(names[::3])
    assert len(cached) == 26
    cached.discard([fingerprint("never seen")])
    cached.clear()
    assert len(cached) == 0
    assert not traces(tmp_path, names, n_features)


@settings(max_examples=25)
@given(
    n_features=st.sampled_from([2, 30, 300]),
    requests=st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 60), min_size=1, max_size=30)), max_size=12),
)
def test_any_history_leaves_what_was_kept_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, n_features: int, requests: list[tuple[bool, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("history")
    cached, held, gone = Cached(Counting(n_features), folder), set[str](), set[str]()
    for is_extraction, numbers in requests:
        names = [str(number) for number in numbers]
        if is_extraction:
            expected = np.stack([noise(name, n_features) for name in names])
            assert np.array_equal(cached.extract(names), expected)
            held, gone = held | set(names), gone - set(names)
        else:
            cached.discard([fingerprint(name) for name in names])
            held, gone = held - set(names), gone | set(names)
    assert len(cached) == len(held)
    assert not traces(folder, gone, n_features)
    shutil.rmtree(folder)


def test_what_a_killed_process_left_in_the_log_goes_with_the_next_discard(tmp_path: Path) -> None:
    """A process dies with features in the log; the next one has never heard of the sample and is asked to discard it."""
    script = (
        "import os, sys; from pathlib import Path; from tests.backbones.test_cache import Cached, Counting\n"
        "cached = Cached(Counting(), Path(sys.argv[1]))\n"
        "held = cached._open()\n"
        "held.__enter__()\n"  # never closed, so the log stays
        "cached.extract(['a', 'b'])\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == 9
    assert any(path.name.endswith("-wal") and path.stat().st_size for path in tmp_path.iterdir())
    assert traces(tmp_path, ["a"])
    cached = Cached(Counting(), tmp_path)
    cached.discard([fingerprint("a")])
    assert not traces(tmp_path, ["a"])
    assert np.array_equal(cached.extract(["b"])[0], noise("b", WIDTH))
    assert cached.backbone.seen == 0  # type: ignore[attr-defined]


def change(path: Path, statement: str) -> None:
    """Do this to the tables of the samples "a" and "b"."""
    database = sqlite3.connect(path)
    first, second = (cache_module._table(fingerprint(name)) for name in "ab")
    with database:
        for table, other in ((first, second), (second, first)):
            database.execute(statement.format(table=table, other=other))
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {table} SET features = zeroblob(24)",
        "UPDATE {table} SET features = zeroblob(20)",
        "UPDATE {table} SET features = 'a text'",
        "UPDATE {table} SET features = CAST(x'ff' AS TEXT)",
        "UPDATE {table} SET features = 7",
        "UPDATE {table} SET checksum = zeroblob(16)",
        "UPDATE {table} SET checksum = 7",
        # the features of one sample under the name of another
        "UPDATE {table} SET features = (SELECT features FROM {other})",
        "UPDATE {table} SET (features, checksum) = (SELECT features, checksum FROM {other})",
        "DROP TABLE {table}",
        "ALTER TABLE {table} RENAME COLUMN checksum TO sum",
        "DELETE FROM {table}",
    ],
)
def test_rows_that_were_changed_are_extracted_anew(tmp_path: Path, statement: str) -> None:
    cached = Cached(Counting(), tmp_path)
    features = cached.extract(["a", "b"])
    change(cached.path, statement)
    assert np.array_equal(cached.extract(["a", "b"]), features)
    assert np.array_equal(Cached(Counting(), tmp_path).extract(["a", "b"]), features)
    assert cached.backbone.seen >= 3  # type: ignore[attr-defined]
    assert len(cached) == 2


def test_a_discard_passes_over_rows_that_are_no_rows(tmp_path: Path) -> None:
    cached = Cached(Counting(), tmp_path)
    table = cache_module._table(fingerprint("0"))
    first, *others = [name for name in map(str, range(900)) if cache_module._table(fingerprint(name)) == table][:7]
    cached.extract([first, *others])
    with closing(sqlite3.connect(cached.path, isolation_level=None)) as database:
        for name, value in zip(others, ("7", "NULL", "x''", "'text'", "CAST(x'ff' AS TEXT)"), strict=False):
            question = f"UPDATE {table} SET fingerprint = {value} WHERE fingerprint = ?"  # noqa: S608
            database.execute(question, (fingerprint(name),))
    cached.discard([fingerprint(first)])
    assert len(cached) == 1
    assert not traces(tmp_path, [first, *others[:-1]])
    assert np.array_equal(cached.extract(others[-1:])[0], noise(others[-1], WIDTH))
    assert cached.backbone.seen == 7  # type: ignore[attr-defined]


def test_the_rows_of_an_older_cache_are_moved(tmp_path: Path) -> None:
    """0.1.0 had one table, and left copies of rows in the gaps of its pages."""
    cached, names = Cached(Counting(), tmp_path), [str(number) for number in range(300)]
    rows = []
    for name in names:
        content = noise(name, WIDTH).tobytes()
        rows.append((fingerprint(name), content, cached._checksum(fingerprint(name), content)))
    with closing(sqlite3.connect(cached.path, isolation_level=None)) as database:
        database.execute(f"CREATE TABLE features {cache_module._COLUMNS}")
        database.executemany("INSERT INTO features VALUES (?, ?, ?)", [*rows, (7, rows[0][1], b"")])
        database.executemany("DELETE FROM features WHERE fingerprint = ?", [row[:1] for row in rows[:100]])
    assert traces(tmp_path, names[:100])  # it did not overwrite what it deleted at all
    cached.discard([fingerprint(name) for name in names[100:110]])
    assert len(cached) == 190
    assert np.array_equal(cached.extract(names[110:]), np.stack([noise(name, WIDTH) for name in names[110:]]))
    assert cached.backbone.seen == 0  # type: ignore[attr-defined]
    assert not traces(tmp_path, names[100:110])


def test_features_of_another_backbone_are_not_taken(tmp_path: Path) -> None:
    first, second = Cached(Counting(), tmp_path), Cached(Counting(name="other"), tmp_path)
    first.extract(["a"])
    first.path.rename(second.path)
    second.extract(["a"])
    assert second.backbone.seen == 1  # type: ignore[attr-defined]


@settings(max_examples=40)
@given(place=st.integers(0, 2**16), value=st.integers(1, 255), length=st.sampled_from([1, 16, 600]))
def test_damage_anywhere_gives_no_wrong_features(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, length: int
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    cached, names = Cached(Counting(300), folder), [str(number) for number in range(12)]
    features = cached.extract(names)
    content = bytearray(cached.path.read_bytes())
    for position in range(place % len(content), min(place % len(content) + length, len(content))):
        content[position] ^= value
    cached.path.write_bytes(content)
    assert np.array_equal(cached.extract(names), features)
    assert np.array_equal(cached.extract(names), features)
    cached.discard([fingerprint("3")])
    assert np.array_equal(cached.extract(names), features)
    shutil.rmtree(folder)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"SQLite format 3\0" + bytes(200), bytes(8192)])
def test_files_that_are_no_cache_are_replaced(tmp_path: Path, content: bytes) -> None:
    cached = Cached(Counting(), tmp_path)
    cached.path.write_bytes(content)
    assert len(cached) == 0
    cached.path.write_bytes(content)
    cached.discard([fingerprint("a")])
    cached.path.write_bytes(content)
    assert np.array_equal(cached.extract(["a"])[0], noise("a", WIDTH))
    assert len(cached) == 1


def test_a_cache_that_cannot_be_written_is_told_and_done_without(tmp_path: Path) -> None:
    cached = Cached(Counting(), tmp_path)
    cached.path.mkdir()
    with pytest.warns(RuntimeWarning, match="features could not be stored in .*: .*Is a directory"):
        assert np.array_equal(cached.extract(["a"])[0], noise("a", WIDTH))
    with pytest.raises(
        FileRejectedError, match="features could not be removed from .* Delete the file, or call this again"
    ):
        cached.discard([fingerprint("a")])


def test_who_will_not_let_go_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_PATIENCE", 0.05)
    cached = Cached(Counting(), tmp_path)
    cached.extract(["a", "b"])
    other = sqlite3.connect(cached.path, isolation_level=None)
    other.execute("BEGIN")
    question = f"SELECT * FROM {cache_module._table(fingerprint('a'))}"  # noqa: S608
    other.execute(question).fetchall()  # now it holds on to an older state
    with pytest.raises(FileRejectedError, match="another process keeps its log from being cut off: call this again"):
        cached.discard([fingerprint("a")])
    other.execute("ROLLBACK")
    cached.discard([fingerprint("a")])
    assert not traces(tmp_path, ["a"])
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(FileRejectedError, match="features could not be removed .*database is locked"):
        cached.discard([fingerprint("b")])
    with pytest.warns(RuntimeWarning, match="database is locked"):
        assert np.array_equal(cached.extract(["c"])[0], noise("c", WIDTH))
    other.close()
    assert np.array_equal(cached.extract(["b"])[0], noise("b", WIDTH))
    assert cached.path.exists()


WORKER = """
import random, sys
from contextlib import suppress
from pathlib import Path
import numpy as np
from neverseen.errors import FileRejectedError
from tests.backbones.test_cache import Cached, Counting, fingerprint, noise
cached, random = Cached(Counting(200), Path(sys.argv[1])), random.Random(sys.argv[2])
for _ in range(15):
    names = [str(random.randrange(50)) for _ in range(8)]
    assert np.array_equal(cached.extract(names), np.stack([noise(name, 200) for name in names]))
    with suppress(FileRejectedError):  # the other process may keep the log busy; then it is said, and done again below
        cached.discard([fingerprint(name) for name in names[:4]])
    len(cached)
"""


def test_processes_share_it(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", WORKER, str(tmp_path), str(number)])
        for number in range(2)
    ]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    cached = Cached(Counting(200), tmp_path)
    cached.discard([fingerprint(str(number)) for number in range(50)])
    assert len(cached) == 0
    assert not traces(tmp_path, map(str, range(50)), 200)


def test_large_requests_are_taken_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = Cached(Counting(), tmp_path)
    names = [str(number) for number in range(50)]
    for module, limit in ((cache_module, "_SAMPLES"), (contents_module, "PORTION_BYTES")):
        monkeypatch.setattr(module, limit, 7)
        assert np.array_equal(cached.extract(names), np.stack([noise(name, WIDTH) for name in names]))
        cached.clear()


@pytest.mark.parametrize("fingerprints", [["a"], [b"short"], [fingerprint("a").hex()]])
def test_what_is_no_fingerprint_is_refused(tmp_path: Path, fingerprints: Any) -> None:
    with pytest.raises(InputError, match="fingerprints must be 16 bytes each"):
        Cached(Counting(), tmp_path).discard(fingerprints)


def test_what_is_no_backbone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Cached wraps a backbone; got str"):
        Cached("backbone", tmp_path)  # type: ignore[arg-type]

    class Foreign(Counting):
        def digest(self) -> str:
            return "../../escaped"

    with pytest.raises(ConfigurationError, match="digest must be a SHA-256 in hex; got '../../escaped'"):
        Cached(Foreign(), tmp_path)
