"""Commands that make a store and fill it: init, learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neverseen.cli import options
from neverseen.cli.answers import kind_words
from neverseen.cli.opening import (
    described,
    keys_of,
    opened,
    operators_backbone,
    require_outside,
    require_place,
    taken_by,
)
from neverseen.cli.output import OUTCOME
from neverseen.cli.printing import (
    about,
    counted,
    print_json,
    published_words,
    skipped_view,
    tell,
    tell_leftovers,
    usable,
)
from neverseen.cli.publishing import ended
from neverseen.errors import IdTakenError, InputError, LabelError
from neverseen.labels import has_surrogates, normalise, text
from neverseen.proof.keys import Keyring
from neverseen.sources.receipts import ReceiptFile
from neverseen.sources.samples import Columns, Samples, read_source

if TYPE_CHECKING:
    from neverseen.targets import Targets


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(init)
    app.command()(learn)


def init(
    folder: options.Folder,
    backbone: Annotated[
        str,
        typer.Option(
            help="The backbone, which turns samples into features. features:NUMBER: samples are features already; "
            "features:NUMBER:NAME also says what produced them. efficientnet_lite0: images. minilm: texts. onnx:FILE: "
            "images, with your own network. NAME: a backbone that an installed package registers. MODULE:FUNCTION: a "
            "backbone that your function returns; the module is installed, or in this folder.",
            show_default=False,
        ),
    ],
    codes: Annotated[
        int, typer.Option(help="Size of the random projection: larger is more accurate and slower.", min=1, max=2**20)
    ] = 2048,
    seed: Annotated[int, typer.Option(help="Seed of the random projection.", min=0, max=2**64 - 1)] = 0,
    activation: Annotated[
        Literal["relu", "tanh", "sigmoid", "gelu", "sign"], typer.Option(help="What becomes of the random projection.")
    ] = "relu",
    compensation: Annotated[
        float | None,
        typer.Option(
            help="Add a second stream of as many codes, fitted to what the first leaves over (DS-AL), and multiply it "
            "by this number, such as 0.6.",
            min=2.0**-10,
            max=2.0**10,
            show_default="one stream",
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="A number to divide all features by, so that the length of a row of features counts.",
            min=2.0**-40,
            max=2.0**40,
            show_default="each row's own root mean square",
        ),
    ] = None,
    gamma: Annotated[
        Any,
        typer.Option(
            help="Ridge strength, a whole number from 1 to 2**40; or auto: the samples held choose it, anew after each "
            "change.",
            parser=options.ridge_strength,
            metavar="NUMBER",
        ),
    ] = 2**16,
    track_classes: Annotated[
        bool, typer.Option("--track-classes", help="Keep separate sums for each class. forget-class needs them.")
    ] = False,
    targets: Annotated[
        Literal["classes", "weighted-classes", "label-sets", "numbers"],
        typer.Option(help="What labels are: a class each, a class with a weight, any number of labels, or numbers."),
    ] = "classes",
    outputs: Annotated[
        int | None,
        typer.Option(help="With --targets numbers: how many numbers a sample has.", min=1, max=4096, show_default="1"),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(
            help="With --targets numbers: they are rounded to multiples of 2**-bits, and at most 2**(20 - bits).",
            min=-64,
            max=64,
            show_default="8",
        ),
    ] = None,
    grid_bits: Annotated[
        int | None,
        typer.Option(
            help="Weights are rounded to multiples of 2**-grid_bits.", min=1, max=52, show_default="40; 20 for numbers"
        ),
    ] = None,
    class_weight: Annotated[
        Literal["balanced"] | None,
        typer.Option(help="balanced: small classes count as much as large ones. Needs --track-classes."),
    ] = None,
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
            help="A key file outside the folder, created if it is missing. Every later change needs it.",
            show_default="a file in the folder",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Create a store: a folder with a model that has not learned anything yet.

    Example: `neverseen init shop --backbone features:384`
    """
    from neverseen import AnalyticClassifier, Encoder, RandomProjection, TwoStreams, store
    from neverseen.backbones.recipes import kind_of
    from neverseen.store.description import NAME

    tell_leftovers(folder)
    if not folder.is_dir() or any(folder.iterdir()):
        require_place(folder)
    made = operators_backbone(backbone)
    encoder: Encoder = RandomProjection(codes, seed, activation=activation, scale=scale)
    if compensation is not None:
        encoder = TwoStreams(codes, seed, activation=activation, compensation_ratio=compensation, scale=scale)
    labels = _targets(targets, outputs, bits)
    if class_weight is not None and not track_classes:
        raise typer.BadParameter("--class-weight balanced needs the sums of each class: add --track-classes")
    ways: dict[str, Any] = {"track_classes": track_classes, "targets": labels, "class_weight": class_weight}
    grid = grid_bits or (20 if targets == "numbers" else 40)  # a number of 20 bits times 40 bits would be too large
    settings = AnalyticClassifier(encoder, gamma, grid_bits=grid, **ways)
    settings.configuration().require_tracking(track_classes)  # before keys are made
    known, created = None, None
    if keys is not None:
        require_outside(folder, keys, "--keys", "Without --keys, init keeps the keys there")
        created = None if keys.exists() or keys.is_symlink() else keys
        known = keys_of(folder, keys) if created is None else Keyring.create(keys)
    OUTCOME.note(f"if {folder} is there, it is whole", done=False)
    try:
        with store.create(folder, made, settings, keys=known, ledger=ledger) as new:
            description = new.description
    except BaseException:
        if created is not None and not (folder / NAME).is_file():
            created.unlink(missing_ok=True)
        raise
    facts = {
        "backbone": made.name,
        "configuration": description.configuration.digest().hex(),
        "folder": str(folder),
        "n_features": made.n_features,
        "public_key": description.public_key,
        "targets": {"kind": "classes"} if labels is None else labels.configuration(),
    }
    what = f"rows of {made.n_features} features" if kind_of(made) == "features" else kind_of(made)
    if labels is not None:
        what += f", and learns {kind_words(labels.configuration() or {})}"
    words = f"Created {folder}. It takes {what}.\nIt signs its certificates with the key {description.public_key}"
    if description.backbone["recipe"] is None:
        words += f"\nIt has no recipe for its backbone: give --backbone {backbone} with each command"
    tell(words, facts, as_json)


def _targets(kind: str, outputs: int | None, bits: int | None) -> Targets | None:
    """Return what labels stand for; None for classes."""
    from neverseen.targets import Numbers, targets_of

    if kind != "numbers" and (outputs is not None or bits is not None):
        raise typer.BadParameter("--outputs and --bits are for numbers: give --targets numbers too")
    if kind == "numbers":
        return Numbers(1 if outputs is None else outputs, 8 if bits is None else bits)
    return None if kind == "classes" else targets_of({"kind": kind})


def learn(
    folder: options.Folder,
    source: options.Source,
    labels: options.Labels = None,
    label: options.Label = None,
    weights: options.Weights = None,
    ids: options.Ids = None,
    owners: options.Owners = None,
    texts: options.Texts = None,
    receipts: Annotated[
        Path, typer.Option(help="Where to write the receipts: a new file, or a folder to put one in.")
    ] = Path(),
    random_ids: Annotated[
        bool, typer.Option("--random-ids", help="Use random ids instead of those in the source.")
    ] = False,
    skip_bad: options.SkipBad = False,
    skip_held: Annotated[
        bool, typer.Option("--skip-held", help="Leave out samples that the store already holds, or that occur twice.")
    ] = False,
    publish: options.Publish = True,
    backbone: options.Backbone = None,
    keys: options.Keys = None,
    as_json: options.Json = False,
) -> None:
    """Learn samples, all or none, and write a receipt for each.

    With its receipt, a sample can be forgotten. Give each receipt to the sample's owner: the store keeps none.

    Example: `neverseen learn shop monday.csv --receipts monday.jsonl`
    """
    from neverseen.backbones.reading import Prepared

    takes, made = taken_by(folder, backbone)
    require_outside(folder, receipts, "--receipts")
    found = read_source(
        source, Columns(labels, ids, owners, label, texts, weights=weights), takes=takes, skip_bad=skip_bad
    )
    _require_names(source, found, random_ids, described(folder).configuration.targets)
    ways: dict[str, Any] = {"raw": True, "words": backbone, "made": made, "needs_keys": True}
    with opened(folder, write=True, keys=keys, signs=publish, **ways) as model:
        file, change, given = ReceiptFile(receipts), None, found.samples
        try:
            if skip_bad or skip_held:  # which images can be used shows when they are decoded
                given = model.prepare(given, remember=True)
                found = usable(found)
            if skip_held:
                given = model.prepare(given, found.labels)
                again = model.held_already(given, found.labels or [], found.owners)
                rows = [row for row, is_held in enumerate(again) if not is_held]
                given, found = given.only(rows), found.only(rows)
            change = model.learning(given, found.labels, None if random_ids else found.ids, found.owners)
            if not (skip_bad or skip_held):
                found = usable(found)
            if not skip_held:
                taken = Prepared(
                    change.quantised,
                    list(change.fingerprints),
                    None,
                    change.members,
                    change.origin,
                    model.description.configuration.encoder.scale,
                )
                again = model.held_already(taken, found.labels or [], found.owners)
            # Before the change: with the receipts it can be undone.
            file.write(change.receipts, change.facts(), model.description.configuration.targets.given)
            model.commit(change)
            learned = f"{counted(len(change), 'sample')} learned, with receipts in {file.path}"
            if change.receipts:
                OUTCOME.note(learned, done=False)
            else:
                file.discard()
        except BaseException as error:
            if change is not None and model.may_be_held(change, error):
                OUTCOME.note("the samples may have been learned", done=False)
                typer.echo(f"the samples may have been learned: their receipts are in {file.path}", err=True)
            else:
                file.discard()
            if isinstance(error, IdTakenError):
                raise _taken(error, folder, source, found) from error
            raise
        # Without a change, publish nothing: changes that others have gathered are theirs to publish.
        certificate = ended(model, learned, publish) if change.receipts else None
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
        typer.echo("nothing was new: no sample was learned, and no receipts were written; nothing was published")
        return
    typer.echo(f"learned {counted(len(change), 'sample')}; {published_words(certificate)}")
    typer.echo(f"receipts are in {file.path}: give them to their owners")


def _require_names(source: Path, found: Samples, random_ids: bool, targets: Targets) -> None:
    """Raise, with its place in the source, for a label that cannot be learned, or a file's name that no id can be."""
    ids = [None] * len(found) if random_ids or found.ids is None else found.ids
    for label, name, place in zip(found.labels or (), ids, found.places, strict=False):
        try:
            targets.label(label)
        except LabelError as error:
            raise LabelError(f"{source}, {place}: {error}") from None
        if isinstance(name, str) and has_surrogates(name):
            raise InputError(
                f"{source}, {place}: its name is not text in UTF-8, so it cannot be an id. Rename it, or use "
                "--random-ids"
            )


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
