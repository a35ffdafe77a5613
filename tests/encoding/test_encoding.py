from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from neverseen import ConfigurationError, GaussianKernel, Identity, InputError, RandomProjection
from neverseen.encoding import kernel_thresholds, projection_shift, projection_signs, quantise, quantising
from neverseen.hardware import Hardware
from tests import oracle
from tests.samples import features

ANY_FLOAT = st.floats(allow_nan=False, allow_infinity=False, width=64)
ROWS = st.integers(1, 9).flatmap(lambda width: arrays(np.float64, (3, width), elements=ANY_FLOAT))


@given(ROWS)
def test_quantise_is_the_specified_function(rows: np.ndarray) -> None:
    assert quantise(rows).tolist() == [oracle.quantise(row) for row in rows.tolist()]


@given(ROWS, st.integers(-300, 300))
@settings(max_examples=50)
def test_quantise_ignores_powers_of_two(rows: np.ndarray, exponent: int) -> None:
    with np.errstate(all="ignore"):
        scaled = np.ldexp(rows, exponent)
        kept = np.isfinite(scaled).all(axis=1) & (np.ldexp(scaled, -exponent) == rows).all(axis=1)
    assert np.array_equal(quantise(rows[kept]), quantise(scaled[kept]))


@pytest.mark.parametrize("width", [1, 2, 3, 64, 1000, 1280])
def test_quantise_rows_are_independent_of_batch_and_layout(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = features("layout", 50, width)
    expected = quantise(rows)
    assert np.array_equal(quantise(np.asfortranarray(rows)), expected)
    assert np.array_equal(quantise(rows[:, ::-1])[:, ::-1].shape, expected.shape)
    assert np.array_equal(np.concatenate([quantise(row[None]) for row in rows]), expected)
    for cached in (1, 7 * width, 2**30):
        monkeypatch.setattr(quantising, "_CACHED", cached)
        assert np.array_equal(quantise(rows), expected)


def test_quantise_extremes() -> None:
    tiny, huge = 5e-324, 1.7976931348623157e308
    assert quantise([[tiny, -tiny], [huge, -huge], [0.0, -0.0], [huge, tiny]]).tolist() == [
        [16, -16], [16, -16], [0, 0], [23, 0],
    ]  # fmt: skip
    spike = np.zeros((1, 400))
    spike[0, 3] = -1
    assert quantise(spike).min() == -127  # clipped, not wrapped: 16 * sqrt(400) = 320


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, bool])
def test_every_real_dtype_counts_as_its_value(dtype: type) -> None:
    values: np.ndarray = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    assert np.array_equal(quantise(values), quantise(values.astype(np.float64)))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([[1.0, math.nan]], "NaN or infinity, first in row 0"),
        ([[1.0, 2.0], [math.inf, 0.0]], "NaN or infinity, first in row 1"),
        ([1.0, 2.0], "must be a matrix"),
        (np.zeros((2, 2, 2)), "must be a matrix"),
        (np.zeros((3, 0)), "0 columns"),
        ([["a", "b"]], "must be real numbers"),
        (np.zeros((1, 2), complex), "must be real numbers"),
    ],
)
def test_unusable_features_are_refused(samples: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quantise(samples)


@pytest.mark.parametrize(("n_features", "n_codes", "seed"), [(1, 1, 0), (3, 7, 1), (5, 64, 2**64 - 1), (17, 9, 12345)])
def test_random_projection_is_the_specified_function(
    n_features: int, n_codes: int, seed: int, hardware: Hardware
) -> None:
    quantised = quantise(features(f"projection{seed}", 20, n_features))
    codes = hardware.numpy(RandomProjection(n_codes, seed).expand(quantised, hardware))
    assert codes.dtype == np.int8
    assert codes.tolist() == [oracle.random_projection(row, n_codes, seed) for row in quantised.tolist()]


def test_signs_do_not_depend_on_the_size() -> None:
    signs = projection_signs(7, 20, 100)
    assert set(np.unique(signs)) == {-1, 1}
    assert abs(int(signs.sum())) < 200
    assert np.array_equal(projection_signs(7, 5, 33), signs[:5, :33])
    assert not np.array_equal(projection_signs(8, 20, 100), signs)


@pytest.mark.parametrize("n_features", [1, 2, 3, 40, 41, 1280, 2048, 10**6])
def test_shift_brings_the_spread_near_18(n_features: int) -> None:
    shift = projection_shift(n_features)
    assert shift == oracle.projection_shift(n_features)
    assert shift == 0 or 12.7 < 16 * math.sqrt(n_features) / 2**shift < 25.6


@pytest.mark.parametrize("bandwidth", [0.01, 0.3, 0.5, 1.0, 40.0])
def test_gaussian_kernel_is_the_specified_function(bandwidth: float, hardware: Hardware) -> None:
    centres = features("centres", 6, 5)
    quantised = quantise(np.concatenate([features("kernel", 20, 5), centres[:1]]))
    codes = hardware.numpy(GaussianKernel(centres, bandwidth).expand(quantised, hardware))
    assert codes.tolist() == [oracle.gaussian_kernel(row, centres.tolist(), bandwidth) for row in quantised.tolist()]
    assert codes[-1, 0] == 127  # a centre itself


def test_kernel_table_against_the_exponential() -> None:
    thresholds = kernel_thresholds(0.5, 64)
    assert thresholds.tolist() == oracle.kernel_thresholds(0.5, 64)
    for distance in range(0, int(thresholds[0]) + 10, 37):
        value = 127 * math.exp(-distance / (512 * 0.25 * 64))
        if abs(value % 1 - 0.5) > 1e-9:
            assert (thresholds >= distance).sum() == round(value)


def test_quantised_centres_are_taken_as_they_are() -> None:
    centres = features("centres", 6, 5)
    quantised = quantise(centres)
    assert GaussianKernel(quantised).digest() == GaussianKernel(centres).digest()
    assert np.array_equal(GaussianKernel(quantised).array(), quantised)


def test_digests_tell_configurations_apart() -> None:
    encoders = [
        Identity(),
        RandomProjection(8, 0),
        RandomProjection(8, 1),
        RandomProjection(9, 0),
        GaussianKernel(np.eye(3)),
        GaussianKernel(np.eye(3), 0.25),
        GaussianKernel(-np.eye(3)),
    ]
    assert len({encoder.digest() for encoder in encoders}) == len(encoders)
    assert RandomProjection(int(np.int64(8)), 0).digest() == RandomProjection(8, 0).digest()


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (RandomProjection(0), "n_codes must be a whole number between 1"),
        (RandomProjection(2.5), "n_codes must be a whole number"),  # type: ignore[arg-type]
        (RandomProjection(True), "n_codes must be a whole number"),
        (RandomProjection(8, -1), "seed must be a whole number between 0"),
        (RandomProjection(8, 2**64), "seed must be"),
        (GaussianKernel(np.zeros((0, 3))), "at least one row"),
        (GaussianKernel([[math.nan]]), "centres: features contain NaN"),
        (GaussianKernel(np.eye(3), 0.0), "bandwidth must be"),
        (GaussianKernel(np.eye(3), math.nan), "bandwidth must be"),
    ],
)
def test_unusable_settings_are_refused(encoder: RandomProjection | GaussianKernel, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        encoder.configuration()


def test_settings_as_scikit_learn_reads_them() -> None:
    encoder = RandomProjection(8, seed=3)
    assert encoder.get_params() == {"n_codes": 8, "seed": 3}
    assert repr(encoder.set_params(seed=4)) == "RandomProjection(n_codes=8, seed=4)"
    assert repr(GaussianKernel(np.eye(2))) == "GaussianKernel(centres=<array of shape (2, 2)>, bandwidth=0.5)"
    with pytest.raises(ConfigurationError, match="no setting 'sed'; it has n_codes, seed"):
        encoder.set_params(sed=4)


def test_kernel_refuses_samples_of_another_width() -> None:
    with pytest.raises(InputError, match="samples have 2 features, but the centres have 3"):
        GaussianKernel(np.eye(3)).encode([[1.0, 2.0]])
