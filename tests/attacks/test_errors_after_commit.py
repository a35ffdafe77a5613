"""The promise: an error after a change is on disk does not pass for a change that was not made.

The attack: let the work that follows the commit fail. The samples are held from then on, and only receipts can have
them forgotten. So the receipts must reach whoever learned.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner, Result

from neverseen import (
    AnalyticClassifier,
    ConfigurationError,
    FileRejectedError,
    ForgettingModel,
    HardwareError,
    IdTakenError,
    LedgerError,
    RandomProjection,
    store,
)
from neverseen.backbones import Cached, Precomputed
from neverseen.cli import app, forgetting, learning
from neverseen.engine.statistics import Statistics
from neverseen.holdings import Change
from neverseen.ledger import Ledger
from neverseen.model.exact import ExactModel
from neverseen.model.intake import Intake
from neverseen.service import KeyFile, Settings
from neverseen.service.errors import Refusal
from neverseen.service.sharing.turns import Turns
from neverseen.service.writer.publishing import Publisher
from neverseen.sources.receipts import read_receipts
from neverseen.store import Store
from neverseen.store import sums as module
from neverseen.store.ledger_holdings import LedgerHoldings
from tests.samples import clustered
from tests.services import environment, running, samples
from tests.waiting import eventually

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


def test_a_warning_that_nobody_can_be_told_of_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose standard error is closed: the samples are held, and whoever learned them needs the receipts."""

    def closed(*_: Any, **__: Any) -> NoReturn:
        raise ValueError("I/O operation on closed file")

    with store.open(folder) as made:
        monkeypatch.setattr(module, "FOLD_BYTES", 0)
        fail(monkeypatch, OSError("disk full"), module, "write_snapshot")
        monkeypatch.setattr(warnings, "warn", closed)
        monkeypatch.setattr(logging.Logger, "warning", closed)
        receipts = made.learn(ROWS, NAMES)
        made.forget(receipts)
        assert made.ledger.total() == 0


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


class Refusing(Cached):
    """A cache that cannot keep anything."""

    error: BaseException = FileRejectedError("no room for features")

    def remember(self, fingerprints: object, features: object) -> NoReturn:
        raise self.error


def models(folder: Path) -> Iterator[tuple[Store | ForgettingModel, Refusing]]:
    """Yield a store and a model in memory, with such a cache."""
    cache = Refusing(Precomputed(4), folder.parent / "cache")
    with store.open(folder, backbone=cache) as made:
        yield made, cache
    model = ForgettingModel(cache, AnalyticClassifier(RandomProjection(16), gamma=64))
    model.learn(ROWS[:1], NAMES[:1])
    yield model, cache


def held(model: Store | ForgettingModel) -> int:
    return model.ledger.total() if isinstance(model, Store) else len(model)


def test_a_cache_that_cannot_keep_features_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its error passed for a refusal, and the receipts were gone."""
    for model, _ in models(folder):
        before = held(model)
        with pytest.warns(RuntimeWarning, match="could not keep features: no room for features"):
            receipts = model.learn(ROWS, NAMES)
        assert held(model) == before + len(receipts)
        model.forget(receipts)
        caplog.clear()
        receipts = model.learn(ROWS, NAMES)  # warnings are errors here, unless they are asked for
        assert "could not keep features" in caplog.text
        model.forget(receipts)


def test_an_interrupt_in_a_cache_has_the_receipts(folder: Path) -> None:
    for model, cache in models(folder):
        cache.error = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt) as caught:
            model.learn(ROWS, NAMES, list("abcdef"))
        receipts: list[bytes] = vars(caught.value)["receipts"]
        with pytest.raises(IdTakenError) as refused:
            model.learn(ROWS[:1], NAMES[:1], ["a"])
        assert "receipts" not in vars(refused.value)
        model.forget(receipts)
        cache.error = Refusing.error


@pytest.mark.parametrize("error", [OSError("disk"), FileRejectedError("no room")], ids=repr)
def test_the_command_asks_the_ledger_whatever_the_error(
    folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours counted as a refusal, whenever it came."""
    mine, real = folder.parent / "mine.jsonl", Intake.commit

    def fails(self: Intake, model: ExactModel, change: Change) -> None:
        real(self, model, change)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Intake, "commit", fails)
        assert invoked("learn", folder, folder.parent / "one.csv", "--receipts", mine).exit_code == 1
    with store.open(folder) as made:
        made.forget(read_receipts([mine]))
        assert made.ledger.total() == 0


def test_close_waits_for_all_of_a_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It came between the change and the fold: the change was made, and the call that made it raised."""
    made, real = store.open(folder), Intake.commit
    closing = threading.Thread(target=made.close)

    def then_closes(self: Intake, model: ExactModel, change: Change) -> None:
        real(self, model, change)
        closing.start()
        closing.join(0.2)  # it does not end, and need not have begun

    monkeypatch.setattr(module, "FOLD_BYTES", 0)
    monkeypatch.setattr(Intake, "commit", then_closes)
    receipts = made.learn(ROWS, NAMES)
    closing.join()
    assert caplog.text == ""
    monkeypatch.undo()
    with store.open(folder) as again:
        assert list(again.ledger.journal()) == []
        again.forget(receipts)


def test_a_store_that_is_closed_before_the_commit_refuses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store.open(folder)
    exact = made._exact()
    made.learning(ROWS, NAMES)
    monkeypatch.setattr(made, "_exact", lambda: exact)
    real = made.learning

    def then_closed(*given: Any) -> Change:
        change = real(*given)
        made.close()
        return change

    monkeypatch.setattr(made, "learning", then_closed)
    with pytest.raises(ConfigurationError, match="this store is closed") as caught:
        made.learn(ROWS, NAMES)
    assert "receipts" not in vars(caught.value)
    with store.open(folder) as again:
        assert again.ledger.total() == 0


def unremovable(patched: pytest.MonkeyPatch) -> None:
    """Keep versions from being removed."""
    real = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.parent.name == "versions" and not self.name.startswith("."):
            raise OSError(5, "Input/output error", str(self))
        real(self, missing_ok)

    patched.setattr(Path, "unlink", unlink)


def test_a_file_that_stays_does_not_deny_the_publication(
    folder: Path, learned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command said that nothing was published; readers saw the new version."""
    with monkeypatch.context() as patched:
        unremovable(patched)
        with pytest.warns(RuntimeWarning, match="no longer needed could not be removed"):
            forgot = invoked("forget", folder, "--receipts", learned)
        assert (forgot.exit_code, "not published" in forgot.output) == (0, False)
        with pytest.warns(RuntimeWarning, match="no longer needed could not be removed"):
            sealed = invoked("seal", folder)  # which opens the store all the same
        assert sealed.exit_code == 1  # and must not pass for done while the old version is there
        assert f"not sealed yet: run neverseen seal {folder}" in sealed.stderr
    assert invoked("seal", folder).exit_code == 0
    with store.open(folder, write=False) as made:
        assert made.status()["sealed"]
        assert made.certificate(2).forgotten == 6


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
    """The command reported a failure, although the samples were forgotten and waited for publication."""
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


# -- a service ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [Publisher, Store], ids=["before it is shown", "before it is answered"])
def test_a_version_that_could_not_be_shown_is_shown_later(
    tmp_path: Path, after: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is no memory for a version that was just signed, readers get it a little later, and it counts once."""
    monkeypatch.setattr("neverseen.service.writer.policy._RETRY", 0.05)
    with running(tmp_path / "s") as service:
        receipts = service.learn(range(6))
        eventually(lambda: service.service.writer.published.number == 1, "nothing was published")
        name, left = ("_show", [1, 1, 1]) if after is Publisher else ("publish", [1])
        work = getattr(after, name)

        def failing(*given: Any, **named: Any) -> Any:
            found = work(*given, **named) if after is Store else None
            if left:
                left.pop()
                raise MemoryError
            return found if after is Store else work(*given, **named)

        monkeypatch.setattr(after, name, failing)
        forgotten = service.forget(receipts[:2]).json()["request"]["id"]
        service.wait(forgotten, seconds=20)
        published = service.service.writer.published
        assert not left
        assert (published.number, published.version.digest()) == (2, service.digest())
        assert service.client.post("/v1/publish", headers=service.admin).json()["certificate"] == 2


@pytest.mark.parametrize("count", [1, 300])
def test_a_service_that_is_busy_answers_what_it_has_done(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the commit on, whoever waits for a turn is refused."""
    commit = Store.commit

    def commits(*given: Any) -> None:
        commit(*given)
        fail(monkeypatch, Refusal("busy", "too many are waiting", wait=1), Turns, "turn")

    with running(tmp_path / "s") as service:
        body = {"samples": samples([row % 200 for row in range(count)], ids=False)}
        with monkeypatch.context() as patched:
            patched.setattr(Store, "commit", commits)
            answer = service.client.post("/v1/samples", json=body, headers=service.admin)
        assert answer.status_code == 201, answer.text
        assert len(answer.json()["receipts"]) == count


# -- output that cannot be written --------------------------------------------------------------------


def printed(*words: object, to: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, whose standard output is a full disk, a closed pipe, or closed."""
    command = [sys.executable, "-m", "neverseen.cli", *map(str, words)]
    if to == "closed":
        command = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command]
    opened = contextlib.ExitStack()
    with opened:
        if to == "full":
            out = os.open("/dev/full", os.O_WRONLY)
            opened.callback(os.close, out)
        elif to == "pipe":
            read, out = os.pipe()
            os.close(read)
            opened.callback(os.close, out)
        else:
            out = subprocess.PIPE
        return subprocess.run(
            command,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            env=environment() | settings,
        )


WHY = {"full": "No space left on device", "pipe": "Broken pipe", "closed": "Bad file descriptor"}


@pytest.mark.parametrize("to", WHY)
def test_a_change_whose_report_is_lost_is_told_as_made(folder: Path, to: str) -> None:
    mine = folder.parent / "mine.jsonl"
    start = f"the command was done, but its output could not be written ({WHY[to]}). Do not repeat it: "
    learned = printed("learn", folder, folder.parent / "one.csv", "--receipts", mine, "--json", to=to)
    assert learned.returncode == 1
    assert learned.stderr.startswith(
        f"error: learn: {start}6 samples learned, with receipts in {mine}; published as version 1, model "
    )
    forgot = printed("forget", folder, "--receipts", mine, "--id", "photo 0", "--no-publish", to=to)
    assert (forgot.returncode, forgot.stderr) == (1, f"error: forget: {start}1 sample forgotten; not published yet\n")
    with store.open(folder, write=False) as made:
        assert (made.ledger.total(), made.published_number) == (5, 1)


DONE = {
    "init new --backbone features:4": "Created new. It takes rows of 4 features",
    "seal s": "sealed; nothing to publish: version 1 is the newest, model ",
    "publish s": "nothing to publish: version 1 is the newest, model ",
    "export s s.onnx": "wrote s.onnx, model ",
    "certificate s --output 1.json": "wrote 1.json",
    "keys revoke s app": "revoked app",
    "verify chain s": "ok: 1 certificate, from the first to 1, signed with",
    "forget-class s cat": "forgotten; published as version 2, model ",
}


def test_every_command_that_was_done_says_so(folder: Path, learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert invoked("keys", "add", folder, "app", "--scope", "learn").exit_code == 0
    for command, words in DONE.items():
        ended = printed(*command.split(), to="full")
        assert ended.returncode == 1
        assert "the command was done, but its output could not be written (No space left on device)" in ended.stderr
        assert words in ended.stderr, ended.stderr
        assert ended.stderr.count("\n") == 1


def test_what_changes_nothing_says_what_failed(folder: Path, learned: Path) -> None:
    for words in (["status", folder], ["forget", folder, "--receipts", learned, "--dry-run"]):
        for to, why in WHY.items():
            ended = printed(*words, to=to)
            line = f"error: {words[0]}: its output could not be written ({why})\n"
            assert (ended.returncode, ended.stderr) == (1, "" if to == "pipe" else line)
    for option in ("--help", "--version"):
        ended = printed(option, to="full")
        line = "error: neverseen: its output could not be written (No space left on device)\n"
        assert (ended.returncode, ended.stderr) == (1, line)
    with store.open(folder, write=False) as made:
        assert made.ledger.total() == 6


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_no_key_is_left_whose_token_nobody_has(folder: Path, more: tuple[str, ...]) -> None:
    ended = printed("keys", "add", folder, "app", "--scope", "learn", *more, to="full")
    assert (ended.returncode, ended.stderr) == (
        1,
        "error: keys add: its output could not be written (No space left on device): the key app was revoked, since "
        "nobody has its token. Add one under another name\n",
    )
    (key,) = json.loads(invoked("keys", "list", folder, "--json").stdout)
    assert key["revoked"] is not None


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_what_cannot_be_spelled_is_no_error(folder: Path, encoding: str) -> None:
    one = folder.parent / "one.csv"
    one.write_text(one.read_text().replace("cat", "猫"), "utf-8")
    mine = folder.parent / "猫.jsonl"
    for words in (["learn", folder, one, "--receipts", mine], ["status", folder]):
        ended = printed(*words, to="", PYTHONIOENCODING=encoding)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "\\u732b" in ended.stdout or encoding == "ascii"


# -- interrupts ---------------------------------------------------------------------------------------


def test_an_interrupt_says_what_was_done(folder: Path, learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, more = folder.parent / "one.csv", folder.parent / "more.jsonl"

    def interrupted(place: object, name: str, *words: object) -> str:
        with monkeypatch.context() as patched:
            fail(patched, KeyboardInterrupt(), place, name)
            ended = invoked(*words)
        assert ended.exit_code == 130
        assert not isinstance(ended.exception, KeyboardInterrupt)
        return ended.stderr

    again = ("learn", folder, one, "--random-ids", "--receipts", more)
    nothing = "interrupted: nothing was changed\n"
    assert interrupted(Store, "learning", *again) == f"error: learn: {nothing}"
    assert not more.exists()
    assert interrupted(Store, "predict", "predict", folder, one) == f"error: predict: {nothing}"
    assert (
        interrupted(Statistics, "require_part", "forget", folder, "--receipts", learned) == f"error: forget: {nothing}"
    )
    words = interrupted(Store, "publish", *again)
    assert f"6 samples learned, with receipts in {more}, but not published yet: run neverseen publish" in words
    assert words.endswith(f"error: learn: interrupted: 6 samples learned, with receipts in {more}\n")
    words = interrupted(Statistics, "subtract", "forget", folder, "--receipts", more)
    assert words.endswith("error: forget: interrupted: 6 samples may have been forgotten\n")
    words = interrupted(forgetting, "_finish", "forget", folder, "--receipts", learned)
    assert words == "error: forget: interrupted: 6 samples forgotten\n"
    for command in ("publish", "seal"):
        words = interrupted(Store, "publish", command, folder)
        assert words == f"error: {command}: interrupted: neverseen status {folder} says what was done\n"
    for verb, *rest in (["add", folder, "app", "--scope", "learn"], ["revoke", folder, "app"]):
        words = interrupted(KeyFile, str(verb), "keys", verb, *rest)
        assert words == f"error: keys {verb}: interrupted: neverseen keys list {folder} says what was done\n"
        assert invoked("keys", verb, *rest).exit_code == 0
    words = interrupted(Store, "scrub", "seal", folder)
    assert "; not sealed yet: run neverseen seal" in words
    assert "error: seal: interrupted: published as version" in words


def test_an_interrupt_while_it_prints_says_that_it_was_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = folder.parent / "mine.jsonl"
    fail(monkeypatch, KeyboardInterrupt(), learning, "print_json")
    ended = invoked("learn", folder, folder.parent / "one.csv", "--receipts", mine, "--json")
    assert ended.exit_code == 130
    start = "error: learn: interrupted when it was done. Do not repeat it: 6 samples learned, with receipts in"
    assert ended.stderr.startswith(f"{start} {mine}; published as version 1")


def test_a_version_whose_point_for_the_charts_cannot_be_written_is_published(tmp_path: Path) -> None:
    """The writer failed, and whoever had asked for the publication got 503."""
    with running(tmp_path / "s", Settings(max_delay=1000, quiet=1000)) as service:
        service.learn(range(10))
        path = service.folder / "service" / "history.jsonl"
        path.unlink(missing_ok=True)
        path.mkdir()
        answer = service.client.post("/v1/publish", headers=service.admin)
        assert (answer.status_code, answer.json()["certificate"]) == (200, 1)
        assert service.service.metrics.writer_failures._value.get() == 0
        [point] = service.client.get("/v1/history", headers=service.admin).json()["points"]
        assert point["version"] == 1
        path.rmdir()
