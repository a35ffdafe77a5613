"""Kinds that other packages add: found by name, refused when nobody registered them."""

from __future__ import annotations

import collections
import importlib.metadata

import pytest

from neverseen import ConfigurationError
from neverseen.registry import Registry


def test_a_name_is_taken_once() -> None:
    shapes = Registry[int]("shape", "shapes", {})
    shapes.add("square", 4)
    shapes.add("square", 4)  # a module that is imported again
    with pytest.raises(ConfigurationError, match="there is a shape 'square' already; choose another name"):
        shapes.add("square", 5)
    assert shapes["square"] == 4


def test_an_entry_point_is_found_and_imported_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = Registry[int]("shape", "shapes", {})
    declared = importlib.metadata.EntryPoint("digits", "string:digits", "neverseen.shapes")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [declared] * (group == "neverseen.shapes"))
    assert shapes.names() == ["digits"]
    for _ in range(2):
        assert shapes["digits"] == "0123456789"  # type: ignore[comparison-overlap]


def test_an_entry_point_may_name_a_part_of_a_class_and_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were read as names of attributes, dots and brackets and all."""
    shapes = Registry[object]("shape", "shapes", {})
    declared = [
        importlib.metadata.EntryPoint("part", "collections:Counter.fromkeys", "neverseen.shapes"),
        importlib.metadata.EntryPoint("extra", "collections:Counter [fast]", "neverseen.shapes"),
        importlib.metadata.EntryPoint("module", "collections", "neverseen.shapes"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: declared)
    assert shapes["part"] == collections.Counter.fromkeys
    assert shapes["extra"] is collections.Counter
    assert shapes["module"] is collections
