"""Commands that forget: forget, forget-class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neverseen.cli import options
from neverseen.cli.opening import described, opened, taken_by
from neverseen.cli.printing import (
    about,
    by_class,
    class_rows,
    counted,
    print_json,
    print_table,
    published_words,
    skipped_view,
    tell_skipped,
)
from neverseen.cli.publishing import ended
from neverseen.errors import (
    AmbiguousError,
    ConfigurationError,
    FeaturesMovedError,
    InputError,
    NotLearnedError,
    ReceiptRejectedError,
)
from neverseen.labels import from_text, normalise, plain, text
from neverseen.sources.receipts import placed_receipts
from neverseen.sources.samples import Columns, read_source

if TYPE_CHECKING:
    from neverseen.model.intake import Shown
    from neverseen.store import Store

DryRun = Annotated[bool, typer.Option("--dry-run", help="Rehearse: say what would be forgotten, and change nothing.")]
Seal = Annotated[bool, typer.Option("--seal", help="Then clear forgotten samples off the disk.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(forget)
    app.command("forget-class")(forget_class)


def forget(
    folder: options.Folder,
    source: Annotated[
        Path | None, typer.Argument(help="Samples, as for learn, instead of receipts.", show_default=False)
    ] = None,
    receipts: options.Receipts = None,
    only_id: Annotated[list[str] | None, typer.Option("--id", help="Use only the receipts of this id.")] = None,
    only_owner: Annotated[
        list[str] | None, typer.Option("--owner", help="Use only the receipts of this owner.")
    ] = None,
    labels: options.Labels = None,
    label: options.Label = None,
    ids: options.Ids = None,
    owners: options.Owners = None,
    texts: options.Texts = None,
    by_content: Annotated[
        bool, typer.Option("--by-content", help="Ignore the source's ids. Its owners still count.")
    ] = False,
    skip_bad: options.SkipBad = False,
    dry_run: DryRun = False,
    seal: Seal = False,
    publish: options.Publish = True,
    backbone: options.Backbone = None,
    keys: options.Keys = None,
    as_json: options.Json = False,
) -> None:
    """Forget samples, all or none, by their receipts or by the samples themselves.

    Images are found by their content, whatever their names are now. If a source has owners, only their own samples
    are forgotten.

    Example: `neverseen forget shop --receipts monday.jsonl --owner ada`
    """
    if (source is None) == (not receipts):
        raise typer.BadParameter("give either receipts with --receipts or a source of samples, not both")
    of_sources: dict[str, Any] = {
        "--labels": labels,
        "--label": label,
        "--ids": ids,
        "--owners": owners,
        "--texts": texts,
    }
    of_sources |= {"--by-content": by_content or None, "--skip-bad": skip_bad or None}
    named = [option for option, value in of_sources.items() if value is not None]
    if source is None and named:
        hint = "; --id and --owner choose among receipts" if {"--ids", "--owners"} & set(named) else ""
        raise typer.BadParameter(f"{named[0]} applies to a source of samples, not to receipts: leave it out{hint}")
    if source is not None and (only_id or only_owner):
        raise typer.BadParameter("--id and --owner choose among receipts: give the receipts with --receipts")
    found = made = None
    if source is not None:
        takes, made = taken_by(folder, backbone)
        found = read_source(source, Columns(labels, ids, owners, label, texts), takes=takes, skip_bad=skip_bad)
        tell_skipped(found)
    signs = (publish or seal) and not dry_run
    ways: dict[str, Any] = {"raw": found is not None, "words": backbone, "made": made, "needs_keys": True}
    with opened(folder, write=True, keys=keys, signs=signs, **ways) as model:
        if source is None or found is None:
            chosen = _chosen(model, placed_receipts(receipts or []), only_id, only_owner)
            places = [where for where, _ in chosen]
            names: list[Any] = [shown.facts()["label"] for _, shown in chosen]
            request: dict[str, Any] = {"given": [shown for _, shown in chosen]}
        else:
            places = [f"{source}, {place}" for place in found.places]
            names = found.labels or []
            request = {
                "given": found.samples,
                "labels": found.labels,
                "ids": None if by_content or source.is_dir() else found.ids,
                "owners": found.owners,
            }
        try:
            with _told_if_made(model, counted(len(names), "sample")):
                model.forget(**request, dry_run=dry_run)
        except ReceiptRejectedError as error:
            _tell_waiting(model)
            raise _placed(error, places[error.row]) from error
        except NotLearnedError as error:
            _tell_waiting(model)
            raise NotLearnedError(_missed(error, places, request)) from error
        except AmbiguousError as error:
            raise InputError(
                f"{places[error.row]}: {folder} holds several such samples. Identify it by a column of ids (--ids) and "
                "one of owners (--owners), or give the receipts with --receipts. Nothing was changed"
            ) from error
        skipped = [] if found is None else skipped_view(found)
        classes = Counter(text(normalise(name)) for name in names)
        _finish(model, classes, dry_run, seal, publish, as_json, {"skipped": skipped})


def forget_class(
    folder: options.Folder,
    label: Annotated[str, typer.Argument(help="The class.", show_default=False)],
    kind: Annotated[
        str | None, typer.Option(help="text or number, if the store has a class of each with this name.")
    ] = None,
    dry_run: DryRun = False,
    seal: Seal = False,
    publish: options.Publish = True,
    backbone: options.Backbone = None,
    keys: options.Keys = None,
    as_json: options.Json = False,
) -> None:
    """Forget every sample of a class, without receipts. Needs a store made with --track-classes.

    Example: `neverseen forget-class shop cat`
    """
    if kind not in (None, "text", "number"):
        raise typer.BadParameter("--kind is text or number")
    if not described(folder).track_classes:
        raise ConfigurationError(
            f"{folder} was made without --track-classes, so it has no separate sums for each class, which forget-class "
            f"needs. Forget the samples with neverseen forget {folder}"
        )
    signs = (publish or seal) and not dry_run
    with opened(folder, write=True, keys=keys, signs=signs, words=backbone) as model:
        counts: dict[str, int] = model.status()["samples_by_class"]
        held = [name for name in counts if str(plain(from_text(name))) == label or name == label]
        if kind is not None:
            held = [name for name in held if isinstance(from_text(name), str) == (kind == "text")]
        if not held:
            _tell_waiting(model)
            raise NotLearnedError(f"the store holds no sample of class {label!r}: never learned, or already forgotten")
        if len(held) > 1:
            names = ", ".join(held)
            raise InputError(f"several classes are called {label!r}: {names}; add --kind text or --kind number")
        with _told_if_made(model, counted(counts[held[0]], "sample")):
            model.forget_class(from_text(held[0]), dry_run=dry_run)
        _finish(model, Counter({held[0]: counts[held[0]]}), dry_run, seal, publish, as_json, {})


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


@contextmanager
def _told_if_made(model: Store, what: str) -> Iterator[None]:
    """If a forget fails but may be on disk, say so: it is neither undone nor published."""
    before = model.ledger.meta("sequence")  # goes up with every change
    try:
        yield
    except BaseException as error:
        if getattr(error, "uncertain", False) or _has_changed(model, before):
            typer.echo(
                f"{what} may have been forgotten, but not published yet: run neverseen publish {model.folder} later. "
                "If they were not forgotten, repeat this command after that",
                err=True,
            )
        raise


def _has_changed(model: Store, before: str | None) -> bool:
    try:
        return model.ledger.meta("sequence") != before
    except Exception:  # it cannot tell
        return True


def _tell_waiting(model: Store) -> None:
    """After a request for a sample that is not held, say that forgotten samples may wait to be published."""
    if waiting := len(model.ledger.pending()):
        typer.echo(
            f"{counted(waiting, 'sample')} forgotten earlier, but in no certificate yet: run neverseen publish "
            f"{model.folder}",
            err=True,
        )


def _finish(
    model: Store, classes: Counter[str], dry_run: bool, seal: bool, publish: bool, as_json: bool, more: dict[str, Any]
) -> None:
    certificate, count = None, classes.total()
    if not dry_run:
        certificate = ended(model, f"{counted(count, 'sample')} forgotten", publish or seal, seal=seal)
    if as_json:
        print_json(
            {
                "certificate": about(certificate),
                "classes": by_class(classes),
                "dry_run": dry_run,
                "forgotten": 0 if dry_run else count,
                "requested": count,
                "sealed": seal and not dry_run,
            }
            | more
        )
        return
    if dry_run:
        print_table(("class", "samples to forget"), class_rows(classes))
        typer.echo(f"would forget {counted(count, 'sample')}; nothing was changed")
        return
    ending = "; sealed" if seal else ""
    typer.echo(f"forgot {counted(count, 'sample')}; {published_words(certificate)}{ending}")
