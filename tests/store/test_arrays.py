from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import StoreDamagedError
from neverseen.engine.statistics import Statistics
from neverseen.hardware import choose
from neverseen.store.arrays import BLOCK, StoredArray, write_array
from neverseen.store.snapshots import StoredClassGrams, files_of, read_snapshot, write_snapshot
from tests.samples import codes, uniform_bytes


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5), (BLOCK // 8 + 3,)])
def test_round_trip(dtype: type, shape: tuple[int, ...], tmp_path: Path) -> None:
    array: np.ndarray = uniform_bytes("arrays", *shape).astype(dtype)
    name = write_array(tmp_path, array)
    stored = StoredArray(tmp_path, name)
    assert stored.read().tolist() == array.tolist()
    assert stored.read().dtype == dtype
    assert not stored.read().flags.writeable
    assert write_array(tmp_path, array) == name
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_names_follow_content(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int16)
    names = {write_array(tmp_path, other) for other in (array, array + 1, array.reshape(2, 3), array.astype(np.int32))}
    assert len(names) == 4


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damaged_byte_is_named(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("rot")
    name = write_array(folder, uniform_bytes("rot", 3 * BLOCK // 2).astype(np.int8))
    raw = bytearray((folder / name).read_bytes())
    place = data.draw(
        st.one_of(st.integers(0, len(raw) - 1), st.integers(0, 300), st.integers(len(raw) - 40, len(raw) - 1))
    )
    raw[place] ^= data.draw(st.integers(1, 255))
    (folder / name).write_bytes(raw)
    with pytest.raises(StoreDamagedError, match=name):
        StoredArray(folder, name).read()


def test_a_file_that_is_removed_while_it_is_opened_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a process that folds its journal while another reads: the reader must know to look again."""
    name = write_array(tmp_path, np.arange(6, dtype=np.int16))
    header = StoredArray._header

    def removed_after(self: StoredArray) -> Any:
        found = header(self)
        self.path.unlink()
        return found

    monkeypatch.setattr(StoredArray, "_header", removed_after)
    with pytest.raises(StoreDamagedError, match="is missing"):
        StoredArray(tmp_path, name)


def test_the_block_that_rotted_is_named(tmp_path: Path) -> None:
    name = write_array(tmp_path, np.zeros(5 * BLOCK, np.int8))
    with (tmp_path / name).open("r+b") as file:
        file.seek(4096 + 3 * BLOCK + 17)
        file.write(b"\1")
    with pytest.raises(StoreDamagedError, match=rf"block 3 \(bytes {4096 + 3 * BLOCK} to {4096 + 4 * BLOCK}\)"):
        StoredArray(tmp_path, name).read()


@pytest.mark.parametrize("size", [0, 7, 100, 4095, 4096, -1])
def test_cut_or_grown(size: int, tmp_path: Path) -> None:
    name = write_array(tmp_path, np.arange(1000))
    raw = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(raw[:size])
    with pytest.raises(StoreDamagedError, match=name):
        StoredArray(tmp_path, name).read()
    (tmp_path / name).write_bytes(raw + b"\0")
    with pytest.raises(StoreDamagedError, match="cut or grew"):
        StoredArray(tmp_path, name)
    (tmp_path / name).unlink()
    with pytest.raises(StoreDamagedError, match="is missing"):
        StoredArray(tmp_path, name)


def statistics(rows: list[int], tracked: bool) -> Statistics:
    found = Statistics.of(
        codes("snapshots", 40, 9)[rows], [["a", "b", ("c", 1)][row % 3] for row in rows], None, tracked
    )
    if tracked:
        grams = StoredClassGrams(9)
        assert found.class_grams is not None
        for name in found.class_grams:
            grams.put(name, found.class_grams.packed(name))
        found.class_grams = grams
    return found


@pytest.mark.parametrize("tracked", [False, True])
def test_snapshots_depend_on_what_is_held_alone(tracked: bool, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    detour = statistics(list(range(40)), tracked)
    write_snapshot(tmp_path / "one", detour)
    detour.subtract(statistics(list(range(25, 40)), tracked))
    name = write_snapshot(tmp_path / "one", detour)
    assert name == write_snapshot(tmp_path / "two", statistics(list(range(25)), tracked))
    wanted = files_of(tmp_path / "two", name)
    assert wanted == {path.name for path in (tmp_path / "two").iterdir()}
    for file in wanted:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    again = read_snapshot(tmp_path / "one", name, choose("numpy"))
    assert again == statistics(list(range(25)), tracked)
    assert again.digest() == detour.digest()
    if tracked:
        again.remove_class('"a"')
        detour.remove_class('"a"')
        assert again == detour


def test_classes_that_did_not_change_are_not_written_again(tmp_path: Path) -> None:
    held = statistics(list(range(30)), True)
    first = files_of(tmp_path, write_snapshot(tmp_path, held))
    held.merge(statistics([30], True))  # of class "a"
    second = files_of(tmp_path, write_snapshot(tmp_path, held))
    assert len(first & second) == 2  # the other two classes
    assert len(first) == len(second) == 6


def test_a_missing_or_damaged_snapshot_is_named(tmp_path: Path) -> None:
    name = write_snapshot(tmp_path, statistics([1, 2, 3], False))
    path = tmp_path / f"{name}.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1", b"2", 1))
    with pytest.raises(StoreDamagedError, match=rf"{name}.json is damaged"):
        read_snapshot(tmp_path, name, choose("numpy"))
    path.unlink()
    with pytest.raises(StoreDamagedError, match=rf"{name}.json is missing"):
        read_snapshot(tmp_path, name, choose("numpy"))
