"""Checks that ledger, sums and certificates of a store agree: each may come from a different copy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neverseen.engine.definiteness import why_impossible
from neverseen.engine.statistics import Statistics
from neverseen.errors import StoreDamagedError
from neverseen.model.problem import sums_digest, why_not_made_up
from neverseen.proof.certificates import Certificate, check_chain
from neverseen.store.parts import SUMS, Parts


def check(parts: Parts, statistics: Callable[[], Statistics]) -> None:
    """Raise unless all parts of a store are complete and agree with the sums from `statistics`; see `Store.check`."""
    parts.ledger.check()
    if certificates := parts.publications.certificates():
        check_chain(certificates, parts.description.public_key)
    _require_listed(parts, certificates)
    for _ in range(10):  # another process may change it meanwhile, and remove what is being read
        before = parts.standing()
        try:
            sums = statistics()
            require_held(parts, sums)
            require_stated(parts, sums)
            _require_made_up(parts, sums)
            return
        except StoreDamagedError:
            if before == parts.standing():
                raise
    raise StoreDamagedError(f"{parts.folder} changed while it was being read: try again when it changes less")


def require_held(parts: Parts, sums: Statistics) -> None:
    """Raise `StoreDamagedError` unless sums and ledger have the same counts, and no held sample is noted as forgotten.

    From now on, only this process forgets samples, so publishing need not check again.
    """
    require_same(parts, sums, parts.ledger.total())
    if not parts.ledger.is_outdated and parts.ledger.holds_pending():
        raise StoreDamagedError(
            f"the ledger of {parts.folder} is damaged: a sample that it holds is noted as forgotten. Restore it from a "
            "copy"
        )


def require_same(parts: Parts, sums: Statistics, rows: int | None = None) -> None:
    """Raise `StoreDamagedError` unless ledger and sums have the same number of samples of each class.

    `rows` is the number of rows, if they were counted.
    """
    held = parts.counts()
    rows = parts.targets.total(held) if rows is None else rows
    if held != dict(sums.counts) or rows != sums.total:
        raise StoreDamagedError(
            f"the ledger of {parts.folder} and its sums are not of the same samples ({rows} and {sums.total}): restore "
            "both from one copy"
        )


def require_removable(parts: Parts, sums: Statistics, name: str) -> None:
    """Raise `StoreDamagedError` if the sums of a class, if tracked, cannot be a part of the whole.

    `check` compares all classes, and is exact.
    """
    if sums.class_grams is None or name not in sums.counts:
        return
    packed = sums.class_grams.packed(name)
    left = sums.packed() - packed.astype(np.int64)
    rows, counts = dict(zip(sums.classes, sums.cross().T, strict=True)), dict(sums.counts)
    why = why_impossible(packed, rows.pop(name)[np.newaxis], [counts.pop(name)])
    if why is None and counts:
        why = why_impossible(left, np.stack(list(rows.values())), [counts[each] for each in rows])
    if why is not None or (not counts and left.any()):
        raise StoreDamagedError(
            f"the sums of class {name} in {parts.folder / SUMS} are not those of samples that make up the sums of all: "
            "restore them from a copy. Nothing was changed"
        )


def require_stated(parts: Parts, sums: Statistics) -> None:
    """Raise `StoreDamagedError` unless version and sums match the newest certificate.

    If the file of the version is missing, it can be published again. Samples of the certificate that are no longer held
    must be noted as forgotten, or the next certificate would deny it. If nothing changed since (none pending, and as
    many samples held), the sums must be those of the certificate. Otherwise no signature covers them yet.
    """
    publications, ledger = parts.publications, parts.ledger
    number, gone = publications.number, len(ledger.pending())
    if number == 0:
        return
    if publications.version_path(number).exists():
        publications.newest_version()
    after = publications.checked(number).after
    learned, held, _ = ledger.learned_since_certificate()
    if not held - learned <= after.samples <= held - learned + gone:
        raise StoreDamagedError(
            f"the ledger of {parts.folder} has {held - learned} samples of certificate {number} and {gone} forgotten "
            f"since, and the certificate states {after.samples}: restore ledger and sums from one copy"
        )
    unchanged = gone == 0 and sums.total == after.samples > 0  # without samples the sums are zero
    if unchanged and sums_digest(sums, parts.description.configuration) != after.statistics:
        raise StoreDamagedError(
            f"the sums in {parts.folder / SUMS} are not those that certificate {number} states, and the ledger has no "
            "change since: restore ledger and sums from one copy"
        )


def _require_listed(parts: Parts, certificates: list[Certificate]) -> None:
    """Raise `StoreDamagedError` unless certificates and ledger list the same commitments."""
    listed = {(bytes.fromhex(each), entry.number) for entry in certificates for each in entry.commitments}
    known = len(certificates)  # another process may publish more meanwhile
    said = [row in listed for row in parts.ledger.certified() if row[1] <= known]
    if not all(said) or len(said) != len(listed):
        raise StoreDamagedError(
            f"the ledger of {parts.folder} names other receipts as forgotten than its certificates list: restore it "
            "from a copy"
        )


def _require_made_up(parts: Parts, sums: Statistics) -> None:
    """Raise `StoreDamagedError` unless the sums of the classes, if tracked, add up to the whole."""
    why = why_not_made_up(sums)
    if why is not None:
        raise StoreDamagedError(
            f"the sums of classes in {parts.folder / SUMS} are not those of any samples, or do not make up the sums of "
            "all: restore them from a copy"
        )
