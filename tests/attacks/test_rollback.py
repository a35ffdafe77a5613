"""The promise: a store never goes back behind what it signed.

The attacker, or a backup tool, puts an older ledger beside newer certificates, loses the write-ahead log, or removes
certificates. The store is refused, says what to do, and nothing in it changes: no certificate is ever removed or signed a
second time, and nothing that was forgotten comes back. The one certificate that a crash leaves ahead of the ledger is
taken up if it states just what the ledger comes to.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import sqlalchemy as sa

from neverseen import LedgerError, StoreDamagedError
from neverseen.ledger.database import Database
from neverseen.ledger.tables import tables
from neverseen.proof.certificates import Certificate, check_chain, issue
from neverseen.proof.signing import SigningKey
from neverseen.store import Store, create
from neverseen.store.parts import Parts
from neverseen.store.publications import Publications
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, classifier, never, new, opened

OLDER = "is older than its certificates"


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a store but those that say who has it open."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("lock", "ledger.sqlite-shm")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def refused(folder: Path, words: str, write: bool = True) -> None:
    before = contents(folder)
    with pytest.raises(StoreDamagedError, match=words):
        opened(folder, write=write)
    assert contents(folder) == before


def history(folder: Path, make: Callable[[Path], Store] = new) -> Iterator[Store]:
    """Publish five times, forgetting each time; yield the store, closed, after each."""
    make(folder).close()
    receipts: list[bytes] = []
    for step in range(5):
        with opened(folder) as made:
            rows = slice(6 * step, 6 * step + 6)
            receipts += made.learn(ROWS[rows], LABELS[rows], IDS[rows])
            made.forget([receipts.pop()])
            made.publish()
        yield made


HELD = [row for row in range(30) if row % 6 != 5]


# -- an older ledger ---------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("lost", [1, 2, 4])
def test_an_older_ledger_is_put_back(lost: int, write: bool, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    for step, _ in enumerate(history(folder), 1):
        if step == 5 - lost:
            shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
    newest = (folder / "ledger.sqlite").read_bytes()
    shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
    refused(folder, f"{OLDER}: it has {5 - lost}, and certificate 5 .* Put back the newest ledger", write)
    (folder / "ledger.sqlite").write_bytes(newest)
    with opened(folder) as again:
        assert again.digest() == never(HELD)
        check_chain(again.certificates(), again.description.public_key)


def test_a_ledger_of_before_the_first_publication_is_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    new(folder).close()
    shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
    with opened(folder) as made:
        made.learn(ROWS[:5], LABELS[:5], IDS[:5])
        made.publish()
    shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
    for write in (True, False):
        refused(folder, OLDER, write)


def test_a_crashed_store_is_copied_without_its_log(tmp_path: Path) -> None:
    """The copy is of a store whose process died: what it committed last is in ledger.sqlite-wal."""
    made = new(tmp_path / "s")
    receipts = made.learn(ROWS[:10], LABELS[:10], IDS[:10])
    made.publish()
    made.forget(receipts[:4])
    made.publish()
    made.publish(always=True)
    shutil.copytree(tmp_path / "s", tmp_path / "whole")
    shutil.copytree(tmp_path / "s", tmp_path / "torn", ignore=shutil.ignore_patterns("ledger.sqlite-*"))
    made.close()
    for write in (True, False):
        refused(tmp_path / "torn", OLDER, write)
    with opened(tmp_path / "whole") as again:
        assert (again.digest(), again.published_number) == (never(list(range(4, 10))), 3)


def test_an_older_ledger_with_as_many_samples_is_put_back(tmp_path: Path) -> None:
    """Its samples are as many, of the same classes, and none was forgotten: only the sums differ."""
    folder = tmp_path / "s"
    first, second, third = [row for row in range(60) if LABELS[row] == LABELS[0]][:3]
    with new(folder) as made:
        made.learn(ROWS[[first]], LABELS[[first]])
        made.publish()
    shutil.copytree(folder, tmp_path / "other")
    with opened(tmp_path / "other") as made:
        made.learn(ROWS[[second]], LABELS[[second]])
    with opened(folder) as made:
        made.learn(ROWS[[third]], LABELS[[third]])
        made.publish()
    shutil.copy(tmp_path / "other" / "ledger.sqlite", folder / "ledger.sqlite")
    refused(folder, f"{OLDER}.*it states other sums than the ledger's")


def test_a_ledger_of_just_before_the_publication_is_put_back(tmp_path: Path) -> None:
    """It comes to what the certificate states, as after a crash: the certificate is taken up, and none is signed anew."""
    folder = tmp_path / "s"
    with new(folder) as made:
        receipts = made.learn(ROWS[:10], LABELS[:10], IDS[:10])
        made.publish()
        made.forget(receipts[:4])
    shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
    with opened(folder) as made:
        made.publish()
    signed = (folder / "certificates" / "00000002.json").read_bytes()
    shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
    with opened(folder) as again:
        assert again.published_number == 2
        assert again.certificate(2).to_json() == signed
        assert again.version().digest() == again.digest() == never(list(range(4, 10)))
        assert again.publish().number == 2
        again.learn(ROWS[20:22], LABELS[20:22])
        assert again.publish().number == 3
        check_chain(again.certificates(), again.description.public_key)


def test_a_certificate_is_ahead_of_a_copy_without_its_folder_of_versions(unpublished: Path, tmp_path: Path) -> None:
    """A tool that copies files alone leaves out folders that are empty, or whose files it was told to pass over."""
    folder = Path(shutil.copytree(unpublished, tmp_path / "s"))
    shutil.copytree(folder, tmp_path / "other")
    with opened(tmp_path / "other") as made:
        made.publish()
    shutil.copy(tmp_path / "other" / "certificates" / "00000002.json", folder / "certificates")
    shutil.rmtree(folder / "versions")
    with opened(folder) as again:
        assert again.published_number == 2
        assert again.version().digest() == again.digest() == never(list(range(3, 22)))


def test_an_older_database_is_put_back(tmp_path: Path, schema: str) -> None:
    """PostgreSQL, restored by itself."""
    engine = sa.create_engine(schema)
    saved: dict[str, Any] = {}

    def save() -> None:
        with engine.begin() as connection:
            saved.update({table.name: connection.execute(sa.select(table)).all() for table in tables.sorted_tables})

    def restore() -> None:
        with engine.begin() as connection:
            for table in tables.sorted_tables:
                connection.execute(sa.delete(table))
                if saved[table.name]:
                    connection.execute(sa.insert(table), [dict(row._mapping) for row in saved[table.name]])

    folder = tmp_path / "s"
    steps = history(folder, lambda place: create(place, BACKBONE, classifier(), keys=KEYS, ledger=schema))
    for step, _ in enumerate(steps, 1):
        if step == 4:
            save()
    restore()
    engine.dispose()
    for write in (True, False):
        refused(folder, f"{OLDER}: it has 4, and certificate 5", write)


# -- certificates that are missing, or that are not ours ---------------------------------------------


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_certificate_is_removed(number: int, write: bool, tmp_path: Path) -> None:
    for _ in history(tmp_path / "s"):
        pass
    (tmp_path / "s" / "certificates" / f"{number:08d}.json").unlink()
    refused(tmp_path / "s", f"{number:08d}.json is missing, of 5 published: restore it from a copy", write)


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("what", ["noise", "another number", "another key", "another chain"])
def test_a_certificate_is_put_ahead(what: str, write: bool, tmp_path: Path) -> None:
    for _ in history(tmp_path / "s"):
        pass
    folder = tmp_path / "s" / "certificates"
    raw = b"noise"
    if what == "another number":
        raw = (folder / "00000005.json").read_bytes()
    elif what == "another key":
        raw = signed_after(folder, SigningKey.generate())
    elif what == "another chain":
        for _ in history(tmp_path / "t"):
            pass
        raw = signed_after(tmp_path / "t" / "certificates", SigningKey.load(tmp_path / "s" / "signing.json"))
    (folder / "00000006.json").write_bytes(raw)
    refused(tmp_path / "s", "00000006.json", write)


def test_a_file_far_ahead_is_no_certificate(tmp_path: Path) -> None:
    """Its name alone does not make the ledger an older one."""
    with new(tmp_path / "s") as made:
        made.learn(ROWS[:5], LABELS[:5])
        made.publish()
    (tmp_path / "s" / "certificates" / "00000099.json").write_bytes(b"noise")
    for write in (True, False):
        refused(tmp_path / "s", "00000099.json cannot be relied on .* move it out of the folder", write)


def signed_after(folder: Path, key: SigningKey) -> bytes:
    newest = Certificate.load(folder / "00000005.json")
    mine = Certificate(**(vars(newest) | {"key": key.public}))
    made = issue(6, None, mine.configuration, mine.after, mine.after, 0, 0, [], mine.grid_bits, mine, key)
    return made.to_json()


def test_what_is_in_the_folder_of_certificates_stays(tmp_path: Path) -> None:
    """Whatever it is: part of a file that a process was writing when it died, or somebody's own."""
    with new(tmp_path / "s") as made:
        made.learn(ROWS[:10], LABELS[:10])
        made.publish()
    folder = tmp_path / "s" / "certificates"
    for name in (".00000002.json.abcd", "00000001.json.bak", "2.json"):
        (folder / name).write_bytes(b"something")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with opened(tmp_path / "s") as again:
        again.learn(ROWS[10:12], LABELS[10:12])
        again.seal()
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.items() <= after.items()
    assert set(after) - set(before) == {"00000002.json"}


# -- publications of version 0.1.0 that failed ---------------------------------------------------------

LEFT = "00000002.json was signed by a publication of version 0.1.0 that failed"


def failed_publication(folder: Path, tmp_path: Path) -> None:
    """Leave certificate 2 as a publication does that fails at the ledger."""
    shutil.copytree(folder, tmp_path / "other")
    with opened(tmp_path / "other") as made:
        made.publish()
    shutil.copy(tmp_path / "other" / "certificates" / "00000002.json", folder / "certificates")


def without_note(folder: Path) -> None:
    """Make the ledger one that no version since 0.1.0 has published with."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("DELETE FROM neverseen_meta WHERE key = 'newest'")


def went_on(folder: Path, tmp_path: Path, what: str) -> list[int]:
    """Change a store after its publication failed, as version 0.1.0 did; return what it holds."""
    shutil.copytree(folder, tmp_path / "later")
    held = list(range(3, 22))
    with opened(tmp_path / "later") as made:
        if "forgot" in what:
            made.forget(ROWS[5:7], LABELS[5:7])
            held = [row for row in held if row not in (5, 6)]
        if "learned" in what:
            made.learn(ROWS[30:33], LABELS[30:33])
            held += [30, 31, 32]
    failed_publication(folder, tmp_path)
    shutil.copy(tmp_path / "later" / "ledger.sqlite", folder / "ledger.sqlite")
    return held


@pytest.mark.parametrize("what", ["learned", "forgot", "learned and forgot"])
def test_a_store_of_0_1_0_went_on_after_a_publication_that_failed(what: str, unpublished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unpublished, tmp_path / "s"))
    held = went_on(folder, tmp_path, what)
    for write in (True, False):  # with the note nothing but a newer ledger helps
        refused(folder, f"{OLDER}: it has 1, and certificate 2 .* Put back the newest ledger", write)
    without_note(folder)
    for write in (True, False):
        refused(folder, f"{LEFT}.* move 00000002.json out of the folder and keep it", write)
    left = Certificate.load((folder / "certificates" / "00000002.json").rename(tmp_path / "unpublished.json"))
    with opened(folder) as again:
        assert (again.published_number, again.digest()) == (1, never(held))
        published = again.publish()
        assert published.number == 2
        assert set(left.commitments) <= set(published.commitments)
        check_chain(again.certificates(), again.description.public_key)


@pytest.mark.parametrize("lost", ["what was forgotten", "what was learned"])
def test_an_older_ledger_without_the_note_is_not_taken_for_one_that_went_on(lost: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with new(folder) as made:
        receipts = made.learn(ROWS[:20], LABELS[:20], IDS[:20])
        made.publish()
    shutil.copy(folder / "ledger.sqlite", tmp_path / "old.sqlite")
    with opened(folder) as made:
        if lost == "what was forgotten":
            made.forget(receipts[:3])
        made.learn(ROWS[20:25], LABELS[20:25])
        made.publish()
    shutil.copy(tmp_path / "old.sqlite", folder / "ledger.sqlite")
    without_note(folder)
    for write in (True, False):
        refused(folder, OLDER, write)


# -- crashes -----------------------------------------------------------------------------------------


def die(*_: Any) -> None:
    os._exit(9)


def dying_after(work: Callable[..., Any]) -> Callable[..., None]:
    def wrapped(*arguments: Any) -> None:
        work(*arguments)
        os._exit(9)

    return wrapped


def commit_and(dies: str) -> Callable[..., None]:
    commit = Database._commit

    def wrapped(self: Database, connection: Any, purpose: str) -> None:
        if purpose == "write" and dies == "before":
            os._exit(9)
        commit(self, connection, purpose)
        if purpose == "write":
            os._exit(9)

    return wrapped


POINTS: dict[str, tuple[Any, str, Callable[[], Any]]] = {
    "before the version": (Publications, "write_version", lambda: die),
    "after the version": (Publications, "write_version", lambda: dying_after(Publications.write_version)),
    "before the certificate": (Publications, "add", lambda: die),
    "half-way through the certificate": (os, "link", lambda: die),
    "after the certificate": (Publications, "add", lambda: dying_after(Publications.add)),
    "before the commit": (Database, "_commit", lambda: commit_and("before")),
    "after the commit": (Database, "_commit", lambda: commit_and("after")),
    "before files are removed": (Parts, "tidy", lambda: die),
}
SIGNED = ("after the certificate", "before the commit", "after the commit", "before files are removed")
NOTED = ("after the commit", "before files are removed")


def dies(folder: Path, point: str, opening: bool) -> None:
    """Publish, or open, and die on the way."""
    owner, name, replacement = POINTS[point]
    if opening:
        setattr(owner, name, replacement())
        opened(folder)
    else:
        made = opened(folder)
        setattr(owner, name, replacement())
        made.publish()


def killed(folder: Path, point: str, opening: bool = False) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=dies, args=(folder, point, opening))
    process.start()
    process.join()
    assert process.exitcode == 9


@pytest.fixture(scope="module")
def unpublished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a certificate, and changes since."""
    folder = tmp_path_factory.mktemp("unpublished") / "s"
    with new(folder) as made:
        receipts = made.learn(ROWS[:20], LABELS[:20], IDS[:20])
        made.publish()
        made.forget(receipts[:3])
        made.learn(ROWS[20:22], LABELS[20:22], IDS[20:22])
    return folder


def taken_up(folder: Path, point: str) -> None:
    """Raise unless a store that died is whole, and has signed nothing twice."""
    path = folder / "certificates" / "00000002.json"
    signed = path.read_bytes() if path.exists() else None
    assert (signed is not None) == (point in SIGNED)
    with opened(folder, write=False) as reader:  # it sees what the ledger has, and no more
        number = 2 if point in NOTED else 1
        assert reader.published_number == number
        assert reader.version().digest() == reader.certificate(number).after.model
    with opened(folder) as again:
        assert again.digest() == never(list(range(3, 22)))
        assert again.published_number == (1 if signed is None else 2)
        if signed is not None:
            assert path.read_bytes() == signed
            assert again.ledger.pending() == []
        assert again.publish().number == 2
        assert signed in (None, path.read_bytes())
        assert again.version().digest() == again.digest()
        again.learn(ROWS[30:32], LABELS[30:32])
        assert again.publish().number == 3
        check_chain(again.certificates(), again.description.public_key)


@pytest.mark.parametrize("point", POINTS)
def test_a_process_dies_while_it_publishes(point: str, unpublished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unpublished, tmp_path / "s"))
    killed(folder, point)
    taken_up(folder, point)


@pytest.mark.parametrize("point", ["before the version", "after the version", "before the commit", "after the commit"])
def test_a_process_dies_while_it_takes_up_what_another_left(point: str, unpublished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unpublished, tmp_path / "s"))
    killed(folder, "after the certificate")
    killed(folder, point, opening=True)
    taken_up(folder, "after the commit" if point == "after the commit" else "after the certificate")


def test_a_process_dies_while_it_publishes_with_a_database(tmp_path: Path, schema: str) -> None:
    folder = tmp_path / "s"
    with create(folder, BACKBONE, classifier(), keys=KEYS, ledger=schema) as made:
        receipts = made.learn(ROWS[:20], LABELS[:20], IDS[:20])
        made.publish()
        made.forget(receipts[:3])
        made.learn(ROWS[20:22], LABELS[20:22], IDS[20:22])
    killed(folder, "after the certificate")
    taken_up(folder, "after the certificate")


# -- two certificates of one number ------------------------------------------------------------------


def test_a_certificate_that_never_got_its_name_is_put_in_place_of_the_published_one(
    unpublished: Path, tmp_path: Path
) -> None:
    """A process died just before its certificate had its name; the file was copied, and another was published."""
    folder = Path(shutil.copytree(unpublished, tmp_path / "s"))
    killed(folder, "half-way through the certificate")
    certificates = folder / "certificates"
    (left,) = certificates.glob(".*")
    other = replace(Certificate.load(left), time="2999-01-01T00:00:00Z")  # not in the same second
    other = replace(other, signature=SigningKey.load(folder / "signing.json").sign(other.signed_bytes()).hex())
    with opened(folder) as made:
        assert not left.exists()
        assert made.publish().number == 2
    published = (certificates / "00000002.json").read_bytes()
    (certificates / "00000002.json").write_bytes(other.to_json())
    for write in (True, False):
        refused(folder, "00000002.json is not the certificate that was published under its number", write)
    (certificates / "00000002.json").write_bytes(published)
    with opened(folder) as made, opened(folder, write=False) as reader:  # and while the store is open
        made.learn(ROWS[30:32], LABELS[30:32])
        (certificates / "00000002.json").write_bytes(other.to_json())
        with pytest.raises(StoreDamagedError, match="is not the certificate that was published"):
            made.publish()
        with pytest.raises(StoreDamagedError, match="is not the certificate that was published"):
            reader.predict(ROWS)


def test_a_ledger_without_the_note_is_given_it(unpublished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(unpublished, tmp_path / "s"))
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as ledger:
        ledger.execute("DELETE FROM neverseen_meta WHERE key = 'newest'")
    with opened(folder, write=False) as reader:
        reader.predict(ROWS)
    with opened(folder) as made:
        assert made.ledger.meta("newest") == f"1 {made.certificate(1).digest()}"


# -- failures that are no crashes --------------------------------------------------------------------


def interrupted(_: sa.Connection) -> NoReturn:
    raise KeyboardInterrupt


def test_nothing_changes_between_a_signature_and_its_note(
    unpublished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is written and the ledger does not take it: a change now would make it a lie."""
    folder = Path(shutil.copytree(unpublished, tmp_path / "s"))
    add = Publications.add

    def failing(self: Publications, certificate: Certificate) -> None:
        add(self, certificate)
        raise OSError(5, "Input/output error")

    with opened(folder) as made:
        with monkeypatch.context() as patch:
            patch.setattr(Publications, "add", failing)
            with pytest.raises(LedgerError, match="certificate 2 is in .* open the store again") as refusal:
                made.publish()
        assert refusal.value.uncertain
        with monkeypatch.context() as patch:
            patch.setattr(sa.Connection, "commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                made.status()  # to read, and to fail at it, makes nothing right
        for change in (
            lambda: made.learn(ROWS[30:32], LABELS[30:32]),
            lambda: made.forget(ROWS[4:5], LABELS[4:5]),
            lambda: made.forget_class(int(LABELS[4])),
            made.publish,
            made.seal,
        ):
            with pytest.raises(Exception, match="again"):
                change()
    taken_up(folder, "after the certificate")


def without_links(*_: Any, **__: Any) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As FAT and exFAT are: a certificate gets its name by renaming, and nothing is left beside it."""
    monkeypatch.setattr(os, "link", without_links)
    with new(tmp_path / "s") as made:
        made.learn(ROWS[:10], LABELS[:10])
        made.publish()
        made.learn(ROWS[10:12], LABELS[10:12])
        made.publish()
        check_chain(made.certificates(), made.description.public_key)
    names = sorted(path.name for path in (tmp_path / "s" / "certificates").iterdir())
    assert names == ["00000001.json", "00000002.json"]


@pytest.mark.parametrize("links", [True, False])
def test_a_certificate_that_appears_is_not_overwritten(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", without_links)
    with new(tmp_path / "s") as made:
        made.learn(ROWS[:10], LABELS[:10])
        path = tmp_path / "s" / "certificates" / "00000001.json"
        path.write_bytes(b"somebody's")
        with pytest.raises(LedgerError, match="open the store again"):
            made.publish()
        assert path.read_bytes() == b"somebody's"
    refused(tmp_path / "s", "00000001.json cannot be relied on")
