"""The command that previews a forget: what-if."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neverseen.cli import options
from neverseen.cli.answers import (
    as_given,
    field_of,
    fields,
    for_people,
    measured,
    predicted_as,
    score_of,
    score_view,
    score_words,
)
from neverseen.cli.choosing import Asked, Choice, refusals_told
from neverseen.cli.opening import described, opened, taken_by
from neverseen.cli.printing import by_class, counted, print_json, print_table, skipped_view, usable
from neverseen.sources.samples import Columns, read_source
from neverseen.sources.tables import Samples

if TYPE_CHECKING:
    from neverseen.backbones.reading import Prepared
    from neverseen.model.without import Without
    from neverseen.store import Store
    from neverseen.targets import Targets


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("what-if")(what_if)


def what_if(
    folder: options.Folder,
    source: options.SourceOrReceipts = None,
    receipts: options.Receipts = None,
    only_id: options.OnlyId = None,
    only_owner: options.OnlyOwner = None,
    kind: options.Kind = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Labelled samples: compare their predictions now and without. Columns are named as in SOURCE."
        ),
    ] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Leave out one sample at a time, and predict that sample.")
    ] = False,
    labels: options.Labels = None,
    label: options.Label = None,
    weights: options.Weights = None,
    ids: options.Ids = None,
    owners: options.Owners = None,
    texts: options.Texts = None,
    by_content: options.ByContent = False,
    skip_bad: options.SkipBad = False,
    backbone: options.Backbone = None,
    keys: options.Keys = None,
    as_json: options.Json = False,
) -> None:
    """Preview a forget: show the model without some samples, exactly as a forget would leave it. Nothing changes.

    The preview includes changes that are not published yet.

    Example: `neverseen what-if shop --receipts monday.jsonl --owner ada --test tuesday.csv`
    """
    from neverseen.backbones.reading import to_predict

    if test is not None and leave_one_out:
        raise typer.BadParameter("--leave-one-out predicts the samples that it leaves out: do not give --test")
    columns = Columns(labels, ids, owners, label, texts, weights=weights)
    chosen = Choice(folder, source, receipts, only_id, only_owner, columns, by_content, skip_bad, kind)
    targets = described(folder).configuration.targets
    shared = () if test is None else ("--labels", "--weights", "--ids", "--owners", "--texts", "--skip-bad")
    chosen.require_options(*shared)
    takes, made = (None, None) if source is None and test is None else taken_by(folder, backbone)
    found, tested = chosen.samples(takes), None
    if test is not None:
        told = Columns(labels, ids, owners, texts=texts, told_apart=False, shared=source is not None, weights=weights)
        tested = read_source(test, told, takes=takes, skip_bad=skip_bad)
    ways: dict[str, Any] = {"raw": found is not None or tested is not None, "words": backbone, "made": made}
    with opened(folder, write=True, keys=keys, needs_keys=True, **ways) as model:
        asked, rows = chosen.asked(model, found), None
        if tested is not None:
            rows = to_predict(model.backbone, model.description.configuration.encoder, tested.samples)
            tested = usable(tested)
        skipped = [entry for each in (asked.found, tested) if each is not None for entry in skipped_view(each)]
        with refusals_told(model, asked):
            if leave_one_out:
                names = asked.places if asked.found is None else asked.found.names
                _print_one_by_one(targets, names, _one_by_one(model, asked), model.digest(), skipped, as_json)
                return
            views = model.without([]), model.without(**asked.request)
        document = _compared(targets, views, rows, tested)
    if as_json:
        print_json(document | {"skipped": skipped})
    else:
        _print_comparison(targets, document, 0 if tested is None else len(tested))


def _compared(
    targets: Targets, views: tuple[Without, Without], rows: Prepared | None, tested: Samples | None
) -> dict[str, Any]:
    """Return how a model differs from the model without some samples, as JSON values; on test samples, if any."""
    from neverseen.model.without import Comparison, compared

    found = Comparison((None, None), 0)
    if tested is not None:
        found = compared(*views, rows, tested.labels or [])
    now, then = (
        score_view(targets, share)
        | {"classes": by_class(targets.classes(view.held)), "model": view.digest(), "samples": len(view)}
        for view, share in zip(views, found.shares, strict=True)
    )
    return {"changed": None if tested is None else found.changed, "now": now, "without": then}


def _one_by_one(model: Store, asked: Asked) -> list[tuple[Any, Any]]:
    """Return label and prediction of each sample."""
    from neverseen.backbones.progress import progress_bar

    found = []
    with progress_bar("leave one out", len(asked.names)) as advance:
        for label, each in zip(asked.names, model.leave_one_out(**asked.request), strict=True):
            found.append((label, each.label))
            advance(1)
    return found


def _print_comparison(targets: Targets, document: dict[str, Any], tested: int) -> None:
    both = document["now"], document["without"]
    rows: list[list[object]] = [["samples", *(side["samples"] for side in both)]]
    if targets.kind != "numbers":
        plural = "labels" if targets.kind == "label-sets" else "classes"
        rows.append([plural, *(len(side["classes"]) for side in both)])
    rows.append(["model", *(side["model"][:16] for side in both)])
    if tested:
        rows.append([measured(targets), *(score_words(targets, side["score"]) for side in both)])
    print_table(("", "now", "without"), rows)
    words = f"{document['changed']:,} of {counted(tested, 'prediction')} would change; " if tested else ""
    typer.echo(f"{words}nothing was changed")


def _print_one_by_one(
    targets: Targets,
    names: list[str],
    found: list[tuple[Any, Any]],
    digest: str,
    skipped: list[dict[str, str]],
    as_json: bool,
) -> None:
    labels, guesses = (list(each) for each in zip(*found, strict=True))
    score = score_of(targets, guesses, as_given(targets, labels))
    if as_json:
        rows = [
            fields(targets, label) | {"predicted": guess, "sample": name}
            for name, label, guess in zip(names, labels, targets.said(guesses), strict=True)
        ]
        print_json({"model": digest, "samples": rows, "skipped": skipped} | score_view(targets, score))
        return
    both = for_people(targets, [*predicted_as(targets, labels), *guesses])
    cells = zip(names, both[: len(names)], both[len(names) :], strict=True)
    print_table(("sample", field_of(targets), "predicted"), cells)
    words = score_words(targets, score)
    typer.echo(f"{measured(targets)} without having learned the sample: {words}; nothing was changed")
