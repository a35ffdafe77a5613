"""The tables, from results, in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from typing import Any, NamedTuple

from benchmarks.paper.results import (
    DATA,
    FAILED,
    MISSING,
    NAMES,
    Result,
    Results,
    cell,
    digest_check,
    is_retrained,
    paper_figures,
    papers_cell,
)

GAPS = {  # column of the paper: heading, digits, how to read it from a result
    "parameters": ("Δ parameters", 2, lambda run: run["parameter_gap"]),
    "retained": ("Δ retained", 2, lambda run: run["gap"]["retained"]),
    "forgotten": ("Δ forgotten", 2, lambda run: run["gap"]["forgotten"]),
    "test": ("Δ test", 2, lambda run: run["gap"]["test"]),
    "mia": ("Δ MIA", 2, lambda run: run["mia"]["gap"]),
}
EXACT = "= retrained"
ANALYTIC = ("acu_float32", "acu_float64", "neverseen")


class Table(NamedTuple):
    """One table."""

    name: str
    title: str
    heading: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.heading, ["---"] * len(self.heading), *self.rows]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"### {self.title}\n\n{text}\n" + (f"\n{self.note}\n" if self.note else "")

    def latex(self) -> str:
        """Return the table as a LaTeX tabular."""
        lines = [" & ".join(_latex(word) for word in line) + r" \\" for line in (self.heading, *self.rows)]
        columns = "l" + "r" * (len(self.heading) - 1)
        body = "\n".join([lines[0], r"\midrule", *lines[1:]])
        return f"% {self.title}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"

    def csv(self) -> str:
        """Return the table as CSV, with its name before each row: all tables are in one file."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.name, *row] for row in (self.heading, *self.rows))
        return text.getvalue()


def all_tables(results: Results) -> list[Table]:
    """Return every table that there are results for."""
    tables: list[Table] = []
    for dataset in results.data:
        for name, title in (("table1", "own originals"), ("table2", "one analytic original, the head alone moves")):
            tables += [_gap_table(results, name, title, dataset, k) for k in results.counts(name, dataset)]
        accuracies = _accuracy_table(results, dataset)
        tables += [accuracies] if accuracies.rows else []
        times = _time_table(results, dataset)
        tables += [times] if times.rows else []
        for name, title in (
            ("dynamics", "more requests"),
            ("classes", "whole classes"),
            ("class_sums", "whole classes, from their sums alone"),
            ("alternating", "learning and forgetting in turn"),
            ("stress_few", "fewer samples left than codes"),
            ("stress_singles", "one sample a request"),
        ):
            tables += [_other_table(results, name, title, dataset, k) for k in results.counts(name, dataset)]
    return tables


def _gap_table(results: Results, experiment: str, title: str, dataset: str, requests: int) -> Table:
    """Distances from the retrained model, ours beside the paper's."""
    figures = paper_figures()
    heading = ["method", "reads retained"]
    for label, _, _ in GAPS.values():
        heading += [label, "paper"]
    heading += ["LiRA AUC", "found at 1 % false alarms, %", "digest"]
    rows = []
    methods = results.methods(experiment, dataset)
    if experiment == "table2":  # these start from features in both tables
        methods += [name for name in ANALYTIC if name not in methods and results.all("table1", dataset, name, requests)]
    for method in methods:
        source = "table1" if method in ANALYTIC else experiment
        runs = results.all(source, dataset, method, requests)
        exact = is_retrained(runs)
        row = [_name(experiment, method), _reads(runs)]
        for column, (_, digits, value) in GAPS.items():
            row.append(EXACT if exact else cell(runs, value, digits))
            row.append(papers_cell(figures, experiment, dataset, method, column, requests))
        lira = [run for run in runs if run["failed"] or run["mia"]["lira"] is not None]
        row += [
            cell(lira, lambda run: run["mia"]["lira"], 3),
            cell(lira, lambda run: 100 * run["mia"]["lira_tpr_at_1_percent"], 1),
            digest_check(runs),
        ]
        rows.append(row)
    note = (
        "Distances from the retrained model of the same family: L2 norm, percentage points, share of forgotten samples "
        "that the confidence attack calls members. Mean ± standard deviation over seeds. LiRA: how well a per-example "
        "attack tells the model from the retrained one by its answers on forgotten samples. The retrained model itself "
        "has an AUC of 0.5 and 1 % found; below 0.5 a model is more wrong about them than one that never saw them, "
        "which gives them away as well. For networks it is of one seed."
    )
    return Table(
        f"{experiment}-{dataset}-{requests}", f"{_data(dataset)}, K = {requests}: {title}", heading, rows, note
    )


def _accuracy_table(results: Results, dataset: str) -> Table:
    """Accuracies themselves, of all methods and of what they are measured against."""
    heading = ["experiment", "K", "method", "retained", "forgotten", "test", "retrained: retained", "forgotten", "test"]
    rows = []
    for experiment in ("table1", "table2"):
        for requests in results.counts(experiment, dataset):
            for method in results.methods(experiment, dataset):
                runs = results.all(experiment, dataset, method, requests)
                row = [experiment, str(requests), _name(experiment, method)]
                for kind in ("accuracy", "reference"):
                    row += [
                        cell(runs, lambda run, a=kind, b=part: run[a][b])  # type: ignore[misc]
                        for part in ("retained", "forgotten", "test")
                    ]
                rows.append(row)
    note = "Percent. Retrain answers all requests at once, so its figures are the same for every K."
    return Table(f"accuracy-{dataset}", f"{_data(dataset)}: accuracies", heading, rows, note)


def _time_table(results: Results, dataset: str) -> Table:
    """Cumulative times, of runs that were alone on the machine."""
    figures = paper_figures()["times"] if dataset == "cifar100" else {}
    heading = ["K", "method", "update, s", "× neverseen", "a request, s", "features, s", "features a request, s"]
    heading += ["paper, s", "peak memory, GiB"]
    alone = [
        run
        for run in results.runs
        if run["experiment"] == "time" and run["dataset"] == dataset and not run["failed"] and run["times"]["alone"]
    ]
    rows = []
    for requests in sorted({run["requests"] for run in alone if run["method"] != "retrain"}):
        ours = [r["times"]["update"] for r in alone if r["method"] == "neverseen" and r["requests"] == requests]
        for method in NAMES:
            wanted = 1 if method == "retrain" else requests
            runs = [r for r in alone if r["method"] == method and r["requests"] == wanted][:1]
            if not runs:
                continue
            run, times = runs[0], runs[0]["times"]
            factor = requests if method == "retrain" else 1  # it was done once, and has to be done for every request
            name = f"Retrain, {requests} × one" if method == "retrain" else NAMES[method]
            done = 1 if method == "retrain" else run["requests_done"]
            part = method != "retrain" and done < requests
            update = times["update"] * factor * (requests / done if part else 1)
            paper = figures.get("acu" if method.startswith("acu") else method, {}).get(str(requests))
            rows.append(
                [
                    str(requests),
                    name,
                    f"≈ {update:,.1f}, {done} timed" if part else f"{update:,.2f}",
                    f"{update / ours[0]:,.1f}" if ours and ours[0] else MISSING,
                    f"{update / requests:.3f}",
                    MISSING if times["features"] is None else f"{times['features']:.2f}",
                    MISSING if times["features"] is None else f"{times['features'] / requests:.3f}",
                    MISSING if paper is None else f"{paper:,.2f}",
                    f"{run['peak_memory'] / 2**30:.1f}",
                ]
            )
    note = "Runs alone on the machine, one seed. Update: from the request to the new model. Features are extra. "
    note += "≈: some requests, from the first to the last, were timed and stand for all; retraining is timed half-way. "
    if repeats := max((len(run["times"].get("updates") or ()) for run in alone), default=0):
        note += f"Analytic methods were timed {repeats} times: the median. "
    note += "Memory counts what is there already, such as the original and the images."
    return Table(f"times-{dataset}", f"{_data(dataset)}: cumulative time", heading, rows, note)


def _other_table(results: Results, experiment: str, title: str, dataset: str, requests: int) -> Table:
    """One row a method: accuracies, distances, digest, time."""
    heading = ["method", "requests done", "retained", "forgotten", "test", "Δ parameters", "Δ forgotten", "Δ test"]
    heading += ["digest", "update, s", "notes"]
    rows = []
    for method in results.methods(experiment, dataset):
        runs = [run for run in results.all(experiment, dataset, method) if run["requests"] == requests]
        if not runs:
            continue
        exact = is_retrained(runs)
        rows.append(
            [
                NAMES.get(method, method),
                cell(runs, lambda run: run["requests_done"], 0),
                cell(runs, lambda run: run["accuracy"]["retained"]),
                cell(runs, lambda run: run["accuracy"]["forgotten"]),
                cell(runs, lambda run: run["accuracy"]["test"]),
                EXACT if exact else cell(runs, lambda run: run["parameter_gap"], 4),
                EXACT if exact else cell(runs, lambda run: run["gap"]["forgotten"]),
                EXACT if exact else cell(runs, lambda run: run["gap"]["test"]),
                digest_check(runs),
                cell(runs, lambda run: run["times"]["update"]) + ("" if _alone(runs) else " (shared)"),
                "; ".join(dict.fromkeys(note for run in runs for note in _notes(run))) or MISSING,
            ]
        )
    title = f"{_data(dataset)}, K = {requests}: {title}"
    return Table(f"{experiment}-{dataset}-{requests}", title, heading, rows)


def _alone(runs: list[Result]) -> bool:
    return all(run["failed"] or run["times"]["alone"] for run in runs)


def _notes(run: Result) -> list[str]:
    notes: list[Any] = [f"{FAILED}: {run['failed']}"] if run["failed"] else run["notes"]
    return [str(note).replace("|", "/").replace("\n", " ") for note in notes]


def _name(experiment: str, method: str) -> str:
    if (experiment, method) == ("table2", "retrain"):
        return "Retrain, by Cholesky, stored in float32"
    return NAMES.get(method, method)


def _reads(runs: list[Result]) -> str:
    good = [run for run in runs if not run["failed"]]
    return MISSING if not good else ("yes" if good[0]["reads_retained"] else "no")


def _data(dataset: str) -> str:
    return DATA.get(dataset, dataset)


def _latex(word: str) -> str:
    for plain, written in (
        ("&", r"\&"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("±", r"$\pm$"),
        ("Δ", r"$\Delta$"),
        ("×", r"$\times$"),
        ("–", "--"),
        ("≈", r"$\approx$"),
    ):
        word = word.replace(plain, written)
    return word
