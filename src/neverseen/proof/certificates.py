"""Certificates: signed statements about published versions, for people who need not trust the publisher.

Each version of a model has a certificate: a small JSON file, signed with Ed25519. It holds digests of the sums and of
the weights before and after, the commitments of the samples forgotten in between, the proven error bound, the time, the
head of the service's audit log, and the SHA-256 of the previous certificate. So the certificates form a chain. Nobody
can change, drop or swap one without breaking it. Anyone who knows the digest of the newest one also notices if the end
is cut off.

A *commitment* is a hash of a sample's receipt (`neverseen.proof.receipts`). A receipt is sealed under a secret key, so
its holder recognises the commitment, and to everybody else the commitment is 32 random bytes.

Only `issue` needs a secret. A failed check raises `CertificateRejectedError` with the reason.
``docs/certificate.schema.json`` is the schema of the file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

from neverseen.errors import CertificateRejectedError, LimitError
from neverseen.proof.receipts import commitment
from neverseen.proof.signing import SigningKey, ed25519_keys
from neverseen.proof.statements import FORMATS, SIZE_LIMIT, AuditHead, Certificate, State, rejected, require_sound

__all__ = [
    "AuditHead",
    "Certificate",
    "State",
    "check_chain",
    "check_next",
    "check_signature",
    "check_state",
    "is_mine",
    "issue",
]


def is_mine(certificate: Certificate, receipt: bytes) -> bool:
    """Return whether a certificate lists this receipt.

    True proves that the publisher stated, with this version, that the sample of this receipt was forgotten. It does not
    prove that the sample is not held now: it may have been learned again since, under the same id or another, and no
    certificate shows that. The store can tell (`neverseen.store.Store.holds`).

    False proves nothing about the sample: it may be held, never learned, or listed by another certificate.
    """
    mine = commitment(receipt).hex()
    place = bisect_left(certificate.commitments, mine)
    return place < len(certificate.commitments) and certificate.commitments[place] == mine


def issue(
    number: int,
    time: str | None,
    configuration: str,
    before: State,
    after: State,
    learned: int,
    forgotten: int,
    commitments: Iterable[bytes],
    grid_bits: int,
    previous: Certificate | None,
    signing_key: SigningKey,
    audit: AuditHead | None = None,
) -> Certificate:
    """Return a new certificate, signed; raise `CertificateRejectedError` if it would not continue the chain.

    Parameters that are not described here are the fields of `Certificate`.

    Parameters
    ----------
    time : str or None
        None stands for now. If the clock was set back, the time of the previous certificate is repeated: times in a
        chain never decrease.
    configuration : str
        Configuration digest, in hex.
    commitments : iterable of bytes
        In any order.
    previous : Certificate or None
        None for the first certificate; its `before` is ``State.empty(configuration)``.

    Examples
    --------
    >>> empty = State.empty("ab" * 32)
    >>> after = State("01" * 32, "02" * 32, samples=3, classes=2)
    >>> key = SigningKey.generate()
    >>> first = issue(1, "2025-01-31T12:00:00Z", "ab" * 32, empty, after, 4, 1, [commitment(b"NSR1")], 40, None, key)
    >>> is_mine(first, b"NSR1"), is_mine(first, b"another")
    (True, False)
    >>> check_chain([Certificate.from_json(first.to_json())], key.public)
    """
    if time is None:
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        time = time if previous is None else max(time, previous.time)
    unsigned = Certificate(
        number=number,
        time=time,
        configuration=configuration,
        before=before,
        after=after,
        learned=learned,
        forgotten=forgotten,
        commitments=tuple(sorted(entry.hex() for entry in commitments)),
        error_bound=(2.0 ** -(grid_bits + 1)).hex(),
        previous=None if previous is None else previous.digest(),
        key=signing_key.public,
        signature="0" * 128,
        audit=audit,
    )
    require_sound(unsigned)
    _require_link(previous, unsigned)
    certificate = replace(unsigned, signature=signing_key.sign(unsigned.signed_bytes()).hex())
    if (size := len(certificate.to_json())) > SIZE_LIMIT:
        raise LimitError(f"the certificate would have {size} bytes, more than {SIZE_LIMIT}: forget fewer at a time")
    return certificate


def check_signature(certificate: Certificate, public_key: str | None = None) -> None:
    """Raise `CertificateRejectedError` unless a certificate is signed, and by the right key.

    Parameters
    ----------
    public_key : str, optional
        The publisher's key, 64 hex digits. **Without it, any key is accepted**: the signature then shows that the
        certificate is unaltered, but not who signed it.
    """
    if public_key is not None and certificate.key != public_key:
        raise rejected(certificate, f"signed with the key {certificate.key}, not with the key given, {public_key}")
    _, public = ed25519_keys()
    from cryptography.exceptions import InvalidSignature

    try:
        public.from_public_bytes(bytes.fromhex(certificate.key)).verify(
            bytes.fromhex(certificate.signature), certificate.signed_bytes()
        )
    except (InvalidSignature, ValueError):
        raise rejected(certificate, "its signature is wrong: it was altered after it was signed") from None


def check_next(certificate: Certificate, previous: Certificate | None, public_key: str | None = None) -> None:
    """Raise `CertificateRejectedError` unless a certificate is signed and directly follows another.

    Parameters
    ----------
    previous : Certificate or None
        None stands for the beginning. Its own signature is not checked: `certificate` signs its digest.
    public_key : str, optional
        As for `check_signature`.
    """
    _require_link(previous, certificate)
    check_signature(certificate, public_key)


def check_chain(certificates: Sequence[Certificate], public_key: str | None = None, newest: str | None = None) -> None:
    """Raise `CertificateRejectedError` unless certificates are complete from the first, in order, signed by one key.

    Parameters
    ----------
    certificates : sequence of Certificate
        Oldest first.
    public_key : str, optional
        The publisher's key. Without it, the key of the first certificate must have signed them all.
    newest : str, optional
        Digest of the newest certificate, if you know it from elsewhere: a chain alone cannot show that its end was cut
        off.
    """
    if not certificates:
        raise CertificateRejectedError("there is no certificate to check")
    _require_link(None, certificates[0])
    for earlier, later in pairwise(certificates):
        _require_link(earlier, later)
    for certificate in certificates:
        check_signature(certificate, certificates[0].key if public_key is None else public_key)
    if newest is not None and certificates[-1].digest() != newest:
        raise rejected(certificates[-1], f"it is not the newest (digest {newest}): the end was cut off")


def check_state(certificate: Certificate, state: State) -> None:
    """Raise `CertificateRejectedError` unless a certificate is about this state.

    The state may be that of a published file, or of a model that learned the retained samples from scratch.
    """
    for name, words in (
        ("samples", "the number of samples"),
        ("classes", "the number of classes"),
        ("statistics", "the digest of the sums"),
        ("model", "the digest of the model"),
    ):
        stated, found = getattr(certificate.after, name), getattr(state, name)
        if stated != found:
            raise rejected(certificate, f"it states another state: {words} is {stated} there and {found} here")


def _require_link(previous: Certificate | None, certificate: Certificate) -> None:
    """Raise unless a certificate directly follows another; None stands for the beginning."""
    expected = 1 if previous is None else previous.number + 1
    if certificate.number != expected:
        raise rejected(certificate, f"certificate {expected} was expected here: one is missing, repeated or misplaced")
    if previous is None:
        if certificate.before != State.empty(certificate.configuration):
            raise rejected(certificate, "it is the first, but does not begin with the empty model")
        return
    if certificate.previous != previous.digest():
        raise rejected(certificate, f"it follows a different certificate {previous.number}, not the one given")
    if certificate.configuration != previous.configuration or certificate.error_bound != previous.error_bound:
        raise rejected(certificate, f"its configuration differs from certificate {previous.number}")
    if certificate.before != previous.after:
        raise rejected(certificate, f"it does not begin where certificate {previous.number} ended")
    if certificate.time < previous.time:
        raise rejected(certificate, f"its time {certificate.time} is before that of certificate {previous.number}")
    if certificate.key != previous.key:
        raise rejected(certificate, f"it is not signed with the key of certificate {previous.number}")
    if FORMATS.index(certificate.format) < FORMATS.index(previous.format):
        raise rejected(
            certificate, f"its format {certificate.format} is older than that of certificate {previous.number}"
        )
