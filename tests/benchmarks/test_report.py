"""The documentation shows what the results say: figures and tables are those that ``benchmarks.report`` makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import figure, report
from benchmarks.paper import figures
from benchmarks.paper.report import texts
from benchmarks.paper.results import Results, read_runs

SETTINGS = sorted((report.RESULTS / "paper").glob("*.jsonl"))
AGAIN = "run python -m benchmarks.report"


def is_as_drawn(committed: Path, drawn: Path) -> bool:
    """Whether a figure is the one in the repository, as far as another version of matplotlib lets us know."""
    mpl = pytest.importorskip("matplotlib")
    text = committed.read_text()
    return f"Matplotlib v{mpl.__version__}," not in text or text == drawn.read_text()


@pytest.mark.parametrize("name", report.PAGES)
def test_tables_of_pages_are_those_of_the_results(name: str) -> None:
    page = (report.ROOT / name).read_text()
    assert report.MARK.search(page)
    assert report.filled(page) == page, AGAIN


def test_every_table_is_on_a_page() -> None:
    marked = [mark for name in report.PAGES for mark in report.MARK.findall((report.ROOT / name).read_text())]
    assert sorted(marked) == sorted(report.TABLES)


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_reports_are_those_of_the_results(path: Path, tmp_path: Path) -> None:
    results, folder = Results(read_runs(path)), path.with_suffix("")
    plots = figures.plots(results)
    for name, text in (written := texts(results, list(plots))).items():
        assert (folder / name).read_text() == text, AGAIN
    for name, plot in plots.items():
        assert figure.digest(plot) in (folder / f"{name}.svg").read_text(), AGAIN
    assert {file.name for file in folder.iterdir()} == {*written, *(f"{name}.svg" for name in plots)}
    first = next(iter(plots))
    figures.draw(plots[first], tmp_path / f"{first}.svg")
    assert is_as_drawn(folder / f"{first}.svg", tmp_path / f"{first}.svg"), AGAIN


@pytest.mark.skipif(not report.DEMO.exists(), reason="the demo's results are not recorded")
def test_the_demos_figure_is_that_of_its_results(tmp_path: Path) -> None:
    committed, results = report.ROOT / "docs" / "demo.svg", json.loads(report.DEMO.read_text())
    assert figure.digest(results) in committed.read_text(), AGAIN
    pytest.importorskip("matplotlib")
    figure.save(results, tmp_path / "demo.svg")
    assert is_as_drawn(committed, tmp_path / "demo.svg"), AGAIN


TABLE = """words
<!-- results: {} -->

| memory | d = 1024 | d = 2048 | d = 4096 |
|---|---|---|---|
| ours, of course | ? | | 3 |
{}
after"""


def test_cells_are_filled_and_words_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(report.TABLES, "two", lambda: iter([["1", "", "3"], ["4", "5", "6"]]))
    page = report.filled(TABLE.format("two", "| theirs | 7 | 7 | 7 |"))
    assert page.split("\n")[5:] == ["| ours, of course | 1 | | 3 |", "| theirs | 4 | 5 | 6 |", "after"]
    for name, rest in (("two", ""), ("two", "| a | 1 | 2 | 3 |\n| b | 1 | 2 | 3 |"), ("none", "")):
        with pytest.raises(report.PageError, match="needs 2 rows|more rows than|there are no results 'none'"):
            report.filled(TABLE.format(name, rest))
