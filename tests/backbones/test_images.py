"""Preprocessing of images: sizes, colours, and each rounding as it is defined."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from neverseen import ConfigurationError, InputError
from neverseen.backbones import Images
from neverseen.labels import canonical_json
from tests.samples import uniform_bytes

pytest.importorskip("PIL")


def test_pixels_are_shifted_and_scaled_by_single_roundings() -> None:
    """The oracle rounds exact fractions to float32 after each operation."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    (result,) = Images(16, mean, std, divisor=255)([np.repeat(ramp[:, :, None], 3, axis=2)])

    def rounded(value: Fraction) -> Fraction:
        near = np.float32(float(value))  # within an ulp: double rounding is settled below
        around = [near, np.nextafter(near, np.float32(-9)), np.nextafter(near, np.float32(9))]
        best = min(abs(Fraction(float(candidate)) - value) for candidate in around)
        (chosen, *_) = [item for item in around if abs(Fraction(float(item)) - value) == best]
        return Fraction(float(chosen))

    for channel in range(3):
        middle, spread = Fraction(float(np.float32(mean[channel]))), Fraction(float(np.float32(std[channel])))
        expected = [rounded(rounded(rounded(Fraction(x, 255)) - middle) / spread) for x in range(256)]
        assert [Fraction(float(value)) for value in result[channel].reshape(-1)] == expected


def test_the_defaults_are_exact() -> None:
    pixels = uniform_bytes("exact", 8, 8, 3)
    (result,) = Images(8)([pixels])
    assert np.array_equal(result.astype(np.float64), (pixels.astype(np.float64).transpose(2, 0, 1) - 127) / 128)


@pytest.mark.parametrize(
    ("shape", "resize", "scaled"),
    [
        ((1, 1, 3), 8, (8, 8)),
        ((4, 8, 3), 8, (16, 8)),
        ((30, 7, 3), 12, (12, 51)),
        ((10, 7, 3), 9, (9, 12)),
        ((800, 8, 3), 8, (8, 800)),
    ],
)
def test_the_shorter_side_is_scaled_and_the_centre_cut_out(
    shape: tuple[int, ...], resize: int, scaled: tuple[int, int]
) -> None:
    from PIL import Image

    pixels = uniform_bytes(f"shape {shape}", *shape)
    whole = np.asarray(Image.fromarray(pixels).resize(scaled, Image.Resampling.BICUBIC))
    top, left = round((scaled[1] - 8) / 2), round((scaled[0] - 8) / 2)
    (result,) = Images(8, 0, 1, resize=resize, resample="bicubic")([pixels])
    assert np.array_equal(result, whole[top : top + 8, left : left + 8].transpose(2, 0, 1).astype(np.float32))


def test_grey_and_transparent_images() -> None:
    grey = uniform_bytes("grey", 8, 8)
    images = Images(8, 0, 1)
    results = images([grey, grey[:, :, None], np.repeat(grey[:, :, None], 3, axis=2)])
    assert all(np.array_equal(result, np.stack([grey] * 3).astype(np.float32)) for result in results)
    clear = np.dstack([grey, grey, grey, np.zeros_like(grey)])
    opaque = np.dstack([grey, grey, grey, np.full_like(grey, 255)])
    assert np.array_equal(images([clear, opaque]), np.stack([np.zeros((3, 8, 8)), results[0]]))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("a text", "this backbone takes images; got str"),
        (np.zeros((4, 4, 3)), r"uint8 pixels, 0..255; got dtype float64. For floats from 0 to 1: \(image \* 255\)"),
        (np.zeros((4, 4), bool), "got dtype bool"),
        (np.zeros(4, np.uint8), r"got \(4,\)"),
        (np.zeros((4, 4, 2), np.uint8), r"got \(4, 4, 2\)"),
        (np.zeros((0, 4, 3), np.uint8), r"a pixel; got \(0, 4, 3\)"),
        (np.zeros((3, 4, 0), np.uint8), r"got \(3, 4, 0\)"),
        (np.zeros((1, 4, 4, 3), np.uint8), r"got \(1, 4, 4, 3\)"),
        (np.zeros((1, 101), np.uint8), "an image is 101 x 1: one side is more than 100 times the other"),
    ],
)
def test_what_is_no_image_is_refused(sample: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Images(8)([sample])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be a whole number between 1 and 4096; got 0"),
        ({"size": 8.0}, "size must be a whole number"),
        ({"size": 8, "resize": 7}, "resize must be a whole number between 8 and 4096; got 7"),
        ({"resample": "cubic"}, "resample must be one of nearest, box, bilinear, bicubic, lanczos; got 'cubic'"),
        ({"mean": (1, 2)}, r"mean must be a number, or three; got \(1, 2\)"),
        ({"mean": "grey"}, "mean must be a number"),
        ({"mean": float("nan")}, "mean must be finite"),
        ({"std": (1, 0, 1)}, r"divisor and std must be positive; got 1.0 and \(1, 0, 1\)"),
        ({"divisor": -1}, "must be positive"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Images(**settings)


def test_every_setting_is_in_the_configuration() -> None:
    variants: list[dict[str, Any]] = [
        {}, {"size": 64}, {"mean": 0}, {"mean": (127, 127, 126)}, {"std": 1}, {"divisor": 255}, {"resize": 150}, {"resample": "bicubic"},
    ]  # fmt: skip
    texts = {canonical_json(Images(**settings).configuration()) for settings in variants}
    assert len(texts) == len(variants)
    assert canonical_json(Images(128, 127, 128.0).configuration()) in texts
    assert repr(Images(8)) == (
        "Images(size=8, mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0), divisor=1.0, resize=8, resample='bilinear')"
    )


def test_no_images_make_an_empty_batch() -> None:
    assert Images(8)([]).shape == (0, 3, 8, 8)
