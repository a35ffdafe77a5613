"""Texts: tokens, lengths that do not depend on other texts, and networks of transformers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neverseen import ConfigurationError, InputError
from neverseen.backbones import Texts, TorchBackbone
from neverseen.errors import MissingPackageError

tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "the", "cat", "sat", "on", "a", "mat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer of ten words."""
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: row for row, word in enumerate(WORDS)}, unk_token=WORDS[3])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.enable_padding(length=50)  # as the file has it; ours goes first
    tokenizer.enable_truncation(7)
    place = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(place / "tokenizer.json"))
    return place


def test_tokens_and_masks(folder: Path) -> None:
    batch = Texts(folder)(["the cat", "", "a dog"])
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 32)
    assert batch["input_ids"][:, :5].tolist() == [[1, 4, 5, 2, 0], [1, 2, 0, 0, 0], [1, 8, 3, 2, 0]]
    assert batch["attention_mask"].sum(axis=1).tolist() == [4, 2, 4]
    assert batch["input_ids"].dtype == np.int64
    assert Texts(folder / "tokenizer.json", pad_id=9)(["cat"])["input_ids"][0, 3:].tolist() == [9] * 29


def test_a_text_has_its_own_length(folder: Path) -> None:
    texts = Texts(folder, max_length=80)
    words = [0, 1, 30, 31, 62, 63, 78, 79, 500]
    assert texts.sizes(["cat " * count for count in words]) == [32, 32, 32, 64, 64, 80, 80, 80, 80]
    assert texts(["cat " * 500])["input_ids"].shape == (1, 80)
    assert texts(["cat " * 500])["input_ids"][0, -1] == 2  # the end is still marked


@pytest.mark.parametrize("sample", [np.zeros((4, 4, 3), np.uint8), b"bytes", None])
def test_what_is_no_text_is_refused(folder: Path, sample: Any) -> None:
    with pytest.raises(InputError, match=r"this backbone takes texts \(str\); got"):
        Texts(folder)([sample])


def test_every_setting_is_in_the_configuration(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text((folder / "tokenizer.json").read_text().replace("mat", "rug"))
    variants = [Texts(folder), Texts(folder, 100), Texts(folder, pad_id=1), Texts(other)]
    assert len({str(texts.configuration()) for texts in variants}) == 4
    assert Texts(folder).configuration() == Texts(folder / "tokenizer.json", 256, 0).configuration()
    assert repr(Texts(folder)).startswith("<Texts of at most 256 tokens, tokenizer ")


def test_unusable_tokenizers_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no tokenizer to be read at .*AutoTokenizer.from_pretrained\(name, use_fast"
    ):
        Texts(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"tokenizer.json is not a tokenizer that can be read"):
        Texts(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not a tokenizer that can be read"):
        Texts(tmp_path)
    with pytest.raises(ConfigurationError, match="max_length must be a whole number"):
        Texts(folder, 0)


@pytest.fixture(scope="module")
def network(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small BERT with random weights, and the tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=10, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=64
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertModel(config).save_pretrained(place)
    (place / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    return place


def small(network: Path, **settings: Any) -> TorchBackbone:
    chosen: dict[str, Any] = {
        "local_files_only": True,
        "batch_size": 3,
        "device": "cpu",
        "name": "small bert",
    } | settings
    return TorchBackbone.from_transformers(network, **chosen)


SENTENCES = ["the cat sat", "", "a mat on the mat " * 7, "cat", "the the", "sat " * 100, "on a mat"]


def test_a_network_of_transformers(network: Path) -> None:
    import torch
    import transformers

    bert, tokenizer = small(network), tokenizers.Tokenizer.from_file(str(network / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(64)
    model = transformers.AutoModel.from_pretrained(network).eval()
    features = bert.extract(SENTENCES)
    assert (bert.name, bert.n_features) == ("small bert", 16)
    for row, text in enumerate(SENTENCES):  # one at a time and with nothing filled up
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].numpy()
        mean = states.mean(axis=0)
        np.testing.assert_allclose(features[row], mean / np.linalg.norm(mean), atol=1e-5)
        np.testing.assert_allclose(
            small(network, pooling="cls", normalise=False).extract([text])[0], states[0], atol=1e-5
        )


def test_a_text_has_the_same_features_whatever_is_beside_it(network: Path) -> None:
    bert = small(network)
    features = bert.extract(SENTENCES)
    assert np.array_equal(bert.extract(SENTENCES[::-1])[::-1], features)
    for row, text in enumerate(SENTENCES):
        assert np.array_equal(bert.extract([text])[0], features[row])


def test_the_digest_tells_networks_apart(network: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    shutil.copytree(network, other)
    assert small(other).digest() == small(network).digest()
    weights = load_file(other / "model.safetensors")
    weights["pooler.dense.bias"][0] += 1
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    digests = {
        small(network).digest(), small(other).digest(), small(network, pooling="cls").digest(),
        small(network, normalise=False).digest(), small(network, max_length=40).digest(), small(network, name="bert").digest(),
    }  # fmt: skip
    assert len(digests) == 6
    assert small(network, name=None).name == network.name


def test_an_export_reads_texts_of_any_length(network: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    bert = small(network)
    exported = bert.export_onnx(tmp_path / "bert.onnx")
    features = exported.extract(SENTENCES)
    np.testing.assert_allclose(features, bert.extract(SENTENCES), atol=1e-5)
    assert all(np.array_equal(exported.extract([text])[0], row) for text, row in zip(SENTENCES, features, strict=True))


def test_networks_that_cannot_be_had_are_refused(network: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="pooling must be 'mean' or 'cls'; got 'max'"):
        small(network, pooling="max")
    with pytest.raises(
        ConfigurationError, match="transformers gives no network .* with safetensors weights and a tokenizer.json"
    ):
        small(tmp_path)


def test_without_the_packages(network: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        MissingPackageError, match="from_transformers needs the package transformers, .*: pip install transformers"
    ):
        small(network)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        MissingPackageError, match="reading texts needs the package tokenizers, .*: pip install tokenizers"
    ):
        Texts(folder)
