"""Samples from CSV."""

from __future__ import annotations

import csv
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import InputError
from neverseen.sources import tables
from neverseen.sources.tables import Columns, Samples, Takes
from neverseen.sources.written_labels import number


def read_csv(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    """Return the samples of a CSV file, whose first line has the names of its columns."""
    csv.field_size_limit(tables.LINE_LIMIT)  # of all readers in this process: Python's own limit is 131,072
    with source.open("r", encoding="utf-8-sig", newline="") as file:
        try:
            rows = csv.reader(tables.lines_of(source, file), strict=True)
            names = next(rows, [])
            if not names:
                raise InputError(f"there are no samples in {source}: its first line has no column names")
            heads = tables.Heads(source, names, columns, takes)
            place_of = {name: place for place, name in enumerate(names)}
            places = {what: place_of[name] for what, name in columns.read(heads.special).items()}
            positions = [place_of[name] for name in heads.features]
            lists: dict[str, list[Any]] = {what: [] for what in places}
            numbers, lines = array("d"), array("Q")
            for row in rows:
                if not row:
                    continue
                where = f"{source}, line {rows.line_num}"
                if len(row) != len(names):
                    raise InputError(f"{where}: {len(row)} cells in {len(names)} columns")
                for what, place in places.items():
                    lists[what].append(tables.cell(what, row[place], where, names[place], columns))
                try:
                    numbers.extend(number(row[place]) for place in positions)
                except ValueError:
                    by_name = sorted(positions, key=lambda place: names[place] != "text")
                    wrong = next(place for place in by_name if not _is_number(row[place]))
                    raise tables.not_a_feature(where, names[wrong], row[wrong], takes) from None
                lines.append(rows.line_num)
                tables.require_few(source, len(lines))
        except csv.Error as error:
            raise InputError(
                f"{source}, line {rows.line_num}: this is not CSV, or a cell has more than {tables.LINE_LIMIT:,} "
                f"letters ({error})"
            ) from None
    all_lines = [f"line {line}" for line in lines]
    if heads.has_texts:
        return tables.samples_of(lists["texts"], lists, all_lines)
    if lines:
        heads.require_width(source, takes)
    features = np.frombuffer(numbers, np.float64).reshape(len(lines), len(heads.features))
    return tables.features_of(source, features, lists, heads.features, all_lines)


def _is_number(cell: str) -> bool:
    try:
        number(cell)
    except ValueError:
        return False
    return True
