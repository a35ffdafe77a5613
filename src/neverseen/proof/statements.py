"""The fields of a certificate, and its one text."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from neverseen.errors import CertificateRejectedError
from neverseen.labels import canonical_json

FORMATS = ("neverseen-certificate-1", "neverseen-certificate-2")
"""Readable formats, oldest first. Along a chain, the format never goes back."""
FORMAT = FORMATS[-1]
"""The format of new certificates."""
SIZE_LIMIT = 2**30
"""Bytes of a certificate: room for some sixteen million commitments."""
_CONTEXTS = {
    "neverseen-certificate-1": b"neverseen:certificate:1",
    "neverseen-certificate-2": b"neverseen:certificate:2",
}
_MAX_NUMBER = 2**53 - 1  # what every JSON reader holds exactly
_MAX_SAMPLES = 2**48
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SIGNATURE = re.compile(r"[0-9a-f]{128}", re.ASCII)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)
_BOUNDS = {(2.0 ** -(bits + 1)).hex(): bits for bits in range(1, 53)}  # error bound -> grid bits


@dataclass(frozen=True)
class State:
    """The state of a model at one moment.

    Attributes
    ----------
    statistics, model : str
        Digests of the sums and of the model, in hex (``docs/specification.md``, section 7).
    samples, classes : int
        Numbers of samples and classes (`class_count`).
    """

    statistics: str
    model: str
    samples: int
    classes: int

    @classmethod
    def empty(cls, configuration: str) -> State:
        """Return the state of a model that holds no sample. It is always the same, whatever the model held before.

        Parameters
        ----------
        configuration : str
            The configuration digest, in hex.
        """
        sums = hashlib.sha256(b"neverseen:statistics:1" + struct.pack("<Q", 0))
        model = hashlib.sha256(b"neverseen:model:1" + bytes.fromhex(configuration) + struct.pack("<QQQ", 0, 0, 0))
        return cls(sums.hexdigest(), model.hexdigest(), 0, 0)


def class_count(columns: Collection[str], samples: int) -> int:
    """Return the number of classes to state of a model with so many columns of weights.

    A class has a sample, so there are never more classes than samples. Where labels are not classes, there may be more
    columns: a sample can have several labels or numbers.
    """
    return min(len(columns), samples)


@dataclass(frozen=True)
class AuditHead:
    """The head of an audit log at one moment.

    Attributes
    ----------
    lines : int
        Number of its last line; 0 if there was none.
    head : str
        The authentication code of that line, in hex; zeros if there was none.
    """

    lines: int
    head: str

    def is_sound(self) -> bool:
        """Return whether this can be the head of a log: it may come from a file."""
        return _is_count(self.lines, _MAX_NUMBER) and _matches(_DIGEST, self.head)


@dataclass(frozen=True)
class Certificate:
    """A signed statement about one published version. Made by `issue` or `from_json`; both check that it is sound.

    Attributes
    ----------
    number : int
        1 for the first certificate of a model, and one more for each that follows.
    time : str
        When it was issued: UTC, as in ``"2025-01-31T12:00:00Z"``.
    configuration : str
        Digest of the model's configuration.
    before, after : State
        The previous version (for the first certificate: the empty model), and this one.
    learned, forgotten : int
        Samples learned and forgotten since the previous certificate.
    commitments : tuple of str
        One for each forgotten sample, in hex, sorted.
    error_bound : str
        ``float.hex()`` of half a grid step: no weight is further than this from the exact solution.
    previous : str or None
        SHA-256 of the previous certificate's file; None for the first.
    key : str
        Ed25519 public key, in hex.
    signature : str
        Of everything else, in hex.
    audit : AuditHead or None
        The head of the service's audit log, which must keep this line; None if no service published the version, and in
        format 1.
    format : str
        One of `FORMATS`.
    """

    number: int
    time: str
    configuration: str
    before: State
    after: State
    learned: int
    forgotten: int
    commitments: tuple[str, ...]
    error_bound: str
    previous: str | None
    key: str
    signature: str
    audit: AuditHead | None = None
    format: str = FORMAT

    @property
    def grid_bits(self) -> int:
        """Weights are multiples of ``2**-grid_bits``."""
        return _BOUNDS[self.error_bound]

    def summary(self) -> dict[str, Any]:
        """Return number, time and counts, as JSON values."""
        counts = {name: getattr(self, name) for name in ("number", "time", "learned", "forgotten")}
        return counts | {"samples": self.after.samples, "classes": self.after.classes}

    def to_json(self) -> bytes:
        """Return the bytes of the certificate's file: canonical JSON and a line feed."""
        return canonical_json(self._as_json()).encode() + b"\n"

    def digest(self) -> str:
        """Return the SHA-256 of the certificate's file, which the next certificate states."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @classmethod
    def from_json(cls, raw: bytes, source: str = "the certificate") -> Certificate:
        """Return the certificate that a file holds, or raise `CertificateRejectedError`.

        Only the form is checked, strictly: each certificate has exactly one text. `check_signature` checks the
        signature.

        Parameters
        ----------
        source : str
            Its name in errors, such as its path.
        """
        if len(raw) > SIZE_LIMIT:
            raise CertificateRejectedError(f"{source} is too large: {len(raw)} bytes; at most {SIZE_LIMIT} are read")
        try:
            fields = json.loads(raw.decode("ascii"))
            canonical = canonical_json(fields).encode() + b"\n" == raw
        except (ValueError, RecursionError) as error:
            raise CertificateRejectedError(f"{source} is not JSON: it is damaged, or not a certificate") from error
        if not isinstance(fields, dict) or fields.get("format") not in FORMATS:
            raise CertificateRejectedError(f"{source} is not a certificate of format {' or '.join(FORMATS)}")
        if not canonical:
            raise CertificateRejectedError(f"{source} is not in canonical form: it was altered or reformatted")
        names = set(cls.__dataclass_fields__) - ({"audit"} if fields["format"] == FORMATS[0] else set())
        if set(fields) != names:
            odd = ", ".join(sorted(names ^ set(fields)))
            raise CertificateRejectedError(f"{source} does not have the fields of a certificate: see {odd[:200]}")
        for side in ("before", "after"):
            state = fields[side]
            if not isinstance(state, dict) or set(state) != set(State.__dataclass_fields__):
                raise CertificateRejectedError(f"{source}: {side} does not have the fields of a state")
            fields[side] = State(**state)
        audit = fields.get("audit")
        if audit is not None:
            if not isinstance(audit, dict) or set(audit) != set(AuditHead.__dataclass_fields__):
                raise CertificateRejectedError(f"{source}: audit does not have the fields of the head of a log")
            fields["audit"] = AuditHead(**audit)
        if not isinstance(fields["commitments"], list):
            raise CertificateRejectedError(f"{source}: commitments is not a list")
        certificate = cls(**fields | {"commitments": tuple(fields["commitments"])})
        require_sound(certificate)
        return certificate

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read a certificate from its file, as `from_json` does."""
        with Path(path).open("rb") as file:
            return cls.from_json(file.read(SIZE_LIMIT + 1), str(path))

    def _as_json(self) -> dict[str, Any]:
        fields = vars(self) | {"after": vars(self.after), "before": vars(self.before)}
        fields["audit"] = None if self.audit is None else vars(self.audit)
        if self.format == FORMATS[0]:
            del fields["audit"]
        return fields

    def signed_bytes(self) -> bytes:
        """Return the signed bytes: everything but the signature."""
        fields = self._as_json()
        del fields["signature"]
        return _CONTEXTS[self.format] + canonical_json(fields).encode()


def require_sound(certificate: Certificate) -> None:
    """Raise unless every field has its type and range, and the fields agree with each other."""
    number = certificate.number
    if type(number) is not int or not 1 <= number <= _MAX_NUMBER:
        raise CertificateRejectedError(f"a certificate's number is {str(number)[:80]!r}; it must be 1 or more")

    def demand(holds: bool, why: str) -> None:
        if not holds:
            raise rejected(certificate, why)

    demand(_is_time(certificate.time), "its time is not of the form 2025-01-31T12:00:00Z")
    demand(_matches(_DIGEST, certificate.configuration), "its configuration is not 64 hex digits in lower case")
    demand(_matches(_DIGEST, certificate.key), "its key is not 64 hex digits in lower case")
    demand(_matches(_SIGNATURE, certificate.signature), "its signature is not 128 hex digits in lower case")
    demand(
        certificate.previous is None if number == 1 else _matches(_DIGEST, certificate.previous),
        "previous must be null in certificate 1, and 64 hex digits in lower case in any other",
    )
    demand(
        isinstance(certificate.error_bound, str) and certificate.error_bound in _BOUNDS,
        "its error bound is not half a grid step, in hex",
    )
    audit = certificate.audit
    demand(audit is None or audit.is_sound(), "audit is not a number of lines with 64 hex digits in lower case")
    for side in ("before", "after"):
        state: State = getattr(certificate, side)
        demand(
            _matches(_DIGEST, state.statistics) and _matches(_DIGEST, state.model),
            f"a digest in {side} is not 64 hex digits in lower case",
        )
        demand(
            _is_count(state.samples) and _is_count(state.classes) and state.classes <= state.samples,
            f"its counts in {side} are not numbers of samples and classes",
        )
        demand(
            state == State.empty(certificate.configuration) if state.samples == 0 else state.classes > 0,
            f"{side} has no sample or no class, but is not the empty model",
        )
    learned, forgotten = certificate.learned, certificate.forgotten
    before, after = certificate.before, certificate.after
    demand(_is_count(learned) and _is_count(forgotten), "learned and forgotten are not numbers of samples")
    demand(
        after.samples == before.samples + learned - forgotten,
        f"{before.samples} samples before, {learned} learned and {forgotten} forgotten do not make {after.samples}",
    )
    demand(before == after or (learned or forgotten) > 0, "nothing was learned or forgotten, yet the state changed")
    demand(before == after or before.statistics != after.statistics, "before and after have the same sums, but differ")
    commitments = certificate.commitments
    demand(all(_matches(_DIGEST, entry) for entry in commitments), "a commitment is not 64 hex digits in lower case")
    demand(all(a < b for a, b in pairwise(commitments)), "its commitments are not sorted, or one is repeated")
    demand(len(commitments) == forgotten, f"it has {len(commitments)} commitments for {forgotten} forgotten samples")


def rejected(certificate: Certificate, why: str) -> CertificateRejectedError:
    """Return the refusal of a certificate."""
    return CertificateRejectedError(f"certificate {certificate.number}: {why}", certificate.number)


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_count(value: object, most: int = _MAX_SAMPLES) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_time(value: object) -> bool:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return False
    try:
        datetime.strptime(value, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return False
    return True
