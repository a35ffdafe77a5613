"""ONNX files as backbones: exported, run, and refused if anything about them is not in the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neverseen import ConfigurationError, FileRejectedError, InputError
from neverseen.backbones import Backbone, BaseSet, Images, OnnxBackbone, TorchBackbone
from neverseen.backbones.onnx_file import has_external_data
from neverseen.errors import MissingPackageError
from tests.networks import convolutions, images

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("PIL")
helper = onnx.helper


@pytest.fixture(scope="module")
def small() -> TorchBackbone:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    return TorchBackbone(convolutions(), Images(16), name="small", batch_size=4, device="cpu")


@pytest.fixture(scope="module")
def model(small: TorchBackbone) -> bytes:
    return small.onnx()


@pytest.fixture
def path(model: bytes, tmp_path: Path) -> Path:
    place = tmp_path / "small.onnx"
    place.write_bytes(model)
    return place


def test_an_export_gives_the_same_features(small: TorchBackbone, tmp_path: Path) -> None:
    base = BaseSet("public", [bytes(16)], {})
    exported = small.export_onnx(tmp_path / "network.onnx", threads=1, base=base)
    samples = images("export", 10)
    features = exported.extract(samples)
    assert isinstance(exported, Backbone)
    assert (exported.name, exported.n_features, exported.batch_size, exported.base) == ("small", 12, 4, base)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, small.extract(samples), rtol=1e-4, atol=1e-5)
    assert exported.extract([]).shape == (0, 12)
    assert (tmp_path / "network.onnx").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["network.onnx"]


def test_an_export_for_images_needs_its_path_alone(small: TorchBackbone, path: Path, tmp_path: Path) -> None:
    alone, samples = OnnxBackbone(path, batch_size=4), images("alone", 5)
    assert (alone.name, alone.base) == ("small", None)
    assert np.array_equal(alone.extract(samples), OnnxBackbone(path, Images(16), batch_size=4).extract(samples))
    assert alone.digest() == OnnxBackbone(path, Images(16)).digest()
    based = TorchBackbone(convolutions(), Images(16), name="based", batch_size=4, device="cpu")
    based.base = BaseSet("public", [bytes(16), bytes([1] * 16)], {"epochs": 3})
    based.export_onnx(tmp_path / "based.onnx")
    again = OnnxBackbone(tmp_path / "based.onnx")
    assert again.base is not None  # the base set is not lost with the export
    assert again.base.description() == based.base.description()
    assert again.base.holds(bytes(16))


def test_a_file_of_somebody_else_needs_its_preprocessing(path: Path) -> None:
    foreign = onnx.load(path)
    (entry,) = foreign.metadata_props
    for notes, error, words in (
        ("{}", FileRejectedError, "notes of neverseen that cannot be read"),
        ("[" * 100_000, FileRejectedError, "notes of neverseen that cannot be read"),
        ('{"base":null,"name":"x","preprocessing":{"kind":"texts"}}', ConfigurationError, "give preprocess="),
        ('{"base":null,"name":"x","preprocessing":{"kind":"images","size":9}}', FileRejectedError, "cannot be used"),
        ('{"base":{},"name":"x","preprocessing":null}', ConfigurationError, "give preprocess="),
    ):
        entry.value = notes
        onnx.save(foreign, path)
        with pytest.raises(error, match=words):
            OnnxBackbone(path)
    with pytest.raises(FileRejectedError, match="base set that cannot be read"):
        OnnxBackbone(path, Images(16))
    del foreign.metadata_props[:]
    onnx.save(foreign, path)
    with pytest.raises(ConfigurationError, match=r"does not say how to prepare samples: give preprocess="):
        OnnxBackbone(path)
    assert OnnxBackbone(path, Images(16)).name == "small"  # the file's name


def test_a_sample_has_the_same_features_whatever_is_beside_it(path: Path) -> None:
    exported, samples = OnnxBackbone(path, Images(16), batch_size=4), images("beside", 11)
    features = exported.extract(samples)
    assert np.array_equal(exported.extract(samples[::-1])[::-1], features)
    assert all(
        np.array_equal(exported.extract([sample])[0], row) for sample, row in zip(samples, features, strict=True)
    )


def test_the_file_says_nothing_about_the_machine(model: bytes) -> None:
    for trace in (b"site-packages", b"networks.py", str(Path.cwd()).encode(), sys.prefix.encode(), b"stack_trace"):
        assert trace not in model


def test_the_digest_is_of_the_file(small: TorchBackbone, path: Path, model: bytes, tmp_path: Path) -> None:
    reference = OnnxBackbone(path, Images(16))
    assert OnnxBackbone(path, Images(16), batch_size=7, threads=1).digest() == reference.digest()
    changed = onnx.load_from_string(model)
    changed.producer_version = "other"
    other = tmp_path / "other.onnx"
    other.write_bytes(changed.SerializeToString())
    variants = [
        OnnxBackbone(other, Images(16), name="small"), OnnxBackbone(path, Images(16, 0)), OnnxBackbone(path, Images(16), name="x"),
        OnnxBackbone(path, Images(16), base=BaseSet("public", [], {})), reference, small,
    ]  # fmt: skip
    assert len({variant.digest() for variant in variants}) == len(variants)
    assert OnnxBackbone(path, Images(16), stands_for=small.digest()).digest() == small.digest()


def test_texts_of_any_length(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Lengths:
        def __call__(self, samples: list[str]) -> dict[str, np.ndarray]:
            size = max(self.sizes(samples))
            return {
                "input_ids": np.array([[len(word) for word in (text.split() + [""] * size)[:size]] for text in samples])
            }

        def sizes(self, samples: list[str]) -> list[int]:
            return [2 * (len(text.split()) // 2 + 1) for text in samples]

        def example(self) -> str:
            return "one two three"

        def configuration(self) -> str:
            return "lengths"

    class Sums(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, input_ids: Any) -> Any:
            numbers = input_ids.float()
            return torch.stack([numbers.sum(1), numbers.square().sum(1)], dim=1)

    sums = TorchBackbone(Sums(), Lengths(), name="sums", batch_size=2)
    texts = ["a", "a bb ccc dddd", "", "bb bb", "ccc"]
    expected = [[1, 1], [10, 30], [0, 0], [4, 8], [3, 9]]
    assert sums.extract(texts).tolist() == expected
    assert sums.export_onnx(tmp_path / "sums.onnx").extract(texts).tolist() == expected


def test_modules_that_cannot_be_exported_are_refused() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Choosy(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, values: Any) -> Any:
            flat = values.flatten(1)[:, :3]
            return flat if flat.sum().item() > 0 else -flat

    with pytest.raises(ConfigurationError, match="PyTorch cannot export this module to ONNX"):
        TorchBackbone(Choosy(), Images(4), name="choosy", device="cpu").onnx()
    with pytest.raises(ConfigurationError, match=r"the preprocessing needs an example\(\)"):
        TorchBackbone(Choosy(), lambda x: x, name="choosy", n_features=3, preprocess_id="x").onnx()


def graph(nodes: list[Any], shape: list[Any], outputs: dict[str, list[Any]], initialisers: list[Any] = []) -> Any:  # noqa: B006
    kind = onnx.TensorProto.FLOAT
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("samples", kind, shape)],
        [helper.make_tensor_value_info(name, kind, dims) for name, dims in outputs.items()],
        initialisers,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def flat(shape: list[Any]) -> Any:
    return graph([helper.make_node("Flatten", ["samples"], ["features"])], shape, {"features": ["n", "m"]})


def saved(model: Any, tmp_path: Path) -> Path:
    place = tmp_path / "made.onnx"
    place.write_bytes(model.SerializeToString())
    return place


def test_a_batch_size_that_the_file_fixes(tmp_path: Path) -> None:
    place = saved(flat([3, 3, 2, 2]), tmp_path)
    fixed = OnnxBackbone(place, Images(2))
    assert (fixed.batch_size, fixed.n_features, fixed.name) == (3, 12, "made")
    assert fixed.extract(images("fixed", 5)).shape == (5, 12)
    with pytest.raises(ConfigurationError, match=r"batch_size is 4, and .*made.onnx only takes batches of 3"):
        OnnxBackbone(place, Images(2), batch_size=4)


def test_one_of_several_outputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Flatten", ["samples"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    place = saved(graph(nodes, ["n", 3, 2, 2], {"a": ["n", 12], "b": ["n", 12]}), tmp_path)
    first, second = (OnnxBackbone(place, Images(2), output=name) for name in "ab")
    assert np.array_equal(first.extract(images("two", 3)), -second.extract(images("two", 3)))
    assert first.digest() != second.digest()
    with pytest.raises(ConfigurationError, match="several outputs: choose the features with output=, one of a, b"):
        OnnxBackbone(place, Images(2))
    with pytest.raises(ConfigurationError, match="output must be one of a, b; got 'c'"):
        OnnxBackbone(place, Images(2), output="c")


def test_preprocessing_that_does_not_fit_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="small does not accept the output of preprocess"):
        OnnxBackbone(path, Images(20)).extract(images("fit", 1))
    named = OnnxBackbone(
        path, lambda samples: {"other": np.zeros((len(samples), 3, 16, 16), np.float32)}, preprocess_id="x"
    )
    with pytest.raises(ConfigurationError, match="the network has the inputs samples; preprocess gave other"):
        named.extract(images("fit", 1))
    maps = saved(
        graph([helper.make_node("Neg", ["samples"], ["maps"])], ["n", 3, 2, 2], {"maps": ["n", 3, 2, 2]}), tmp_path
    )
    with pytest.raises(
        ConfigurationError, match=r"it gave float32 of shape \(32, 3, 2, 2\). Export it with its maps pooled"
    ):
        OnnxBackbone(maps, Images(2))
    wrong = OnnxBackbone(path, Images(16), n_features=11)
    with pytest.raises(ConfigurationError, match=r"gave features of shape \(12,\) where n_features is 11"):
        wrong.extract(images("fit", 1))


def test_features_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Flatten", ["samples"], ["a"]), helper.make_node("Log", ["a"], ["b"])]
    place = saved(graph(nodes, ["n", 3, 2, 2], {"b": ["n", 12]}), tmp_path)
    logarithm = OnnxBackbone(place, Images(2, 0, 1))  # of zeros as well, in rows that only fill up
    assert logarithm.extract(np.full((1, 2, 2, 3), 9, np.uint8)).shape == (1, 12)
    with pytest.raises(InputError, match="made gave NaN or infinity for sample 1"):
        logarithm.extract(np.array([9, 0], np.uint8)[:, None, None, None] * np.ones((2, 2, 2, 3), np.uint8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "gpu"}, "device must be 'auto', 'cpu' or 'cuda'; got 'gpu'"),
        ({"threads": 0}, "threads must be a whole number between 1 and 1024; got 0"),
        ({"batch_size": -1}, "batch_size must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"n_features": 0}, "n_features must be a whole number"),
        ({"stands_for": "small"}, "stands_for must be a backbone's digest, a SHA-256 in hex; got 'small'"),
    ],
)
def test_unusable_settings_are_refused(path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        OnnxBackbone(path, Images(16), **settings)


def test_cuda_must_be_there_to_be_asked_for(path: Path) -> None:
    if "CUDAExecutionProvider" in runtime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(ConfigurationError, match="this ONNX Runtime has no CUDA: pip install onnxruntime-gpu"):
        OnnxBackbone(path, Images(16), device="cuda")


def test_unusable_files_are_refused(tmp_path: Path, model: bytes) -> None:
    place = tmp_path / "network.onnx"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        OnnxBackbone(place, Images(16))
    for content in (b"nonsense", model[: len(model) // 2], b"ORTM" + bytes(60)):
        place.write_bytes(content)
        with pytest.raises(FileRejectedError, match="is damaged, or not an ONNX file"):
            OnnxBackbone(place, Images(16))
    place.write_bytes(b"")
    with pytest.raises(FileRejectedError, match="is not a network that ONNX Runtime can load"):
        OnnxBackbone(place, Images(16))
    unknown = graph([helper.make_node("NoSuchOperation", ["samples"], ["a"])], ["n", 3], {"a": ["n", 3]})
    with pytest.raises(FileRejectedError, match="is not a network that ONNX Runtime can load"):
        OnnxBackbone(saved(unknown, tmp_path), Images(16))


def outside(name: str = "weights") -> Any:
    """A tensor whose values are to be read from somewhere else."""
    tensor = helper.make_tensor(name, onnx.TensorProto.FLOAT, [3], [1, 2, 3])
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../etc/passwd")
    return tensor


def hidden(place: str) -> Any:
    """A model with such a tensor in one of the places it can be in."""
    constant = helper.make_node("Constant", [], ["c"], value=outside())
    inner = helper.make_graph([constant], "inner", [], [helper.make_tensor_value_info("c", 1, [3])])
    model = flat(["n", 3, 2, 2])
    sparse = onnx.SparseTensorProto(values=outside("v"), indices=helper.make_tensor("i", 7, [3], [0, 1, 2]), dims=[9])
    if place == "initialiser":
        model.graph.initializer.append(outside())
    elif place == "only located":
        model.graph.initializer.append(outside())
        del model.graph.initializer[0].external_data[:]
    elif place == "only described":
        model.graph.initializer.append(outside())
        model.graph.initializer[0].ClearField("data_location")
    elif place == "attribute":
        model.graph.node.append(constant)
    elif place == "list of tensors":
        model.graph.node.append(helper.make_node("Own", [], ["c"], domain="own", values=[outside()]))
    elif place == "branch":
        model.graph.node.append(helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner))
    elif place == "list of graphs":
        model.graph.node.append(helper.make_node("Own", [], ["c"], domain="own", branches=[inner]))
    elif place == "sparse initialiser":
        model.graph.sparse_initializer.append(sparse)
    elif place == "sparse attribute":
        model.graph.node.append(helper.make_node("Constant", [], ["c"], sparse_value=sparse))
    elif place == "function":
        model.functions.append(helper.make_function("own", "F", [], ["c"], [constant], [helper.make_opsetid("", 17)]))
    elif place == "training":
        model.training_info.add().algorithm.CopyFrom(inner)
    return model


PLACES = [
    "initialiser", "only located", "only described", "attribute", "list of tensors", "branch", "list of graphs",
    "sparse initialiser", "sparse attribute", "function", "training",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_weights_outside_the_file_are_found_wherever_they_hide(place: str, tmp_path: Path) -> None:
    with pytest.raises(FileRejectedError, match=r"keeps weights in other files, .* Save it as one file"):
        OnnxBackbone(saved(hidden(place), tmp_path), Images(2))


def test_a_file_saved_with_external_data_is_refused(model: bytes, tmp_path: Path) -> None:
    place = tmp_path / "network.onnx"
    onnx.save(onnx.load_from_string(model), place, save_as_external_data=True, location="weights.bin", size_threshold=0)
    with pytest.raises(FileRejectedError, match="keeps weights in other files"):
        OnnxBackbone(place, Images(16))
    onnx.save(onnx.load(place), place)  # the remedy of the message
    assert OnnxBackbone(place, Images(16)).n_features == 12


def test_other_models_have_nothing_outside(model: bytes) -> None:
    assert not has_external_data(model)
    assert not has_external_data(flat(["n", 3, 2, 2]).SerializeToString())


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        has_external_data(content)
    except ValueError:
        return


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_nothing_that_the_package_reads_as_external_passes(place: int, value: int) -> None:
    """However a model with a tensor outside is changed: if it is still read as one, it is still found."""
    content = bytearray(hidden("branch").SerializeToString())
    content[place % len(content)] ^= value
    try:
        model = onnx.load_from_string(bytes(content))
        branches = [attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g")]
        is_outside = any(
            attribute.t.data_location == onnx.TensorProto.EXTERNAL
            for branch in branches
            for node in branch.node
            for attribute in node.attribute
        )
    except Exception:
        return
    if is_outside:
        assert has_external_data(bytes(content))


def test_without_the_packages(small: TorchBackbone, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        MissingPackageError, match="exporting to ONNX needs the package onnxscript, .*: pip install onnx onnxscript"
    ):
        small.onnx()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        MissingPackageError, match="OnnxBackbone needs the package onnxruntime, .*: pip install onnxruntime"
    ):
        OnnxBackbone(path, Images(16))
