"""Samples from JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import InputError
from neverseen.sources import tables
from neverseen.sources.tables import Columns, Samples, Takes


def read_json_lines(source: Path, columns: Columns, takes: Takes | None) -> Samples:
    """Return the samples of a file with one JSON object a line.

    Each has ``text``, or ``features`` with a list of numbers; and ``label``, ``id``, ``owner``. All lines must have the
    same fields, except for ``owner``: a line without it has no owner.
    """
    entries: dict[int, dict[str, Any]] = {}  # by line
    heads: dict[str, int] = {}  # the first line of each
    with source.open("r", encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(tables.lines_of(source, file), 1):
            if not line.strip():
                continue
            entry = _json_object(line, f"{source}, line {number}")
            if "receipt" in entry and not entries:
                raise InputError(
                    f"{source} is a file of receipts, not of samples: forget takes it as receipts",
                    arguments=("receipts",),
                )
            entries[number] = entry
            for name in entry:
                heads.setdefault(name, number)
            tables.require_few(source, len(entries))
            tables.require_narrow(source, len(heads))
    if not entries:
        raise InputError(f"there are no samples in {source}")
    found = tables.Heads(source, list(heads), columns, takes, heads)
    read = columns.read(found.special)
    lists: dict[str, list[Any]] = {what: [] for what in read}
    rows: list[Any] = []
    for number, entry in entries.items():
        where = f"{source}, line {number}"
        for what, name in read.items():
            lists[what].append(tables.cell(what, entry.get(name), where, name, columns))
        if not found.has_texts:
            rows.append(_json_features(entry, where, takes, rows))
            unknown = next((name for name in entry if name not in ("features", *found.special.values())), None)
            if unknown is not None:
                raise InputError(
                    f"{where}: the field {unknown!r} is unknown. Beside 'features', a line has 'label', 'id' and "
                    "'owner'. If these have other names, give their names; otherwise leave it out",
                    arguments=("labels", "ids", "owners"),
                )
    lines = [f"line {number}" for number in entries]
    if found.has_texts:
        return tables.samples_of(lists["texts"], lists, lines)
    return tables.features_of(source, np.array(rows, np.float64), lists, None, lines)


def _json_object(line: str, where: str) -> dict[str, Any]:
    def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entry = dict(pairs)
        if len(entry) != len(pairs):
            raise InputError(f"{where} repeats a name in one object: {tables.listed([name for name, _ in pairs])}")
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
        raise InputError(f"{where} has no 'features', a list of numbers{told}; it has {tables.listed(list(entry))}")
    wanted = takes.n_features if takes is not None else len(before[0]) if before else len(values)
    if len(values) != wanted:
        raise InputError(f"{where} has {len(values)} features; {wanted} are needed")
    try:
        return [float(value) for value in values]
    except OverflowError:
        raise InputError(f"{where}: one of its features is beyond float32: drop or rescale it") from None
