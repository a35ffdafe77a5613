"""A whole store as one file, to move it elsewhere.

A tar file of the files in the store's folder, under their own names. The ledger is a database without a journal.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

from neverseen.backbones.recipes import FILE
from neverseen.errors import ConfigurationError, FileRejectedError, LedgerError, NeverseenError, StoreDamagedError
from neverseen.io.files import sync_folder
from neverseen.labels import parse_json
from neverseen.proof.keys import Keyring
from neverseen.store.creating import open_store
from neverseen.store.description import NAME, Description
from neverseen.store.parts import KEYS
from neverseen.store.snapshots import files_of
from neverseen.store.store import Store

LEDGER = "ledger.sqlite"
FOLDERS = ("certificates", "sums", "versions")
REQUIRED = ("signing.json", LEDGER)
SHOWN = 5
"""Number of unexpected files that a message lists."""
_NAME = re.compile(
    r"store\.json|keys\.json|signing\.json|ledger\.sqlite|backbone\.onnx|[0-9a-f]{64}"
    r"|certificates/[0-9]{8,16}\.json|versions/[0-9]{8,16}\.safetensors|sums/[0-9a-f]{64}(?:\.json)?",
    re.ASCII,
)
"""The files of a store, section 11 of the specification; an array beside store.json holds centres."""


def write_archive(folder: str | os.PathLike[str], file: str | os.PathLike[str], keys: Keyring | None = None) -> str:
    """Write a whole store to a new file of mode 600, and return the digest of its model.

    The file holds the keys that are in the store's folder: protect it like the store.

    Parameters
    ----------
    keys : Keyring, optional
        Needed if they are not in the folder. They are not archived.
    """
    folder, file = Path(folder), Path(file)
    if Description.read(folder).ledger is not None:
        raise ConfigurationError(f"the ledger of {folder} is in a separate database: use that database's backup tools")
    if file.exists():
        raise FileExistsError(f"{file} already exists: choose another name")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {file.parent} to write {file.name} to")
    with open_store(folder, keys=keys) as model:  # nobody else changes it meanwhile
        digest, names = model.digest(), _files(model)
        missing = next((folder / name for name in names if not (folder / name).is_file()), None)
        if missing is not None:
            raise StoreDamagedError(f"{missing} is missing, or is a link to nothing: restore it from a copy")
        handle, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # mode 600
        copy, copied = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        os.close(copy)
        try:
            with os.fdopen(handle, "wb") as raw:
                _copy_ledger(folder / LEDGER, copied)
                # Links are followed: what is imported elsewhere must not point to this machine.
                with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as archive:
                    for name in names:
                        source = copied if name == LEDGER else folder / name
                        archive.add(source, name, recursive=False, filter=_anonymous)
                raw.flush()
                os.fsync(raw.fileno())
            Path(partial).rename(file)
            sync_folder(file.parent)
        finally:
            Path(copied).unlink(missing_ok=True)
            Path(partial).unlink(missing_ok=True)
    return digest


def _files(model: Store) -> list[str]:
    """Return the names of the files that a store uses, in its folder."""
    folder, snapshot, published = model.folder, model.ledger.meta("snapshot") or "", model.published_number
    centres = parse_json((folder / NAME).read_bytes())["centres"]
    needed = [NAME, *REQUIRED, *(f"sums/{name}" for name in files_of(folder / "sums", snapshot))]
    needed += [f"certificates/{number:08}.json" for number in range(1, published + 1)]
    needed += [f"versions/{published:08}.safetensors"] if published else []
    needed += [] if centres is None else [centres]
    if (model.description.backbone.get("recipe") or {}).get("kind") == "onnx":
        needed.append(FILE)
    if os.path.lexists(folder / KEYS):
        needed.append(KEYS)
    return sorted(needed)


def _copy_ledger(source: Path, target: str) -> None:
    """Copy a database to an empty file, including its write-ahead log."""
    try:
        with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {source} cannot be copied: {error}") from error


def read_archive(
    folder: str | os.PathLike[str],
    file: str | os.PathLike[str],
    keys: Keyring | None = None,
    skipped: Callable[[str], None] | None = None,
) -> str:
    """Create a store from a file of `write_archive`, as a whole or not at all; return the digest of its model.

    Parameters
    ----------
    folder, file : path
        The folder is created; it must not exist yet.
    keys : Keyring, optional
        Needed if they are not in the archive.
    skipped : callable, optional
        Called with the name of each unexpected file, which is left out. Without it, such files are refused.
    """
    folder, file = Path(folder), Path(file)
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} already exists: choose another folder")
    partial = folder.parent / f".{folder.name}.{secrets.token_hex(4)}"
    partial.mkdir(mode=0o700)
    try:
        for name in FOLDERS:
            (partial / name).mkdir(mode=0o700)
        try:
            with tarfile.open(file, mode="r:") as archive:
                unpacked = _unpack(archive, partial, file, skipped)
        except (OSError, MemoryError, NeverseenError):
            raise
        except Exception as error:  # what is raised about a damaged header may be almost anything
            raise FileRejectedError(f"{file} is not a readable .tar file: {error}") from error
        if not (partial / NAME).is_file():
            raise FileRejectedError(f"{file} is not a store: there is no {NAME} in it")
        if Description.read(partial).ledger is not None:  # it would name a database of the sender's choice
            raise FileRejectedError(f"{file} names a database for its ledger: export did not write this file")
        missing = [name for name in REQUIRED if not (partial / name).is_file()]
        if missing:
            raise FileRejectedError(f"{file} lacks {', '.join(missing)}: it is not a complete store")
        with open_store(partial, keys=keys) as model:
            model.check()
            digest, others = model.digest(), sorted(unpacked - {*_files(model)})
        others = [name for name in others if (partial / name).is_file()]  # older sums and versions are removed already
        _refuse_or_skip(file, others, skipped)
        for name in others:
            (partial / name).unlink()
        partial.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return digest


def _unpack(archive: tarfile.TarFile, folder: Path, source: Path, skipped: Callable[[str], None] | None) -> set[str]:
    """Write the files of an archive, and return their names; only those that a store's files can have are allowed."""
    written, others = set[str](), list[str]()
    # Neither compressed nor sparse: the output is no larger than the archive.
    for member, content in _members(archive, source):
        if _NAME.fullmatch(member):
            written.add(member)
            if (folder / member).exists():
                raise FileRejectedError(f"{source} holds {member!r} twice")
            handle = os.open(folder / member, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as target:
                shutil.copyfileobj(content, target, 2**20)
                target.flush()
                os.fsync(target.fileno())
        elif skipped is not None:
            skipped(member)
        elif len(others) <= SHOWN:
            others.append(member)
    _refuse_or_skip(source, others, None)
    return written


def _refuse_or_skip(source: Path, others: list[str], skipped: Callable[[str], None] | None) -> None:
    """Raise `FileRejectedError` if an archive holds files that are none of its store's, or tell `skipped` of each."""
    if others and skipped is None:
        few = ", ".join(repr(name[:80]) for name in others[:SHOWN]) + (", ..." if len(others) > SHOWN else "")
        raise FileRejectedError(
            f"{source} holds {few}, which {'is no file' if len(others) == 1 else 'are no files'} of a store. Version "
            "0.1.0 archived every file in the folder: leave such files out",
            arguments=("skipped",),
        )
    for name in others:
        if skipped is not None:
            skipped(name)


def _members(archive: tarfile.TarFile, source: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of each file in an archive, which is untrusted."""
    last = -1
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined]  # or one would be kept for every 512 bytes
        if member.size < 0 or member.offset <= last:
            raise tarfile.ReadError("its parts overlap")  # reading it would never end
        if archive.pax_headers:
            raise tarfile.ReadError("it has headers for all files")  # each file would get a copy of them
        last = member.offset
        content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
        if content is None:
            raise FileRejectedError(f"{source} holds {member.name[:80]!r}, which is no file of a store")
        with content:
            yield member.name, content


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and time."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime, member.mode = 0, 0o600
    return member
