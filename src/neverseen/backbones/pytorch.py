"""Any PyTorch module as a backbone."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neverseen.backbones.base_set import BaseSet
from neverseen.backbones.exporting import onnx_model
from neverseen.backbones.libraries import INSTALL_TORCH, timm_parts, torchvision_parts, transformers_parts
from neverseen.backbones.network import Network, Preprocess
from neverseen.backbones.onnx_runtime import OnnxBackbone
from neverseen.backbones.packages import imported
from neverseen.backbones.reproducible import reproducible
from neverseen.backbones.weights import read_weights, weights_digest, write_weights
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, FileRejectedError
from neverseen.io.files import replace_file
from neverseen.labels import canonical_json

if TYPE_CHECKING:
    import torch


class TorchBackbone(Network):
    """Features from a PyTorch module.

    The module is copied, put into evaluation mode and frozen. Training the original later does not change the copy.

    Parameters
    ----------
    module : torch.nn.Module
        From a batch to features of shape (n, n_features).
    preprocess : callable
        From a list of decoded samples to a batch: `Images`, `Texts`, `PerSample`, or your own; see `Network`. A dict is
        passed to the module as keyword arguments.
    name : str
        For people; part of the digest.
    n_features : int, optional
        By default, found by running an example, if the preprocessing has one.
    batch_size : int
        Rows of each batch. Another batch size may change the last bits of the features.
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` and so on, or ``"auto"``: CUDA if there is any.
    preprocess_id : str, optional
        Identifies the preprocessing in the digest, if it cannot describe itself.
    progress : bool, optional
        Whether to show a progress bar; by default if stderr is a terminal and there is more than one batch.

    Examples
    --------
    >>> import torch                                                                        # doctest: +SKIP
    >>> module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 64))  # doctest: +SKIP
    >>> backbone = TorchBackbone(module, Images(size=32), name="linear")                    # doctest: +SKIP
    >>> backbone.extract([np.zeros((20, 30, 3), np.uint8)]).shape                           # doctest: +SKIP
    (1, 64)
    """

    def __init__(
        self,
        module: torch.nn.Module,
        preprocess: Preprocess,
        *,
        name: str,
        n_features: int | None = None,
        batch_size: int = 32,
        device: str = "auto",
        preprocess_id: str | None = None,
        progress: bool | None = None,
    ) -> None:
        torch = imported("torch", "TorchBackbone", INSTALL_TORCH)
        if not isinstance(module, torch.nn.Module):
            raise ConfigurationError(f"module must be a torch.nn.Module; got {type(module).__name__}")
        super().__init__(preprocess, name, batch_size, preprocess_id, progress)
        self._adopt(copy.deepcopy(module), device, n_features, None)

    @classmethod
    def from_timm(
        cls,
        name: str,
        *,
        pretrained: bool = True,
        batch_size: int = 32,
        device: str = "auto",
        progress: bool | None = None,
    ) -> TorchBackbone:
        """Return a network from timm without its head, with timm's preprocessing for it.

        Parameters
        ----------
        name : str
            Such as ``"mobilenetv3_small_100"``.
        pretrained : bool
            Whether timm loads its pre-trained weights; it may download them.
        """
        module, preprocess, architecture = timm_parts(name, pretrained)
        return cls.from_parts(module, preprocess, f"timm/{name}", architecture, batch_size, device, progress)

    @classmethod
    def from_torchvision(
        cls,
        name: str,
        *,
        weights: str | None = "DEFAULT",
        batch_size: int = 32,
        device: str = "auto",
        progress: bool | None = None,
    ) -> TorchBackbone:
        """Return a network from torchvision without its last linear layer, with the preprocessing of its weights.

        Parameters
        ----------
        name : str
            Such as ``"resnet18"``.
        weights : str or None
            Such as ``"IMAGENET1K_V1"``; torchvision may download them. None for random ones.
        """
        module, preprocess, architecture = torchvision_parts(name, weights)
        return cls.from_parts(module, preprocess, f"torchvision/{name}", architecture, batch_size, device, progress)

    @classmethod
    def from_transformers(
        cls,
        name_or_path: str | os.PathLike[str],
        *,
        name: str | None = None,
        pooling: str = "mean",
        normalise: bool = True,
        max_length: int = 256,
        local_files_only: bool = False,
        batch_size: int = 32,
        device: str = "auto",
        progress: bool | None = None,
    ) -> TorchBackbone:
        """Return a text network from transformers, with its hidden states pooled to one vector for each text.

        Parameters
        ----------
        name_or_path : str or path
            A name on the hub, or a folder with ``config.json``, ``tokenizer.json`` and safetensors weights.
        name : str, optional
            For people, and part of the digest. By default the last part of `name_or_path`.
        pooling : {"mean", "cls"}
            The mean over all tokens of the text, or the first token.
        normalise : bool
            Whether to scale features to length 1.
        max_length : int
            Number of tokens to read of each text; the rest is ignored.
        local_files_only : bool
            If true, nothing is downloaded.
        """
        parts = transformers_parts(name_or_path, pooling, normalise, max_length, local_files_only)
        module, preprocess, architecture = parts
        chosen = Path(name_or_path).name if name is None else name
        return cls.from_parts(module, preprocess, chosen, architecture, batch_size, device, progress)

    def export_onnx(self, path: str | os.PathLike[str], **settings: Any) -> OnnxBackbone:
        """Write the network to an ONNX file, and return the backbone that runs it.

        Parameters
        ----------
        path : str or path
            An existing file is replaced.
        **settings
            Settings of `OnnxBackbone`, such as ``threads``.

        Notes
        -----
        The features are the same, except for rounding. The digest is that of the file, unless you give
        ``stands_for=backbone.digest()``.
        """
        replace_file(Path(path), [self.onnx()])
        own = {"name": self.name, "batch_size": self.batch_size, "progress": self.progress, "base": self.base}
        exported = OnnxBackbone(path, self.preprocess, preprocess_id=self._preprocess_id, **{**own, **settings})
        exported.takes = self.takes
        return exported

    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write the weights, and the record of the base set if there is one, to a safetensors file of mode 600.

        The file holds neither the network's structure nor its preprocessing. To read it, use `with_weights` of a
        backbone that has both.
        """
        write_weights(Path(path), self._module.state_dict(), self._weights, self.base)

    def with_weights(self, path: str | os.PathLike[str]) -> TorchBackbone:
        """Return a backbone like this one, with the weights and the base set from a file of `save_weights`."""
        state, digest, base = read_weights(Path(path))
        module = self.module_copy().to("cpu")
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise FileRejectedError(f"{path} holds the weights of another network than {self.name}: {error}") from error
        changed = self.with_module(module, base)
        if changed._weights != digest:
            raise FileRejectedError(f"{path} is damaged, or holds the weights of another network than {self.name}")
        return changed

    def module_copy(self) -> torch.nn.Module:
        """Return a copy of the module, to change and give to `with_module`."""
        return copy.deepcopy(self._module)

    def output_of(self, module: torch.nn.Module, samples: list[Any]) -> torch.Tensor:
        """Return the checked output of a `module_copy` for decoded samples."""
        return self._forward(module, self._inputs(samples))

    def with_module(self, module: torch.nn.Module, base: BaseSet | None) -> TorchBackbone:
        """Return a backbone like this one, with another module, which it now owns, and another base set."""
        backbone = TorchBackbone.__new__(TorchBackbone)
        Network.__init__(backbone, self.preprocess, self.name, self.batch_size, self._preprocess_id, self.progress)
        backbone._adopt(module, str(self.device), self.n_features, self._architecture)
        backbone.base, backbone.takes = base, self.takes
        return backbone

    def onnx(self) -> bytes:
        """Return the network as the bytes of an ONNX file."""
        example = getattr(self.preprocess, "example", None)
        if example is None:
            raise ConfigurationError("to export the network, the preprocessing needs an example(), any sample it takes")
        base = self.base
        notes = {
            "base": base
            and {
                "fingerprints": [each.hex() for each in base.fingerprints],
                "name": base.name,
                "settings": base.settings,
            },
            "name": self.name,
            "preprocessing": self._preprocessing.get("configuration") if self._preprocess_id is None else None,
        }
        return onnx_model(self._module, self.preprocess([example()] * 2), canonical_json(notes))

    @classmethod
    def from_parts(
        cls,
        module: torch.nn.Module,
        preprocess: Preprocess,
        name: str,
        architecture: dict[str, Any],
        batch_size: int,
        device: str,
        progress: bool | None,
    ) -> TorchBackbone:
        """Return a backbone that owns this module. The name of its architecture identifies it in the digest."""
        backbone = cls.__new__(cls)
        Network.__init__(backbone, preprocess, name, batch_size, None, progress)
        backbone._adopt(module, device, None, architecture)
        return backbone

    def _adopt(
        self, module: torch.nn.Module, device: str, n_features: int | None, architecture: dict[str, Any] | None
    ) -> None:
        self.device = _device(device)
        self._architecture = architecture
        self._module = module.eval().requires_grad_(False)
        self._weights = weights_digest(self._module, with_structure=architecture is None)
        self._module.to(self.device)
        self._channels_last = any(value.dim() == 4 for value in self._module.parameters())
        if self._channels_last:
            import torch

            self._module.to(memory_format=torch.channels_last)
        first = next((value for value in self._module.parameters() if value.is_floating_point()), None)
        self._dtype = None if first is None else first.dtype
        self.n_features = self._found_size() if n_features is None else whole_number("n_features", n_features, 1, 2**24)

    def _network_description(self) -> dict[str, Any]:
        return {"kind": "torch", "architecture": self._architecture, "weights": self._weights}

    def _run(self, inputs: dict[str, Any]) -> np.ndarray:
        import torch

        with reproducible(self.device), torch.inference_mode():
            output = self._forward(self._module, inputs)
            features: np.ndarray = output.to("cpu", torch.float32).numpy()
        return features

    def _forward(self, module: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the checked output of a module (this backbone's, or a copy) for inputs by name."""
        placed = {key: self._placed(value) for key, value in inputs.items()}
        output = module(placed[""]) if "" in placed else module(**placed)
        self._check(output, len(next(iter(placed.values()))))
        return output

    def _placed(self, values: Any) -> Any:
        """Return an input as a tensor, on the device and of the type of the module."""
        import torch

        tensor = (
            torch.from_numpy(np.require(values, requirements=["C", "W"])) if isinstance(values, np.ndarray) else values
        )
        tensor = tensor.to(self.device, self._dtype if tensor.is_floating_point() else None)
        if self._channels_last and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _check(self, output: Any, rows: int) -> None:
        import torch

        if not isinstance(output, torch.Tensor):
            raise ConfigurationError(
                f"the module gave {type(output).__name__}, not a tensor: wrap it in a module that returns the features"
            )
        if output.dim() == 4:
            raise ConfigurationError(
                f"the module gave maps of shape {tuple(output.shape)}, not features of shape (n, n_features): pool "
                "them, as in torch.nn.Sequential(module, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())"
            )
        if output.dim() != 2 or len(output) != rows or not output.is_floating_point():
            raise ConfigurationError(
                f"the module must give floats of shape (n, n_features); for a batch of {rows} it gave "
                f"{str(output.dtype).removeprefix('torch.')} of shape {tuple(output.shape)}"
            )


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(f"device must be 'auto', 'cpu' or 'cuda'; got {name!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigurationError(f"device must be 'auto', 'cpu' or 'cuda'; got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(
            f"device is {name!r}, and PyTorch sees {torch.cuda.device_count()} CUDA device(s) here: use 'cpu' or 'auto'"
        )
    return device
