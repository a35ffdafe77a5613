"""What holds the house together: no file reaches into another's underscore names or is too long, and no test sleeps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import neverseen

SOURCE = Path(neverseen.__file__).parent
TESTS = Path(__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.Module) -> set[str]:
    """Private names that a file gives to something others could reach: functions, classes, variables, attributes."""
    return {name for name in _defined(tree) if is_private(name)}


def _defined(tree: ast.Module) -> Iterator[str]:
    bodies = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for node in (each for body in bodies for each in _statements(body)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and _is_stored(each))
            yield from _slots(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_stored(node) and _is_own(node):
            yield node.attr


def _statements(body: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module or a class, also those under a condition; not those of its functions."""
    for node in ast.iter_child_nodes(body):
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _statements(node)


def _is_stored(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def _slots(statement: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__slots__":
        constants = (each for each in ast.walk(statement.value) if isinstance(each, ast.Constant))
        yield from (each.value for each in constants if isinstance(each.value, str))


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def reached(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Private names that a file uses of something else than self, and the lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not _is_own(node):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neverseen"):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))


def intrusions(content: str, ours: set[str]) -> list[tuple[int, str]]:
    """Private names of other files that a file uses, and the lines.

    `ours` are all that the package defines: a name that none of its files defines is of a library.
    """
    tree = ast.parse(content)
    foreign = ours - defined(tree)
    return sorted((line, name) for line, name in reached(tree) if name in foreign)


@pytest.fixture(scope="module")
def ours() -> set[str]:
    return {name for path in FILES for name in defined(ast.parse(path.read_text()))}


def test_no_file_reaches_into_another(ours: set[str]) -> None:
    found = {str(path): intrusions(path.read_text(), ours) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_every_planted_intrusion_is_found(ours: set[str]) -> None:
    """In every file, every private name that another file of its room defines, and it does not."""
    own = {path: defined(ast.parse(path.read_text())) for path in FILES}
    count = 0
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0]
        foreign = sorted({name for other in (SOURCE / room).rglob("*.py") for name in own[other]} - own[path])
        content = path.read_text()
        last = len(content.splitlines())
        planted = content + "".join(f"thing.{name}\n" for name in foreign)
        assert intrusions(planted, ours) == [(last + row, name) for row, name in enumerate(foreign, 1)], path
        count += len(foreign)
    assert count > 1000


@pytest.mark.parametrize(
    ("room", "planted"),
    [
        ("service/core.py", "opened()._lock"),  # the room has a lock of its own, in another file
        ("service/core.py", "store._lock"),
        ("cli/learning.py", "self.store._parts"),
        ("store/lookups.py", "from neverseen.store.journal import _sealed"),
        ("backbones/base_training.py", "backbone._module"),
    ],
)
def test_an_intrusion_is_found(ours: set[str], room: str, planted: str) -> None:
    content = (SOURCE / room).read_text()
    assert intrusions(content, ours) == []
    ((line, name),) = intrusions(content + planted + "\n", ours)
    assert line == len(content.splitlines()) + 1
    assert name == planted.replace(" ", ".").rpartition(".")[2]


def test_what_a_file_defines_itself_and_what_libraries_have_is_no_intrusion(ours: set[str]) -> None:
    content = (
        "class Own:\n    _field: int = 1\n    def __init__(self):\n        self._mine = torch._C\n"
        "    def _method(self, other): return other._mine, other._field, other._method, _private\n"
        "def _private(row): return row._replace(a=1)\n"
    )
    assert intrusions(content, ours | {"_field", "_mine", "_method", "_private"}) == []
    assert intrusions("def outer():\n    _inner = 1\n    thing._inner\n", {"_inner"}) == [(3, "_inner")]


def test_no_file_is_longer_than_450_lines() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in FILES}
    assert {str(path): length for path, length in lengths.items() if length >= 450} == {}


def test_no_test_sleeps_to_wait() -> None:
    """What waits for something uses `tests.waiting`, which has a limit; ``sleep(0)`` lets others have their turn."""
    sleeping = re.compile(r"\b(?:(?<!def )sleep\((?!0\))|wait_for_timeout\()")
    found = [path.name for path in sorted(TESTS.rglob("*.py")) if sleeping.search(path.read_text("utf-8"))]
    assert found == ["test_trickled_bodies.py", "waiting.py"]  # the first has an event loop whose clock runs ahead


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts of errors, and the lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_messages_of_the_library_name_no_options_of_the_command_line() -> None:
    """An error carries its `arguments`, and the command line adds the options."""
    found = [
        f"{path}:{line}: {words}"
        for path in SOURCE.rglob("*.py")
        if "cli" not in path.relative_to(SOURCE).parts
        for line, words in messages(ast.parse(path.read_text("utf-8")))
        if re.search(r"(?<!pip install )--[a-z]", words)
    ]
    assert found == []
