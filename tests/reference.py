"""Two pages of the reference, made from the program itself: ``python -m tests.reference`` writes docs/reference.

`options.md` lists every command and option with its help, `routes.md` every route of the service with what it takes
and answers. `tests/test_documentation.py` checks that they are up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs/reference"
OPTIONS = """# Every option

All commands of `neverseen`, as `neverseen COMMAND --help` shows them. [Commands](../commands.md) explains them with
examples.

<!-- python -m tests.reference writes this page. -->
"""
ROUTES = """# Every route

All routes of the service, as its `/openapi.json` describes them. [The service](../service.md) explains them with
examples, and has the [settings](../service.md#queue-and-limits), the [errors](../service.md#errors) and the
[scopes](../service.md#keys).

<!-- python -m tests.reference writes this page. -->
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Each command that does something, with its name as it is typed."""
    from typer.main import get_command

    from neverseen.cli import app

    def within(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
        for part, inner in getattr(command, "commands", {}).items():
            yield from within(f"{name} {part}", inner)

    yield from within("neverseen", get_command(app))


def parameters(command: Any) -> Iterator[tuple[str, str, str]]:
    """Name, help and default of each argument and option, but for --help."""
    for each in command.params:
        if "--help" in each.opts:
            continue
        options = each.param_type_name == "option"
        names = [*each.opts, *each.secondary_opts] if options else [(each.name or "").upper()]
        shown = each.show_default if isinstance(each.show_default, str) else None
        plain = each.default is not None and each.show_default and not isinstance(each.default, bool | list | tuple)
        default = shown or (str(each.default) if plain and not callable(each.default) else "")
        if each.envvar:
            default += f"; environment: {each.envvar}"
        yield ", ".join(f"`{name}`" for name in names), each.help or "", "required" if each.required else default


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def options_page() -> str:
    lines = [OPTIONS]
    for name, command in commands():
        lines += [f"## {name.removeprefix('neverseen ')}", ""]
        lines += [cell(part) + "\n" for part in re.split(r"\n\s*\n", command.help or "")]
        lines += ["| | | default |", "|---|---|---|"]
        lines += [f"| {names} | {cell(words)} | {cell(default)} |" for names, words, default in parameters(command)]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def openapi() -> dict[str, Any]:
    import tempfile

    from neverseen.service import create_app
    from neverseen.service.edge.documented import document
    from tests.services import BACKBONE, KEYS, new_store

    with tempfile.TemporaryDirectory() as place:
        app = create_app(new_store(Path(place) / "store"), backbone=BACKBONE, keys=KEYS, hardware="numpy")
        return document(app, "images", 1, 1)  # of images, which can also be sent as forms


def routes_page() -> str:
    document = openapi()
    lines = [ROUTES]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            lines += [f"## {method.upper()} {path}", "", cell(route["summary"]) + ".", ""]
            lines += list(_fields(document, route))
            answers = {int(status): told["description"] for status, told in sorted(route["responses"].items())}
            lines += [f"**{status}** {cell(words)}\n" for status, words in answers.items() if status < 400]
            errors = [f"`{code}`" for words in answers.values() for code in re.findall(r"^- `(\w+)`:", words, re.M)]
            lines += [f"Errors: {', '.join(errors)}.", ""] if errors else []
    return "\n".join(lines).rstrip() + "\n"


def _fields(document: dict[str, Any], route: dict[str, Any]) -> Iterator[str]:
    """What a route takes: query, path and headers, and the fields of a JSON body."""
    rows = [(f"`{each['name']}`", each["in"], each.get("description", "")) for each in route.get("parameters", [])]
    content = route.get("requestBody", {}).get("content", {})
    for kind, told in content.items():
        schema = _resolved(document, told["schema"])
        where = "body" if kind == "application/json" else "form"
        for name, field in schema.get("properties", {}).items():
            rows.append((f"`{name}`", where, _resolved(document, field).get("description", "")))
    if rows:
        yield from ("| takes | in | |", "|---|---|---|")
        yield from (f"| {name} | {where} | {cell(words)} |" for name, where, words in rows)
        yield ""


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with what it refers to; its own words count first."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return (document["components"]["schemas"][name] if name else {}) | schema


def main() -> None:
    """Write both pages."""
    FOLDER.joinpath("options.md").write_text(options_page(), "utf-8")
    FOLDER.joinpath("routes.md").write_text(routes_page(), "utf-8")


if __name__ == "__main__":
    main()
