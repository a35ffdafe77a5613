"""The data of the charts: a point for each publication, and the times of predictions."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from neverseen.errors import FileRejectedError, InputError
from neverseen.io.files import replace_file
from neverseen.labels import canonical_json, normalise, text
from neverseen.service.answers import written
from neverseen.service.operations.log import LOG

NAME, PROBE = "history.jsonl", "probe.npz"
_MINUTES, _PER_MINUTE = 120, 1000


class History:
    """Points in a file in the service's own folder. It holds at most twice the number to keep."""

    def __init__(self, folder: Path, most: int) -> None:
        self._path, self._most = folder / NAME, most
        self._lock = threading.Lock()
        self._points = _read(self._path)[-most:]
        self._lines = len(self._points)
        self._written: bytes | None = None  # the points as JSON, as long as there are no others
        self._past: deque[dict[str, Any]] = deque(maxlen=_MINUTES - 1)
        self._minute, self._taken = 0, list[float]()
        self._write_all()

    def add(self, point: dict[str, Any]) -> None:
        """Add a point. One that cannot be written is kept in memory only: its version is published all the same."""
        with self._lock:
            self._points = [*self._points, point][-self._most :]
            self._written = None
            try:
                self._write(point)
            except OSError as error:
                LOG.error("a point of the charts cannot be written: %s", error)

    def points(self) -> list[dict[str, Any]]:
        """Return the points, oldest first."""
        return self._points

    def took(self, seconds: float) -> None:
        """Note the time of a prediction."""
        minute = int(time.time()) // 60
        with self._lock:
            if minute != self._minute:
                self._past.extend(_latency(self._minute, self._taken))
                self._minute, self._taken = minute, []
            taken = self._taken
            if len(taken) < _PER_MINUTE:
                taken.append(seconds)
            else:  # one in turn is replaced, so that the whole minute shows
                taken[hash((seconds, len(taken))) % _PER_MINUTE] = seconds

    def latency(self) -> list[dict[str, Any]]:
        """Return median and 99th percentile of the predictions of each minute, in seconds."""
        with self._lock:
            past, minute, taken = list(self._past), self._minute, list(self._taken)
        return past + _latency(minute, taken)

    def written(self) -> bytes:
        """Return points and latencies as JSON. Points are encoded once for each publication, not for each answer."""
        with self._lock:
            points, made = self._points, self._written
        if made is None:
            made = written(points)
            with self._lock:
                if self._points is points:
                    self._written = made
        return b'{"points":' + made + b',"latency":' + written(self.latency()) + b"}"

    def _write(self, point: dict[str, Any]) -> None:
        if self._lines >= 2 * self._most:
            self._write_all()
            return
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(canonical_json(point).encode() + b"\n")
        self._lines += 1

    def _write_all(self) -> None:
        replace_file(self._path, [canonical_json(point).encode() + b"\n" for point in self._points])
        self._lines = len(self._points)


def _latency(minute: int, taken: list[float]) -> list[dict[str, Any]]:
    """Return the point of a minute for the charts; none if nothing was predicted in it."""
    if not taken:
        return []
    median, most = np.percentile(taken, (50, 99)).tolist()
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(minute * 60))
    return [{"time": at, "p50": median, "p99": most}]


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the points in a file, without incomplete lines."""
    points = []
    if path.is_file():
        for line in path.read_bytes().splitlines():
            try:
                point = json.loads(line)
            except ValueError:
                continue
            if isinstance(point, dict):
                points.append(point)
    return points


class Probe:
    """A held-out set of features and labels, to measure the accuracy of each new version.

    It is ``probe.npz`` in the service's own folder, with the arrays ``features`` (of the backbone, of shape (n, d0))
    and ``labels``.
    """

    def __init__(self, folder: Path, n_features: int) -> None:
        self.features: np.ndarray | None = None
        self.labels: list[str] = []
        path = folder / PROBE
        if not path.is_file():
            return
        try:
            with np.load(path, allow_pickle=False) as arrays:
                features, labels = arrays["features"], arrays["labels"]
            if features.ndim != 2 or features.shape[1] != n_features or labels.shape != (len(features),):
                raise InputError(f"features must be of shape (n, {n_features}), and labels of shape (n,)")
            self.features = np.asarray(features, np.float32)
            self.labels = [text(normalise(label)) for label in labels.tolist()]
        except (ValueError, KeyError, OSError, TypeError) as error:
            raise FileRejectedError(f"{path} is not a valid probe set: {error}") from error
