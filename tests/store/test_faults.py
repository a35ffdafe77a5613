"""Disks that are full, cannot be written or fail half-way: a clear error, and a store that opens as before or after."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from neverseen import LedgerError, NeverseenError
from neverseen.proof.certificates import check_chain
from neverseen.store import Store
from neverseen.store import sums as sums_module
from neverseen.store.sums import fold
from tests.store.test_store import IDS, LABELS, ROWS, never, new, opened

ROOT = Path(__file__).parents[2]
HEAD = """
    import ctypes, os, resource, shutil, sys
    from pathlib import Path
    sys.path[:0] = [{root!r}, {source!r}]
    from tests.store.test_faults import *
    folder = Path({folder!r})
"""


def run(script: str, folder: Path, **environment: str) -> str:
    """Run a script that has the names of this module, and return what it prints."""
    head = textwrap.dedent(HEAD).format(root=str(ROOT), source=str(ROOT / "src"), folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def filled(folder: Path) -> list[bytes]:
    with new(folder) as made:
        receipts = made.learn(ROWS[:20], LABELS[:20], IDS[:20])
        made.publish()
        made.forget(receipts[:2])
    return receipts


# -- a full disk -------------------------------------------------------------------------------------


def learn_until_it_fails(made: Store) -> tuple[int, str]:
    """Return how many rows are acknowledged, and the error that ended it."""
    for row in range(20, 60):
        try:
            made.learn(ROWS[row : row + 1], LABELS[row : row + 1], IDS[row : row + 1], ["x" * 30_000])
        except (NeverseenError, OSError) as error:
            return row, f"{type(error).__name__}: {error}"
    raise AssertionError("the disk did not fill")


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    filled(tmp_path / "s")
    printed = run(
        """
        made = opened(folder)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        print(*learn_until_it_fails(made), sep="\\n")
        for verb in (made.publish, made.seal):
            try:
                verb()
            except (NeverseenError, OSError) as error:
                assert str(folder) in str(error) or "cut off half-way" in str(error), error
        """,
        tmp_path / "s",
    )
    acknowledged, error = printed.splitlines()
    assert error.startswith("LedgerError")
    assert str(tmp_path / "s" / "ledger.sqlite") in error
    with opened(tmp_path / "s") as again:
        assert again.digest() in {never(list(range(2, end))) for end in (int(acknowledged), int(acknowledged) + 1)}
        again.seal()
        check_chain(again.certificates())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not done(["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(place)]):
        pytest.skip("a small file system cannot be mounted here")
    yield place
    done(["umount", str(place)])


def done(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def test_a_full_disk(small_disk: Path) -> None:
    folder = small_disk / "s"
    filled(folder)
    made = opened(folder)
    acknowledged, error = learn_until_it_fails(made)
    assert error.startswith("LedgerError")
    assert str(folder / "ledger.sqlite") in error
    assert "full" in error
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filler").write_bytes(bytes(2**21))
    for verb in (made.publish, made.seal):
        with pytest.raises((NeverseenError, OSError)):
            verb()
    made.close()
    assert done(["mount", "-o", "remount,size=20m", str(small_disk)])
    with opened(folder) as again:
        assert again.digest() in {never(list(range(2, end))) for end in (acknowledged, acknowledged + 1)}
        again.seal()
        check_chain(again.certificates())


def test_a_snapshot_that_cannot_be_written_does_not_undo_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is folded after a change was acknowledged: that it cannot be is no error of the change."""

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "s" / "sums"))

    filled(tmp_path / "s")
    with opened(tmp_path / "s") as made:
        with monkeypatch.context() as patch:
            patch.setattr(sums_module, "FOLD_BYTES", 1)
            patch.setattr(sums_module, "write_snapshot", full)
            with pytest.warns(RuntimeWarning, match="was not folded.*No space left on device.*sums"):
                receipts = made.learn(ROWS[20:25], LABELS[20:25], IDS[20:25])
        made.forget(receipts[0])
        assert made.digest() == never([*range(2, 20), *range(21, 25)])
    with opened(tmp_path / "s") as again:
        assert again.digest() == never([*range(2, 20), *range(21, 25)])
        fold(again._open_parts(), again._exact())
        assert list(again.ledger.journal()) == []


# -- no permission -----------------------------------------------------------------------------------


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that anybody may read: pytest's are for their owner alone."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_folder_that_cannot_be_written(readable: Path) -> None:
    filled(readable / "warm")
    filled(readable / "s")
    inside = [readable / "s", *(readable / "s").rglob("*")]
    modes = {path: path.stat().st_mode for path in inside}
    before = {path: path.read_bytes() for path in inside if path.is_file()}
    for path in inside:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        printed = run(
            """
            with opened(folder.parent / "warm") as made:  # imports what is imported on use
                made.publish()
                made.predict(ROWS)
            if os.geteuid() == 0:  # for root every folder can be written
                os.setgroups([]), os.setgid(65534), os.setuid(65534)
            for write in (True, False):
                try:
                    with opened(folder, write=write) as made:
                        print("read", made.digest())
                except (NeverseenError, OSError) as error:
                    print(type(error).__name__, error)
            """,
            readable / "s",
        )
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    writer, reader = printed.splitlines()
    assert writer.startswith("PermissionError")
    assert str(readable / "s") in writer
    assert reader.startswith("read ")
    assert {path: path.read_bytes() for path in inside if path.is_file()} == before
    with opened(readable / "s") as again:
        assert again.digest() == never(list(range(2, 20)))


# -- writes and syncs that fail ----------------------------------------------------------------------

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* The fault comes at the call number fault_at (from 1) of its kind, on files under FAULT_FOLDER; and at all later ones
   if fault_stays. Kinds: 1 a write of half the bytes, 2 a write of half of them and then ENOSPC, 3 a sync that fails. */
int fault_kind, fault_at, fault_stays, fault_calls;

static int due(int handle, int sync) {
    char link[64], path[4096];
    const char *folder = getenv("FAULT_FOLDER");
    if (!fault_kind || sync != (fault_kind == 3) || !folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    fault_calls++;
    if (fault_kind == 2 && fault_calls == fault_at + 1) return 1; /* what is left of the half */
    return fault_calls == fault_at || (fault_stays && fault_calls > fault_at);
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAULT(half_written) do { \
    if (size > 1 && (fault_kind == 1 || fault_calls == fault_at)) { size = size / 2; return half_written; } \
    errno = ENOSPC; return -1; } while (0)

ssize_t write(int handle, const void *data, size_t size) {
    NEXT(write);
    if (due(handle, 0)) FAULT(next(handle, data, size));
    return next(handle, data, size);
}
ssize_t pwrite(int handle, const void *data, size_t size, off_t place) {
    NEXT(pwrite);
    if (due(handle, 0)) FAULT(next(handle, data, size, place));
    return next(handle, data, size, place);
}
ssize_t pwrite64(int handle, const void *data, size_t size, off64_t place) {
    NEXT(pwrite64);
    if (due(handle, 0)) FAULT(next(handle, data, size, place));
    return next(handle, data, size, place);
}
int fsync(int handle) {
    NEXT(fsync);
    if (due(handle, 1)) { errno = EIO; return -1; }
    return next(handle);
}
int fdatasync(int handle) {
    NEXT(fdatasync);
    if (due(handle, 1)) { errno = EIO; return -1; }
    return next(handle);
}
"""

FAULTS = """
    shim = ctypes.CDLL(None)
    kind, at, stays, calls = (ctypes.c_int.in_dll(shim, f"fault_{name}") for name in ("kind", "at", "stays", "calls"))
    receipts = filled(folder / "base")
    for fault in KINDS:
        failed = 0
        for verb in ("learn", "forget", "fold", "publish", "seal"):
            at.value = calls.value = 0
            while calls.value >= at.value:
                at.value += 1 + at.value
                stays.value ^= 1
                place = folder / "s"
                shutil.copytree(folder / "base", place)
                made = opened(place)
                calls.value, kind.value = 0, fault
                error = attempt(made, verb, receipts)
                kind.value = 0
                failed += error is not None
                where = f"{KINDS[fault]}, {verb}, call {at.value}, stays {stays.value}: {type(error).__name__}: {error}"
                check(place, made, verb, error, where)
                shutil.rmtree(place)
        print(failed)
"""
KINDS = {1: "short write", 2: "full half-way", 3: "failed sync"}


def attempt(made: Store, verb: str, receipts: list[bytes]) -> Exception | None:
    try:
        if verb == "learn":
            made.learn(ROWS[20:22], LABELS[20:22], IDS[20:22])
        elif verb == "forget":
            made.forget(receipts[2:4])
        elif verb == "fold":
            fold(made._open_parts(), made._exact())
        else:
            getattr(made, verb)()
    except (NeverseenError, OSError) as error:
        return error
    return None


BEFORE = never(list(range(2, 20)))
AFTER = {"learn": never(list(range(2, 22))), "forget": never(list(range(4, 20)))}
PUBLISHED = never(list(range(20)))


def check(place: Path, made: Store, verb: str, error: Exception | None, where: str) -> None:
    """Raise unless a store stands as it did before the verb or as it should after, here and when opened again."""
    after = AFTER.get(verb, BEFORE)
    if error is not None:
        assert str(place) in str(error), where
    if not getattr(error, "uncertain", False):
        assert made.digest() == (after if error is None else BEFORE), where
    made.close()
    with opened(place, write=False) as reader:
        assert reader.digest() in {PUBLISHED, BEFORE}, where
    with opened(place) as again:
        assert again.digest() in ({after} if error is None else {BEFORE, after}), where
        again.seal()
        assert again.version().digest() == again.digest(), where
        check_chain(again.certificates())


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True
    )
    return str(folder / "shim.so")


def test_faults(shim: str) -> None:
    """A fault at one call or another, once or from then on, under every verb. One process for all: it starts slowly."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 (syncs that do not fail are quick there)
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        printed = run(FAULTS, Path(folder), LD_PRELOAD=shim, FAULT_FOLDER=f"{folder}/s")
    failed = dict(zip(KINDS.values(), map(int, printed.split()), strict=True))
    assert min(failed.values()) > 5, failed


def test_a_failed_commit_is_final_until_the_store_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "s")
    made = opened(tmp_path / "s")
    database = made.ledger._database
    dialect, commit = database._engine.dialect, database._commit

    def fail(connection: object) -> None:
        raise dialect.loaded_dbapi.OperationalError("disk I/O error")

    def fail_to_commit(connection: sa.Connection, purpose: str) -> None:
        with monkeypatch.context() as patch:
            if purpose == "write":
                patch.setattr(dialect, "do_commit", fail)
            commit(connection, purpose)

    with monkeypatch.context() as patch:
        patch.setattr(database, "_commit", fail_to_commit)
        with pytest.raises(LedgerError, match="is not known: open the ledger again") as refusal:
            made.learn(ROWS[20:22], LABELS[20:22], IDS[20:22])
    assert refusal.value.uncertain
    for verb in (made.publish, made.seal, made.scrub, made.digest):
        with pytest.raises(NeverseenError, match="again"):
            verb()
    made.close()
    with opened(tmp_path / "s") as again:
        assert again.digest() == BEFORE
