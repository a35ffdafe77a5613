"""Shared set-up: seeded property tests, every kind of hardware this machine has, a PostgreSQL server, a browser."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from neverseen.hardware import Hardware, choose

if TYPE_CHECKING:  # not all of the tests need what databases need
    from playwright.sync_api import Browser, Page

    from neverseen.ledger import Ledger
    from tests.postgresql import Server
    from tests.service.test_console import Running

collect_ignore_glob = [
    "*/sitecustomize.py"
]  # of the processes that tests start; two of one name cannot be imported here
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # for tests that import ONNX Runtime themselves
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
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server."""
    from tests.postgresql import NoServerError, server

    with ExitStack() as stack:
        try:
            found = stack.enter_context(server())
        except NoServerError as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture
def schema(postgresql: Server) -> Iterator[str]:
    """The URL of an empty schema on it."""
    from tests.postgresql import database

    with database(postgresql.url, f"neverseen_tests_{os.getpid()}") as place:
        yield place


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be: each test runs on both."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.sqlite"
    found: str = request.getfixturevalue("schema")
    return found


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """A ledger there."""
    from neverseen.ledger import Ledger

    with Ledger(url, create=True, patience=0.3) as made:
        yield made


# -- the console: each file of tests has a service of its own, under the name `service` ----------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser. Not for the session: while it runs, no other test could run an event loop."""
    from tests import chromium

    with chromium.browser() as started:
        yield started


@pytest.fixture(scope="module")
def tab(browser: Browser, service: Running) -> Iterator[Page]:
    """A tab that the tests of a file share: a new one costs more than most tests."""
    from tests.service.test_console import opened

    with opened(browser, service) as found:
        yield found


@pytest.fixture
def page(tab: Page, service: Running) -> Iterator[Page]:
    """The shared tab, signed in, with nothing in it of the tests before."""
    from tests.service.test_console import signed_in, watched

    signed_in(tab, service.admin)
    with watched(tab, service):
        yield tab
