"""Checking an audit log: whether any line was changed, dropped, added or cut off."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from neverseen.errors import FileRejectedError
from neverseen.ledger import RequestRow
from neverseen.proof.certificates import AuditHead, Certificate
from neverseen.proof.keys import Key
from neverseen.service.operations.audit import NAME, START, closed_files, fits, parsed, without_line

_TRIES = 5  # of a check, while a service closes files meanwhile
_PAUSE = 0.2  # seconds between two, for a service to write the line of a change that it has just made


class _NoLineError(FileRejectedError):
    """A change has no line, and nothing else is wrong."""


@dataclass
class AuditReport:
    """The contents of a log that passed its check.

    Attributes
    ----------
    first, last : int
        Numbers of the first and last line. The service removed the lines before `first`, and says so in the log.
    certificates : int
        Certificates whose line was found.
    unkeyed : int
        Lines of version 0.1.0, which had no key: anyone with write access to the folder may have changed them.
    torn : int
        Bytes of an incomplete last line: it is being written, or a crash left it.
    """

    files: int = 0
    first: int = 0
    last: int = 0
    certificates: int = 0
    unkeyed: int = 0
    torn: int = 0


def check_audit(
    folder: Path,
    key: Key,
    certificates: Iterable[Certificate] = (),
    expected: AuditHead | None = None,
    requests: Sequence[RequestRow] = (),
) -> AuditReport:
    """Check all files of an audit log; raise `FileRejectedError` with the fault and its place.

    Parameters
    ----------
    folder : Path
        The service's own folder.
    key : Key
        Of `neverseen.service.operations.audit.audit_key`.
    certificates : iterable of Certificate
        The store's certificates: the line that each names must exist.
    expected : AuditHead, optional
        The head that the store names (`neverseen.store.Store.audit_head`). Its line must exist too.
    requests : sequence of RequestRow
        The latest requests in the ledger, oldest first. Each must have a line. The ledger names only the line before a
        turn of the writer, not the lines of the last turn.
    """
    named = [(f"certificate {each.number}", each.audit) for each in certificates if each.audit is not None]
    if expected is not None:
        named.append(("the ledger", expected))
    for tries in range(_TRIES):
        paths = _files(folder)
        try:
            return _Check(key, named, requests).run(paths)
        except _NoLineError:
            if tries == _TRIES - 1:
                raise
            time.sleep(_PAUSE)
        except (FileRejectedError, FileNotFoundError):
            if paths == _files(folder):
                raise
    raise FileRejectedError(f"the audit log in {folder} keeps changing: try again")


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [*closed_files(folder), *([folder / NAME] if (folder / NAME).exists() else [])]


@dataclass
class _Check:
    """One pass through a log."""

    key: Key
    named: list[tuple[str, AuditHead]]
    requests: Sequence[RequestRow] = ()
    head: AuditHead | None = None
    removed: int = 0  # the last line that the service removed
    absent: set[str] = field(default_factory=set)  # files that are named, and not there
    report: AuditReport = field(default_factory=AuditReport)
    unkeyed: dict[str, str] = field(default_factory=dict)  # SHA-256 of the last line, by file
    codes: dict[int, str] = field(default_factory=dict)  # of the lines that are named
    logged: set[str] = field(default_factory=set)  # those of the requests that have a line
    wrong: list[str] = field(default_factory=list)

    def run(self, paths: list[Path]) -> AuditReport:
        """Check files, oldest first."""
        wanted, changes = {head.lines for _, head in self.named}, {row.id for row in self.requests}
        for path in paths:
            previous = START.head
            with path.open("rb") as file:
                for place, line in enumerate(file, 1):
                    if not line.endswith(b"\n") and path == paths[-1]:
                        self.report.torn = len(line)
                        continue
                    entry = parsed(line)
                    where = f"{path}, line {place}"
                    if entry is None:
                        _reject(f"{where}: it is not as it was written: the line was changed")
                    if entry.get("outcome") == "applied" and (name := str(entry.get("request"))) in changes:
                        self.logged.add(name)
                    if "mac" not in entry and self.head is None:
                        if entry.get("previous") != previous:
                            _reject(f"{where}: the chain is broken here: a line was changed or is missing")
                        previous = self.unkeyed[path.name] = hashlib.sha256(line).hexdigest()
                        self.report.unkeyed += 1
                        continue
                    self._line(entry, where)
                    if entry["line"] in wanted:
                        self.codes[entry["line"]] = entry["mac"]
            self.report.files += 1
        self._end()
        return self.report

    def _line(self, entry: dict[str, Any], where: str) -> None:
        if not fits(entry, self.key):
            _reject(f"{where}: its code is wrong: the line was changed, or written with another key")
        number, action = entry["line"], entry.get("action")
        if self.head is None:
            self.report.first = number
            if number == 1 and entry["previous"] != START.head:
                _reject(f"{where}: the first line does not begin a log")
        elif action == "audit_missing" and number > self.head.lines and entry["previous"] == self.head.head:
            pass  # told below
        elif number != self.head.lines + 1 or entry["previous"] != self.head.head:
            _reject(
                f"{where}: the chain is broken here: line {self.head.lines} came before, and this is line {number}. "
                "Lines were removed, added or moved"
            )
        if action == "audit_missing":
            self.wrong.append(
                f"{where}: when the service started, line {entry['expected']} should have been there, and the log "
                f"ended with line {entry['found']}: its end was cut off, or the log did not move with the store"
            )
        elif action == "audit_damaged":
            self.wrong.append(f"{where}: the service found {entry['file']} damaged when it started")
        elif action == "audit_continued":
            last = self.unkeyed.pop(entry["file"], None)
            if last is None:
                self.absent.add(entry["file"])
            elif last != entry["sha256"]:
                _reject(f"{where}: {entry['file']} is not the file that this line continues: it was changed")
        elif action == "audit_removed":
            self.absent.discard(entry["file"])
            self.removed = max(self.removed, entry["through"] or 0)
        self.head = AuditHead(number, entry["mac"])
        self.report.last = number

    def _end(self) -> None:
        first, last = self.report.first, self.report.last
        if first > 1 and self.removed < first - 1:
            self.wrong.append(
                f"lines {self.removed + 1} to {first - 1} are missing, and the service did not remove them"
            )
        if self.head is not None:
            self.wrong += [f"no line of the log names {name}, which has no codes" for name in sorted(self.unkeyed)]
        self.wrong += [f"{name} is missing, and the service did not remove it" for name in sorted(self.absent)]
        for who, head in self.named:
            found = START.head if head.lines == 0 else self.codes.get(head.lines)
            if head.lines > last:
                self.wrong.append(
                    f"{who} names line {head.lines}, and the log ends with line {last}: its end was cut off"
                )
            elif found is None and head.lines >= first:
                self.wrong.append(f"{who} names line {head.lines}, which is missing")
            elif found not in (None, head.head):
                self.wrong.append(f"{who} names another line {head.lines} than the one that is there")
            elif found is not None and who != "the ledger":
                self.report.certificates += 1
        missing = without_line(self.requests, self.logged, first == 1 and not self.report.unkeyed)
        if missing and not self.wrong:
            raise _NoLineError(
                f"changes in the ledger have no line ({len(missing)}, the first is request {missing[0].id}): their "
                "lines were cut off, or the service died before it wrote them, and will at its next start"
            )
        if self.wrong:
            more = f" (and {len(self.wrong) - 3} more)" if len(self.wrong) > 3 else ""
            _reject("; ".join(self.wrong[:3]) + more)


def _reject(why: str) -> NoReturn:
    raise FileRejectedError(why)
