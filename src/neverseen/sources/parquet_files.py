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


def read_parquet(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    """Return the samples of a Parquet file: a column for each feature, or one column of whole rows."""
    from neverseen.backbones.packages import imported

    parquet = imported("pyarrow.parquet", "reading .parquet", "pip install pyarrow")
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
            batches = list(_batches(source, file, [*read.values(), *heads.features], arrow))
            table = arrow.Table.from_batches(batches) if batches else schema.empty_table()
    except InputError:
        raise
    except (arrow.ArrowException, OSError) as error:
        raise FileRejectedError(f"{source} is not a readable Parquet file: {error}") from error
    lists = {
        what: tables.cells(what, table.column(name).to_pylist(), source, name, columns) for what, name in read.items()
    }
    where = [f"row {row}" for row in range(1, table.num_rows + 1)]
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
        if size > tables.BYTE_LIMIT:
            raise _too_much(source)
        yield arrow.RecordBatch.from_arrays(whole, names=batch.schema.names)


def _too_much(source: Path) -> InputError:
    return InputError(f"{source} holds too much to be read at once: split it")
