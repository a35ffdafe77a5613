"""The weights of a PyTorch module: their digest, and a safetensors file with them and their base set."""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from neverseen.backbones.base_set import BaseSet
from neverseen.backbones.contents import FINGERPRINT_SIZE
from neverseen.backbones.protocol import description_digest
from neverseen.errors import ConfigurationError, FileRejectedError, damaged
from neverseen.io.files import replace_file
from neverseen.labels import canonical_json, parse_json

if TYPE_CHECKING:
    import torch

FORMAT = "neverseen-weights-1"
_STATE, _FINGERPRINTS = "state.", "base.fingerprints"

# By these names PyTorch's layers keep what decides their function besides weights. The list is ours, and not what a
# layer shows of itself, since that changes from one version to the next.
LAYER_SETTINGS = (
    "align_corners", "alpha", "approximate", "batch_first", "beta", "bidirectional", "ceil_mode", "count_include_pad",
    "dilation", "dim", "divisor_override", "downscale_factor", "end_dim", "eps", "groups", "kernel_size", "lambd",
    "max_norm", "max_val", "min_val", "mode", "negative_slope", "norm_first", "norm_type", "normalized_shape",
    "num_groups", "num_heads", "num_layers", "output_padding", "output_size", "padding", "padding_idx", "padding_mode",
    "scale_factor", "size", "start_dim", "stride", "threshold", "transposed", "upscale_factor", "value",
)  # fmt: skip


def weights_digest(module: torch.nn.Module, *, with_structure: bool = True) -> str:
    """Return the SHA-256, in hex, of a module's state and, unless it is known by name, of its structure.

    The state is each entry of the state dict, sorted: name, dtype, shape, little-endian bytes. The structure is each
    submodule's path and class, buffers that are not in the state dict, and settings of layers that show in no weight,
    such as strides. The module's own code and its other attributes are not covered: give it a new name if they change.
    """
    import torch

    hasher = hashlib.sha256()
    if with_structure:
        for path, part in module.named_modules(remove_duplicate=False):
            _add(hasher, ["module", path, type(part).__name__, _settings(part)])
    state = module.state_dict()
    if with_structure:
        state = dict(module.named_buffers(remove_duplicate=False)) | state
    for key, value in sorted(state.items()):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            raise ConfigurationError(f"the module's state {key!r} is not a plain tensor, and cannot enter the digest")
        flat = value.detach().cpu().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy()
        if sys.byteorder == "big":
            raw = np.ascontiguousarray(raw.reshape(-1, flat.element_size())[:, ::-1])
        _add(hasher, ["tensor", key, str(value.dtype).removeprefix("torch."), list(value.shape)], raw)
    return hasher.hexdigest()


def state_digest(state: Mapping[str, np.ndarray]) -> str:
    """Return the `weights_digest` of a module that is known by name and has this state."""
    hasher = hashlib.sha256()
    for key, value in sorted(state.items()):
        raw = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        _add(hasher, ["tensor", key, value.dtype.name, list(value.shape)], raw.data)
    return hasher.hexdigest()


def _add(hasher: Any, head: Any, body: Any = b"") -> None:
    framed = canonical_json(head).encode()
    hasher.update(struct.pack("<Q", len(framed)) + framed)
    hasher.update(body)


def _settings(part: torch.nn.Module) -> dict[str, Any]:
    """Return a layer's settings of well-known names as JSON values."""
    found: dict[str, Any] = {}
    for name in LAYER_SETTINGS:
        value = getattr(part, name, None)
        values = list(value) if isinstance(value, tuple | list) else [value]
        if all(isinstance(item, bool | int | float | str) for item in values):
            found[name] = [item.hex() if isinstance(item, float) else item for item in values]
    return found


def write_weights(path: Path, state: dict[str, Any], digest: str, base: BaseSet | None) -> None:
    """Write a state dict, its digest and a base set to a file of mode 600, replaced whole or not at all."""
    import torch
    from safetensors.torch import save

    tensors = {_STATE + key: value.detach().cpu().clone().contiguous() for key, value in state.items()}
    if base is not None:
        rows = np.frombuffer(b"".join(base.fingerprints), np.uint8).reshape(-1, FINGERPRINT_SIZE)
        tensors[_FINGERPRINTS] = torch.from_numpy(rows.copy())
    about = {"base": None if base is None else base.description(), "format": FORMAT, "weights": digest}
    about["digest"] = description_digest(about)
    replace_file(path, [save(tensors, {"neverseen": canonical_json(about)})])


def read_weights(path: Path) -> tuple[dict[str, Any], str, BaseSet | None]:
    """Return the state, its expected digest and the checked base set from a file of `write_weights`."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise _refusal(path, "it is damaged, cut short, or not a safetensors file") from error
    with damaged(_refusal(path, "its description is damaged, or it is a safetensors file of something else")):
        about = parse_json(metadata["neverseen"])
        if about["format"] != FORMAT:
            raise _refusal(path, f"its format is {about['format']!r}; this version reads {FORMAT!r}")
        if about.pop("digest") != description_digest(about):
            raise _refusal(path, "its description is damaged")
        base = None
        if about["base"] is not None:
            rows = tensors.pop(_FINGERPRINTS).numpy()
            if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != FINGERPRINT_SIZE:
                raise _refusal(path, "its list of fingerprints is not as it must be")
            base = BaseSet(about["base"]["name"], [row.tobytes() for row in rows], about["base"]["settings"])
            if base.description() != about["base"]:
                raise _refusal(path, "its record of the base set contradicts itself")
        return {name.removeprefix(_STATE): value for name, value in tensors.items()}, about["weights"], base


def _refusal(path: Path, why: str) -> FileRejectedError:
    return FileRejectedError(f"{path} does not hold weights that can be used: {why}")
