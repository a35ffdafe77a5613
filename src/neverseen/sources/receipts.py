"""Files of receipts: one JSON object a line, which people can read and split.

Each line has ``id``, ``label``, ``owner`` and, in base64url, the ``receipt``. The first three are for people; only
the receipt counts. A line may also be a receipt in base64url alone, as the console copies it. A file that holds the
bytes of a single receipt is read too.
"""

from __future__ import annotations

import base64
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neverseen.errors import FileRejectedError, damaged
from neverseen.io.files import require_file, sync_folder
from neverseen.labels import canonical_json, parse_json, plain
from neverseen.proof.receipts import PREFIXES

__all__ = ["ReceiptFile", "read_receipts"]

LINE_LIMIT = 2**25
"""Most bytes of a line: the largest receipt in base64, and more."""
COUNT_LIMIT = 10_000_000


class ReceiptFile:
    """A new file of mode 600 for new receipts. An existing file is never overwritten.

    If `place` is a folder, the file gets a free name in it.
    """

    def __init__(self, place: Path) -> None:
        self.path, self._handle = _new_file(place)

    def write(
        self,
        receipts: Iterable[bytes],
        facts: Iterable[Mapping[str, Any]],
        written: Callable[[Any], Any] = plain,
    ) -> None:
        """Write receipts with id, label and owner of each, and sync them. Labels become what `written` returns."""
        handle, self._handle = self._handle, -1
        try:
            with os.fdopen(handle, "wb") as file:
                for receipt, said in zip(receipts, facts, strict=True):
                    shown = {name: written(value) if name == "label" else plain(value) for name, value in said.items()}
                    word = base64.urlsafe_b64encode(receipt).decode()
                    file.write(canonical_json(shown | {"receipt": word}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(self.path)  # a full disk does not say where
            raise
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self.path.unlink(missing_ok=True)


def _new_file(place: Path) -> tuple[Path, int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    if not place.is_dir():
        if not place.parent.is_dir():
            raise FileNotFoundError(f"the folder {place.parent} for the receipts does not exist")
        try:
            return place, os.open(place, flags, 0o600)
        except FileExistsError:
            raise FileExistsError(f"{place} already exists and may hold receipts: choose another name") from None
    number = 1
    while True:
        path = place / f"receipts-{number:04d}.jsonl"
        try:
            return path, os.open(path, flags, 0o600)
        except FileExistsError:
            number += 1


def read_receipts(paths: Sequence[Path]) -> list[bytes]:
    """Return the receipts in some files, in order."""
    return [receipt for _, receipt in placed_receipts(paths)]


def placed_receipts(paths: Sequence[Path]) -> list[tuple[str, bytes]]:
    """Return the receipts in some files, in order, each with its place, for messages."""
    receipts: list[tuple[str, bytes]] = []
    for path in paths:
        require_file(path, "a file of receipts, as learn writes it")
        with path.open("rb") as file:
            start = file.read(len(PREFIXES[0]))
            if start in PREFIXES:
                receipts.append((str(path), start + file.read(LINE_LIMIT)))
                continue
            file.seek(0)
            number = 0
            while line := file.readline(LINE_LIMIT):
                number += 1
                if line.strip():
                    where = f"{path}, line {number}"
                    receipts.append((where, receipt_of(line, where)))
                if len(receipts) > COUNT_LIMIT:
                    raise FileRejectedError(f"{path}: more than {COUNT_LIMIT:,} receipts; give fewer at a time")
    if not receipts:
        raise FileRejectedError("there are no receipts in " + ", ".join(map(str, paths)))
    return receipts


def receipt_of(line: bytes, where: str) -> bytes:
    """Return the receipt in a line of a file, or raise `FileRejectedError`, which says `where`."""
    line = line.removeprefix(BOM_UTF8)
    refusal = FileRejectedError(
        f'{where} is not a receipt: a line is JSON such as {{"id": ..., "receipt": "..."}}, as learn writes it, or a '
        "receipt alone"
    )
    with damaged(refusal):
        is_bare = not line.lstrip().startswith(b"{")
        word = line.strip() if is_bare else parse_json(line)["receipt"].encode("ascii")
        raw = word.rstrip(b"=")  # padding may have been lost on the way
        receipt = base64.b64decode(raw + b"=" * (-len(raw) % 4), altchars=b"-_", validate=True)
        if is_bare and not receipt.startswith(PREFIXES):
            raise ValueError("any word may be base64")
        return receipt
