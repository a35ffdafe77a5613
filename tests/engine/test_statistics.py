from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import ConfigurationError, HardwareError, InputError, LimitError, NotLearnedError
from neverseen.engine import statistics as statistics_module
from neverseen.engine.arithmetic import MAX_SAMPLES
from neverseen.engine.classes import ClassGrams, ClassSums
from neverseen.engine.packing import narrowed, pack_triangle, unpack_triangle
from neverseen.engine.solver import solve
from neverseen.engine.statistics import Statistics
from neverseen.hardware import Hardware, choose
from neverseen.hardware.numpy_cpu import NumpyHardware
from tests import oracle
from tests.samples import codes, uniform_bytes

SIZE = 6
CODES = codes("statistics", 30, SIZE)
LABELS = [("a", "b", ("c", 1))[value % 3] for value in uniform_bytes("statistics:labels", 30)]


def of(rows: list[int], **options: object) -> Statistics:
    return Statistics.of(CODES[rows], [LABELS[row] for row in rows], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [[], [0], list(range(30)), [3, 3, 3]])
def test_sums_are_the_specified_ones(rows: list[int], hardware: Hardware) -> None:
    found = Statistics.of(hardware.array(CODES[rows]), [LABELS[row] for row in rows], hardware)
    expected = oracle.statistics(CODES[rows].tolist(), [LABELS[row] for row in rows])
    if rows:
        assert hardware.numpy(found.gram).tolist() == expected.gram
        assert found.cross().tolist() == expected.cross
    assert found.classes == [oracle.label_text(label) for label in expected.classes]
    assert [found.counts[name] for name in found.classes] == list(expected.counts)


@given(st.lists(st.integers(0, 29), min_size=1, max_size=20), st.data())
@settings(max_examples=60)
def test_any_order_and_grouping_gives_the_same_sums(rows: list[int], data: st.DataObject) -> None:
    gone = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True))
    total = Statistics(SIZE, track_classes=True)
    for row in data.draw(st.permutations(rows)):
        total.merge(of([row], track_classes=True))
    if gone:
        total.remove(CODES[[rows[i] for i in gone]], [LABELS[rows[i]] for i in gone])
    left = [row for i, row in enumerate(rows) if i not in gone]
    expected = Statistics(SIZE, track_classes=True)
    expected.add(CODES[left], [LABELS[row] for row in left])
    assert total == expected
    assert total.digest() == expected.digest()
    assert set(total.class_grams or ()) == set(expected.class_grams or ()) == set(expected.counts)
    for name in expected.counts:
        assert total.class_grams is not None
        assert expected.class_grams is not None
        packed = total.class_grams.packed(name)
        assert packed.dtype == expected.class_grams.packed(name).dtype
        assert np.array_equal(packed, expected.class_grams.packed(name))


def test_a_class_goes_by_its_own_sums(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "spill"):
        total = Statistics(SIZE, track_classes=True, class_folder=folder)
        total.add(CODES, LABELS)
        total.remove_class('"b"')
        assert total == of([row for row in range(30) if LABELS[row] != "b"])
        with pytest.raises(NotLearnedError, match='class "b" is not held'):
            total.remove_class('"b"')


FORKED = """
import os, sys
import numpy as np
from neverseen.engine.statistics import Statistics

codes, labels = np.arange(12, dtype=np.int8).reshape(4, 3), ["a", "b", "a", "b"]
total, never = Statistics(3, track_classes=True, class_folder=sys.argv[1]), Statistics(3)
total.add(codes, labels)
child = os.fork()
if child == 0:
    total.remove(codes[:1], labels[:1])
    total.remove_class('"b"')
    never.add(codes[2:3], labels[2:3])
else:
    assert os.waitpid(child, 0)[1] == 0
    assert len(os.listdir(sys.argv[1])) == 1
    total.remove(codes[1:2], labels[1:2])
    total.remove_class('"a"')
    never.add(codes[3:], labels[3:])
assert total == never
"""


def test_class_sums_are_not_changed_or_removed_by_a_forked_process(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKED, str(tmp_path)], check=True)
    assert not any(tmp_path.iterdir())


def test_class_sums_are_spilled_to_a_private_folder_and_removed_with_the_object(tmp_path: Path) -> None:
    total = Statistics(SIZE, track_classes=True, class_folder=tmp_path)
    total.add(CODES, LABELS)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(folder.glob("*.npy"))) == 3
    assert not list(folder.glob("*.partial"))
    total.remove_class('"a"')
    assert len(list(folder.glob("*.npy"))) == 2
    for twin in (pickle.loads(pickle.dumps(total)), copy.deepcopy(total)):  # noqa: S301
        twin.remove_class('"b"')
        assert '"b"' in total.counts
        assert len(list(folder.glob("*.npy"))) == 2
    del total, twin
    assert not folder.exists()


def test_refusals_change_nothing() -> None:
    total = of([0, 1, 2, 3], track_classes=True)
    before = total.digest()
    with pytest.raises(NotLearnedError, match="samples of class .* are held; .* were to be removed"):
        total.remove(CODES[[0, 0, 0, 0, 0]], [LABELS[0]] * 5)
    with pytest.raises(NotLearnedError, match="are not among those held"):
        total.remove(CODES[[9, 8, 7, 6]][: total.counts['"a"']], ["a"] * total.counts['"a"'])
    with pytest.raises(ConfigurationError, match="over 6 and 2 codes"):
        total.merge(Statistics(2, track_classes=True))
    with pytest.raises(ConfigurationError, match="keeps class sums and the other does not"):
        total.merge(of([0]))
    huge = of([0], track_classes=True)
    huge.counts[next(iter(huge.counts))] = MAX_SAMPLES
    with pytest.raises(LimitError, match="whose sums fit 64 bits"):
        total.merge(huge)
    assert total.digest() == before
    plain = of([0])
    with pytest.raises(ConfigurationError, match="class sums are not kept"):
        plain.remove_class(plain.classes[0])


@pytest.mark.parametrize(
    ("batch", "labels", "message"),
    [
        (np.zeros((2, 3)), ["a", "b"], "must be an int8 matrix; got dtype float64"),
        (np.zeros(3, np.int8), ["a", "b", "c"], "must be an int8 matrix"),
        (np.zeros((2, 3), np.int8), ["a"], "2 codes and 1 labels"),
        (np.full((1, 3), -128, np.int8), ["a"], "got -128"),
    ],
)
def test_unusable_batches_are_refused(batch: np.ndarray, labels: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Statistics.of(batch, labels)


def test_batches_widen_when_they_grow() -> None:
    row = np.full((1, 2), 127, np.int8)
    total = Statistics.of(row, ["a"])
    total.add(row, ["a"])
    total.add(row, ["a"])
    assert total == Statistics.of(np.repeat(row, 3, axis=0), ["a", "a", "a"])
    assert int(total.gram[0, 0]) == 3 * 127 * 127


@pytest.mark.parametrize("count", [1, 30, 600])
def test_the_gram_matrix_of_a_batch_is_as_wide_as_any(count: int, hardware: Hardware) -> None:
    """Batches are added up in narrower integers. Who reads the sums gets 64 bits, and may solve for them."""
    rows = codes("wide", count, SIZE)
    wide = rows.astype(np.int64)
    batch = Statistics.of(hardware.array(rows), ["a"] * count, hardware)
    assert str(batch.gram.dtype).rpartition(".")[2] == "int64"
    found = solve(batch.gram, batch.cross_here(), 3, 20, hardware=hardware).weights
    np.testing.assert_array_equal(found, solve(wide.T @ wide, wide.sum(axis=0)[:, None], 3, 20).weights)


def test_equality_is_exact() -> None:
    one, other = of([0, 1]), of([1, 0])
    assert one == other
    other.gram[0, 0] += 1
    assert one != other
    assert one.digest() != other.digest()
    assert one != "something else"
    assert of([0]) != of([0, 1])


@pytest.mark.parametrize(
    ("top", "dtype"), [(127, "int8"), (128, "int16"), (-128, "int8"), (2**15, "int32"), (2**31, "int64")]
)
def test_narrowest_integers(top: int, dtype: str) -> None:
    assert narrowed(np.array([0, top])).dtype == dtype
    assert narrowed(np.array([0, top])).tolist() == [0, top]


def test_triangles_round_trip() -> None:
    root = CODES.astype(np.int64)
    matrix = root.T @ root
    packed = pack_triangle(matrix)
    assert packed.tolist() == matrix[np.triu_indices(SIZE)].tolist()
    assert np.array_equal(unpack_triangle(packed, SIZE), matrix)


def test_small_changes_wait_and_are_added_up_when_looked_at(hardware: Hardware) -> None:
    """Whatever waits, and for how long, the sums are those of adding up at once."""
    rng = np.random.default_rng(3)
    rows = rng.integers(-127, 128, (700, 5)).astype(np.int8)
    labels = [("a", "b", "c")[number] for number in rng.integers(0, 3, 700)]
    held = Statistics(5, hardware)
    expected = Statistics(5, hardware)
    for start in range(0, 700, 7):
        part = slice(start, start + 7)
        held.add(hardware.array(rows[part]), labels[part])
        if start % 3 == 0:
            held.remove(hardware.array(rows[part]), labels[part])
        else:
            expected.add(hardware.array(rows[part]), labels[part])
            expected.settle()
    assert held._waiting
    assert held.counts == expected.counts
    assert held == expected
    assert not held._waiting
    assert held.digest() == expected.digest()


def test_what_waits_is_added_up_before_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_module, "MANY_ROWS", 5)
    held = Statistics(2)
    for step in range(1, 5):
        held.add(np.ones((1, 2), np.int8), ["a"])
        assert len(held._waiting) == step
    held.add(np.ones((1, 2), np.int8), ["a"])
    assert not held._waiting
    assert held.gram.tolist() == [[5, 5], [5, 5]]


def test_a_class_that_goes_and_comes_back_while_its_samples_wait() -> None:
    held = Statistics(2)
    one = np.array([[1, 2]], np.int8)
    held.add(one, ["a"])
    held.remove(one, ["a"])
    assert (held.counts, held.classes) == ({}, [])
    held.add(2 * one, ["a"])
    assert held == Statistics.of(2 * one, ["a"])
    held.remove(2 * one, ["a"])
    assert held.sums == {}
    assert held == Statistics(2)
    assert held.digest() == Statistics(2).digest()


def test_a_failed_check_leaves_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Statistics(2)
    held.add(np.ones((1, 2), np.int8), ["a"])
    with monkeypatch.context() as patch:
        patch.setattr(NumpyHardware, "int8_gram", lambda self, codes: np.zeros((2, 2), np.int32))
        for _ in range(2):
            with pytest.raises(HardwareError, match="Gram matrix"):
                held.digest()
    assert held.gram.tolist() == [[1, 1], [1, 1]]


def test_a_large_batch_over_small_ones_that_wait() -> None:
    rng = np.random.default_rng(4)
    rows = rng.integers(-127, 128, (1000, 3)).astype(np.int8)
    labels = ["a"] * 400 + ["b"] * 600
    held = Statistics(3)
    held.add(rows[:400], labels[:400])
    held.add(rows[400:], labels[400:])
    held.remove(rows[400:], labels[400:])
    assert held.counts == {'"a"': 400}
    assert held == Statistics.of(rows[:400], labels[:400])


def test_a_check_that_fails_while_others_are_merged_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    many = codes("merged", 600, 2)
    held, other = Statistics.of(many, ["a"] * 600), Statistics.of(many, ["b"] * 600)
    other.add(many[:3], ["c"] * 3)  # these wait
    before = held.digest()
    with monkeypatch.context() as patch:
        patch.setattr(NumpyHardware, "int8_gram", lambda self, codes: np.zeros((2, 2), np.int32))
        with pytest.raises(HardwareError, match="Gram matrix"):
            held.merge(other)
    assert held.digest() == before
    held.merge(other)
    assert held.counts == {'"a"': 600, '"b"': 600, '"c"': 3}


def test_a_check_that_fails_when_many_wait_is_told_to_who_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_module, "MANY_ROWS", 2)
    held = Statistics(2)
    with monkeypatch.context() as patch:
        patch.setattr(NumpyHardware, "int8_gram", lambda self, codes: np.zeros((2, 2), np.int32))
        for _ in range(3):
            held.add(np.ones((1, 2), np.int8), ["a"])  # learned: who asks again would learn it twice
        with pytest.raises(HardwareError, match="Gram matrix"):
            held.digest()
    assert held.gram.tolist() == [[3, 3], [3, 3]]


def test_statistics_share_nothing(hardware: Hardware) -> None:
    many = Statistics.of(hardware.array(codes("apart", 600, 4)), ["a"] * 600, hardware)
    before = many.digest()
    few = Statistics.of(hardware.array(codes("few", 2, 4)), ["b", "b"], hardware)
    few.merge(many)
    few.settle()
    few.add(hardware.array(codes("more", 2, 4)), ["a", "a"])
    few.settle()
    assert many.digest() == before


def test_statistics_less_themselves_are_empty(hardware: Hardware) -> None:
    for rows in (3, 600):
        held = Statistics.of(hardware.array(codes("self", rows, 4)), ["a", "b", "c"] * (rows // 3), hardware)
        held.subtract(held)
        assert held == Statistics(4, hardware)


def test_no_samples_change_nothing(hardware: Hardware) -> None:
    held = Statistics.of(hardware.array(CODES), LABELS, hardware)
    before = held.digest()
    empty = Statistics.of(hardware.array(CODES[:0]), [], hardware)
    held.merge(empty)
    held.subtract(empty)
    held.settle()
    empty.settle()
    assert held.digest() == before


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=40))
def test_class_sums_are_those_of_a_dictionary(steps: list[tuple[str, bool]]) -> None:
    table = ClassSums(3, choose("numpy"))
    expected: dict[str, np.ndarray] = {}
    for number, (name, keep) in enumerate(steps):
        if keep or name not in expected:
            row = np.arange(3) + number
            expected[name] = expected.get(name, np.zeros(3, np.int64)) - row
            table.change([name], row[None, :], -1)
        else:
            del expected[name]
            table.remove(name)
        assert sorted(table) == sorted(expected)
        assert table.of(sorted(expected)).tolist() == [expected[name].tolist() for name in sorted(expected)]
        assert all(table.row(name).tolist() == row.tolist() for name, row in expected.items())
        assert (table._table[len(expected) :] == 0).all()  # of what is gone nothing stays


def test_no_classes_have_no_sums(hardware: Hardware) -> None:
    table = ClassSums(3, hardware)
    assert hardware.numpy(table.of([])).shape == (0, 3)
    table.change(["a", "b"], hardware.array(np.ones((2, 3), np.int64)), 1)
    assert hardware.numpy(table.of(["b", "a"])).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert hardware.numpy(table.of([])).shape == (0, 3)


def test_class_sums_that_are_not_there_are_refused_before_any_is_changed() -> None:
    kept, gone = ClassGrams(2), ClassGrams(2)
    kept.put("x", np.array([5, 5, 5]))
    for name in ("x", "y"):
        gone.put(name, np.array([1, 1, 1]))
    with pytest.raises(NotLearnedError, match="class y"):
        kept.change(gone, -1)
    assert kept.packed("x").tolist() == [5, 5, 5]
