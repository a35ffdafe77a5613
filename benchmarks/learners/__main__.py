"""What does exact forgetting cost each learner? ``python -m benchmarks.learners``.

Each row is an analytic learner: as this library configures it, and as its published formula has it, in float64 and in
NumPy (`benchmarks.learners.references`). Both learn the same real features in phases, and are tested after each phase.
The columns: the mean over the phases and the value after the last, in percent; whether the digest after a random
history of learning and forgetting is that of a model which never saw what was forgotten; the processor seconds, of all
cores together, for learning and predicting; and what is kept, ours as the saved file and the other as its arrays.

With ``--learners``, other rows that the JSON file has already stay, if they are of the same samples and settings. Each
row names its own commit.

``--data-set digits`` takes a minute and needs nothing. CIFAR-10 and CIFAR-100 need the images, and some minutes for
their features (`benchmarks.learners.data`).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.cifar import CifarError
from benchmarks.learners.comparison import compared
from benchmarks.learners.data import KINDS, load
from benchmarks.learners.entries import ENTRIES
from benchmarks.paper.data import data_folder
from benchmarks.provenance import provenance, write_json
from neverseen.errors import NeverseenError

_ORIGIN = ("commit", "uncommitted_changes")


def main(arguments: list[str] | None = None) -> int:
    """Compare all learners, print a table, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learners", description=main.__doc__)
    names = [entry.name for entry in ENTRIES]
    parser.add_argument("--data-set", choices=KINDS, default="digits", help="(%(default)s)")
    parser.add_argument("--data", type=Path, help="data folder (NEVERSEEN_DATA, or ~/.cache/neverseen)")
    parser.add_argument("--learners", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--codes", type=int, default=2048, help="at most (%(default)s)")
    parser.add_argument("--gamma", type=int, default=2**16, help="(%(default)s)")
    parser.add_argument("--phases", type=int, help="(10; 5 for digits)")
    parser.add_argument("--train", type=int, default=0, help="samples to learn; 0 for all (%(default)s)")
    parser.add_argument("--test", type=int, default=0, help="samples to test on (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    try:
        found = load(options.data_set, data_folder(options.data)).reduced(options.train, options.test)
    except (CifarError, NeverseenError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    phases = options.phases or (5 if options.data_set == "digits" else 10)
    print(f"{found.about}: {len(found.train)} samples to learn in {phases} phases, {len(found.test)} to test on")
    print(f"{'':12}{'average':>16}{'last':>16}{'seconds':>16}{'kept, MiB':>16}  digest")
    print(f"{'':12}" + f"{'ours':>8}{'float':>8}" * 4)
    settings = {"gamma": options.gamma, "phases": phases, "codes": options.codes, "data": found.about}
    results = provenance("learners", features_sha256=found.digest(), samples=len(found.train), **settings)
    rows = _kept(options.json, results)
    for entry in ENTRIES:
        if entry.name in options.learners:
            row = compared(entry, found, options.codes, options.gamma, phases)
            rows[entry.name] = row | {name: results[name] for name in _ORIGIN}
            print(_line(row), flush=True)
            if options.json:
                write_json(options.json, results | {"rows": [rows[name] for name in names if name in rows]})
    return int(not all(row["digest equal"] for row in rows.values()))


def _kept(path: Path | None, results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of an earlier file with the same settings, by name."""
    if path is None or not path.exists():
        return {}
    earlier = json.loads(path.read_text())
    if any(earlier[name] != results[name] for name in ("settings", "versions", "hardware")):
        return {}
    origin = {name: earlier[name] for name in _ORIGIN}
    return {row["name"]: origin | row for row in earlier["rows"]}


def _line(row: dict[str, Any]) -> str:
    sides = row["ours"], row["float"]
    cells = [f"{100 * each[name]:8.2f}" for name in ("average", "last") for each in sides]
    cells += [f"{each['processor seconds']:8.2f}" for each in sides] + [
        f"{each['bytes'] / 2**20:8.2f}" for each in sides
    ]
    return f"{row['name']:12}" + "".join(cells) + ("  equal" if row["digest equal"] else "  DIFFERS")


if __name__ == "__main__":
    sys.exit(main())
