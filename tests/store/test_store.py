"""A model in a folder: what is acknowledged lasts, what is forgotten goes from the disk."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.crashes import crash
from neverseen import (
    AlreadyForgottenError,
    AnalyticClassifier,
    ConfigurationError,
    ForgettingModel,
    InputError,
    Key,
    Keyring,
    LedgerError,
    NotLearnedError,
    NotPublishedError,
    RandomProjection,
    ReceiptRejectedError,
    StoreDamagedError,
    StoreLockedError,
    store,
)
from neverseen.backbones import Precomputed
from neverseen.encoding import quantise
from neverseen.ledger import ledger as ledger_module
from neverseen.proof.certificates import check_chain, is_mine
from neverseen.store import Store
from neverseen.store import sums as sums_module
from neverseen.store.sums import fold
from tests import oracle
from tests.samples import clustered

ROWS, LABELS = clustered("store", 60, 6, 3)
IDS = [f"sample number {row}" for row in range(len(ROWS))]
KEYS = Keyring(Key(bytes([7] * 32)), [Key(bytes([8] * 32))])
BACKBONE = Precomputed(6)


def classifier() -> AnalyticClassifier:
    return AnalyticClassifier(RandomProjection(24, seed=1), 2**9, track_classes=True, hardware="numpy")


def new(folder: Path, keys: Keyring = KEYS) -> Store:
    store.create(folder, BACKBONE, classifier(), keys=keys).close()
    return opened(folder, keys=keys)  # by the same clock as all that is opened later


def opened(folder: Path, keys: Keyring = KEYS, **settings: Any) -> Store:
    return store.open(folder, backbone=BACKBONE, keys=keys, hardware="numpy", clock=lambda: 1_700_000_000.0, **settings)


def never(rows: list[int]) -> str:
    """The digest of a model that learned these rows and nothing else."""
    model = ForgettingModel(BACKBONE, classifier(), KEYS)
    model.learn(ROWS[rows], LABELS[rows])
    return model.digest()


def test_what_is_acknowledged_is_there_again(tmp_path: Path) -> None:
    with new(tmp_path / "s") as first:
        receipts = first.learn(ROWS[:30], LABELS[:30], IDS[:30], ["ada"] * 30)
        first.forget(receipts[:3])
        assert first.digest() == never(list(range(3, 30)))
    with opened(tmp_path / "s") as again:
        assert again.digest() == never(list(range(3, 30)))
        again.forget(receipts[3:5])
        again.forget(ROWS[5:7], LABELS[5:7])
        again.learn(ROWS[30:40], LABELS[30:40])
        again.forget_class(int(LABELS[8]))
        rest = [row for row in range(7, 40) if LABELS[row] != LABELS[8]]
        assert again.digest() == never(rest)
        assert again.read_receipt(receipts[9]) == {"id": IDS[9], "label": LABELS[9], "owner": "ada"}
    with opened(tmp_path / "s") as again:
        assert again.digest() == never(rest)
        assert again.status()["samples"] == len(rest)


def test_a_store_says_where_it_is_and_whether_it_can_be_changed(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        assert repr(made) == f"<Store {str(tmp_path / 's')!r}, for writing>"
        made.publish()
        with opened(tmp_path / "s", write=False) as reader:
            assert repr(reader) == f"<Store {str(tmp_path / 's')!r}, for reading>"
            assert repr(reader.version()) == "<Version of 0 classes, 0 features>"
    assert repr(made) == f"<Store {str(tmp_path / 's')!r}, closed>"


def test_the_folder_is_private(tmp_path: Path) -> None:
    with store.create(tmp_path / "s", BACKBONE, classifier()) as made:
        made.learn(ROWS, LABELS)
        made.publish()
        made.seal()
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
        for path in (tmp_path / "s").rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) in (0o600, 0o700), path
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_store_is_not_made_over_another(tmp_path: Path) -> None:
    new(tmp_path / "s").close()
    with pytest.raises(FileExistsError, match=r"open it with store.open"):
        new(tmp_path / "s")
    (tmp_path / "empty").mkdir()
    new(tmp_path / "empty").close()
    with pytest.raises(FileNotFoundError, match="is not a store"):
        opened(tmp_path)


def test_refusals_change_nothing_on_disk(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:10], LABELS[:10], IDS[:10])
        made.forget(receipts[0])
        before = list(made.ledger.samples()), list(made.ledger.journal())
        forged = receipts[1][:-1] + bytes([receipts[1][-1] ^ 1])
        for call in (
            lambda: made.forget([receipts[2], forged]),
            lambda: made.forget(receipts[0]),
            lambda: made.forget([receipts[2], receipts[2]]),
            lambda: made.forget(ROWS[50:51], LABELS[50:51]),
            lambda: made.forget_class("nobody"),
            lambda: made.learn(ROWS[20:22], LABELS[20:22], ["new", IDS[4]]),
            lambda: made.learn(ROWS[20:22], LABELS[20:21]),
        ):
            with pytest.raises((ReceiptRejectedError, NotLearnedError, InputError)):
                call()
        assert (list(made.ledger.samples()), list(made.ledger.journal())) == before
        assert made.digest() == never(list(range(1, 10)))


# -- publishing --------------------------------------------------------------------------------------


def test_readers_see_what_is_published(tmp_path: Path) -> None:
    with new(tmp_path / "s") as writer:
        receipts = writer.learn(ROWS[:30], LABELS[:30])
        with opened(tmp_path / "s", write=False) as reader:
            with pytest.raises(NotPublishedError, match="nothing is published"):
                reader.predict(ROWS)
            first = writer.publish()
            digest = writer.digest()
            assert reader.digest() == digest == first.after.model
            writer.forget(receipts[:5])
            assert reader.digest() == digest != writer.digest()
            second = writer.publish()
            assert reader.digest() == writer.digest() == second.after.model
            assert np.array_equal(reader.predict(ROWS), writer.predict(ROWS))
            with pytest.raises(ConfigurationError, match="open it with write=True"):
                reader.learn(ROWS, LABELS)
        assert writer.publish() == second  # nothing changed since
        model = ForgettingModel(BACKBONE, classifier(), KEYS)
        model.learn(ROWS[5:30], LABELS[5:30])
        assert np.array_equal(writer.predict(ROWS), model.predict(ROWS))
        assert writer.score(ROWS, LABELS) == model.score(ROWS, LABELS)


def test_the_status_passes_over_files_that_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes, and removes what it has replaced, while a reader counts bytes."""
    new(tmp_path / "s").close()
    replaced, look = tmp_path / "s" / "sums" / "replaced", Path.stat

    def removed_after_a_look(self: Path, **options: bool) -> os.stat_result:
        about = look(self, **options)
        if self == replaced:
            self.unlink()
        return about

    with opened(tmp_path / "s", write=False) as reader:
        before = reader.status()
        replaced.write_bytes(bytes(100))
        listed = [*(tmp_path / "s").rglob("*"), replaced]
        monkeypatch.setattr(Path, "rglob", lambda *_: iter(listed))
        monkeypatch.setattr(Path, "stat", removed_after_a_look)
        assert reader.status() == before | {"bytes": before["bytes"] + 100}
        assert reader.status() == before


def test_the_score_tells_labels_apart_as_the_model_does(tmp_path: Path) -> None:
    names = [1, "1", True, "a"]
    rows = np.eye(4, 6, dtype=np.float32)
    with new(tmp_path / "s") as made:
        made.learn(rows, names)
        made.publish()
        assert list(made.predict(rows)) == names
        assert made.score(rows, names) == 1.0
        assert made.score(rows, ["1", 1, 1, "never learned"]) == 0.0
        for labels in (["a"], names[:2], [*names, "a"]):
            with pytest.raises(InputError, match=f"inconsistent numbers of samples and labels: 4 and {len(labels)}"):
                made.score(rows, labels)


def test_certificates_tell_what_was_forgotten(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:30], LABELS[:30])
        made.publish()
        made.forget(receipts[0])
        made.forget(ROWS[1:2], LABELS[1:2])
        made.forget_class(int(LABELS[2]))
        gone = {0, 1} | {row for row in range(30) if LABELS[row] == LABELS[2]}
        with pytest.raises(ReceiptRejectedError) as refusal:
            made.forget(receipts[0])
        assert not isinstance(refusal.value, AlreadyForgottenError)  # no certificate says so yet
        second = made.publish()
        assert (second.number, second.learned, second.forgotten) == (2, 0, len(gone))
        for row, receipt in enumerate(receipts):
            assert is_mine(second, receipt) == (row in gone)
        for row in sorted(gone):
            with pytest.raises(AlreadyForgottenError, match="certificate 2 says so") as already:
                made.forget([receipts[row]])
            assert already.value.certificate == 2
        check_chain(made.certificates(), made.description.public_key)
        made.version().check(made._exact().statistics)
        with pytest.raises(NotPublishedError, match="there is no certificate 3; published so far: 2"):
            made.certificate(3)
    with opened(tmp_path / "s") as again:
        check_chain(again.certificates(), again.description.public_key)
        assert again.publish() == second


def test_what_is_learned_again_has_a_new_receipt_and_the_old_one_is_used_up(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:4], LABELS[:4], IDS[:4])
        made.publish()
        made.forget(receipts[:2])
        again = made.learn(ROWS[:1], LABELS[:1], IDS[:1])
        assert again[0] not in receipts
        with pytest.raises(ReceiptRejectedError, match="used already"):
            made.forget(receipts[0])
        second = made.publish()
        assert (second.learned, second.forgotten) == (1, 2)
        assert [is_mine(second, receipt) for receipt in receipts + again] == [True, True, False, False, False]
        with pytest.raises(AlreadyForgottenError, match="certificate 2"):
            made.forget(receipts[0])
        made.forget(again[0])
        assert is_mine(made.publish(), again[0])
        check_chain(made.certificates())


def test_receipt_and_row_are_what_the_specification_says(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        (receipt,) = made.learn(ROWS[:1], LABELS[:1], ["photo"], [("team", 4)])
        (row,) = made.ledger.samples()
        salt, model, mark, *texts, features = oracle.salted_receipt_parts(receipt, KEYS.receipts[0].reveal())
        configuration, key = made.description.configuration.digest(), KEYS.membership.reveal()
        assert (salt, model) == (row.salt, configuration[:16])
        assert texts == ['"photo"', '{"tuple":["team",4]}', row.name]
        assert features == quantise(ROWS[:1].astype(np.float32))[0].tolist()
        assert row.number == oracle.ticket_number_of_owner(configuration, key, row.owner, row.id)
        assert row.content == oracle.ticket_content(configuration, key, row.name, mark)


def test_an_emptied_store_publishes_the_empty_model(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:4], LABELS[:4])
        made.publish()
        made.forget(receipts)
        last = made.publish()
        assert (last.after.samples, last.after.classes) == (0, 0)
        assert made.digest() == never([])
        check_chain(made.certificates())
        made.learn(ROWS[:4], LABELS[:4])
        assert made.publish().number == 3
        check_chain(made.certificates())


# -- sealing -----------------------------------------------------------------------------------------


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def ledger_rows(made: Store) -> list[Any]:
    """All samples, without what is random: salts, and the commitments that follow from them."""
    return [row._replace(salt=b"", commitment=b"") for row in made.ledger.samples()]


def test_sealing_reaches_the_disk(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made, new(tmp_path / "never") as other:
        receipts = made.learn(ROWS, LABELS, IDS, [f"owner {row}" for row in range(60)])
        made.publish()
        gone = [3, 4, 44]
        rows = {row.id: row for row in made.ledger.samples()}
        secrets = [part for row in gone for part in traces(rows[json.dumps(IDS[row])], row)]
        made.forget([receipts[row] for row in gone])
        folder = tmp_path / "s"
        assert any(secret in contents(folder) for secret in secrets)  # so that the search below can fail
        assert not made.status()["sealed"]
        certificate = made.seal()
        assert made.status()["sealed"]
        raw = contents(folder)
        for secret in secrets:
            assert secret not in raw
        for row in gone:
            assert is_mine(certificate, receipts[row])
        rest = [row for row in range(60) if row not in gone]
        other.learn(ROWS[rest], LABELS[rest], [IDS[row] for row in rest], [f"owner {row}" for row in rest])
        other.seal()
        assert ledger_rows(made) == ledger_rows(other)
        names = [sorted(path.name for path in (tmp_path / name / "sums").iterdir()) for name in ("s", "never")]
        assert names[0] == names[1]
        for name in names[0]:
            assert (folder / "sums" / name).read_bytes() == (tmp_path / "never" / "sums" / name).read_bytes()
        assert made.digest() == other.digest() == never(rest)
        version = made.folder / "versions" / "00000002.safetensors"
        assert version.read_bytes() == (tmp_path / "never" / "versions" / "00000001.safetensors").read_bytes()


def traces(row: Any, position: int) -> list[bytes]:
    quantised = quantise(ROWS[position : position + 1].astype(np.float32))
    digests = [row.number, row.member, row.content, row.salt]
    return [*digests, row.id.encode(), row.owner.encode(), quantised.tobytes()]


def test_a_reader_in_the_way_of_sealing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PATIENCE", 0.2)
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:20], LABELS[:20])
        made.forget(receipts[:2])
        with opened(tmp_path / "s", write=False) as other:
            rows = other.ledger.samples()
            next(rows)  # a read transaction that stays open
            with pytest.raises(LedgerError, match="being read|in use|locked"):
                made.seal()
            assert not made.status()["sealed"]
            rows.close()  # type: ignore[attr-defined]
        made.seal()
        assert made.status()["sealed"]


# -- one writer --------------------------------------------------------------------------------------


def test_two_cannot_write(tmp_path: Path) -> None:
    with new(tmp_path / "s"):
        with pytest.raises(StoreLockedError, match=f"being written by process {os.getpid()} on .*, since 20"):
            opened(tmp_path / "s")
        script = f"from neverseen import store; store.open({str(tmp_path / 's')!r})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "StoreLockedError" in done.stderr
    opened(tmp_path / "s").close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    made = new(tmp_path / "s")
    made.close()
    made.close()
    for call in (lambda: made.learn(ROWS, LABELS), made.publish, made.status):
        with pytest.raises(ConfigurationError, match="closed"):
            call()


# -- folding, recovery, damage -----------------------------------------------------------------------


def test_folding_keeps_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_module, "FOLD_BYTES", 100)
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:20], LABELS[:20])
        assert list(made.ledger.journal()) == []  # 20 rows are more than 100 bytes
        made.forget(receipts[:1])
        made.forget_class(int(LABELS[1]))
        rest = [row for row in range(1, 20) if LABELS[row] != LABELS[1]]
        assert made.digest() == never(rest)
    with opened(tmp_path / "s") as again:
        assert again.digest() == never(rest)
        again.learn(ROWS[20:50], LABELS[20:50])
        assert again.digest() == never(rest + list(range(20, 50)))


def test_files_that_nobody_names_are_removed(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        made.learn(ROWS[:20], LABELS[:20])
        made.publish()
    orphans = [tmp_path / "s" / name for name in ("sums/ab", "versions/00000002.safetensors")]
    for orphan in orphans:
        orphan.write_bytes(b"left by a process that died")
    with opened(tmp_path / "s") as again:
        assert not any(orphan.exists() for orphan in orphans)
        assert again.publish().number == 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "store.json").write_text("{}"), "store.json is damaged"),
        (lambda folder: (folder / "store.json").unlink(), "is not a store"),
        (lambda folder: flip(*(path for path in (folder / "sums").iterdir() if path.suffix == "")), "is damaged"),
        (lambda folder: next((folder / "sums").glob("*.json")).unlink(), "is missing"),
        (lambda folder: (folder / "ledger.sqlite").unlink(), "ledger.sqlite.* is missing"),
        (lambda folder: (folder / "ledger.sqlite").write_bytes(b"something else" * 1000), "ledger.sqlite"),
    ],
)
def test_damage_is_named_and_never_loaded(damage: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        made.learn(ROWS, LABELS)
        made.seal()
    damage(tmp_path / "s")
    with pytest.raises((StoreDamagedError, LedgerError, FileNotFoundError), match=words):
        opened(tmp_path / "s").digest()


def flip(*paths: Path) -> None:
    for path in paths:
        raw = bytearray(path.read_bytes())
        raw[4100] ^= 4
        path.write_bytes(raw)


def test_a_ledger_of_other_samples_than_the_sums_is_named(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:10], LABELS[:10])
        rows = list(made.ledger.samples())
        with made.ledger.writing() as writing:
            writing.remove([rows[0].number])
        assert len(receipts) == 10
    with pytest.raises(StoreDamagedError, match=r"not of the same samples \(9 and 10\)"):
        opened(tmp_path / "s")


def test_a_rotten_version_or_certificate_is_named(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        made.learn(ROWS, LABELS)
        made.publish()
    path = tmp_path / "s" / "versions" / "00000001.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    with opened(tmp_path / "s", write=False) as reader, pytest.raises(StoreDamagedError, match="00000001.safetensors"):
        reader.predict(ROWS)


def test_other_keys_or_backbones_are_refused(tmp_path: Path) -> None:
    new(tmp_path / "s").close()
    with pytest.raises(ConfigurationError, match="the keys are not those"):
        store.open(tmp_path / "s", backbone=BACKBONE, keys=Keyring.generate())
    with pytest.raises(ConfigurationError, match="another backbone than other"):
        store.open(tmp_path / "s", backbone=Precomputed(6, "other"), keys=KEYS)
    with store.open(tmp_path / "s", keys=KEYS) as made:  # it is made from its recipe
        assert len(made.learn(ROWS, LABELS)) == len(ROWS)


def test_a_store_travels_as_one_file(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:9], LABELS[:9], IDS[:9])
        made.publish()
    digest = store.write_archive(str(tmp_path / "s"), str(tmp_path / "s.tar"))
    assert stat.S_IMODE((tmp_path / "s.tar").stat().st_mode) == 0o600
    assert (
        store.read_archive(str(tmp_path / "again"), str(tmp_path / "s.tar"), keys=KEYS) == digest == never([*range(9)])
    )
    with opened(tmp_path / "again") as again:
        again.forget(receipts[:2])
        assert again.digest() == never([*range(2, 9)])
    with pytest.raises(FileExistsError, match="already exists"):
        store.write_archive(tmp_path / "s", tmp_path / "s.tar")
    before = (tmp_path / "again" / "store.json").read_bytes()
    with pytest.raises(FileExistsError, match="already exists"):
        store.read_archive(tmp_path / "again", tmp_path / "s.tar", keys=KEYS)
    assert (tmp_path / "again" / "store.json").read_bytes() == before


def test_without_a_backbone_receipts_still_work(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS, LABELS)
    with store.open(tmp_path / "s", keys=KEYS) as made:
        made.forget(receipts[:30])
        assert made.digest() == never(list(range(30, 60)))


operation = st.one_of(
    st.tuples(st.sampled_from(["learn", "forget", "sample"]), st.integers(0, 14)),
    st.tuples(st.just("class"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["publish", "seal", "reopen", "fold"]), st.just(0)),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(operation, max_size=16))
def test_any_history_ends_in_what_remains(tmp_path_factory: pytest.TempPathFactory, history: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("history") / "s"
    made = new(folder)
    receipts: dict[int, bytes] = {}
    held: set[int] = set()
    for verb, number in history:
        row = slice(number, number + 1)
        if verb == "learn" and number not in held:
            (receipts[number],) = made.learn(ROWS[row], LABELS[row], IDS[row])
            held.add(number)
        elif verb == "forget" and number in held:
            made.forget(receipts[number])
            held.discard(number)
        elif verb == "sample" and number in held:
            made.forget(ROWS[row], LABELS[row])
            held.discard(number)
        elif verb == "class" and any(LABELS[row] == number for row in held):
            made.forget_class(number)
            held = {row for row in held if LABELS[row] != number}
        elif verb == "publish":
            made.publish()
        elif verb == "seal":
            made.seal()
        elif verb == "fold":
            fold(made._open_parts(), made._exact())
        elif verb == "reopen":
            made.close()
            made = opened(folder)
    assert made.digest() == never(sorted(held))
    made.seal()
    check_chain(made.certificates())
    made.version().check(made._exact().statistics)
    made.close()
    with opened(folder) as again:
        assert again.digest() == never(sorted(held))


# -- killed at any moment ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment(seed: int, tmp_path: Path) -> None:
    """A few of the kills that `benchmarks.store` makes hundreds of."""
    assert len(list(crash(tmp_path / "s", 6, seed))) == 6
