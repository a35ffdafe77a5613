"""The results of many runs: kept, read, chosen, summarised over seeds, beside the paper's own figures.

All runs of a setting are in one JSON Lines file, ``SETTING.jsonl``, sorted: a run is a line.
"""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.paper.experiments import Key
from benchmarks.paper.metrics import summary

Result = dict[str, Any]

NAMES = {
    "original": "Original, nothing forgotten",
    "retrain": "Retrain, other draws",
    "finetune": "Finetune",
    "l1_sparsity": "L1-Sparsity",
    "scrub": "SCRUB",
    "woodfisher": "WoodFisher",
    "random_label": "RandomLabel",
    "neggrad_plus": "NegGrad+",
    "neggrad": "NegGrad",
    "acu_float32": "ACU, float32",
    "acu_float64": "ACU, float64",
    "acu_as_written": "ACU, float64, products as written",
    "neverseen": "neverseen",
    "neverseen_queued": "neverseen, requests queued",
}
DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
MISSING, FAILED, NOT_FINITE = "–", "failed", "not finite"


class ResultError(ValueError):
    """A line that is not a result."""


def key_of(run: Result) -> Key:
    """Return which run it was."""
    return Key(*(run[name] for name in Key._fields))


def read_runs(path: Path) -> list[Result]:
    """Read the runs of a setting; none if there is no file."""
    runs = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
        try:
            run = json.loads(line)
            if not isinstance(run, dict) or not {*Key._fields, "setting", "failed"} <= set(run):
                raise ValueError("it lacks what every result has")
        except ValueError as error:
            raise ResultError(
                f"{path}, line {number}, is not a result: {error}. Delete the line and run again"
            ) from error
        runs.append(run)
    return runs


def keep(path: Path, run: Result) -> None:
    """Add a run to its setting's file, in place of an earlier one with the same key.

    The file is replaced as a whole, so a process that is killed loses no run but its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # another process may be adding its own
        runs = {key_of(one)[:5]: one for one in [*read_runs(path), run]}
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join(json.dumps(runs[key]) + "\n" for key in sorted(runs)))
        partial.replace(path)
    finally:
        os.close(folder)


class Results:
    """All results of one setting.

    Parameters
    ----------
    runs : list of dict
    """

    def __init__(self, runs: list[Result]) -> None:
        self.runs = runs

    @property
    def data(self) -> list[str]:
        """Data sets that there are results of."""
        return sorted({run["dataset"] for run in self.runs})

    def counts(self, experiment: str, dataset: str) -> list[int]:
        """Numbers of requests that an experiment has results for; retraining, done once, does not count."""
        chosen = self.all(experiment, dataset)
        return sorted({run["requests"] for run in chosen if run["method"] != "retrain"})

    def methods(self, experiment: str, dataset: str) -> list[str]:
        """Return methods with results, those known first and in the order of the tables."""
        found = {run["method"] for run in self.all(experiment, dataset)}
        return [name for name in NAMES if name in found] + sorted(found - set(NAMES))

    def all(
        self, experiment: str, dataset: str, method: str | None = None, requests: int | None = None
    ) -> list[Result]:
        """Return the runs, by seed. Retraining answers all requests at once, so its run stands for every number."""
        return sorted(
            (
                run
                for run in self.runs
                if run["experiment"] == experiment
                and run["dataset"] == dataset
                and method in (None, run["method"])
                and (requests in (None, run["requests"]) or run["method"] == "retrain")
            ),
            key=lambda run: (run["seed"], run["requests"]),
        )


def show(value: float, digits: int) -> str:
    """Return a number: with so many digits after the point, or in powers of ten where those would show none of it."""
    if value and abs(value) < 0.5 * 10**-digits:
        return f"{value:.0e}"
    return f"{value:,.{digits}f}"


def cell(runs: Iterable[Result], value: Callable[[Result], float | None], digits: int = 2) -> str:
    """Return mean and standard deviation over runs as text, or why there is none."""
    runs = list(runs)
    good = [run for run in runs if not run["failed"]]
    if not good:
        return FAILED if runs else MISSING
    values = [value(run) for run in good]
    finite = [number for number in values if number is not None]
    if len(finite) < len(values):
        return NOT_FINITE if not finite else f"{NOT_FINITE} in {len(values) - len(finite)} of {len(values)}"
    found = summary(finite)
    text = show(found["mean"], digits)
    return text if found["std"] is None else f"{text} ± {show(found['std'], digits)}"


def digest_check(runs: list[Result]) -> str:
    """Say in how many runs the model's digest was that of the retrained one."""
    digests = [run["digest"] for run in runs if not run["failed"] and run["digest"]]
    if not digests:
        return MISSING
    return f"equal in {sum(digest['equal'] for digest in digests)} of {len(digests)}"


def is_retrained(runs: list[Result]) -> bool:
    """Whether every run ended with exactly the retrained model, as digests show it."""
    return bool(runs) and all(not run["failed"] and run["digest"] and run["digest"]["equal"] for run in runs)


def paper_figures() -> dict[str, Any]:
    """Return the paper's own figures."""
    with (Path(__file__).parent / "paper_figures.toml").open("rb") as file:
        return tomllib.load(file)


def papers_cell(figures: dict[str, Any], table: str, dataset: str, method: str, column: str, requests: int) -> str:
    """Return the paper's figure as text."""
    name = "acu" if method in ("acu_float32", "acu_float64") else method
    found = figures.get(table, {}).get(dataset, {}).get(name, {}).get(column, {}).get(str(requests))
    return MISSING if found is None else " ± ".join(f"{number:.2f}" for number in found)
