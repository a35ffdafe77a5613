"""Samples from files: folders of images, tables, lines of text. All input is untrusted."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from neverseen.errors import InputError
from neverseen.labels import has_surrogates
from neverseen.sources.tables import ROW_LIMIT, Columns, Samples, Takes, lines_of
from neverseen.sources.written_labels import Form

if TYPE_CHECKING:
    from neverseen.backbones.images import ImageFiles

__all__ = ["Columns", "Samples", "Takes", "read_source"]

TABLES = {
    ".csv": "csv_files:read_csv",
    ".jsonl": "json_lines:read_json_lines",
    ".ndjson": "json_lines:read_json_lines",
    ".npz": "array_files:read_arrays",
    ".parquet": "parquet_files:read_parquet",
    ".pq": "parquet_files:read_parquet",
}
"""Module and function of the readers, which are imported on first use: they need NumPy."""
LISTS = {".jsonl", ".ndjson", ".parquet", ".pq"}
"""Endings of sources that write the labels of a sample, and numbers, as a list."""
IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TEXTS = {".txt", ".tsv", ".text"}
_SHOWN = 3  # bad images that an error names


def read_source(
    source: Path, columns: Columns, *, labelled: bool = True, takes: Takes | None = None, skip_bad: bool = False
) -> Samples:
    """Return the samples of a source.

    Parameters
    ----------
    labelled : bool
        Whether labels are needed. If not, a whole line is a text, and an image may lie in any folder.
    takes : Takes, optional
        The kind of samples that the store takes. Others are refused.
    skip_bad : bool
        Leave out unusable images. They are found when images are decoded, which is when their features are taken:
        `Samples.usable` is what is left then.
    """
    ending = source.suffix.lower()
    if columns.label is not None and columns.labels is not None:
        raise InputError("one label is given for all samples, and a column of labels too: give one of the two")
    if takes is not None and takes.targets is not None:
        columns = replace(columns, form=Form(takes.targets, ending not in LISTS))
    if columns.weights is not None and not (columns.form is not None and columns.form.weighs):
        raise InputError(
            "a column of weights is given, and the store does not learn weighted classes: leave it out",
            arguments=("weights",),
        )
    names = ("labels", "ids", "owners", "weights", "texts")
    given = [name for name in names if getattr(columns, name) is not None]
    if given and (source.is_dir() or ending not in TABLES) and source.exists():
        raise InputError(
            f"{source} has no columns, so it has none of {given[0]}: use a table (.csv, .jsonl, .parquet, .npz)",
            arguments=(given[0],),
        )
    if source.is_dir():
        found = _images(source, columns, labelled, takes, skip_bad)
    elif not source.exists():
        raise FileNotFoundError(f"there is no {source}")
    elif not source.is_file():  # reading a pipe might wait for ever
        raise InputError(f"{source} is a pipe or a device: give a file")
    elif ending in TABLES:
        found = _reader(ending)(source, replace(columns, labelled=labelled), takes)
    elif ending in TEXTS:
        found = _texts(source, columns, labelled, takes)
    elif ending in IMAGES:
        _require_kind(source, "an image", "images", takes)
        found = Samples([source], None, None, None, [source.name], [source.name])
        found.samples = _image_files(source, found, skip_bad=False)
    else:
        raise InputError(
            f"{source}: the ending of its name is unknown; use a folder of images, or a file that ends in .csv, "
            ".jsonl, .parquet, .npz, .txt or .tsv"
        )
    if not len(found):
        others = "".join(f". {name}: {why}" for name, why in found.skipped[:1])
        raise InputError(f"there are no samples in {source}{others}")
    is_set = columns.form is not None and columns.form.targets.kind == "label-sets"
    if columns.label is not None and not columns.label.strip() and not is_set:
        raise InputError("the label is empty: give the samples one", arguments=("label",))
    if columns.label is not None:
        found.labels = [columns.label] * len(found)
    if labelled and found.labels is None:
        raise InputError(
            f"{source} has no labels: name their column, or give one label for all samples",
            arguments=("labels", "label"),
        )
    if labelled and columns.form is not None and found.labels is not None:
        found.labels, found.weights = columns.form.read(source, found, found.labels), None
    return found


def _reader(ending: str) -> Callable[[Path, Columns, Takes | None], Samples]:
    module, _, name = TABLES[ending].partition(":")
    read: Callable[[Path, Columns, Takes | None], Samples] = getattr(import_module(f"neverseen.sources.{module}"), name)
    return read


def _require_kind(source: Path, what: str, kind: str, takes: Takes | None) -> None:
    if takes is not None and takes.kind != kind:
        raise InputError(f"{source} is {what}, and {takes}")


def _images(source: Path, columns: Columns, labelled: bool, takes: Takes | None, skip_bad: bool) -> Samples:
    _require_kind(source, "a folder, for images", "images", takes)
    classes = labelled and columns.label is None
    paths, skipped = _listed(source)
    names = [path.relative_to(source).as_posix() for path in paths]
    labels = None
    if classes:
        loose = next((name for name in names if "/" not in name), None)
        if loose is not None:
            raise InputError(
                f"the image {source / loose} is in no subfolder, so it has no class. Put it in a subfolder named after "
                "its class, or give one label for all images",
                arguments=("label",),
            )
        labels = [name.partition("/")[0] for name in names]
        odd = next(filter(has_surrogates, labels), None)
        if odd is not None:
            raise InputError(f"the folder {source / odd} is not named in UTF-8, so it names no class. Rename it")
    found = Samples(paths, labels, list(names), None, names, names)
    found.samples = _image_files(source, found, skip_bad)
    found.skipped += skipped
    return found


def _listed(source: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """Return the images in a folder, and one name of each kind of other file, with the reason to skip it."""
    paths: list[Path] = []
    others: dict[str, list[str]] = {}  # names by ending; those that are hidden under "."
    count = 0
    for place, folders, files in os.walk(source, onerror=_raise):
        count += len(folders) + len(files)
        if count > ROW_LIMIT:
            raise InputError(f"{source} has more than {ROW_LIMIT:,} files: use fewer at a time")
        link = next((path for name in folders if (path := Path(place, name)).is_symlink()), None)
        if link is not None:  # it may lead in a circle, or out of the folder
            raise InputError(
                f"{link} is a link to a folder, which is not followed: put the folder itself there, or give it as a "
                "source of its own"
            )
        for path in (Path(place, name) for name in files):
            ending = "." if path.name.startswith(".") else path.suffix.lower()
            if ending in IMAGES:
                paths.append(path)
            else:
                others.setdefault(ending, []).append(path.relative_to(source).as_posix())
    endings = sorted(IMAGES)
    unknown = f"its name does not end in {', '.join(endings[:-1])} or {endings[-1]}"
    skipped = []
    for ending, names in others.items():
        why = "it is hidden: its name begins with a dot" if ending == "." else unknown
        more = f" (and {len(names) - 1:,} more like it)" if len(names) > 1 else ""
        skipped.append((min(names), why + more))
    return sorted(paths, key=lambda path: path.relative_to(source).as_posix()), sorted(skipped)


def _raise(error: OSError) -> None:
    raise error


def _image_files(source: Path, found: Samples, skip_bad: bool) -> ImageFiles:
    """Return image files to decode; the error for bad ones names them."""
    from neverseen.backbones.images import ImageFiles

    def refusal(bad: dict[int, str]) -> InputError:
        listed = [f"{found.names[row]}: {why}" for row, why in bad.items()]
        shown = "; ".join(listed[:_SHOWN]) + "; ..." * (len(listed) > _SHOWN)
        words = f"{len(listed)} of {len(found)} images in {source} cannot be used: {shown}"
        if len(listed) == len(found):
            return InputError(words)
        return InputError(f"{words}. Leave them out", arguments=("skip_bad",))

    return ImageFiles(found.samples, refusal, skip_bad)


def _texts(source: Path, columns: Columns, labelled: bool, takes: Takes | None) -> Samples:
    _require_kind(source, "a file of texts", "texts", takes)
    split = labelled and columns.label is None
    samples, labels, lines = [], [], []
    with source.open("r", encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(lines_of(source, file), 1):
            words = line.rstrip("\r\n")
            if not words:
                continue
            label, tab, rest = words.partition("\t")
            if split and not tab:
                raise InputError(
                    f"{source}, line {number}: no TAB between label and text. Put one in, or give one label for all",
                    arguments=("label",),
                )
            may_be_empty = columns.form is not None and columns.form.targets.kind == "label-sets"
            if split and not ((label.strip() or may_be_empty) and rest.strip()):
                missing = "text after" if label.strip() else "label before"
                raise InputError(f"{source}, line {number}: there is no {missing} the TAB")
            samples.append(rest if split else words)
            labels.append(label)
            lines.append(f"line {number}")
    names = [f"text {number}" for number in range(1, len(samples) + 1)]
    return Samples(samples, labels if split else None, None, None, names, lines)
