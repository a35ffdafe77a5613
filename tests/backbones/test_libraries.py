"""Networks by name from timm and torchvision, where they are there; what is said where they are not."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np
import pytest

from neverseen import ConfigurationError
from neverseen.backbones import Images, TorchBackbone
from neverseen.errors import MissingPackageError
from tests.networks import images

torch = pytest.importorskip("torch")


def imports(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:
        return False
    return True


needs_timm = pytest.mark.skipif(not imports("timm"), reason="needs timm")
needs_torchvision = pytest.mark.skipif(not imports("torchvision"), reason="needs torchvision")


@pytest.mark.parametrize(("make", "package"), [("from_timm", "timm"), ("from_torchvision", "torchvision")])
def test_a_missing_library_is_named(make: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (package, f"{package}.models", f"{package}.data"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=f"{make} needs the package {package}, .*: pip install {package}"):
        getattr(TorchBackbone, make)("resnet18")


@needs_timm
def test_timm() -> None:
    settings: dict[str, Any] = {"pretrained": False, "batch_size": 2, "device": "cpu"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        small = TorchBackbone.from_timm("test_resnet", **settings)
    features = small.extract(images("timm", 3))
    assert features.shape == (3, small.n_features)
    assert small.name == "timm/test_resnet"
    assert isinstance(small.preprocess, Images)
    assert small.preprocess.divisor == 255
    with pytest.raises(ConfigurationError, match="timm gives no network 'no_such_network'"):
        TorchBackbone.from_timm("no_such_network", **settings)


@needs_timm
def test_preprocessing_is_that_of_timm() -> None:
    import timm
    from PIL import Image

    small = TorchBackbone.from_timm("test_resnet", pretrained=False, batch_size=2, device="cpu")
    config = timm.data.resolve_model_data_config(timm.create_model("test_resnet", num_classes=0))
    transform = timm.data.create_transform(**config, is_training=False)
    for sample in (images("wide", 1, 200, 300)[0], images("high", 1, 301, 210)[0]):
        ours, theirs = small.preprocess([sample])[0], transform(Image.fromarray(sample)).numpy()
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-5


@needs_torchvision
@pytest.mark.parametrize(
    ("name", "n_features"),
    [("resnet18", 512), ("mobilenet_v3_small", 1024), ("shufflenet_v2_x0_5", 1024), ("swin_t", 768)],
)
def test_torchvision(name: str, n_features: int) -> None:
    small = TorchBackbone.from_torchvision(name, weights=None, batch_size=2, device="cpu")
    assert (small.name, small.n_features) == (f"torchvision/{name}", n_features)
    assert small.extract(images("torchvision", 3)).shape == (3, n_features)


@needs_torchvision
def test_what_torchvision_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="torchvision gives no network 'no_such_network' with weights None"):
        TorchBackbone.from_torchvision("no_such_network", weights=None)
    with pytest.raises(ConfigurationError, match="torchvision gives no network 'resnet18' with weights 'NONE_SUCH'"):
        TorchBackbone.from_torchvision("resnet18", weights="NONE_SUCH")
    with pytest.raises(ConfigurationError, match="squeezenet1_0 has no linear layer to leave out"):
        TorchBackbone.from_torchvision("squeezenet1_0", weights=None)


@needs_torchvision
def test_preprocessing_is_that_of_the_weights() -> None:
    from PIL import Image
    from torchvision.models import get_model_weights

    from neverseen.backbones.libraries import torchvision_images

    for name in ("resnet18", "resnet50", "efficientnet_b0", "swin_t", "vit_b_16"):
        for weights in get_model_weights(name):
            preset, ours = weights.transforms(), torchvision_images(weights)
            for sample in (images("wide", 1, 260, 300)[0], images("high", 1, 301, 250)[0]):
                expected = preset(Image.fromarray(sample)).numpy()
                assert ours([sample])[0].shape == expected.shape
                assert np.abs(ours([sample])[0] - expected).max() < 1e-5
