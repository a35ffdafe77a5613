"""Bounds in the basis of earlier eigenvectors hold, and are narrow."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import HardwareError
from neverseen.engine.eigenbasis import Eigenbasis
from neverseen.engine.rational import eliminated
from neverseen.engine.spectrum import Spectrum
from neverseen.hardware import Hardware, choose
from tests.engine.test_spectrum import following, freedom, gram_of
from tests.samples import codes as code_rows
from tests.samples import uniform_bytes

NUMPY = choose("numpy")
ROWS = 16
TARGETS = np.eye(3, dtype=np.int64)[uniform_bytes("eigenbasis:labels", ROWS) % 3]


def residual(codes: np.ndarray, targets: np.ndarray, gamma: int) -> Fraction:
    """Return the sum of squared errors in fractions, sample by sample."""
    wide = codes.astype(np.int64)
    weights = eliminated(gram_of(codes), gamma, wide.T @ targets)
    return sum(
        (
            (y - sum((c * row[column] for c, row in zip(code, weights, strict=True)), Fraction(0))) ** 2
            for code, target in zip(wide.tolist(), targets.tolist(), strict=True)
            for column, y in enumerate(target)
        ),
        Fraction(0),
    )


def basis_of(spectrum: Spectrum, rows: np.ndarray, held: list[int], hardware: Hardware = NUMPY) -> Eigenbasis:
    cross = hardware.array(rows[held].astype(np.int64).T @ TARGETS[held])
    return Eigenbasis(spectrum.settled(), cross, len(held), len(held), hardware)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bounds_hold_and_are_narrow(data: st.DataObject) -> None:
    rows = code_rows("eigenbasis", ROWS, size := data.draw(st.integers(1, 8)))
    rows[8:12] = rows[:4]  # equal samples
    before, after = (sorted(data.draw(st.sets(st.integers(0, ROWS - 1), min_size=1))) for _ in range(2))
    spectrum = Spectrum.of(gram_of(rows[before]), len(before), NUMPY)
    assert spectrum is not None
    basis = basis_of(following(spectrum, rows, set(before), set(after)), rows, after)
    gamma = 2 ** data.draw(st.integers(8, 22))
    for found, true in (
        (basis.residual(gamma), residual(rows[after], TARGETS[after], gamma)),
        (basis.freedom(gamma), freedom(rows[after], gamma)),
    ):
        assert found is not None
        assert found[0] <= true <= found[1]
        assert found[1] - found[0] <= 1e-6 * size


@pytest.mark.parametrize("damage", ["turned", "short", "estimates"])
@pytest.mark.parametrize("gamma", [1, 2**12, 2**20])
def test_a_bad_spectrum_says_nothing_wrong(damage: str, gamma: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = code_rows("eigenbasis", ROWS, 6)
    values, vectors = np.linalg.eigh(gram_of(rows[:12]).astype(np.float64))
    turned = vectors + 1e-5 * np.sin(np.arange(36.0).reshape(6, 6))
    bad = {"turned": (values, turned), "short": (values, 0.99999 * vectors), "estimates": (values + 50, vectors)}
    monkeypatch.setattr(np.linalg, "eigh", lambda _: bad[damage])
    spectrum = Spectrum.of(gram_of(rows[:12]), 12, NUMPY)
    assert spectrum is not None
    held = list(range(3, 15))
    basis = basis_of(following(spectrum, rows, set(range(12)), set(held)), rows, held)
    for found, true in (
        (basis.residual(gamma), residual(rows[held], TARGETS[held], gamma)),
        (basis.freedom(gamma), freedom(rows[held], gamma)),
    ):
        assert found is None or found[0] <= true <= found[1]


def test_a_core_that_has_no_inverse_only_widens_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, held = code_rows("eigenbasis", ROWS, 4), list(range(2, ROWS))
    spectrum = Spectrum.of(gram_of(rows), ROWS, NUMPY)
    assert spectrum is not None
    basis = basis_of(following(spectrum, rows, set(range(ROWS)), set(held)), rows, held)

    def singular(_: Any) -> Any:
        raise np.linalg.LinAlgError

    monkeypatch.setattr(np.linalg, "inv", singular)
    bounds = basis.residual(2**12), basis.freedom(2**12)
    for found, true in zip(
        bounds, (residual(rows[held], TARGETS[held], 2**12), freedom(rows[held], 2**12)), strict=True
    ):
        assert found is not None
        assert found[0] <= true <= found[1]


def test_every_hardware_has_bounds(hardware: Hardware) -> None:
    rows, held = code_rows("eigenbasis", ROWS, 8), list(range(3, ROWS))
    spectrum = Spectrum.of(hardware.array(gram_of(rows)), ROWS, hardware)
    assert spectrum is not None
    moved = spectrum.after(hardware.array(rows[:1]), -1)
    moved = None if moved is None else moved.after(hardware.array(rows[1:3]), -1)
    assert moved is not None
    found = basis_of(moved, rows, held, hardware).freedom(2**14)
    assert found is not None
    assert found[0] <= freedom(rows[held], 2**14) <= found[1]


def test_wrong_products_are_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, held = code_rows("eigenbasis", ROWS, 6), list(range(3, ROWS))
    spectrum = Spectrum.of(gram_of(rows), ROWS, NUMPY)
    assert spectrum is not None
    moved, hardware = following(spectrum, rows, set(range(ROWS)), set(held)), choose("numpy")
    basis = basis_of(moved, rows, held)
    true: Any = type(hardware).matmul

    def wrong(self: Any, left: np.ndarray, right: np.ndarray) -> Any:
        product = true(self, left, right)
        if product.shape == shape:
            product[1, 2] += 1.0
        return product

    monkeypatch.setattr(type(hardware), "matmul", wrong)
    shape = 6, 3  # T, and U'S U V
    with pytest.raises(HardwareError, match="float64 product computed on this machine is wrong"):
        basis_of(moved, rows, held)
    with pytest.raises(HardwareError, match="float64 product computed on this machine is wrong"):
        basis.residual(2**14)
    shape = 3, 3  # L
    with pytest.raises(HardwareError, match="float64 product computed on this machine is wrong"):
        basis.freedom(2**14)
