"""Commands that read a store: predict, status, history, certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neverseen.cli import options
from neverseen.cli.answers import field_of, for_people, kind_words, measured, score_of, score_view, score_words
from neverseen.cli.opening import described, opened, require_outside, require_published, taken_by
from neverseen.cli.output import OUTCOME
from neverseen.cli.printing import (
    about,
    by_class,
    class_rows,
    print_facts,
    print_json,
    print_table,
    skipped_view,
    usable,
)
from neverseen.io.files import replace_file
from neverseen.sources.samples import Columns, read_source

if TYPE_CHECKING:
    from neverseen.store import Store

HEADINGS = {
    "forgets_to_publish": "forgotten, not yet published",
    "public_key": "public key",
    "published": "published version",
}
HEADS = ("number", "time", "learned", "forgotten", "samples", "classes", "model")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    for command in (predict, status, history, certificate):
        app.command()(command)


def predict(
    folder: options.Folder,
    source: options.Source,
    labelled: Annotated[
        bool,
        typer.Option(
            "--labelled",
            help="The source has labels: print how good the predictions are. Of classes, this is the share of correct "
            "ones; of label sets, the mean share of common labels; of numbers, the explained variance.",
        ),
    ] = False,
    labels: options.Labels = None,
    label: options.Label = None,
    weights: options.Weights = None,
    ids: options.Ids = None,
    owners: options.Owners = None,
    texts: options.Texts = None,
    by: Annotated[
        Literal["mean", "cosine", "lda"] | None,
        typer.Option(
            help="Predict by the means of the classes, of all samples held now: by distance, by angle, or by linear "
            "discriminants.",
            show_default="the published version",
        ),
    ] = None,
    novelty: Annotated[
        bool, typer.Option("--novelty", help="Add the distance to the nearest mean, by lda unless --by says otherwise.")
    ] = False,
    skip_bad: options.SkipBad = False,
    backbone: options.Backbone = None,
    as_json: options.Json = False,
) -> None:
    """Predict each sample with the published version, or by the means of the classes.

    Example: `neverseen predict shop tuesday.csv`
    """
    targets = described(folder).configuration.targets
    takes, made = taken_by(folder, backbone)
    if by is None:
        with opened(folder, write=False) as model:
            require_published(model)
    columns = Columns(labels, ids, owners, label, texts, told_apart=False, weights=weights)
    found = read_source(source, columns, labelled=labelled, takes=takes, skip_bad=skip_bad)
    with opened(folder, write=False, raw=True, words=backbone, made=made) as model:
        answers, far, digest = _answers(model, found.samples, by, novelty)
        number = model.published_number if by is None else None
    found = usable(found)
    score = score_of(targets, answers, found.labels) if labelled and found.labels is not None else None
    if as_json:
        said = zip(found.names, targets.said(answers), strict=True)
        rows: list[dict[str, Any]] = [{field_of(targets): answer, "sample": sample} for sample, answer in said]
        for row, value in zip(rows, far, strict=True) if novelty else ():
            row["novelty"] = value
        document = {"model": digest, "predictions": rows, "skipped": skipped_view(found)}
        print_json(document | score_view(targets, score) | {"version": number})
        return
    heads, cells = ["sample", field_of(targets)], [found.names, for_people(targets, answers)]
    if novelty:
        heads, cells = [*heads, "novelty"], [*cells, [f"{value:.4g}" for value in far]]
    print_table(heads, zip(*cells, strict=True))
    if score is not None:
        typer.echo(f"{measured(targets)}: {score_words(targets, score)}")


def _answers(model: Store, samples: Any, by: str | None, novelty: bool) -> tuple[Any, list[float], str]:
    """Return the predictions, how new each sample is if that is asked, and the digest of what predicts."""
    if by is None and not novelty:
        return model.predict(samples), [], model.version().digest()
    from neverseen.backbones.reading import to_predict

    encoder = model.description.configuration.encoder
    means, read = model.means(by or "lda"), to_predict(model.backbone, encoder, samples)
    far = means.novelty(read).tolist() if novelty else []
    if by is None:
        return model.version().predict(read.quantised), far, model.version().digest()
    return means.predict(read), far, means.digest()


def status(folder: options.Folder, as_json: options.Json = False) -> None:
    """Show the state of a store: its samples, its classes and its published version.

    Example: `neverseen status shop`
    """
    with opened(folder, write=False) as model:
        found: dict[str, Any] = model.status()
        found["public_key"] = model.description.public_key
    classes = by_class(found["samples_by_class"])
    if as_json:
        print_json(found | {"samples_by_class": classes})
        return
    sealed = "no" if not found["sealed"] else "yes" if found["published"] else "nothing to seal"
    told: dict[str, Any] = found | {"published": found["published"] or "none", "sealed": sealed}
    told["targets"] = kind_words(found["targets"])
    print_facts({HEADINGS.get(name, name): value for name, value in told.items() if name != "samples_by_class"})
    if classes:
        head = "label" if found["targets"]["kind"] == "label-sets" else "class"
        print_table((head, "samples"), class_rows(found["samples_by_class"]))


def history(folder: options.Folder, as_json: options.Json = False) -> None:
    """List the certificates of a store, oldest first.

    Example: `neverseen history shop`
    """
    with opened(folder, write=False) as model:
        entries = [about(entry) or {} for entry in model.certificates()]
    if as_json:
        print_json(entries)
        return
    print_table(HEADS, [[*(entry[name] for name in HEADS[:-1]), entry["model"][:16]] for entry in entries])


def certificate(
    folder: options.Folder,
    number: Annotated[int | None, typer.Argument(help="Number of the certificate.", show_default="the newest")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the certificate to this file, ready to hand out.", show_default=False)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show a certificate. --json prints the exact bytes of its file, which can be verified.

    Example: `neverseen certificate shop 1 --output first.json`
    """
    if output is not None:
        require_outside(folder, output, "--output")
    with opened(folder, write=False) as model:
        require_published(model)
        found = model.certificate(model.published_number if number is None else number)
    if output is not None:
        if output.exists():
            raise FileExistsError(f"{output} already exists: choose another name")
        replace_file(output, [found.to_json()])
        output.chmod(0o644)  # public
        OUTCOME.note(f"wrote {output}")
    if as_json:
        typer.echo(found.to_json(), nl=False)
        return
    print_facts(
        found.summary()
        | {
            "configuration": found.configuration,
            "sums before": found.before.statistics,
            "sums": found.after.statistics,
            "model before": found.before.model,
            "model": found.after.model,
            "error bound": found.error_bound,
            "previous": found.previous,
            "digest": found.digest(),
            "key": found.key,
            "signature": found.signature,
        }
    )
    for entry in found.commitments:
        typer.echo(f"commitment {entry}")
