"""The client against a real service on loopback, and the guide, whose commands and code are run as they stand."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

httpx = pytest.importorskip("httpx")

from neverseen.client import (  # noqa: E402
    AsyncClient,
    Client,
    ForgottenAlreadyError,
    NotHeldError,
    ReceiptRefusedError,
    ServiceError,
    UnreachableError,
)
from tests.services import environment, free_port, require_ready  # noqa: E402
from tests.tls import certificate  # noqa: E402

GUIDE = Path(__file__).parents[2] / "docs/service.md"
PORT = "8080"


class Shell:
    """A shell that stays, and the service that was started in it."""

    def __init__(self, folder: Path) -> None:
        tools = folder / "tools"
        tools.mkdir()
        (tools / "pip").write_text("#!/bin/sh\n", "utf-8")
        (tools / "pip").chmod(0o700)
        self.folder = folder
        self.env = environment() | {"PATH": f"{tools}:{os.environ['PATH']}", "NO_COLOR": "1"}
        self.port = str(free_port())
        self.url = f"http://127.0.0.1:{self.port}"
        self.service: subprocess.Popen[bytes] | None = None
        self._bash = subprocess.Popen(
            [shutil.which("bash") or "bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=self.env,
            text=True,
        )

    def run(self, command: str) -> str:
        """Return what a command prints; it must succeed. A service is left running."""
        command = command.replace(PORT, self.port)
        if command.startswith("neverseen serve"):
            words = [
                sys.executable,
                "-m",
                "neverseen.cli",
                *shlex.split(command)[1:],
                *([] if "--port" in command else ["--port", self.port]),
            ]
            self.serve(words, "https" if "--tls-cert" in command else "http")
            return ""
        own = re.fullmatch(r"(?:(\w+)=\$\()?neverseen ([^()]*)\)?", command)
        if own:  # in this process, since another takes seconds to start
            from typer.testing import CliRunner

            from neverseen.cli import app

            with chdir(self.folder):
                found = CliRunner().invoke(app, shlex.split(own[2]))
            assert found.exit_code == 0, found.output
            return self.run(f"{own[1]}={found.stdout.strip()}") if own[1] else found.stdout
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f'{command}\necho "@@$?"\n')
        self._bash.stdin.flush()
        lines: list[str] = []
        while not (line := self._bash.stdout.readline()).rstrip().endswith(("@@0",)):
            assert line, f"the shell ended in {command}"
            assert not re.search(r"@@[0-9]+$", line), f"{command} failed: {''.join(lines)}"
            lines.append(line)
        return "".join(lines) + line.rpartition("@@")[0]

    def serve(self, words: list[str], scheme: str) -> None:
        with (self.folder / "service.log").open("ab") as log:
            self.service = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=log, stderr=log)
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        try:
            require_ready(self.service, self.url)
        except AssertionError as error:
            raise AssertionError((self.folder / "service.log").read_text()) from error

    def stop(self) -> None:
        if self.service is not None and self.service.poll() is None:
            self.service.terminate()
            assert self.service.wait(60) in (0, -15)

    def close(self) -> None:
        self.stop()
        self._bash.kill()
        self._bash.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    pytest.importorskip("neverseen.service", exc_type=ImportError)
    for tool in ("bash", "curl", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"the guide's examples need {tool}")
    made = Shell(tmp_path)
    yield made
    made.close()


def commands(block: str) -> list[str]:
    return [part.strip() for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part.strip()]


def alike(found: Any, shown: Any) -> bool:
    """Return whether two JSON values have the same form: names and kinds, and what is true. None stands for anything."""
    if isinstance(found, dict) and isinstance(shown, dict):
        return found.keys() == shown.keys() and all(alike(found[name], shown[name]) for name in found)
    if isinstance(found, list) and isinstance(shown, list):
        return bool(found) == bool(shown) and all(map(alike, found, shown))
    if isinstance(found, bool) or isinstance(shown, bool):
        return found is shown
    numbers = isinstance(found, int | float) and isinstance(shown, int | float)
    return numbers or type(found) is type(shown) or found is None or shown is None


def test_the_guide(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    certificate(shell.folder)
    names: dict[str, Any] = {}
    printed = ""
    for kind, block in re.findall(r"^```(console|json|python)\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S):
        if kind == "json":
            if "..." not in block:
                assert alike(json.loads(printed), json.loads(block)), printed
        elif kind == "python":
            key = httpx.get(f"{shell.url}/v1/certificates/key", trust_env=False).json()["key"]
            names |= {"TOKEN": shell.run("echo $TOKEN").strip(), "PUBLIC_KEY": key}
            exec(block.replace(PORT, shell.port), names)  # noqa: S102
        else:
            if "--tls-cert" in block:
                shell.stop()
            for command in commands(block):
                printed = shell.run(command)
            if "/v1/samples" in block or "-o forgotten.json" in block:  # "a moment later", "once it is published"
                with Client(shell.url, shell.run("echo $ADMIN").strip()) as client:
                    client.wait(json.loads(printed)["request"]["id"])
    assert re.fullmatch(r"\['cat'\]\n1\nforgotten before: see certificate [0-9]+\n", capsys.readouterr().out)
    names["client"].close()
    assert shell.url.startswith("https")
    with Client(shell.url, names["TOKEN"], ca_file=shell.folder / "chain.pem") as client:
        assert client.model().samples == 2
    with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
        Client(shell.url, names["TOKEN"], retries=0).model()


def require_refusals(
    client: Client, url: str, folder: Path, receipts: list[bytes], rows: np.ndarray, certificate: int
) -> None:
    from neverseen.service import KeyFile

    with pytest.raises(ForgottenAlreadyError) as already:
        client.forget([receipts[2], receipts[0]])
    assert (already.value.row, already.value.certificate) == (1, certificate)
    bent = receipts[2][:-1] + bytes([receipts[2][-1] ^ 1])
    with pytest.raises(ReceiptRefusedError) as refused:
        client.forget(bent)
    assert (refused.value.reason, refused.value.status) == ("altered", 404)
    with pytest.raises(NotHeldError, match="not_learned"):
        client.forget(samples=rows[:1], labels=[0])
    with pytest.raises(ServiceError, match="not_tracked"):
        client.forget_class(2)
    with pytest.raises(ServiceError, match="needs|features") as wrong:
        client.predict([[1.0]])
    assert (wrong.value.code, wrong.value.row) == ("invalid_request", 0)

    token = KeyFile(folder / "service").add("ada", ["forget"], owner="ada")
    with Client(url, token) as ada, pytest.raises(NotHeldError, match="not_found"):
        ada.forget(receipts[2])
    with Client(url, "nsk_" + "x" * 43) as stranger, pytest.raises(ServiceError, match="unauthorized"):
        stranger.model()


def test_against_a_service_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("neverseen.service", exc_type=ImportError)
    from benchmarks.service_process import Samples, Served

    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    rows = np.round(np.random.default_rng(0).normal(size=(6, 8)) * 16) / 16
    labels: list[int | str] = [0, 1, 2, "a", "b", "c"]
    with Served(tmp_path, 32, Samples(8, 3, seed=0)) as served, Client(served.url, served.token) as client:
        first = client.learn(rows, labels, idempotency_key="first")
        forgotten = client.forget(first.receipts[:2], idempotency_key="second")
        served.kill()
        served.start()  # on the same port: a client that is there already finds it again
        assert client.forget(first.receipts[:2], idempotency_key="second") == client.request(forgotten)
        with pytest.raises(ServiceError, match="idempotency_conflict"):
            client.forget(first.receipts[2:], idempotency_key="second")
        done = client.wait(forgotten)
        assert done.certificate is not None
        key = served.public_key
        assert client.check(client.certificate(done.certificate), public_key=key, receipt=first.receipts[1])
        assert [check.passed for check in client.verify(done.certificate, checks=["signature", "weights"])] == [
            True
        ] * 2
        assert client.certificates(limit=1)[0].number == client.model().version
        require_refusals(client, served.url, served.folder, first.receipts, rows, done.certificate)

        async def talk() -> None:
            async with AsyncClient(served.url, served.token) as other:
                twice = [other.forget(first.receipts[2], idempotency_key="third") for _ in range(5)]
                found = await asyncio.gather(*twice)
                assert len({request.id for request in found}) == 1
                assert (await other.wait(found[0])).state == "published"
                assert (await other.model()).samples == 3
                assert len((await other.predict(rows)).labels) == 6

        asyncio.run(talk())
        assert client.seal()["sealed"] is True
        assert client.request(forgotten).state == "sealed"
        assert {request.kind for request in client.requests()} == {"learn", "forget"}
        assert served.stop() < 60
    assert served.held()[1] == served.replay_rows(rows[3:], labels[3:])


def test_the_guide_has_everything() -> None:
    service = pytest.importorskip("neverseen.service", exc_type=ImportError)
    from neverseen.service.errors import CODES
    from neverseen.service.operations.metrics import Metrics

    guide = GUIDE.read_text("utf-8")
    for code, (status, _) in CODES.items():
        assert f"| `{code}` | {status} |" in guide
    for field in dataclasses.fields(service.Settings):
        shown = (
            f"{field.default:,g}"
            if isinstance(field.default, float)
            else f"{field.default:,}"
            if field.type == "int"
            else str(field.default).lower()
        )
        assert f"| `{field.name}` | {shown} |" in guide
    for name in re.findall(r"^# TYPE (\S+) ", Metrics().text().decode(), re.MULTILINE):
        assert f"| `{name}` |" in guide or name.endswith("_created")
