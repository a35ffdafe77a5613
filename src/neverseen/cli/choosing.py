"""The samples that forget and what-if are about: from a source, or by their receipts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from neverseen.cli.printing import counted, usable
from neverseen.errors import AmbiguousError, FeaturesMovedError, InputError, NotLearnedError, ReceiptRejectedError
from neverseen.labels import from_text, in_class_order, plain, text
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
    names: list[Any]  # their labels, as `neverseen.targets` keeps them
    request: dict[str, Any]  # as `Store.forget` takes it
    found: Samples | None = None  # those of a source


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
    kind: str | None

    def require_options(self, *shared: str) -> None:
        """Refuse options that do not go together. Options in `shared` have another use in this command too."""
        if (self.source is None) == (not self.receipts):
            raise typer.BadParameter("give either receipts with --receipts, or a source of samples")
        if self.kind not in (None, "text", "number"):
            raise typer.BadParameter("--kind is text or number")
        if self.kind is not None and not (self.only_id or self.only_owner):
            raise typer.BadParameter("--kind says what --id and --owner are: give one of them")
        columns = self.columns
        of_sources: dict[str, Any] = {
            "--labels": columns.labels,
            "--weights": columns.weights,
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
        """Return the samples of the source, if there is one."""
        if self.source is None:
            return None
        return read_source(self.source, self.columns, takes=takes, skip_bad=self.skip_bad)

    def asked(self, model: Store, found: Samples | None) -> Asked:
        """Return what to ask the store; `found` comes from `samples`. Features are computed, or receipts opened."""
        if self.source is None or found is None:
            chosen = self._chosen(model, placed_receipts(self.receipts or []))
            names = [shown.facts()["label"] for _, shown in chosen]
            return Asked([where for where, _ in chosen], names, {"given": [shown for _, shown in chosen]})
        prepared = model.prepare(found.samples)
        found = usable(found)
        request = {
            "given": prepared,
            "labels": found.labels,
            "ids": None if self.by_content or self.source.is_dir() else found.ids,
            "owners": found.owners,
        }
        targets = model.description.configuration.targets
        names = [targets.label(label, any_label=True) for label in found.labels or []]
        return Asked([f"{self.source}, {place}" for place in found.places], names, request, found)

    def _chosen(self, model: Store, given: list[tuple[str, bytes]]) -> list[tuple[str, Shown]]:
        """Return the receipts of these ids and owners, as sealed in them."""
        places = [where for where, _ in given]
        try:
            opened = list(zip(places, model.opened([receipt for _, receipt in given]), strict=True))
        except ReceiptRejectedError as error:
            raise _placed(error, places[error.row]) from error
        none = f"none of {counted(len(given), 'receipt')} has that id and owner"
        ids = _meant("--id", self.only_id, {shown.opened.id for _, shown in opened}, self.kind, none)
        owners = _meant("--owner", self.only_owner, {shown.opened.owner for _, shown in opened}, self.kind, none)
        chosen = [
            (where, shown)
            for where, shown in opened
            if (ids is None or shown.opened.id in ids) and (owners is None or shown.opened.owner in owners)
        ]
        if not chosen:
            raise InputError(none)
        return chosen


@contextmanager
def refusals_told(model: Store, asked: Asked) -> Iterator[None]:
    """If the store refuses a sample or a receipt, say in which file and line it is."""
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


def _meant(option: str, words: list[str] | None, known: set[str], kind: str | None, none: str) -> set[str] | None:
    """Return the ids or owners that words mean, as canonical texts; None if there are no words.

    A word is a text or a number as it is, or its canonical text. One that fits several, or none, is refused.
    """
    if not words:
        return None
    looks: dict[str, set[str]] = {}
    for name in known - {text(None)}:
        value = from_text(name)
        if kind is None or isinstance(value, str) == (kind == "text"):
            for look in (name, str(plain(value))):
                looks.setdefault(look, set()).add(name)
    found = set()
    for word in words:
        fits = in_class_order(looks.get(word, ()))
        if not fits:
            raise InputError(f"{none} ({option} {word})")
        if len(fits) > 1:
            raise InputError(
                f"{option} {word} fits several: {' and '.join(fits)}. Add --kind number or --kind text. Nothing was "
                "changed"
            )
        found.update(fits)
    return found


def _placed(error: ReceiptRejectedError, where: str) -> ReceiptRejectedError:
    """Return the refusal with the file and the line of the receipt."""
    return ReceiptRejectedError(error.fault, error.row, error.reason, f"{where}: this receipt")


def _missed(error: NotLearnedError, places: list[str], request: dict[str, Any]) -> str:
    """Return a message that names the samples of a source that are not held."""
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
    """After a request for a sample that is not held: say how many forgotten samples wait to be published."""
    if waiting := len(model.ledger.pending()):
        typer.echo(
            f"{counted(waiting, 'sample')} forgotten earlier, but in no certificate yet: run neverseen publish "
            f"{model.folder}",
            err=True,
        )
