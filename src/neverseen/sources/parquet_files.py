"""Samples from Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import FileRejectedError, InputError
from neverseen.proof.receipts import TEXT_LIMIT
from neverseen.sources import tables
from neverseen.sources.tables import Columns, Samples, Takes

_BATCH = 4096  # rows that are read at a time
_WHOLE_ROWS = 64  # or so many, of lists: each may be long
_ROW_BYTES = 256  # of memory, for the label, the id and the place of a row
_ENTRY_BYTES = 64  # of memory, for a label or a number in a list
_FREE_BYTES = 2**30  # of memory, whatever the file has
_TIMES = 1000  # as many bytes of memory as the file has, or fewer


def read_parquet(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    """Return the samples of a Parquet file: a column for each feature, or one column of whole rows."""
    from neverseen.backbones.packages import imported

    parquet = imported("pyarrow.parquet", "reading .parquet", "pip install pyarrow")
    imported("pyarrow.compute", "reading .parquet", "pip install pyarrow")
    arrow = imported("pyarrow", "reading .parquet", "pip install pyarrow")
    try:
        with parquet.ParquetFile(source) as file:
            schema, about = file.schema_arrow, file.metadata
            heads = tables.Heads(source, list(schema.names), columns, takes)
            whole_rows = _require_numbers(source, schema, heads, takes, arrow.types)
            size = sum(about.row_group(group).total_byte_size for group in range(file.num_row_groups))
            if size > tables.BYTE_LIMIT or about.num_rows > tables.ROW_LIMIT or about.num_columns > tables.COLUMN_LIMIT:
                raise _too_much(source)
            _require_room(source, about.num_rows, len(heads.features))
            read = _readable(source, schema, columns.read(heads.special), columns, arrow.types)
            some_lists = any(
                _is_list(schema.field(name).type, arrow.types) for name in [*read.values(), *heads.features]
            )
        beside: dict[str, list[Any]] = {name: [] for name in read.values()}
        # A repeated text is in the file once, and also in memory.
        plain = [name for name in beside if not _is_list(schema.field(name).type, arrow.types)]
        with parquet.ParquetFile(source, read_dictionary=plain) as file:
            features, row = np.empty((0, 0)), 0
            for batch in _batches(source, file, _WHOLE_ROWS if some_lists else _BATCH, beside, heads.features, arrow):
                if not batch.num_rows:
                    continue
                if whole_rows:
                    part = _rows_of_lists(source, batch.column(0), heads.features[0], takes, arrow)
                else:
                    part = _rows_of_columns(source, batch, row)
                if not row:
                    _require_room(source, about.num_rows, part.shape[1])
                    features = np.empty((about.num_rows, part.shape[1]))
                if part.shape[1] != features.shape[1]:
                    raise _unequal(source, heads.features[0])
                if row + len(part) > about.num_rows:
                    raise FileRejectedError(f"{source} is not a readable Parquet file: it has more rows than it says")
                features[row : row + len(part)] = part
                row += len(part)
    except (InputError, FileRejectedError):
        raise
    except (arrow.ArrowException, OSError) as error:
        raise FileRejectedError(f"{source} is not a readable Parquet file: {error}") from error
    lists = {what: tables.cells(what, beside[name], source, name, columns) for what, name in read.items()}
    count = len(lists["texts"]) if heads.has_texts else row
    where = [f"row {row}" for row in range(1, count + 1)]
    if heads.has_texts:
        return tables.samples_of(lists["texts"], lists, where)
    if not row:
        raise InputError(f"there are no samples in {source}")
    return tables.features_of(source, features[:row], lists, None if whole_rows else heads.features, where)


def _require_numbers(source: Path, schema: Any, heads: tables.Heads, takes: Takes | None, types: Any) -> bool:
    """Raise unless the columns of features are numbers, and of the right count, before any of them is read.

    Returns whether a single column holds whole rows.
    """

    def is_number(kind: Any) -> bool:
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))

    kinds = {name: schema.field(name).type for name in heads.features}
    if len(kinds) == 1 and any(_is_list(kind, types) for kind in kinds.values()):
        ((name, kind),) = kinds.items()
        if not is_number(kind.value_type):
            raise _unequal(source, name)
        return True
    for name, kind in kinds.items():
        if not is_number(kind):
            raise tables.not_a_feature(str(source), name, str(kind), takes)
    heads.require_width(source, takes)
    return False


def _readable(source: Path, schema: Any, read: dict[str, str], columns: Columns, types: Any) -> dict[str, str]:
    """Return the other columns to read; raise if one holds neither texts nor numbers."""

    def is_plain(kind: Any) -> bool:
        if types.is_dictionary(kind):
            return is_plain(kind.value_type)
        texts = types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)
        raw = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
        return bool(texts or raw or types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))

    kept = {}
    for what, name in read.items():
        kind = schema.field(name).type
        listed = columns.form is not None and columns.form.takes_raw(what) and _is_list(kind, types)
        if is_plain(kind.value_type if listed else kind):
            kept[what] = name
        elif what != "ids" or columns.told_apart:  # or the row is its name
            raise InputError(f"{source}: the column {name!r} holds {kind}, not texts or numbers")
    return kept


def _is_list(kind: Any, types: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _batches(
    source: Path, file: Any, rows: int, beside: dict[str, list[Any]], features: list[str], arrow: Any
) -> Iterator[Any]:
    """Yield the features of a Parquet file in batches of rows, and add the other columns to `beside`.

    Raises when there is too much. The file does not tell how much, because repeated values are stored once.
    """
    size, texts = 0, 0
    for batch in file.iter_batches(rows, columns=[*beside, *features]):
        for name, values in beside.items():
            column, start = batch.column(name), len(values)
            texts += _size(source, column, start, name, arrow)
            if texts > tables.TEXTS_LIMIT:
                raise _too_much(source)
            values.extend(_values(column, arrow))
        columns = [batch.column(name) for name in features]
        whole = [each.dictionary_decode() if isinstance(each, arrow.DictionaryArray) else each for each in columns]
        size += sum(column.nbytes for column in whole)
        if size > tables.BYTE_LIMIT:
            raise _too_much(source)
        if whole:
            yield arrow.RecordBatch.from_arrays(whole, names=features)


def _rows_of_columns(source: Path, batch: Any, start: int) -> np.ndarray:
    """Return the features in a batch, with one column for each feature; `start` rows came before."""
    part = np.empty((batch.num_rows, batch.num_columns))
    for position, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        if column.null_count:
            row = start + 1 + column.is_null().to_pylist().index(True)
            raise tables.empty_cell(f"{source}, row {row}", name)
        part[:, position] = column.to_numpy(zero_copy_only=False)
    return part


def _rows_of_lists(source: Path, lists: Any, name: str, takes: Takes | None, arrow: Any) -> np.ndarray:
    """Return the features in lists of numbers; raise unless each has the right length."""
    longest = arrow.compute.max(arrow.compute.list_value_length(lists)).as_py() or 0
    if longest > (tables.COLUMN_LIMIT if takes is None else takes.n_features):
        most = f"; at most {tables.COLUMN_LIMIT:,} are read" if takes is None else f", and {takes}"
        raise InputError(f"{source} has rows of {longest} features{most}")
    values = lists.flatten()
    if not longest or lists.null_count or values.null_count or len(values) != len(lists) * longest:
        raise _unequal(source, name)
    if takes is not None and longest != takes.n_features:
        raise InputError(f"{source} has rows of {longest} features, and {takes}")
    numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(lists), longest)


def _unequal(source: Path, name: str) -> InputError:
    return InputError(
        f"{source}: the cells of the column {name!r} are empty, differ in length, or are not lists of numbers: each "
        "must list all features of its row"
    )


def _require_room(source: Path, rows: int, features: int) -> None:
    """Raise if rows take too much memory, in total or compared with the file: repeated values are stored once."""
    size = rows * (_ROW_BYTES + 8 * features)
    if size > min(tables.BYTE_LIMIT, max(_FREE_BYTES, _TIMES * source.stat().st_size)):
        raise _too_much(source)


def _size(source: Path, column: Any, start: int, name: str, arrow: Any) -> int:
    """Return the bytes of a column with repeated values written out; raise for a cell above the limit."""
    if _is_list(column.type, arrow.types):
        longest = arrow.compute.max(arrow.compute.list_value_length(column)).as_py() or 0
        if longest > TEXT_LIMIT // 2:  # each label or number has a letter and a comma in canonical form
            raise InputError(f"{source}: a list in the column {name!r} has {longest:,} entries: it is too long")
        return int(column.nbytes) + _ENTRY_BYTES * len(column.flatten())
    values = column.dictionary if isinstance(column, arrow.DictionaryArray) else column
    if values.type not in (arrow.string(), arrow.large_string(), arrow.binary(), arrow.large_binary()):
        return 8 * len(column) if values is not column else int(column.nbytes)
    lengths = arrow.compute.binary_length(values)
    if values is not column:
        lengths = lengths.take(column.indices)
    sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False)
    if len(sizes) and sizes.max() > tables.LINE_LIMIT:
        row = start + 1 + int(sizes.argmax())
        raise InputError(
            f"{source}, row {row}: the cell of the column {name!r} is longer than {tables.LINE_LIMIT:,} bytes"
        )
    return int(sizes.sum(dtype=np.int64))


def _values(column: Any, arrow: Any) -> list[Any]:
    """Return the cells of a column. In a column of categories, equal cells are one object."""
    if not isinstance(column, arrow.DictionaryArray):
        return list(column.to_pylist())
    places = column.indices.to_pylist()
    used = sorted({place for place in places if place is not None})
    value = dict(zip(used, column.dictionary.take(arrow.array(used, arrow.int64())).to_pylist(), strict=True))
    return [None if place is None else value[place] for place in places]


def _too_much(source: Path) -> InputError:
    return InputError(f"{source} holds too much to be read at once: split it")
