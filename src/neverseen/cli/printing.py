"""Output of commands: tables at a terminal, plain text in a pipe, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from neverseen.cli.output import OUTCOME
from neverseen.io.files import leftovers_of
from neverseen.labels import Label, from_text, in_class_order, normalise, plain, text
from neverseen.proof.certificates import Certificate
from neverseen.sources.tables import Samples


def print_json(document: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True))


def tell(words: str, facts: dict[str, Any], as_json: bool) -> None:
    """Print how a command ended: words for people, or facts for programs."""
    OUTCOME.note(words)
    if as_json:
        print_json(facts)
    else:
        typer.echo(words)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; in a pipe, lines with TABs between the cells and the heads first."""
    listed = list(rows)
    if not sys.stdout.isatty():
        for row in [heads, *listed]:
            typer.echo("\t".join(map(shown, row)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for place, head in enumerate(heads):
        numbers = all(type(row[place]) is int for row in listed)
        table.add_column(head, justify="right" if numbers else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(shown(cell)) for cell in row))
    Console().print(table)


def print_facts(facts: dict[str, object]) -> None:
    """Print names and values, one pair a line."""
    wide = max(map(len, facts), default=0)
    for name, value in facts.items():
        typer.echo(f"{name.ljust(wide) if sys.stdout.isatty() else name + ':'} {shown(value)}")


def by_class(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return numbers of samples, given by the classes' canonical texts, as JSON values in class order."""
    return [{"class": plain(from_text(name)), "samples": counts[name]} for name in in_class_order(counts)]


def class_rows(counts: Mapping[str, int]) -> list[tuple[Any, int]]:
    """Return the same as rows of a table, for people."""
    names = in_class_order(counts)
    return list(zip(written(map(from_text, names)), (counts[name] for name in names), strict=True))


def written(labels: Iterable[Label]) -> list[Any]:
    """Return labels for people. Labels that would look alike are written as in JSON, with texts in quotes."""
    names = [text(normalise(label)) for label in labels]
    values = {name: json.loads(name) for name in set(names)}
    looks = Counter(map(shown, values.values()))
    return [name if looks[shown(values[name])] > 1 else values[name] for name in names]


def about(certificate: Certificate | None) -> dict[str, Any] | None:
    """Return a summary of a certificate, as JSON values."""
    if certificate is None:
        return None
    return certificate.summary() | {"digest": certificate.digest(), "model": certificate.after.model}


def published_words(certificate: Certificate | None, before: int = 0) -> str:
    """Return how a change ended, for people; `before` is the newest version before it."""
    if certificate is None:
        return "not published yet"
    if certificate.number == before:
        return f"nothing to publish: version {before} is the newest, model {certificate.after.model[:16]}"
    return f"published as version {certificate.number}, model {certificate.after.model[:16]}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number of things in words, such as ``1,200 samples``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def tell_leftovers(place: Path) -> None:
    """List on stderr the leftovers of killed commands beside a file or folder. They may hold keys and samples."""
    for path in leftovers_of(place, folders=True) if place.parent.is_dir() else ():
        typer.echo(
            f"{shown(path)} is a leftover of a killed command and may hold keys and samples: remove it, unless another "
            "command is writing it now",
            err=True,
        )


def usable(found: Samples) -> Samples:
    """Return the samples of a source that have features, and list the skipped ones on stderr."""
    kept = found.usable()
    for name, why in kept.skipped:
        typer.echo(f"skipped: {shown(name)}: {shown(why)}", err=True)
    return kept


def skipped_view(found: Samples) -> list[dict[str, str]]:
    """Return the skipped samples of a source, as JSON values."""
    return [{"sample": name, "why": why} for name, why in found.skipped]


def shown(value: object) -> str:
    """Return a value as text. Samples are untrusted: control characters must not reach the terminal."""
    words = f"{value:,}" if type(value) is int else str(value)
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)
