"""A model that learns in one thread holds up no other model, in no other thread and in no forked process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from neverseen import AnalyticClassifier, Identity
from neverseen.hardware import Array, Hardware

X, Y = np.eye(4), ["a", "b", "a", "b"]
BEGUN, GO_ON = threading.Event(), threading.Event()


class Slow(Identity):
    """Waits until it is told to go on."""

    def expand(self, quantised: np.ndarray, hardware: Hardware) -> Array:
        BEGUN.set()
        assert GO_ON.wait(60)
        return super().expand(quantised, hardware)


def new() -> AnalyticClassifier:
    return AnalyticClassifier(Identity(), hardware="numpy")


DIGEST = new().fit(X, Y).digest()


@pytest.fixture
def busy() -> Iterator[AnalyticClassifier]:
    """A model that another thread is making learn."""
    BEGUN.clear()
    GO_ON.clear()
    model = AnalyticClassifier(Slow(), hardware="numpy")
    with ThreadPoolExecutor(1) as other:
        learning = other.submit(model.fit, X, Y)
        assert BEGUN.wait(60)
        try:
            yield model
        finally:
            GO_ON.set()
        assert learning.result(60) is model


def test_no_other_model_waits(busy: AnalyticClassifier) -> None:
    with ThreadPoolExecutor(1) as other:
        learning = other.submit(lambda: [new().fit(X, Y).digest() for _ in range(8)])
        try:
            assert learning.result(10) == [DIGEST] * 8
        finally:
            GO_ON.set()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have(busy: AnalyticClassifier) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if [new().fit(X, Y).digest() for _ in range(8)] == [DIGEST] * 8 else 1)
    assert os.waitpid(child, 0)[1] == 0
