"""The service against its own OpenAPI document: whatever is sent, answers are as documented and never a 500."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neverseen.service import Settings
from tests.services import Running, running, samples

EXAMPLES = 5
POLICY = Settings(
    quiet=0.0, max_delay=0.0, max_batch=50, requests_per_second=1e9, public_per_second=1e9, public_burst=1e9
)
OPERATIONS = [
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/readyz"),
    ("GET", "/v1/certificates"),
    ("GET", "/v1/certificates/key"),
    ("GET", "/v1/certificates/{certificate_number}"),
    ("GET", "/v1/history"),
    ("GET", "/v1/model"),
    ("GET", "/v1/requests"),
    ("GET", "/v1/requests/{request_id}"),
    ("POST", "/v1/forget"),
    ("POST", "/v1/forget/class"),
    ("POST", "/v1/predict"),
    ("POST", "/v1/publish"),
    ("POST", "/v1/samples"),
    ("POST", "/v1/seal"),
    ("POST", "/v1/verify"),
    ("POST", "/v1/what-if"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("schema") / "s", POLICY) as found:
        found.learn(range(20))
        yield found


def test_answers_are_as_documented(service: Running, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"]
    options = ["--header", f"Authorization: {service.admin['Authorization']}", "--max-examples", str(EXAMPLES)]
    options += ["--mode", "all", "--continue-on-failure", "--seed", "1", "--no-color", "--request-timeout", "120"]
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    found = subprocess.run(
        [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"Tested: {len(OPERATIONS)}" in found.stdout


def test_every_operation_is_tried(service: Running) -> None:
    document = service.client.get("/openapi.json").json()
    found = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    assert sorted(found) == OPERATIONS


def test_every_body_and_answer_has_an_example(service: Running) -> None:
    document = service.client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if "requestBody" in operation:
                assert operation["requestBody"]["content"]["application/json"]["example"], path
            for status, answer in operation["responses"].items():
                content = answer["content"].get("application/json")
                if content is None or path == "/v1/certificates/{certificate_number}":
                    continue
                if status.startswith("2"):
                    assert schemas[content["schema"]["$ref"].rpartition("/")[2]]["examples"], (path, status)
                else:
                    assert content["examples"], (path, status)
            assert "500" in operation["responses"], path


def test_the_service_still_answers(service: Running) -> None:
    body = {"samples": [{"features": samples([0])[0]["features"]}]}
    assert service.client.post("/v1/predict", json=body, headers=service.admin).status_code in (200, 409)
    assert service.client.get("/readyz").status_code == 200
