"""Base training: it learns, it is recorded, and the same seed gives the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import ConfigurationError, InputError, LabelError
from neverseen.backbones import BaseSet, Images, Precomputed, TorchBackbone, base_train, fingerprint
from tests.networks import convolutions, images

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")


def backbone(module: Any = None) -> TorchBackbone:
    return TorchBackbone(module or convolutions(), Images(16), name="small", batch_size=4, device="cpu")


def coloured(count: int) -> tuple[np.ndarray, list[str]]:
    """Noise that is a little brighter in one channel, and the channel's name."""
    samples, labels = images("coloured", count, 16, 16) // 2, []
    for row in range(count):
        samples[row, :, :, row % 3] += 20
        labels.append(("red", "green", "blue")[row % 3])
    return samples, labels


SETTINGS: dict[str, Any] = {"name": "coloured noise", "epochs": 12, "batch_size": 7, "learning_rate": 0.05}
BRIEFLY = SETTINGS | {"epochs": 2}


@pytest.fixture(scope="module")
def trained() -> TorchBackbone:
    samples, labels = coloured(30)
    return base_train(backbone(), samples, labels, **SETTINGS)


def spread(network: TorchBackbone) -> float:
    """How far apart the classes of fresh samples are, in units of how far they scatter."""
    samples, labels = coloured(60)
    features, classes = network.extract(samples[30:]), np.array(labels[30:])
    centres = {name: features[classes == name].mean(axis=0) for name in set(labels)}
    within = np.mean([np.linalg.norm(row - centres[name]) for row, name in zip(features, classes, strict=True)])
    between = np.mean([np.linalg.norm(centres["red"] - centres[name]) for name in ("green", "blue")])
    return float(between / within)


def test_it_learns(trained: TorchBackbone) -> None:
    assert trained.base is not None
    losses = [float.fromhex(loss) for loss in trained.base.settings["losses"]]
    assert len(losses) == 12
    assert losses[0] > losses[-1]
    assert losses[-1] < 0.7 * np.log(3)
    assert spread(trained) > 1.2 * spread(backbone())


def test_the_base_set_is_recorded(trained: TorchBackbone) -> None:
    samples, _ = coloured(31)
    base = trained.base
    assert base is not None
    assert all(base.holds(fingerprint(sample)) for sample in samples[:30])
    assert not base.holds(fingerprint(samples[30]))
    assert (base.name, len(base)) == ("coloured noise", 30)
    assert base.settings["classes"] == ['"blue"', '"green"', '"red"']
    assert {name: base.settings[name] for name in ("epochs", "batch_size", "seed")} == {
        "epochs": 12,
        "batch_size": 7,
        "seed": 0,
    }
    assert repr(base) == "<BaseSet 'coloured noise', 30 samples>"


def test_the_result_is_frozen_and_told_from_the_original(trained: TorchBackbone) -> None:
    original = backbone()
    samples, labels = coloured(6)
    digest = original.digest()
    before = original.extract(samples)
    other = base_train(original, samples, labels, name="six", epochs=1)
    assert original.digest() == digest
    assert np.array_equal(original.extract(samples), before)
    assert original.base is None
    assert not any(value.requires_grad for value in other._module.parameters())
    assert not any(part.training for part in other._module.modules())
    assert len({digest, other.digest(), trained.digest()}) == 3
    assert trained.extract(samples).shape == (6, 12)


def test_statistics_of_batch_normalisation_stay(trained: TorchBackbone) -> None:
    assert torch.equal(trained._module[1].running_mean, convolutions()[1].running_mean)
    assert not torch.equal(trained._module[0].weight, convolutions()[0].weight)


def test_the_same_seed_gives_the_same_weights() -> None:
    samples, labels = coloured(30)
    module = torch.nn.Sequential(convolutions(), torch.nn.Dropout(0.5))
    state = torch.get_rng_state()
    results = [base_train(backbone(module), samples, labels, **BRIEFLY, seed=seed).digest() for seed in (0, 0, 1)]
    assert results[0] == results[1] != results[2]
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.are_deterministic_algorithms_enabled()


def test_it_can_be_kept(trained: TorchBackbone, tmp_path: Path) -> None:
    trained.save_weights(tmp_path / "trained.safetensors")
    read = backbone().with_weights(tmp_path / "trained.safetensors")
    samples, _ = coloured(5)
    assert read.digest() == trained.digest()
    assert np.array_equal(read.extract(samples), trained.extract(samples))
    assert read.base is not None
    assert read.base.holds(fingerprint(samples[0]))


def test_any_samples_and_labels_will_do(tmp_path: Path) -> None:
    from PIL import Image

    samples, _ = coloured(4)
    path = tmp_path / "image.png"
    Image.fromarray(samples[0]).save(path)
    result = base_train(
        backbone(), [path, samples[1], Image.fromarray(samples[2])], [1, ("a", 2), 1], name="mixed", epochs=1
    )
    assert result.base is not None
    assert result.base.holds(fingerprint(samples[0]))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"backbone": Precomputed(3)}, ConfigurationError, "only a TorchBackbone can be trained; got Precomputed"),
        (
            {"labels": ["a", "b"]},
            InputError,
            "needs a label for each sample, of two classes or more; got 3 samples, 2 labels",
        ),
        ({"labels": ["a", "a", "a"]}, InputError, r"3 labels and 1 class\(es\)"),
        ({"labels": ["a", "b", float("nan")]}, LabelError, "labels must be finite"),
        ({"samples": [3, 4, 5]}, InputError, "a sample is of type int"),
        ({"name": ""}, ConfigurationError, "the base set needs a name; got ''"),
        ({"epochs": 0}, ConfigurationError, "epochs must be a whole number"),
        ({"batch_size": 0}, ConfigurationError, "batch_size must be a whole number"),
        ({"seed": -1}, ConfigurationError, "seed must be a whole number"),
        ({"learning_rate": 0}, ConfigurationError, "learning_rate must be a positive number; got 0"),
        ({"learning_rate": "fast"}, ConfigurationError, "learning_rate must be a positive number; got 'fast'"),
        ({"learning_rate": 900, "epochs": 9}, InputError, "the loss became .* in epoch .*: lower learning_rate"),
    ],
)
def test_unusable_requests_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    samples, labels = coloured(3)
    request: dict[str, Any] = {"backbone": backbone(), "samples": samples, "labels": labels, "name": "three"} | settings
    with pytest.raises(error, match=message):
        base_train(request.pop("backbone"), request.pop("samples"), request.pop("labels"), **request)


def test_there_is_one_base_set(trained: TorchBackbone) -> None:
    samples, labels = coloured(3)
    with pytest.raises(ConfigurationError, match="has been trained on a base set already: 'coloured noise'"):
        base_train(trained, samples, labels, name="again")


def test_a_base_set_describes_itself() -> None:
    marks = [bytes([number]) * 16 for number in range(3)]
    base = BaseSet("public", [*marks, marks[0]], {"epochs": 1})
    assert base.description() == BaseSet("public", marks[::-1], {"epochs": 1}).description()
    assert base.fingerprints == marks
    assert base.description()["samples"] == 3
    others = [
        BaseSet("other", marks, {"epochs": 1}),
        BaseSet("public", marks[:2], {"epochs": 1}),
        BaseSet("public", marks, {}),
    ]
    assert len({str(item.description()) for item in [base, *others]}) == 4
    with pytest.raises(ConfigurationError, match="fingerprints must be 16 bytes each"):
        BaseSet("public", [b"short"], {})
    with pytest.raises(ConfigurationError, match="settings of a base set must be JSON values"):
        BaseSet("public", marks, {"a": object()})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda() -> None:
    samples, labels = coloured(30)
    network = TorchBackbone(convolutions(), Images(16), name="small", batch_size=4, device="cuda")
    twice = [base_train(network, samples, labels, **BRIEFLY) for _ in range(2)]
    assert twice[0].digest() == twice[1].digest()
    expected = base_train(backbone(), samples, labels, **BRIEFLY).extract(samples)
    np.testing.assert_allclose(twice[0].extract(samples), expected, atol=1e-3)
