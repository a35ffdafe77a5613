"""The promise: what a request says is heeded or refused. No change is made for who asked for something else."""

from __future__ import annotations

import hashlib
import io
import sqlite3
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from neverseen.service import Settings
from tests.attacks.siege import besieged
from tests.services import bearer, never, running, samples

STILL = Settings(quiet=10**6, max_delay=10**6, seal_after=10**6)


def test_what_a_change_does_not_take_is_refused(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        held = service.learn(range(4))
        once = {"Idempotency-Key": "k"}
        asked: list[tuple[str, Any, dict[str, str], dict[str, str]]] = [
            ("publish", None, once, {}),
            ("seal", None, once, {}),
            ("publish", None, {}, {"dry_run": "true"}),
            ("seal", None, {}, {"below_min_batch": "true", "dry_run": "true"}),
            ("samples", {"samples": samples([9])}, {}, {"dry_run": "true"}),
            ("forget", {"receipts": held[:1]}, {}, {"dryrun": "true"}),
            ("forget", {"receipts": held[:1]}, {}, {"dry_run": "true", "owner": "ada"}),
            ("forget/class", {"label": "cat"}, once, {"DRY_RUN": "true"}),
        ]
        for path, body, headers, query in asked:
            answer = service.client.post(f"/v1/{path}", json=body, headers=service.admin | headers, params=query)
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request"), (path, answer.text)
        assert service.digest() == never(range(4))
        model = service.client.get("/v1/model", headers=service.admin).json()
        assert (model["version"], model["unpublished"]) == (0, 4)
        for verb in ("publish", "seal"):
            answer = service.client.post(f"/v1/{verb}", headers=service.admin, params={"below_min_batch": "true"})
            assert answer.status_code == 200


def test_body_digests_are_the_specified_ones(tmp_path: Path) -> None:
    """Section 12.2 of the specification, from its words."""
    folder = tmp_path / "s"
    images = [png(value) for value in (10, 200)]
    with (
        besieged(folder, "images", quiet=10**6, max_delay=10**6) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{service.port}", timeout=60) as client,
    ):
        secret = bearer(service.tokens["other"])
        form: dict[str, Any] = {"files": [("files", (f"{row}.png", image)) for row, image in enumerate(images)]}
        fields = {"labels": '["cat", 7]', "owner": "ada"}
        learned = client.post("/v1/samples", headers=secret | {"Idempotency-Key": "1"}, data=fields, **form)
        assert learned.status_code == 201, learned.text
        receipts = [word.encode() for word in learned.json()["receipts"]]
        file, body = b'{"receipt":"%s"}\n' % receipts[0], b'{ "receipts": ["%s"] }' % receipts[1]
        answers = [
            client.post("/v1/forget", headers=secret | {"Idempotency-Key": "2"}, files={"receipts": ("r", file)}),
            client.post(
                "/v1/forget",
                headers=secret | {"Idempotency-Key": "3", "Content-Type": "application/json"},
                content=body,
            ),
        ]
        assert [answer.status_code for answer in answers] == [202, 202]
        with sqlite3.connect(f"file:{folder / 'ledger.sqlite'}?mode=ro", uri=True) as ledger:
            kept = [body[-32:] for (body,) in ledger.execute("select body from neverseen_requests order by place")]
    key = bytes.fromhex((folder / "service" / "secret").read_text())
    parts = [b"(['cat', 7], [None, None], 'ada')", *images]
    contents = [
        b"learn\0" + b"".join(len(part).to_bytes(8, "big") + part for part in parts),
        b"forget\0" + file,
        b"forget\0" + body,
    ]
    person = b"neverseen:body"
    assert kept == [hashlib.blake2b(each, digest_size=32, key=key, person=person).digest() for each in contents]


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (value, value, 0)).save(file, "PNG")
    return file.getvalue()
