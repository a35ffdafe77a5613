"""Eigenvalues in proven intervals, whatever the decomposition was."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import HardwareError
from neverseen.engine.rational import eliminated
from neverseen.engine.spectrum import Spectrum
from neverseen.hardware import Hardware, choose
from tests.samples import codes as code_rows

NUMPY = choose("numpy")
SHAPES = [(1, 1), (1, 5), (4, 4), (3, 7), (9, 4), (40, 12), (6, 30)]


def gram_of(codes: np.ndarray) -> np.ndarray:
    wide = codes.astype(np.int64)
    return wide.T @ wide


def following(spectrum: Spectrum, rows: np.ndarray, before: set[int], after: set[int]) -> Spectrum:
    """Return the spectrum of some rows, told of the change to others."""
    gone, come = (rows[sorted(each)] for each in (before - after, after - before))
    moved = spectrum.after(gone, -1)
    assert moved is not None
    moved = moved.settled().after(come, 1)
    assert moved is not None
    return moved


def freedom(codes: np.ndarray, gamma: int) -> Fraction:
    """Return ``n - trace(G (G + gamma I)^-1)`` in fractions."""
    gram = gram_of(codes)
    inverse = eliminated(gram, gamma, np.eye(len(gram), dtype=np.int64))
    return len(codes) - len(gram) + gamma * sum((row[place] for place, row in enumerate(inverse)), Fraction(0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [1, 2**8, 2**20])
def test_freedom_lies_between_its_bounds(shape: tuple[int, int], gamma: int, hardware: Hardware) -> None:
    codes = code_rows(f"freedom {shape}", *shape)
    codes[len(codes) // 2 :] = codes[: len(codes) - len(codes) // 2]  # equal samples: the rank is below both
    spectrum = Spectrum.of(hardware.array(gram_of(codes)), len(codes), hardware)
    assert spectrum is not None
    low, high = spectrum.freedom(gamma)
    assert low <= freedom(codes, gamma) <= high
    assert high - low <= high / 1000


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_bounds_follow_samples_that_come_and_go(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    rows = code_rows("come and go", 12, size)
    before, after = (sorted(data.draw(st.sets(st.integers(0, 11), min_size=1))) for _ in range(2))
    spectrum = Spectrum.of(gram_of(rows[before]), len(before), NUMPY)
    assert spectrum is not None
    assert spectrum.is_current
    moved = following(spectrum, rows, set(before), set(after))
    low, high = moved.freedom(2**6)
    assert low <= freedom(rows[after], 2**6) <= high
    assert moved.is_current == (before == after)


@pytest.mark.parametrize("damage", ["turned", "estimates", "short", "zeros", "nan", "order", "none"])
def test_a_bad_decomposition_proves_little_and_nothing_wrong(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = code_rows("bad decomposition", 9, 6)
    values, vectors = np.linalg.eigh(gram_of(codes).astype(np.float64))

    def bad(_: Any) -> tuple[np.ndarray, np.ndarray]:
        if damage == "none":
            raise np.linalg.LinAlgError
        turned = vectors + 1e-3 * np.sin(np.arange(36.0).reshape(6, 6))
        return {
            "turned": (values, turned),
            "estimates": (values + 1000, vectors),
            "short": (values, 0.9 * vectors),
            "zeros": (values, 0 * vectors),
            "nan": (values, vectors * np.nan),
            "order": (values[::-1], vectors[:, ::-1]),
        }[damage]

    monkeypatch.setattr(np.linalg, "eigh", bad)
    spectrum = Spectrum.of(gram_of(codes), len(codes), NUMPY)
    assert (spectrum is None) == (damage in ("zeros", "nan", "order", "none"))
    if spectrum is not None:
        for gamma in (1, 2**10):
            low, high = spectrum.freedom(gamma)
            assert low <= freedom(codes, gamma) <= high
        true = np.sort(values)[::-1]
        assert ((spectrum.lows <= true) & (true <= spectrum.highs)).all()


def test_too_many_changes_are_not_followed() -> None:
    rows = code_rows("too many", 40, 4)
    spectrum = Spectrum.of(gram_of(rows), 40, NUMPY)
    assert spectrum is not None
    assert spectrum.after(rows[:17], -1) is None
    for row in range(16):
        spectrum = spectrum.after(rows[row : row + 1], -1)
        assert spectrum is not None
    assert spectrum.after(rows[16:17], -1) is None
    assert spectrum.settled().images.shape == (16, 4)


def test_wrong_products_are_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = choose("numpy")
    true: Any = hardware.matmul

    def wrong(left: np.ndarray, right: np.ndarray) -> Any:
        product = true(left, right)
        if product.shape == (6, 6):
            product[3, 2] += 1e-3
        return product

    monkeypatch.setattr(hardware, "matmul", wrong)
    with pytest.raises(HardwareError, match="float64 product computed on this machine is wrong"):
        Spectrum.of(gram_of(code_rows("wrong", 9, 6)), 9, hardware)


def test_the_inverse_is_nearly_one() -> None:
    gram = gram_of(code_rows("inverse", 20, 6))
    spectrum = Spectrum.of(gram, 20, NUMPY)
    assert spectrum is not None
    image: Any = spectrum.inverse(64)(gram + 64 * np.eye(6))
    assert np.abs(image - np.eye(6)).max() < 1e-8
