"""Kinds that other packages add: found by name, refused when nobody registered them."""

from __future__ import annotations

import copy
import importlib.metadata
import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest

from neverseen import ConfigurationError, UnknownKindError, hardware
from neverseen.hardware.numpy_cpu import NumpyHardware
from neverseen.registry import Registry


class Other(NumpyHardware):
    name = "other"


@pytest.fixture
def other() -> Iterator[None]:
    hardware.register("other", Other)
    yield
    del hardware.kinds._kinds["other"]


@pytest.mark.usefixtures("other")
def test_hardware_that_is_registered_is_chosen_copied_and_pickled_by_name() -> None:
    chosen = hardware.choose("other")
    assert isinstance(chosen, Other)
    assert hardware.choose("other") is copy.deepcopy(chosen) is pickle.loads(pickle.dumps(chosen))  # noqa: S301 (ours)


@pytest.mark.parametrize("name", ["other", "", 3, ["numpy"], "numpy_cpu:NumpyHardware", "x" * 1000])
def test_hardware_that_nobody_registered_is_refused(name: str) -> None:
    with pytest.raises(UnknownKindError, match=r"is not known; known are cuda, numpy, torch\. Import the package") as e:
        hardware.choose(name)
    assert len(str(e.value)) < 250


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
    assert shapes["digits"] == "0123456789"  # type: ignore[comparison-overlap]


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    script = "import sys; from neverseen import hardware; print(sorted({'torch', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
