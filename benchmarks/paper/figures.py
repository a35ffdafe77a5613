"""The figures: accuracy and cumulative time against requests, as SVG."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figure import save_svg
from benchmarks.paper.results import DATA, NAMES, Result, Results

# One colour a method, the same in all figures (Okabe and Ito's, which most people can tell apart).
COLOURS = {
    "finetune": "#0072B2",
    "l1_sparsity": "#56B4E9",
    "scrub": "#009E73",
    "woodfisher": "#CC79A7",
    "random_label": "#E69F00",
    "neggrad_plus": "#D55E00",
    "neggrad": "#999999",
    "acu_float32": "#F0E442",
    "acu_float64": "#B8860B",
    "neverseen": "#000000",
}
TITLES = {
    "dynamics": "Requests for samples",
    "classes": "Requests for whole classes",
    "alternating": "Learning and forgetting in turn",
    "stress_few": "Forgetting down to fewer samples than codes",
    "stress_singles": "One sample a request",
}


class Curve(NamedTuple):
    """Seconds after so many requests."""

    requests: list[int]
    seconds: list[float]
    reckoned: bool  # from a few requests that were timed


class Plot(NamedTuple):
    """What a figure shows."""

    heading: str
    traced: dict[str, Result]  # by method
    times: dict[str, Curve]


def plots(results: Results) -> dict[str, Plot]:
    """Return by name what there are results for."""
    found: dict[str, Plot] = {}
    for dataset in results.data:
        for experiment, title in TITLES.items():
            counts = set(results.counts(experiment, dataset))
            if experiment == "dynamics":  # table 1 has traces too
                counts |= set(results.counts("table1", dataset))
            for requests in sorted(counts):
                if traced := _traced(results, experiment, dataset, requests):
                    heading = f"{DATA.get(dataset, dataset)}, K = {requests}: {title.lower()}"
                    times = _times(results, experiment, dataset, requests)
                    found[f"{experiment}-{dataset}-{requests}"] = Plot(heading, traced, times)
    return found


def draw(plot: Plot, path: Path) -> None:
    """Draw a figure. Needs matplotlib."""
    from matplotlib.figure import Figure

    traced, times = plot.traced, plot.times
    panels = 3 if times else 2
    figure = Figure(figsize=(4 * panels, 3.4), layout="constrained")
    axes = figure.subplots(1, panels)
    for method, run in traced.items():
        points = run["after_each_request"]
        where = [point["requests"] for point in points]
        look: dict[str, Any] = {"color": COLOURS[method], "label": NAMES[method]}
        look |= {"linewidth": 2.2} if method == "neverseen" else {"linewidth": 1.2}
        if method.startswith("acu"):  # hardly to be told from neverseen, so dashed on top of it
            look |= {"linestyle": "--", "zorder": 4}
        for axis, column in zip(axes[:2], ("retained", "test"), strict=True):
            axis.plot(where, [point[column] for point in points], **look)
        if method in times:
            curve = times[method]
            axes[2].plot(curve.requests, curve.seconds, **(look | {"linestyle": ":"} if curve.reckoned else look))
    labels = ("retained accuracy, %", "test accuracy, %", "update time so far, s")
    for axis, label in zip(axes, labels[:panels], strict=True):
        axis.set(xlabel="requests", ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    if times:
        axes[2].set_yscale("log")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(5, len(names)), frameon=False)
    figure.suptitle(plot.heading)
    save_svg(figure, path, plot)


def _traced(results: Results, experiment: str, dataset: str, requests: int) -> dict[str, Result]:
    """Return for each method the first run that was looked at on the way."""
    names = ["dynamics", "table1"] if experiment == "dynamics" else [experiment]
    found: dict[str, Result] = {}
    for name in names:
        for run in results.all(name, dataset):
            good = not run["failed"] and run["requests"] == requests and run["method"] in COLOURS
            if good and run["after_each_request"]:
                found.setdefault(run["method"], run)
    return {name: found[name] for name in NAMES if name in found}


def _times(results: Results, experiment: str, dataset: str, requests: int) -> dict[str, Curve]:
    """Return the times of runs that were alone on the machine."""
    names = ("time", "dynamics") if experiment == "dynamics" else (experiment,)
    found: dict[str, Curve] = {}
    for run in results.runs:
        good = run["experiment"] in names and run["dataset"] == dataset and run["requests"] == requests
        if good and not run["failed"] and run["times"]["alone"] and run["method"] in COLOURS:
            found.setdefault(run["method"], _curve(run))
    return found


def _curve(run: Result) -> Curve:
    each, points, done = run["times"]["per_request"], run["after_each_request"], run["requests_done"]
    if done < run["requests"]:
        numbers = range(1, run["requests"] + 1)
        return Curve(list(numbers), [run["times"]["update"] / done * number for number in numbers], True)
    if each is None:
        return Curve([point["requests"] for point in points], [point["seconds"] for point in points], False)
    return Curve(list(range(1, done + 1)), list(accumulate(each)), False)
