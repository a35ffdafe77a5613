"""The promise: an error after a change is on disk does not pass for a change that was not made.

The attack: let the work that follows the commit fail. The samples are held from then on, and only receipts can have
them forgotten. So the receipts must reach whoever learned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner, Result

from neverseen import AnalyticClassifier, HardwareError, LedgerError, RandomProjection, store
from neverseen.backbones import Precomputed
from neverseen.cli import app
from neverseen.engine.statistics import Statistics
from neverseen.ledger import Ledger
from neverseen.model.intake import Intake
from neverseen.sources.receipts import read_receipts
from neverseen.store import Store
from neverseen.store import sums as module
from neverseen.store.held import LedgerHoldings
from tests.samples import clustered

ROWS, NUMBERS = clustered("after the commit", 6, 4, 2)
NAMES = [("cat", "dog")[number] for number in NUMBERS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    classifier = AnalyticClassifier(RandomProjection(16), gamma=64, track_classes=True)
    store.create(tmp_path / "s", Precomputed(4), classifier).close()
    lines = (",".join([f"photo {row}", NAMES[row], *map(str, ROWS[row])]) for row in range(6))
    (tmp_path / "one.csv").write_text("id,label,a,b,c,d\n" + "\n".join(lines) + "\n")
    return tmp_path / "s"


def fail(patched: pytest.MonkeyPatch, error: BaseException, place: object, name: str) -> None:
    def stop(*_: object) -> NoReturn:
        raise error

    patched.setattr(place, name, stop)


ERRORS = [KeyboardInterrupt(), MemoryError(), HardwareError("a product failed its check"), OSError("disk")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("where", ["the fold", "the sums"])
@pytest.mark.filterwarnings("ignore:the journal")
def test_the_command_keeps_the_receipts_of_what_is_held(
    folder: Path, error: BaseException, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = folder.parent / "mine.jsonl"
    with monkeypatch.context() as patched:
        if where == "the fold":
            patched.setattr(module, "FOLD_BYTES", 0)
            fail(patched, error, module, "write_snapshot")
        else:
            fail(patched, error, Statistics, "merge")
        learned = CliRunner().invoke(
            app, ["learn", str(folder), str(folder.parent / "one.csv"), "--receipts", str(mine)]
        )
    if where == "the sums" or isinstance(error, KeyboardInterrupt):
        assert learned.exit_code != 0
        assert f"their receipts are in {mine}" in learned.stderr
    else:
        assert learned.exit_code == 0, learned.output
    receipts = read_receipts([mine])
    with store.open(folder) as made:
        assert made.ledger.total() == len(receipts) == 6
        made.forget(receipts)


@pytest.mark.parametrize("error", ERRORS[1:], ids=repr)
def test_a_fold_that_fails_is_a_warning(folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(folder) as made:
        monkeypatch.setattr(module, "FOLD_BYTES", 0)
        with monkeypatch.context() as patched:
            fail(patched, error, module, "write_snapshot")
            with pytest.warns(RuntimeWarning, match="was not folded, and will be with a later change"):
                receipts = made.learn(ROWS, NAMES)
        made.forget(receipts[:1])
        assert list(made.ledger.journal()) == []  # made up for


@pytest.mark.parametrize("due", [False, True])
@pytest.mark.filterwarnings("ignore:the journal")
def test_a_store_that_is_closed_after_the_commit(folder: Path, due: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes it before the journal is looked at: the samples are held, so their receipts are given."""
    commit = Intake.commit

    def and_close(self: Intake, *about: Any) -> None:
        commit(self, *about)
        made.close()

    with store.open(folder) as made, monkeypatch.context() as patched:
        patched.setattr(Intake, "commit", and_close)
        if due:
            patched.setattr(module, "FOLD_BYTES", 0)
        files = sorted((folder / "sums").iterdir())
        receipts = made.learn(ROWS, NAMES)
    assert sorted((folder / "sums").iterdir()) == files  # a closed store writes nothing
    with store.open(folder) as again:
        again.forget(receipts)


@pytest.mark.parametrize("where", ["the fold", "the sums", "the record"])
def test_an_interrupt_has_the_receipts(folder: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(folder) as made, monkeypatch.context() as patched:
        if where == "the fold":
            patched.setattr(module, "FOLD_BYTES", 0)
            fail(patched, KeyboardInterrupt(), module, "write_snapshot")
        elif where == "the sums":
            fail(patched, KeyboardInterrupt(), Statistics, "merge")
        else:  # the transaction is over, and nothing has followed
            fail(patched, KeyboardInterrupt(), LedgerHoldings, "noted")
        with pytest.raises(KeyboardInterrupt) as caught:
            made.learn(ROWS, NAMES)
    receipts: list[bytes] = vars(caught.value)["receipts"]
    with store.open(folder) as made:
        assert made.ledger.total() == len(receipts) == 6
        made.forget(receipts)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LedgerError("full")], ids=repr)
def test_a_refusal_has_no_receipts(folder: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(folder) as made, monkeypatch.context() as patched:
        fail(patched, error, LedgerHoldings, "record")
        with pytest.raises(type(error)) as caught:
            made.learn(ROWS, NAMES)
    assert "receipts" not in vars(caught.value)


def test_the_command_keeps_receipts_if_the_ledger_cannot_tell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = folder.parent / "mine.jsonl"
    with monkeypatch.context() as patched:
        fail(patched, OSError("no memory for sums"), Statistics, "merge")
        fail(patched, OSError("the disk is gone"), Ledger, "knows_commitments")
        learned = CliRunner().invoke(
            app, ["learn", str(folder), str(folder.parent / "one.csv"), "--receipts", str(mine)]
        )
    assert learned.exit_code == 1
    assert len(read_receipts([mine])) == 6


def test_the_command_discards_receipts_of_what_was_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = folder.parent / "mine.jsonl"
    with monkeypatch.context() as patched:
        fail(patched, KeyboardInterrupt(), Ledger, "writing")
        assert (
            CliRunner()
            .invoke(app, ["learn", str(folder), str(folder.parent / "one.csv"), "--receipts", str(mine)])
            .exit_code
        )
    assert not mine.exists()


def invoked(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def learned(folder: Path) -> Path:
    """A file of receipts."""
    mine = folder.parent / "mine.jsonl"
    assert invoked("learn", folder, folder.parent / "one.csv", "--receipts", mine).exit_code == 0
    return mine


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("way", ["receipts", "samples", "class"])
def test_a_forget_that_fails_after_the_commit_is_told(
    folder: Path, learned: Path, error: BaseException, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed for one that was not made, and nothing said that it was not published."""
    given = {
        "receipts": ("forget", folder, "--receipts", learned),
        "samples": ("forget", folder, folder.parent / "one.csv"),
        "class": ("forget-class", folder, "cat"),
    }
    with monkeypatch.context() as patched:
        fail(patched, error, Statistics, "remove_class" if way == "class" else "subtract")
        failed = invoked(*given[way])
    assert failed.exit_code != 0
    assert f"may have been forgotten, but not published yet: run neverseen publish {folder}" in failed.stderr
    again = invoked(*given[way])
    assert again.exit_code == 1
    assert f"in no certificate yet: run neverseen publish {folder}" in again.stderr
    assert invoked("publish", folder).exit_code == 0
    with store.open(folder, write=False) as made:
        count = NAMES.count("cat") if way == "class" else 6
        assert made.certificate(2).forgotten == count
    assert "in no certificate yet" not in invoked(*given[way]).stderr


def test_a_forget_that_is_refused_is_not_told_as_made(
    folder: Path, learned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (KeyboardInterrupt(), MemoryError(), OSError("disk")):
        with monkeypatch.context() as patched:
            fail(patched, error, Statistics, "require_part")
            refused = invoked("forget", folder, "--receipts", learned)
        assert refused.exit_code != 0
        assert "forgotten" not in refused.output


def test_a_seal_that_fails_does_not_deny_the_publication(
    folder: Path, learned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left to do was to seal, and the command said to publish."""
    remedy = f"not sealed yet: run neverseen seal {folder}"
    with monkeypatch.context() as patched:
        fail(patched, LedgerError("the ledger is being read", being_read=True), Ledger, "scrub")
        forgot = invoked("forget", folder, "--receipts", learned, "--seal")
        sealed = invoked("seal", folder)
    assert (forgot.exit_code, sealed.exit_code) == (1, 1)
    assert "6 samples forgotten; published as version 2" in forgot.stderr
    for each in (forgot, sealed):
        assert remedy in each.stderr
        assert "not published" not in each.stderr
    assert invoked("seal", folder).exit_code == 0
    with store.open(folder, write=False) as made:
        assert made.status()["sealed"]


def test_a_publication_that_fails_before_a_seal(folder: Path, learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        fail(patched, OSError("disk"), Store, "publish")
        forgot = invoked("forget", folder, "--receipts", learned, "--seal")
    assert forgot.exit_code == 1
    assert f"6 samples forgotten, but not published yet: run neverseen seal {folder} later" in forgot.stderr
    assert "not sealed" not in forgot.stderr


def test_a_model_that_was_cut_off_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(folder) as made:
        with monkeypatch.context() as patched:
            fail(patched, MemoryError(), Statistics, "merge")
            with pytest.raises(MemoryError):
                made.learn(ROWS, NAMES)
        with pytest.raises(HardwareError, match="or open its store again"):
            made.publish()
