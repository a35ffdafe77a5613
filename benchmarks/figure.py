"""Accuracy and cumulative time over requests, for a terminal and as an SVG."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT = 9  # rows of a panel in the terminal


@dataclass
class Curve:
    """How long one method took for each request, and how accurate it was after it."""

    name: str
    mark: str  # in the terminal
    colour: str  # in the SVG
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    @property
    def cumulative(self) -> list[float]:
        """Return the time of all requests up to each."""
        return list(accumulate(self.seconds))


def duration(seconds: float) -> str:
    """Return a time as people write it: 42 ms, 1.5 s, 75 s."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"


def drawn(curves: Sequence[Curve]) -> str:
    """Return two panels side by side in plain text, at most 80 columns for 13 requests. Earlier curves lie on top."""
    shares = [share for curve in curves for share in curve.accuracy]
    low, high, longest = min(shares), max(shares), max(curve.cumulative[-1] for curve in curves)
    left = _panel([(c.mark, c.accuracy) for c in curves], low, high, f"{low:.0%}", f"{high:.0%}")
    right = _panel([(c.mark, c.cumulative) for c in curves], 0.0, longest, "0 s", duration(longest))
    width = max(map(len, left)) + 4
    heading = f"{'accuracy after each request':{width}}time of all requests so far"
    return "\n".join([heading, *(f"{a:{width}}{b}".rstrip() for a, b in zip(left, right, strict=True))])


def _panel(rows: list[tuple[str, list[float]]], low: float, high: float, bottom: str, top: str) -> list[str]:
    """Return the lines of a plot of marks over 1, 2, 3 and so on, for values between low and high."""
    width = 2 * len(rows[0][1])
    cells = [[" "] * width for _ in range(HEIGHT)]
    for mark, values in reversed(rows):
        for place, value in enumerate(values):
            share = (value - low) / (high - low) if high > low else 0.0
            cells[round((1 - share) * (HEIGHT - 1))][2 * place] = mark
    names = [top, *[""] * (HEIGHT - 2), bottom]
    lines = [f"{name:>7} | {''.join(row)}" for name, row in zip(names, cells, strict=True)]
    ticks = [str(request) if request in (1, 5, 10) else "" for request in range(1, len(rows[0][1]) + 1)]
    return [*lines, f"{'':7} +-{'-' * (width - 1)}", f"request   {''.join(f'{tick:2}' for tick in ticks)}"]


def save(results: dict[str, Any], path: Path) -> None:
    """Write the figure of the demo's results as an SVG; `ImportError` without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    figure.suptitle(results["title"], fontsize=10)
    accuracy, time = figure.subplots(1, 2)
    accuracy.set_title("accuracy on the classes held, percent", fontsize=10, loc="left")
    time.set_title("time of all requests so far, seconds", fontsize=10, loc="left")
    requests = results["requests"]
    numbers = range(1, len(requests) + 1)
    for depth, curve in enumerate(
        Curve(**found) for found in results["curves"]
    ):  # a line that is covered by others shows on both sides of them
        style = {"color": curve.colour, "linewidth": 1.5 + 1.5 * depth, "marker": "o", "zorder": 5 - depth}
        accuracy.plot(numbers, [100 * share for share in curve.accuracy], markersize=3.5 + 1.5 * depth, **style)
        time.plot(numbers, curve.cumulative, markersize=3.5 + 1.5 * depth, label=curve.name, **style)
    time.set_ylim(bottom=0)
    time.legend(frameon=False, fontsize=9)
    for axes in (accuracy, time):
        axes.set_xticks(numbers, requests, rotation=40, ha="right", rotation_mode="anchor", fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.92", zorder=0)
    save_svg(figure, path, results)


def save_svg(figure: Figure, path: Path, shown: object) -> None:
    """Write a figure as an SVG that names what is shown. The same figure, by the same matplotlib, is the same file."""
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Identifier": digest(shown)})


def digest(shown: object) -> str:
    """Return a digest of JSON values, by which a figure of them is known whatever matplotlib drew it."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
