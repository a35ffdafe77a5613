"""Tables and figures from result files: ``python -m benchmarks.paper report``."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from benchmarks.paper.experiments import settings_digest
from benchmarks.paper.figures import draw, plots
from benchmarks.paper.results import DATA, NAMES, Result, Results, cell, key_of, paper_figures, read_runs
from benchmarks.paper.settings import names, read
from benchmarks.paper.tables import Table, all_tables


class NoResultsError(FileNotFoundError):
    """There is nothing to report."""


def write_reports(folder: Path) -> list[Path]:
    """Write a report of each ``SETTING.jsonl`` in a folder to the folder ``SETTING`` beside it; return the files."""
    results = {path.with_suffix(""): Results(read_runs(path)) for path in sorted(folder.glob("*.jsonl"))}
    if not results:
        raise NoResultsError(f"{folder} holds no results: python -m benchmarks.paper run SETTING --out {folder}")
    return [file for out, runs in results.items() for file in write_report(runs, out)]


def write_report(results: Results, out: Path) -> list[Path]:
    """Write every table (all in one file: Markdown, LaTeX, CSV) and figure (SVG) to a folder; return the files."""
    out.mkdir(parents=True, exist_ok=True)
    figures = plots(results)
    if find_spec("matplotlib") is None:
        print("no figures: they need matplotlib (pip install matplotlib)")
        figures = {}
    written = texts(results, list(figures))
    for name, text in written.items():
        (out / name).write_text(text)
    for name, plot in figures.items():
        draw(plot, out / f"{name}.svg")
    return [out / name for name in (*written, *(f"{name}.svg" for name in figures))]


def texts(results: Results, figures: list[str]) -> dict[str, str]:
    """Return the files of a report, but for its figures, by name."""
    tables = all_tables(results)
    return {
        "report.md": _markdown(results, tables, figures),
        "tables.tex": "\n".join(table.latex() for table in tables),
        "tables.csv": "".join(table.csv() for table in tables),
    }


def _markdown(results: Results, tables: list[Table], figures: list[str]) -> str:
    settings = ", ".join(sorted({run["setting"] for run in results.runs}))
    parts = [
        "# The paper's evaluation: results",
        f"Written by `python -m benchmarks.paper report` from {len(results.runs)} runs of the setting `{settings}`. "
        "What they mean, and how they were made: [paper.md](../../../paper.md).",
        _provenance(results.runs),
    ]
    if short := _in_short(results):
        parts.append("## In short\n\n" + "\n".join(f"- {line}" for line in short))
    failed = [run for run in results.runs if run["failed"]]
    if failed:
        listed = "\n".join(f"- {key_of(run)}: {run['failed']}" for run in failed)
        parts.append(f"## Runs that failed\n\n{listed}")
    if stale := _of_other_settings(results.runs):
        listed = "\n".join(f"- {name}: {'; '.join(methods)}" for name, methods in stale.items())
        parts.append(
            "## Runs of earlier settings\n\nMade with other settings or methods than there are now, to be run again. "
            f"The notes below need not hold for them.\n\n{listed}"
        )
    parts += ["## Tables", *(table.markdown().rstrip() for table in tables)]
    if figures:
        parts += ["## Figures", *(f"![{name}]({name}.svg)" for name in figures)]
    return "\n\n".join(parts) + "\n"


def _in_short(results: Results) -> list[str]:
    """Say what became of neverseen: digests, accuracy, time."""
    good = [run for run in results.runs if not run["failed"]]
    digests = [run["digest"]["equal"] for run in good if run["digest"]]
    lines = []
    if digests:
        lines.append(
            f"The digest was that of the retrained model in {sum(digests)} of {len(digests)} runs of neverseen."
        )
    figures = paper_figures()
    for dataset in results.data:
        most = max(results.counts("table1", dataset), default=None)  # the model is the same for every K
        runs = [run for run in results.all("table1", dataset, "neverseen", most) if not run["failed"]]
        paper = figures["accuracy"].get(dataset)
        if runs:
            ours = [cell(runs, lambda run, part=part: run["accuracy"][part]) for part in ("retained", "test")]  # type: ignore[misc]
            theirs = f"; the paper's ACU about {paper['retained']:.0f} and {paper['test']:.1f}" if paper else ""
            lines.append(f"{DATA.get(dataset, dataset)}: neverseen {ours[0]} retained, {ours[1]} test{theirs}.")
        for method, what in (("neverseen", "weights after each"), ("neverseen_queued", "weights after the last")):
            runs = [
                run for run in good if (run["experiment"], run["method"], run["dataset"]) == ("time", method, dataset)
            ]
            times = {run["requests"]: run["times"]["update"] for run in runs}
            if times:
                told = ", ".join(f"{count} requests {seconds:.2f} s" for count, seconds in sorted(times.items()))
                ratio = f"; 50 requests take {times[50] / times[25]:.2f} times 25" if {25, 50} <= set(times) else ""
                lines.append(f"{DATA.get(dataset, dataset)}, update time of neverseen, {what}: {told}{ratio}.")
        if dataset == "cifar100":
            acu = figures["times"]["acu"]
            lines.append(f"The paper's ACU: {acu['25']} s for 25 requests and {acu['50']} s for 50 (1.43 times).")
    return lines


def _of_other_settings(runs: list[Result]) -> dict[str, list[str]]:
    """Return, by experiment, the methods with results of other settings than the setting of that name has now."""
    found: dict[str, set[str]] = {}
    for run in runs:
        if run["setting"] in names():
            digest = settings_digest(key_of(run), read(run["setting"]))
            if run.get("settings_digest") != digest:
                found.setdefault(run["experiment"], set()).add(NAMES.get(run["method"]) or run["method"])
    return {experiment: sorted(methods) for experiment, methods in found.items()}


def _provenance(runs: list[Result]) -> str:
    good = [run for run in runs if not run["failed"]]
    places = Counter((run["hardware"], f"torch {run['torch']}", f"commit {str(run['commit'])[:12]}") for run in good)
    return "\n".join(f"- {count} runs: {', '.join(place)}" for place, count in sorted(places.items()))
