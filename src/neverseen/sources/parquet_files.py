"""Samples from Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import FileRejectedError, InputError
from neverseen.sources import tables
from neverseen.sources.tables import Columns, Samples, Takes

_BATCH = 4096  # rows that are read at a time
_WHOLE_ROWS = 64  # or so many, of lists: each may be long


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
            cells = about.num_rows * len(heads.features)
            if (
                max(size, 8 * cells) > tables.BYTE_LIMIT
                or about.num_rows > tables.ROW_LIMIT
                or about.num_columns > tables.COLUMN_LIMIT
            ):
                raise _too_much(source)
            read = columns.read(heads.special)
        beside: dict[str, list[Any]] = {name: [] for name in read.values()}
        # A text that is repeated is in the file once, and so it is in memory.
        with parquet.ParquetFile(source, read_dictionary=list(beside)) as file:
            rows = _WHOLE_ROWS if whole_rows else _BATCH
            batches = []
            for batch in _batches(source, file, rows, beside, heads.features, arrow):
                if whole_rows:
                    _require_short(source, batch.column(0), takes, arrow)
                batches.append(batch)
            table = arrow.Table.from_batches(batches) if batches else schema.empty_table()
    except InputError:
        raise
    except (arrow.ArrowException, OSError) as error:
        raise FileRejectedError(f"{source} is not a readable Parquet file: {error}") from error
    lists = {what: tables.cells(what, beside[name], source, name, columns) for what, name in read.items()}
    count = len(lists["texts"]) if heads.has_texts else table.num_rows
    where = [f"row {row}" for row in range(1, count + 1)]
    if heads.has_texts:
        return tables.samples_of(lists["texts"], lists, where)
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
        return tables.features_of(source, features, lists, None, where)
    features = np.empty((table.num_rows, len(heads.features)))
    for position, name in enumerate(heads.features):
        column = table.column(name)
        if column.null_count:
            row = 1 + column.is_null().to_pylist().index(True)
            raise tables.empty_cell(f"{source}, row {row}", name)
        features[:, position] = column.to_numpy()
    return tables.features_of(source, features, lists, heads.features, where)


def _require_numbers(source: Path, schema: Any, heads: tables.Heads, takes: Takes | None, types: Any) -> bool:
    """Raise unless columns of features are numbers, and as many as are taken; before anything of them is read.

    Returns whether there is one column of them that holds whole rows.
    """
    kinds = {name: schema.field(name).type for name in heads.features}
    if len(kinds) == 1 and any(types.is_list(kind) or types.is_fixed_size_list(kind) for kind in kinds.values()):
        return True
    for name, kind in kinds.items():
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise tables.not_a_feature(str(source), name, str(kind), takes)
    heads.require_width(source, takes)
    return False


def _batches(
    source: Path, file: Any, rows: int, beside: dict[str, list[Any]], features: list[str], arrow: Any
) -> Iterator[Any]:
    """Yield the features of a Parquet file, some rows at a time, until they come to too much; add what is `beside`.

    A value that is repeated is there once, so the file does not say how much there is to read.
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


def _require_short(source: Path, lists: Any, takes: Takes | None, arrow: Any) -> None:
    """Raise if a list has more features than are taken: it need not be long in the file."""
    longest = arrow.compute.max(arrow.compute.list_value_length(lists)).as_py() or 0
    if longest > (tables.COLUMN_LIMIT if takes is None else takes.n_features):
        most = f"; at most {tables.COLUMN_LIMIT:,} are read" if takes is None else f", and {takes}"
        raise InputError(f"{source} has rows of {longest} features{most}")


def _size(source: Path, column: Any, start: int, name: str, arrow: Any) -> int:
    """Return the bytes that a column comes to once it is spelled out; raise for a cell above the limit."""
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
    """Return the cells of a column; those that are equal are one object, if the column is of categories."""
    if not isinstance(column, arrow.DictionaryArray):
        return list(column.to_pylist())
    places = column.indices.to_pylist()
    used = sorted({place for place in places if place is not None})
    value = dict(zip(used, column.dictionary.take(arrow.array(used, arrow.int64())).to_pylist(), strict=True))
    return [None if place is None else value[place] for place in places]


def _too_much(source: Path) -> InputError:
    return InputError(f"{source} holds too much to be read at once: split it")
