"""What the documents say of the code is so: rooms, files, layers, functions, and who calls whom; and every link leads somewhere."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

import neverseen

ROOT = Path(__file__).parents[1]
SOURCE = Path(neverseen.__file__).parent
PAGE = (ROOT / "docs/architecture.md").read_text()
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERS, SERVICE_LAYERS = (each["layers"] for each in CONFIGURATION["contracts"] if each["type"] == "layers")
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples/README.md",
    ROOT / "tests/attacks/README.md",
]


def rooms(of: Path = SOURCE) -> set[str]:
    """Rooms of a package. What begins with an underscore is none: the package itself, and what runs it."""
    found = (path for path in of.iterdir() if not path.name.startswith("_"))
    return {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").exists()}


def section(title: str, page: str = PAGE) -> str:
    """What stands under a heading, up to the next of its level."""
    level = re.escape(title.split(maxsplit=1)[0])
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^{level} |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, f"the page has no heading {title!r}"
    return found[1]


def blocks(kind: str, text: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def found(dotted: str) -> Any:
    """What a name such as ``encoding.quantise`` stands for."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(["neverseen", *parts[:count]]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            value = getattr(value, name)
        return value
    raise AssertionError(f"there is no neverseen.{dotted}")


def names_of_code(text: str) -> list[str]:
    """Names in backquotes that begin with a room."""
    start = "|".join(sorted(rooms()))
    return re.findall(rf"`((?:{start})(?:\.\w+)+)`", text)


# -- rooms and layers --------------------------------------------------------------------------------


def test_the_layers_are_those_that_are_enforced() -> None:
    drawn = [
        [re.split(r"\s{2,}", line)[0] for line in block.splitlines()] for block in blocks("text", section("## Rooms"))
    ]
    assert drawn == [LAYERS, SERVICE_LAYERS]


def test_every_room_has_its_section() -> None:
    headings = re.findall(r"^### (\w+)$", section("## Rooms"), re.MULTILINE)
    assert sorted(headings) == sorted(rooms())
    assert {name for line in LAYERS for name in line.split(" | ")} | {"tracking"} == rooms()


def test_every_room_of_the_service_has_its_place_and_its_section() -> None:
    placed = {name for line in SERVICE_LAYERS for name in line.split(" | ")}
    assert placed == rooms(SOURCE / "service")
    described = set(re.findall(r"^`service/(\w+)` ", section("### service", section("## Rooms")), re.MULTILINE))
    assert described == {name for name in placed if (SOURCE / "service" / name).is_dir()}


@pytest.mark.parametrize("room", sorted(rooms()))
def test_every_file_of_a_room_is_named_and_exists(room: str) -> None:
    text = section("## Rooms")
    named = set(re.findall(r"`(\w+\.py)`", section(f"### {room}", text)))
    folder = SOURCE / room
    files = folder.rglob("*.py") if folder.is_dir() else [SOURCE / f"{room}.py"]
    assert named == {path.name for path in files} - {"__init__.py", "__main__.py"}


# -- walks -------------------------------------------------------------------------------------------

Step = tuple[str, str]
"""File and function."""


def walks() -> list[tuple[Step | None, Step]]:
    """Each step of the walks, and the step that takes it."""
    steps: list[tuple[Step | None, Step]] = []
    for block in [
        *blocks("walk", section("## The walk of a sample")),
        *blocks("walk", section("## The walk of a receipt")),
    ]:
        above: list[Step] = []
        for line in block.splitlines():
            matched = re.fullmatch(r"( *)(\w+(?:/\w+)*\.py) ([\w.]+)", line)
            if matched is None:  # a title, or nothing
                above = []
                continue
            depth = len(matched[1]) // 2
            assert depth <= len(above), f"{line!r} is indented too far"
            step = matched[2], matched[3]
            steps.append((above[depth - 1] if depth else None, step))
            above = [*above[:depth], step]
    return steps


def place(step: Step) -> list[int]:
    """How far down the room of a step stands, and within the service the room there."""
    path = [part.removesuffix(".py") for part in step[0].split("/")]
    layers = [LAYERS, SERVICE_LAYERS] if path[0] == "service" else [LAYERS]
    return [
        next(row for row, line in enumerate(each) if room in line.split(" | "))
        for room, each in zip(path, layers, strict=False)
    ]


def function(step: Step) -> Any:
    file, name = step
    assert (SOURCE / file).is_file(), file
    module = importlib.import_module("neverseen." + file.removesuffix(".py").replace("/", "."))
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    assert inspect.unwrap(value).__module__ == module.__name__, f"{name} is not defined in {file}"
    return value


def names_used_by(of: Any) -> set[str]:
    """The names and attributes that a function's code has; comments and docstrings do not count."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(of))))))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_the_walks_go_from_every_way_in_down_to_sums_and_ledger() -> None:
    steps = [step for _, step in walks()]
    for wanted in (
        ("model/forgetting.py", "ForgettingModel.learn"),
        ("cli/learning.py", "learn"),
        ("service/edge/routes_changing.py", "Changing.learn"),
        ("service/edge/routes_changing.py", "Changing.forget"),
        ("engine/statistics.py", "Statistics.merge"),
        ("engine/statistics.py", "Statistics.subtract"),
        ("ledger/writing.py", "Writing.add"),
        ("ledger/writing.py", "Writing.remove"),
    ):
        assert wanted in steps


def test_every_step_exists_and_is_taken_by_the_one_above() -> None:
    for caller, step in walks():
        function(step)
        if caller is not None:
            assert step[1].rpartition(".")[2] in names_used_by(function(caller)), f"{caller[1]} does not call {step[1]}"


def test_no_step_goes_up() -> None:
    assert [(caller, step) for caller, step in walks() if caller is not None and place(step) < place(caller)] == []


# -- what a change touches ---------------------------------------------------------------------------


def test_what_a_change_touches_is_there_and_counted() -> None:
    rows = re.findall(r"^\| (an? .*?) \|$", section("## What a change touches"), re.MULTILINE)
    assert len(rows) == 10
    for row in rows:
        change, _, places, number, document = row.split(" | ")
        named = re.findall(r"`([\w/.]+)`", places)
        assert len(named) == len(set(named)) == int(number), change
        assert all((SOURCE / each).exists() for each in named), change
        assert (ROOT / "docs" / document.strip("`")).is_file(), change


# -- names and links ---------------------------------------------------------------------------------


def test_names_of_code_exist() -> None:
    names = names_of_code(section("## Where to look")) + names_of_code((ROOT / "docs/proof.md").read_text())
    assert names
    for name in names:
        found(name)


def test_tests_named_by_the_proof_exist() -> None:
    named = re.findall(r"`(\w+)::(test_\w+)`", (ROOT / "docs/proof.md").read_text())
    assert named
    for module, name in named:
        (path,) = ROOT.glob(f"tests/**/test_{module}.py")
        assert f"def {name}(" in path.read_text(), f"{module}::{name}"


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        goal = (path.parent / file).resolve() if file else path
        assert goal.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(goal), f"{path.name}: {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_merge_is_left_half_done(path: Path) -> None:
    assert not re.search(r"^(<<<<<<<|>>>>>>>) ", path.read_text(), re.MULTILINE)
