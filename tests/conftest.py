"""Shared set-up: seeded property tests, and every kind of hardware this machine has."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import HealthCheck, settings

from neverseen.hardware import Hardware, choose

settings.register_profile(
    "neverseen", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("neverseen")


def hardware_here() -> list[str]:
    names = ["numpy"]
    if importlib.util.find_spec("torch") is not None:
        import torch

        names += ["torch"] + (["cuda"] if torch.cuda.is_available() else [])
    return names


@pytest.fixture(params=hardware_here())
def hardware(request: pytest.FixtureRequest) -> Hardware:
    return choose(request.param)
