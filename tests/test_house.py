"""What holds the house together: no package reaches into another's underscore names, and no file is too long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import neverseen

SOURCE = Path(neverseen.__file__).parent
OF_TUPLES = {"_replace", "_fields", "_asdict", "_make"}  # the public methods of named tuples


def rooms() -> dict[str, list[Path]]:
    """The files of each package, and of each module beside them."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        found.setdefault(path.relative_to(SOURCE).parts[0], []).append(path)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_TUPLES


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a file gives to something: functions, classes, variables, attributes of self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # __slots__, setattr
            yield node.value


def reached(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Private names that a file uses of something else than self, and the lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not _is_own(node):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neverseen"):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def names_in(files: list[Path]) -> set[str]:
    return {name for path in files for name in defined(ast.parse(path.read_text()))}


def intrusions(files: list[Path], others: set[str]) -> list[str]:
    """Private names of others that these files use. Names of libraries, which nobody here defines, are not ours."""
    own = names_in(files)
    return [
        f"{path.name}:{line}: {name}"
        for path in files
        for line, name in reached(ast.parse(path.read_text()))
        if name in others - own
    ]


def test_no_package_reaches_into_another() -> None:
    everything = names_in([path for files in rooms().values() for path in files])
    assert [each for files in rooms().values() for each in intrusions(files, everything)] == []


def test_an_intrusion_is_found(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "from neverseen.store import _x\ndef f(store, row):\n    row._replace(a=1)\n    return store._ledger\n"
    )
    assert intrusions([path], {"_x", "_ledger"}) == ["bad.py:1: _x", "bad.py:4: _ledger"]


def test_no_file_is_longer_than_450_lines() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert {str(path): length for path, length in lengths.items() if length >= 450} == {}
