"""Codes are as good as the published formulas in floats, on digits."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.encoders import CURVES, Draw, activations, fixed_scales, less, spread

DRAW = Draw(3)


def test_activations_are_as_accurate_as_in_floats() -> None:
    found = activations(DRAW, 300, 1.0)
    assert list(found) == list(CURVES)
    for name, row in found.items():
        assert row["int8"] > 85, name
        assert abs(row["int8"] - row["signs"]) < 2.5, name
        assert abs(row["int8"] - row["float"]) < 5, name


def test_fixed_scales_are_as_accurate_as_f_oal_and_gkeal() -> None:
    found = fixed_scales(DRAW)
    assert found["F-OAL, int8"] == pytest.approx(found["F-OAL"], abs=1.5)
    assert found["GKEAL, int8, scale 8"] == pytest.approx(found["GKEAL"], abs=1.0)
    assert found["GKEAL, int8, scale 1"] < found["GKEAL"]  # features are cut off


def test_no_sample_is_in_two_sets_of_a_draw() -> None:
    sets = [{row.tobytes() for row in rows} for rows in (DRAW.base, DRAW.X, DRAW.test)]
    assert sum(map(len, sets)) == len(np.unique(np.concatenate([DRAW.base, DRAW.X, DRAW.test]), axis=0)) == 1797


def test_words() -> None:
    assert spread([1.0, 3.0]) == "2.00 ± 1.00"
    assert less([1.0, 2.0], [1.0, 1.0]) == "+0.50 ± 0.50"
