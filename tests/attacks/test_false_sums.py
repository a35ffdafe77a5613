"""Promise: weights that a check accepts are the correctly rounded solution, also for sums that somebody made up.

Every error bound divides by the least eigenvalue of ``A = G + gamma I``, which is at least gamma if G is a sum of
samples. The attacks hand in a G that is not, so that A is nearly singular, and weights far from the solution that leave
a tiny residual. A reader refuses what is cheap to see; the check proves the rest.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import AnalyticClassifier, CertificateRejectedError, FileRejectedError, Identity, Key
from neverseen.engine.definiteness import _square_exceeds, least_eigenvalue, why_impossible
from neverseen.engine.packing import pack_triangle, unpack_triangle
from neverseen.engine.rational import is_positive_definite
from neverseen.engine.statistics import Statistics
from neverseen.engine.systems import IntegerSystem
from neverseen.errors import HardwareError, StoreDamagedError
from neverseen.hardware import Hardware, HardwareOf, choose
from neverseen.hardware.numpy_cpu import NumpyHardware
from neverseen.io.files import replace_file
from neverseen.io.tensorfile import pack, unpack
from neverseen.model.configuration import Configuration
from neverseen.model.versions import Version, read_version, write_version
from neverseen.proof import witness as witness_module
from neverseen.proof.witness import Witness, check_weights
from neverseen.store.snapshots import read_snapshot, write_snapshot
from tests import oracle

NUMPY = choose("numpy")
BITS = 40


def indefinite_pair(gamma: int) -> np.ndarray:
    """A 2 x 2 matrix with a zero on the diagonal; A has the determinant gamma."""
    return np.array([[0, 64 * gamma], [64 * gamma, 4095 * gamma + 1]], np.int64)


def indefinite_triple(gamma: int) -> np.ndarray:
    """No 2 x 2 minor is negative, and yet ``A (1, 1, 1) = (1, 1, 1)`` for A with gamma on the diagonal."""
    return np.array([[gamma + 1 if i == j else -gamma for j in range(3)] for i in range(3)], np.int64)


def nearly_singular(kind: str, gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """A false G, and an integer vector that A makes small."""
    if kind == "pair":
        return indefinite_pair(gamma), np.array([[64], [-1]])  # A v = (0, -1)
    return indefinite_triple(gamma), np.ones((3, 1), np.int64)


def positive_semidefinite(matrix: list[list[Fraction]]) -> bool:
    """Decide by symmetric elimination over the rationals: the oracle of this file."""
    rows = [list(row) for row in matrix]
    for k in range(len(rows)):
        pivot = rows[k][k]
        if pivot < 0 or (pivot == 0 and any(rows[k][k:])):
            return False
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / pivot if pivot else Fraction(0)
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return True


def shifted(matrix: np.ndarray, by: Fraction) -> list[list[Fraction]]:
    return [[Fraction(value) + by * (i == j) for j, value in enumerate(row)] for i, row in enumerate(matrix.tolist())]


# -- checking weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pair", "triple"])
@pytest.mark.parametrize("gamma", [2**10, 2**20, 2**40])
def test_wrong_weights_that_leave_almost_no_residual(kind: str, gamma: int, hardware: Hardware) -> None:
    gram, small = nearly_singular(kind, gamma)
    cross = np.zeros((len(gram), 1), np.int64)  # the solution is 0, and so are its rests
    forged = small * (gamma // 8)
    assert oracle.weights(gram.tolist(), cross.tolist(), gamma, BITS) == cross.tolist()
    here = hardware.array
    with pytest.raises(CertificateRejectedError, match="cannot be proved to come from samples"):
        check_weights(here(gram), here(cross), gamma, BITS, forged, Witness(cross, 10), hardware)
    with pytest.raises(CertificateRejectedError, match="cannot be proved to come from samples"):
        check_weights(here(gram), here(cross), gamma, BITS, cross, Witness(cross, 10), hardware)  # right by chance


def test_wrong_weights_in_a_column_that_is_left_to_a_solve() -> None:
    gram, small = nearly_singular("triple", 2**20)
    with pytest.raises(CertificateRejectedError, match="cannot be proved to come from samples"):
        check_weights(gram, small * 0, 2**20, BITS, small * 0, Witness(small * 0, 1, (0,)))


def test_one_triangle_of_a_gram_matrix_and_another_below() -> None:
    gram = np.array([[100, 7], [0, 100]], np.int64)
    with pytest.raises(CertificateRejectedError, match="no Gram matrix"):
        check_weights(gram, gram[:, :1] * 0, 1, BITS, gram[:, :1] * 0, Witness(gram[:, :1] * 0, 1))


@settings(max_examples=150)
@given(data=st.data())
def test_sums_that_were_made_up_never_prove_wrong_weights(data: st.DataObject) -> None:
    size, gamma = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 3, 2**10, 2**20, 2**40]))
    entry = st.one_of(st.integers(-5, 5), st.integers(-2 * gamma, 2 * gamma), st.sampled_from([gamma, -gamma]))
    upper = [[data.draw(entry) for _ in range(size)] for _ in range(size)]
    gram = np.array([[upper[min(i, j)][max(i, j)] for j in range(size)] for i in range(size)], np.int64)
    gram[np.diag_indices(size)] = np.abs(gram.diagonal())
    cross = np.array([[data.draw(st.integers(-100, 100))] for _ in range(size)], np.int64)
    weights = np.array([[data.draw(st.integers(-2 * gamma, 2 * gamma))] for _ in range(size)], np.int64)
    try:
        right = np.array(oracle.weights(gram.tolist(), cross.tolist(), gamma, 8), np.int64)
    except (ZeroDivisionError, OverflowError):
        right = weights
    for given_weights in (weights, right):
        try:
            check_weights(gram, cross, gamma, 8, given_weights, Witness(cross * 0, 30, ()))
        except CertificateRejectedError:
            continue
        assert positive_semidefinite(shifted(gram, Fraction(gamma, 2)))
        assert np.array_equal(given_weights, right)


@settings(max_examples=200)
@given(data=st.data())
def test_the_bound_on_eigenvalues_is_true(data: st.DataObject) -> None:
    """Near the edge: sums of real codes, less a multiple of one more sample or of the identity."""
    size, gamma = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 64, 2**14, 2**30]))
    rows = data.draw(st.lists(st.lists(st.integers(-127, 127), min_size=size, max_size=size), max_size=8))
    codes = np.array(rows, np.int64).reshape(len(rows), size)
    gram = codes.T @ codes * data.draw(st.sampled_from([1, 2**10, 2**20]))
    off = np.array(data.draw(st.lists(st.integers(-127, 127), min_size=size, max_size=size)), np.int64)
    gram = gram - np.outer(off, off) * data.draw(st.sampled_from([0, 0, 1, 2**10]))
    gram = gram - np.eye(size, dtype=np.int64) * data.draw(st.sampled_from([0, 1, gamma // 8, gamma // 2, gamma]))
    top = int(gram.diagonal().max())
    if int(gram.diagonal().min()) < 0 or np.abs(gram).max() > top:
        return
    floor = least_eigenvalue(IntegerSystem(gram, gamma, NUMPY))
    if floor is not None:
        assert Fraction(gamma, 2) <= floor <= gamma
        assert positive_semidefinite(shifted(gram, gamma - floor))
    if positive_semidefinite(shifted(gram, Fraction(0))):
        assert floor is not None


@pytest.mark.parametrize("samples", [1, 5, 150, 400])
@pytest.mark.parametrize("gamma", [1, 2**12, 2**40])
def test_sums_of_real_samples_are_accepted(samples: int, gamma: int, hardware: Hardware) -> None:
    """Fewer samples than codes, one sample many times, extreme codes: all are Gram matrices."""
    generator = np.random.default_rng(samples)
    for codes in (
        generator.integers(-127, 128, (samples, 150)),
        np.full((samples, 150), 127),
        generator.integers(0, 2, (samples, 150)) * 127,
        np.zeros((samples, 150), np.int64),
    ):
        gram = hardware.array((codes.T @ codes).astype(np.int64))
        floor = least_eigenvalue(IntegerSystem(gram, gamma, hardware))
        assert floor is not None
        assert floor >= Fraction(gamma * 63, 64) or gamma == 1


@pytest.mark.parametrize("gamma", [1, 2**12, 2**20])
def test_large_matrices_that_are_off_by_a_little_more_than_gamma(gamma: int, hardware: Hardware) -> None:
    """Beyond what exact elimination is used for: 150 codes, 40 samples, and the diagonal lowered."""
    codes = np.random.default_rng(7).integers(-127, 128, (40, 150)) * (1 + gamma // 2**12)
    gram = (codes.T @ codes).astype(np.int64)
    lowered = gram - np.eye(150, dtype=np.int64) * (gamma + 1)
    assert why_impossible(pack_triangle(lowered), np.zeros((1, 150), np.int64), [2**40]) is None
    assert least_eigenvalue(IntegerSystem(hardware.array(lowered), gamma, hardware)) is None
    assert least_eigenvalue(IntegerSystem(hardware.array(gram), gamma, hardware)) is not None


@pytest.mark.parametrize("lie", ["nothing", "another matrix", "not a number", "infinite"])
def test_a_library_that_makes_up_the_factor(lie: str) -> None:
    class Lying(NumpyHardware):
        def cholesky(self, matrix: np.ndarray) -> np.ndarray:
            size = len(matrix)
            made = {"nothing": 0.0, "another matrix": 1.0, "not a number": np.nan, "infinite": np.inf}[lie]
            return np.asfortranarray(np.diag(np.full(size, made)))

    lying: HardwareOf[Any] = Lying()
    codes = np.random.default_rng(3).integers(-127, 128, (50, 120))
    for gram in (codes.T @ codes, codes.T @ codes - 2**13 * np.eye(120, dtype=np.int64)):
        assert least_eigenvalue(IntegerSystem(gram, 2**12, lying)) is None


def test_a_library_that_multiplies_wrongly_is_noticed() -> None:
    class Faulty(NumpyHardware):
        def matmul(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
            product: np.ndarray = left @ right
            product[0, 0] += 1
            return product

    faulty: HardwareOf[Any] = Faulty()
    codes = np.random.default_rng(3).integers(-127, 128, (50, 120))
    with pytest.raises(HardwareError, match="fails its check"):
        least_eigenvalue(IntegerSystem(codes.T @ codes, 2**12, faulty))


def test_a_column_between_the_two_bounds_is_solved_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual that proves weights with all of gamma, and not with the half of it that elimination proves."""
    solved: list[list[int]] = []
    by_solving = witness_module._check_by_solving

    def noted(*given: Any) -> None:
        solved.append(given[5])
        by_solving(*given)

    monkeypatch.setattr("neverseen.engine.definiteness._SHARES", ())
    monkeypatch.setattr(witness_module, "_check_by_solving", noted)
    gram, gamma = np.array([[0]], np.int64), 2**20
    cross = np.array([[11 * gamma // 16]], np.int64)  # on a grid of 1/2 that is 1.375 steps: N = 1, and the rest 3/8
    right = np.array([[1]], np.int64)
    check_weights(gram, cross, gamma, 1, right, Witness(np.array([[3]], np.int64), 3))
    assert solved == []  # no residual
    check_weights(gram, cross, gamma, 1, right, Witness(np.array([[2]], np.int64), 3))
    assert solved == [[0]]


# -- exact elimination and exact squares ---------------------------------------------------------------------


@settings(max_examples=150)
@given(data=st.data())
def test_elimination_decides_as_fractions_do(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    entry = st.one_of(st.integers(-3, 3), st.integers(-(2**40), 2**40))
    upper = [[data.draw(entry) for _ in range(size)] for _ in range(size)]
    matrix = [[upper[min(i, j)][max(i, j)] for j in range(size)] for i in range(size)]
    # For integers, definite means: semidefinite with something to spare. No determinant is smaller than 1.
    expected = all(
        _determinant([[Fraction(value) for value in row[:k]] for row in matrix[:k]]) > 0 for k in range(1, size + 1)
    )
    assert is_positive_definite(matrix) == expected


def _determinant(rows: list[list[Fraction]]) -> Fraction:
    if not rows:
        return Fraction(1)
    return sum(
        ((-1) ** j * rows[0][j] * _determinant([row[:j] + row[j + 1 :] for row in rows[1:]]) for j in range(len(rows))),
        Fraction(0),
    )


@settings(max_examples=300)
@given(
    near=st.integers(0, 2**62 - 1),
    other=st.integers(0, 2**62 - 1),
    by=st.sampled_from([-2, -1, 0, 1, 2, 2**31, -(2**31)]),
    sign=st.sampled_from([-1, 1]),
)
def test_squares_are_compared_exactly(near: int, other: int, by: int, sign: int) -> None:
    for y, z in ((near, other), (near, near), (near, max(0, near + by) % 2**62), (2**62 - 1, 2**62 - 1)):
        root = min(int((y * z) ** 0.5), 2**62 - 2)
        for x in (max(root - 1, 0), root, root + 1, near, 2**62 - 1):
            got = _square_exceeds(np.array([sign * x]), np.array([y]), np.array([z]), 2**62 - 1)
            assert bool(got[0]) == (x * x > y * z)


def test_an_entry_just_above_a_diagonal_that_floats_cannot_tell_from_it() -> None:
    top = 2**60 + 1
    for entry, fits in ((top, True), (-top, True), (top + 1, False), (-top - 1, False), (-(2**63), False)):
        packed = np.array([top, entry, top], np.int64)
        assert (why_impossible(packed, np.zeros((1, 2), np.int64), [2**48]) is None) == fits


# -- loading ----------------------------------------------------------------------------------------------


def saved(folder: Path, track_classes: bool = False) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    """A genuine file, and what is in it."""
    model = AnalyticClassifier(Identity(), gamma=2**20, track_classes=track_classes, key=Key(bytes(32)))
    model.fit(np.random.default_rng(1).normal(size=(40, 3)), ["cat", "dog"] * 20)
    path = folder / "model.safetensors"
    model.save(path)
    about, tensors = unpack(path, "neverseen-model-1")
    return path, about, dict(tensors)


def forge(path: Path, about: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    replace_file(path, pack(about, tensors))


@pytest.mark.parametrize("entry", ["minor", "diagonal", "negative"])
def test_a_saved_model_with_made_up_sums(entry: str, tmp_path: Path) -> None:
    path, about, tensors = saved(tmp_path)
    gram = unpack_triangle(tensors["gram"], 3)
    if entry == "minor":
        gram[0, 1] = gram[1, 0] = int((int(gram[0, 0]) * int(gram[1, 1])) ** 0.5) + 1
    elif entry == "diagonal":
        gram[0, 0] = 127**2 * 40 + 1
    else:
        gram[0, 0] = -1
    tensors["gram"] = pack_triangle(gram)
    forge(path, about, tensors)
    with pytest.raises(FileRejectedError, match="its sums are not those of any samples: .*(row 0, column 1|diagonal)"):
        AnalyticClassifier.load(path)


def test_a_saved_model_whose_class_sum_is_too_large_for_the_gram_matrix(tmp_path: Path) -> None:
    path, about, tensors = saved(tmp_path)
    sums = tensors["sums"].copy()
    sums[1, 2] = 127 * 20  # what 20 samples can reach, but not with this diagonal
    forge(path, about, tensors | {"sums": sums})
    with pytest.raises(FileRejectedError, match="the sum of class 1 is larger than 20 samples can make it"):
        AnalyticClassifier.load(path)


def test_a_saved_model_whose_classes_have_made_up_sums_that_add_up(tmp_path: Path) -> None:
    path, about, tensors = saved(tmp_path, track_classes=True)
    for name, sign in (("class_gram.000000", 1), ("class_gram.000001", -1)):
        tensors[name] = tensors[name].astype(np.int64)
        tensors[name][1] += sign * 2**18
    forge(path, about, tensors)
    with pytest.raises(FileRejectedError, match="its sums are not those of any samples: the entry in row 0, column 1"):
        AnalyticClassifier.load(path)


def test_a_snapshot_of_a_store_with_made_up_sums(tmp_path: Path) -> None:
    statistics = Statistics.of(np.array([[1, 2, 3], [4, 5, 6]], np.int8), ["a", "b"])
    assert read_snapshot(tmp_path, write_snapshot(tmp_path, statistics), NUMPY) == statistics
    statistics.gram[0, 1] = statistics.gram[1, 0] = 1000
    with pytest.raises(StoreDamagedError, match="not those of any samples: the entry in row 0, column 1"):
        read_snapshot(tmp_path, write_snapshot(tmp_path, statistics), NUMPY)


def test_made_up_sums_that_load_are_refused_by_the_check_of_a_version(tmp_path: Path) -> None:
    """Three codes whose 2 x 2 minors are all fine: a reader cannot see it, and the check does."""
    gamma, size = 2**10, 3
    statistics = Statistics(size)
    statistics.gram = indefinite_triple(gamma)
    statistics.counts, statistics.sums = {'"a"': 2}, {'"a"': np.zeros(size, np.int64)}
    assert why_impossible(pack_triangle(statistics.gram), np.zeros((1, size), np.int64), [2]) is None
    weights = np.ones((size, 1), np.int64) * (gamma // 8)
    rests = np.zeros((size, 1), np.int8)
    version = Version(Configuration(Identity(), gamma, BITS), size, ['"a"'], weights, Witness(rests, 10))
    write_version(tmp_path / "version", version)
    with pytest.raises(CertificateRejectedError, match="cannot be proved to come from samples"):
        read_version(tmp_path / "version").check(statistics)


@pytest.mark.parametrize("what", ["rest too large", "rest in an unproved column"])
def test_a_version_whose_witness_cannot_be(what: str, tmp_path: Path) -> None:
    model = AnalyticClassifier(Identity(), gamma=2**20, key=Key(bytes(32)))
    model.fit(np.random.default_rng(1).normal(size=(40, 3)), ["cat", "dog"] * 20)
    assert model._model is not None
    made = Version.of(model._model)
    if what == "rest too large":
        made.witness = Witness(made.witness.rests, 2)
        expected = "a rest that is too large"
    else:
        made.witness = Witness(made.witness.rests, made.witness.bits, (0,))
        expected = "rests in columns that it lists as unproved"
    write_version(tmp_path / "version", made)
    with pytest.raises(FileRejectedError, match=expected):
        read_version(tmp_path / "version")


def test_genuine_versions_pass(hardware: Hardware) -> None:
    model = AnalyticClassifier(Identity(), gamma=1, key=Key(bytes(32)), hardware=hardware.name)
    model.fit(np.random.default_rng(1).normal(size=(7, 130)), list("abcabca"))  # fewer samples than codes
    assert model._model is not None
    version = Version.of(model._model)
    version.check(model._model.statistics)
