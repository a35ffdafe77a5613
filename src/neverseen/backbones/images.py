"""Preprocessing of images: one size, three channels, shifted and scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.backbones.contents import Content, ImageRejectedError, Reduced, Undecoded, decoded, fingerprint
from neverseen.backbones.packages import imported
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, InputError

RESAMPLES = ("nearest", "box", "bilinear", "bicubic", "lanczos")
_ASPECT_LIMIT = 100  # longer to shorter side; what is left after the crop would be a dot of the image


class Images:
    """Preprocessing for networks that see images.

    The shorter side is scaled to `resize`, the image is cropped to its centre, and each pixel x becomes
    ``(x / divisor - mean) / std``, with each operation rounded to float32. Pillow scales 8-bit images in integer
    arithmetic, so the result does not depend on the processor or the number of threads.

    Parameters
    ----------
    size : int
        Height and width of the result.
    mean, std : float or three floats
        One for each of red, green and blue. The defaults are those of EfficientNet-Lite.
    divisor : float
        255 for networks whose mean and standard deviation are given for pixels from 0 to 1.
    resize : int, optional
        Length of the shorter side before cropping; `size` by default.
    resample : {"bilinear", "nearest", "box", "bicubic", "lanczos"}

    Examples
    --------
    >>> Images(size=2)([np.full((2, 2, 3), 191, np.uint8)]).tolist()[0][0]
    [[0.5, 0.5], [0.5, 0.5]]
    """

    takes = "images"

    def __init__(
        self,
        size: int = 128,
        mean: float | Sequence[float] = 127.0,
        std: float | Sequence[float] = 128.0,
        *,
        divisor: float = 1.0,
        resize: int | None = None,
        resample: str = "bilinear",
    ) -> None:
        self.size = whole_number("size", size, 1, 4096)
        self.resize = self.size if resize is None else whole_number("resize", resize, self.size, 4096)
        if resample not in RESAMPLES:
            raise ConfigurationError(f"resample must be one of {', '.join(RESAMPLES)}; got {resample!r}")
        self.resample = resample
        self._settings = (self.size, self.resize, resample)
        self.mean = _three("mean", mean)
        self.std = _three("std", std)
        (self.divisor, *_) = _three("divisor", divisor)
        if self.divisor <= 0 or min(self.std) <= 0:
            raise ConfigurationError(f"divisor and std must be positive; got {divisor!r} and {std!r}")
        values = np.arange(256, dtype=np.float32) / np.float32(self.divisor)
        shifted = values - np.array(self.mean, np.float32)[:, None]
        self._table: np.ndarray = shifted / np.array(self.std, np.float32)[:, None]  # (3, 256): a pixel has few values

    def __call__(self, samples: list[Any]) -> np.ndarray:
        """Return float32 of shape (n, 3, size, size) for images.

        An image is uint8 of shape (h, w) or (h, w, 1), which becomes RGB, (h, w, 3), or (h, w, 4), of which transparent
        pixels become black. It may also be `reduced` already, with these settings.
        """
        batch = np.empty((len(samples), 3, self.size, self.size), np.float32)
        for place, sample in zip(batch, samples, strict=True):
            pixels = self._pixels(sample)
            for channel in range(3):
                np.take(self._table[channel], pixels[:, :, channel], out=place[channel])
        return batch

    def reduced(self, sample: np.ndarray) -> Reduced:
        """Return a decoded image, scaled and cropped, to use in its place. It is smaller to pass on.

        The features are the same, bit for bit.
        """
        return Reduced(np.ascontiguousarray(self._pixels(sample)), fingerprint(sample), self._settings)

    def example(self) -> np.ndarray:
        """Return a sample, a black dot, to find the shape of the features."""
        return np.zeros((1, 1, 3), np.uint8)

    def configuration(self) -> dict[str, Any]:
        """Return the settings as JSON values, for the digest."""
        return {
            "kind": "images",
            "size": self.size,
            "resize": self.resize,
            "resample": self.resample,
            "divisor": self.divisor.hex(),
            "mean": [value.hex() for value in self.mean],
            "std": [value.hex() for value in self.std],
        }

    @classmethod
    def from_configuration(cls, settings: dict[str, Any]) -> Images:
        """Return the preprocessing that has this `configuration`."""
        mean, std = ([float.fromhex(value) for value in settings[name]] for name in ("mean", "std"))
        scale = {"divisor": float.fromhex(settings["divisor"]), "resize": settings["resize"]}
        images = cls(settings["size"], mean, std, **scale, resample=settings["resample"])
        if images.configuration() != settings:
            raise ConfigurationError("these are not settings of Images")
        return images

    def __repr__(self) -> str:
        settings = ("size", "mean", "std", "divisor", "resize", "resample")
        return f"Images({', '.join(f'{name}={getattr(self, name)!r}' for name in settings)})"

    def _pixels(self, sample: Any) -> np.ndarray:
        """Return uint8 of shape (size, size, 3)."""
        if isinstance(sample, Reduced):
            if sample.settings != self._settings:
                raise InputError(f"an image was reduced with the settings {sample.settings}, not {self._settings}")
            return sample.pixels
        require_image(sample)
        if sample.ndim == 3 and sample.shape[2] == 1:
            sample = sample[:, :, 0]
        height, width = sample.shape[:2]
        if (height, width) != (self.size, self.size) or self.resize != self.size or sample.ndim != 3:
            return self._scaled(sample)
        return sample if sample.shape[2] == 3 else self._scaled(sample)

    def _scaled(self, sample: np.ndarray) -> np.ndarray:
        pil = imported("PIL.Image", "preprocessing images", "pip install pillow")
        image = pil.fromarray(sample)
        if image.mode == "RGBA":
            image = pil.alpha_composite(pil.new("RGBA", image.size, (0, 0, 0, 255)), image)
        image = image.convert("RGB")
        short, long = min(image.size), max(image.size)
        scaled = long * self.resize // short  # rounded down here, and half to even below, as torchvision does
        width, height = (self.resize, scaled) if image.width == short else (scaled, self.resize)
        if image.size != (width, height):
            image = image.resize((width, height), pil.Resampling[self.resample.upper()])
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return np.asarray(image)[top : top + self.size, left : left + self.size]


class ImageFiles(Undecoded):
    """Image files. Each is decoded once, when its features are computed. Unusable ones are noted.

    Parameters
    ----------
    paths : iterable of Path
    refusal : callable
        Makes the error from the noted reasons. It is raised after all images were decoded; after the first bad one,
        no other is handed on.
    skip_bad : bool
        Leave them out instead; the error is raised if no image is left.

    Attributes
    ----------
    bad : dict of int to str
        The reasons why images cannot be used, by row.
    """

    def __init__(
        self, paths: Iterable[Path], refusal: Callable[[dict[int, str]], Exception], skip_bad: bool = False
    ) -> None:
        super().__init__(paths)
        self.bad: dict[int, str] = {}
        self._refusal, self._skip_bad = refusal, skip_bad

    def contents(self) -> Iterator[Content]:
        """Yield the usable images, decoded one by one."""
        for row, path in enumerate(self):
            try:
                if not path.is_file():
                    raise InputError("it is a pipe, a device or a broken link")
                image = decoded(path)
                require_image(image)
            except ImageRejectedError as error:
                self.bad[row] = error.fault
            except InputError as error:
                self.bad[row] = str(error)
            except OSError as error:  # unreadable
                self.bad[row] = f"it cannot be read: {error.strerror}"
            else:
                if self._skip_bad or not self.bad:
                    yield image
        if self.bad and not (self._skip_bad and len(self.bad) < len(self)):
            raise self._refusal(self.bad)


def require_image(sample: Any) -> None:
    """Raise `InputError` unless a decoded sample is an image that `Images` takes."""
    if not isinstance(sample, np.ndarray):
        raise InputError(f"this backbone takes images; got {type(sample).__name__}")
    if sample.dtype != np.uint8:
        raise InputError(
            f"an image must hold uint8 pixels, 0..255; got dtype {sample.dtype}. For floats from 0 to 1: "
            "(image * 255).round().astype('uint8')"
        )
    if not (sample.ndim == 2 or (sample.ndim == 3 and sample.shape[2] in (1, 3, 4))) or sample.size == 0:
        raise InputError(
            f"an image must have shape (h, w), (h, w, 1), (h, w, 3) or (h, w, 4) and a pixel; got {sample.shape}"
        )
    height, width = sample.shape[:2]
    if max(height, width) > _ASPECT_LIMIT * min(height, width):
        raise InputError(
            f"an image is {width} x {height}: one side is more than {_ASPECT_LIMIT} times the other. Crop it first"
        )


def _three(name: str, value: Any) -> tuple[float, float, float]:
    try:
        red, green, blue = (float(part) for part in np.broadcast_to(np.asarray(value, np.float64), (3,)))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} must be a number, or three; got {value!r}") from error
    if not np.isfinite((red, green, blue)).all():
        raise ConfigurationError(f"{name} must be finite; got {value!r}")
    return red, green, blue
