"""The promise: a sealed folder does not tell what was forgotten, nor whose it was.

The thief has everything: all files of the store and of the service, the keys, the certificates, and a list of candidates
with the right one among them. ``docs/specification.md``, section 11.4, lists what a seal leaves. Here every file and
every row is walked, and whatever is not on that list is a failure.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import sqlalchemy as sa

from neverseen import AlreadyForgottenError, ReceiptRejectedError, store
from neverseen.encoding import quantise
from neverseen.ledger import SampleRow
from neverseen.ledger.tables import LASTING, tables
from neverseen.proof.certificates import Certificate
from neverseen.proof.receipts import Receipt, commitment, seal
from neverseen.store import Store
from tests.services import BACKBONE, KEYS, LABELS, QUICK, ROWS, bearer, classifier, running, samples, token

GONE, KEPT = range(3), range(3, 40)
OWNER, LABEL = "ada-lovelace", "zebra"
LEFT = {
    "neverseen_meta": {
        "format",
        "configuration",
        "key_check",
        "snapshot",
        "published",
        "sealed",
        "certificate",
        "newest",
        "audit",
        "writer",  # random, and only while the store is open for writing
    },
    "neverseen_certified": {"commitment", "certificate"},
    "neverseen_requests": {"place", "id", "tag", "kind", "samples", "applied", "version", "maker", "body"},
}
"""What section 11.5 lists beside what is held: keys of meta, and columns of other tables."""


def owner_of(row: int) -> str:
    return OWNER if row in GONE else f"owner-{row}"


def label_of(row: int) -> str:
    return LABEL if row in GONE else LABELS[row]


def learn(made: Store, rows: Iterable[int]) -> list[bytes]:
    listed = list(rows)
    about = [label_of(row) for row in listed], [f"photo-{row:02d}" for row in listed], [owner_of(row) for row in listed]
    return made.learn(ROWS[listed], *about)


def create(folder: Path, ledger: str | None = None) -> Store:
    store.create(folder, BACKBONE, classifier(), keys=KEYS, ledger=ledger).close()
    return store.open(folder, backbone=BACKBONE, keys=KEYS, hardware="numpy", clock=lambda: 1_700_000_000.0)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def listed_in(folder: Path) -> set[bytes]:
    """All commitments of all certificates."""
    paths = (folder / "certificates").iterdir()
    return {bytes.fromhex(word) for path in paths for word in Certificate.load(path).commitments}


def rows_of(made: Store) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables."""
    with made.ledger._database.reading() as transaction:
        return {
            table.name: [dict(row._mapping) for row in transaction.rows(sa.select(table))]
            for table in tables.sorted_tables
        }


def traces(row: SampleRow, position: int) -> list[bytes]:
    """All that a sample brought with it, but for its commitment."""
    quantised = quantise(ROWS[position : position + 1].astype(np.float32)).tobytes()
    digests = [row.number, row.content, row.member, row.salt]
    return [*digests, *(each.hex().encode() for each in digests), row.id.strip('"').encode(), quantised]


# -- guessing ----------------------------------------------------------------------------------------


class Thief:
    """Has the keys and the candidates, and rebuilds receipts in every way that can be thought of."""

    def __init__(self, made: Store, rows: Iterable[int]) -> None:
        self._configuration = made.description.configuration.digest()
        prepared = {row: made.prepare(ROWS[row : row + 1]) for row in rows}
        self.known = {row: (each.fingerprints[0], each.quantised[0]) for row, each in prepared.items()}

    def guesses(
        self, row: int, owners: Iterable[str], ids: Iterable[str], salts: Iterable[bytes] = (b"",)
    ) -> Iterator[bytes]:
        for name, owner, id_, salt in product({LABEL, LABELS[row]}, {*owners}, ids, salts):
            about = Receipt(json.dumps(id_), json.dumps(owner), json.dumps(name), *self.known[row], salt)
            yield from (seal(about, key, self._configuration) for key in KEYS.receipts)


class Sealed(NamedTuple):
    """A sealed store that forgot one sample; that sample's receipt, as its owner keeps it; a thief."""

    folder: Path
    receipt: bytes
    thief: Thief


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    folder = tmp_path / "s"
    with create(folder) as made:
        thief = Thief(made, range(40))
        learn(made, KEPT)
        (receipt, *_) = learn(made, GONE)
        made.publish()
        made.forget(receipt)
        made.seal()
    return Sealed(folder, receipt, thief)


def test_guessing_every_candidate_with_the_keys(sealed: Sealed) -> None:
    certified = listed_in(sealed.folder)
    assert commitment(sealed.receipt) in certified  # its owner recognises it
    owners, ids = [owner_of(row) for row in range(40)], [f"photo-{row:02d}" for row in range(40)]
    for candidate in (0, 1, 5):  # the right one is the first
        for guess in sealed.thief.guesses(candidate, owners, ids):
            assert commitment(guess) not in certified


def test_taking_any_sixteen_bytes_of_the_folder_for_the_salt(sealed: Sealed) -> None:
    certified = listed_in(sealed.folder)
    contents = files(sealed.folder).values()
    salts = {content[start : start + 16] for content in contents for start in range(len(content) - 15)}
    assert len(salts) > 1000
    for guess in sealed.thief.guesses(0, [OWNER], ["photo-00"], salts):
        assert commitment(guess) not in certified


def test_an_old_receipt_does_not_forget_what_was_learned_again(sealed: Sealed) -> None:
    with store.open(sealed.folder, backbone=BACKBONE, keys=KEYS, hardware="numpy") as made:
        (again,) = learn(made, [0])
        assert again != sealed.receipt
        before = made.digest()
        with pytest.raises(AlreadyForgottenError, match="certificate 2 says so"):
            made.forget(sealed.receipt)
        assert made.digest() == before
        made.forget(again)
        with pytest.raises(ReceiptRejectedError, match="used already"):
            made.forget(again)


# -- what is left ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_every_row_that_is_left_is_on_the_list(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    place: str | None = None if kind == "sqlite" else request.getfixturevalue("schema")
    with create(tmp_path / "s", place) as made:
        learn(made, KEPT)
        receipts = learn(made, GONE)
        made.publish()
        made.forget(receipts)
        made.seal()
        found = rows_of(made)
        assert {row["key"] for row in found.pop("neverseen_meta")} <= LEFT["neverseen_meta"]
        assert found.pop("neverseen_certified") == [
            {"commitment": value, "certificate": 2} for value in sorted(map(commitment, receipts))
        ]
        assert {row["id"] for row in found.pop("neverseen_samples")} == {f'"photo-{row:02d}"' for row in KEPT}
        assert {row["name"]: row["samples"] for row in found.pop("neverseen_classes")} == {
            json.dumps(name): [LABELS[row] for row in KEPT].count(name) for name in {LABELS[row] for row in KEPT}
        }
        found.pop("neverseen_migrations")
        assert found == {"neverseen_journal": [], "neverseen_pending": [], "neverseen_requests": []}


def test_no_byte_of_any_file_is_of_what_went(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with create(folder) as made:
        learn(made, KEPT)
        receipts = learn(made, GONE)
        made.publish()
        held = {row.id: row for row in made.ledger.samples()}
        secrets = [part for row in GONE for part in traces(held[f'"photo-{row:02d}"'], row)]
        secrets += [OWNER.encode(), LABEL.encode(), *(receipt[28:60] for receipt in receipts)]
        secrets += [receipt[16:28] for receipt in receipts]
        made.forget(receipts)
        before = b"".join(files(folder).values())
        assert sum(secret in before for secret in secrets) > len(GONE)  # so that the search below can fail
        made.seal()
    left = files(folder)
    for name, content in left.items():
        for secret in secrets:
            assert secret not in content, name
        for value in map(commitment, receipts):
            assert value not in content or name == "ledger.sqlite", name
            assert value.hex().encode() not in content or name == "certificates/00000002.json", name
    names = {name for name in left if not name.startswith("sums/")}
    certificates = {"certificates/00000001.json", "certificates/00000002.json"}
    about = {"store.json", "signing.json", "lock", "ledger.sqlite", "versions/00000002.safetensors"}
    assert names == certificates | about


def test_the_folder_is_that_of_a_store_that_never_learned_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neverseen.model.intake import Intake

    left = []
    for name in ("forgot", "never"):
        numbers = count()
        monkeypatch.setattr(Intake, "new_salt", lambda _, numbers=numbers: next(numbers).to_bytes(16))
        folder = tmp_path / name
        with create(folder) as made:
            learn(made, KEPT)
            if name == "forgot":
                made.forget(learn(made, GONE))
                made.publish()
                made.seal()
            else:
                made.publish()
                made.seal()
        with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as ledger:
            ledger.execute("DELETE FROM neverseen_certified")  # what certificates say is what differs
            ledger.execute("UPDATE neverseen_meta SET value = '' WHERE key = 'newest'")
            ledger.execute("UPDATE neverseen_migrations SET applied = ''")
            ledger.execute("PRAGMA journal_mode = DELETE")
            ledger.execute("VACUUM")
        found = files(folder)
        raw = bytearray(found["ledger.sqlite"])
        for start in (24, 40, 92):  # SQLite counts changes, changes of the schema, and changes again
            raw[start : start + 4] = bytes(4)
        found["ledger.sqlite"] = bytes(raw)
        own = ("store.json", "signing.json", "lock", "certificates/")  # keys, process and signed history of each
        left.append({path: content for path, content in found.items() if not path.startswith(own)})
    assert left[0] == left[1]


# -- the service -------------------------------------------------------------------------------------


def test_a_service_that_forgot_and_sealed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with running(folder, QUICK) as service:
        thief = Thief(service.service.opened(), range(6))
        service.learn(range(3, 40))
        ada = bearer(token(folder, "key-of-ada", "learn", "forget", owner=OWNER))
        eve = bearer(token(folder, "key-of-eve", "learn", "forget", owner="eve"))
        named = [sample | {"label": LABEL} for sample in samples(range(3), ids=False)]
        once = {"Idempotency-Key": "ada-joins"}
        learned = service.client.post("/v1/samples", json={"samples": named}, headers=ada | once).json()
        again = service.client.post("/v1/samples", json={"samples": named}, headers=ada | once).json()
        assert again["receipts"] == learned["receipts"]  # while they are held, the very same
        request = learned["request"]["id"]
        forgotten = service.forget(learned["receipts"], ada).json()["request"]["id"]
        assert service.client.post("/v1/seal", headers=service.admin).status_code == 200
        service.wait(forgotten, "sealed")
        # Whoever made a request is still told of it. The name of the key is gone, and others are told nothing.
        for made in (request, forgotten):
            shown = service.client.get(f"/v1/requests/{made}", headers=ada).json()["request"]
            assert (shown["state"], shown["key"]) == ("sealed", None)
            assert service.client.get(f"/v1/requests/{made}", headers=eve).status_code == 404
            assert service.client.get("/v1/requests", params={"before": made}, headers=eve).status_code == 404
            assert service.client.get(f"/v1/requests/{made}", headers=service.admin).json()["request"]["key"] is None
        assert service.client.get("/v1/requests", headers=ada).json()["requests"] == []
        rows = service.service.writer.ask(rows_of).result(30)["neverseen_requests"]
    assert len({row["maker"] for row in rows}) == len(rows) == 3
    for row in rows:
        assert {name for name, value in row.items() if value not in (None, "")} <= LEFT["neverseen_requests"]
        assert len(row["body"] or b"") in (0, LASTING)  # what is bound to salted receipts, and nothing else
    left = files(folder)
    # The ids that the samples had, as texts end in the ledger. Without the mark, random bytes behind the id of a request,
    # which stays, look like one of them every now and then.
    secrets = [f'{request}-{row}"'.encode() for row in range(3)]
    secrets += [thief.known[row][1].tobytes() for row in range(3)]
    secrets += [LABEL.encode(), f"{OWNER}/".encode(), f'"{OWNER}"'.encode(), b"ada-joins"]
    named_in = {"service/keys.json", "service/audit.jsonl"}
    for name, content in left.items():
        for secret in secrets:
            assert secret not in content or (secret == f'"{OWNER}"'.encode() and name == "service/keys.json"), name
        assert b"key-of-ada" not in content or name in named_in, name
    ids = [f"{OWNER}/{row['id']}-{place}" for row in rows for place in range(3)]
    certified = listed_in(folder)
    assert len(certified) == 3
    for candidate in range(5):
        for guess in thief.guesses(candidate, [OWNER, "eve"], ids):
            assert commitment(guess) not in certified
