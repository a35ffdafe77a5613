"""The promise: no check says ``ok`` of a certificate without saying whose it is. Anybody can make a key and sign."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from neverseen import store
from neverseen.cli.program import app
from neverseen.proof.certificates import State, issue
from neverseen.proof.receipts import commitment
from neverseen.proof.signing import SigningKey
from tests.services import BACKBONE, KEYS, LABELS, ROWS, new_store, running

OTHER = SigningKey.generate()


@pytest.fixture
def given(tmp_path: Path) -> tuple[str, str, str]:
    """A store, the file of a receipt of a sample that it holds, and a certificate that somebody else made up of it."""
    folder = new_store(tmp_path / "s")
    with store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        (token,) = opened.learn(ROWS[:1], LABELS[:1])
        opened.publish()
    receipt, forged = tmp_path / "one.jsonl", tmp_path / "forged.json"
    receipt.write_text(json.dumps({"receipt": base64.urlsafe_b64encode(token).decode()}))
    empty, after = State.empty("ab" * 32), State("01" * 32, "02" * 32, 1, 1)
    made = issue(1, None, "ab" * 32, empty, after, 2, 1, [commitment(token)], 40, None, OTHER)
    forged.write_bytes(made.to_json())
    return str(folder), str(receipt), str(forged)


@pytest.mark.parametrize("signed", [True, False])
def test_the_service_finds_no_receipt_in_what_it_did_not_sign(tmp_path: Path, signed: bool) -> None:
    with running(tmp_path / "s") as service:
        receipt = service.learn([0])[0]
        service.client.post("/v1/publish", headers=service.admin)
        own = service.service.opened().description.public_key
        listed, after = [commitment(base64.urlsafe_b64decode(receipt))], State("01" * 32, "02" * 32, 1, 1)
        made = issue(1, None, "ab" * 32, State.empty("ab" * 32), after, 2, 1, listed, 40, None, OTHER)
        forged = json.loads(made.to_json()) | ({} if signed else {"key": own, "signature": "00" * 64})
        body = {"certificate": forged, "checks": ["mine"], "receipt": receipt}
        (check,) = service.client.post("/v1/verify", json=body).json()["checks"]
    assert not check["passed"]
    assert ("signed with the key" if signed else "signature") in check["message"]
    assert check.get("listed_in") is None


def verified(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["verify", *words])
    return found.exit_code, found.output


def facts(*words: str) -> dict[str, Any]:
    return dict(json.loads(verified(*words, "--json")[1]))


def test_the_key_of_nobody_is_named(given: tuple[str, str, str]) -> None:
    _, receipt, forged = given
    for words in (["mine", forged, "--receipt", receipt], ["chain", forged]):
        code, output = verified(*words)
        assert code == 0
        assert f"signed by an unknown key ({OTHER.public})" in " ".join(output.split())
        assert "--public-key" in output
        assert facts(*words)["key_known"] is False
    assert facts("mine", forged, "--receipt", receipt)["keys"] == [OTHER.public]
    assert facts("chain", forged)["key"] == OTHER.public


def test_a_key_that_is_known_is_named_too(given: tuple[str, str, str]) -> None:
    folder, receipt, forged = given
    with store.open(folder, keys=KEYS, write=False) as opened:
        own = opened.description.public_key
    for words in (["mine", forged, "--receipt", receipt], ["chain", forged]):
        output = " ".join(verified(*words, "--public-key", OTHER.public)[1].split())
        assert f"signed with {OTHER.public}" in output
        assert "unknown" not in output
        assert facts(*words, "--public-key", OTHER.public)["key_known"] is True
        assert verified(*words, "--public-key", own)[0] == 1
    assert verified("mine", forged, "--receipt", receipt, "--store", folder)[0] == 1
    found = facts("chain", folder)
    assert (found["key"], found["key_known"]) == (own, True)
