"""The promise: a store builds on no file of its folder that is not what it wrote, and says which file is wrong.

The attacker can write to the folder, or hands over an archive, and has no key: he alters the sums, the description or a
manifest, and makes all names and digests fit, for none of them is keyed. What a certificate states is compared with it.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import signal
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from neverseen import (
    AnalyticClassifier,
    CertificateRejectedError,
    ConfigurationError,
    FileRejectedError,
    ForgettingModel,
    GaussianKernel,
    LedgerError,
    StoreDamagedError,
    store,
)
from neverseen.cli import app
from neverseen.engine.statistics import Statistics
from neverseen.hardware import choose
from neverseen.labels import canonical_json
from neverseen.proof.certificates import check_chain
from neverseen.store import agreement
from neverseen.store.archives import read_archive, write_archive
from neverseen.store.description import Description
from neverseen.store.publications import Publications
from neverseen.store.snapshots import read_snapshot, write_snapshot
from tests.attacks.test_rollback import contents, refused
from tests.store.test_store import BACKBONE, IDS, KEYS, LABELS, ROWS, never, new, opened


def noted(folder: Path, key: str, value: str | None = None) -> str:
    """Return a note of the ledger, and put another in its place."""
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as ledger:
        ((found,),) = ledger.execute("SELECT value FROM neverseen_meta WHERE key = ?", (key,))
        if value is not None:
            ledger.execute("UPDATE neverseen_meta SET value = ? WHERE key = ?", (value, key))
    return str(found)


# -- sums --------------------------------------------------------------------------------------------


def alter_sums(folder: Path, change: Callable[[Statistics], None]) -> None:
    """Change the sums of a store, and name the new ones in its ledger."""
    sums = read_snapshot(folder / "sums", noted(folder, "snapshot"), choose("numpy"))
    change(sums)
    noted(folder, "snapshot", write_snapshot(folder / "sums", sums))


def shift_a_class(sums: Statistics) -> None:
    rows = {name: np.array(row) for name, row in sums.sums.items()}
    row = next(iter(rows.values()))
    row -= np.sign(row)
    sums.sums = rows


def shift_the_matrix(sums: Statistics) -> None:
    matrix = np.array(sums.gram)
    matrix[0, 1] -= 1
    matrix[1, 0] -= 1
    sums.gram = matrix


@pytest.mark.parametrize("change", [shift_a_class, shift_the_matrix])
def test_sums_are_altered_and_nothing_was_changed_since_the_certificate(
    change: Callable[[Statistics], None], folder: Path
) -> None:
    alter_sums(folder, change)
    refused(folder, "the sums in .* are not those that certificate 2 states, and the ledger has no change since")


def test_the_journal_is_altered_in_place_of_the_sums(tmp_path: Path) -> None:
    """What was learned is not folded yet: the sums are the snapshot and a journal that is gone, as are its samples."""
    folder = tmp_path / "s"
    with new(folder) as made:
        made.learn(ROWS[:20], LABELS[:20], IDS[:20])
        made.publish()
    with closing(sqlite3.connect(folder / "ledger.sqlite", isolation_level=None)) as ledger:
        for table in ("journal", "classes", "samples"):
            ledger.execute(f"DELETE FROM neverseen_{table}")  # noqa: S608
    refused(
        folder,
        "the ledger of .* has 0 samples of certificate 1 and 0 forgotten since, and the certificate states 20: restore",
    )


def test_an_empty_store_has_sums(tmp_path: Path) -> None:
    """They would be part of every later certificate."""
    folder = tmp_path / "s"
    new(folder).close()
    alter_sums(folder, lambda sums: setattr(sums, "gram", np.eye(24, dtype=np.int64)))
    refused(folder, "not those of any samples: there is no class, but the Gram matrix is not zero")


def shift_between_classes(sums: Statistics) -> None:
    assert sums.class_grams is not None
    first, second, *_ = sums.classes
    moved = np.zeros_like(sums.class_grams.packed(first), np.int64)
    moved[0] = sums.class_grams.packed(first)[0] + 1
    for name, sign in ((first, -1), (second, 1)):
        sums.class_grams.put(name, sums.class_grams.packed(name) + sign * moved)


def shift_one_class(sums: Statistics) -> None:
    assert sums.class_grams is not None
    name = sums.classes[0]
    packed = np.array(sums.class_grams.packed(name), np.int64)
    packed[1] -= np.sign(packed[1])
    packed[-1] += 1
    sums.class_grams.put(name, packed)


@pytest.mark.parametrize("change", [shift_one_class, shift_between_classes])
def test_an_archive_has_altered_sums_of_classes(
    change: Callable[[Statistics], None], folder: Path, tmp_path: Path
) -> None:
    """No certificate states them. They would be taken away when the class is forgotten."""
    KEYS.save(folder / "keys.json")
    alter_sums(folder, change)
    write_archive(folder, tmp_path / "s.tar")
    with pytest.raises(StoreDamagedError, match="the sums of classes in .* do not make up the sums of all"):
        read_archive(tmp_path / "again", tmp_path / "s.tar")
    assert not (tmp_path / "again").exists()


def double_a_class(sums: Statistics) -> None:
    assert sums.class_grams is not None
    name = sums.classes[0]
    sums.class_grams.put(name, 2 * sums.class_grams.packed(name).astype(np.int64))


def halve_a_class(sums: Statistics) -> None:
    assert sums.class_grams is not None
    name = sums.classes[0]
    sums.class_grams.put(name, sums.class_grams.packed(name) // 2)


@pytest.mark.parametrize("change", [double_a_class, halve_a_class])
def test_altered_sums_of_a_class_are_not_taken_away(change: Callable[[Statistics], None], folder: Path) -> None:
    """What is left would be no sum of samples, and signed. The rest is for `check`, which nothing escapes."""
    alter_sums(folder, change)
    with opened(folder) as made:
        before = made.digest(), made.ledger.meta("sequence"), made.ledger.total()
        with pytest.raises(StoreDamagedError, match="sums of class .* are not those of samples .* Nothing was changed"):
            made.forget_class(json.loads(made.statistics().classes[0]))
        assert (made.digest(), made.ledger.meta("sequence"), made.ledger.total()) == before


def test_what_is_left_with_the_last_class_is_noticed(tmp_path: Path) -> None:
    with new(tmp_path / "s") as made:
        made.learn(ROWS[:4], ["cat"] * 4)
        made.seal()
    alter_sums(tmp_path / "s", shift_one_class)
    with opened(tmp_path / "s") as made, pytest.raises(StoreDamagedError, match="sums of class"):
        made.forget_class("cat")


@pytest.mark.parametrize("verb", ["forget_class", "learn"])
def test_sums_of_a_class_are_altered_after_a_check(verb: str, folder: Path) -> None:
    """The blocks of a file were checked once, and the file was read again. What came of it was signed."""
    with opened(folder) as made:
        made.check()
        before = contents(folder)
        sums = made.statistics()
        assert sums.class_grams is not None
        name = sums.classes[0]
        path = sums.class_grams._packed[name].path  # type: ignore[union-attr]
        alter(path)
        with pytest.raises(StoreDamagedError, match="block 0 .* is not as it was written"):
            made.forget_class(json.loads(name)) if verb == "forget_class" else made.learn(
                ROWS[30:31], [json.loads(name)]
            )
        alter(path)
        assert contents(folder) == before
        made.check()


def alter(path: Path) -> None:
    """Change the first byte of an array; done twice, it is as before."""
    with path.open("r+b") as file:
        file.seek(4096)
        (byte,) = file.read(1)
        file.seek(4096)
        file.write(bytes([byte ^ 1]))


def test_centres_are_altered_while_the_store_is_open(tmp_path: Path) -> None:
    """They were checked at opening, and read from the file whenever samples were encoded."""
    folder, centres = tmp_path / "s", ROWS[:12]
    store.create(folder, BACKBONE, AnalyticClassifier(GaussianKernel(centres), 2**10), keys=KEYS).close()
    with opened(folder) as made:
        (path,) = (path for path in folder.iterdir() if len(path.name) == 64)
        alter(path)
        made.learn(ROWS[:30], LABELS[:30])
        made.publish()
        digest = made.digest()
    refused(folder, "block 0 .* is not as it was written")
    alter(path)
    with opened(folder) as made:
        made.check()
        assert made.digest() == digest
    model = ForgettingModel(BACKBONE, AnalyticClassifier(GaussianKernel(centres), 2**10), KEYS)
    model.learn(ROWS[:30], LABELS[:30])
    assert model.digest() == digest


# -- descriptions ------------------------------------------------------------------------------------

ODD: list[Any] = [None, 5, -1, 2**70, "x", "", [], {}, True, 1.5, [1, 1], ["1", "0"], ["0", "0"], [2.0], "../keys.json"]


def describe(folder: Path, **fields: Any) -> None:
    about = json.loads((folder / "store.json").read_bytes()) | fields
    (folder / "store.json").write_bytes(canonical_json(about).encode() + b"\n")


@pytest.mark.parametrize("field", sorted(Description.__annotations__ | {"centres": None, "format": None}))
def test_a_description_has_an_odd_field(field: str, folder: Path) -> None:
    sound = (folder / "store.json").read_bytes()
    for value in ODD:
        if type(value) is type(json.loads(sound)[field]) and value == json.loads(sound)[field]:
            continue
        (folder / "store.json").write_bytes(sound)
        describe(folder, **{field: value})
        for write in (True, False):
            with (
                pytest.raises((StoreDamagedError, LedgerError, ConfigurationError)),
                opened(folder, write=write) as made,
            ):
                made.statistics()


@pytest.mark.parametrize("scale", [None, 1.0, [], "wide", "0x1p0", "nan", "-0x1.0000000000000p+0", "0x1p5000"])
def test_a_description_has_an_odd_scale(scale: Any, folder: Path) -> None:
    settings = json.loads((folder / "store.json").read_bytes())["configuration"]
    settings["encoder"]["scale"] = scale
    describe(folder, configuration=settings)
    refused(folder, "store.json is damaged")
    refused(folder, "store.json is damaged", write=False)


def test_a_description_lacks_the_name_of_its_backbone(folder: Path) -> None:
    describe(folder, backbone={})
    refused(folder, "store.json is damaged")
    refused(folder, "store.json is damaged", write=False)


def test_another_number_of_features(folder: Path) -> None:
    """The random projection makes codes of any number of features: the sums would fit, and be signed."""
    describe(folder, n_features=7)
    refused(folder, "store.json says that samples have 7 features, and precomputed makes 6")
    for write in (True, False):
        with pytest.raises(
            StoreDamagedError, match="store.json says that samples have 7 features, and version 2 has 6"
        ):
            store.open(folder, keys=KEYS, write=write).version()


def manifest(folder: Path, **fields: Any) -> None:
    """Put another manifest in place of a store's, under the name that it must have, and name it in the ledger."""
    about = json.loads((folder / "sums" / f"{noted(folder, 'snapshot')}.json").read_bytes()) | fields
    content = canonical_json(about).encode() + b"\n"
    name = hashlib.sha256(content).hexdigest()
    (folder / "sums" / f"{name}.json").write_bytes(content)
    noted(folder, "snapshot", name)


@pytest.mark.parametrize("field", ["class_grams", "classes", "counts", "format", "gram", "size", "sums"])
def test_a_manifest_has_an_odd_field(field: str, folder: Path) -> None:
    sound = noted(folder, "snapshot")
    for value in [*ODD, 10**7, sound, [sound] * 3]:
        manifest(folder, **{field: value})
        refused(folder, "sums")
        noted(folder, "snapshot", sound)


def test_a_manifest_states_another_size(folder: Path) -> None:
    """Nothing is made of that size before it is compared."""
    manifest(folder, size=10**7)
    refused(folder, "have other shapes than it states")


@pytest.mark.parametrize("key", ["published", "sealed"])
def test_a_number_in_the_notes_is_none(key: str, folder: Path) -> None:
    noted(folder, key, "x")
    for write in (True, False):
        with (
            pytest.raises(StoreDamagedError, match=f"its note '{key}'"),
            opened(folder, write=write) as made,
        ):
            assert made.sealed_number


# -- files that are not ours -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sums/.snapshot", "versions/kept", "certificates/.00000003.json.abcdefgh"])
def test_a_folder_lies_among_the_files(name: str, folder: Path) -> None:
    """Network drives put one there; it is none of ours."""
    (folder / name).mkdir()
    with opened(folder) as made:
        made.learn(ROWS[30:32], LABELS[30:32])
        made.seal()
    assert (folder / name).is_dir()


def test_folders_lie_where_files_were(folder: Path) -> None:
    for name in ("sums/*.json", "versions/*"):
        again = Path(shutil.copytree(folder, folder.parent / name[:4]))
        (path,) = again.glob(name)
        path.unlink()
        path.mkdir()
        refused(again, "is missing")


def test_a_copy_leaves_out_empty_folders(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    new(folder).close()
    for name in ("versions", "certificates"):
        (folder / name).rmdir()
    with opened(folder) as made:
        made.learn(ROWS[:5], LABELS[:5])
        assert made.publish().number == 1


EXTRA = [
    "hoard",
    "certificates/notes.txt",
    "service",
    "sums/kept",
    "versions/1.safetensors",
    "lock",
    "ledger.sqlite-wal",
]


def packed(folder: Path, target: Path, *, without: str = "", added: str = "") -> Path:
    """Write the archive of a store, less a file or with one more."""
    whole = target.with_suffix(".whole")
    write_archive(folder, whole)
    with tarfile.open(whole) as old, tarfile.open(target, "w") as archive:
        for member in old:
            if member.name != without:
                archive.addfile(member, old.extractfile(member))
        if added:
            archive.addfile(tarfile.TarInfo(added), io.BytesIO(b""))
    return target


@pytest.fixture
def with_keys(folder: Path) -> Path:
    KEYS.save(folder / "keys.json")
    return folder


@pytest.mark.parametrize("name", EXTRA)
def test_an_archive_has_a_file_that_is_none_of_a_store(name: str, with_keys: Path, tmp_path: Path) -> None:
    archive = packed(with_keys, tmp_path / "s.tar", added=name)
    with pytest.raises(FileRejectedError, match=f"holds '{name}', which is no file of a store"):
        read_archive(tmp_path / "again", archive)


def test_an_export_leaves_such_files_out(with_keys: Path, tmp_path: Path) -> None:
    for name in ("hoard", "certificates/notes.txt"):
        (with_keys / name).write_bytes(b"kept")
    write_archive(with_keys, tmp_path / "s.tar")
    with tarfile.open(tmp_path / "s.tar") as archive:
        assert not {"hoard", "certificates/notes.txt"} & set(archive.getnames())


@pytest.mark.parametrize("name", ["ab" * 32, "certificates/000000001.json", "backbone.onnx"])
def test_an_archive_has_a_file_under_a_name_that_another_store_may_use(
    name: str, with_keys: Path, tmp_path: Path
) -> None:
    """No seal would clear it: this store has no centres, no network, and no certificate of that name."""
    archive = packed(with_keys, tmp_path / "s.tar", added=name)
    with pytest.raises(FileRejectedError, match=f"holds '{name}', which is no file of a store"):
        read_archive(tmp_path / "again", archive)
    skipped = list[str]()
    read_archive(tmp_path / "again", archive, skipped=skipped.append)
    assert skipped == [name]
    assert not (tmp_path / "again" / name).exists()
    (with_keys / name).write_bytes(b"kept")
    write_archive(with_keys, tmp_path / "t.tar")
    with tarfile.open(tmp_path / "t.tar") as written:
        assert name not in written.getnames()


def test_keys_that_a_killed_rotation_left_are_removed_and_never_archived(with_keys: Path, tmp_path: Path) -> None:
    left = with_keys / ".keys.json.ab_d3fgh"
    left.write_bytes((with_keys / "keys.json").read_bytes())
    with opened(with_keys, write=False):
        assert left.exists()  # who reads changes nothing
    with opened(with_keys):
        assert not left.exists()
        left.write_bytes(b"again")
    write_archive(with_keys, tmp_path / "s.tar")
    assert not left.exists()
    with tarfile.open(tmp_path / "s.tar") as archive:
        assert [name for name in archive.getnames() if "keys" in name] == ["keys.json"]


@pytest.mark.parametrize("name", ["../evil.json", "/evil.json", ".keys.json.ab_d3fgh", "certificates/notes.txt"])
def test_files_that_are_skipped_are_written_nowhere(name: str, with_keys: Path, tmp_path: Path) -> None:
    archive = packed(with_keys, tmp_path / "s.tar", added=name)
    there, skipped = set(tmp_path.iterdir()), list[str]()
    read_archive(tmp_path / "again", archive, skipped=skipped.append)
    assert skipped == [name]
    assert set(tmp_path.iterdir()) == there | {tmp_path / "again"}
    names = {path.name for path in (tmp_path / "again").rglob("*")}
    assert Path(name).name not in names


def test_a_link_is_never_skipped(with_keys: Path, tmp_path: Path) -> None:
    archive = packed(with_keys, tmp_path / "s.tar")
    with tarfile.open(archive, "a") as opened_again:
        link = tarfile.TarInfo("notes")
        link.type, link.linkname = tarfile.SYMTYPE, "keys.json"
        opened_again.addfile(link)
    with pytest.raises(FileRejectedError, match="holds 'notes', which is no file of a store"):
        read_archive(tmp_path / "again", archive, skipped=lambda _: None)


def test_an_archive_has_a_file_twice(with_keys: Path, tmp_path: Path) -> None:
    archive = packed(with_keys, tmp_path / "s.tar", added="store.json")
    with pytest.raises(FileRejectedError, match=r"s\.tar holds 'store.json' twice"):
        read_archive(tmp_path / "again", archive)


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a header of an archive; GNU's can say that a file has fewer than no bytes."""
    about = tarfile.TarInfo(name)
    about.type = kind
    raw = bytearray(about.tobuf(format=tarfile.GNU_FORMAT))
    raw[124:136] = bytes([255 if size < 0 else 128]) + (size % 2**88).to_bytes(11, "big")
    raw[482] = kind == tarfile.GNUTYPE_SPARSE  # more of it follows
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


ENDLESS = {
    "a size below zero": header("store.json", 0) + header("signing.json", -512),
    "a size far below zero": header("store.json", -(2**40)),
    "a long name below zero": header("store.json", -512, tarfile.GNUTYPE_LONGNAME),
    "a pax header below zero": header("store.json", -512, tarfile.XHDTYPE) + header("keys.json", 0),
    "a pax header that goes back": header("x", 13, tarfile.XHDTYPE)
    + b"13 size=-512\n".ljust(512, b"\0")
    + header("keys.json", 0),
    "headers for all": header("x", 8, tarfile.XGLTYPE) + b"8 a=bcd\n".ljust(512, b"\0") + header("keys.json", 0),
    "nothing but long names": header("x", 0, tarfile.GNUTYPE_LONGNAME) * 3000,
    "half a sparse file": header("store.json", 0, tarfile.GNUTYPE_SPARSE),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_archive_that_never_ends_is_refused(tmp_path: Path, kind: str) -> None:
    def give_up(*_: object) -> None:
        raise AssertionError("it does not end")

    (tmp_path / "s.tar").write_bytes(ENDLESS[kind] + bytes(1024 if "half" not in kind else 0))
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        with pytest.raises(FileRejectedError, match=r"s\.tar is not a readable .tar file"):
            read_archive(tmp_path / "again", tmp_path / "s.tar")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert [path.name for path in tmp_path.iterdir()] == ["s.tar"]


@pytest.mark.parametrize("name", ["signing.json", "ledger.sqlite"])
def test_an_archive_lacks_a_file(name: str, with_keys: Path, tmp_path: Path) -> None:
    archive = packed(with_keys, tmp_path / "s.tar", without=name)
    with pytest.raises(FileRejectedError, match=f"s.tar lacks {name}"):
        read_archive(tmp_path / "again", archive)
    assert not (tmp_path / "again").exists()


def test_the_archive_of_the_tests_is_not_refused(with_keys: Path, tmp_path: Path) -> None:
    assert read_archive(tmp_path / "again", packed(with_keys, tmp_path / "s.tar")) == never(list(range(2, 20)))


def test_the_store_of_the_tests_is_not_refused(folder: Path) -> None:
    """So that the refusals above are refusals of the attack."""
    alter_sums(folder, lambda sums: None)
    with opened(folder) as made:
        assert made.digest() == never(list(range(2, 20)))
        made.learn(ROWS[30:32], LABELS[30:32])
    with opened(folder) as made:  # what is not published yet is not compared
        assert made.publish().number == 3
        check_chain(made.certificates(), made.description.public_key)


# -- verify store ------------------------------------------------------------------------------------


def verify_store(folder: Path) -> Any:
    return CliRunner().invoke(app, ["verify", "store", str(folder)])


def changed_row(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute(
            "UPDATE neverseen_samples SET owner = '\"eve\"' WHERE number = (SELECT min(number) FROM neverseen_samples)"
        )


def changed_count(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute(
            "UPDATE neverseen_classes SET samples = samples + 1 WHERE name = (SELECT min(name) FROM neverseen_classes)"
        )


def swapped_sums(folder: Path) -> None:
    """Those of as many other samples, with a ledger that names them."""
    with new(folder.parent / "donor") as donor:
        donor.learn(ROWS[2:20] + 1, LABELS[2:20])
        donor.seal()
        name = donor.ledger.meta("snapshot")
    shutil.rmtree(folder / "sums")
    shutil.copytree(folder.parent / "donor" / "sums", folder / "sums")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        ledger.execute("UPDATE neverseen_meta SET value = ? WHERE key = 'snapshot'", [name])


def changed_certificate(folder: Path) -> None:
    path = folder / "certificates" / "00000001.json"
    path.write_bytes(path.read_bytes().replace(b'"learned":20', b'"learned":21'))


def lost_version(folder: Path) -> None:
    (folder / "versions" / "00000003.safetensors").unlink()


DAMAGE: dict[Callable[[Path], None], str] = {
    changed_row: "a sample in the ledger is damaged",
    changed_count: "notes other numbers of them by class",
    swapped_sums: "are not those that certificate 3 states",
    changed_certificate: "certificate 1",
    lost_version: "version 3 is missing",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_check_of_the_store_finds_what_readers_do_not_look_at(damage: Callable[[Path], None], folder: Path) -> None:
    with opened(folder) as made:
        made.publish(always=True)
    good = verify_store(folder)
    assert good.exit_code == 0, good.output
    assert "is whole: 18 samples of 3 classes in ledger and sums, 3 certificates" in good.stdout
    damage(folder)
    opened(folder, write=False).close()
    before = contents(folder)
    bad = verify_store(folder)
    assert (bad.exit_code, bad.stdout) == (1, "")
    assert DAMAGE[damage] in bad.stderr
    assert contents(folder) == before


def test_the_certificate_before_the_newest_is_altered(folder: Path) -> None:
    changed_certificate(folder)
    for write in (True, False):
        refused(folder, r"00000001\.json cannot be relied on", write)


def test_an_archive_has_an_altered_older_certificate(with_keys: Path, tmp_path: Path) -> None:
    with opened(with_keys) as made:
        made.publish(always=True)
    changed_certificate(with_keys)
    write_archive(with_keys, tmp_path / "s.tar")
    with pytest.raises(CertificateRejectedError, match="certificate 1"):
        read_archive(tmp_path / "again", tmp_path / "s.tar")
    assert not (tmp_path / "again").exists()


def test_a_store_is_checked_while_another_process_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes between two looks is no damage."""
    writer, looks = opened(folder), list[str]()

    def change(what: str) -> None:
        looks.append(what)
        if looks.count(what) == 1:
            writer.learn(ROWS[20 + len(looks)][None], LABELS[[20 + len(looks)]])
            writer.seal()

    def after(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def wrapped(first: Any, *arguments: Any) -> Any:
            found = work(first, *arguments)
            if any(first is each for each in (reader, parts, parts.publications)):
                change(name)
            return found

        monkeypatch.setattr(owner, name, wrapped)

    with writer, opened(folder, write=False) as reader:
        parts = reader._open_parts()
        after(store.Store, "statistics")
        after(Publications, "certificates")
        after(agreement, "require_held")
        reader.check()
    assert min(map(looks.count, ("statistics", "certificates", "require_held"))) >= 1
    assert looks.count("statistics") > 1
