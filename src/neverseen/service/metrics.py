"""Counters for Prometheus. No label holds what a client sent."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = self.registry
        self._requests = Counter(
            "neverseen_http_requests", "Requests, by route and status.", ["route", "status"], registry=made
        )
        self._seconds = Histogram(
            "neverseen_http_seconds", "Seconds until the answer, by route.", ["route"], buckets=_SECONDS, registry=made
        )
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
        self._children: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        found = self._children.get((route, status))
        if found is None:
            found = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._children[route, status] = found
        found[0].inc()
        found[1].observe(seconds)

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
        """Return all counters, as Prometheus reads them."""
        return generate_latest(self.registry)
