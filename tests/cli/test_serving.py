"""``neverseen serve``: what cannot work is told at the start; the address is told once it answers."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from neverseen import AnalyticClassifier, RandomProjection, store
from neverseen.service.edge.server import bound
from tests.cli.test_cli import INIT, _here, run
from tests.networks_for_stores import Letters
from tests.services import environment

__all__ = ["_here"]


def custom() -> None:
    settings = AnalyticClassifier(RandomProjection(16), gamma=64)
    with store.create("mail", Letters(), settings) as model:
        model.learn(["abc", "xyz"], ["a", "b"])
        model.publish()


def test_a_port_in_use_is_told_and_no_address() -> None:
    run("init", "shop", *INIT)
    run("keys", "add", "shop", "app", "--scope", "predict")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = run("serve", "shop", "--port", port, code=1)
    assert f"port {port} of 127.0.0.1 cannot be used: it is in use by another program" in words
    assert "console and API" not in words


def test_a_backbone_that_cannot_be_made_is_told_at_the_start() -> None:
    custom()
    for words in (["serve", "mail"], ["predict", "mail", "a.csv"], ["learn", "mail", "a.csv"]):
        refused = run(*words, code=1)
        assert "mail was made with the backbone letters, and has no recipe for it" in refused
        assert "--backbone features" in refused
        assert "Receipts, status and verify need no backbone" in refused


BAD_BACKBONES = {
    "tests.networks_for_stores:Other": "the store was made with another backbone than other",
    "tests.networks_for_stores:nonsense": "a backbone has a name, n_features, extract and digest; str has not",
    "tests.networks_for_stores:absent": "there is no 'absent' in ",
    "tests.networks_for_stores:Silent": "the backbone silent does not say which samples it takes",
    "tests.networks_for_stores:failing": "by zero, in networks_for_stores.py",
    "no.such.module:thing": "it cannot be imported (ModuleNotFoundError: No module named 'no')",
    "broken:thing": "it cannot be imported (SyntaxError: ",
    "..os:thing": "it cannot be imported",
    "os": "a backbone is one of efficientnet_lite0[:RESOLUTION], features:NUMBER[:NAME], minilm, onnx:FILE",
    "features:8": "the store was made with another backbone than precomputed",
}


def test_an_operators_backbone_is_checked() -> None:
    custom()
    Path("a.csv").write_text("text\nabc\n", "utf-8")
    Path("broken.py").write_text("def\n", "utf-8")
    for given, why in BAD_BACKBONES.items():
        assert why in run("predict", "mail", "a.csv", "--backbone", given, code=1), given
    for given in ("tests.networks_for_stores:Letters", "tests.networks_for_stores:ready_made"):
        run("predict", "mail", "a.csv", "--backbone", given)


MODULE = """
import hashlib
import numpy as np


class Lengths:
    name, n_features, takes = "lengths", 2, "texts"

    def extract(self, samples):
        return np.array([[len(text), 1] for text in samples], np.float32).reshape(-1, 2)

    def digest(self):
        return hashlib.sha256(b"lengths").hexdigest()
"""


def test_a_backbone_of_a_module_in_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("lengths_of_texts.py").write_text(MODULE, "utf-8")
    Path("a.csv").write_text("label,text\nx,Hello\ny,Bye\n", "utf-8")
    given = ("--backbone", "lengths_of_texts:Lengths")
    assert "give --backbone lengths_of_texts:Lengths with each command" in run("init", "mail", *given, "--codes", "16")
    for words in (["learn", "mail", "a.csv"], ["serve", "mail"]):  # what the folder holds is never imported by itself
        assert "has no recipe for it. Give the backbone with --backbone MODULE" in run(*words, code=1)
    run("learn", "mail", "a.csv", "--receipts", "r.jsonl", *given)
    assert "right: " in run("predict", "mail", "a.csv", "--labelled", *given)
    run("verify", "retrain", "mail", "a.csv", *given)
    run("forget", "mail", "a.csv", *given)


def test_this_folder_hides_nothing_and_serves_one_module_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files lie about in the folder of samples. An installed module is not looked for there, nor what it imports."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("tests").mkdir()
    Path("tests/networks_for_stores.py").write_text("raise SystemExit('planted')", "utf-8")
    run("init", "mail", "--backbone", "tests.networks_for_stores:Letters", "--codes", "16")
    assert str(Path.cwd()) not in sys.path


def test_a_store_takes_the_words_it_was_made_with() -> None:
    run("init", "shop", *INIT)
    Path("a.csv").write_text("label,a,b,c,d,e,f,g,h\nx,1,1,1,1,1,1,1,1\n", "utf-8")
    run("learn", "shop", "a.csv", "--backbone", "features:8")


def served(*words: str) -> tuple[subprocess.Popen[str], str]:
    """Start a service; return it and the address that it tells, with all that it said before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "neverseen.cli", "serve", *words, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    said = ""
    assert process.stderr is not None
    for line in process.stderr:
        said += line
        if line.startswith("console and API: "):
            return process, said
    process.wait(60)
    raise AssertionError(said)


@pytest.mark.parametrize(
    ("given", "sample", "refused"),
    [
        ("tests.networks_for_stores:ready_made", {"text": "abc"}, {"features": [0.0] * 8}),
        ("features", {"features": [0.0, 1.0, 1.0, 1.0] + [0.0] * 4}, {"text": "abc"}),
    ],
)
def test_what_is_served_is_what_was_said(given: str, sample: dict[str, object], refused: dict[str, object]) -> None:
    custom()
    token = run("keys", "add", "mail", "app", "--scope", "predict").strip()
    process, said = served("mail", "--backbone", given)
    try:
        assert ("images and texts are refused" in said) == (given == "features")
        address = said.splitlines()[-1].removeprefix("console and API: ")
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
            good = client.post("/v1/predict", json={"samples": [sample]})  # at once: it listens already
            assert good.json()["predictions"] == [{"label": "a"}], good.text
            assert client.post("/v1/predict", json={"samples": [refused]}).status_code == 422
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def test_sockets_are_bound_to_all_addresses_of_a_name() -> None:
    sockets = bound("localhost", 0)
    assert sockets
    for each in sockets:
        assert each.getsockname()[1] > 0
        each.close()
