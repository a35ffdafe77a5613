from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from neverseen import (
    ConfigurationError,
    Encoder,
    GaussianKernel,
    HardwareError,
    Identity,
    InputError,
    RandomProjection,
    TwoStreams,
)
from neverseen.encoding import (
    ACTIVATIONS,
    activation_table,
    encoder_of,
    kernel_thresholds,
    projection_shift,
    projection_signs,
    quantise,
    quantising,
)
from neverseen.hardware import Hardware
from tests import oracle
from tests.samples import features

ANY_FLOAT = st.floats(allow_nan=False, allow_infinity=False, width=64)
SCALES = st.floats(2.0**-40, 2.0**40) | st.sampled_from([2.0**-40, 1.0, 2.0**40])
CURVES = {
    "tanh": lambda x: 127 * np.tanh(x),
    "sigmoid": lambda x: 127 / (1 + np.exp(-x)),
    "gelu": lambda x: np.minimum(127, 32 * x / (1 + np.exp(-1.702 * x))),
}
ROWS = st.integers(1, 9).flatmap(lambda width: arrays(np.float64, (3, width), elements=ANY_FLOAT))


@given(ROWS)
def test_quantise_is_the_specified_function(rows: np.ndarray) -> None:
    assert quantise(rows).tolist() == [oracle.quantise(row) for row in rows.tolist()]


@given(ROWS, SCALES)
def test_a_fixed_scale_is_the_specified_function(rows: np.ndarray, scale: float) -> None:
    assert quantise(rows, scale).tolist() == [oracle.quantise(row, scale) for row in rows.tolist()]
    assert Identity(scale=scale).encode(rows).tolist() == quantise(rows, scale).tolist()


def test_with_a_fixed_scale_lengths_count_and_large_features_are_clipped() -> None:
    row = np.array([[0.5, -1.0, 2.0, 100.0]])
    assert quantise(row, 1.0).tolist() == [[8, -16, 32, 127]]
    assert quantise(2 * row, 1.0).tolist() == [[16, -32, 64, 127]]
    assert quantise([[1e308, -1e308, 5e-324]], 2.0**-40).tolist() == [[127, -127, 0]]
    for scale in (0, -1.0, math.nan, "wide", 2.0**41):
        with pytest.raises(ConfigurationError, match="scale must be a number"):
            quantise(row, scale)  # type: ignore[arg-type]


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """The code for a GPU, which quantises even a few samples."""
    pytest.importorskip("torch")
    from neverseen.hardware import torch_cuda
    from tests.hardware.cpu_tensors import CpuTensors

    monkeypatch.setattr(torch_cuda, "_MANY_NUMBERS", 0)
    return cast("Hardware", CpuTensors())  # type: ignore[abstract]


@given(ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_gpu_quantises_alike(tensors: Hardware, rows: np.ndarray) -> None:
    assert quantise(rows, hardware=tensors).tolist() == [oracle.quantise(row) for row in rows.tolist()]


@pytest.mark.parametrize("exponent", [-1074, -1060, -1022, -500, 0, 900, 1020])
@pytest.mark.parametrize("width", [1, 3, 100, 1280])
def test_a_gpu_quantises_extremes_alike(width: int, exponent: int, tensors: Hardware) -> None:
    rows = np.ldexp(features("extremes", 30, width) / 8, exponent)
    rows[3], rows[5, 0], rows[6, 0] = 0.0, 5e-324, np.finfo(float).max
    assert np.array_equal(quantise(rows, hardware=tensors), quantise(rows))
    single = features("extremes", 30, width).astype(np.float32)
    assert np.array_equal(quantise(single, hardware=tensors), quantise(single))


def test_what_a_gpu_does_not_take_is_refused_or_done_here(tensors: Hardware) -> None:
    rows = features("here", 8, 3)
    for odd in (rows[:0], rows.astype(np.int64), rows.tolist(), rows.astype(np.float16)):
        assert np.array_equal(quantise(odd, hardware=tensors), quantise(odd))
    rows[4, 1] = np.nan
    with pytest.raises(InputError, match="first in row 4"):
        quantise(rows, hardware=tensors)
    with pytest.raises(InputError, match="matrix of shape"):
        quantise(rows[0], hardware=tensors)


def test_wrong_quantisation_is_not_silent(tensors: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(tensors), "quantised", lambda self, rows, target: np.ones(rows.shape, np.int8))
    with pytest.raises(HardwareError, match="nothing was changed"):
        quantise(features("wrong", 8, 30), hardware=tensors)


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


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("n_features", [1, 5, 17])
def test_activations_are_the_specified_functions(activation: str, n_features: int, hardware: Hardware) -> None:
    rows = np.concatenate([features("activations", 12, n_features), np.zeros((1, n_features)), np.eye(n_features)])
    encoder = RandomProjection(19, 7, activation=activation, scale=0.25)
    codes = hardware.numpy(encoder.expand(encoder.quantise(rows), hardware))
    assert codes.dtype == np.int8
    quantised = [oracle.quantise(row, 0.25) for row in rows.tolist()]
    assert codes.tolist() == [oracle.random_projection(row, 19, 7, activation) for row in quantised]
    assert encoder.expand(np.empty((0, n_features), np.int8), hardware).shape == (0, 19)


def test_two_streams_are_two_projections_side_by_side(hardware: Hardware) -> None:
    rows = features("two streams", 12, 5)
    for encoder, others in (
        (TwoStreams(9, 7), ("relu", "tanh")),
        (TwoStreams(9, 7, activation="sign", compensation_activation="gelu", scale=0.25), ("sign", "gelu")),
    ):
        codes = hardware.numpy(encoder.expand(encoder.quantise(rows), hardware))
        assert codes.dtype == np.int8
        quantised = [oracle.quantise(row, encoder.scale) for row in rows.tolist()]
        assert codes.tolist() == [oracle.two_streams(row, 9, 7, *others) for row in quantised]
        assert encoder.expand(np.empty((0, 5), np.int8), hardware).shape == (0, encoder.code_size(5)) == (0, 18)


@pytest.mark.parametrize("activation", [*CURVES, "sign"])
@pytest.mark.parametrize("n_features", [1, 3, 40])
def test_tables_have_the_codes_of_all_projections(activation: str, n_features: int) -> None:
    table = activation_table(activation, n_features)
    middle = len(table) // 2
    for place, code in enumerate(table.tolist()):
        assert code == oracle.activated(place - middle, n_features, activation)
    for beyond in (middle + 1, 2 * middle, 127 * n_features + 7 * middle):
        assert oracle.activated(beyond, n_features, activation) == table[-1]
        assert oracle.activated(-beyond, n_features, activation) == table[0]


@pytest.mark.parametrize("activation", CURVES)
@pytest.mark.parametrize("n_features", [1280, 133_144])
def test_tables_against_the_curves_in_floats(activation: str, n_features: int) -> None:
    table = activation_table(activation, n_features)
    middle = len(table) // 2
    values = CURVES[activation](np.arange(-middle, middle + 1) / math.isqrt(256 * n_features))
    clear = np.abs(values % 1 - 0.5) > 1e-6
    assert clear.sum() >= len(table) - 1
    assert np.array_equal(table[clear], np.floor(values + 0.5)[clear])
    assert table[middle] == {"tanh": 0, "sigmoid": 64, "gelu": 0}[activation]


def test_the_projection_of_random_rows_has_the_spread_that_activations_expect() -> None:
    rows = quantise(features("spread", 50, 200))
    projected = rows.astype(np.int64) @ projection_signs(1, 200, 300)
    assert 0.95 < projected.std() / math.isqrt(256 * 200) < 1.05


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


@pytest.mark.parametrize("scale", [0.3, 1.0, 50.0])
def test_the_kernel_of_a_fixed_scale_is_the_specified_function(scale: float, hardware: Hardware) -> None:
    centres, rows = features("centres", 6, 5), features("kernel", 20, 5)
    encoder = GaussianKernel(centres, 0.7, scale=scale)
    codes = hardware.numpy(encoder.expand(encoder.quantise(rows), hardware))
    quantised = [oracle.quantise(row, scale) for row in rows.tolist()]
    assert codes.tolist() == [oracle.gaussian_kernel(row, centres.tolist(), 0.7, scale) for row in quantised]


def test_the_kernel_of_a_fixed_scale_is_near_the_kernel_of_the_features() -> None:
    centres, rows = features("centres", 40, 60), features("kernel", 50, 60)
    sigma, scale = 8.0, 0.5
    codes = GaussianKernel(centres, sigma / (scale * math.sqrt(60)), scale=scale).encode(rows)
    squares = ((rows[:, None, :] - centres[None]) ** 2).sum(axis=2)
    assert np.abs(codes - 127 * np.exp(-squares / (2 * sigma**2))).max() < 1.5
    assert codes.std() > 5


def test_kernel_table_against_the_exponential() -> None:
    thresholds = kernel_thresholds(0.5, 64)
    assert thresholds.tolist() == oracle.kernel_thresholds(0.5, 64)
    for distance in range(0, int(thresholds[0]) + 10, 37):
        value = 127 * math.exp(-distance / (512 * 0.25 * 64))
        if abs(value % 1 - 0.5) > 1e-9:
            assert (thresholds >= distance).sum() == round(value)


def test_tables_do_not_depend_on_settings_of_the_program() -> None:
    few = decimal.Context(prec=2)
    strict = decimal.Context(Emin=-1, Emax=1, traps=[decimal.Inexact, decimal.FloatOperation])
    made: list[Callable[[], np.ndarray]] = [
        lambda: activation_table.__wrapped__("tanh", 2),
        lambda: activation_table.__wrapped__("sigmoid", 2),
        lambda: kernel_thresholds.__wrapped__(0.3, 2),
    ]
    for make in made:
        wanted = make()
        for context in (few, strict):
            with decimal.localcontext(context):
                np.testing.assert_array_equal(make(), wanted)


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
        Identity(scale=1.0),
        Identity(scale=2.0),
        GaussianKernel(np.eye(3), scale=1.0),
        RandomProjection(8, 0, scale=1.0),
        *(RandomProjection(8, 0, activation=each) for each in ACTIVATIONS[1:]),
        RandomProjection(8, 0, activation="tanh", scale=1.0),
        TwoStreams(4, 0),
        TwoStreams(4, 0, compensation_ratio=0.5),
        TwoStreams(4, 0, activation="gelu"),
        TwoStreams(4, 0, compensation_activation="gelu"),
        TwoStreams(4, 0, scale=1.0),
    ]
    assert len({encoder.digest() for encoder in encoders}) == len(encoders)
    assert RandomProjection(int(np.int64(8)), 0).digest() == RandomProjection(8, 0).digest()


def test_settings_that_were_not_there_at_first_change_no_earlier_configuration() -> None:
    assert Identity().configuration() == {"kind": "identity"}
    projection = RandomProjection(8, 3, activation="relu", scale=None)
    assert projection.configuration() == {"kind": "random-projection", "codes": 8, "seed": 3}
    assert sorted(GaussianKernel(np.eye(2)).configuration()) == ["bandwidth", "centres", "kind", "shape"]


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        (Identity(scale=3), oracle.identity_configuration(3)),
        (RandomProjection(8, 3, activation="gelu"), oracle.random_projection_configuration(8, 3, "gelu")),
        (RandomProjection(8, 3, scale=0.1), oracle.random_projection_configuration(8, 3, scale=0.1)),
        (GaussianKernel(np.eye(3), 0.5, scale=0.1), oracle.gaussian_kernel_configuration(np.eye(3).tolist(), 0.5, 0.1)),
        (TwoStreams(8, 3), oracle.two_streams_configuration(8, 3, 1.0)),
        (
            TwoStreams(8, 3, activation="gelu", compensation_ratio=0.6, scale=0.1),
            oracle.two_streams_configuration(8, 3, 0.6, "gelu", scale=0.1),
        ),
    ],
)
def test_configurations_are_as_specified_and_make_the_encoder_again(
    encoder: Encoder, expected: dict[str, object]
) -> None:
    assert encoder.configuration() == expected
    again = encoder_of(encoder.configuration(), encoder.array())
    assert again.configuration() == expected
    assert np.array_equal(again.encode(np.eye(3)), encoder.encode(np.eye(3)))


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
        (GaussianKernel(np.eye(3), 10**400), "bandwidth must be a number"),
        (GaussianKernel(np.eye(3), scale=0.0), r"scale must be a number between 2\*\*-40 and 2\*\*40; got 0.0"),
        (Identity(scale=math.nan), "scale must be a number"),
        (RandomProjection(8, scale="1 m"), "scale must be a number; got '1 m'"),  # type: ignore[arg-type]
        (RandomProjection(8, activation="swish"), "activation must be one of relu, tanh, sigmoid, gelu, sign; got"),
        (RandomProjection(8, activation=None), "activation must be one of"),  # type: ignore[arg-type]
    ],
)
def test_unusable_settings_are_refused(encoder: Encoder, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        encoder.configuration()


def test_settings_as_scikit_learn_reads_them() -> None:
    encoder = RandomProjection(8, seed=3)
    assert encoder.get_params() == {"n_codes": 8, "seed": 3, "activation": "relu", "scale": None}
    assert repr(encoder.set_params(seed=4)) == "RandomProjection(n_codes=8, seed=4, activation='relu', scale=None)"
    shown = "GaussianKernel(centres=<array of shape (2, 2)>, bandwidth=0.5, scale=None)"
    assert repr(GaussianKernel(np.eye(2))) == shown
    with pytest.raises(ConfigurationError, match="no setting 'sed'; it has n_codes, seed, activation, scale"):
        encoder.set_params(sed=4)


def test_kernel_refuses_samples_of_another_width() -> None:
    with pytest.raises(InputError, match="samples have 2 features, but the centres have 3"):
        GaussianKernel(np.eye(3)).encode([[1.0, 2.0]])
