"""What a store offers to a service: changes in two steps, notes in their transaction, owners, verdicts, rehearsals."""

from __future__ import annotations

from pathlib import Path

import pytest

from neverseen import (
    AlreadyForgottenError,
    AnalyticClassifier,
    ConfigurationError,
    ForgettingModel,
    IdTakenError,
    InputError,
    Keyring,
    LedgerError,
    NotLearnedError,
    RandomProjection,
    ReceiptRejectedError,
    store,
)
from neverseen.backbones.reading import Prepared
from neverseen.ledger import Notes, RequestRow
from neverseen.store import Store
from neverseen.store.sums import fold
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, never, new, opened


def everything(made: Store) -> tuple[object, ...]:
    ledger = made.ledger
    return list(ledger.samples()), list(ledger.journal()), ledger.requests(99), made.digest()


def test_receipts_are_there_before_samples_are_learned(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        made.learn(ROWS[:5], LABELS[:5], IDS[:5])
        before = everything(made)
        with pytest.raises(IdTakenError, match="belongs to a sample") as refusal:
            made.learning(ROWS[8:10], LABELS[8:10], [IDS[8], IDS[2]])
        assert refusal.value.row == 1
        change = made.learning(ROWS[5:8], LABELS[5:8], IDS[5:8])
        assert [made.read_receipt(receipt)["id"] for receipt in change.receipts] == IDS[5:8]
        assert everything(made) == before
        made.commit(change)
        made.forget(list(change.receipts[:1]))
        assert made.digest() == never([*range(5), 6, 7])


def test_an_id_that_is_taken_meanwhile_is_refused(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        first, second = (made.learning(ROWS[row : row + 1], LABELS[row : row + 1], IDS[:1]) for row in (0, 1))
        made.commit(first)
        before = everything(made)
        with pytest.raises(IdTakenError, match="belongs to a sample"):
            made.commit(second)
        with pytest.raises(IdTakenError, match="belongs to a sample"):
            made.commit(first)
        assert everything(made) == before
        forgetting = made.forgetting(list(first.receipts))
        made.commit(forgetting)
        with pytest.raises(ReceiptRejectedError, match="used already"):
            made.commit(forgetting)
        made.commit(second)
        assert made.digest() == never([1])


def test_notes_are_made_with_the_change_or_not_at_all(tmp_path: Path) -> None:
    def notes(*names: str) -> Notes:
        return Notes(
            [RequestRow(name, name.encode(), "ada", "learn", 3, None, 5) for name in names], {"more": names[0]}
        )

    with new(tmp_path / "s") as made:
        learning = made.learning(ROWS[:9], LABELS[:9], IDS[:9])
        made.commit(learning.noting(notes("learn")))
        receipts = list(learning.receipts)
        made.commit(made.forgetting(receipts[:2]).noting(notes("forget")))
        made.commit(made.forgetting_class(int(LABELS[3])).noting(notes("class")))
        assert [row.id for row in made.ledger.requests(9)] == ["class", "forget", "learn"]
        assert made.ledger.meta("more") == "class"
        rest = [row for row in range(2, 9) if LABELS[row] != LABELS[3]]
        before = everything(made)
        for change in (
            made.learning(ROWS[9:11], LABELS[9:11]),
            made.forgetting([receipts[rest[0]]]),
            made.forgetting(ROWS[rest[:1]], LABELS[rest[:1]]),
            made.forgetting_class(int(LABELS[rest[0]])),
        ):
            with pytest.raises(LedgerError):  # no two requests have the same id
                made.commit(change.noting(notes("twice", "twice")))
            assert everything(made) == before
        assert made.digest() == never(rest)
        made.learn(ROWS[9:11], LABELS[9:11])  # the notes were for one change alone
        assert len(made.ledger.requests(9)) == 3


def test_an_owner_forgets_their_own_alone(tmp_path: Path) -> None:
    """The same sample is Ada's once and Eve's twice: each can let go of their own, and of no other's."""
    with new(tmp_path / "s") as made:
        same = [0, 0, 0, 1, 2]
        owners = ["ada", "eve", "eve", "ada", "eve"]
        receipts = made.learn(ROWS[same], LABELS[same], IDS[:5], owners)
        before = everything(made)
        with pytest.raises(ReceiptRejectedError, match="used already") as refusal:
            made.forget([receipts[0], receipts[1]], owner="ada")
        assert refusal.value.row == 1
        for call in (
            ([2], [2], None, "ada"),
            ([2], [2], IDS[4:5], "ada"),
            ([0, 0], [0, 0], None, "ada"),
            ([0], [0], None, "nobody"),
            ([0], [1], None, "ada"),
        ):
            rows, labels, ids, owner = call
            with pytest.raises(NotLearnedError):
                made.forget(ROWS[rows], LABELS[labels], ids=ids, owner=owner)
        with pytest.raises(InputError, match="learned 2 times"):
            made.forget(ROWS[:1], LABELS[:1], owner="eve")
        assert everything(made) == before
        made.forget(ROWS[:1], LABELS[:1], owner="ada")
        assert made.digest() == never([0, 0, 1, 2])
        made.forget(ROWS[:1], LABELS[:1], ids=IDS[2:3], owner="eve")
        made.forget(receipts[1], owner="eve")
        assert made.digest() == never([1, 2])
        made.forget([receipts[3]])  # without an owner, anybody's
        assert made.digest() == never([2])


def test_verdicts(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:6], LABELS[:6], IDS[:6], ["ada"] * 3 + ["eve"] * 3)
        made.forget(receipts[0])
        made.publish()
        made.forget(receipts[1])
        before = everything(made)
        forged = receipts[2][:-1] + bytes([receipts[2][-1] ^ 1])
        found = made.verdicts([receipts[0], receipts[1], forged, receipts[4], receipts[4], b"", receipts[5]])
        assert [verdict.owner for verdict in found] == ["ada", "ada", None, "eve", "eve", None, "eve"]
        assert [verdict.label for verdict in found][3] == LABELS[4]
        errors = [verdict.error for verdict in found]
        assert errors[3] is errors[6] is None
        assert isinstance(errors[0], AlreadyForgottenError)
        assert errors[0].certificate == 1
        reasons = ["used", "used", "altered", None, "repeated", "foreign", None]
        assert [error and error.reason for error in errors] == reasons
        assert [error and error.row for error in errors] == [0, 1, 2, None, 4, 5, None]
        assert made.verdicts([]) == []
        assert everything(made) == before
    with new(tmp_path / "empty") as made:
        (verdict,) = made.verdicts([receipts[3]])
        assert verdict.error is not None
        assert verdict.error.reason == "used"


def test_a_receipt_that_was_looked_at_goes_once(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:6], LABELS[:6], IDS[:6])
        shown = [verdict.shown for verdict in made.verdicts([receipts[4], receipts[4], receipts[5]])]
        assert all(each is not None for each in shown)
        before = everything(made)
        with pytest.raises((NotLearnedError, ReceiptRejectedError)):
            made.commit(made.forgetting([each for each in shown if each is not None]))
        assert everything(made) == before
        assert shown[0] is not None
        made.commit(made.forgetting([shown[0]]))
        with pytest.raises((NotLearnedError, ReceiptRejectedError)):
            made.commit(made.forgetting([shown[0]]))
        assert made.digest() == never([0, 1, 2, 3, 5])


def test_what_was_made_for_another_store_is_refused_or_made_again(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made, new(tmp_path / "other", keys=Keyring.generate()) as other:
        receipts = made.learn(ROWS[:3], LABELS[:3], IDS[:3])
        theirs = other.learn(ROWS[:3], LABELS[:3], IDS[:3])
        before = everything(other)
        for change in (
            made.learning(ROWS[5:8], LABELS[5:8], IDS[5:8]),
            made.forgetting(receipts[:1]),
            made.forgetting(ROWS[:1], LABELS[:1]),
        ):
            for act in (other.rehearse, other.commit):
                with pytest.raises(ConfigurationError, match="made for a model with another key or configuration"):
                    act(change)
        with pytest.raises(ConfigurationError, match="opened by another model"):
            other.forget(made.opened(receipts[:1]))
        assert everything(other) == before
        prepared = made.prepare(ROWS[1:3], LABELS[1:3])  # with member digests of the first store
        assert other.held_already(prepared, list(LABELS[1:3])) == [True, True]
        assert other.held_already(prepared, [LABELS[1], "another"]) == [True, False]
        with pytest.raises(ValueError, match="read-only"):
            prepared.quantised[0, 0] = 1
        other.forget(prepared, LABELS[1:3])
        assert other.digest() == never([0])
        other.forget(theirs[0])


def test_a_rehearsal_says_what_would_be_said_and_changes_nothing(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:6], LABELS[:6], IDS[:6])
        before = everything(made)
        made.forget(receipts[:2], dry_run=True)
        made.forget(ROWS[:2], LABELS[:2], dry_run=True)
        made.forget_class(int(LABELS[0]), dry_run=True)
        with pytest.raises(ReceiptRejectedError):
            made.forget(receipts[0][:-1], dry_run=True)
        with pytest.raises(NotLearnedError):
            made.forget(ROWS[7:8], LABELS[7:8], dry_run=True)
        with pytest.raises(NotLearnedError):
            made.forget_class("nobody", dry_run=True)
        assert everything(made) == before


def test_prepared_samples_are_as_good_as_samples(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made, new(tmp_path / "t") as other:
        parts = [made.prepare(ROWS[:4], remember=True), made.prepare(ROWS[4:9])]
        assert [len(part) for part in parts] == [4, 5]
        receipts = made.learn(Prepared.joined(parts), LABELS[:9], IDS[:9])
        others = other.learn(ROWS[:9], LABELS[:9], IDS[:9])  # with salts of their own
        assert [made.read_receipt(each) for each in receipts] == [other.read_receipt(each) for each in others]
        made.forget(made.prepare(ROWS[:3]), LABELS[:3])
        assert made.digest() == never(list(range(3, 9)))
        with pytest.raises(InputError, match="9 samples and 8 labels"):
            made.learn(Prepared.joined(parts), LABELS[:8], IDS[9:17])


def test_prepared_samples_of_another_scale_are_refused(tmp_path: Path) -> None:
    scaled = AnalyticClassifier(RandomProjection(24, scale=0.5), 2**9, hardware="numpy")
    with new(tmp_path / "s") as made, store.create(tmp_path / "t", BACKBONE, scaled, keys=KEYS) as other:
        receipts = other.learn(other.prepare(ROWS[:9]), LABELS[:9], IDS[:9])
        assert other.read_receipt(receipts[0])["id"] == IDS[0]
        before = everything(other)
        prepared = made.prepare(ROWS[:2])
        joined = Prepared.joined([prepared.only([0]), prepared.only([1])])
        for given in (prepared, joined):
            for act in (
                lambda given=given: other.learn(given, LABELS[:2], ["new", "newer"]),
                lambda given=given: other.forget(given, LABELS[:2]),
                lambda given=given: other.held_already(given, list(LABELS[:2])),
            ):
                with pytest.raises(InputError, match="with scale=None, and this model has scale=0.5: give the samples"):
                    act()
        assert everything(other) == before
        other.forget(other.prepare(ROWS[:1]), LABELS[:1])
        other.forget(receipts[1])
        expected = ForgettingModel(BACKBONE, scaled, KEYS)
        expected.learn(ROWS[2:9], LABELS[2:9])
        assert other.digest() == expected.digest()


def test_a_reader_can_check_the_weights_while_another_writes(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made, opened(tmp_path / "s", write=False) as reader:
        receipts = made.learn(ROWS[:30], LABELS[:30])
        made.publish()
        made.forget(receipts[:2])
        fold(made._open_parts(), made._exact())
        made.learn(ROWS[30:34], LABELS[30:34])
        certificate = made.publish()
        statistics = reader.statistics()
        assert statistics.digest() == certificate.after.statistics
        reader.version().check(statistics)
        made.forget(receipts[3])
        assert reader.statistics().digest() == made.statistics().digest() != certificate.after.statistics


def test_how_far_the_disk_is_sealed_and_publishing_nothing(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        receipts = made.learn(ROWS[:9], LABELS[:9])
        assert (made.sealed_number, made.publish().number) == (0, 1)
        made.forget(receipts[0])
        assert made.seal().number == made.sealed_number == 2
        assert made.publish().number == 2
        third = made.publish(always=True)
        assert (third.number, third.learned, third.forgotten) == (3, 0, 0)
        assert third.before == third.after
        assert made.sealed_number == 2
