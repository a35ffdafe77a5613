"""A bare FastAPI route around a float32 product, for `benchmarks.service` to compare with.

It knows no keys, limits, versions or certificates, and its weights never change: what is left is JSON, a projection, a
product and an answer. ``python -m benchmarks.service_bare PORT FEATURES SIZE CLASSES``.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.service_process import free_port


class Sample(BaseModel):
    """One sample."""

    features: list[float]


class Question(BaseModel):
    """What a client sends."""

    samples: list[Sample]


def app(features: int, size: int, classes: int) -> FastAPI:
    """Return the application."""
    rng = np.random.default_rng(0)
    projection = rng.choice(np.array([-1, 1], np.float32), (features, size))
    weights = rng.standard_normal((size, classes), dtype=np.float32)
    made = FastAPI()

    @made.post("/v1/predict")
    async def predict(question: Question) -> dict[str, Any]:
        rows = np.array([sample.features for sample in question.samples], np.float32)
        best = (np.maximum(rows @ projection, 0) @ weights).argmax(axis=1)  # (n, d) (d, C)
        return {"version": 1, "predictions": [{"label": label} for label in best.tolist()]}

    return made


@contextmanager
def served(features: int, size: int, classes: int) -> Iterator[int]:
    """Yield the port of the route, in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.service_bare", *map(str, (port, features, size, classes))]
    process = subprocess.Popen(command)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=5).close()
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def main(arguments: list[str]) -> None:
    """Serve."""
    port, features, size, classes = map(int, arguments)
    uvicorn.run(app(features, size, classes), port=port, log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
