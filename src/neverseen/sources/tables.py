"""Samples from tables: CSV, JSON lines, Parquet and NumPy archives, with texts or features. All of it is untrusted.

Errors name the file, the line or row, and the column.
"""

from __future__ import annotations

import csv
import json
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from neverseen.errors import FileRejectedError, InputError, LabelError
from neverseen.labels import has_surrogates, normalise, text
from neverseen.proof.receipts import TEXT_LIMIT

ROW_LIMIT = 10_000_000
COLUMN_LIMIT = 2**20
BYTE_LIMIT = 2**36
"""Bytes of a decompressed file."""
_BATCH = 4096  # rows of a Parquet file that are read at a time
LINE_LIMIT = 2**24
"""Letters of a line, and of a cell of a CSV, which may span several lines."""
_GREATEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Columns:
    """The columns of labels, ids, owners and texts in a source; None for the usual names."""

    labels: str | None = None
    ids: str | None = None
    owners: str | None = None
    label: str | None = None
    """One label for all."""
    texts: str | None = None
    told_apart: bool = True
    """Whether ids and owners matter. For predictions they do not."""
    labelled: bool = True
    """Whether labels are needed. If not, they are not read: samples to predict may have none."""

    def read(self, special: Mapping[str, str]) -> dict[str, str]:
        """Return the columns to read; an id is also the name of a sample."""
        unread = (("labels", self.labelled), ("owners", self.told_apart))
        return {what: name for what, name in special.items() if (what, False) not in unread}


@dataclass(frozen=True)
class Takes:
    """The kind of samples that a store takes, for checks and messages."""

    kind: str
    """``"features"``, ``"images"`` or ``"texts"``."""
    n_features: int
    store: str
    backbone: str

    def __str__(self) -> str:
        what = f"rows of {self.n_features} features" if self.kind == "features" else self.kind
        return f"{self.store} takes {what} (backbone {self.backbone})"


@dataclass
class Samples:
    """The samples of a source.

    Attributes
    ----------
    samples : list or ndarray
    labels, ids, owners : list or None
        None if the source has none.
    names : list of str
        The name of each sample, for messages.
    places : list of str
        The place of each in the source.
    skipped : list of (str, str)
        Samples left out, and why.
    """

    samples: Any
    labels: list[Any] | None
    ids: list[Any] | None
    owners: list[Any] | None
    names: list[str]
    places: list[str]
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.samples)

    def only(self, rows: Sequence[int]) -> Samples:
        """Return some of them."""

        def chosen(values: Any) -> Any:
            return None if values is None else [values[row] for row in rows]

        samples = self.samples[list(rows)] if isinstance(self.samples, np.ndarray) else chosen(self.samples)
        lists = (chosen(self.labels), chosen(self.ids), chosen(self.owners))
        return Samples(samples, *lists, chosen(self.names), chosen(self.places), self.skipped)


def read_table(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    """Return the samples of a table.

    Parameters
    ----------
    source : Path
    columns : Columns
    takes : Takes or None
        What the store takes. None: texts if there is a column of texts, otherwise features.
    """
    reader = {".csv": _csv, ".jsonl": _json_lines, ".ndjson": _json_lines, ".npz": _npz}
    return reader.get(source.suffix.lower(), _parquet)(source, columns, takes)


ENDINGS = {".csv", ".jsonl", ".ndjson", ".npz", ".parquet", ".pq"}


class _Heads:
    """The columns of a table: which are labels, ids, owners and texts, and which are features."""

    def __init__(
        self,
        source: Path,
        heads: Sequence[str],
        columns: Columns,
        takes: Takes | None,
        lines: Mapping[str, int] | None = None,
    ) -> None:
        if len(set(heads)) != len(heads):
            raise InputError(f"{source} has two columns of the same name, or no header line")
        if len(heads) > COLUMN_LIMIT:
            raise InputError(f"{source} has {len(heads):,} columns; at most {COLUMN_LIMIT:,} are read")
        if takes is not None and takes.kind == "images":
            raise InputError(f"{source} is a table, and {takes}: give a folder of images, or one image")
        self.special = _special(source, heads, columns, ("label", "id", "owner", "text"), lines)
        kind = takes.kind if takes is not None else "texts" if "texts" in self.special else "features"
        if kind == "features" and columns.texts is None:
            self.special.pop("texts", None)
        self.has_texts = kind == "texts"
        self.features = [name for name in heads if name not in self.special.values()]
        if self.has_texts and "texts" not in self.special:
            raise InputError(
                f"{source} has no column 'text', and {takes}: name the column with --texts; it has {_listed(heads)}"
            )
        if not self.has_texts and columns.texts is not None:
            raise InputError(f"--texts names a column of texts, and {takes}: leave it out")
        if not self.has_texts and not self.features:
            raise InputError(f"{source} has no columns of features")
        if self.has_texts:
            self.features = []

    def require_width(self, source: Path, takes: Takes | None) -> None:
        if takes is not None and not self.has_texts and len(self.features) != takes.n_features:
            count = len(self.features)
            raise InputError(
                f"{source} has {count} {'column' if count == 1 else 'columns'} of features "
                f"({_listed(self.features)}), and {takes}"
            )


def _csv(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    csv.field_size_limit(LINE_LIMIT)  # of all readers in this process: Python's own limit is 131,072
    with source.open("r", encoding="utf-8-sig", newline="") as file:
        try:
            rows = csv.reader(lines_of(source, file), strict=True)
            names = next(rows, [])
            if not names:
                raise InputError(f"there are no samples in {source}: its first line has no column names")
            heads = _Heads(source, names, columns, takes)
            places = {what: names.index(name) for what, name in columns.read(heads.special).items()}
            positions = [names.index(name) for name in heads.features]
            lists: dict[str, list[Any]] = {what: [] for what in places}
            numbers, lines = array("d"), array("Q")
            for row in rows:
                if not row:
                    continue
                where = f"{source}, line {rows.line_num}"
                if len(row) != len(names):
                    raise InputError(f"{where}: {len(row)} cells in {len(names)} columns")
                for what, place in places.items():
                    lists[what].append(_cell(what, row[place], where, names[place], columns))
                try:
                    numbers.extend(_number(row[place]) for place in positions)
                except ValueError:
                    by_name = sorted(positions, key=lambda place: names[place] != "text")
                    wrong = next(place for place in by_name if not _is_number(row[place]))
                    raise _no_feature(where, names[wrong], row[wrong], takes) from None
                lines.append(rows.line_num)
                if len(lines) > ROW_LIMIT:
                    raise InputError(f"{source} has more than {ROW_LIMIT:,} rows: use fewer at a time")
        except UnicodeDecodeError:
            raise InputError(f"{source} is not text in UTF-8") from None
        except csv.Error as error:
            raise InputError(
                f"{source}, line {rows.line_num}: this is not CSV, or a cell has more than {LINE_LIMIT:,} letters "
                f"({error})"
            ) from None
    all_lines = [f"line {line}" for line in lines]
    if heads.has_texts:
        return _samples(lists["texts"], lists, all_lines)
    if lines:
        heads.require_width(source, takes)
    features = np.frombuffer(numbers, np.float64).reshape(len(lines), len(heads.features))
    return _features_of(source, features, lists, heads.features, all_lines)


def _json_lines(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    """Read one JSON object a line: ``text``, or ``features`` with a list of numbers; ``label``, ``id``, ``owner``.

    All lines must have the same fields. Only the owner is optional.
    """
    entries: dict[int, dict[str, Any]] = {}  # by line
    heads: dict[str, int] = {}  # the first line of each
    with source.open("r", encoding="utf-8-sig", newline="\n") as file:
        try:
            for number, line in enumerate(lines_of(source, file), 1):
                if not line.strip():
                    continue
                entry = _json_object(line, f"{source}, line {number}")
                if "receipt" in entry and not entries:
                    raise InputError(
                        f"{source} is a file of receipts, not of samples: neverseen forget takes it with --receipts"
                    )
                entries[number] = entry
                heads = dict.fromkeys(entry, number) | heads
                if len(entries) > ROW_LIMIT:
                    raise InputError(f"{source} has more than {ROW_LIMIT:,} rows: use fewer at a time")
        except UnicodeDecodeError:
            raise InputError(f"{source} is not text in UTF-8") from None
    if not entries:
        raise InputError(f"there are no samples in {source}")
    found = _Heads(source, sorted(heads, key=lambda name: heads[name]), columns, takes, heads)
    read = columns.read(found.special)
    lists: dict[str, list[Any]] = {what: [] for what in read}
    rows: list[Any] = []
    for number, entry in entries.items():
        where = f"{source}, line {number}"
        for what, name in read.items():
            lists[what].append(_cell(what, entry.get(name), where, name, columns))
        if not found.has_texts:
            rows.append(_json_features(entry, where, takes, rows))
            unknown = next((name for name in entry if name not in ("features", *found.special.values())), None)
            if unknown is not None:
                raise InputError(
                    f"{where}: the field {unknown!r} is unknown. Beside 'features', a line has 'label', 'id' and "
                    "'owner'. If these have other names, give them with --labels, --ids and --owners; otherwise leave "
                    "it out"
                )
    lines = [f"line {number}" for number in entries]
    if found.has_texts:
        return _samples(lists["texts"], lists, lines)
    return _features_of(source, np.array(rows, np.float64), lists, None, lines)


def _json_object(line: str, where: str) -> dict[str, Any]:
    def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry = dict(pairs)
        if len(entry) != len(pairs):
            raise InputError(f"{where} repeats a name in one object: {_listed([name for name, _ in pairs])}")
        return entry

    try:
        entry = json.loads(line, object_pairs_hook=named_once)
    except InputError:
        raise
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise InputError(f'{where} is not a JSON object such as {{"text": ..., "label": ...}}')
    return entry


def _json_features(entry: dict[str, Any], where: str, takes: Takes | None, before: list[Any]) -> list[float]:
    values = entry.get("features")
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        told = "" if takes is None else f", and {takes}"
        raise InputError(f"{where} has no 'features', a list of numbers{told}; it has {_listed(list(entry))}")
    wanted = takes.n_features if takes is not None else len(before[0]) if before else len(values)
    if len(values) != wanted:
        raise InputError(f"{where} has {len(values)} features; {wanted} are needed")
    try:
        return [float(value) for value in values]
    except OverflowError:
        raise InputError(f"{where}: one of its features is beyond float32: drop or rescale it") from None


def _parquet(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    from neverseen.backbones.packages import imported

    parquet = imported("pyarrow.parquet", "reading .parquet", "pip install pyarrow")
    arrow = imported("pyarrow", "reading .parquet", "pip install pyarrow")
    try:
        with parquet.ParquetFile(source) as file:
            schema, about = file.schema_arrow, file.metadata
            heads = _Heads(source, list(schema.names), columns, takes)
            whole_rows = _require_numbers(source, schema, heads, takes, arrow.types)
            size = sum(about.row_group(group).total_byte_size for group in range(file.num_row_groups))
            cells = about.num_rows * len(heads.features)
            if max(size, 8 * cells) > BYTE_LIMIT or about.num_rows > ROW_LIMIT or about.num_columns > COLUMN_LIMIT:
                raise _too_much(source)
            read = columns.read(heads.special)
            batches = list(_batches(source, file, [*read.values(), *heads.features], arrow))
            table = arrow.Table.from_batches(batches) if batches else schema.empty_table()
    except InputError:
        raise
    except (arrow.ArrowException, OSError) as error:
        raise FileRejectedError(f"{source} is not a readable Parquet file: {error}") from error
    lists = {
        what: [
            _cell(what, value, f"{source}, row {row}", name, columns)
            for row, value in enumerate(table.column(name).to_pylist(), 1)
        ]
        for what, name in read.items()
    }
    where = [f"row {row}" for row in range(1, table.num_rows + 1)]
    if heads.has_texts:
        return _samples(lists["texts"], lists, where)
    if whole_rows:
        if not table.num_rows:
            raise InputError(f"there are no samples in {source}")
        try:
            features = np.array(table.column(heads.features[0]).to_pylist(), np.float64)
        except (TypeError, ValueError):
            features = np.empty(0)
        if features.ndim != 2 or not features.shape[1]:
            raise InputError(
                f"{source}: the cells of the column {heads.features[0]!r} are empty, differ in length, or are not "
                "lists of numbers: each must list all features of its row"
            )
        if takes is not None and features.shape[1] != takes.n_features:
            raise InputError(f"{source} has rows of {features.shape[1]} features, and {takes}")
        return _features_of(source, features, lists, None, where)
    features = np.empty((table.num_rows, len(heads.features)))
    for position, name in enumerate(heads.features):
        column = table.column(name)
        if column.null_count:
            row = 1 + column.is_null().to_pylist().index(True)
            raise _empty(f"{source}, row {row}", name)
        features[:, position] = column.to_numpy()
    return _features_of(source, features, lists, heads.features, where)


def _require_numbers(source: Path, schema: Any, heads: _Heads, takes: Takes | None, types: Any) -> bool:
    """Raise unless columns of features are numbers, and as many as are taken; before anything of them is read.

    Returns whether there is one column of them that holds whole rows.
    """
    kinds = {name: schema.field(name).type for name in heads.features}
    if len(kinds) == 1 and any(types.is_list(kind) or types.is_fixed_size_list(kind) for kind in kinds.values()):
        return True
    for name, kind in kinds.items():
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise _no_feature(str(source), name, str(kind), takes)
    heads.require_width(source, takes)
    return False


def _batches(source: Path, file: Any, names: list[str], arrow: Any) -> Iterator[Any]:
    """Yield columns of a Parquet file, some rows at a time, until they come to too much.

    A value that is repeated is there once, so the file does not say how much there is to read.
    """
    size = 0
    for batch in file.iter_batches(_BATCH, columns=names):
        whole = [
            column.dictionary_decode() if isinstance(column, arrow.DictionaryArray) else column
            for column in batch.columns
        ]
        size += sum(column.nbytes for column in whole)
        if size > BYTE_LIMIT:
            raise _too_much(source)
        yield arrow.RecordBatch.from_arrays(whole, names=batch.schema.names)


def _too_much(source: Path) -> InputError:
    return InputError(f"{source} holds too much to be read at once: split it")


def _npz(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    try:
        with zipfile.ZipFile(source) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > BYTE_LIMIT:
            raise InputError(f"{source} unpacks to {size:,} bytes; at most {BYTE_LIMIT:,} are read")
        with np.load(source, allow_pickle=False) as arrays:
            if len(set(arrays.files)) != len(arrays.files):
                raise InputError(f"{source} has two arrays of the same name: {_listed(arrays.files)}")
            given = {name: arrays[name] for name in arrays.files}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, KeyError, OverflowError, RuntimeError) as error:
        raise FileRejectedError(f"{source} is not an .npz file of plain arrays: {error}") from error
    wanted = columns.texts or "X"
    if wanted not in given:
        raise InputError(f"{source} has no array {wanted} of samples; it has {_listed(sorted(given)) or 'none'}")
    if not given[wanted].ndim:
        raise InputError(f"{source}: {wanted} is a single value, not an array of samples")
    samples, lists = given.pop(wanted), {}
    for what, name in columns.read(_special(source, sorted(given), columns, ("y", "ids", "owners"))).items():
        if given[name].shape != (len(samples),):
            raise InputError(f"{source}: {name} has shape {given[name].shape}, not one entry for each row of {wanted}")
        lists[what] = [
            _cell(what, value, f"{source}, row {row}", name, columns)
            for row, value in enumerate(given[name].tolist(), 1)
        ]
    _require_array(source, wanted, samples, takes)
    where = [f"row {row}" for row in range(1, len(samples) + 1)]
    if samples.dtype.kind == "U":
        rows = zip(samples.tolist(), where, strict=True)
        lists["texts"] = [_cell("texts", words, f"{source}, {row}", wanted, columns) for words, row in rows]
        return _samples(lists["texts"], lists, where)
    if samples.ndim == 2 and takes is not None and takes.kind == "features":
        return _features_of(source, samples, lists, None, where)
    return _samples(samples, lists, where)


def _require_array(source: Path, name: str, samples: np.ndarray, takes: Takes | None) -> None:
    """Raise unless an array may hold samples of the store's kind."""
    if takes is None:
        return
    shape, kind = samples.shape, samples.dtype.kind
    numbers = kind in "biuf" and samples.dtype.itemsize <= 8
    fits = {
        "features": samples.ndim == 2 and numbers and shape[-1] == takes.n_features,
        "images": numbers and (samples.ndim == 4 or (samples.ndim == 3 and shape[2] not in (3, 4))),
        "texts": samples.ndim == 1 and kind == "U",
    }
    if not fits[takes.kind]:
        hint = ": an array of them has the shape (images, height, width, 3)" if takes.kind == "images" else ""
        raise InputError(f"{source}: {name} has shape {shape} and dtype {samples.dtype}, and {takes}{hint}")


def _special(
    source: Path,
    heads: Sequence[str],
    columns: Columns,
    usual: tuple[str, ...],
    lines: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return the columns of labels, ids, owners and texts; `lines` has the first line of each, in a file of lines."""
    found = {}
    asked = {"labels": columns.labels, "ids": columns.ids, "owners": columns.owners, "texts": columns.texts}
    for (what, given), name in zip(asked.items(), usual, strict=False):
        if given is not None and given not in heads:
            raise InputError(f"{source} has no {given!r} for --{what}; it has {_listed(heads)}")
        if given is not None or name in heads:
            found[what] = given or name
    for what, name in (("ids", usual[1]), ("owners", usual[2])):
        if what in found or not columns.told_apart:
            continue
        for head in heads:  # otherwise one wrong letter would leave samples without an owner
            if head not in found.values() and head.strip().casefold().removesuffix("s") == what.removesuffix("s"):
                where = f"{source}, line {lines[head]}" if lines else str(source)
                raise InputError(
                    f"{where}: {head!r} is not read: {what} are read from {name!r}. Rename it, or name it with --{what}"
                )
    return found


def _cell(what: str, value: Any, where: str, name: str, columns: Columns) -> Any:
    """Return a label, an id, an owner or a text, if it can be one."""
    if what == "ids" and not columns.told_apart:
        try:
            return _cell(what, value, where, name, Columns())
        except (InputError, LabelError):
            return None  # its row is its name
    blank = value is None or (isinstance(value, str) and not value.strip())
    if blank and what == "owners":
        return None  # no owner
    if blank:
        raise _empty(where, name)
    if what == "texts" and not isinstance(value, str):
        raise InputError(f"{where}: the cell of the column {name!r} is not a text")
    if not isinstance(value, str | bytes | int | float):
        raise InputError(f"{where}: the cell of the column {name!r} is not a text or a number")
    if what == "texts" and has_surrogates(str(value)):
        raise InputError(f"{where}: the cell of the column {name!r} has surrogate code points, which are no characters")
    if what != "texts":
        try:
            size = len(text(normalise(value)))
        except LabelError as error:
            raise LabelError(f"{where}: the cell of the column {name!r} cannot be used: {error}") from None
        if size > TEXT_LIMIT:
            raise InputError(
                f"{where}: the cell of the column {name!r} has {size:,} bytes in canonical form; at most "
                f"{TEXT_LIMIT:,} fit"
            )
    return value


def _empty(where: str, name: str) -> InputError:
    return InputError(f"{where}: the cell of the column {name!r} is empty: fill it in, or leave the row out")


def _features_of(
    source: Path, features: np.ndarray, lists: dict[str, list[Any]], heads: list[str] | None, where: list[str]
) -> Samples:
    """Return rows of features, all of them finite in float32."""
    with np.errstate(invalid="ignore"):
        good = np.abs(features) <= _GREATEST
    if not good.all():
        row, column = (int(place) for place in np.argwhere(~good)[0])
        name = repr(heads[column]) if heads is not None else str(column + 1)
        raise InputError(
            f"{source}, {where[row]}: the cell of the column {name} is NaN, infinite or beyond float32: drop or "
            "rescale it"
        )
    return _samples(features, lists, where)


def _samples(samples: Any, lists: dict[str, list[Any]], where: list[str]) -> Samples:
    ids = lists.get("ids")
    named = [None] * len(samples) if ids is None else ids
    names = [f"row {row}" if name is None else str(name) for row, name in enumerate(named, 1)]
    return Samples(samples, lists.get("labels"), ids, lists.get("owners"), names, where)


def lines_of(source: Path, file: TextIO) -> Iterator[str]:
    """Yield the lines of a file; raise for a line above the limit."""
    number = 0
    while line := file.readline(LINE_LIMIT):
        number += 1
        if len(line) >= LINE_LIMIT:
            raise InputError(f"{source}, line {number} is longer than {LINE_LIMIT:,} letters")
        yield line


def _number(cell: str) -> float:
    """Return the number in a cell. Python would also accept digits of other scripts, and `_` between digits."""
    if "_" in cell or not cell.isascii():
        raise ValueError(cell)
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def _no_feature(where: str, name: str, cell: str, takes: Takes | None) -> InputError:
    if not cell.strip():
        return _empty(where, name)
    if name == "text" and takes is not None:
        return InputError(
            f"{where}: the column 'text' holds texts, and {takes}. A store for texts is made with neverseen init "
            "FOLDER --backbone minilm"
        )
    return InputError(
        f"{where}: the column {name!r} does not hold numbers, so it is not a feature. If it holds labels, ids or "
        "owners, name it with --labels, --ids or --owners; otherwise leave it out"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + " ..." * (len(names) > 8)
