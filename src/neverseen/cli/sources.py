"""Samples from files: image folders, tables of features, texts. All of it is untrusted."""

from __future__ import annotations

import csv
import zipfile
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import FileRejectedError, InputError

IMAGES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TEXTS = {".txt", ".tsv", ".text"}
ROW_LIMIT = 10_000_000
COLUMN_LIMIT = 2**20
BYTE_LIMIT = 2**36
"""Of what a compressed file unpacks to."""
LINE_LIMIT = 2**24


@dataclass(frozen=True)
class Columns:
    """Where in a source labels, ids and owners are; None for the usual names."""

    labels: str | None = None
    ids: str | None = None
    owners: str | None = None
    label: str | None = None
    """One label for all."""


@dataclass
class Samples:
    """What a source holds.

    Attributes
    ----------
    samples : list or ndarray
    labels, ids, owners : list or None
        None where the source has none.
    names : list of str
        What to call each sample when speaking of it.
    """

    samples: Any
    labels: list[Any] | None
    ids: list[Any] | None
    owners: list[Any] | None
    names: list[str]

    def __len__(self) -> int:
        return len(self.samples)


def read_source(source: Path, columns: Columns, *, labelled: bool = True) -> Samples:
    """Return the samples of a source.

    Parameters
    ----------
    source : Path
    columns : Columns
    labelled : bool
        Whether labels are needed. Without them, a line of text is a text, and an image may lie anywhere.
    """
    ending = source.suffix.lower()
    if source.is_dir():
        found = _images(source, columns, labelled)
    elif not source.exists():
        raise FileNotFoundError(f"there is no {source}")
    elif ending == ".csv":
        found = _csv(source, columns)
    elif ending in {".parquet", ".pq"}:
        found = _parquet(source, columns)
    elif ending == ".npz":
        found = _npz(source, columns)
    elif ending in TEXTS:
        found = _texts(source, columns, labelled)
    elif ending in IMAGES:
        found = Samples([source], None, None, None, [source.name])
    else:
        raise InputError(
            f"{source}: what it holds is not known by its name; use a folder of images, or a file that ends in .csv, "
            ".parquet, .npz, .txt or .tsv"
        )
    if not len(found):
        raise InputError(f"there are no samples in {source}")
    if columns.label is not None:
        found.labels = [columns.label] * len(found)
    if labelled and found.labels is None:
        raise InputError(f"{source} has no labels: name their column with --labels, or give one for all with --label")
    return found


def _images(source: Path, columns: Columns, labelled: bool) -> Samples:
    classes = labelled and columns.label is None
    paths = sorted(_image_paths(source), key=lambda path: path.relative_to(source).as_posix())
    names = [path.relative_to(source).as_posix() for path in paths]
    labels = None
    if classes:
        loose = next((name for name in names if "/" not in name), None)
        if loose is not None:
            raise InputError(
                f"the image {source / loose} is in no subfolder: its subfolder would be its class. Give one label for "
                "all images with --label"
            )
        labels = [name.partition("/")[0] for name in names]
    return Samples(paths, labels, list(names), None, names)


def _image_paths(source: Path) -> Iterator[Path]:
    for count, path in enumerate(source.rglob("*")):
        if count > ROW_LIMIT:
            raise InputError(f"{source} has more than {ROW_LIMIT:,} files: work on less at a time")
        if path.suffix.lower() in IMAGES and path.is_file() and not path.name.startswith("."):
            yield path


def _texts(source: Path, columns: Columns, labelled: bool) -> Samples:
    split = labelled and columns.label is None
    samples, labels = [], []
    with source.open("r", encoding="utf-8", newline="\n") as file:
        try:
            number = 0
            while line := file.readline(LINE_LIMIT):
                number += 1
                if len(line) >= LINE_LIMIT:
                    raise InputError(f"{source}, line {number} is longer than {LINE_LIMIT:,} letters")
                words = line.rstrip("\r\n")
                if not words:
                    continue
                label, tab, rest = words.partition("\t")
                if split and not tab:
                    raise InputError(
                        f"{source}, line {number}: no TAB between label and text. Give one label for all with --label"
                    )
                samples.append(rest if split else words)
                labels.append(label)
        except UnicodeDecodeError:
            raise InputError(f"{source} is not text in UTF-8") from None
    names = [f"text {number}" for number in range(1, len(samples) + 1)]
    return Samples(samples, labels if split else None, None, None, names)


def _csv(source: Path, columns: Columns) -> Samples:
    with source.open("r", encoding="utf-8-sig", newline="") as file:
        try:
            rows = csv.reader(file, strict=True)
            heads = next(rows, [])
            special, others = _split(source, heads, columns)
            places = {what: heads.index(name) for what, name in special.items()}
            positions = [heads.index(name) for name in others]
            lists: dict[str, list[Any]] = {what: [] for what in special}
            numbers, count = array("d"), 0
            for row in rows:
                if not row:
                    continue
                where = f"{source}, line {rows.line_num}"
                if len(row) != len(heads):
                    raise InputError(f"{where}: {len(row)} cells under {len(heads)} heads")
                for what, place in places.items():
                    lists[what].append(row[place])
                try:
                    numbers.extend(float(row[place]) for place in positions)
                except ValueError:
                    name = next(heads[place] for place in positions if not _is_number(row[place]))
                    raise _no_feature(where, name) from None
                count += 1
                if count > ROW_LIMIT:
                    raise InputError(f"{source} has more than {ROW_LIMIT:,} rows: work on less at a time")
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{source} is not a CSV file in UTF-8: {error}") from None
    features = np.frombuffer(numbers, np.float64).reshape(count, len(others))
    return _samples(source, features, lists)


def _parquet(source: Path, columns: Columns) -> Samples:
    from neverseen.backbones.packages import imported

    parquet = imported("pyarrow.parquet", "reading .parquet", "pip install pyarrow")
    arrow = imported("pyarrow", "reading .parquet", "pip install pyarrow")
    try:
        with parquet.ParquetFile(source) as file:
            size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.num_row_groups))
            if size > BYTE_LIMIT or file.metadata.num_rows > ROW_LIMIT or file.metadata.num_columns > COLUMN_LIMIT:
                raise InputError(f"{source} holds too much to be read at once: split it")
            table = file.read()
    except (arrow.ArrowException, OSError) as error:
        raise FileRejectedError(f"{source} is not a Parquet file that can be read: {error}") from error
    special, others = _split(source, list(table.column_names), columns)
    lists = {what: table.column(name).to_pylist() for what, name in special.items()}
    types = arrow.types
    first = table.column(others[0])
    if len(others) == 1 and (types.is_list(first.type) or types.is_fixed_size_list(first.type)):
        try:  # one column that holds whole rows
            features = np.array(first.to_pylist(), np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{source}: rows of features are not of one length, or not of numbers") from None
        return _samples(source, features, lists)
    features = np.empty((table.num_rows, len(others)))
    for position, name in enumerate(others):
        column = table.column(name)
        if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)):
            raise _no_feature(str(source), name)
        features[:, position] = column.to_numpy()  # what is missing becomes NaN, and is refused as that
    return _samples(source, features, lists)


def _split(source: Path, heads: list[str], columns: Columns) -> tuple[dict[str, str], list[str]]:
    """Return which columns are labels, ids and owners, and the names of the others."""
    if len(set(heads)) != len(heads):
        raise InputError(f"{source} has two columns of the same name, or no line of heads")
    if len(heads) > COLUMN_LIMIT:
        raise InputError(f"{source} has {len(heads):,} columns; at most {COLUMN_LIMIT:,} are read")
    special = _special(source, heads, columns, ("label", "id", "owner"))
    others = [name for name in heads if name not in special.values()]
    if not others:
        raise InputError(f"{source} has no columns of features")
    return special, others


def _special(source: Path, heads: list[str], columns: Columns, usual: tuple[str, str, str]) -> dict[str, str]:
    found = {}
    asked = {"labels": columns.labels, "ids": columns.ids, "owners": columns.owners}
    for (what, given), name in zip(asked.items(), usual, strict=True):
        if given is not None and given not in heads:
            shown = ", ".join(heads[:8]) + " ..." * (len(heads) > 8)
            raise InputError(f"{source} has no {given!r} for --{what}; it has {shown}")
        if given is not None or name in heads:
            found[what] = given or name
    return found


def _samples(source: Path, features: np.ndarray, lists: dict[str, list[Any]]) -> Samples:
    for what in ("labels", "ids"):
        row = next((row for row, value in enumerate(lists.get(what, ()), 1) if value is None or value == ""), None)
        if row is not None:
            raise InputError(f"{source}: row {row} has no {what[:-1]}: give it one, or leave the row out")
    ids = lists.get("ids")
    names = [f"row {row}" for row in range(1, len(features) + 1)] if ids is None else [str(name) for name in ids]
    return Samples(features, lists.get("labels"), ids, lists.get("owners"), names)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _no_feature(where: str, name: str) -> InputError:
    return InputError(
        f"{where}: the column {name!r} is not numbers, and so no feature. If it has labels, ids or owners, say so with "
        "--labels, --ids or --owners; else leave it out"
    )


def _npz(source: Path, columns: Columns) -> Samples:
    try:
        with zipfile.ZipFile(source) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > BYTE_LIMIT:
            raise InputError(f"{source} unpacks to {size:,} bytes; at most {BYTE_LIMIT:,} are read")
        with np.load(source, allow_pickle=False) as arrays:
            given = {name: arrays[name] for name in arrays.files}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, KeyError, OverflowError, RuntimeError) as error:
        raise FileRejectedError(f"{source} is not an .npz file of plain arrays: {error}") from error
    if "X" not in given or not given["X"].ndim:
        raise InputError(f"{source} has no array X of features; it has {', '.join(sorted(given)[:8]) or 'none'}")
    samples, lists = given.pop("X"), {}
    for what, name in _special(source, sorted(given), columns, ("y", "ids", "owners")).items():
        if given[name].shape != (len(samples),):
            raise InputError(f"{source}: {name} has shape {given[name].shape}, not one entry for each row of X")
        lists[what] = given[name].tolist()
    return _samples(source, samples, lists)
