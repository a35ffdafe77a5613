"""Counters for Prometheus. No label contains input from a client."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Answers(Collector):
    """Requests by route and status, and their times: plain numbers, because every request counts."""

    def __init__(self) -> None:
        self._counts: Counts[tuple[str, int]] = Counts()
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._counts[route, status] += 1
        if route not in self._buckets:
            self._buckets[route], self._sums[route] = [0] * (len(_SECONDS) + 1), 0.0
        self._buckets[route][bisect_left(_SECONDS, seconds)] += 1
        self._sums[route] += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield them in the form of Prometheus."""
        requests = CounterMetricFamily(
            "neverseen_http_requests", "Requests, by route and status.", labels=["route", "status"]
        )
        for (route, status), count in sorted(self._counts.items()):
            requests.add_metric([route, str(status)], count)
        yield requests
        times = HistogramMetricFamily("neverseen_http_seconds", "Seconds until the answer, by route.", labels=["route"])
        for route, buckets in sorted(self._buckets.items()):
            bounds = [*map(str, _SECONDS), "+Inf"]
            times.add_metric([route], list(zip(bounds, accumulate(buckets), strict=True)), self._sums[route])
        yield times


class Metrics:
    """The counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = self.registry
        self._answers = Answers()
        made.register(self._answers)
        self._changes = Counter("neverseen_changes", "Requests carried out, by kind.", ["kind"], registry=made)
        self._samples = Counter(
            "neverseen_samples_changed", "Samples learned or forgotten, by kind.", ["kind"], registry=made
        )
        self._batches = Counter(
            "neverseen_batches", "Changes to the store, of one or more requests.", ["kind"], registry=made
        )
        self.apply_seconds = Histogram(
            "neverseen_apply_seconds", "Seconds of a change.", buckets=_SECONDS, registry=made
        )
        self.publish_seconds = Histogram(
            "neverseen_publish_seconds", "Seconds to publish.", buckets=_SECONDS, registry=made
        )
        self.seal_seconds = Histogram("neverseen_seal_seconds", "Seconds to seal.", buckets=_SECONDS, registry=made)
        self.predictions = Counter("neverseen_predictions", "Samples predicted.", registry=made)
        self.publish_failures = Counter("neverseen_publish_failures", "Publications that failed.", registry=made)
        self.writer_failures = Counter(
            "neverseen_writer_failures", "Times that the store had to be opened again.", registry=made
        )
        self.queue = Gauge("neverseen_queue_requests", "Requests that wait for the writer.", registry=made)
        self.version = Gauge("neverseen_version", "Number of the published version.", registry=made)
        self.samples = Gauge("neverseen_samples", "Samples of the published version.", registry=made)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request. Only the event loop's thread may call this."""
        self._answers.add(route, status, seconds)

    def applied(self, kind: str, requests: int, samples: int, seconds: float) -> None:
        """Count a change."""
        self._changes.labels(kind).inc(requests)
        self._samples.labels(kind).inc(samples)
        self._batches.labels(kind).inc()
        self.apply_seconds.observe(seconds)

    def published(self, number: int, samples: int, seconds: float) -> None:
        """Count a publication."""
        self.publish_seconds.observe(seconds)
        self.version.set(number)
        self.samples.set(samples)

    def text(self) -> bytes:
        """Return all counters, in the text format of Prometheus."""
        return generate_latest(self.registry)
