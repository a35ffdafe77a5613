"""The promise: nothing says "forgotten" of a sample that is held, or may be.

The attack: have a sample forgotten, wait for the certificate that lists its receipt, and learn the sample again. The
certificate still lists the receipt, and will for ever.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from neverseen import AnalyticClassifier, InputError, Keyring, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.cli import app
from neverseen.client import Client
from neverseen.ledger import Ledger
from neverseen.proof.certificates import Certificate, is_mine
from neverseen.sources.receipts import ReceiptFile, read_receipts
from neverseen.store import Store
from tests.samples import clustered
from tests.services import running

ROWS, NUMBERS = clustered("relearned", 24, 8, 2)
NAMES = [("cat", "dog")[number] for number in NUMBERS]
IDS = [f"photo {place}" for place in range(24)]
OTHER = "dog" if NAMES[0] == "cat" else "cat"


def made(folder: Path, keys: Keyring | None = None) -> Store:
    return store.create(folder, Precomputed(8), AnalyticClassifier(RandomProjection(24), gamma=512), keys=keys)


def forgotten(folder: Path, keys: Keyring | None = None) -> bytes:
    """Make a store that learned everything and forgot its first sample; return that one's receipt."""
    with made(folder, keys) as model:
        receipts = model.learn(ROWS, NAMES, IDS)
        model.publish()
        model.forget(receipts[:1])
        model.publish()
        ReceiptFile(folder.parent / "mine.jsonl").write(receipts[:1], map(model.read_receipt, receipts[:1]))
    return receipts[0]


def relearn(folder: Path, label: str = NAMES[0], known: str = IDS[0], keys: Keyring | None = None) -> None:
    with store.open(folder, backbone=Precomputed(8), keys=keys) as model:
        model.learn(ROWS[:1], [label], [known])
        model.publish()


def verify(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["verify", "mine", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("label", "known"),
    [(NAMES[0], IDS[0]), (NAMES[0], "under another id"), (OTHER, IDS[0]), (OTHER, "of another class and id")],
)
def test_a_sample_that_was_learned_again_is_found(tmp_path: Path, label: str, known: str) -> None:
    receipt = forgotten(tmp_path / "shop")
    mine = tmp_path / "mine.jsonl"
    code, words, _ = verify(tmp_path / "shop", "--receipt", mine)
    assert code == 0
    assert "certificate 2 of 20" in words
    assert "does not hold its sample" in words
    relearn(tmp_path / "shop", label, known)
    code, words, error = verify(tmp_path / "shop", "--receipt", mine)
    assert (code, words) == (1, "")
    assert "certificate 2 of 20" in error
    assert "holds" in error
    with store.open(tmp_path / "shop", write=False) as model:
        assert is_mine(model.certificate(2), receipt)  # it will always
        assert model.holds([receipt])[0].held in ("receipt", "sample")


def test_an_unpublished_relearning_is_found(tmp_path: Path) -> None:
    receipt = forgotten(tmp_path / "shop")
    with store.open(tmp_path / "shop", backbone=Precomputed(8)) as model:
        model.learn(ROWS[:1], NAMES[:1], ["again"])
        assert model.holds([receipt])[0].held == "sample"
    assert verify(tmp_path / "shop", "--receipt", tmp_path / "mine.jsonl")[0] == 1


@pytest.mark.parametrize("label", [NAMES[0], OTHER])
def test_a_published_copy_that_was_forgotten_since_is_not_passed(label: str, tmp_path: Path) -> None:
    """The store holds it no more, and readers still see it: nobody can tell what the version has that is not held."""
    receipt, mine = forgotten(tmp_path / "shop"), tmp_path / "mine.jsonl"
    relearn(tmp_path / "shop", label, "again")
    with store.open(tmp_path / "shop", backbone=Precomputed(8)) as model:
        model.forget(ROWS[:1], [label])
        assert model.holds([receipt]) == [store.Holding(2, None, sure=False, unpublished=True)]
    code, words, error = verify(tmp_path / "shop", "--receipt", mine)
    assert (code, words) == (1, "")
    assert "neverseen publish FOLDER" in error
    code, words, _ = verify(tmp_path / "shop", "--receipt", mine, "--json")
    assert (code, json.loads(words)["held"], json.loads(words)["passed"]) == (1, ["unpublished"], False)
    assert CliRunner().invoke(app, ["publish", str(tmp_path / "shop")]).exit_code == 0  # what to do
    assert verify(tmp_path / "shop", "--receipt", mine)[0] == 0


@pytest.mark.parametrize("published", [False, True])
def test_a_change_that_learned_is_not_made_again_once_its_sample_was_forgotten(published: bool, tmp_path: Path) -> None:
    """Its receipt is used up: a certificate lists it, or will. A store that held it under that did not open again."""
    with made(tmp_path / "shop") as model:
        model.learn(ROWS[1:9], NAMES[1:9])
        change = model.learning(ROWS[[9, 0]], [NAMES[9], NAMES[0]])
        model.commit(change)
        model.forget([change.receipts[1]])
        if published:
            model.publish()
        model.forget(ROWS[9:10], NAMES[9:10])
        before = model.digest(), model.status()
        for again in (model.rehearse, model.commit):
            with pytest.raises(InputError, match="row 0 was learned with its receipt before, .* Nothing was learned"):
                again(change)
        assert (model.digest(), model.status()) == before
        held = model.holds(change.receipts)
        assert [answer.held for answer in held] == [None, None]
        receipts = model.learn(ROWS[[9, 0]], [NAMES[9], NAMES[0]])  # what to do
        assert not {*receipts} & {*change.receipts}
    with store.open(tmp_path / "shop", write=False) as reader:
        assert [answer.held for answer in reader.holds(receipts)] == ["receipt", "receipt"]
        reader.check()
    store.open(tmp_path / "shop").close()


def test_a_copy_in_the_version_of_the_certificate_that_lists_the_receipt(tmp_path: Path) -> None:
    with made(tmp_path / "shop") as model:
        receipts = model.learn(ROWS[[0, 0, 1]], [NAMES[0], NAMES[0], NAMES[1]])
        model.forget(receipts[:1])
        assert model.publish().number == 1
        model.forget(receipts[1:2])
        assert model.holds(receipts[:1]) == [store.Holding(1, None, sure=False, unpublished=True)]
        model.publish()
        assert model.holds(receipts[:1]) == [store.Holding(1, None, sure=True)]


def test_an_empty_store_whose_version_is_not_empty_is_not_passed(tmp_path: Path) -> None:
    keys = Keyring.create(tmp_path / "keys.json")
    with made(tmp_path / "shop", keys) as model:
        receipts = model.learn(ROWS[:2], NAMES[:2])
        model.publish()
        model.forget(receipts)
        for known in (keys, None):
            with store.open(tmp_path / "shop", write=False, keys=known) as reader:
                assert reader.version().classes
                assert reader.holds(receipts) == [store.Holding(None, None, sure=False, unpublished=True)] * 2


def test_what_was_never_published_need_not_be_published(tmp_path: Path) -> None:
    """Forgets are pending, and the published version has nothing that is not held."""
    receipt = forgotten(tmp_path / "shop")
    with store.open(tmp_path / "shop", backbone=Precomputed(8)) as model:
        model.forget(model.learn(ROWS[:1], NAMES[:1]))
        assert model.ledger.pending()
        assert model.holds([receipt]) == [store.Holding(2, None, sure=True)]


class Moving(Precomputed):
    """A network whose features move, as they do with another batch size or library; samples stay what they are."""

    shift = 0.0

    def extract(self, samples: Any) -> np.ndarray:
        return super().extract(samples) + np.float32(self.shift)


@pytest.mark.parametrize("label", [NAMES[0], OTHER])
def test_a_sample_whose_features_moved_is_found_in_whatever_class(label: str, tmp_path: Path) -> None:
    network = Moving(8)
    with store.create(tmp_path / "shop", network, AnalyticClassifier(RandomProjection(24), gamma=512)) as model:
        receipts = model.learn(ROWS, NAMES, IDS)
        model.forget(receipts[:1])
        model.publish()
        network.shift = 0.5
        model.learn(ROWS[:1], [label], ["again"])
        assert model.holds(receipts[:1]) == [store.Holding(1, "sample", sure=True)]


@pytest.mark.parametrize(("together", "questions"), [(2**16, 1), (6, 4), (1, 12)])
def test_many_classes_are_looked_through_with_few_questions(
    together: int, questions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question a class would go through the whole index as often as there are classes."""
    asked = []

    def counted(self: Ledger, contents: Any) -> set[bytes]:
        asked.append(1)
        return knows_contents(self, contents)

    knows_contents = Ledger.knows_contents
    monkeypatch.setattr(Ledger, "knows_contents", counted)
    monkeypatch.setattr("neverseen.store.lookups._TOGETHER", together)
    with made(tmp_path / "shop") as model:
        receipts = model.learn(ROWS[:2], ["class 3", "class 7"], IDS[:2])
        model.forget(receipts)
        model.learn(ROWS[2:14], [f"class {place}" for place in range(12)], IDS[2:14])
        model.learn(ROWS[1:2], ["class 11"], ["again"])
        asked.clear()
        assert [answer.held for answer in model.holds(receipts)] == [None, "sample"]
    assert len(asked) == questions


def test_another_sample_under_the_old_id_is_told(tmp_path: Path) -> None:
    receipt = forgotten(tmp_path / "shop")
    with store.open(tmp_path / "shop", backbone=Precomputed(8)) as model:
        model.learn(ROWS[:1] + 1, NAMES[:1], IDS[:1])
        assert model.holds([receipt])[0].held == "id"
    code, _, error = verify(tmp_path / "shop", "--receipt", tmp_path / "mine.jsonl")
    assert code == 1
    assert "under its id" in error


def test_without_keys_nothing_is_claimed_that_cannot_be_known(tmp_path: Path) -> None:
    keys = Keyring.create(tmp_path / "keys.json")
    receipt = forgotten(tmp_path / "shop", keys)
    mine = tmp_path / "mine.jsonl"
    with store.open(tmp_path / "shop", write=False) as model:
        assert model.holds([receipt]) == [store.Holding(2, None, sure=False)]
    assert verify(tmp_path / "shop", "--receipt", mine)[0] == 1
    assert verify(tmp_path / "shop", "--receipt", mine, "--keys", tmp_path / "keys.json")[0] == 0
    relearn(tmp_path / "shop", known="under another id", keys=keys)
    code, _, error = verify(tmp_path / "shop", "--receipt", mine)
    assert code == 1
    assert "--keys" in error
    code, _, error = verify(tmp_path / "shop", "--receipt", mine, "--keys", tmp_path / "keys.json")
    assert code == 1
    assert "holds a sample with the same content" in error
    other = Keyring.create(tmp_path / "other.json")
    assert verify(tmp_path / "shop", "--receipt", mine, "--keys", tmp_path / "other.json")[0] == 1
    assert other is not keys


def twice(folder: Path, keys: Keyring) -> bytes:
    """Make a store that holds a sample twice, and forget one of the two; return that one's receipt."""
    with made(folder, keys) as model:
        receipts = model.learn(ROWS[[0, 0, 1]], [NAMES[0], NAMES[0], NAMES[1]], ["one", "two", "other"])
        model.publish()
        model.forget(receipts[:1])
        model.publish()
        ReceiptFile(folder.parent / "mine.jsonl").write(receipts[:1], map(model.read_receipt, receipts[:1]))
    return receipts[0]


def test_a_copy_from_before_is_not_passed_without_keys(tmp_path: Path) -> None:
    """The sample was learned twice at once, and nothing was learned since one of the two went."""
    keys = Keyring.create(tmp_path / "keys.json")
    receipt = twice(tmp_path / "shop", keys)
    with store.open(tmp_path / "shop", write=False) as model:
        assert model.holds([receipt]) == [store.Holding(2, None, sure=False)]
    with store.open(tmp_path / "shop", write=False, keys=keys) as model:
        assert model.holds([receipt]) == [store.Holding(2, "sample", sure=True)]
    mine = tmp_path / "mine.jsonl"
    code, _, error = verify(tmp_path / "shop", "--receipt", mine)
    assert (code, "--keys" in error) == (1, True)
    assert verify(tmp_path / "shop", "--receipt", mine, "--keys", tmp_path / "keys.json")[0] == 1


def test_a_copy_from_before_is_not_passed_with_keys_that_do_not_open_the_receipt(tmp_path: Path) -> None:
    """The receipt key was replaced, and the old one dropped."""
    keys = Keyring.create(tmp_path / "keys.json")
    receipt = twice(tmp_path / "shop", keys)
    later = Keyring(keys.membership, Keyring.generate().receipts)
    with store.open(tmp_path / "shop", write=False, keys=later) as model:
        assert model.holds([receipt]) == [store.Holding(2, None, sure=False)]


def test_an_altered_certificate_makes_nothing_sure(tmp_path: Path) -> None:
    """An older one, whose signature nobody looks at when the store opens, says that nothing was learned."""
    keys = Keyring.create(tmp_path / "keys.json")
    receipt = forgotten(tmp_path / "shop", keys)
    relearn(tmp_path / "shop", known="again", keys=keys)
    with store.open(tmp_path / "shop", keys=keys) as model:
        model.publish(always=True)
        model.publish(always=True)
    path = tmp_path / "shop" / "certificates" / "00000003.json"
    found = Certificate.load(path)
    path.write_bytes(replace(found, before=found.after, learned=0).to_json())
    with store.open(tmp_path / "shop", write=False) as model:
        assert model.certificate(3).learned == 0
        assert not model.holds([receipt])[0].sure


def test_an_empty_store_holds_nothing_for_sure(tmp_path: Path) -> None:
    keys = Keyring.create(tmp_path / "keys.json")
    with made(tmp_path / "shop", keys) as model:
        receipts = model.learn(ROWS[:1], NAMES[:1])
        model.publish()
        model.forget(receipts)
        model.publish()
    with store.open(tmp_path / "shop", write=False) as reader:
        assert reader.holds(receipts) == [store.Holding(2, None, sure=True)]


def test_an_unpublished_relearning_without_keys_is_not_passed(tmp_path: Path) -> None:
    keys = Keyring.create(tmp_path / "keys.json")
    forgotten(tmp_path / "shop", keys)
    with store.open(tmp_path / "shop", backbone=Precomputed(8), keys=keys) as model:
        model.learn(ROWS[:1], NAMES[:1], ["again"])
    assert verify(tmp_path / "shop", "--receipt", tmp_path / "mine.jsonl")[0] == 1


def test_a_certificate_alone_never_says_forgotten_alone(tmp_path: Path) -> None:
    forgotten(tmp_path / "shop")
    relearn(tmp_path / "shop")
    file, mine = tmp_path / "shop" / "certificates" / "00000002.json", tmp_path / "mine.jsonl"
    code, words, _ = verify(file, "--receipt", mine)
    assert code == 0
    assert "listed as forgotten by certificate 2 of 20" in words
    assert "the samples may have been learned again later" in words
    assert verify(file, "--receipt", mine, "--store", tmp_path / "shop")[0] == 1


def test_a_certificate_of_another_store_is_refused(tmp_path: Path) -> None:
    forgotten(tmp_path / "shop")
    (tmp_path / "other").mkdir()
    forgotten(tmp_path / "other" / "shop")
    file, mine = tmp_path / "shop" / "certificates" / "00000002.json", tmp_path / "mine.jsonl"
    code, _, error = verify(file, "--receipt", mine, "--store", tmp_path / "other" / "shop")
    assert code == 1
    assert "not with the key given" in error


def test_an_older_copy_of_the_store_cannot_vouch(tmp_path: Path) -> None:
    """It is from before the sample was learned; the store itself holds the sample again."""
    shop, older, other = (tmp_path / name / "shop" for name in ("now", "older", "other"))
    shop.parent.mkdir()
    made(shop).close()
    shutil.copytree(shop, older)
    with store.open(shop) as model:
        receipts = model.learn(ROWS, NAMES, IDS)
        model.forget(receipts[:1])
        model.publish()
    shutil.copytree(shop, other)
    with store.open(shop) as model:
        model.learn(ROWS[:1], NAMES[:1])
        model.forget(receipts[1:2])
        model.publish()
    with store.open(other) as model:
        model.publish(always=True)
    mine, chain = tmp_path / "mine", sorted((shop / "certificates").iterdir())
    mine.write_bytes(receipts[1])
    for copy, words in (
        (older, "certificate 1 (it has 0)"),
        (other, "certificate 2 (its certificate of that number differs)"),
    ):
        code, said, error = verify(*chain, "--receipt", mine, "--store", copy)
        assert (code, said) == (1, "")
        assert f"{copy} does not have {words}: it is an older copy" in error
    assert verify(shop, "--receipt", mine, "--store", older)[0] == 1
    assert verify(chain[1], "--receipt", mine, "--store", shop)[0] == 0


def test_json_says_what_was_found(tmp_path: Path) -> None:
    forgotten(tmp_path / "shop")
    mine, place = tmp_path / "mine.jsonl", str(tmp_path / "shop")
    code, words, _ = verify(place, "--receipt", mine, "--json")
    assert code == 0
    with store.open(place, write=False) as model:
        public_key = model.description.public_key
    assert json.loads(words) == {
        "certificates": [2],
        "check": "mine",
        "held": [None],
        "key_known": True,
        "keys": [public_key],
        "passed": True,
        "store": place,
    }
    relearn(tmp_path / "shop", known="another")
    code, words, _ = verify(place, "--receipt", mine, "--json")
    assert code == 1
    found: dict[str, Any] = json.loads(words)
    assert (found["passed"], found["held"]) == (False, ["sample"])


def test_what_is_listed_nowhere_fails(tmp_path: Path) -> None:
    with made(tmp_path / "shop") as model:
        receipts = model.learn(ROWS, NAMES, IDS)
        ReceiptFile(tmp_path / "all.jsonl").write(receipts, map(model.read_receipt, receipts))
        model.publish()
        assert model.holds(receipts[:2]) == [store.Holding(None, "receipt", sure=True)] * 2
    assert len(read_receipts([tmp_path / "all.jsonl"])) == 24
    assert verify(tmp_path / "shop", "--receipt", tmp_path / "all.jsonl")[0] == 1


def test_an_altered_receipt_is_not_listed(tmp_path: Path) -> None:
    receipt = bytearray(forgotten(tmp_path / "shop"))
    receipt[-1] ^= 1
    with store.open(tmp_path / "shop", write=False) as model:
        assert model.holds([bytes(receipt)]) == [store.Holding(None, None, sure=False)]


def test_looking_changes_nothing(tmp_path: Path) -> None:
    receipt = forgotten(tmp_path / "shop")
    with store.open(tmp_path / "shop") as model:
        before = model.digest(), model.status()["samples"], list(model.ledger.journal())
        model.holds([receipt])
        assert before == (model.digest(), model.status()["samples"], list(model.ledger.journal()))


def test_the_service_names_the_certificate_and_no_more(tmp_path: Path) -> None:
    with running(tmp_path / "served") as service, Client(service.url) as client:
        (receipt,) = service.learn([0])
        request = service.forget([receipt]).json()["request"]["id"]
        service.wait(request)
        service.learn([0])
        number = service.client.get(f"/v1/requests/{request}", headers=service.admin).json()["request"]["certificate"]
        (check,) = client.verify(number, receipt, ["mine"])
        assert check.passed
        assert check.listed_in == number
        assert f"certificate {number} of 20" in check.message
        assert "may have learned the sample again" in check.message
        body = {"certificate": number, "checks": ["mine"], "receipt": receipt}
        assert service.client.post("/v1/verify", json=body).json()["checks"][0]["listed_in"] == number
        (check,) = client.verify(1, receipt, ["mine"])
        assert check.passed == (number == 1)


def test_features_of_nobody_are_not_found(tmp_path: Path) -> None:
    receipt = forgotten(tmp_path / "shop")
    with store.open(tmp_path / "shop", backbone=Precomputed(8)) as model:
        model.learn(np.flip(ROWS[1:3], axis=1), ["bird", "bird"])
        assert model.holds([receipt]) == [store.Holding(2, None, sure=True)]


def test_another_store_cannot_vouch(tmp_path: Path) -> None:
    """An empty store holds nothing, and so not the sample either: it says nothing of the store that learned it."""
    forgotten(tmp_path / "shop")
    relearn(tmp_path / "shop")
    with made(tmp_path / "empty") as model:
        model.publish(always=True)
    with store.open(tmp_path / "shop", write=False) as model:
        key = model.description.public_key
    given = "--receipt", tmp_path / "mine.jsonl", "--public-key", key
    certificates = sorted((tmp_path / "shop" / "certificates").iterdir())
    for places in ([tmp_path / "shop"], certificates):
        code, words, error = verify(*places, *given, "--store", tmp_path / "empty")
        assert (code, words) == (1, "")
        assert "empty is another store" in error
        code, words, error = verify(*places, *given, "--store", tmp_path / "shop")
        assert (code, words) == (1, "")
        assert "holds its sample now" in error or "holds a sample" in error
