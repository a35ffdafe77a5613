"""Samples and receipts from files: every kind of file gives the same samples, and errors say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neverseen.errors import InputError
from neverseen.sources import tables
from neverseen.sources.receipts import read_receipts
from neverseen.sources.samples import Columns, read_source

TEXTS = ["It works.", "It is broken", "Lovely, with a comma", 'and "quotes"\nand lines']


LABELS = ["praise", "blame", "praise", "blame"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def write_texts() -> list[str]:
    """The same texts in every kind of file."""
    import csv

    with Path("letters.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "note", "label", "text", "owner"])
        for place, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)):
            writer.writerow([f"n{place}", "not used", label, text, "ada" if place else ""])
    with Path("letters.jsonl").open("w", encoding="utf-8") as file:
        for place, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True)):
            entry = {"id": f"n{place}", "label": label, "text": text, "owner": "ada" if place else None}
            file.write(json.dumps(entry) + "\n\n")
    names = ["letters.csv", "letters.jsonl"]
    ids, owners = [f"n{place}" for place in range(4)], [None, "ada", "ada", "ada"]
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"id": ids, "label": LABELS, "text": TEXTS, "owner": owners}), "letters.parquet")
    return [*names, "letters.parquet"]


def test_texts_of_all_kinds_are_the_same_samples() -> None:
    for name in write_texts():
        found = read_source(Path(name), Columns())
        assert (found.samples, found.labels) == (TEXTS, LABELS), name
        assert found.ids == ["n0", "n1", "n2", "n3"]
        assert found.owners == [None, "ada", "ada", "ada"], name


def test_a_long_text_in_a_csv_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own limit is 131,072 letters; other tables have none so low."""
    words = "long text " * 20_000
    Path("long.csv").write_text(f'label,text\nx,"{words}"\n')
    assert read_source(Path("long.csv"), Columns()).samples == [words]
    monkeypatch.setattr(tables, "LINE_LIMIT", 1000)
    lines = "\n".join(["long text"] * 200)
    Path("long.csv").write_text(f'label,text\nx,short\nx,"{lines}"\n')
    with pytest.raises(InputError, match=r"long\.csv, line [0-9]+: .* a cell has more than 1,000 letters"):
        read_source(Path("long.csv"), Columns())


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "there are no samples in rows.parquet"),
        ([[], []], "the cells of the column 'row' are empty, differ in length, or are not lists of numbers"),
        ([None, None], "the cells of the column 'row' are empty"),
        ([[1.0] * 8, [1.0]], "the cells of the column 'row' are empty, differ in length"),
        ([[[1.0] * 4] * 2], "the cells of the column 'row' are .* not lists of numbers"),
    ],
    ids=["no rows", "empty lists", "no lists", "other lengths", "lists of lists"],
)
def test_what_is_wrong_with_a_parquet_column_of_rows_is_told(rows: list[Any], words: str) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    each = arrow.list_(arrow.float64())
    column = arrow.array(rows, arrow.list_(each) if rows and rows[0] and isinstance(rows[0][0], list) else each)
    parquet.write_table(arrow.table({"label": ["x"] * len(rows), "row": column}), "rows.parquet")
    with pytest.raises(InputError, match=words):
        read_source(Path("rows.parquet"), Columns(), takes=tables.Takes("features", 8, "shop", "features"))


def test_a_receipt_of_any_format_may_be_a_file() -> None:
    for magic in (b"NSR1", b"NSR2"):
        Path("one").write_bytes(magic + bytes(40))
        assert read_receipts([Path("one")]) == [magic + bytes(40)]


def test_read_source_names_what_it_needs() -> None:
    Path("a.csv").write_text("text\nHello\n", "utf-8")
    with pytest.raises(InputError, match="has no labels"):
        read_source(Path("a.csv"), Columns())
    assert read_source(Path("a.csv"), Columns(), labelled=False).samples == ["Hello"]


@pytest.mark.parametrize(
    ("name", "content", "columns", "words", "arguments"),
    [
        ("a.csv", "text\nHello\n", Columns(), "has no labels: name their column, or give one", ("labels", "label")),
        ("a.csv", "a,label\n1,x\n", Columns(label=" "), "the label is empty: give the samples one", ("label",)),
        ("a.csv", "a,b\n1,x\n", Columns(), "the column 'b' does not hold numbers", ("labels", "ids", "owners")),
        ("a.csv", "a,label\n1,x\n", Columns(owners="who"), "has no 'who', given for owners; it has a", ("owners",)),
        ("a.csv", "a,label,Owner\n1,x,y\n", Columns(), "'Owner' is not read: owners are read", ("owners",)),
        ("a.jsonl", '{"features": [1], "b": 2}\n', Columns(), "the field 'b' is unknown", ("labels", "ids", "owners")),
        ("a.jsonl", '{"receipt": "x"}\n', Columns(), "is a file of receipts, not of samples", ("receipts",)),
        ("a.txt", "no tab\n", Columns(), "no TAB between label and text", ("label",)),
        ("a.txt", "x\ty\n", Columns(ids="id"), "has no columns, so it has none of ids", ("ids",)),
    ],
)  # fmt: skip
def test_errors_carry_the_arguments_that_help(
    name: str, content: str, columns: Columns, words: str, arguments: tuple[str, ...]
) -> None:
    """The command line adds the options of these names; the message has none."""
    Path(name).write_text(content, "utf-8")
    with pytest.raises(InputError, match=words) as caught:
        read_source(Path(name), columns)
    assert caught.value.arguments == arguments
    assert "--" not in str(caught.value)
