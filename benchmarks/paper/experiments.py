"""Which runs a setting has. A run is its key: the same key gives the same result, whenever and wherever it is run.

==================  ==============================================================================================
table1              K requests over the forgotten samples; gradient methods move their own network
table2              the same, all from one analytic model: gradient methods move only the head
dynamics            table1 for more values of K, looked at after each request
classes             K requests for a whole class each
class_sums          the same, from the classes' sums alone, without a sample (the paper's Algorithm 2)
alternating         learn and forget in turn, K times (which the paper claims and does not show)
stress_few          forget until fewer samples are left than there are codes
stress_singles      one sample a request
time                table1 once more, alone on the machine, for the times and nothing else
==================  ==============================================================================================

Runs whose times count have ``timed``: they run alone, in the timing phase. Those are the runs of ``time``, and of
analytic methods in ``dynamics`` and ``classes`` with the first seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from itertools import product
from typing import NamedTuple

from benchmarks.paper.settings import Setting, SettingError

EXPERIMENTS = (
    "table1",
    "table2",
    "dynamics",
    "classes",
    "class_sums",
    "alternating",
    "stress_few",
    "stress_singles",
    "time",
)
ANALYTIC_ONLY = ("class_sums", "alternating", "stress_few", "stress_singles")
TIMED = ("dynamics", "classes")  # for analytic methods
ANALYTIC = ("neverseen", "neverseen_queued", "acu_float32", "acu_float64", "acu_as_written")
REFERENCE = "retrain"


class Key(NamedTuple):
    """One run."""

    experiment: str
    dataset: str
    method: str
    requests: int
    seed: int
    timed: bool

    @property
    def place(self) -> tuple[str, int]:
        """Data set and seed: runs of one place share their artefacts."""
        return self.dataset, self.seed

    def __str__(self) -> str:
        return "-".join(map(str, self[:5]))


def settings_digest(key: Key, setting: Setting) -> str:
    """Return a digest of all settings that shape a run: where it differs from a result's, that is of another run."""
    experiment = setting.experiments[key.experiment]
    shaping = {
        **{name: dataclasses.asdict(getattr(setting, name)) for name in ("sizes", "base", "original", "analytic")},
        "width": setting.width,
        "experiment": {"left": experiment.left, "sample": experiment.sample}
        | ({"repeats": experiment.repeats} if experiment.repeats > 1 else {}),
        "method": setting.method_settings(key.method, key.experiment == "table2"),
    }
    return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:16]


def keys(setting: Setting) -> list[Key]:
    """Return all runs of a setting: what matters most first, and the first seed before the others."""
    unknown = sorted(set(setting.experiments) - set(EXPERIMENTS))
    if unknown:
        raise SettingError(f"{setting.name} has unknown experiments: {', '.join(unknown)}; known: {EXPERIMENTS}")
    found: list[Key] = []
    for name in EXPERIMENTS:
        experiment = setting.experiments.get(name)
        if experiment is None:
            continue
        if experiment.repeats < 1 or experiment.repeats % 2 == 0:
            raise SettingError(f"{setting.name}: {name}: repeats must be odd, for there to be a median")
        if name in ANALYTIC_ONLY and (others := sorted(set(experiment.methods) - set(ANALYTIC))):
            raise SettingError(f"{setting.name}: {name} is for {', '.join(ANALYTIC)}; got {', '.join(others)}")
        for seed, count, dataset, method in product(
            experiment.seeds, experiment.requests, experiment.data, experiment.methods
        ):
            timed = name == "time" or (name in TIMED and method in ANALYTIC and seed == experiment.seeds[0])
            # Retraining for every request takes for ever: it is done once, with all requests at a time.
            found.append(Key(name, dataset, method, 1 if method == REFERENCE else count, seed, timed))
    return list(dict.fromkeys(found))
