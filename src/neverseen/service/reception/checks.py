"""Checks of certificates, which anybody may request."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neverseen.errors import CertificateRejectedError, NeverseenError
from neverseen.labels import canonical_json
from neverseen.proof.certificates import Certificate, State, check_next, check_signature, is_mine
from neverseen.service.errors import Refusal
from neverseen.service.reception.contents import from_base64, parsed
from neverseen.service.reception.schemas import VerifyBody

if TYPE_CHECKING:
    from neverseen.store import Store

_Stamp = tuple[int, int, int, int]
_SECONDS = 2.0  # that one request may spend on reading and checking new certificates
_SUMMARIES = 100_000


class Chain:
    """The checked certificates in a folder. A file that has not changed is not checked again."""

    def __init__(self, folder: Path, public_key: str) -> None:
        self._folder, self._key = folder, public_key
        self._checked: list[tuple[_Stamp, str]] = []  # of each certificate, in order: its file's stamp, its digest
        self._last: Certificate | None = None  # of those that were checked
        self._summaries: OrderedDict[int, tuple[_Stamp, dict[str, Any]]] = OrderedDict()

    def get(self, number: int) -> Certificate:
        """Return the certificate in a file, unchecked."""
        try:
            content = certificate_path(self._folder, number).read_bytes()
        except OSError:
            raise _missing() from None
        return Certificate.from_json(content, f"certificate {number} of this service")

    def summaries(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return a summary of each certificate, as JSON values; refuse for now if there is much to read."""
        until = time.monotonic() + _SECONDS
        try:
            return [self._summary(number, until) for number in numbers]
        except CertificateRejectedError as error:
            raise Refusal("unavailable", f"the list cannot be made now: {error}", wait=60) from None

    def _summary(self, number: int, until: float) -> dict[str, Any]:
        stamp = self._stamp(number)
        known = self._summaries.get(number)
        if known is None or known[0] != stamp:
            if time.monotonic() > until:
                raise Refusal("busy", "the certificates are not all read yet: ask again in a moment", wait=1)
            known = self._summaries[number] = stamp, self.get(number).summary()
            if len(self._summaries) > _SUMMARIES:
                self._summaries.popitem(last=False)
        return known[1]

    def check(self, published: int) -> list[str]:
        """Return the digests of all certificates, or raise `CertificateRejectedError` unless they are a chain."""
        good = 0
        for stamp, _ in self._checked[:published]:
            if stamp != self._stamp(good + 1):
                break
            good += 1
        if good < len(self._checked):
            del self._checked[good:]
            self._last = self.get(good) if good else None
        until = time.monotonic() + _SECONDS
        for number in range(good + 1, published + 1):
            if time.monotonic() > until:
                words = f"{number - 1} of {published} certificates are checked so far: ask again in a moment"
                raise Refusal("busy", words, wait=1)
            stamp, certificate = self._stamp(number), self.get(number)
            check_next(certificate, self._last, self._key)
            self._checked.append((stamp, certificate.digest()))
            self._last = certificate
        return [digest for _, digest in self._checked]

    def _stamp(self, number: int) -> _Stamp:
        return _stamp(certificate_path(self._folder, number))


def certificate_path(folder: Path, number: int) -> Path:
    """Return the file of a certificate."""
    return folder / f"{number:08d}.json"


def _missing() -> CertificateRejectedError:
    return CertificateRejectedError("a certificate is missing from the chain, or cannot be read")


def _stamp(path: Path) -> _Stamp:
    try:
        about = os.stat(path)  # noqa: PTH116
    except OSError:
        raise _missing() from None
    return about.st_ino, about.st_mtime_ns, about.st_size, about.st_ctime_ns


def certificate_of(given: int | dict[str, Any], chain: Chain) -> Certificate:
    """Return the certificate that a request is about: the service's own by number, or a document."""
    if isinstance(given, int):
        return chain.get(given)
    try:
        raw = canonical_json(given).encode() + b"\n"
    except (ValueError, RecursionError):
        raise CertificateRejectedError("this is not a certificate: it cannot be written as JSON") from None
    return Certificate.from_json(raw)


def signature(certificate: Certificate, public_key: str) -> str:
    """Check that a certificate is signed by the service."""
    check_signature(certificate, public_key)
    return f"certificate {certificate.number} is as it was signed, with the key {public_key}"


def in_chain(certificate: Certificate, chain: Chain, published: int) -> str:
    """Check the whole chain, and that a certificate is a link of it."""
    digests = chain.check(published)
    number = certificate.number
    if number > len(digests) or digests[number - 1] != certificate.digest():
        raise CertificateRejectedError(f"certificate {number} is not the one in the chain of this service", number)
    return f"all certificates are there, in order, and signed; this is number {number} of {len(digests)}"


def mine(certificate: Certificate, receipt: bytes | None, public_key: str) -> str:
    """Check that a certificate is signed by the service and lists a receipt.

    It cannot tell whether the sample was learned again since.
    """
    check_signature(certificate, public_key)  # anybody can make up one that lists a receipt
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


def weights(opened: Store, wanted: int, after: State) -> str:
    """Check that the published weights are the correctly rounded solution of the sums; for the writer's thread.

    `wanted` is the number of a certificate, and `after` its state of the model.
    """
    number = opened.published_number
    if wanted > number:
        raise CertificateRejectedError(f"there is no certificate {wanted}: the newest is {number}")
    if wanted < number:
        words = f"the weights of certificate {wanted} are no longer stored: the newest is {number}"
        raise CertificateRejectedError(words, wanted, undecided=True)
    version = opened.version()
    version.check_stated(opened.statistics(), number, after)
    return f"all {version.weights.size} weights of version {number} are the exact solution, correctly rounded"


def timed(name: str, check: Callable[[], str]) -> dict[str, Any]:
    """Make a check, and return its outcome as JSON values."""
    started, more = time.monotonic(), dict[str, bool]()
    try:
        words, passed = check(), True
    except NeverseenError as error:
        words, passed = str(error), False
        if isinstance(error, CertificateRejectedError) and error.undecided:
            more = {"undecided": True}
    return {"name": name, "passed": passed, "message": words, "seconds": round(time.monotonic() - started, 6)} | more


class Checker:
    """Makes public checks, in a worker process."""

    def __init__(self, folder: Path, public_key: str) -> None:
        self._chain, self._key = Chain(folder, public_key), public_key

    def answer(self, question: dict[str, Any], content: bytes) -> tuple[dict[str, Any], list[Any]]:
        """Answer a question: ``list`` (of numbers), or ``published`` (up to where the chain goes) with a body."""
        if "list" in question:
            return {"certificates": self._chain.summaries(question["list"])}, []
        return self._verify(content, question["published"], question["audit"]), []

    def _verify(self, content: bytes, published: int, audit: str) -> dict[str, Any]:
        """Return the results of the requested checks; for weights, which only the service can check, the question."""
        given = parsed(VerifyBody, content)
        if isinstance(given.certificate, int) and given.certificate > published:
            raise Refusal("not_found", "there is no such certificate")
        if "weights" in given.checks and audit:
            raise Refusal(audit, "the check weights needs a key with the scope audit")
        receipt = None if given.receipt is None else from_base64(given.receipt, "receipt", 0)
        try:
            certificate = certificate_of(given.certificate, self._chain)
        except NeverseenError as error:
            failed = {"passed": False, "message": str(error), "seconds": 0.0}
            return {"checks": [{"name": name} | failed for name in given.checks]}
        made = {
            "signature": lambda: signature(certificate, self._key),
            "chain": lambda: in_chain(certificate, self._chain, published),
            "mine": lambda: mine(certificate, receipt, self._key),
        }
        checks: list[dict[str, Any]] = [
            timed(name, made[name]) if name in made else {"name": name} for name in given.checks
        ]
        for check in checks:
            if check["name"] == "mine" and check["passed"]:
                check["listed_in"] = certificate.number
        return {"checks": checks, "number": certificate.number, "after": vars(certificate.after)}
