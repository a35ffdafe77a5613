"""The choice of gamma is that of the specification, however it is found."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import IllConditionedError, InputError
from neverseen.engine.eigenbasis import Eigenbasis
from neverseen.engine.preconditioning import NoProgressError
from neverseen.engine.refinement import Refinement
from neverseen.engine.spectrum import Spectrum
from neverseen.engine.strength import Sums, candidates, chosen_strength, score
from neverseen.engine.systems import IntegerSystem
from neverseen.hardware import Hardware, choose
from tests import oracle
from tests.samples import codes as code_rows
from tests.samples import uniform_bytes

NUMPY = choose("numpy")


def sums_of(codes: np.ndarray, labels: np.ndarray, hardware: Hardware = NUMPY) -> Sums:
    wide = codes.astype(np.int64)
    targets = np.eye(int(labels.max()) + 1, dtype=np.int64)[labels]
    gram, cross = (hardware.array(np.ascontiguousarray(wide.T @ right)) for right in (wide, targets))
    return Sums(gram, cross, len(codes), len(codes), hardware)


def chosen(codes: np.ndarray, labels: np.ndarray) -> int:
    sums = sums_of(codes, labels)
    return oracle.chosen_gamma(np.asarray(sums.gram).tolist(), np.asarray(sums.cross).tolist(), len(codes))


def sample(name: str, rows: int, size: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Codes that scatter about one centre for each class."""
    labels = uniform_bytes(f"{name}:labels", rows) % classes
    near = code_rows(f"{name}:centres", classes, size)[labels] // 3 + code_rows(f"{name}:noise", rows, size) // 3
    return near.astype(np.int8), labels


# -- the rule ----------------------------------------------------------------------------------------


@given(st.integers(1, 2**80), st.integers(1, 2**80))
def test_scores_are_rounded_logarithms(over: int, under: int) -> None:
    value = Fraction(over, under)
    found = score(value)
    assert Fraction(2) ** (2 * found - 1) <= value**32 < Fraction(2) ** (2 * found + 1)
    assert abs(found - 16 * (math.log2(over) - math.log2(under))) < 0.5 + 1e-9


@pytest.mark.parametrize("step", [-33, -1, 1, 3, 31, 33])
def test_scores_are_exact_beside_their_limits(step: int) -> None:
    """The limits are ``2**(step / 32)``: at 300 bits, the fractions below and above one have different scores."""
    scale = 2**300
    root = math.isqrt(math.isqrt(math.isqrt(math.isqrt(math.isqrt(2 ** (step + 32 * 8) * scale**32))))) * 1
    below, above = Fraction(root, 2**8 * scale), Fraction(root + 1, 2**8 * scale)
    assert (score(below), score(above)) == ((step - 1) // 2, (step + 1) // 2)


def test_candidates_reach_from_far_below_the_diagonal_to_its_sum() -> None:
    assert candidates(0, 7) == [1]
    assert candidates(2**30, 2**10) == [2**k for k in range(4, 31)]
    assert candidates(2**62, 2**10)[-1] == 2**40
    for trace in (1, 5, 2**20 - 1, 2**20, 10**9, 2**62):
        for size in (1, 2, 3, 100):
            found = candidates(trace, size)
            assert found[0] == 1 or trace < 2 * found[0] * 2**16 * 2 * size or found == [2**40]
            assert found[-1] <= trace < 2 * found[-1] or found[-1] == 2**40


# -- the choice --------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_choice_is_the_oracles(data: st.DataObject) -> None:
    rows, size, classes = (data.draw(st.integers(1, most)) for most in (12, 6, 3))
    least, most = data.draw(st.sampled_from([(-127, 127), (-1, 1), (0, 127), (0, 0), (3, 3)]))
    entries = st.lists(st.integers(least, most), min_size=size, max_size=size)
    codes = np.array(data.draw(st.lists(entries, min_size=rows, max_size=rows)), np.int8)
    labels = np.array(data.draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows)))
    assert chosen_strength(sums_of(codes, labels)).gamma == chosen(codes, labels)


@pytest.mark.parametrize("shape", [(3, 6), (6, 6), (60, 6)])
def test_every_hardware_chooses_the_same(shape: tuple[int, int], hardware: Hardware) -> None:
    codes, labels = sample(f"hardware {shape}", *shape)
    assert chosen_strength(sums_of(codes, labels, hardware)).gamma == chosen(codes, labels)


def test_equal_scores_go_to_the_greatest_gamma() -> None:
    one = np.array([[3, -4]], np.int8)  # of one sample, GCV is 1 for every gamma
    assert chosen_strength(sums_of(one, np.array([0]))).gamma == 2**4
    codes = np.diag(np.full(4, 16)).astype(np.int8)  # and so of samples that are as long, and share no code
    assert chosen_strength(sums_of(codes, np.array([0, 1, 0, 1]))).gamma == 2**10
    assert chosen(codes, np.array([0, 1, 0, 1])) == 2**10


# -- every way to it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 6), (6, 6), (40, 6)])
def test_without_a_decomposition_the_choice_is_the_same(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, labels = sample(f"ways {shape}", *shape)
    expected, sums = chosen(codes, labels), sums_of(codes, labels)
    monkeypatch.setattr(Spectrum, "of", lambda *_: None)
    assert chosen_strength(sums).gamma == expected
    monkeypatch.setattr(IntegerSystem, "cholesky", lambda *_: None)
    assert chosen_strength(sums).gamma == expected  # in fractions


@pytest.mark.parametrize("shape", [(3, 6), (40, 6)])
def test_loose_bounds_on_eigenvalues_are_made_up_for(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    codes, labels = sample(f"loose {shape}", *shape)
    monkeypatch.setattr(Spectrum, "freedom", lambda self, gamma: (Fraction(0), Fraction(self.total)))
    monkeypatch.setattr(Eigenbasis, "freedom", lambda *_: None)
    assert chosen_strength(sums_of(codes, labels)).gamma == chosen(codes, labels)


@pytest.fixture
def no_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds in the eigenbasis, which nearly always decide, are not there."""
    for name in ("residual", "freedom"):
        monkeypatch.setattr(Eigenbasis, name, lambda *_: None)


@pytest.mark.parametrize("shape", [(3, 6), (40, 6)])
@pytest.mark.usefixtures("no_basis")
def test_without_an_eigenbasis_the_choice_is_the_same(shape: tuple[int, int]) -> None:
    codes, labels = sample(f"no basis {shape}", *shape)
    spectrum = chosen_strength(sums_of(codes, labels)).spectrum
    assert spectrum is not None
    assert chosen_strength(sums_of(codes[1:], labels[1:]), spectrum.after(codes[:1], -1)).gamma == chosen(
        codes[1:], labels[1:]
    )


@pytest.mark.usefixtures("no_basis")
def test_preconditioners_that_fail_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, labels = sample("fail", 30, 5)
    step = Refinement.step
    failed: list[Any] = []

    def failing(self: Refinement, precondition: Any, least_gain: float) -> None:
        if len(failed) < 3:
            failed.append(precondition)
            raise NoProgressError
        step(self, precondition, least_gain)

    monkeypatch.setattr(Refinement, "step", failing)
    assert chosen_strength(sums_of(codes, labels)).gamma == chosen(codes, labels)
    assert len(failed) == 3


def test_large_systems_without_a_factor_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, labels = sample("large", 30, 100)
    monkeypatch.setattr(Spectrum, "of", lambda *_: None)
    monkeypatch.setattr(IntegerSystem, "cholesky", lambda *_: None)
    with pytest.raises(IllConditionedError, match="Choose gamma yourself"):
        chosen_strength(sums_of(codes, labels))


@settings(max_examples=16, deadline=None)
@given(st.data())
def test_an_earlier_spectrum_changes_no_choice(data: st.DataObject) -> None:
    codes, labels = sample("earlier", 60, 4)
    spectrum = chosen_strength(sums_of(codes, labels)).spectrum
    held = set(range(60))
    for _ in range(3):
        gone = data.draw(st.sets(st.sampled_from(sorted(held)), max_size=4))
        back = data.draw(st.sets(st.sampled_from([*(set(range(60)) - held), 0]), max_size=4)) - held
        held = held - gone | back
        rows = sorted(held)
        for change, sign in ((back, 1), (gone, -1)):
            spectrum = None if spectrum is None else spectrum.after(codes[sorted(change)], sign)
        found = chosen_strength(sums_of(codes[rows], labels[rows]), spectrum)
        assert found.gamma == chosen(codes[rows], labels[rows])
        spectrum = found.spectrum


def test_a_small_change_of_many_samples_needs_no_new_spectrum(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, labels = sample("many", 2000, 8)
    spectrum = chosen_strength(sums_of(codes, labels)).spectrum
    assert spectrum is not None
    monkeypatch.setattr(Spectrum, "of", None)
    found = chosen_strength(sums_of(codes[3:], labels[3:]), spectrum.after(codes[:3], -1))
    assert found.spectrum is not None
    assert found.spectrum.signs.tolist() == [-1] * 3


# -- sums of no samples ------------------------------------------------------------------------------


def test_impossible_sums_are_refused() -> None:
    gram, cross = np.array([[4, 0], [0, 4]]), np.array([[9, 0], [0, 9]])
    with pytest.raises(InputError, match="not those of any samples"):
        chosen_strength(Sums(gram, cross, 2, 2, NUMPY))
    indefinite = np.array([[4, 9], [9, 4]])
    with pytest.raises((InputError, IllConditionedError)):
        chosen_strength(Sums(indefinite, np.array([[2, 1], [1, 2]]), 4, 4, NUMPY))
