"""Shared set-up: seeded property tests, every kind of hardware this machine has, a PostgreSQL server."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack

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


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a PostgreSQL database."""
    from tests.postgresql import NoServerError, server

    with ExitStack() as stack:
        try:
            url = stack.enter_context(server())
        except NoServerError as error:
            pytest.skip(str(error))
        yield url
