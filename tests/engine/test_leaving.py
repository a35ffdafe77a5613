"""The choice by leaving out is that of the specification, however it is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import IllConditionedError
from neverseen.engine import leaving
from neverseen.engine.leaving import least_error
from neverseen.engine.preconditioning import NoProgressError
from neverseen.engine.refinement import Refinement
from neverseen.engine.spectrum import Spectrum
from neverseen.engine.systems import IntegerSystem
from neverseen.hardware import Hardware, choose
from tests import oracle
from tests.engine.test_strength import sample

NUMPY = choose("numpy")


def expected(codes: np.ndarray, targets: np.ndarray) -> int:
    return oracle.gamma_by_leaving_out(codes.tolist(), targets.tolist())


def one_hot(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    codes, labels = sample(f"leaving {shape}", *shape)
    return codes, np.eye(3, dtype=np.int64)[labels]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_choice_is_the_oracles(data: st.DataObject) -> None:
    rows, size, columns = (data.draw(st.integers(1, most)) for most in (7, 4, 2))
    least, most = data.draw(st.sampled_from([(-127, 127), (-1, 1), (0, 127), (0, 0), (3, 3)]))
    large = data.draw(st.sampled_from([0, 1, 2**20]))

    def matrix(width: int, low: int, high: int) -> np.ndarray:
        row = st.lists(st.integers(low, high), min_size=width, max_size=width)
        return np.array(data.draw(st.lists(row, min_size=rows, max_size=rows)), np.int64)

    codes, targets = matrix(size, least, most).astype(np.int8), matrix(columns, -large, large)
    assert least_error(codes, targets, NUMPY) == expected(codes, targets)


@pytest.mark.parametrize("shape", [(3, 5), (5, 5), (12, 4)])
def test_every_hardware_chooses_the_same(shape: tuple[int, int], hardware: Hardware) -> None:
    codes, targets = one_hot(shape)
    assert least_error(hardware.array(codes), targets, hardware) == expected(codes, targets)


@pytest.mark.parametrize("shape", [(3, 5), (5, 5), (12, 4)])
def test_every_way_leads_to_it(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    codes, targets = one_hot(shape)
    true = expected(codes, targets)
    infinite: Any = lambda self, spectrum, options: np.full((2, len(options)), np.inf)  # noqa: E731
    monkeypatch.setattr(leaving.Samples, "in_floats", infinite)
    assert least_error(codes, targets, NUMPY) == true  # refined in the eigenbasis
    monkeypatch.setattr(Spectrum, "of", lambda *_: None)
    assert least_error(codes, targets, NUMPY) == true  # with a Cholesky factor
    monkeypatch.setattr(IntegerSystem, "cholesky", lambda *_: None)
    assert least_error(codes, targets, NUMPY) == true  # in fractions


def test_bounds_in_floats_hold_and_are_narrow() -> None:
    codes, targets = one_hot((12, 4))
    options = [2**k for k in range(4, 20)]
    for gamma, (low, high) in zip(options, leaving.Samples(codes, targets, NUMPY).bounds(options), strict=True):
        true = oracle.left_out_error(codes.tolist(), targets.tolist(), gamma)
        assert low <= true <= high
        assert high - low < true / 10**6


def test_refinement_goes_as_far_as_it_is_asked_to() -> None:
    codes, targets = one_hot((6, 4))
    true = oracle.left_out_error(codes.tolist(), targets.tolist(), 2**8)
    ways = leaving.Samples(codes, targets, NUMPY).closer(2**8)
    widths = []
    for _ in range(4):
        low, high = next(ways)
        assert low <= true <= high
        widths.append(high - low)
    assert widths[-1] < widths[0] / 2**40


def test_what_cannot_be_decided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, targets = one_hot((30, 100))
    monkeypatch.setattr(Spectrum, "of", lambda *_: None)

    def failing(*_: Any) -> None:
        raise NoProgressError

    monkeypatch.setattr(Refinement, "step", failing)
    with pytest.raises(IllConditionedError, match="Choose gamma yourself"):
        least_error(codes, targets, NUMPY)
