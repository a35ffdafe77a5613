"""Raw samples: what is taken, what it becomes, and that its fingerprint says exactly that."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import InputError
from neverseen.backbones import as_list, decoded, fingerprint
from neverseen.backbones.contents import FORMATS
from tests.samples import uniform_bytes

Image = pytest.importorskip("PIL.Image")

PIXELS = uniform_bytes("contents", 5, 7, 3)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def test_a_list_of_samples_comes_in_many_forms() -> None:
    images = np.stack([PIXELS, PIXELS])
    assert all(np.array_equal(image, PIXELS) for image in as_list(images))
    assert as_list(text for text in ("a", "b")) == ["a", "b"]
    assert as_list(np.array(["a", "b"])) == ["a", "b"]
    assert as_list(np.array([PIXELS, "a"], dtype=object))[1] == "a"
    assert as_list([]) == as_list(np.zeros((0, 3))) == []


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ("a text", "got one str: put it into a list"),
        (b"PNG", "got one bytes: put it into a list"),
        (Path("cat.png"), "got one PosixPath: put it into a list"),
        (Image.new("RGB", (2, 2)), "got one Image: put it into a list"),
        (np.float64(3.0), "got float64"),
        (np.array(3.0), "got a single number"),
        (3, "got int"),
        (None, "got NoneType"),
        ({"a": 1}, "got a dict, whose order or rows are not clear"),
        ({"a"}, "got a set"),
        (PIXELS, r"shape \(5, 7, 3\), which looks like a single image: put it into a list"),
    ],
)
def test_what_is_no_list_of_samples_is_refused(samples: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_list(samples)


def test_a_data_frame_is_refused_and_not_read_by_its_columns() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="got a DataFrame"):
        as_list(pandas.DataFrame({"a": [1, 2]}))
    assert as_list(pandas.Series(["a", "b"])) == ["a", "b"]


def test_one_image_has_one_fingerprint_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    path.write_bytes(encoded(PIXELS))
    forms = [PIXELS, np.asfortranarray(PIXELS), Image.fromarray(PIXELS), path, encoded(PIXELS), encoded(PIXELS, "TIFF")]
    assert {fingerprint(form) for form in forms} == {fingerprint(PIXELS)}
    assert all(np.array_equal(decoded(form), PIXELS) for form in forms)


def test_grey_and_transparent_images_have_one_fingerprint_in_every_form(tmp_path: Path) -> None:
    """Whatever form it comes in, a picture of the base set is known, and a cache finds and loses it."""
    grey, clear = PIXELS[:, :, 0], np.dstack([PIXELS, PIXELS[:, :, 0]])
    for pixels in (grey, clear):
        forms = [pixels, Image.fromarray(pixels), encoded(pixels), decoded(pixels)]
        assert len({fingerprint(form) for form in forms}) == 1
    assert fingerprint(grey) == fingerprint(grey[:, :, None]) == fingerprint(np.dstack([grey] * 3))
    assert decoded(clear).shape == PIXELS.shape  # type: ignore[union-attr]


def test_text_is_text_even_if_there_is_such_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "image.png").write_bytes(encoded(PIXELS))
    monkeypatch.chdir(tmp_path)
    assert decoded("image.png") == "image.png"
    assert type(decoded(np.str_("a"))) is str
    assert fingerprint(np.str_("a")) == fingerprint("a")


def test_fingerprints_are_those_recorded() -> None:
    """They are in saved base sets and caches: they may not change."""
    assert fingerprint("").hex() == "d58ed0d8c11a395f961eebd66f656ce9"
    assert fingerprint("naïve").hex() == "c06246553dd3b2c6437d0e8bc77ab65a"
    assert fingerprint(PIXELS).hex() == "e81bbf7b258053b53ab7fc273d7a3c7d"
    assert fingerprint(np.arange(3, dtype=">f4")).hex() == "51a0e7fd9a98d8da175139827c5df3da"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "b"),
        ("", np.zeros(0, np.uint8)),
        (np.zeros(4, np.uint8), np.zeros(4, np.int8)),
        (np.zeros(4, np.uint8), np.zeros((2, 2), np.uint8)),
        (np.zeros((1, 4), np.uint8), np.zeros((4, 1), np.uint8)),
        (np.zeros((0, 1)), np.zeros((1, 0))),
        (np.zeros(2, np.float32), np.zeros(1, np.float64)),
        (np.array([0.0]), np.array([-0.0])),
        (np.zeros((2, 2), np.uint8), np.ones((2, 2, 3), np.uint8)),
        (np.zeros((2, 2), np.int8), np.zeros((2, 2, 3), np.int8)),
    ],
)
def test_different_contents_have_different_fingerprints(one: Any, other: Any) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_byte_order_and_strides_are_no_content() -> None:
    row = np.arange(6, dtype=np.int32)
    assert fingerprint(row) == fingerprint(row.astype(">i4")) == fingerprint(np.repeat(row, 2)[::2])
    assert decoded(row.astype(">i4")).dtype.str == "<i4"  # type: ignore[union-attr]


def test_images_are_turned_as_their_camera_says() -> None:
    orientation = Image.Exif()
    orientation[0x0112] = 6  # the top of the scene is on the right: turn by 90 degrees, clockwise
    assert np.array_equal(decoded(encoded(PIXELS, exif=orientation)), np.rot90(PIXELS, -1))


def test_grey_palette_and_transparent_images_become_rgb() -> None:
    grey = PIXELS[:, :, 0]
    assert np.array_equal(decoded(encoded(grey)), np.repeat(grey[:, :, None], 3, axis=2))
    alpha = np.full((5, 7, 1), 255, np.uint8)
    alpha[0] = 0
    over_black = np.where(alpha == 0, np.uint8(0), PIXELS)
    assert np.array_equal(decoded(encoded(np.concatenate([PIXELS, alpha], axis=2))), over_black)
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), mode=None).convert("P")
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.info["transparency"] = 1
    assert decoded(palette).tolist() == [[[255, 0, 0], [0, 0, 0]]]  # type: ignore[union-attr]


def test_of_several_frames_the_first_is_taken() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), "red").save(buffer, "GIF", save_all=True, append_images=[Image.new("RGB", (2, 2), "blue")])
    assert decoded(buffer.getvalue()).reshape(-1, 3)[0].tolist() == [255, 0, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (3, "a sample is of type int; it must be a NumPy array, a PIL image"),
        ([1.0, 2.0], "a sample is of type list"),
        (np.float32(1), "a sample is of type float32"),
        (np.array("a"), "got shape \\(\\) and dtype <U1"),
        (np.array(["a"]), "must have at least one axis and hold booleans, integers or floats"),
        (np.zeros(2, complex), "complex128"),
        (np.zeros(2, "M8[s]"), "datetime64"),
        (np.zeros(2, np.longdouble), "float128"),
        (np.zeros(2, [("a", "i4")]), "dtype"),
        ("\ud800", "surrogate code points"),
        (b"", r"an image of 0 bytes cannot be decoded"),
        (b"no image", r"an image of 8 bytes cannot be decoded \(UnidentifiedImageError.*none of BMP, GIF, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be decoded"),
        (Path("nowhere/cat.png"), "there is no file nowhere/cat.png"),
        (Path("/"), "the image / cannot be decoded"),
        (Image.new("I;16", (2, 2)), r"a PIL image has more than 8 bits a channel \(mode I;16\)"),
        (Image.new("F", (2, 2)), "more than 8 bits"),
    ],
)
def test_what_is_no_sample_is_refused(sample: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fingerprint(sample)


def test_an_open_image_whose_file_is_cut_short_is_refused() -> None:
    image = Image.open(io.BytesIO(encoded(uniform_bytes("cut", 64, 64, 3))[:-4000]))
    with pytest.raises(InputError, match=r"a PIL image cannot be decoded \(OSError"):
        decoded(image)


def test_an_image_file_is_named_when_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    path.write_bytes(encoded(uniform_bytes("cut", 64, 64, 3))[:-4000])
    with pytest.raises(InputError, match=r"the image .*cut\.png cannot be decoded \(OSError"):
        decoded(path)


@pytest.mark.parametrize("side", [8_001, 11_000, 14_000])
def test_bombs_do_not_go_off(side: int) -> None:
    """A small file that would unpack to more than 64 million pixels; Pillow itself warns of the second and refuses the third."""
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 50_000
    with pytest.raises(InputError, match="more than 64,000,000 pixels"):
        decoded(buffer.getvalue())


@settings(max_examples=150)
@given(
    kind=st.sampled_from(FORMATS),
    places=st.lists(st.integers(0, 10**6), min_size=1, max_size=3),
    value=st.integers(1, 255),
)
def test_damaged_files_are_decoded_or_refused(kind: str, places: list[int], value: int) -> None:
    content = bytearray(encoded(uniform_bytes("damaged", 9, 9, 3), kind))
    for place in places:
        content[place % len(content)] ^= value
    try:
        pixels = decoded(bytes(content))
    except InputError:
        return
    assert isinstance(pixels, np.ndarray)
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3
