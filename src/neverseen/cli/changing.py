"""Commands that change a store: init, learn, forget, forget-class, publish, seal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neverseen.cli.opening import described, keys_of, new_backbone, opened, require_place, taken_by
from neverseen.cli.options import (
    Backbone,
    Folder,
    Ids,
    Json,
    Keys,
    Label,
    Labels,
    Owners,
    Publish,
    Receipts,
    SkipBad,
    Source,
    Texts,
)
from neverseen.cli.printing import (
    about,
    by_class,
    class_rows,
    counted,
    print_json,
    print_table,
    published_words,
    skipped_view,
    tell_leftovers,
    tell_skipped,
)
from neverseen.errors import (
    AmbiguousError,
    ConfigurationError,
    FeaturesMovedError,
    IdTakenError,
    InputError,
    LabelError,
    NotLearnedError,
    ReceiptRejectedError,
)
from neverseen.labels import from_text, normalise, plain, require_classes, text
from neverseen.proof.keys import Keyring
from neverseen.sources.receipts import ReceiptFile, placed_receipts
from neverseen.sources.samples import Columns, Samples, read_source

if TYPE_CHECKING:
    from neverseen.model.intake import Shown
    from neverseen.proof.certificates import Certificate
    from neverseen.store import Store

DryRun = Annotated[bool, typer.Option("--dry-run", help="Rehearse: say what would be forgotten, and change nothing.")]
Seal = Annotated[bool, typer.Option("--seal", help="Then clear forgotten samples off the disk.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (init, learn, forget, publish, seal):
        app.command()(command)
    app.command("forget-class")(forget_class)


def init(
    folder: Folder,
    backbone: Annotated[
        str,
        typer.Option(
            help="The backbone, which turns samples into features: features:NUMBER if you have features already (or "
            "features:NUMBER:NAME, where NAME says what produced them), efficientnet_lite0 for images, minilm for "
            "texts, onnx:FILE for your own network on images, or MODULE:FUNCTION, from an installed module or one in "
            "this folder, for any other.",
            show_default=False,
        ),
    ],
    codes: Annotated[
        int, typer.Option(help="Size of the random projection: larger is more accurate and slower.", min=1, max=2**20)
    ] = 2048,
    seed: Annotated[int, typer.Option(help="Seed of the random projection.", min=0, max=2**64 - 1)] = 0,
    gamma: Annotated[int, typer.Option(help="Ridge strength, from 1 to 2**40.", min=1, max=2**40)] = 2**16,
    track_classes: Annotated[
        bool, typer.Option("--track-classes", help="Keep separate sums for each class, which forget-class needs.")
    ] = False,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="URL of a PostgreSQL database for the ledger.",
            envvar="NEVERSEEN_LEDGER",
            show_default="a file in the folder",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="A key file outside the folder, created if missing. Every later change needs it.",
            show_default="a file in the folder",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a store: a folder with a model that holds nothing yet.

    Example: `neverseen init shop --backbone features:384`
    """
    from neverseen import AnalyticClassifier, RandomProjection, store

    tell_leftovers(folder)
    if not folder.is_dir() or any(folder.iterdir()):
        require_place(folder)
    made = new_backbone(backbone)
    settings = AnalyticClassifier(RandomProjection(codes, seed), gamma, track_classes=track_classes)
    known = None
    if keys is not None:
        known = keys_of(folder, keys) if keys.exists() or keys.is_symlink() else Keyring.create(keys)
    with store.create(folder, made, settings, keys=known, ledger=ledger) as new:
        description = new.description
    if as_json:
        print_json(
            {
                "backbone": made.name,
                "configuration": description.configuration.digest().hex(),
                "folder": str(folder),
                "n_features": made.n_features,
                "public_key": description.public_key,
            }
        )
        return
    typer.echo(f"made {folder}, for {made.n_features} features of {made.name}")
    typer.echo(f"its certificates are signed with the key {description.public_key}")
    if description.backbone["recipe"] is None:
        typer.echo(f"the store has no recipe for its backbone: give --backbone {backbone} with each command")


def learn(
    folder: Folder,
    source: Source,
    labels: Labels = None,
    label: Label = None,
    ids: Ids = None,
    owners: Owners = None,
    texts: Texts = None,
    receipts: Annotated[
        Path, typer.Option(help="Where to write the receipts: a new file, or a folder for one.")
    ] = Path(),
    random_ids: Annotated[bool, typer.Option("--random-ids", help="Do not use the source's ids or paths.")] = False,
    skip_bad: SkipBad = False,
    skip_held: Annotated[
        bool, typer.Option("--skip-held", help="Leave out samples that are already held, or that occur twice.")
    ] = False,
    publish: Publish = True,
    backbone: Backbone = None,
    keys: Keys = None,
    as_json: Json = False,
) -> None:
    """Learn samples, all or none, and write a receipt for each.

    A receipt is the means to forget its sample: give each to the sample's owner. The store keeps none.

    Example: `neverseen learn shop monday.csv --receipts monday.jsonl`
    """
    from neverseen.backbones.reading import Prepared

    takes, made = taken_by(folder, backbone)
    found = read_source(source, Columns(labels, ids, owners, label, texts), takes=takes, skip_bad=skip_bad)
    tell_skipped(found)
    for name, place in zip(found.labels or (), found.places, strict=False):
        try:
            require_classes([name])
        except LabelError as error:
            raise LabelError(f"{source}, {place}: {error}") from None
    ways: dict[str, Any] = {"raw": True, "words": backbone, "made": made, "needs_keys": True}
    with opened(folder, write=True, keys=keys, signs=publish, **ways) as model:
        file, change, given = ReceiptFile(receipts), None, found.samples
        try:
            if skip_held:
                prepared = model.prepare(given, remember=True)
                again = model.held_already(prepared, found.labels or [], found.owners)
                rows = [row for row, is_held in enumerate(again) if not is_held]
                given, found = prepared.only(rows), found.only(rows)
            change = model.learning(given, found.labels, None if random_ids else found.ids, found.owners)
            if not skip_held:
                again = model.held_already(
                    Prepared(change.quantised, list(change.prints)), found.labels or [], found.owners
                )
            file.write(change.receipts, change.facts())  # before the change: with the receipts it can be undone
            model.commit(change)
            if not change.receipts:
                file.discard()
        except BaseException as error:
            if change is not None and model.may_be_held(change, error):
                typer.echo(f"the samples may have been learned: their receipts are in {file.path}", err=True)
            else:
                file.discard()
            if isinstance(error, IdTakenError):
                raise _taken(error, folder, source, found) from error
            raise
        learned = f"{counted(len(change), 'sample')} learned, with receipts in {file.path}"
        certificate = _ended(model, learned if change.receipts else "", publish)
    if as_json:
        print_json(
            {
                "certificate": about(certificate),
                "held_already": sum(again),
                "learned": len(change),
                "receipts": str(file.path) if change.receipts else None,
                "skipped": skipped_view(found),
            }
        )
        return
    if any(again):
        ending = "left out" if skip_held else "learned again and counted again (--skip-held leaves them out)"
        typer.echo(f"already held, or given twice: {sum(again):,} of {counted(len(again), 'sample')}, {ending}")
    if not change.receipts:
        typer.echo("nothing was new: no sample was learned, and no receipts were written")
        return
    typer.echo(f"learned {counted(len(change), 'sample')}; {published_words(certificate)}")
    typer.echo(f"receipts are in {file.path}: give them to their owners")


def forget(
    folder: Folder,
    source: Annotated[
        Path | None, typer.Argument(help="Samples, as for learn, instead of receipts.", show_default=False)
    ] = None,
    receipts: Receipts = None,
    only_id: Annotated[list[str] | None, typer.Option("--id", help="Use only the receipts of this id.")] = None,
    only_owner: Annotated[
        list[str] | None, typer.Option("--owner", help="Use only the receipts of this owner.")
    ] = None,
    labels: Labels = None,
    label: Label = None,
    ids: Ids = None,
    owners: Owners = None,
    texts: Texts = None,
    by_content: Annotated[
        bool, typer.Option("--by-content", help="Ignore the source's ids. Its owners still count.")
    ] = False,
    skip_bad: SkipBad = False,
    dry_run: DryRun = False,
    seal: Seal = False,
    publish: Publish = True,
    backbone: Backbone = None,
    keys: Keys = None,
    as_json: Json = False,
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
    folder: Folder,
    label: Annotated[str, typer.Argument(help="The class.", show_default=False)],
    kind: Annotated[
        str | None, typer.Option(help="text or number, if the store has a class of each with this name.")
    ] = None,
    dry_run: DryRun = False,
    seal: Seal = False,
    publish: Publish = True,
    backbone: Backbone = None,
    keys: Keys = None,
    as_json: Json = False,
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


def publish(folder: Folder, keys: Keys = None, as_json: Json = False) -> None:
    """Make all changes visible to readers, with a certificate.

    Example: `neverseen publish shop`
    """
    with opened(folder, write=True, keys=keys, signs=True) as model:
        certificate = model.publish()
    if as_json:
        print_json({"certificate": about(certificate)})
    else:
        typer.echo(published_words(certificate))


def seal(folder: Folder, keys: Keys = None, as_json: Json = False) -> None:
    """Publish, and clear forgotten samples off the disk.

    Example: `neverseen seal shop`
    """
    with opened(folder, write=True, keys=keys, signs=True) as model:
        certificate = model.publish()
        _ended(model, published_words(certificate), False, seal=True)
    if as_json:
        print_json({"certificate": about(certificate), "sealed": True})
    else:
        typer.echo(f"sealed; {published_words(certificate)}")


def _taken(error: IdTakenError, folder: Path, source: Path, found: Samples) -> InputError:
    """Return the refusal of an id that is taken, with its place in the source."""
    row, first = error.row, error.first
    name, place = text(normalise((found.ids or [])[row])), found.places[row]
    whose = "" if found.owners is None or found.owners[row] is None else " of this owner"
    if first is None:
        return InputError(
            f"{source}, {place}: {folder} already holds a sample{whose} under the id {name}. If it is the same "
            "sample, leave it out (--skip-held); otherwise give it another id, or use --random-ids"
        )
    return InputError(
        f"{source}, {found.places[first]} and {place}: two samples{whose} have the id {name}. Give one of them another "
        "id, or use --random-ids"
    )


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


@contextmanager
def _done_before(what: str) -> Iterator[None]:
    """If a step after a change fails, say what was done, so that nobody repeats it."""
    try:
        yield
    except BaseException:
        if what:
            typer.echo(what, err=True)
        raise


def _ended(model: Store, done: str, publish: bool, *, seal: bool = False) -> Certificate | None:
    """Publish and seal, as wanted. If one fails, say what was `done` before it, and what to run later."""
    certificate = None
    if publish:
        command = f"neverseen {'seal' if seal else 'publish'} {model.folder}"
        with _done_before(done and f"{done}, but not published yet: run {command} later, and do not repeat this"):
            certificate = model.publish()
            done = f"{done}; {published_words(certificate)}"
    if seal:
        command = f"neverseen seal {model.folder}"
        with _done_before(f"{done}; not sealed yet: run {command} later, and do not repeat the rest"):
            model.scrub()
    return certificate


def _finish(
    model: Store,
    classes: Counter[str],
    dry_run: bool,
    seal: bool,
    publish: bool,
    as_json: bool,
    more: dict[str, Any],
) -> None:
    certificate, count = None, classes.total()
    if not dry_run:
        certificate = _ended(model, f"{counted(count, 'sample')} forgotten", publish or seal, seal=seal)
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
