"""PyTorch modules as backbones: frozen, reproducible, and told apart by their digests."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neverseen import ConfigurationError, FileRejectedError, InputError
from neverseen.backbones import Backbone, BaseSet, Images, PerSample, TorchBackbone
from neverseen.backbones.reproducible import reproducible
from neverseen.backbones.weights import weights_digest
from neverseen.errors import MissingPackageError
from tests.networks import convolutions, images

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
nn = torch.nn

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def backbone(module: Any = None, preprocess: Any = None, **settings: Any) -> TorchBackbone:
    chosen: dict[str, Any] = {"name": "small", "batch_size": 4, "device": "cpu"} | settings
    return TorchBackbone(module or convolutions(), preprocess or Images(16), **chosen)


def test_features_are_those_of_the_module() -> None:
    small, samples = backbone(), images("features", 10)
    features = small.extract(samples)
    module = convolutions().eval()
    with torch.inference_mode():
        expected = module(torch.from_numpy(Images(16)(list(samples)))).numpy()
    assert isinstance(small, Backbone)
    assert small.n_features == 12
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)
    assert small.extract([]).shape == (0, 12)


def test_a_sample_has_the_same_features_whatever_is_beside_it() -> None:
    small, samples = backbone(), images("beside", 11)
    features = small.extract(samples)
    for row in range(11):
        assert np.array_equal(small.extract([samples[row]])[0], features[row])
    order = np.argsort(images("order", 11)[:, 0, 0, 0], kind="stable")
    assert np.array_equal(small.extract(samples[order]), features[order])


def test_training_the_original_later_changes_nothing() -> None:
    module = convolutions().train()
    small = backbone(module)
    before, digest = small.extract(images("later", 3)), small.digest()
    with torch.no_grad():
        for value in module.parameters():
            value.add_(1)
    assert np.array_equal(small.extract(images("later", 3)), before)
    assert small.digest() == digest != backbone(module).digest()
    assert module.training
    assert all(value.requires_grad for value in module.parameters())


def test_the_digest_tells_networks_and_preprocessings_apart() -> None:
    reference = backbone().digest()
    assert backbone(batch_size=7, device="auto", progress=False).digest() == reference
    assert backbone(convolutions().to(memory_format=torch.channels_last)).digest() == reference
    weights, buffers, strides, layers = (convolutions() for _ in range(4))
    weights[0].weight.data[0, 0, 0, 0] += 2**-20
    buffers[1].running_mean[0] += 2**-20
    strides[0].stride = (1, 1)
    layers[2] = nn.ReLU6()
    others = [backbone(module).digest() for module in (weights, buffers, strides, layers, convolutions().double())]
    others += [backbone(name="other").digest(), backbone(preprocess=Images(17)).digest()]
    others += [backbone(preprocess_id="cleaned first").digest()]
    assert len({reference, *others}) == 9


def test_digests_are_those_recorded() -> None:
    """Models keep them: they may not change from one process to the next, nor with a version of PyTorch."""
    assert backbone().digest() == "305553fe288243204149afdc55dfacd5208249c7c4aae189a72567b9bd0e50cd"
    assert weights_digest(convolutions()) == "1421e770cf2d5c38aae477adf0f56dde621d76393479d022602fd6617547e380"
    assert (
        weights_digest(convolutions(), with_structure=False)
        == "2e470f7986bf2e7404d75837ace385d2f9efafec06b161a6a48aaff31e33f95b"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_precisions(dtype: str) -> None:
    small = backbone(convolutions().to(getattr(torch, dtype)))
    features = small.extract(images("half", 5))
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, backbone().extract(images("half", 5)), atol=0.1)
    assert small.digest() != backbone().digest()


def test_states_of_any_shape_enter_the_digest() -> None:
    class Odd(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, value: float = 1.0, empty: int = 0) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(value))
            self.register_buffer("empty", torch.zeros(empty, 3))
            self.register_buffer("flags", torch.tensor([True, False]))

        def forward(self, values: Any) -> Any:
            return values.flatten(1)[:, :5] * self.scale

    assert len({backbone(module).digest() for module in (Odd(), Odd(2.0), Odd(1.0, 1))}) == 3

    class Sparse(Odd):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(ConfigurationError, match="state '_extra_state' is not a plain tensor"):
        backbone(Sparse())


class Turned(nn.Module):  # type: ignore[misc, name-defined]
    """Gives what a function makes of the flattened batch."""

    def __init__(self, turn: Callable[[Any], Any]) -> None:
        super().__init__()
        self.turn = turn

    def forward(self, values: Any) -> Any:
        return self.turn(values.flatten(1)[:, :6])


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (lambda x: {"features": x}, "the module gave dict, not a tensor: wrap it"),
        (
            lambda x: x[:, :, None, None],
            r"maps of shape \(4, 6, 1, 1\).*pool them, as in torch.nn.Sequential\(module, torch.nn.Ada",
        ),
        (lambda x: x[:, 0], r"for a batch of 4 it gave float32 of shape \(4,\)"),
        (lambda x: x[:1], r"it gave float32 of shape \(1, 6\)"),
        (lambda x: x.long(), "it gave int64"),
    ],
)
def test_modules_that_give_no_features_are_refused(turn: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        backbone(Turned(turn))


def test_features_that_are_not_finite_are_refused_and_the_sample_named() -> None:
    samples = np.full((6, 16, 16, 3), 9, np.uint8)
    samples[5] = 255
    small = backbone(Turned(lambda x: torch.where(x > 0.9, torch.inf, x)))
    assert small.extract(samples[:5]).shape == (5, 6)
    with pytest.raises(InputError, match="small gave NaN or infinity for sample 5: leave this sample out"):
        small.extract(samples)


def test_a_changing_number_of_features_is_refused() -> None:
    small = backbone(n_features=11)
    with pytest.raises(ConfigurationError, match=r"features of shape \(12,\) where n_features is 11"):
        small.extract(images("eleven", 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"module": "resnet"}, "module must be a torch.nn.Module; got str"),
        (
            {"preprocess": 3},
            r"preprocess must turn a list of samples into a batch; got int. For images, use .*Images\(size",
        ),
        ({"name": ""}, "name must be a text; got ''"),
        ({"name": None}, "name must be a text; got None"),
        ({"batch_size": 0}, "batch_size must be a whole number between 1 and 65536; got 0"),
        ({"n_features": 0}, "n_features must be a whole number"),
        ({"device": "tpu"}, "device must be 'auto', 'cpu' or 'cuda'; got 'tpu'"),
        ({"device": "meta"}, "device must be 'auto', 'cpu' or 'cuda'; got 'meta'"),
        ({"device": "cuda:99"}, r"device is 'cuda:99', and PyTorch sees \d+ CUDA device"),
        ({"preprocess_id": ""}, "preprocess_id must be a text; got ''"),
        (
            {"preprocess": lambda samples: 3},
            "nothing tells what function does .* give preprocess_id=, a text that you change",
        ),
        ({"preprocess": lambda samples: 3, "preprocess_id": "3"}, r"n_features must be given: .* has no example\(\)"),
    ],
)
def test_unusable_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        backbone(**settings)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda samples: [1, 2], "one row for each of 1 samples; got list"),
        (
            lambda samples: np.zeros((3, 4)),
            r"got ndarray of shape \(3, 4\). For a transform of single samples, use .*PerSample",
        ),
        (lambda samples: {"values": np.float32(1)}, "got float32"),
        (lambda samples: SimpleNamespace(shape=(1, 3)), r"got SimpleNamespace of shape \(1, 3\)"),
    ],
)
def test_batches_with_another_number_of_rows_are_refused(batch: Any, message: str) -> None:
    small = backbone(preprocess=batch, preprocess_id="odd", n_features=3)
    with pytest.raises(ConfigurationError, match=message):
        small.extract(images("rows", 1))


def test_a_transform_of_single_samples() -> None:
    class Halved:
        def __call__(self, image: Any) -> Any:
            return torch.from_numpy(np.asarray(image.resize((16, 16)), np.float32).transpose(2, 0, 1).copy()) / 2

        def __repr__(self) -> str:
            return "Halved()"

    small = backbone(preprocess=PerSample(Halved()))
    assert small.n_features == 12
    assert small.extract(images("single", 6)).shape == (6, 12)
    assert repr(small.preprocess) == "PerSample(Halved())"
    with pytest.raises(ConfigurationError, match="nothing tells what PerSample does"):
        backbone(preprocess=PerSample(lambda image: image))
    with pytest.raises(ConfigurationError, match="n_features must be given: preprocess fails on its own example"):
        backbone(preprocess=PerSample(lambda text: text.split()), preprocess_id="words")


def test_inputs_by_name() -> None:
    class Named(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, left: Any, right: Any) -> Any:
            return torch.cat([left, right.float()], dim=1)

    def pair(samples: list[Any]) -> dict[str, Any]:
        numbers = np.array([[len(sample)] for sample in samples])
        return {"right": torch.from_numpy(numbers), "left": np.sqrt(numbers).astype(np.float32)}

    both = backbone(Named(), pair, preprocess_id="pair", n_features=2)
    assert both.extract(["four", "", "a longer one"] * 2)[:3].tolist() == [
        [2, 4],
        [0, 0],
        [np.sqrt(np.float32(12)), 12],
    ]


def test_batches_that_cannot_be_written_to() -> None:
    class ReadOnly(Images):
        def __call__(self, samples: list[Any]) -> np.ndarray:
            batch = super().__call__(samples)
            batch.flags.writeable = False
            return batch

    samples = images("read only", 4)
    assert np.array_equal(backbone(preprocess=ReadOnly(16)).extract(samples), backbone().extract(samples))


def test_settings_of_pytorch_are_set_and_restored() -> None:
    seen: list[Any] = []

    def settings() -> list[Any]:
        found = [torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark, torch.is_autocast_enabled("cpu")]
        return [*found, torch.is_inference_mode_enabled(), torch.backends.mkldnn.matmul.fp32_precision]

    def watched(values: Any) -> Any:
        seen.append(settings())
        return values

    small = backbone(Turned(watched))
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("medium")  # products of bfloat16, on processors that have them
    torch.backends.cudnn.benchmark = True
    try:
        outside = settings()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert small.extract(images("settings", 2)).dtype == np.float32
        assert seen[-1] == [True, False, False, True, "ieee"]
        assert settings() == outside
        with pytest.raises(ZeroDivisionError), reproducible(torch.device("cpu")):
            raise ZeroDivisionError
        assert settings() == outside
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]


def test_weights_are_saved_and_read_back(tmp_path: Path) -> None:
    small, other = backbone(), backbone(convolutions("other weights"))
    path = tmp_path / "weights.safetensors"
    other.save_weights(path)
    assert path.stat().st_mode & 0o777 == 0o600
    read = small.with_weights(path)
    assert read.digest() == other.digest() != small.digest()
    assert np.array_equal(read.extract(images("saved", 3)), other.extract(images("saved", 3)))
    assert read.base is None
    half = backbone(convolutions().bfloat16())
    half.save_weights(path)
    assert half.with_weights(path).digest() == half.digest()


def test_the_base_set_is_saved_with_the_weights(tmp_path: Path) -> None:
    small = backbone()
    small.base = BaseSet("public", [bytes(16), b"0123456789abcdef"], {"epochs": 3})
    small.save_weights(tmp_path / "weights")
    read = backbone().with_weights(tmp_path / "weights")
    assert read.digest() == small.digest() != backbone().digest()
    assert read.base is not None
    assert read.base.holds(b"0123456789abcdef")
    assert read.base.description() == small.base.description()


def test_other_files_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    small, path = backbone(), tmp_path / "weights"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        small.with_weights(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(FileRejectedError, match="it is damaged, cut short, or not a safetensors file"):
        small.with_weights(path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(FileRejectedError, match="a safetensors file of something else"):
        small.with_weights(path)
    save_file({"a": torch.zeros(2)}, path, {"neverseen": '{"format":"neverseen-weights-9"}'})
    with pytest.raises(FileRejectedError, match="its format is 'neverseen-weights-9'; this version reads"):
        small.with_weights(path)
    backbone(nn.Sequential(nn.Flatten(), nn.Linear(768, 4))).save_weights(path)
    with pytest.raises(FileRejectedError, match="holds the weights of another network than small"):
        small.with_weights(path)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    """Whichever byte is changed: in the header, in a weight or in the list of fingerprints."""
    small, path = backbone(), tmp_path / "weights"
    small.base = BaseSet("public", [bytes(16)], {})
    small.save_weights(path)
    whole = path.read_bytes()
    named = whole.index(b"public")
    for place in [*range(0, len(whole), 97), named, len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(FileRejectedError):
            small.with_weights(path)
    for size in (0, 7, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(FileRejectedError):
            small.with_weights(path)


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingPackageError, match="TorchBackbone needs the package torch, which is not installed: pip install torch"
    ):
        TorchBackbone(None, Images(16), name="none")


@needs_cuda
def test_cuda() -> None:
    samples = images("cuda", 9)
    gpu = backbone(device="cuda")
    features = gpu.extract(samples)
    np.testing.assert_allclose(features, backbone().extract(samples), rtol=1e-4, atol=1e-5)
    assert gpu.digest() == backbone().digest()
    assert backbone(device="auto").device.type == "cuda"
    assert np.array_equal(gpu.extract(samples[::-1])[::-1], features)
    assert all(np.array_equal(gpu.extract([sample])[0], row) for sample, row in zip(samples, features, strict=True))
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert np.array_equal(gpu.extract(samples), features)
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def test_representation() -> None:
    small = backbone()
    assert repr(small) == f"<TorchBackbone 'small', 12 features, {small.digest()[:12]}>"
    assert copy.copy(small).digest() == small.digest()
