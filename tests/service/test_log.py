"""The service's log: time, level, message, and no key."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import pytest

from neverseen.errors import ConfigurationError
from neverseen.service import Settings
from neverseen.service.operations.log import LOG, log_to_stderr
from tests.services import running

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@contextmanager
def printed(level: str) -> Iterator[io.StringIO]:
    """What is printed on stderr, as in a process that has set up no log yet."""
    with pytest.MonkeyPatch.context() as patched, redirect_stderr(io.StringIO()) as stream:
        patched.setattr(logging.root, "handlers", [])
        patched.setattr(LOG, "level", LOG.level)
        log_to_stderr(level)
        yield stream
    LOG.setLevel(LOG.level)  # or it would go on with what it remembers


def test_entries_can_be_told_apart() -> None:
    """A message may hold what a client sent."""
    with printed("info") as stream:
        LOG.debug("nothing")
        LOG.info("first\n2026-01-01T00:00:00.000Z ERROR false\r\x1b[2Jfalse\u2028false")
        try:
            raise ValueError("wrong: nsk_" + "x-_9" * 10 + "xyz")
        except ValueError as error:
            LOG.error("request %s failed", "abc", exc_info=error)
    lines = stream.getvalue().splitlines()
    assert [bool(re.match(f"{TIME} (INFO|ERROR) ", line)) for line in lines] == [
        not line.startswith("    ") for line in lines
    ]
    assert [line[25:] for line in lines if line[0] != " "] == ["INFO first", "ERROR request abc failed"]
    assert lines[-1] == "    ValueError: wrong: nsk_..."
    assert "\x1b" not in stream.getvalue()


def test_levels(tmp_path: Path) -> None:
    with printed("debug") as stream, running(tmp_path / "s") as service:
        service.learn(range(3))
        service.client.post("/v1/publish", headers=service.admin)
    messages = [line[25:] for line in stream.getvalue().splitlines()]
    assert messages[0] == "INFO the service has started, with version 0"
    assert re.fullmatch(r"DEBUG version 1 is published: \d+\.\d{3} seconds", messages[1])
    assert messages[-1] == "INFO the service has stopped"
    with pytest.raises(ConfigurationError, match="log_level must be one of debug, info, warning, error; got 'all'"):
        Settings(log_level="all")


def test_a_process_apart_tells_what_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the id of the request, and not somewhere between other lines."""
    with running(tmp_path / "s") as service:
        monkeypatch.setattr(service.service.readers, "_asked", lambda *_: ({"failed": "Traceback of it"}, []))
        monkeypatch.setattr("neverseen.service.reception.reception.reads_fast", lambda *_: False)
        answer = service.client.post("/v1/predict", json={"samples": []}, headers=service.admin)
    assert answer.status_code == 500
    request = answer.headers["x-request-id"]
    assert f"request {request} failed" in caplog.text
    assert "a worker process failed: Traceback of it" in caplog.text
