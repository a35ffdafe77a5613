"""Which samples a command is about: those of a source, or those of receipts. For forget and what-if."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from neverseen.cli.printing import counted, tell_skipped
from neverseen.errors import (
    AmbiguousError,
    FeaturesMovedError,
    InputError,
    NotLearnedError,
    ReceiptRejectedError,
)
from neverseen.labels import plain
from neverseen.sources.receipts import placed_receipts
from neverseen.sources.samples import Columns, read_source
from neverseen.sources.tables import Samples, Takes

if TYPE_CHECKING:
    from neverseen.model.intake import Shown
    from neverseen.store import Store


@dataclass(frozen=True)
class Asked:
    """Samples that a store is asked about."""

    places: list[str]  # of each, for messages
    names: list[Any]  # their labels
    request: dict[str, Any]  # as `Store.forget` takes it


@dataclass(frozen=True)
class Choice:
    """The samples that the options of a command choose."""

    folder: Path
    source: Path | None
    receipts: list[Path] | None
    only_id: list[str] | None
    only_owner: list[str] | None
    columns: Columns
    by_content: bool
    skip_bad: bool

    def require_options(self, *shared: str) -> None:
        """Refuse options that do not go together; those that are `shared` apply to something else too."""
        if (self.source is None) == (not self.receipts):
            raise typer.BadParameter("give either receipts with --receipts or a source of samples, not both")
        columns = self.columns
        of_sources: dict[str, Any] = {
            "--labels": columns.labels,
            "--label": columns.label,
            "--ids": columns.ids,
            "--owners": columns.owners,
            "--texts": columns.texts,
            "--by-content": self.by_content or None,
            "--skip-bad": self.skip_bad or None,
        }
        named = [option for option, value in of_sources.items() if value is not None and option not in shared]
        if self.source is None and named:
            hint = "; --id and --owner choose among receipts" if {"--ids", "--owners"} & set(named) else ""
            raise typer.BadParameter(f"{named[0]} applies to a source of samples, not to receipts: leave it out{hint}")
        if self.source is not None and (self.only_id or self.only_owner):
            raise typer.BadParameter("--id and --owner choose among receipts: give the receipts with --receipts")

    def samples(self, takes: Takes | None) -> Samples | None:
        """Return the samples of the source, if there is one; `takes` is what the store takes."""
        if self.source is None:
            return None
        found = read_source(self.source, self.columns, takes=takes, skip_bad=self.skip_bad)
        tell_skipped(found)
        return found

    def asked(self, model: Store, found: Samples | None) -> Asked:
        """Return what to ask the store, given what `samples` found."""
        if self.source is None or found is None:
            chosen = _chosen(model, placed_receipts(self.receipts or []), self.only_id, self.only_owner)
            names = [shown.facts()["label"] for _, shown in chosen]
            return Asked([where for where, _ in chosen], names, {"given": [shown for _, shown in chosen]})
        request = {
            "given": found.samples,
            "labels": found.labels,
            "ids": None if self.by_content or self.source.is_dir() else found.ids,
            "owners": found.owners,
        }
        return Asked([f"{self.source}, {place}" for place in found.places], found.labels or [], request)


@contextmanager
def refusals_told(model: Store, asked: Asked) -> Iterator[None]:
    """Say of a sample or a receipt that a store refuses where it is."""
    places = asked.places
    try:
        yield
    except ReceiptRejectedError as error:
        tell_waiting(model)
        raise _placed(error, places[error.row]) from error
    except NotLearnedError as error:
        tell_waiting(model)
        if not error.rows:
            raise
        raise NotLearnedError(_missed(error, places, asked.request)) from error
    except AmbiguousError as error:
        raise InputError(
            f"{places[error.row]}: {model.folder} holds several such samples. Identify it by a column of ids (--ids) "
            "and one of owners (--owners), or give the receipts with --receipts. Nothing was changed"
        ) from error


def _chosen(
    model: Store, given: list[tuple[str, bytes]], ids: list[str] | None, owners: list[str] | None
) -> list[tuple[str, Shown]]:
    """Return the receipts of these ids and owners, as sealed in them."""
    chosen = []
    for where, token in given:
        try:
            (shown,) = model.opened([token])
        except ReceiptRejectedError as error:
            raise _placed(error, where) from error
        known = {name: str(plain(value)) for name, value in shown.facts().items() if value is not None}
        if (not ids or known.get("id") in ids) and (not owners or known.get("owner") in owners):
            chosen.append((where, shown))
    if not chosen:
        raise InputError(f"none of {counted(len(given), 'receipt')} has that id and owner")
    return chosen


def _placed(error: ReceiptRejectedError, where: str) -> ReceiptRejectedError:
    """Return a refusal that says in which file and line the receipt is."""
    words = str(error).removeprefix(f"receipt {error.row} ")
    return ReceiptRejectedError(f"{where}: this receipt {words}", error.row, error.reason)


def _missed(error: NotLearnedError, places: list[str], request: dict[str, Any]) -> str:
    """Return which samples of a source are not held, as a message for the command line."""
    first = places[error.rows[0]]
    count = f" ({len(error.rows):,} of {counted(len(places), 'sample')} in all)" if len(places) > 1 else ""
    if isinstance(error, FeaturesMovedError):
        return (
            f"{first}: this sample was learned, but its features come out differently here{count}: another "
            "machine, library or setting rounds differently. Forget it with --receipts. Nothing was changed"
        )
    known = ["label", *(what.removesuffix("s") for what in ("ids", "owners") if request.get(what) is not None)]
    return (
        f"{first}: no such sample is held with this {', '.join(known)}{count}: it was never learned, is already "
        "forgotten, has another owner, or is listed more often than it was learned. Nothing was changed"
    )


def tell_waiting(model: Store) -> None:
    """After a request for a sample that is not held, say that forgotten samples may wait to be published."""
    if waiting := len(model.ledger.pending()):
        typer.echo(
            f"{counted(waiting, 'sample')} forgotten earlier, but in no certificate yet: run neverseen publish "
            f"{model.folder}",
            err=True,
        )
