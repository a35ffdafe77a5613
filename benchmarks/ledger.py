"""How fast is the ledger on SQLite? ``python -m benchmarks.ledger``, with ``--samples 10000000`` for its full size.

Adds samples in transactions of 100,000. At each stop it measures transactions of 1,000 and of 100,000, each synced to
disk, in samples a second; and for 1,000 samples, the milliseconds to find them by number and by member digest, to see
that 1,000 others are not there, and to look for one unknown content. The processor's seconds for each sample tell a
busy machine from a slow ledger. Ten million samples take about 2 GB of disk, which is given back, and ten minutes.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance, write_json
from neverseen.ledger import Ledger, SampleRow

SMALL, LARGE, REPEATS = 1_000, 100_000, 5
STOPS = (250_000, 1_000_000, 5_000_000, 10_000_000)


def made_up(count: int) -> Iterator[list[SampleRow]]:
    """Yield `count` new samples at a time, with random digests, in 100 classes, 20 to an owner."""
    number = 0
    while True:
        noise = os.urandom(96 * count)
        batch = []
        for start in range(0, len(noise), 96):
            digests = noise[start : start + 96]
            texts = f'"class {number % 100}"', f'"photo-{number:09d}.jpg"', f'"owner-{number // 20}"'
            times = (
                digests[:16],
                digests[16:32],
                digests[32:48],
                *texts,
                digests[48:80],
                digests[80:],
                1_700_000_000 + number,
                "learned",
            )
            batch.append(SampleRow(*times))
            number += 1
        yield batch


def add(ledger: Ledger, batch: list[SampleRow]) -> None:
    """Add samples in one transaction."""
    with ledger.writing() as writing:
        writing.add(batch)


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the time a call took, on the wall and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - processor


def rates(ledger: Ledger, batches: Iterator[list[SampleRow]], repeats: int) -> tuple[dict[str, float], list[SampleRow]]:
    """Return samples a second and processor time for each, and the last samples that were added."""
    spent = [0.0, 0.0]
    count = 0
    for _ in range(repeats):
        batch = next(batches)
        wall, processor = seconds(lambda rows=batch: add(ledger, rows))  # type: ignore[misc]
        spent, count = [spent[0] + wall, spent[1] + processor], count + len(batch)
    return {"per_second": round(count / spent[0]), "processor_us": round(1e6 * spent[1] / count, 1)}, batch


def lookups(ledger: Ledger, batch: list[SampleRow]) -> dict[str, float]:
    """Return milliseconds for questions about 1,000 samples: the median of some, and for contents one."""
    there, absent = batch[:SMALL], [os.urandom(16) for _ in range(SMALL)]

    def median(call: Callable[[], Any]) -> float:
        return round(1e3 * statistics.median(seconds(call)[0] for _ in range(REPEATS)), 1)

    return {
        "by_number_ms": median(lambda: ledger.by_numbers([row.number for row in there])),
        "by_member_ms": median(lambda: ledger.by_members([row.member for row in there])),
        "not_there_ms": median(lambda: ledger.by_members(absent)),
        "unknown_content_ms": round(1e3 * seconds(lambda: ledger.knows_contents(absent[:1]))[0], 1),
    }


def measure(samples: int, folder: Path) -> list[dict[str, Any]]:
    """Fill a ledger and return what was measured at each stop."""
    rows = []
    ledger = Ledger(f"sqlite:///{folder}/ledger.sqlite", create=True)
    few, many = made_up(SMALL), made_up(LARGE)
    try:
        for stop in [stop for stop in STOPS if stop < samples] + [samples]:
            while sum(ledger.counts().values()) < stop:
                add(ledger, next(many)[: stop - sum(ledger.counts().values())])
            small, _ = rates(ledger, few, 10 * REPEATS)
            large, batch = rates(ledger, many, REPEATS)
            size = sum(path.stat().st_size for path in folder.iterdir()) // 2**20
            rows.append({"samples": stop, "of_1000": small, "of_100000": large, "mib": size} | lookups(ledger, batch))
            print(line(rows[-1]), flush=True)
    finally:
        ledger.close()
    return rows


HEADER = (
    "    samples   1,000 each (CPU)   100,000 each (CPU)  by number  by member  not there   a content       disk\n"
    "              per second    us     per second    us         ms         ms         ms          ms        MiB"
)


def line(row: dict[str, Any]) -> str:
    """Return the figures of one stop for a terminal."""
    small, large = row["of_1000"], row["of_100000"]
    return (
        f"{row['samples']:>11,}{small['per_second']:>13,}{small['processor_us']:>6}{large['per_second']:>15,}"
        f"{large['processor_us']:>6}{row['by_number_ms']:>11}{row['by_member_ms']:>11}{row['not_there_ms']:>11}"
        f"{row['unknown_content_ms']:>12}{row['mib']:>11,}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the JSON file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=250_000, help="how many to go up to (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where the database may be for a while")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    options = parser.parse_args(arguments)
    print(HEADER)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = measure(options.samples, Path(folder))
    if options.json:
        write_json(options.json, provenance("ledger", None, samples=options.samples) | {"rows": rows})


if __name__ == "__main__":
    main()
