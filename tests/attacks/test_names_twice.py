"""The promise: of what is sent, nothing is dropped in silence. JSON that has a name twice is refused as a whole.

Of such a name readers take the last value, or the first. A forgetting that lists receipts twice would be answered with
success for half of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neverseen import store
from neverseen.errors import ConfigurationError, FileRejectedError, StoreDamagedError
from neverseen.labels import parse_json
from neverseen.service import Settings
from neverseen.service.errors import Refusal
from neverseen.service.reception.access import NAME, KeyFile
from neverseen.service.reception.contents import parsed
from neverseen.service.reception.schemas import Body, ClassBody, ForgetBody, LearnBody, PredictBody, VerifyBody
from neverseen.sources.receipts import read_receipts
from tests.services import BACKBONE, KEYS, never, new_store, running

STILL = Settings(quiet=10**6, max_delay=10**6, seal_after=10**6)
SAMPLE = '{"text":"a","label":"cat"}'
TWICE: list[tuple[type[Body], str]] = [
    (ForgetBody, '{"receipts":["AAAA"],"receipts":["BBBB"]}'),
    (ForgetBody, '{"receipts":["AAAA"],"\\u0072eceipts":["BBBB"]}'),
    (ForgetBody, f'{{"samples":[{SAMPLE}],"samples":[{SAMPLE}]}}'),
    (ForgetBody, f'{{"samples":[{SAMPLE},{{"text":"a:b","label":"cat","label":"dog"}}]}}'),
    (ClassBody, '{"label":"dog","label":"cat"}'),
    (ClassBody, '{"label" :"dog" , "label": "a:\\":b"}'),
    (LearnBody, f'{{"samples":[{SAMPLE}],"owner":"ada","owner":"bob"}}'),
    (LearnBody, '{"samples":[{"features":[1],"features":[2],"label":1}]}'),
    (LearnBody, '{"samples":[{"text":"a","label":1,"id":"x","id":"x"}]}'),
    (PredictBody, '{"samples":[{"text":"a","text":"b"}]}'),
    (VerifyBody, '{"certificate":1,"certificate":2,"checks":["chain"]}'),
    (VerifyBody, '{"certificate":{"number":1,"number":2},"checks":["chain"]}'),
    (VerifyBody, '{"certificate":{"after":[{"a":{"b":1,"b":2}}]},"checks":["chain"]}'),
]
ONCE: list[tuple[type[Body], Any]] = [
    (ForgetBody, {"receipts": ["AA:A", ":::"]}),
    (ForgetBody, {"samples": [{"text": '":"a":"', "label": ":"}, {"features": [1.5, 2], "label": 3, "id": "\\"}]}),
    (ClassBody, {"label": 'a":"b'}),
    (LearnBody, {"samples": [{"text": '{"text":1}', "label": "l", "id": "a:b"}], "owner": "ada"}),
    (VerifyBody, {"certificate": {"a": [{"b": 1}, 2, {"b": ":"}], "c": {}}, "receipt": "AAAA", "checks": ["mine"]}),
]


@pytest.mark.parametrize(("model", "words"), TWICE)
def test_a_body_with_a_name_twice_is_refused(model: type[Body], words: str) -> None:
    with pytest.raises(Refusal, match="a name appears twice") as caught:
        parsed(model, words.encode())
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(("model", "value"), ONCE)
@pytest.mark.parametrize("indent", [None, 2])
def test_colons_are_not_names(model: type[Body], value: Any, indent: int | None) -> None:
    parsed(model, json.dumps(value, indent=indent).encode())


def test_no_receipt_is_dropped(tmp_path: Path) -> None:
    """Each was acknowledged with 202, and half of what it listed stayed."""
    with running(tmp_path / "s", STILL) as service:
        held = service.learn(range(10))
        as_json = service.admin | {"Content-Type": "application/json"}
        body = f'{{"receipts":["{held[0]}"],"receipts":["{held[1]}"]}}'
        line = f'{{"receipt":"{held[2]}","receipt":"{held[3]}"}}\n'
        answers = [
            service.client.post("/v1/forget", content=body, headers=as_json),
            service.client.post("/v1/forget", files={"receipts": ("r", line.encode())}, headers=service.admin),
            service.client.post("/v1/forget/class", content='{"label":"dog","label":"cat"}', headers=as_json),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request"), answer.text
        assert service.digest() == never(range(10))


def test_a_file_of_receipts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"receipt":"TlNSMgAA","receipt":"TlNSMgAB"}\n')
    with pytest.raises(FileRejectedError, match="line 1 is not a receipt"):
        read_receipts([path])


def test_the_files_of_a_store_and_of_its_service(tmp_path: Path) -> None:
    folder = new_store(tmp_path / "s")
    KeyFile(tmp_path).add("shop", ["learn"])
    path = tmp_path / NAME
    path.write_text(path.read_text().replace('"format"', '"keys":[],"format"', 1))
    with pytest.raises(ConfigurationError, match="a name twice"):
        KeyFile(tmp_path).all()
    path = folder / "store.json"
    path.write_text(path.read_text().replace('"track_classes"', '"track_classes":true,"track_classes"', 1))
    with pytest.raises(StoreDamagedError, match="is damaged"):
        store.open(folder, backbone=BACKBONE, keys=KEYS)


@pytest.mark.parametrize("words", ['{"a":1,"a":1}', '[{"b":{"a":1,"\\u0061":2}}]', "{", ""])
def test_the_reader(words: str) -> None:
    assert parse_json('{"a":{"b":1},"c":[{"b":2},{"b":3}]}') == {"a": {"b": 1}, "c": [{"b": 2}, {"b": 3}]}
    for given in (words, words.encode()):
        with pytest.raises(ValueError, match=r"."):
            parse_json(given)
