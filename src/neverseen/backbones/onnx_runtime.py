"""Networks in ONNX files, run by ONNX Runtime: on a CPU often faster than PyTorch."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.backbones.base_set import BaseSet
from neverseen.backbones.images import Images
from neverseen.backbones.network import Network, Preprocess
from neverseen.backbones.onnx_file import has_external_data
from neverseen.backbones.packages import imported
from neverseen.encoding import whole_number
from neverseen.errors import ConfigurationError, FileRejectedError, damaged
from neverseen.labels import parse_json

INSTALL_RUNTIME = "pip install onnxruntime"
_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}  # the first that can be used
_SIZE_LIMIT = 2**31 - 1  # bytes of a protocol buffer


def onnx_runtime(purpose: str, install: str) -> Any:
    """Return ONNX Runtime with its usage reports turned off: by default it reports to its makers when imported.

    It reads the variable when it is loaded; its own function to turn this off comes too late. If the environment has
    the variable already, it is not changed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return imported("onnxruntime", purpose, install)


class OnnxBackbone(Network):
    """Features from an ONNX file.

    The file is read once; later changes to it have no effect. It must contain its weights.

    Parameters
    ----------
    path : str, path or bytes
        The file, or its content as bytes. A store cannot make a backbone again that was given as bytes.
    preprocess : callable, optional
        From a list of decoded samples to a batch; see `Network`. A dict goes to the inputs of these names. Not needed
        for files that `TorchBackbone.export_onnx` wrote for images.
    name : str, optional
        For people; part of the digest. By default the file's name without its ending.
    output : str, optional
        Which output holds the features, if there are several.
    n_features : int, optional
        By default, read from the file, or found by running an example.
    batch_size : int, optional
        Rows of each batch: by default the number that the file fixes, else 32.
    threads : int, optional
        Threads on a CPU; by default all that this process may use. Another number may change the last bits of features.
    device : {"cpu", "cuda", "auto"}
        ``"auto"`` is CUDA if ONNX Runtime can use it.
    preprocess_id : str, optional
        Identifies the preprocessing in the digest, if it cannot describe itself.
    base : BaseSet, optional
        The base set of the network, if it was exported from a backbone that has one.
    stands_for : str, optional
        The digest of the backbone from which you exported this file. It becomes the digest of this backbone, so that
        models can use either. By default, the digest is that of the file's bytes. Nothing checks this value: give it
        only for a file that you exported yourself. A store cannot make such a backbone again: give it to `open`.

    Attributes
    ----------
    path : Path
        The file; if bytes were given, only a name for messages.
    file_digest : str
        SHA-256 of the file, in hex.

    Examples
    --------
    >>> backbone = OnnxBackbone("network.onnx", Images(size=224, divisor=255))  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | bytes,
        preprocess: Preprocess | None = None,
        *,
        name: str | None = None,
        output: str | None = None,
        n_features: int | None = None,
        batch_size: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        preprocess_id: str | None = None,
        progress: bool | None = None,
        base: BaseSet | None = None,
        stands_for: str | None = None,
    ) -> None:
        runtime = onnx_runtime("OnnxBackbone", INSTALL_RUNTIME)
        place = Path("network.onnx") if isinstance(path, bytes) else Path(path)
        model = path if isinstance(path, bytes) else _read(place)
        _require_whole(model, place)
        self._session = _session(runtime, place, model, threads, device)
        self.path = place.absolute()  # it is read again when a store is made
        self.file_digest = hashlib.sha256(model).hexdigest()
        self.device = "cpu" if self._session.get_providers()[0] == _PROVIDERS["cpu"] else "cuda"
        self._input_nodes = {node.name: node for node in self._session.get_inputs()}
        self._output = self._chosen_output(output)
        notes = _notes(self._session, place)
        if preprocess is None:
            preprocess = _noted_images(notes, place)
        fixed = self._fixed_rows()
        super().__init__(
            preprocess,
            name or notes.get("name") or place.stem,
            (fixed or 32) if batch_size is None else batch_size,
            preprocess_id,
            progress,
        )
        if fixed not in (None, self.batch_size):
            raise ConfigurationError(f"batch_size is {batch_size}, and {place} only takes batches of {fixed}")
        self.base = _noted_base(notes) if base is None else base
        if stands_for is not None and not re.fullmatch("[0-9a-f]{64}", str(stands_for)):
            raise ConfigurationError(f"stands_for must be a backbone's digest, a SHA-256 in hex; got {stands_for!r}")
        self.stands_for = stands_for
        width = self._output.shape[1] if len(self._output.shape) == 2 else None
        if n_features is not None:
            self.n_features = whole_number("n_features", n_features, 1, 2**24)
        else:
            self.n_features = width if isinstance(width, int) else self._found_size()

    def settings(self) -> dict[str, Any]:
        """Return the settings that make this backbone again from its file and its preprocessing, as JSON values."""
        return {
            "sha256": self.file_digest,
            "name": self.name,
            "output": self._output.name,
            "n_features": self.n_features,
            "batch_size": self.batch_size,
        }

    def _network_description(self) -> dict[str, Any]:
        return {"kind": "onnx", "file": self.file_digest, "output": self._output.name}

    def _run(self, inputs: dict[str, Any]) -> np.ndarray:
        if "" in inputs:
            if len(self._input_nodes) != 1:
                raise ConfigurationError(
                    f"the network has the inputs {', '.join(self._input_nodes)}: preprocess must give a dict of these"
                )
            inputs = {next(iter(self._input_nodes)): inputs[""]}
        if set(inputs) != set(self._input_nodes):
            raise ConfigurationError(
                f"the network has the inputs {', '.join(self._input_nodes)}; preprocess gave {', '.join(inputs)}"
            )
        arrays = {key: np.ascontiguousarray(value) for key, value in inputs.items()}
        try:
            (features,) = self._session.run([self._output.name], arrays)
        except Exception as error:  # shapes and types that do not fit; the library has its own classes
            raise ConfigurationError(f"{self.name} does not accept the output of preprocess: {error}") from error
        if features.ndim != 2 or len(features) != self.batch_size or features.dtype.kind != "f":
            raise ConfigurationError(
                f"the network must give floats of shape (n, n_features); for a batch of {self.batch_size} it gave "
                f"{features.dtype} of shape {features.shape}. Export it with its maps pooled, or name another output="
            )
        return np.asarray(features, np.float32)

    def _chosen_output(self, name: str | None) -> Any:
        outputs = {node.name: node for node in self._session.get_outputs()}
        if name is None and len(outputs) == 1:
            return next(iter(outputs.values()))
        if name not in outputs:
            raise ConfigurationError(
                f"output must be one of {', '.join(outputs)}; got {name!r}"
                if name is not None
                else f"the network has several outputs: choose the features with output=, one of {', '.join(outputs)}"
            )
        return outputs[name]

    def _fixed_rows(self) -> int | None:
        """Return the batch size that the file fixes, if it does."""
        rows = {node.shape[0] for node in self._input_nodes.values() if node.shape}
        fixed = sorted(row for row in rows if isinstance(row, int))
        return fixed[0] if fixed else None


def _notes(session: Any, path: Path) -> dict[str, Any]:
    """Return the notes that `TorchBackbone.export_onnx` left in a file: name, preprocessing, base set."""
    written = session.get_modelmeta().custom_metadata_map.get("neverseen")
    if written is None:
        return {}
    with damaged(FileRejectedError(f"{path} has notes of neverseen that cannot be read: it was altered")):
        notes = parse_json(written)
        if set(notes) != {"base", "name", "preprocessing"} or not isinstance(notes["name"], str):
            raise ValueError
        return dict(notes)


def _noted_images(notes: dict[str, Any], path: Path) -> Images:
    settings = notes.get("preprocessing")
    if not isinstance(settings, dict) or settings.get("kind") != "images":
        raise ConfigurationError(
            f"{path} does not say how to prepare samples: give preprocess=, such as Images(size=224)"
        )
    try:
        return Images.from_configuration(settings)
    except (KeyError, TypeError, ValueError) as error:
        raise FileRejectedError(f"{path} notes a preprocessing that cannot be used: {error}") from error


def _noted_base(notes: dict[str, Any]) -> BaseSet | None:
    base = notes.get("base")
    if base is None:
        return None
    try:
        return BaseSet(base["name"], [bytes.fromhex(each) for each in base["fingerprints"]], base["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileRejectedError(f"the file notes a base set that cannot be read: {error}") from error


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.stat().st_size > _SIZE_LIMIT:
        raise FileRejectedError(f"{path} is larger than an ONNX file can be (2 GiB)")
    return path.read_bytes()


def _require_whole(model: bytes, path: Path) -> None:
    """Raise `FileRejectedError` unless all weights are inside."""
    try:
        outside = has_external_data(model)
    except ValueError as error:
        raise FileRejectedError(f"{path} is damaged, or not an ONNX file: {error}") from error
    if outside:
        raise FileRejectedError(
            f"{path} keeps weights in other files, which a digest of it would not cover. Save it as one file, with "
            "onnx.save(onnx.load(path), path) or TorchBackbone.export_onnx"
        )


def _session(runtime: Any, path: Path, model: bytes, threads: int | None, device: str) -> Any:
    if device not in ("auto", *_PROVIDERS):
        raise ConfigurationError(f"device must be 'auto', 'cpu' or 'cuda'; got {device!r}")
    there = runtime.get_available_providers()
    wanted = [provider for kind, provider in _PROVIDERS.items() if device in ("auto", kind) and provider in there]
    if not wanted:
        raise ConfigurationError(
            "this ONNX Runtime has no CUDA: pip install onnxruntime-gpu in its place, or use device='cpu'"
        )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = _threads(threads)
    options.use_deterministic_compute = True
    options.log_severity_level = 3  # errors are raised instead
    try:
        session = runtime.InferenceSession(model, options, providers=wanted)
    except Exception as error:  # the library has its own classes
        raise FileRejectedError(f"{path} is not a network that ONNX Runtime can load: {error}") from error
    if device == "cuda" and session.get_providers()[0] != _PROVIDERS["cuda"]:
        raise ConfigurationError("ONNX Runtime could not use CUDA: check its driver and libraries, or use device='cpu'")
    return session


def _threads(threads: int | None) -> int:
    if threads is not None:
        return whole_number("threads", threads, 1, 1024)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
