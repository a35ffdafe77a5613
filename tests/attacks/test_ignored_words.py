"""The promise: what a request says is heeded or refused. No change is made for who asked for something else."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from neverseen.service import Settings
from tests.attacks.siege import besieged
from tests.cli.test_cli import INIT, NAMES, ROWS, _here, answer, run, write_csv
from tests.services import bearer, never, running, samples

__all__ = ["_here"]

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


def test_bodies_in_another_form_are_refused(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        body = json.dumps({"receipts": service.learn([0])}).encode()
        kind = "application/json"
        for more in (
            {"Content-Encoding": "gzip", "Content-Type": kind},
            {"Content-Encoding": "identity, br", "Content-Type": kind},
            {"Content-Type": f"{kind}; charset=utf-16"},
            {"Content-Type": f'{kind}; charset="latin-1"'},
            {"Content-Type": f"{kind}; charset*=utf-8''utf-16"},
            {"Content-Type": kind, "content-type": f"{kind}; charset=utf-16"},
        ):
            headers = [*service.admin.items(), *more.items()]
            answer = service.client.post("/v1/forget", content=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (415, "wrong_content_type"), more
        same = {"Content-Encoding": "identity", "Content-Type": f'{kind} ; a=b; Charset="UTF-8"'}
        assert service.client.post("/v1/forget", content=body, headers=service.admin | same).status_code == 202


def test_a_part_of_a_form_in_another_form_is_refused(tmp_path: Path) -> None:
    with running(tmp_path / "s", STILL) as service:
        receipt = service.learn([0])[0]
        part = (
            b"--x\r\nContent-Disposition: form-data; name=receipts; filename=r\r\n%b\r\n"
            + receipt.encode()
            + b"\r\n--x--\r\n"
        )
        headers = service.admin | {"Content-Type": "multipart/form-data; boundary=x"}
        for line, status in (
            (b"Content-Transfer-Encoding: base64\r\n", 422),
            (b"Content-Transfer-Encoding: 8BIT\r\n", 202),
        ):
            answer = service.client.post("/v1/forget", content=part % line, headers=headers)
            assert answer.status_code == status, answer.text


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


# -- commands ----------------------------------------------------------------------------------------


def test_what_is_not_to_be_published_is_not() -> None:
    """A seal publishes. Forgets that somebody gathers to hide them in a batch were published one by one."""
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT, "--track-classes")
    run("learn", "shop", "all.csv", "--receipts", "all.jsonl")
    for words in (
        ["forget", "shop", "--receipts", "all.jsonl"],
        ["forget", "shop", "all.csv"],
        ["forget-class", "shop", "cat"],
    ):
        said = " ".join(run(*words, "--no-publish", "--seal", code=2).replace("│", " ").split())
        assert "--seal publishes, and --no-publish says not to: leave one of them out" in said
    assert answer("status", "shop")["samples"] == len(ROWS)
    assert len(answer("history", "shop")) == 1


@pytest.mark.parametrize("command", ["learn", "forget", "what-if", "predict --labelled", "verify retrain"])
def test_one_label_for_all_and_a_column_of_labels(command: str) -> None:
    write_csv("all.csv", ROWS, NAMES)
    run("init", "shop", *INIT)
    run("learn", "shop", "all.csv")
    verb, *more = command.split(" --")
    said = run(
        *verb.split(), "shop", "all.csv", "--label", "x", "--labels", "label", *(f"--{each}" for each in more), code=1
    )
    assert "one label is given for all samples, and a column of labels too: give one of the two" in said


NAMED = [(7, 1), ("7", "1"), (True, True), ("True", "True"), ("8", "2"), (9.5, 0.5)]
"""Owners and ids that look alike."""


@pytest.fixture
def shop() -> str:
    rows = [
        {"owner": owner, "id": name, "label": "x", "features": row.tolist()}
        for (owner, name), row in zip(NAMED, ROWS, strict=False)
    ]
    Path("some.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    run("init", "shop", *INIT)
    run("learn", "shop", "some.jsonl", "--receipts", "mine.jsonl")
    return "shop"


@pytest.mark.parametrize("verb", ["forget", "what-if"])
@pytest.mark.parametrize("option", ["--owner 7", "--id 1", "--owner True", "--id True"])
def test_a_word_that_fits_several_chooses_none(shop: str, verb: str, option: str) -> None:
    """`--owner 7` forgot the samples of the owner 7, and those of the owner "7"."""
    said = run(verb, shop, "--receipts", "mine.jsonl", *option.split(), code=1)
    word = option.split()[1]
    other = "true" if word == "True" else word
    assert f'{option} fits several: {other} and "{word}". Add --kind number or --kind text' in said
    assert answer("status", shop)["samples"] == len(NAMED)


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["--owner", "7", "--kind", "number"], [1]),
        (["--owner", "7", "--kind", "text"], ["1"]),
        (["--owner", '"7"'], ["1"]),
        (["--owner", "true"], [True]),
        (["--id", "1", "--id", "True", "--kind", "text"], ["1", "True"]),
        (["--owner", "8"], ["2"]),
        (["--id", '{"float":"0x1.0000000000000p-1"}'], [0.5]),
    ],
)
def test_a_word_can_say_which_it_means(shop: str, words: list[str], ids: list[Any]) -> None:
    dry = answer("forget", shop, "--receipts", "mine.jsonl", *words, "--dry-run")
    assert dry["requested"] == len(ids)
    run("forget", shop, "--receipts", "mine.jsonl", *words)
    for place, (_, name) in enumerate(NAMED):
        Path("one.jsonl").write_text(Path("mine.jsonl").read_text("utf-8").splitlines()[place], "utf-8")
        gone = any(type(name) is type(each) and name == each for each in ids)
        run("forget", shop, "--receipts", "one.jsonl", "--dry-run", code=1 if gone else 0)


def test_a_word_that_fits_nothing_is_not_passed_over(shop: str) -> None:
    said = run("forget", shop, "--receipts", "mine.jsonl", "--id", "2", "--id", "3", code=1)
    assert "none of 6 receipts has that id and owner (--id 3)" in said
    assert "--kind is text or number" in run("forget", shop, "--receipts", "mine.jsonl", "--kind", "x", code=2)
    assert "--kind" in run("forget", shop, "some.jsonl", "--kind", "text", code=2)
    assert answer("status", shop)["samples"] == len(NAMED)
