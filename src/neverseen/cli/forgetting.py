"""Commands that forget: forget, forget-class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neverseen.cli import options
from neverseen.cli.answers import class_head
from neverseen.cli.choosing import Choice, refusals_told, tell_waiting
from neverseen.cli.opening import described, opened, taken_by
from neverseen.cli.output import OUTCOME
from neverseen.cli.printing import (
    about,
    by_class,
    class_rows,
    counted,
    print_json,
    print_table,
    published_words,
    skipped_view,
)
from neverseen.cli.publishing import ended
from neverseen.errors import ConfigurationError, InputError, NotLearnedError
from neverseen.labels import from_text, plain
from neverseen.sources.samples import Columns

if TYPE_CHECKING:
    from neverseen.store import Store

DryRun = Annotated[bool, typer.Option("--dry-run", help="Rehearse: show what would be forgotten, but change nothing.")]
Seal = Annotated[bool, typer.Option("--seal", help="Also clear forgotten samples off the disk.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(forget)
    app.command("forget-class")(forget_class)


def forget(
    folder: options.Folder,
    source: options.SourceOrReceipts = None,
    receipts: options.Receipts = None,
    only_id: options.OnlyId = None,
    only_owner: options.OnlyOwner = None,
    kind: options.Kind = None,
    labels: options.Labels = None,
    label: options.Label = None,
    weights: options.Weights = None,
    ids: options.Ids = None,
    owners: options.Owners = None,
    texts: options.Texts = None,
    by_content: options.ByContent = False,
    skip_bad: options.SkipBad = False,
    dry_run: DryRun = False,
    seal: Seal = False,
    publish: options.Publish = True,
    backbone: options.Backbone = None,
    keys: options.Keys = None,
    as_json: options.Json = False,
) -> None:
    """Forget samples, all or none: by their receipts, or by the samples themselves.

    The store finds images by their content, whatever their file names are now. If the source has owners, it forgets
    only samples of these owners.

    Example: `neverseen forget shop --receipts monday.jsonl --owner ada`
    """
    columns = Columns(labels, ids, owners, label, texts, weights=weights)
    chosen = Choice(folder, source, receipts, only_id, only_owner, columns, by_content, skip_bad, kind)
    chosen.require_options()
    _require_agreement(seal, publish)
    takes, made = (None, None) if source is None else taken_by(folder, backbone)
    found = chosen.samples(takes)
    signs = publish and not dry_run
    ways: dict[str, Any] = {"raw": found is not None, "words": backbone, "made": made, "needs_keys": True}
    with opened(folder, write=True, keys=keys, signs=signs, **ways) as model:
        asked = chosen.asked(model, found)
        with refusals_told(model, asked), _told_if_made(model, counted(len(asked.names), "sample")):
            model.forget(**asked.request, dry_run=dry_run)
        skipped = [] if asked.found is None else skipped_view(asked.found)
        classes = model.description.configuration.targets.per_class(asked.names)
        _finish(model, classes, len(asked.names), dry_run, seal, publish, as_json, {"skipped": skipped})


def forget_class(
    folder: options.Folder,
    label: Annotated[str, typer.Argument(help="The class.", show_default=False)],
    kind: Annotated[
        str | None, typer.Option(help="text or number, if the store has one class of each kind with this name.")
    ] = None,
    dry_run: DryRun = False,
    seal: Seal = False,
    publish: options.Publish = True,
    backbone: options.Backbone = None,
    keys: options.Keys = None,
    as_json: options.Json = False,
) -> None:
    """Forget all samples of a class, without receipts. The store must be made with --track-classes.

    Example: `neverseen forget-class shop cat`
    """
    if kind not in (None, "text", "number"):
        raise typer.BadParameter("--kind is text or number")
    _require_agreement(seal, publish)
    if not described(folder).track_classes:
        raise ConfigurationError(
            f"{folder} was made without --track-classes, so it has no separate sums for each class. Forget the samples "
            f"with neverseen forget {folder}"
        )
    signs = publish and not dry_run
    with opened(folder, write=True, keys=keys, signs=signs, words=backbone) as model:
        counts: dict[str, int] = model.status()["samples_by_class"]
        held = [name for name in counts if str(plain(from_text(name))) == label or name == label]
        if kind is not None:
            held = [name for name in held if isinstance(from_text(name), str) == (kind == "text")]
        if not held:
            tell_waiting(model)
            raise NotLearnedError(f"the store holds no sample of class {label!r}: never learned, or already forgotten")
        if len(held) > 1:
            names = ", ".join(held)
            raise InputError(f"several classes are called {label!r}: {names}; add --kind text or --kind number")
        with _told_if_made(model, counted(counts[held[0]], "sample")):
            model.forget_class(from_text(held[0]), dry_run=dry_run)
        classes = {held[0]: counts[held[0]]}
        _finish(model, classes, counts[held[0]], dry_run, seal, publish, as_json, {})


def _require_agreement(seal: bool, publish: bool) -> None:
    if seal and not publish:
        raise typer.BadParameter("--seal publishes, and --no-publish says not to: leave one of them out")


@contextmanager
def _told_if_made(model: Store, what: str) -> Iterator[None]:
    """If a forget fails but may be on disk, say so: it is neither undone nor published."""
    before = model.ledger.meta("sequence")  # goes up with every change
    try:
        yield
        if _has_changed(model, before):
            OUTCOME.note(f"{what} forgotten", done=False)
    except BaseException as error:
        if getattr(error, "uncertain", False) or _has_changed(model, before):
            OUTCOME.note(f"{what} may have been forgotten", done=False)
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


def _finish(
    model: Store,
    classes: dict[str, int],
    count: int,
    dry_run: bool,
    seal: bool,
    publish: bool,
    as_json: bool,
    more: dict[str, Any],
) -> None:
    certificate = None
    if not dry_run:
        certificate = ended(model, f"{counted(count, 'sample')} forgotten", publish, seal=seal)
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
        if classes:
            head = class_head(model.description.configuration.targets)
            print_table((head, "samples to forget"), class_rows(classes))
        typer.echo(f"would forget {counted(count, 'sample')}; nothing was changed")
        return
    ending = "; sealed" if seal else ""
    typer.echo(f"forgot {counted(count, 'sample')}; {published_words(certificate)}{ending}")
