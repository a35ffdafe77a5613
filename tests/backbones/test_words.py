"""Backbones by name: what is registered can be named on the command line and in recipes."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from neverseen.backbones import Precomputed, Recipe, recipes, register
from neverseen.backbones.words import backbone_from_words
from neverseen.cli import app
from neverseen.errors import ConfigurationError
from tests.networks_for_stores import Letters


class Named(Letters):
    """A backbone of another package."""

    recipe: ClassVar = {"kind": "letters"}


LETTERS = Recipe("texts", lambda recipe, folder: Named())
NO_RECIPE = Letters


@pytest.fixture(autouse=True)
def own_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts with our own kinds."""
    monkeypatch.setattr(recipes.kinds, "_kinds", dict(recipes.kinds._kinds))


def declare(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Let an installed package declare an entry point."""
    declared = importlib.metadata.EntryPoint(name, value, "neverseen.backbones")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [declared] * (group == declared.group))


def test_our_own_by_name() -> None:
    made = backbone_from_words("features:8:clip:b32")
    assert isinstance(made, Precomputed)
    assert (made.n_features, made.name) == (8, "clip:b32")
    assert made.recipe == {"kind": "features", "n_features": 8, "name": "clip:b32"}


def test_a_registered_name_comes_before_a_module() -> None:
    register("tests", "texts", LETTERS.make, lambda size, name="letters": Precomputed(int(size), name))
    made = backbone_from_words("tests:3")
    assert (made.n_features, made.name) == (3, "letters")
    assert backbone_from_words("tests:3:other").name == "other"
    for words in ("tests", "tests:", "tests:3:"):
        with pytest.raises(ConfigurationError, match=r"^write it as tests:SIZE\[:NAME\]$"):
            backbone_from_words(words)
    with pytest.raises(ConfigurationError, match=r"it cannot be made \(ValueError: .*'x', in test_words.py, line "):
        backbone_from_words("tests:x")
    with pytest.raises(
        ConfigurationError, match=r"a backbone is one of .*, onnx:FILE, tests:SIZE\[:NAME\].* or MODULE"
    ):
        backbone_from_words("absent")


def test_a_registered_name_without_details() -> None:
    register("letters", "texts", LETTERS.make)
    assert isinstance(backbone_from_words("letters"), Named)
    with pytest.raises(ConfigurationError, match="^write it as letters$"):
        backbone_from_words("letters:8")


def test_what_is_no_backbone_is_refused() -> None:
    made: Any = lambda recipe, folder: "no backbone"  # noqa: E731
    register("nothing", "texts", made)
    with pytest.raises(ConfigurationError, match="a backbone has a name, n_features, extract and digest; str has not"):
        backbone_from_words("nothing")


def test_an_entry_point_is_named_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is made, and makes its backbone again, without a word of Python."""
    monkeypatch.chdir(tmp_path)
    declare(monkeypatch, "letters", "tests.backbones.test_words:LETTERS")
    Path("a.csv").write_text("label,text\nx,Hello\ny,Bye\n", "utf-8")
    for words in ("init mail --backbone letters --codes 16", "learn mail a.csv", "predict mail a.csv --labelled"):
        result = CliRunner().invoke(app, words.split())
        assert result.exit_code == 0, result.output
    assert json.loads(Path("mail/store.json").read_bytes())["backbone"]["recipe"] == {"kind": "letters"}
    assert "letters" in recipes.kinds.names()


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("tests.backbones.test_words:NO_RECIPE", "the entry point 'letters' in neverseen.backbones names .*: it must name a Recipe"),
        ("no.such.package:LETTERS", "it cannot be made .ModuleNotFoundError: No module named 'no'"),
    ],
)  # fmt: skip
def test_an_entry_point_that_cannot_be_used_is_told(place: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, "letters", place)
    with pytest.raises(ConfigurationError, match=why):
        backbone_from_words("letters")
    with pytest.raises(ConfigurationError, match="a backbone is one of .*, features:NUMBER.*, letters, minilm"):
        backbone_from_words("absent")
