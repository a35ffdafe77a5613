"""Who may do what: keys, scopes, owners, and nobody learns what is not theirs."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from neverseen.cli import serving
from neverseen.errors import ConfigurationError, InputError
from neverseen.service import KeyFile
from neverseen.service.errors import Refusal
from neverseen.service.operations.settings import service_folder
from neverseen.service.reception import access
from tests.services import LABELS, ROWS, Running, bearer, coded, new_store, running, samples, token
from tests.waiting import eventually


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("access") / "s") as found:
        yield found


# -- the file ----------------------------------------------------------------------------------------


def test_tokens_are_kept_hashed_in_a_private_file(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    secret = keys.add("shop", ["learn", "forget"])
    assert secret.startswith("nsk_")
    assert len(secret) == 47
    content = (tmp_path / "keys.json").read_text()
    assert secret not in content
    assert secret[4:] not in content
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    found = keys.find(secret)
    assert found is not None
    assert (found.may("learn"), found.may("predict"), found.owner) == (True, False, None)


def test_admin_implies_all(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    found = keys.find(keys.add("root", ["admin"]))
    assert found is not None
    assert all(map(found.may, ("learn", "predict", "forget", "audit", "admin")))


def test_a_change_by_another_process_is_seen(tmp_path: Path) -> None:
    first, second = KeyFile(tmp_path), KeyFile(tmp_path)
    secret = first.add("shop", ["learn"])
    assert second.find(secret) is not None
    first.revoke("shop")
    assert second.find(secret) is None
    assert [key.revoked is not None for key in second.all()] == [True]


@pytest.mark.parametrize(
    ("name", "scopes", "owner", "words"),
    [
        ("", ["learn"], None, "name is made of"),
        ("a\nb", ["learn"], None, "name is made of"),
        ("ok", [], None, "scopes are one or more"),
        ("ok", ["root"], None, "scopes are one or more"),
        ("ok", ["learn"], "a/b", "an owner is made of"),
        ("ok", ["audit"], "ada", "all owners"),
    ],
)
def test_odd_keys_are_refused(tmp_path: Path, name: str, scopes: list[str], owner: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        KeyFile(tmp_path).add(name, scopes, owner)


def test_a_name_is_used_once(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    keys.add("shop", ["learn"])
    keys.revoke("shop")
    with pytest.raises(InputError, match="perhaps by a revoked key"):
        keys.add("shop", ["learn"])
    with pytest.raises(InputError, match="no key"):
        keys.revoke("other")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path)
    keys.add("shop", ["learn"])
    (tmp_path / "keys.json").write_text('{"format": "x"}')
    with pytest.raises(ConfigurationError, match="cannot be used"):
        KeyFile(tmp_path).all()


@pytest.mark.parametrize("content", [None, b"", b'{"format": "x"}'])
def test_a_file_that_is_being_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    now = [0.0]
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: now[0]))
    keys = KeyFile(tmp_path)
    secret, place = keys.add("shop", ["learn"]), tmp_path / "keys.json"
    whole = place.read_bytes()
    place.unlink()
    if content is not None:
        place.write_bytes(content)
    for now[0] in (1.0, 2.0):  # for a moment the keys of before are good
        found = keys.find(secret)
        assert found is not None
        assert found.name == "shop"
        assert keys.fault() is not None
        with pytest.raises(Refusal, match="cannot be read now"):  # it may be in the new file
            keys.find("nsk_" + "x" * 43)
    now[0] = 2.1  # and not for ever
    with pytest.raises(Refusal, match="cannot be read now"):
        keys.find(secret)
    assert keys.find(secret, look=False) is None
    place.write_bytes(whole)
    place.chmod(0o600)
    now[0] = 3.0
    assert keys.find(secret) is not None
    assert keys.fault() is None
    assert caplog.text.count("the API keys cannot be read: ") == 1


def test_a_file_that_is_damaged_while_the_service_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_GRACE", 0.0)
    place = service_folder(new_store(tmp_path / "model")) / "keys.json"
    with running(tmp_path / "model") as service:
        whole = place.read_bytes()

        def statuses(times: int) -> set[int]:
            return {service.client.get("/v1/model", headers=service.admin).status_code for _ in range(times)}

        def until(wanted: int) -> None:
            eventually(lambda: statuses(1) == {wanted})

        assert statuses(1) == {200}
        for content in (whole[:-20], b"", b"[" * 100_000, b'{"format": "x"}'):
            place.write_bytes(content)
            until(503)
            assert statuses(20) == {503}  # never with the keys of before: one may be revoked
            refused = service.client.get("/v1/model", headers=bearer("nsk_" + "x" * 43))
            assert refused.json()["error"]["code"] == "unavailable"
            assert str(tmp_path) not in refused.text
            assert service.client.post("/v1/verify", json={"certificate": 1}, headers=service.admin).status_code == 503
            ready = service.client.get("/readyz")
            assert ready.status_code == 503
            assert "the API keys cannot be read now" in ready.text
            assert service.client.get("/healthz", headers=service.admin).status_code == 200
            assert service.client.get("/v1/certificates").status_code == 200  # needs no key
            assert service.client.post("/v1/verify", json={"certificate": 1}).status_code == 422  # it was read
            assert service.client.get("/v1/model").status_code == 401
        place.write_bytes(whole)
        until(200)
        assert service.client.get("/readyz").status_code == 200
        place.unlink()
        place.mkdir()  # not even a file
        until(503)
        place.rmdir()
        place.write_bytes(whole)
        place.chmod(0o600)
        until(200)
    assert "Traceback" not in caplog.text
    assert 1 <= caplog.text.count("the API keys cannot be read: ") <= 5


def test_keys_on_the_command_line(tmp_path: Path) -> None:
    app = typer.Typer()
    serving.register(app)
    folder = str(new_store(tmp_path / "s"))
    runner = CliRunner()
    made = runner.invoke(app, ["keys", "add", folder, "ada-phone", "--scope", "learn", "--owner", "ada", "--json"])
    assert made.exit_code == 0, made.output
    secret = json.loads(made.stdout)["token"]
    listed = runner.invoke(app, ["keys", "list", folder])
    assert "ada-phone" in listed.stdout
    assert secret not in listed.stdout
    assert runner.invoke(app, ["keys", "revoke", folder, "ada-phone"]).stdout == "revoked ada-phone\n"
    assert runner.invoke(app, ["keys", "add", folder, "x", "--scope", "nothing"]).exit_code == 1


# -- scopes ------------------------------------------------------------------------------------------

CALLS: list[tuple[str, str, Any, set[str]]] = [
    ("POST", "/v1/samples", {"samples": samples([0])}, {"learn"}),
    ("POST", "/v1/predict", {"samples": [{"features": ROWS[0].tolist()}]}, {"predict"}),
    ("POST", "/v1/forget", {"receipts": ["TlNSMQAB"]}, {"forget"}),
    ("POST", "/v1/forget/class", {"label": "none"}, {"forget"}),
    ("GET", "/v1/requests", None, {"learn", "forget", "audit"}),
    ("GET", "/v1/history", None, {"audit"}),
    ("GET", "/v1/model", None, {"learn", "predict", "forget", "audit"}),
    ("POST", "/v1/publish", None, set()),
    ("POST", "/v1/seal", None, set()),
]


def test_scopes(service: Running) -> None:
    for scope in ("learn", "predict", "forget", "audit"):
        headers = bearer(token(service.folder, f"only {scope}", scope))
        for method, path, body, allowed in CALLS:
            answer = service.client.request(method, path, json=body, headers=headers)
            assert (answer.status_code == 403) == (scope not in allowed), (scope, path, answer.text)
            if answer.status_code == 403:
                assert answer.json()["error"]["code"] == "forbidden"


@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer x", "Basic abc", "Bearer nsk_" + "a" * 43, "Bearer \xff"]
)
def test_without_a_good_key(service: Running, value: str | None) -> None:
    headers = {} if value is None else {"Authorization": value.encode("latin-1")}
    for method, path, body, _ in CALLS:
        answer = service.client.request(method, path, json=body, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "unauthorized"
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_that_is_revoked_is_worth_nothing(service: Running) -> None:
    headers = bearer(token(service.folder, "brief", "predict"))
    assert service.client.get("/v1/model", headers=headers).status_code == 200
    KeyFile(service.folder / "service").revoke("brief")
    assert service.client.get("/v1/model", headers=headers).status_code == 401


# -- owners ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(service: Running) -> dict[str, dict[str, str]]:
    return {
        name: bearer(token(service.folder, f"{name}'s".replace("'", "-"), "learn", "forget", owner=name))
        for name in ("ada", "bob")
    }


def shape(answer: httpx.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    """What of an answer may tell something."""
    kept = [(name, value) for name, value in answer.headers.items() if name not in ("x-request-id", "date")]
    return answer.status_code, answer.content, sorted(kept)


def test_whatever_is_not_theirs_is_answered_alike(service: Running, people: dict[str, dict[str, str]]) -> None:
    mine = service.learn(range(20, 24), people["ada"])
    forgotten = service.learn(range(24, 26), people["ada"])
    service.forget(forgotten, people["ada"])
    operators = service.learn(range(26, 28))
    raw = base64.urlsafe_b64decode(mine[0])
    forged = coded(raw[:-1] + bytes([raw[-1] ^ 1]))
    foreign, short = coded(b"nothing of ours at all"), coded(raw[:40])
    bob = people["bob"]
    answers = [
        shape(service.forget([word], bob)) for word in (mine[0], forgotten[0], operators[0], forged, foreign, short)
    ]
    lists = [
        samples([20]),  # ada's, under her id
        samples([20], ids=False),  # ada's, without
        samples([150]),  # nobody's
        [samples([20])[0] | {"id": "ada/s20"}],  # ada's, as it is kept
        [samples([20])[0] | {"label": "other"}],
        samples([26]),  # the operator's
    ]
    answers += [shape(service.client.post("/v1/forget", json={"samples": given}, headers=bob)) for given in lists]
    assert answers[0][0] == 404
    assert json.loads(answers[0][1])["error"]["code"] == "not_found"
    assert all(answer == answers[0] for answer in answers), answers
    rehearsed = [shape(service.forget([word], bob, dry_run="true")) for word in (mine[0], forgotten[0], forged)]
    assert all(answer == answers[0] for answer in rehearsed), rehearsed


def test_what_is_theirs_is_theirs(service: Running, people: dict[str, dict[str, str]]) -> None:
    ada = people["ada"]
    receipts = service.learn(range(30, 34), ada)
    first = service.forget(receipts[:1], ada)
    assert first.status_code == 202
    service.wait(first.json()["request"]["id"])
    again = service.forget(receipts[:1], ada)
    assert again.status_code == 409
    assert again.json()["error"]["code"] == "already_forgotten"
    assert again.json()["error"]["certificate"] >= 1
    by_id = service.client.post("/v1/forget", json={"samples": samples([31])}, headers=ada)
    assert by_id.status_code == 202, by_id.text
    by_content = service.client.post("/v1/forget", json={"samples": samples([32], ids=False)}, headers=ada)
    assert by_content.status_code == 202, by_content.text


def test_ids_of_two_owners_do_not_meet(service: Running, people: dict[str, dict[str, str]]) -> None:
    for headers in people.values():
        service.learn([40], headers)
    clash = service.client.post("/v1/samples", json={"samples": samples([40])}, headers=people["ada"])
    assert clash.status_code == 409
    assert clash.json()["error"]["code"] == "id_taken"
    content = {"samples": samples([40], ids=False)}  # the same sample of two: each forgets their own
    assert service.client.post("/v1/forget", json=content, headers=people["ada"]).status_code == 202
    assert service.client.post("/v1/forget", json=content, headers=people["ada"]).status_code == 404
    assert service.client.post("/v1/forget", json=content, headers=people["bob"]).status_code == 202


def test_an_owner_cannot_learn_for_another(service: Running, people: dict[str, dict[str, str]]) -> None:
    body = {"samples": samples([50]), "owner": "bob"}
    assert service.client.post("/v1/samples", json=body, headers=people["ada"]).status_code == 403
    learned = service.client.post("/v1/samples", json=body, headers=service.admin)
    assert service.forget(learned.json()["receipts"], people["ada"]).status_code == 404
    assert service.forget(learned.json()["receipts"], people["bob"]).status_code == 202


def test_a_class_is_everybodys(service: Running, people: dict[str, dict[str, str]]) -> None:
    for query in ("", "?dry_run=true"):
        answer = service.client.post(f"/v1/forget/class{query}", json={"label": LABELS[0]}, headers=people["ada"])
        assert answer.status_code == 403
    counts = service.client.get("/v1/model", headers=people["ada"]).json()
    assert "class_counts" not in counts
    assert "class_counts" in service.client.get("/v1/model", headers=service.admin).json()


def test_requests_are_shown_to_whom_they_are_of(service: Running, people: dict[str, dict[str, str]]) -> None:
    body = {"samples": samples([60])}
    made = service.client.post("/v1/samples", json=body, headers=people["ada"]).json()["request"]["id"]
    assert service.client.get(f"/v1/requests/{made}", headers=people["ada"]).status_code == 200
    other = service.client.get(f"/v1/requests/{made}", headers=people["bob"])
    unknown = service.client.get(f"/v1/requests/req_{'0' * 24}", headers=people["bob"])
    assert shape(other) == shape(unknown)
    assert other.status_code == 404
    before = service.client.get("/v1/requests", params={"before": made}, headers=people["bob"])
    assert before.status_code == 404
    listed = service.client.get("/v1/requests", headers=people["bob"]).json()["requests"]
    assert {entry["key"] for entry in listed} == {"bob-s"}
    assert made in {
        entry["id"] for entry in service.client.get("/v1/requests", headers=service.admin).json()["requests"]
    }
