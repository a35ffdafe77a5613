"""One run: prepare a method, hand it the requests, measure it against the retrained model."""

from __future__ import annotations

import importlib
import math
import os
import platform
from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.paper import metrics, protocol
from benchmarks.paper.artefacts import Artefacts
from benchmarks.paper.experiments import REFERENCE, Key, settings_digest
from benchmarks.paper.memory import peak_memory, timed
from benchmarks.paper.methods import METHODS, Method, Samples, Start, request_for, settings_of
from benchmarks.paper.references import Material, Reference, answers_of, attacks_on, material_for, reference_for
from benchmarks.paper.settings import Setting, SettingError
from benchmarks.paper.training import augmented
from benchmarks.provenance import provenance

EACH = 100  # up to so many requests the time of each is noted
LOOKS = 25  # at the model on the way, at most
FEATURES_TIMED = ("table1", "dynamics", "classes", "time")
ATTACKED = ("table1", "table2")
_warm: set[tuple[str, str]] = set()  # methods and inputs that this process has run already


def run_one(key: Key, setting: Setting, artefacts: Artefacts) -> dict[str, Any]:
    """Do one run and return its result as JSON values.

    Parameters
    ----------
    key : Key
    setting : Setting
    artefacts : Artefacts
        Those of the key's data set and seed.
    """
    run = _Run(key, setting, artefacts)
    if key.timed and (key.method, run.material.inputs) not in _warm:
        run.warm_up()
    _warm.add((key.method, run.material.inputs))
    timings = []
    for _ in range(run.repeats):
        run = _Run(key, setting, artefacts)
        run.prepare()
        run.answer()
        timings.append((run.seconds, run.feature_seconds))
    run.updates = [sum(seconds) for seconds, _ in timings]
    run.seconds, run.feature_seconds = sorted(timings, key=lambda timing: sum(timing[0]))[len(timings) // 2]
    cleaned: dict[str, Any] = _clean(run.result())
    return cleaned


def methods(setting: Setting) -> dict[str, type[Method]]:
    """Return all methods of a setting by name, its extra ones included; raise if it names others, or sets others."""
    found = dict(METHODS)
    for place in setting.extra_methods:
        module, _, name = place.partition(":")
        try:
            method = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingError(
                f"{setting.name}: extra_methods: {place!r}, MODULE:CLASS, is not there: {error}"
            ) from error
        found[method.name] = method
    tables = (setting.methods, setting.head_methods)
    named = {name for experiment in setting.experiments.values() for name in experiment.methods}
    if unknown := sorted((named | {name for table in tables for name in table}) - set(found)):
        raise SettingError(f"{setting.name} has unknown methods: {', '.join(unknown)}; known: {', '.join(found)}")
    for name, own in (item for table in tables for item in table.items()):
        try:
            settings_of(found[name], own)
        except ValueError as error:
            raise SettingError(f"{setting.name}: {error}") from error
    return found


class _Run:
    def __init__(self, key: Key, setting: Setting, artefacts: Artefacts) -> None:
        self.key, self.setting, self.artefacts = key, setting, artefacts
        self.kind = methods(setting)[key.method]
        self.method: Method = self.kind()
        self.experiment = setting.experiments[key.experiment]
        self.material: Material = material_for(self.kind, key.experiment == "table2", artefacts)
        count, sizes = len(self.material.learned.labels), setting.sizes
        self.labels: list[int | None] = []
        if key.experiment in ("classes", "class_sums"):
            order = protocol.class_order(artefacts.dataset.n_classes, key.seed)
            self.requests = protocol.class_requests(artefacts.labels.cpu().numpy(), order, key.requests)
            self.labels = list(order[: key.requests])
            self.scenario = f"classes-{key.requests}"
        else:
            few = key.experiment == "stress_few"
            forgotten = count - self.experiment.left if few else sizes.forgotten
            if key.experiment == "time" and key.method == REFERENCE:
                forgotten //= 2  # half-way, when as many are retained as on average over the requests
            self.requests = protocol.sample_requests(forgotten, key.requests)
            self.labels = [None] * key.requests
            self.scenario = f"few-{self.experiment.left}" if few else "samples"
        self.held = np.ones(count, dtype=bool)  # what has been learned and not been forgotten
        self.repeats = self.experiment.repeats if key.experiment == "time" and self.kind.learns else 1
        self.seconds: list[float] = []
        self.updates: list[float] = []  # the sums of all that were timed; the median's are the seconds that count
        self.feature_seconds: list[float] = []
        self.trace: list[dict[str, float]] = []
        self.peak, self.peak_source = 0, ""
        self.stays = np.setdiff1d(np.arange(count), np.concatenate(self.requests))[: sizes.trace]

    # -- doing -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Give the method what it starts from."""
        self.cycles: list[tuple[np.ndarray, np.ndarray]] | None = None
        if self.key.experiment == "alternating":
            self.cycles = protocol.alternating(len(self.held), self.setting.sizes.forgotten, self.key.requests)
            self.held[:] = False
            self.held[: self.setting.sizes.forgotten] = True
        self.method.prepare(self._start(len(self.requests)))

    def warm_up(self) -> None:
        """Have libraries load and choose their kernels: one request to a model that is thrown away."""
        method = self.kind()
        method.prepare(self._start(2**31))  # so many requests that this one gets no more than an epoch
        gone = self.held.copy()
        gone[self.requests[0]] = False
        if self.key.method == "retrain":  # all its epochs, on few samples
            gone[np.flatnonzero(gone)[2 * self.setting.original.batch_size :]] = False
        method.forget(
            request_for(self.kind, self.material.at(self.requests[0]), lambda: self.material.part(gone), self.labels[0])
        )

    def _start(self, requests: int) -> Start:
        artefacts, seed = self.artefacts, self.key.seed
        networks = self.material.family == "network"
        if networks:
            _ = artefacts.base, artefacts.original  # made before any time is taken

        def train_anew(samples: Samples) -> Any:  # with other draws than the reference: two retrainings differ too
            return artefacts.trained(samples.inputs, samples.labels, seed + 1000)

        return Start(
            n_classes=artefacts.dataset.n_classes,
            device=artefacts.device,
            seed=seed,
            n_requests=requests,
            settings=self._settings(),
            model=None if self.kind.learns else self.material.original(),
            learned=self.material.part(self.held) if self.kind.learns else None,
            augment=augmented if networks else None,
            train=train_anew if networks else self.material.solved,
        )

    def _settings(self) -> dict[str, Any]:
        own = self.setting.method_settings(self.key.method, self.key.experiment == "table2")
        if self.kind.learns:
            own = {"gamma": self.setting.analytic.gamma} | own
            if self.key.experiment == "class_sums":
                own = own | {"track_classes": True}
        if self.key.method.startswith("neverseen"):
            own = {"codes": self.setting.analytic.codes, "projection_seed": self.key.seed} | own
            own |= {"hardware": "cuda" if self.artefacts.device.type == "cuda" else "torch"}
        return own

    def answer(self) -> None:
        """Hand the method its requests, one by one."""
        if self.kind.learns and self.key.experiment in FEATURES_TIMED:
            self.artefacts.extract(self._images(self.requests[0]))  # warm up
        step = -(-len(self.requests) // LOOKS)
        traced = self.key.seed == self.experiment.seeds[0] and self.key.experiment not in ("table2", "time")
        handed = self._sampled()
        for number, positions in enumerate(self.requests, 1):
            if number not in handed:
                self.held[positions] = False
                continue
            if self.cycles is not None:
                new = self.cycles[number - 1][0]
                self.held[new] = True
                self._measure(lambda rows=new: self.method.learn(self.material.at(rows)))
            elif self.kind.learns and self.key.experiment in FEATURES_TIMED:
                with timed(self.artefacts.device) as elapsed:
                    self.artefacts.extract(self._images(positions))
                self.feature_seconds.append(elapsed.seconds)
            self.held[positions] = False
            request = request_for(
                self.kind,
                self.material.at(positions),
                lambda: self.material.part(self.held),
                self.labels[number - 1],
            )
            self._measure(lambda asked=request: self.method.forget(asked))
            if traced and (number % step == 0 or number == len(self.requests)):
                self._look(number)

    def _sampled(self) -> set[int]:
        """Return the numbers of the requests that are handed to the method."""
        count, few = len(self.requests), self.experiment.sample
        if self.kind.learns or not few:
            return set(range(1, count + 1))
        return set(np.linspace(1, count, min(few, count)).round().astype(int).tolist())

    def _measure(self, act: Any) -> None:
        with peak_memory(self.artefacts.device) as peak, timed(self.artefacts.device) as elapsed:
            act()
        self.seconds.append(elapsed.seconds)
        self.peak, self.peak_source = max(self.peak, peak.bytes), peak.source

    def _images(self, positions: np.ndarray) -> Any:
        return self.artefacts.images[torch.from_numpy(positions).to(self.artefacts.device)]

    def _look(self, number: int) -> None:
        """Note how good the model is after so many requests."""
        retained = self.material.at(self.stays[self.held[self.stays]])  # of those that come and go, those here now
        most = self.setting.sizes.trace
        test = self.material.test_of(self._classes_left(), most)
        self.trace.append(
            {
                "requests": number,
                "retained": metrics.accuracy(self.method.scores(retained.inputs), retained.labels),
                "test": metrics.accuracy(self.method.scores(test.inputs), test.labels),
                "seconds": round(sum(self.seconds), 4),
            }
        )

    def _classes_left(self) -> list[int] | None:
        """Return the classes that test samples may have, or None for all: a class that is asked away counts no more."""
        if self.labels[0] is None:
            return None
        return sorted(set(self.artefacts.labels.cpu().numpy()[self.held].tolist()))

    # -- telling -----------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        """Return all that is to be told of the run."""
        classes = self._classes_left()
        parts = self.material.parts(self.held, classes)
        digest = self.method.digest()
        retrained_digest = self.method.retrained_digest(parts[0]) if digest else None
        per_request, features = ([round(s, 5) for s in part] for part in (self.seconds, self.feature_seconds))
        compared = {} if self.key.experiment == "time" else self._compared(parts, classes)
        return {
            **self.key._asdict(),
            "setting": self.setting.name,
            "settings_digest": settings_digest(self.key, self.setting),
            **_where(),
            "times": {
                "features": round(sum(self.feature_seconds), 4) if self.kind.learns else None,
                "features_per_request": features if 0 < len(features) <= EACH else None,
                "update": round(sum(self.seconds), 4),
                "updates": [round(seconds, 4) for seconds in self.updates] if self.repeats > 1 else None,
                "per_request": per_request if len(per_request) <= EACH else None,
                "quantiles": [round(float(q), 5) for q in np.quantile(self.seconds, [0.5, 0.9, 0.99, 1])],
                "alone": self.key.timed,
            },
            "requests_done": self._done(),
            "samples": dict(zip(metrics.PARTS, (len(part.labels) for part in parts), strict=True)),
            "peak_memory": self.peak,
            "peak_memory_source": self.peak_source,
            **compared,
            "digest": None
            if digest is None
            else {"model": digest, "retrained": retrained_digest, "equal": digest == retrained_digest},
            "reads_retained": self.kind.reads_retained,
            "is_exact": self.kind.is_exact,
            "method_settings": {**self._settings()},
            "notes": list(self.method.notes),
            "artefacts": {
                "data": self.artefacts.data_digest,
                "features": None if self.material.family == "network" else self.artefacts.features_digest,
                "made": dict(self.artefacts.made),
            },
            "after_each_request": self.trace or None,
            "failed": None,
        }

    def _done(self) -> int:
        return len(self.seconds) // (2 if self.cycles is not None else 1)

    def _compared(self, parts: tuple[Samples, Samples, Samples], classes: list[int] | None) -> dict[str, Any]:
        """Compare with the retrained model."""
        scenario = self.scenario
        reference: Reference = reference_for(self.material.family, scenario, self.held, classes, self.artefacts)
        answers = answers_of(self.method.scores, parts)
        values = {name: metrics.accuracy(*answer) for name, answer in zip(metrics.PARTS, answers, strict=True)}
        mia = None
        if self.key.experiment in ATTACKED:
            mia = attacks_on(answers, self.material, reference, scenario, self.held)
        # Exact methods have the reference's own grid; others are compared with the same solution on a finer one.
        truth = reference.parameters if reference.finer is None or self.method.digest() else reference.finer
        return {
            "accuracy": values,
            "reference": reference.accuracy | {"confidence": reference.confidence},
            "gap": metrics.gaps(values, reference.accuracy),
            "parameter_gap": metrics.parameter_gap(self.method.parameters(), truth),
            "reference_norm": float(torch.linalg.vector_norm(truth)),
            "mia": mia,
        }


@cache
def _where() -> dict[str, Any]:
    found = provenance("paper")
    hardware = found["hardware"]
    return {
        "commit": found["commit"] or os.environ.get("NEVERSEEN_COMMIT"),  # where there is no git
        "uncommitted_changes": found["uncommitted_changes"],
        "hardware": hardware["gpu"] or f"{hardware['cores']} x {hardware['cpu']}",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _clean(value: Any) -> Any:
    """Return JSON values: what is not a finite number becomes null."""
    if isinstance(value, dict):
        return {name: _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
