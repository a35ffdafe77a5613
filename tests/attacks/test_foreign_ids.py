"""The promise: ids are private to an owner.

Nobody else can take an id that an owner might use, find out which ids an owner uses, or reach a sample by guessing its
id. (A key without an owner acts for everybody: it may name an owner outright, and then is in that owner's place. It gets
there by no other way.)
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from neverseen import AmbiguousError, InputError, NotLearnedError, ReceiptRejectedError, store
from neverseen.store import Store
from tests.services import (
    BACKBONE,
    KEYS,
    LABELS,
    ROWS,
    Running,
    bearer,
    classifier,
    hold,
    never,
    running,
    samples,
    token,
)
from tests.waiting import eventually


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("ids") / "s") as found:
        yield found


@pytest.fixture(scope="module")
def keys(service: Running) -> dict[str, dict[str, str]]:
    people = {name: token(service.folder, name, "learn", "forget", owner=name) for name in ("ada", "bob")}
    people["anybody"] = token(service.folder, "anybody", "learn")
    people["everybody"] = token(service.folder, "everybody", "forget")
    return {name: bearer(secret) for name, secret in people.items()}


def named(row: int, name: str) -> dict[str, Any]:
    return samples([row])[0] | {"id": name}


def learn(service: Running, headers: dict[str, str], *given: dict[str, Any], **extra: Any) -> httpx.Response:
    return service.client.post("/v1/samples", json={"samples": list(given), **extra}, headers=headers)


def forget(service: Running, headers: dict[str, str], *given: dict[str, Any]) -> httpx.Response:
    return service.client.post("/v1/forget", json={"samples": list(given)}, headers=headers)


def about(answer: httpx.Response) -> tuple[int, Any]:
    body = answer.json()
    return answer.status_code, body.get("error") or sorted(body["request"])


def test_taking_an_id_before_its_owner_does(service: Running, keys: dict[str, dict[str, str]]) -> None:
    for thief in ("anybody", "bob"):
        assert learn(service, keys[thief], named(0, "ada/new")).status_code == 201
    answer = learn(service, keys["ada"], named(1, "new"))
    assert answer.status_code == 201, answer.text


def test_finding_out_which_ids_an_owner_uses(service: Running, keys: dict[str, dict[str, str]]) -> None:
    assert learn(service, keys["ada"], named(2, "diary")).status_code == 201
    for thief in ("anybody", "bob"):
        used, unused = (learn(service, keys[thief], named(3, name)) for name in ("ada/diary", "ada/other"))
        assert about(used) == about(unused)
        assert used.status_code == 201
        if thief == "bob":
            for name in ("diary", "ada/diary", "nothing"):
                assert about(forget(service, keys["bob"], named(2, name))) == about(
                    forget(service, keys["bob"], named(190, name))
                )


def test_the_same_id_of_two_owners_is_two_samples(service: Running, keys: dict[str, dict[str, str]]) -> None:
    receipts = {name: learn(service, keys[name], named(10, "twin")).json()["receipts"] for name in ("ada", "bob")}
    before = service.digest()
    assert about(learn(service, keys["ada"], named(11, "twin")))[1]["code"] == "id_taken"
    assert forget(service, keys["bob"], named(11, "twin")).status_code == 404
    assert service.digest() == before
    assert forget(service, keys["bob"], named(10, "twin")).status_code == 202
    assert service.forget(receipts["bob"], keys["bob"]).status_code == 409
    assert service.forget(receipts["ada"], keys["bob"]).status_code == 404
    assert service.forget(receipts["ada"], keys["ada"]).status_code == 202


def test_a_key_for_everybody_reaches_a_sample_by_the_id_it_is_kept_under(
    service: Running, keys: dict[str, dict[str, str]]
) -> None:
    assert learn(service, keys["anybody"], named(20, "page"), owner="ada").status_code == 201  # named outright
    assert about(learn(service, keys["ada"], named(21, "page")))[1]["code"] == "id_taken"
    assert learn(service, keys["anybody"], named(20, "ada/page")).status_code == 201
    assert about(forget(service, keys["everybody"], named(20, "ada/page")))[1]["code"] == "ambiguous"
    assert forget(service, keys["ada"], named(20, "page")).status_code == 202
    assert forget(service, keys["everybody"], named(20, "ada/page")).status_code == 202
    assert about(forget(service, keys["everybody"], named(20, "ada/page")))[1]["code"] == "not_learned"


# -- a key without an owner says whose ---------------------------------------------------------------


def asked(service: Running, headers: dict[str, str], way: str, given: dict[str, Any], **extra: Any) -> httpx.Response:
    path = {"forget": "/v1/forget", "rehearse": "/v1/forget?dry_run=true", "what if": "/v1/what-if"}[way]
    return service.client.post(path, json={"samples": [given], **extra}, headers=headers)


@pytest.mark.parametrize("way", ["rehearse", "what if", "forget"])
def test_a_sample_is_found_by_its_owner_and_id(tmp_path: Path, way: str) -> None:
    with running(tmp_path / "s") as service:
        for owner, row in (("ada", 0), ("bob", 1)):
            assert learn(service, service.admin, named(row, "page"), owner=owner).status_code == 201
        for given, extra in (
            (named(0, "page"), {"owner": "bob"}),  # bob's of this id is another sample
            (named(0, "other"), {"owner": "ada"}),
            (named(0, "ada/page"), {"owner": "ada"}),
            (samples([0], ids=False)[0], {"owner": "bob"}),
        ):
            answer = asked(service, service.admin, way, given, **extra)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), answer.text
        assert service.digest() == never([0, 1])
        answer = asked(service, service.admin, way, named(0, "page"), owner="ada")
        assert answer.status_code == (202 if way == "forget" else 200), answer.text
        assert service.digest() == never([1] if way == "forget" else [0, 1])
        assert asked(service, service.admin, way, samples([1], ids=False)[0], owner="bob").status_code in (200, 202)


@pytest.mark.parametrize("way", ["rehearse", "what if", "forget"])
def test_a_bare_id_is_not_taken_for_that_of_another_owner(tmp_path: Path, way: str) -> None:
    with running(tmp_path / "s") as service:
        assert learn(service, service.admin, named(0, "page"), owner="ada").status_code == 201
        answer = asked(service, service.admin, way, named(0, "page"))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["row"]) == (404, "not_learned", 0)
        assert "owner" in error["message"]
        receipt = learn(service, service.admin, named(0, "page")).json()["receipts"]  # of no owner
        for owner in (None, "bob"):
            if owner is not None:
                assert learn(service, service.admin, named(0, "page"), owner=owner).status_code == 201
            answer = asked(service, service.admin, way, named(0, "page"))
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["row"]) == (409, "ambiguous", 0)
            assert "owner" in error["message"]
            assert "receipt" in error["message"]
        assert service.digest() == never([0, 0, 0])
        for owner in ("ada", "bob"):
            assert asked(service, service.admin, "forget", named(0, "page"), owner=owner).status_code == 202
        assert asked(service, service.admin, way, named(0, "page")).status_code in (200, 202)  # nobody else has one
        assert service.forget(receipt).status_code == (409 if way == "forget" else 202)


def test_an_owner_that_does_not_fit_is_refused(service: Running, keys: dict[str, dict[str, str]]) -> None:
    receipts = learn(service, keys["ada"], named(40, "own")).json()["receipts"]
    before = service.digest()
    forbidden = asked(service, keys["ada"], "forget", named(40, "own"), owner="bob")
    assert (forbidden.status_code, forbidden.json()["error"]["code"]) == (403, "forbidden")
    body = {"receipts": receipts, "owner": "bob"}
    answer = service.client.post("/v1/forget", json=body, headers=keys["everybody"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert asked(service, keys["everybody"], "forget", named(40, "own"), owner="a/b").status_code == 422
    assert service.digest() == before
    assert asked(service, keys["ada"], "forget", named(40, "own"), owner="ada").status_code == 202


def test_requests_of_several_owners_are_told_apart_when_they_wait_together(tmp_path: Path) -> None:
    with running(tmp_path / "s") as service, ThreadPoolExecutor(4) as pool:
        for owner in ("ada", "bob"):
            assert learn(service, service.admin, named(0, "page"), owner=owner).status_code == 201
        ada = bearer(token(service.folder, "ada", "forget", owner="ada"))
        gate = hold(service.service.writer)
        waiting = [
            pool.submit(asked, service, *about)
            for about in (
                (service.admin, "forget", named(0, "page")),
                (ada, "forget", named(1, "page")),
            )
        ]
        waiting.append(pool.submit(asked, service, service.admin, "forget", named(0, "page"), owner="bob"))
        eventually(lambda: len(service.service.writer.waiting()) == 3)
        gate.set()
        assert [each.result().json().get("error", {}).get("code") for each in waiting] in (
            ["ambiguous", "not_found", None],
            ["not_learned", "not_found", None],  # bob's was first
        )
        assert service.digest() == never([0])


# -- a store without a service -----------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place: str | None = None if request.param == "sqlite" else request.getfixturevalue("schema")
    store.create(tmp_path / "s", BACKBONE, classifier(), keys=KEYS, ledger=place).close()
    with store.open(tmp_path / "s", backbone=BACKBONE, keys=KEYS, hardware="numpy") as opened:
        yield opened


def test_owners_do_not_meet_in_a_store(made: Store) -> None:
    given = ROWS[:1], LABELS[:1], ["diary"]
    owners = ["ada", "bob", None, ("ada", "bob"), 3]
    receipts = [made.learn(*given, [owner]) for owner in owners]
    made.learn(ROWS[1:3], LABELS[1:3], ["diary", "other"], ["eve", "eve"])
    for owner in owners:
        with pytest.raises(InputError, match="the id of row 0 belongs to a sample the model holds"):
            made.learn(ROWS[5:6], LABELS[5:6], ["diary"], [owner])
    with pytest.raises(InputError, match="row 0 was learned for several owners under its id: say whose with owners="):
        made.forget(*given[:2], ids=given[2])
    with pytest.raises(NotLearnedError, match="under the id of row 0"):
        made.forget(*given[:2], ids=given[2], owner="eve")  # hers of this id is another sample
    with pytest.raises(NotLearnedError, match="under the id of row 0"):
        made.forget(*given[:2], ids=["other"])
    assert made.digest() == never([0, 0, 0, 0, 0, 1, 2])
    made.forget(*given[:2], ids=given[2], owner="bob")
    for receipt, owner in zip(receipts, owners, strict=True):
        if owner == "bob":
            with pytest.raises(ReceiptRejectedError, match="used already"):
                made.forget(receipt)
        else:
            with pytest.raises(ReceiptRejectedError, match="used already"):
                made.forget(receipt, owner="eve")
            made.forget(receipt)
    assert made.digest() == never([1, 2])
    made.forget(ROWS[1:3], LABELS[1:3], ids=["diary", "other"])
    assert len(made.ledger.counts()) == 0


def test_a_sample_is_forgotten_for_its_owner_alone(made: Store) -> None:
    """Whether an id is given or not: another owner's sample of the same content is not the one that is meant."""
    made.learn(ROWS[:1], LABELS[:1], ["p"], ["bob"])
    for ids in (["p"], None):
        for owners in (["ada"], [None]):
            with pytest.raises(NotLearnedError, match=r"no such sample (under the id|of the owner) of row 0"):
                made.forget(ROWS[:1], LABELS[:1], ids=ids, owners=owners)
            with pytest.raises(NotLearnedError):
                made.forget(ROWS[:1], LABELS[:1], ids=ids, owners=["bob"], owner="ada")
    made.learn(ROWS[[0, 0, 0]], [LABELS[0]] * 3, ["p", "q", "p"], ["ada", "ada", None])
    with pytest.raises(AmbiguousError, match="row 0 was learned 2 times for its owner under different ids"):
        made.forget(ROWS[:1], LABELS[:1], owners=["ada"])
    with pytest.raises(NotLearnedError):
        made.forget(ROWS[[0, 0]], [LABELS[0]] * 2, owners=["bob", "bob"])
    with pytest.raises(InputError, match="receipts hold their owners"):
        made.forget([b""], owners=["ada"])
    with pytest.raises(InputError, match="1 samples and 2 owners"):
        made.forget(ROWS[:1], LABELS[:1], owners=["ada", "bob"])
    held = made.ledger
    made.forget(ROWS[[0, 0]], [LABELS[0]] * 2, ids=["p", "p"], owners=["bob", None])
    assert sorted((row.owner, row.id) for row in held.samples()) == [('"ada"', '"p"'), ('"ada"', '"q"')]
    made.forget(ROWS[[0, 0]], [LABELS[0]] * 2, owners=["ada", "ada"])
    assert not held.counts()


def test_a_rehearsal_says_what_is_unclear_as_the_request_itself_does(
    service: Running, keys: dict[str, dict[str, str]]
) -> None:
    for owner in ("ada", "bob"):
        assert learn(service, keys["anybody"], named(30, "both"), owner=owner).status_code == 201
    given = named(30, "both")
    del given["id"]
    answers = [
        service.client.post(f"/v1/forget{query}", json={"samples": [given]}, headers=keys["everybody"])
        for query in ("?dry_run=true", "")
    ]
    assert [about(answer)[1]["code"] for answer in answers] == ["ambiguous", "ambiguous"]
