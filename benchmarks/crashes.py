"""A process that is killed again and again, and what its store holds afterwards: for `benchmarks.store` and the tests.

The load learns, forgets, forgets classes, publishes, seals and folds, in a random order. Before each step it writes the
step to a log, and after it a line that says it was acknowledged. It is killed (SIGKILL) at a random instant, while
opening the store or later. The store is then opened again: its digest must be that of a model that learned what is
acknowledged and nothing else, or, if a step was under way, of one after that step.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from neverseen import AnalyticClassifier, ForgettingModel, Key, Keyring, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.proof.certificates import check_chain
from neverseen.store import Store
from neverseen.store import sums as sums_module

_rng = np.random.default_rng(0)
LABELS = _rng.integers(0, 3, 40)
ROWS = _rng.normal(size=(3, 6))[LABELS] + _rng.normal(size=(40, 6))
BACKBONE = Precomputed(6)
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
_FOLD_BYTES = 2000  # so that the journal is folded every few steps


class WrongStateError(Exception):
    """A store opened in a state that it should not be in."""


def crash(
    folder: Path, kills: int, seed: int, steps_at_most: int = 8, longest: float = 0.05
) -> Iterator[dict[str, Any]]:
    """Make a store in a new folder, kill its writer `kills` times, and yield what was found each time.

    A kill comes up to `longest` seconds after a line of the log that is drawn by lot.

    Raises `WrongStateError` if what is opened is neither what was acknowledged nor what was under way.
    """
    rng = random.Random(seed)  # noqa: S311 (not a secret)
    store.create(folder, BACKBONE, _classifier(), keys=KEYS).close()
    context = multiprocessing.get_context("forkserver")  # imports are done once
    context.set_forkserver_preload([__name__])
    log = folder.parent / f"{folder.name}.log"
    held: set[int] = set()
    for _ in range(kills):
        log.write_bytes(b"")
        process = context.Process(target=load, args=(folder, log, rng.randrange(2**31)))
        process.start()
        lines = rng.randint(1, 2 * steps_at_most)  # one for the opening, two for each step
        while log.read_bytes().count(b"\n") < lines and process.is_alive():
            time.sleep(0.002)
        time.sleep(rng.uniform(0, longest))
        process.kill()
        process.join()
        steps = [json.loads(line) for line in log.read_text().splitlines()[1:]]
        if process.exitcode != -9:
            raise WrongStateError(f"the load ended by itself, after {steps[-2:]}")
        acknowledged, under_way = _states(held, steps)
        began = time.perf_counter()
        with _opened(folder) as again:
            seconds = time.perf_counter() - began
            found = {int(json.loads(row.id)) for row in again.ledger.samples()}
            if found not in (acknowledged, under_way) or again.digest() != _never(found):
                raise WrongStateError(f"held {sorted(found)} after {steps[-2:]}, acknowledged {sorted(acknowledged)}")
            if number := again.published_number:
                check_chain(again.certificates(), again.description.public_key)
                again.version()
        held = found
        last = steps[-1]["step"] if steps else "open"
        yield {
            "steps": sum(step["step"] != "end" for step in steps),
            "under_way": None if last == "end" else last,
            "made": found == under_way if last in ("learn", "forget", "forget_class") else None,
            "published": number,
            "open_seconds": seconds,
        }


def load(folder: Path, log: Path, seed: int) -> None:
    """Change a store until killed."""
    rng = random.Random(seed)  # noqa: S311
    handle = os.open(log, os.O_WRONLY | os.O_APPEND)

    def note(step: str, rows: set[int] | None = None) -> None:
        os.write(handle, (json.dumps({"step": step, "rows": sorted(rows or ())}) + "\n").encode())

    sums_module.FOLD_BYTES = _FOLD_BYTES
    note("open")
    with _opened(folder) as made:
        held = {int(json.loads(row.id)) for row in made.ledger.samples()}
        while True:
            step = rng.choices(
                ["learn", "forget", "forget_class", "publish", "seal", "fold"], [8, 5, 1, 2, 2, 1]
            )[0]  # fmt: skip
            rows = set(range(len(ROWS))) - held if step == "learn" else held
            chosen = set(rng.sample(sorted(rows), min(len(rows), rng.randint(1, 6))))
            if step == "forget_class":
                label = int(rng.randrange(3))
                chosen = {row for row in held if LABELS[row] == label}
            if step in ("learn", "forget", "forget_class") and not chosen:
                continue
            note(step, chosen)
            at = sorted(chosen)
            if step == "learn":
                made.learn(ROWS[at], LABELS[at], [str(row) for row in at])
                held |= chosen
            elif step == "forget":
                made.forget(ROWS[at], LABELS[at])
                held -= chosen
            elif step == "forget_class":
                made.forget_class(label)
                held -= chosen
            elif step == "fold":
                sums_module.fold(made._open_parts(), made._exact())
            else:
                getattr(made, step)()
            note("end")


def _states(held: set[int], steps: list[dict[str, Any]]) -> tuple[set[int], set[int]]:
    """Return what is acknowledged, and what there is if the step under way was made."""
    acknowledged = set(held)
    after = set(held)
    for step in steps:
        if step["step"] == "end":
            acknowledged = after
        elif step["step"] == "learn":
            after = acknowledged | set(step["rows"])
        elif step["step"] in ("forget", "forget_class"):
            after = acknowledged - set(step["rows"])
    return acknowledged, after


def _classifier() -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(24, seed=1), 2**9, track_classes=True, hardware="numpy")


def _opened(folder: Path) -> Store:
    return store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy")


def _never(rows: set[int]) -> str:
    """Return the digest of a model that learned these rows and nothing else."""
    model = ForgettingModel(BACKBONE, _classifier(), KEYS)
    at = sorted(rows)
    model.learn(ROWS[at], LABELS[at])
    return model.digest()
