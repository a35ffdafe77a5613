"""The checks that anybody can have made on a certificate."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neverseen.certificates import Certificate, _require_link, check_chain, check_signature, is_mine
from neverseen.errors import CertificateRejectedError, NeverseenError
from neverseen.labels import canonical_json
from neverseen.store import Store

_Stamp = tuple[int, int, int, int]


class Chain:
    """The certificates of a store, as far as they were checked: a file that did not change is not checked again.

    Parameters
    ----------
    folder : Path
        The certificates' folder.
    public_key : str
        The store's.
    """

    def __init__(self, folder: Path, public_key: str) -> None:
        self._folder, self._key = folder, public_key
        self._lock = threading.Lock()
        self._checked: list[tuple[_Stamp, Certificate]] = []

    def path(self, number: int) -> Path:
        """Return the file of a certificate."""
        return self._folder / f"{number:08d}.json"

    def get(self, number: int) -> Certificate:
        """Return a certificate that may be any, as its file has it."""
        with self._lock:
            if number <= len(self._checked) and self._checked[number - 1][0] == _stamp(self.path(number)):
                return self._checked[number - 1][1]
        return Certificate.load(self.path(number))

    def check(self, published: int) -> list[Certificate]:
        """Return all certificates, or raise `CertificateRejectedError` unless they are a chain."""
        with self._lock:
            good = 0
            for stamp, certificate in self._checked[:published]:
                if stamp != _stamp(self.path(certificate.number)):
                    break
                good += 1
            del self._checked[good:]
            for number in range(good + 1, published + 1):
                stamp = _stamp(self.path(number))
                certificate = Certificate.load(self.path(number))
                if number == 1:
                    check_chain([certificate], self._key)
                else:
                    _require_link(self._checked[-1][1], certificate)
                    check_signature(certificate, self._key)
                self._checked.append((stamp, certificate))
            return [certificate for _, certificate in self._checked]


def _stamp(path: Path) -> _Stamp:
    try:
        about = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        raise CertificateRejectedError("a certificate is missing from the chain") from None
    return about.st_ino, about.st_mtime_ns, about.st_size, about.st_ctime_ns


def certificate_of(given: int | dict[str, Any], chain: Chain) -> Certificate:
    """Return the certificate that a request is about: the service's own by number, or a document."""
    if isinstance(given, int):
        return chain.get(given)
    try:
        raw = canonical_json(given).encode() + b"\n"
    except (ValueError, RecursionError):
        raise CertificateRejectedError("the certificate cannot be written as JSON: it is not one") from None
    return Certificate.from_json(raw)


def signature(certificate: Certificate, public_key: str) -> str:
    """Check that a certificate is signed by the service."""
    check_signature(certificate, public_key)
    return f"certificate {certificate.number} is as it was signed, with the key {public_key}"


def in_chain(certificate: Certificate, chain: Chain, published: int) -> str:
    """Check the whole chain, and that a certificate is a link of it."""
    certificates = chain.check(published)
    number = certificate.number
    if number > len(certificates) or certificates[number - 1].to_json() != certificate.to_json():
        raise CertificateRejectedError(f"certificate {number} is not the one in the chain of this service", number)
    return f"all {len(certificates)} certificates are there, in order, and signed; this is number {number}"


def mine(certificate: Certificate, receipt: bytes | None) -> str:
    """Check that a certificate lists a receipt. Whether the sample was learned again since, it does not tell."""
    if receipt is None:
        raise CertificateRejectedError("no receipt was given: send yours as receipt")
    if not is_mine(certificate, receipt):
        raise CertificateRejectedError(
            f"certificate {certificate.number} does not list this receipt: its sample may be held, or another "
            "certificate lists it"
        )
    return (
        f"certificate {certificate.number} of {certificate.time} lists this receipt as forgotten; a later one may have "
        "learned the sample again"
    )


def weights(opened: Store, certificate: Certificate) -> str:
    """Check that the published weights are the correctly rounded solution of the sums; for the writer's thread."""
    number = opened.published_number
    if certificate.number != number:
        raise CertificateRejectedError(
            f"the weights of certificate {certificate.number} are not here any more: the newest is {number}"
        )
    statistics, version = opened.statistics(), opened.version()
    if statistics.total and statistics.digest() != certificate.after.statistics:
        raise CertificateRejectedError(
            f"the sums are not those of certificate {number}: changes are not published yet. Try again in a moment"
        )
    if version.digest() != certificate.after.model:
        raise CertificateRejectedError(f"the weights are not those that certificate {number} states")
    version.check(statistics)
    rows, columns = version.weights.shape
    return f"all {rows * columns} weights of version {number} are the exact solution, correctly rounded"


def timed(name: str, check: Callable[[], str]) -> dict[str, Any]:
    """Make a check, and return how it ended as JSON values."""
    started = time.monotonic()
    try:
        words, passed = check(), True
    except NeverseenError as error:
        words, passed = str(error), False
    return {"name": name, "passed": passed, "message": words, "seconds": round(time.monotonic() - started, 6)}
