"""Every figure and table in the documentation, from the results: ``python -m benchmarks.report``.

A table of a page is filled if ``<!-- results: NAME -->`` stands before it: the last cells of its rows come from the
results, in their order; what stands before them are the page's own words. The reports of the paper's evaluation and
the demo's figure are written whole.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import figure
from benchmarks.encoders import less, spread
from benchmarks.paper.report import write_reports
from benchmarks.paper.results import Results, read_runs

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
DEMO = RESULTS / "demo-2-cores.json"
PAGES = (
    "README.md",
    "docs/accuracy.md",
    "docs/costs.md",
    "docs/how-to/gamma.md",
    "docs/learners.md",
    "docs/paper.md",
    "docs/service.md",
    "docs/service-load.md",
)
MARK = re.compile(r"<!-- results: (\w+) -->")
Rows = Iterator[list[str]]


class PageError(ValueError):
    """A page whose tables are not those of the results."""


def filled(page: str) -> str:
    """Return a page with the cells of its tables from the results."""
    lines = page.split("\n")
    for number, line in enumerate(lines):
        if mark := MARK.fullmatch(line):
            if mark[1] not in TABLES:
                raise PageError(f"there are no results {mark[1]!r}; there are {', '.join(TABLES)}")
            first = next(place for place in range(number, len(lines)) if lines[place].startswith("|")) + 2
            rows = list(TABLES[mark[1]]())
            for place, cells in enumerate(rows, first):
                words = lines[place].split("|")[1:-1][: -len(cells)]
                if not words:
                    raise PageError(f"the table {mark[1]} needs {len(rows)} rows with words before {len(cells)} cells")
                lines[place] = "|".join(["", *words, *(f" {text} " if text else " " for text in cells), ""])
            if lines[first + len(rows)].startswith("|"):
                raise PageError(f"the table {mark[1]} has more rows than the results: {len(rows)}")
    return "\n".join(lines)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _ms(seconds: float, digits: int = 0) -> str:
    return f"{1e3 * seconds:.{digits}f} ms"


# -- tables --------------------------------------------------------------------------------------------


def _engine_short() -> Rows:
    sizes = _read("engine-2-cores")["sizes"].values()
    for name in ("forget 1", "forget 20", "forget 400"):
        rows = [found["times"][name] for found in sizes]
        ratios = [row["exact / other"] for row in rows]
        yield [
            f"{row['ms']['exact']:.0f} ms ({ratio['recursion']:.2f}, {ratio['refit']:.2f})"
            for row, ratio in zip(rows, ratios, strict=True)
        ]
    yield [f"{found['times']['full solve']['ms']['exact']:.0f} ms" for found in sizes]


def _engine(name: str = "engine-2-cores") -> Rows:
    sizes = _read(name)["sizes"].values()
    forgets = ("forget 1", "forget 20", "forget 400", "mean of singles")
    for what in (*forgets, "label 1", "label 20", "label 400", "full solve"):
        for found in sizes:
            row = found["times"][what]
            ratios = row["exact / other"]
            others = ("recursion", "recursion, as written", "Cholesky", "refit")
            cells = (f"{ratios[other]:.2f}" if other in ratios else "" for other in others)
            yield [f"{row['ms']['exact']:.1f} ms", *cells]


def _learning() -> Rows:
    for name in ("learning-2-cores", "learning-h200"):
        found = _read(name)
        seconds = found["seconds"]
        yield [f"{seconds['exact']:.2f} s", f"{seconds['float32']:.2f} s", f"{found['float32 / exact']:.2f}"]


def _engine_memory() -> Rows:
    sizes = _read("engine-2-cores")["sizes"].values()
    for name in ("exact", "recursion"):
        yield [f"{found['memory'][name]:.1f}" for found in sizes]


def _service() -> Rows:
    found = _read("service-2-cores")
    for row in found["predictions"]:
        yield [
            f"{load['a_second']:,.0f} ({_ms(load['p50'], 1)}, {_ms(load['p99'], 1)})"
            for load in (row["alone"], row["while_forgetting"])
        ]
    yield [" / ".join(f"{row['a_second']:,.0f}" for row in found["forgets"]), ""]


def _store() -> Rows:
    sizes = _read("store-2-cores")["operations"]
    for verb in ("learn 1000", "forget 1000", "learn 1", "forget 1"):
        rows = [found["verbs"][verb] for found in sizes]
        yield [f"{_ms(row['store_seconds'])} ({_ms(row['engine_seconds'])})" for row in rows]
    for records in (0, 100):
        openings = (row for found in sizes for row in found["opening"] if row["journal_records"] == records)
        yield [f"{row['seconds']:.2f} s" for row in openings]
    sums = [found["bytes"]["sums"] / 2**20 for found in sizes]
    yield [f"{mib:.{int(mib < 10)}f} MiB" for mib in sums]


def _ledger() -> Rows:
    for row in _read("ledger-2-cores")["rows"]:
        inserts = [f"{row[name]['per_second']:,}" for name in ("of_1000", "of_100000")]
        yield [*inserts, f"{row['by_member_ms']:.0f} ms", f"{row['mib']:,} MiB"]


def _backbones() -> Rows:
    images, texts = _read("backbones-2-cores")["backbones"].values()
    for image, text in zip(images, texts, strict=True):
        words = image["setting"]["words"]
        if words in ("torch, batch 64", "onnx, batch 1", "onnx, 1 thread"):
            continue
        rates = [row["samples a second"] for row in (image, images[0], text)]
        moved = ["", ""]
        if "reference" not in words:
            shares = [row["samples with another int8 feature"] for row in (image, text)]
            moved = [f"{100 * share:.1f} %" if share else "none" for share in shares]
        yield [f"{rates[0]:.0f}", f"{rates[0] / rates[1]:.2f}", moved[0], f"{rates[2]:.0f}", moved[1]]


def _siege() -> Rows:
    for row in _read("siege-2-cores")["attacks"].values():
        times = [_ms(row[name]["p99"], 1) for name in ("quiet", "under_attack")]
        memory = ", ".join(f"{row['memory'][name] / 2**20:.0f}" for name in ("before", "peak", "after"))
        yield [*times, f"{row['ratio_p99']:.1f}", f"{memory} MiB"]


def _encoders() -> Rows:
    for row in _read("encoders-digits")["activations"].values():
        yield [*map(spread, row.values()), less(row["int8"], row["signs"])]


def _encoder_scales() -> Rows:
    found = _read("encoders-digits")["fixed scales"]
    for name, values in found.items():
        published = found["F-OAL" if name.startswith("F-OAL") else "GKEAL"]
        yield [spread(values), less(values, published) if values is not published else ""]


def _reconstruction() -> Rows:
    for row in _read("reconstruction-2-cores")["lines"]:
        if (row["attacker"], row["batch"]) != ("injection", 1):  # of one change, none is the attacker's
            yield [f"{row['individual']:.2f}", f"{100 * row['found']:.0f} %"]


def _learners() -> Rows:
    for row in _read("learners-2-cores")["rows"]:
        sides = row["ours"], row["float"]
        shares = [[f"{100 * side[name]:.1f}" for side in sides] for name in ("average", "last")]
        costs = (
            [f"{side['processor seconds']:.0f}" for side in sides],
            [f"{side['bytes'] / 2**20:.1f}" for side in sides],
        )
        digest = "equal" if row["digest equal"] else "differs"
        cells = [f"{ours} ({other})" for ours, other in (*shares, *costs)]
        yield [*cells[:2], digest, *cells[2:], row["figure"]]


def _gamma_choice() -> Rows:
    for row in _read("gamma-choice-2-cores")["rows"]:
        yield [f"{row['accuracy'][name]:.1f}" for name in ("default", "auto", "ridge cv", "best")]


def _paper() -> Rows:
    results = Results(read_runs(RESULTS / "paper" / "full.jsonl"))
    alone = {
        run["method"]: run["times"]["update"] / run["requests_done"]
        for run in results.all("time", "cifar100", requests=25)
    }
    seconds = {method: 25 * each for method, each in alone.items()}

    def mean(dataset: str, method: str, kind: str, part: str, digits: int = 1) -> str:
        found = [run[kind][part] for run in results.all("table1", dataset, method, 25)]
        values = [value for value in found if value is not None]
        return f"{sum(values) / len(values):.{digits}f}"

    def row(method: str, last: str, exact: str = "") -> list[str]:
        cells = []
        for name in ("cifar10", "cifar100"):
            cells += [mean(name, method, "accuracy", part) for part in ("test", "forgotten")]
            cells.append(mean(name, method, "mia", "lira", 3) + exact)
        return [*cells, last]

    yield row("original", "")
    reference = [[mean(name, "original", "reference", part) for part in ("test", "forgotten")] for name in results.data]
    yield [*reference[0], "0.5", *reference[1], "0.5", f"{seconds['retrain']:.0f} (25 times {alone['retrain']:.1f})"]
    yield row("retrain", "")
    for method in ("random_label", "finetune", "neggrad_plus", "scrub", "woodfisher", "neggrad", "l1_sparsity"):
        yield row(method, f"≈ {seconds[method]:.2g}")
    as_written = f"{seconds['acu_as_written']:.1f} with its products as written"
    yield row("acu_float64", f"{seconds['acu_float64']:.2f}; {as_written}")
    together = f"{seconds['neverseen_queued']:.2f} if they wait together"
    yield row("neverseen", f"{seconds['neverseen']:.2f}; {together}", ", digest equal")


TABLES: dict[str, Callable[[], Rows]] = {
    "engine_short": _engine_short,
    "engine": _engine,
    "engine_h200": partial(_engine, "engine-h200"),
    "engine_features": partial(_engine, "engine-features-2-cores"),
    "engine_1000_classes": partial(_engine, "engine-1000-classes-2-cores"),
    "learning": _learning,
    "engine_memory": _engine_memory,
    "service": _service,
    "store": _store,
    "ledger": _ledger,
    "backbones": _backbones,
    "encoders": _encoders,
    "encoder_scales": _encoder_scales,
    "siege": _siege,
    "reconstruction": _reconstruction,
    "learners": _learners,
    "gamma_choice": _gamma_choice,
    "paper": _paper,
}


def main(arguments: list[str] | None = None) -> int:
    """Fill all tables, draw all figures, and print the files."""
    argparse.ArgumentParser(prog="python -m benchmarks.report", description=main.__doc__).parse_args(arguments)
    for name in PAGES:
        (ROOT / name).write_text(filled((ROOT / name).read_text()))
    files = [*map(ROOT.joinpath, PAGES), *write_reports(RESULTS / "paper")]
    if DEMO.exists():  # python -m benchmarks.demo --json docs/results/demo-2-cores.json
        files.append(ROOT / "docs" / "demo.svg")
        figure.save(json.loads(DEMO.read_text()), files[-1])
    for path in files:
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
