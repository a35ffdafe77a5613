"""Predictions: from the last published version, without waiting for changes; or from the present model."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neverseen.backbones import Backbone, Precomputed
from neverseen.backbones.reading import features_of
from neverseen.backbones.recipes import kind_of
from neverseen.errors import NeverseenError
from neverseen.model.versions import Version
from neverseen.service.answers import labels_of
from neverseen.service.errors import Refusal, refusal_of
from neverseen.service.operations.history import History
from neverseen.service.operations.metrics import Metrics
from neverseen.service.operations.settings import Settings
from neverseen.service.sharing.line import Line
from neverseen.service.sharing.result_memory import ANSWER, share_of
from neverseen.service.sharing.shares import Shares
from neverseen.service.writer.jobs import settle
from neverseen.service.writer.publishing import Published
from neverseen.store.absent_backbone import AbsentBackbone

_QUICK = 0.0005  # seconds of a prediction that may be made on the event loop
_TOGETHER = 128  # rows of features that are predicted at a time
_FRESH, _SMALL = 0.05, 64  # seconds, samples; others wait for a prediction that is neither older nor larger
_LATE = 60.0  # seconds after which a part that is being predicted is called late
_ENTRY = 50  # bytes in JSON, beside its label, of a prediction or of a score
THROUGH_NETWORK = 64
"""Number of samples that go through a network at a time; then others have their turn."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A waiting request. Many samples are predicted in parts, all by the version of the first part."""

    samples: list[Any]
    future: asyncio.Future[dict[str, Any]]
    since: float
    client: str
    counted: int  # samples that count as waiting
    published: Published | None = None
    order: list[int] = field(default_factory=list)
    rows: dict[int, Any] = field(default_factory=dict)

    def part(self, size: int) -> list[int]:
        """Return the positions of the next samples."""
        if not self.order:
            self.order = order_of(self.samples)
        return self.order[len(self.rows) : len(self.rows) + size]


class Predictor:
    """Threads that predict. Requests that wait together go through the network and the weights together.

    A request with many samples is done in parts, and goes behind the others after each part, so nobody waits for all of
    it. Keys take turns, and each has a share of the queue. `published` returns the version that readers see now. With
    ``effect = "immediate"``, labels come from `held`: the present model, published or not, as positions in a list of
    classes.
    """

    def __init__(
        self,
        backbone: Backbone,
        published: Callable[[], Published],
        held: Callable[[np.ndarray], tuple[np.ndarray, list[str]]],
        settings: Settings,
        metrics: Metrics,
        history: History,
    ) -> None:
        self._backbone, self._published, self._held = backbone, published, held
        self._settings, self._metrics, self._history = settings, metrics, history
        self._together = _TOGETHER if kind_of(backbone) == "features" else THROUGH_NETWORK
        inner = backbone.backbone if isinstance(backbone, AbsentBackbone) else backbone
        # A network, or a model that is changing, may be quick once and slow the next time.
        self._is_steady = isinstance(inner, Precomputed | AbsentBackbone) and settings.effect != "immediate"
        self._brief = 0  # samples that may be predicted on the event loop
        self._jobs: Line[_Waiting] = Line(lambda job: min(len(job.samples), self._together))
        self._room = Shares(settings.predict_waiting)
        self._wake = threading.Condition()
        self._stopping = False
        self._sized: tuple[Published | None, int, int, int] = None, 0, 0, 0  # classes, and the bytes of their labels
        self._asked: dict[str, dict[_Waiting, None]] = {}  # by client, for the event loop's thread alone
        self._begun: dict[str, float] = {}  # when each thread began what it is doing
        self._threads = [
            threading.Thread(target=self._run, name=f"predictor-{number}", daemon=True)
            for number in range(settings.predict_threads)
        ]
        for thread in self._threads:
            thread.start()

    async def predict(self, samples: list[Any], client: str = "") -> dict[str, Any]:
        """Return the answer for samples that `Reader` made."""
        if self._settings.output == "scores":
            self._require_few_scores(len(samples))
        if self._is_brief(len(samples)):
            return self._at_once(samples)
        counted = min(len(samples), self._room.share)  # a request is taken, however small a share is
        job = _Waiting(samples, asyncio.get_running_loop().create_future(), time.monotonic(), client, counted)
        with self._wake:
            if self._stopping:
                raise Refusal("stopping", "the service is stopping: try again in a moment", wait=5)
            if not self._room.take(client, counted):
                words = "too many predictions are waiting, for this key or in total (predict_waiting)"
                raise Refusal("busy", f"{words}: try again in a moment", wait=1)
            self._jobs.put(client, job)
            self._wake.notify()
        asked = self._asked.setdefault(client, {})
        asked[job] = None
        try:
            return await job.future
        finally:
            del asked[job]
            if not asked:
                self._asked.pop(client, None)

    def _is_brief(self, samples: int) -> bool:
        """Return whether passing a prediction to a thread would take longer, and it comes before nobody's turn.

        A thread has made one of as many samples before, and was quick: what is slow, or hangs, must not hold up the
        event loop.
        """
        return samples <= self._brief and not self._begun and not self._jobs and not self._stopping

    def _at_once(self, samples: list[Any]) -> dict[str, Any]:
        """Return the answer for a few samples, here and now."""
        since, published = time.monotonic(), self._published()
        try:
            rows = self._predicted(published, samples)
        except Exception as error:
            raise _blamed(error) from error
        took = time.monotonic() - since
        self._note_quick(len(samples), took)
        self._history.took(took)
        self._metrics.predictions.inc(len(samples))
        return {"version": published.number, "predictions": rows}

    def _note_quick(self, samples: int, seconds: float) -> None:
        """Note how long a prediction of so many samples took, to know which may be made on the event loop."""
        if not self._is_steady:
            return
        if seconds <= _QUICK:
            self._brief = max(self._brief, samples)
        elif samples <= self._brief:
            self._brief = samples - 1

    def served(self) -> list[str]:
        """Return the clients with a recent small prediction that is not answered yet.

        Empty if there is a network: it takes long, and mostly runs outside the event loop.
        """
        if self._together != _TOGETHER or not self._asked:
            return []
        since = time.monotonic() - _FRESH
        newest = {client: next(reversed(asked)) for client, asked in self._asked.items()}
        return [client for client, job in newest.items() if job.since > since and len(job.samples) <= _SMALL]

    def answer_size(self, samples: int, published: Published) -> int:
        """Return an upper bound on the bytes of an answer; refuse a request whose answer would be too large.

        Labels can be long, and an answer can have the scores of thousands of them.
        """
        if self._sized[0] is not published:
            sizes = [_written_size(name) for name in published.version.classes] or [0]
            self._sized = published, len(sizes), max(sizes), sum(sizes)
        _, classes, longest, together = self._sized
        each, most, kind = _ENTRY + longest, self._most(), published.version.configuration.targets.kind
        if self._settings.output == "top-k":
            each = _ENTRY + (_ENTRY + longest) * min(classes, self._settings.top_k)
        elif self._settings.output == "scores":
            each = _ENTRY * (classes + 1) + together
        if kind == "label-sets":  # each label may be predicted, whatever the output mode
            each += _ENTRY + classes + together
        elif kind == "numbers":
            each = _ENTRY * (1 + classes)
        if samples * each > most:
            raise _too_large(samples, each, most)
        return samples * each

    def _most(self) -> int:
        """Return the greatest size of an answer, in bytes."""
        return min(self._settings.max_json, share_of(ANSWER, self._settings.max_waiting_bytes))

    def _require_few_scores(self, samples: int) -> None:
        most, classes = self._settings.max_scores, max(1, len(self._published().version.classes))
        if samples > 1 and samples * classes > most:
            raise Refusal(
                "invalid_request",
                f"{samples} samples have scores for {classes} classes each; {most} in all fit one answer (max_scores): "
                f"send at most {max(1, most // classes)} at a time",
            )

    def stalled(self) -> bool:
        """Return whether a thread has ended, or has worked on one part for longer than a network takes."""
        late = time.monotonic() - _LATE
        return any(begun < late for begun in list(self._begun.values())) or not all(
            thread.is_alive() for thread in self._threads
        )

    def stop(self, timeout: float) -> None:
        """Finish waiting requests and end the threads; wait for them at most this many seconds."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        name = threading.current_thread().name
        while True:
            self._begun.pop(name, None)
            with self._wake:
                while not self._jobs and not self._stopping:
                    self._wake.wait()
                if not self._jobs:
                    return
                jobs = [self._jobs.take()]
                count = len(jobs[0].samples)
                while self._jobs and count + len(self._jobs.first().samples) <= self._together:
                    jobs.append(self._jobs.take())
                    count += len(jobs[-1].samples)
                for job in jobs:
                    self._uncount(job, self._together)
            self._begun[name] = time.monotonic()
            if count <= self._together:
                outcomes = self._outcomes(jobs)
                if not any(isinstance(outcome, Exception) for outcome in outcomes):
                    self._note_quick(count, time.monotonic() - self._begun[name])
            else:
                outcome = self._continued(jobs[0])
                if outcome is None:
                    with self._wake:
                        self._jobs.put(jobs[0].client, jobs[0])
                    continue
                outcomes = [outcome]
            with self._wake:
                self._uncount(jobs[0], count)  # what is left of one that failed, or that nobody waits for
            now = time.monotonic()
            for job in jobs:
                self._history.took(now - job.since)
            self._metrics.predictions.inc(count)
            settle(zip(jobs, outcomes, strict=True))

    def _uncount(self, job: _Waiting, most: int) -> None:
        samples = min(job.counted, most)
        job.counted -= samples
        self._room.give(job.client, samples)

    def _outcomes(self, jobs: list[_Waiting]) -> list[dict[str, Any] | Exception]:
        try:
            published = self._published()
            rows = self._predicted(published, [sample for job in jobs for sample in job.samples])
        except Exception as error:
            if len(jobs) > 1:  # whose fault it is shows when each is tried by itself
                return [outcome for job in jobs for outcome in self._outcomes([job])]
            return [_blamed(error)]
        answers: list[dict[str, Any] | Exception] = []
        start = 0
        for job in jobs:
            end = start + len(job.samples)
            answers.append({"version": published.number, "predictions": rows[start:end]})
            start = end
        return answers

    def _continued(self, job: _Waiting) -> dict[str, Any] | Exception | None:
        """Predict the next part of a request; return its outcome, or None if there is more to do."""
        job.published = published = job.published or self._published()
        places = job.part(self._together)
        try:
            rows = self._predicted(published, [job.samples[place] for place in places])
        except Exception as error:
            return _blamed(error, part=len(places))
        job.rows |= zip(places, rows, strict=True)
        if len(job.rows) < len(job.samples) and not job.future.done():  # or nobody waits any more
            return None
        return {"version": published.number, "predictions": [job.rows[place] for place in sorted(job.rows)]}

    def _predicted(self, published: Published, samples: list[Any]) -> list[dict[str, Any]]:
        if self._settings.effect == "immediate":
            return self._predicted_now(samples)
        version = published.version
        if not version.classes:
            raise Refusal("nothing_published", "no version is published yet: learn something first")
        scores = version.scores(self._quantised(version, samples))  # (n, C)
        if version.configuration.targets.kind in ("label-sets", "numbers"):
            return lists_of(version, scores, self._settings)
        labels = labels_of(tuple(version.classes))
        return predictions(scores, labels, version.configuration.grid_bits, self._settings)

    def _quantised(self, version: Version, samples: list[Any]) -> np.ndarray:
        return version.configuration.encoder.quantise(features_of(self._backbone, samples))

    def _predicted_now(self, samples: list[Any]) -> list[dict[str, Any]]:
        """Return labels by the present model. Its classes, and so the size of an answer, are known only here."""
        places, names = self._held(self._quantised(self._published().version, samples))
        if not names:
            raise Refusal("nothing_published", "the model holds no samples: learn something first")
        chosen = {place: names[place] for place in set(places.tolist())}
        longest = _ENTRY + max(map(_written_size, chosen.values()))
        if len(samples) * longest > self._most():
            raise _too_large(len(samples), longest, self._most())
        labels = {place: json.loads(name) for place, name in chosen.items()}
        return [{"label": labels[place]} for place in places.tolist()]


def _too_large(samples: int, each: int, most: int) -> Refusal:
    words = f"the answer for {samples} samples has up to {samples * each} bytes; at most {most} are allowed "
    less = f"send at most {most // each} at a time" if most >= each else "choose another output, or raise the limit"
    return Refusal("too_large", f"{words}(max_json, and an eighth of max_waiting_bytes): {less}")


def order_of(samples: list[Any]) -> list[int]:
    """Return the positions of samples in the order of their parts."""
    order = list(range(len(samples)))
    if isinstance(samples[0], str):  # a network takes texts of one length together
        order.sort(key=lambda place: len(samples[place]))
    return order


def _blamed(error: Exception, part: int | None = None) -> Exception:
    """Return the answer to a request whose samples, or a part of them, cannot be predicted."""
    refusal = refusal_of(error, None) if isinstance(error, NeverseenError) else None
    if refusal is None:
        return error
    return refusal if part is None else refusal.of_part(part)


def predictions(scores: np.ndarray, labels: list[Any], grid_bits: int, settings: Settings) -> list[dict[str, Any]]:
    """Return predictions as JSON values, in the output mode of the service."""
    if settings.output == "labels":
        return [{"label": labels[place]} for place in scores.argmax(axis=1).tolist()]
    values = np.ldexp(scores.astype(np.float64), -grid_bits)
    if settings.output == "top-k":
        order = np.argsort(-scores, axis=1, kind="stable")[:, : settings.top_k]
        return [
            {"top": [{"label": labels[place], "score": float(row[place])} for place in places]}
            for row, places in zip(values, order.tolist(), strict=True)
        ]
    names = _names(labels)
    return [{"scores": dict(zip(names, row, strict=True))} for row in values.tolist()]


def lists_of(version: Version, scores: np.ndarray, settings: Settings) -> list[dict[str, Any]]:
    """Return predictions of label sets or numbers as JSON values; of sets, with scores in those output modes."""
    targets, grid_bits = version.configuration.targets, version.configuration.grid_bits
    said = targets.said(targets.answers(scores, version.classes, grid_bits))
    if targets.kind == "numbers":
        return [{"numbers": row} for row in said]
    rows: list[dict[str, Any]] = [{"labels": row} for row in said]
    if settings.output == "labels":
        return rows
    halves = np.ldexp(scores[:, 0].astype(np.float64), -grid_bits - 1).tolist()  # null is the first in class order
    more = predictions(scores[:, 1:], labels_of(tuple(version.classes))[1:], grid_bits, settings)
    return [row | each | {"threshold": half} for row, each, half in zip(rows, more, halves, strict=True)]


def _written_size(name: str) -> int:
    """Return an upper bound on the bytes of a class in an answer: a letter beyond ASCII becomes 6 or 12 bytes."""
    return len(name) if name.isascii() else 3 * len(name.encode())


def _names(labels: list[Any]) -> list[str]:
    """Return labels as keys of a JSON object; if two would be equal, their canonical texts."""
    names = [label if isinstance(label, str) else json.dumps(label) for label in labels]
    return names if len(set(names)) == len(names) else [json.dumps(label) for label in labels]
