"""What does it cost to last? ``python -m benchmarks.store``.

operations
    learn and forget of 1 and 1,000 samples, durable when they return, beside the same on a model in memory (the
    engine's own time), measured in turn. Rates are operations a second; the share is what the store adds. Times are
    medians.
opening
    from a snapshot alone, and after journal records that must be added up again; and the size of the folder.
crashes
    a process under a mixed load is killed at random instants; each time the store must open in the state that was
    acknowledged, or the one after the step under way (`benchmarks.crashes`).

The ledger has a benchmark of its own, `benchmarks.ledger`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.crashes import crash
from benchmarks.provenance import provenance, write_json
from neverseen import AnalyticClassifier, ForgettingModel, Keyring, RandomProjection, store
from neverseen.backbones import Precomputed

GAMMA = 2**13
RECORDS = (0, 10, 100)  # in the journal, when a store is opened


def operations(folder: Path, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of each verb, in a store and in memory, for codes of one size."""
    rng = np.random.default_rng(options.seed)
    batch, repeats, width = options.batch, options.repeats, options.features
    total = options.classes + repeats * (batch + 5)
    labels = rng.integers(0, options.classes, total)
    labels[: options.classes] = range(options.classes)  # every class is there from the start
    rows = rng.normal(size=(options.classes, width))[labels] + rng.normal(size=(total, width))
    backbone, keys = Precomputed(width), Keyring.generate()
    engine = ForgettingModel(backbone, _classifier(size, options.hardware), keys)
    path = folder / f"store-{size}"
    store.create(path, backbone, _classifier(size, options.hardware), keys=keys).close()
    times: dict[str, dict[str, list[float]]] = {}
    with store.open(path, backbone=backbone, keys=keys, hardware=options.hardware) as made:
        begin = slice(0, options.classes)
        for model in (engine, made):
            model.learn(rows[begin], labels[begin])  # the first call prepares; it is not measured
        place = options.classes
        for number in [1] * 5 * repeats + [batch] * repeats:
            part = slice(place, place + number)
            place += number
            for verb in ("learn", "forget"):
                kept = times.setdefault(f"{verb} {number}", {"engine": [], "store": []})
                for name, model in (("engine", engine), ("store", made)):
                    kept[name].append(_seconds(lambda: getattr(model, verb)(rows[part], labels[part])))  # noqa: B023
                if verb == "forget":  # it comes back, under new receipts, so that the store fills
                    engine.learn(rows[part], labels[part])
                    made.learn(rows[part], labels[part])
        made.scrub()
        result = {"size": size, "samples": place, "classes": options.classes, "features": width, "verbs": {}}
        for verb, found in times.items():
            middle = {name: statistics.median(values) for name, values in found.items()}
            added = statistics.median(
                b - a for a, b in zip(found["engine"], found["store"], strict=True)
            ) / middle["engine"]  # fmt: skip
            result["verbs"][verb] = {
                "engine_seconds": middle["engine"],
                "store_seconds": middle["store"],
                "a_second": 1 / middle["store"],
                "added_share": added,
            }
        result["bytes"] = _sizes(path)
    result["opening"] = []
    for records in RECORDS:
        with store.open(path, backbone=backbone, keys=keys, hardware=options.hardware) as made:
            for record in range(records - RECORDS[max(0, RECORDS.index(records) - 1)]):
                fresh = rng.normal(size=(10, width))
                made.learn(fresh, labels[:10], [f"{records} {record} {row}" for row in range(10)])
        seconds = _seconds(lambda: _open_and_close(path, backbone, keys, options.hardware))
        result["opening"].append({"journal_records": records, "journal_samples": 10 * records, "seconds": seconds})
    return result


def crashes(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Return how the kills went; the first wrong state is an error."""
    found = []
    for done in crash(folder / "crashes", kills, seed):
        found.append(done)
        if len(found) % 50 == 0:
            print(f"  {len(found)} kills, all right so far", file=sys.stderr)
    under_way = Counter(entry["under_way"] or "nothing" for entry in found)
    return {
        "kills": len(found),
        "wrong": 0,
        "steps": sum(entry["steps"] for entry in found),
        "under_way": dict(sorted(under_way.items())),
        "changes_under_way_that_were_made": sum(bool(entry["made"]) for entry in found),
        "versions_published": max((entry["published"] for entry in found), default=0),
        "slowest_opening": max((entry["open_seconds"] for entry in found), default=0.0),
    }


def _classifier(size: int, hardware: str) -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(size, seed=1), GAMMA, hardware=hardware)


def _open_and_close(path: Path, backbone: Precomputed, keys: Keyring, hardware: str) -> None:
    store.open(path, backbone=backbone, keys=keys, hardware=hardware).close()


def _sizes(path: Path) -> dict[str, int]:
    return {
        "sums": sum(file.stat().st_size for file in (path / "sums").iterdir()),
        "ledger": sum(file.stat().st_size for file in path.glob("ledger.sqlite*")),
    }


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def report(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for a terminal."""
    for found in results["operations"]:
        yield f"d = {found['size']:,}, {found['samples']:,} samples, {found['classes']} classes"
        for verb, row in found["verbs"].items():
            yield (
                f"  {verb:13}{row['a_second']:10.2f} a second  {1e3 * row['store_seconds']:10.1f} ms  "
                f"engine {1e3 * row['engine_seconds']:10.1f} ms  added {100 * row['added_share']:6.1f} %"
            )
        for row in found["opening"]:
            yield f"  opens in {row['seconds']:6.2f} s with {row['journal_records']} records in the journal"
        yield f"  on disk: sums {found['bytes']['sums']:,} bytes, ledger {found['bytes']['ledger']:,} bytes"
    if "crashes" in results:
        found = results["crashes"]
        yield (
            f"crashes: {found['kills']} kills, {found['steps']} steps, wrong states {found['wrong']}; "
            f"under way: {', '.join(f'{name} {count}' for name, count in found['under_way'].items())}"
        )


@contextmanager
def _place(given: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=given, prefix="neverseen-benchmark-") as folder:
        yield Path(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 8192])
    parser.add_argument("--batch", type=int, default=1000, help="samples of a large request")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hardware", default="auto")
    parser.add_argument("--folder", type=Path, help="where to write: the disk that is measured (default: temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "folder", "seed")}
    results = provenance("store", options.seed, **settings)
    results["load_before"] = os.getloadavg()
    with _place(options.folder) as folder:
        results["operations"] = [operations(folder, size, options) for size in options.sizes]
        if options.kills:
            results["crashes"] = crashes(folder, options.kills, options.seed)
    print("\n".join(report(results)))
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
