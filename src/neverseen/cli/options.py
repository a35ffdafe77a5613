"""Shared arguments and options."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from neverseen.errors import ConfigurationError

Folder = Annotated[Path, typer.Argument(help="The store's folder.", show_default=False)]
Source = Annotated[
    Path,
    typer.Argument(
        help="Samples: a folder of images with one subfolder for each class; features or texts as .csv, .jsonl, "
        ".parquet or .npz; or a text file, with a label, a TAB and a text on each line.",
        show_default=False,
    ),
]
Keys = Annotated[
    Path | None, typer.Option(help="The key file, if it is not in the store's folder.", show_default=False)
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="Column (or array) of labels. If each sample has several numbers: one column of lists, or their columns "
        "with commas between.",
        show_default="label; y in .npz",
        metavar="COLUMN",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        help="Column (or array) of weights, if the store learns weighted classes.",
        show_default="weight; weights in .npz",
        metavar="COLUMN",
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        help="One label for all samples. Images may then lie anywhere in the folder, and lines are whole texts. "
        "Several labels or numbers: red|round.",
        show_default=False,
    ),
]
Ids = Annotated[
    str | None,
    typer.Option(help="Column (or array) of ids.", show_default="id; ids in .npz, if there", metavar="COLUMN"),
]
Owners = Annotated[
    str | None,
    typer.Option(help="Column (or array) of owners.", show_default="owner; owners in .npz, if there", metavar="COLUMN"),
]
Texts = Annotated[
    str | None,
    typer.Option(help="Column of texts, if the store takes them.", show_default="text; X in .npz", metavar="COLUMN"),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that cannot be used, and list them on stderr.")
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="The store's backbone, as given to init. Needed if the store has no recipe for it; also needed to forget, "
        "if it keeps features in a cache. `features`: samples are rows of its features.",
        metavar="BACKBONE",
        show_default="from the store's recipe",
    ),
]
Publish = Annotated[
    bool, typer.Option("--publish/--no-publish", help="Make the change visible to readers, with a certificate.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def hex_digits(word: str | None) -> str | None:
    """Return a digest or a key as it is compared; refuse any other word."""
    if word is None:
        return None
    found = word.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", found):
        raise typer.BadParameter("64 hex digits are needed")
    return found


def ridge_strength(word: Any) -> int | str:
    """Return the ridge strength that a word stands for, such as 65536, 1e4 or auto."""
    from neverseen.model.configuration import ridge_strength as checked

    value = word
    for number in (float, int):
        with suppress(ValueError):
            value = number(word)
    try:
        return checked(value)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


PublicKey = Annotated[
    str | None,
    typer.Option(
        help="The publisher's public key, 64 hex digits. Without it, any key is accepted.",
        metavar="HEX",
        callback=hex_digits,
    ),
]
Receipts = Annotated[
    list[Path] | None,
    typer.Option(
        "--receipt",
        "--receipts",
        help="A file of receipts that learn wrote or the console copied, or of a single receipt. Can be repeated.",
        show_default=False,
    ),
]
SourceOrReceipts = Annotated[
    Path | None, typer.Argument(help="The samples themselves, as for learn, instead of receipts.", show_default=False)
]
OnlyId = Annotated[list[str] | None, typer.Option("--id", help="Use only receipts with this id. Can be repeated.")]
OnlyOwner = Annotated[
    list[str] | None, typer.Option("--owner", help="Use only receipts of this owner. Can be repeated.")
]
ByContent = Annotated[
    bool,
    typer.Option(
        "--by-content", help="Find samples by their content and ignore the source's ids. Its owners still count."
    ),
]
Kind = Annotated[str | None, typer.Option(help="text or number, if an --id or --owner could be either.")]
