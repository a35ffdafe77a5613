"""Receipts: the owner of a sample keeps its receipt, and can have the sample forgotten with it.

Only the model that issued a receipt can read it. It holds the sample's id, label and owner, the fingerprint of its
content, and the quantised features that were learned. So forgetting by receipt needs neither the sample nor the
backbone, and it works even if the backbone would compute different features today. A receipt is sealed with
AES-256-GCM-SIV (RFC 8452): without the key, nobody can read or change it. The nonce is a keyed digest of the content,
so equal contents give equal receipts. In this mode a repeated nonce reveals only that two receipts are equal.

A model in memory issues receipts without a salt: the same sample under the same id has the same receipt, whatever the
model's history. A store puts a random salt into each receipt and keeps the salt with the sample. When the sample is
forgotten the salt is deleted, so nobody can rebuild the receipt from a guess of the sample, not even with the keys.
Section 9 of ``docs/specification.md`` lays both out byte by byte.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neverseen.errors import MissingPackageError, ReceiptRejectedError
from neverseen.proof.keys import Key

if TYPE_CHECKING:
    import numpy as np

FINGERPRINT_SIZE = 16
TEXT_LIMIT = 2**16 - 1
"""Bytes of an id, an owner or a label."""
SALT_SIZE = 16
PREFIXES = (b"NSR1", b"NSR2")
"""The first bytes of receipts: without a salt, and with one."""
_PLAIN, _SALTED = PREFIXES
_HEADER = struct.Struct("<4sI8s12s")  # magic, length of the whole, key check, nonce
_TAG_SIZE = 16
_MODEL_SIZE = 16  # of the configuration digest, the bytes that are noted
_LENGTHS = struct.Struct("<HHH")  # of id, owner, label
_SIZE_LIMIT = 2**25
FEATURES_LIMIT = _SIZE_LIMIT - 2**18
"""Bytes of quantised features. The rest takes less than 2**18: three texts with their padding, and 150 bytes."""
_PAD = 32  # texts are filled up to a multiple of this, so that a receipt's length tells little of them


@dataclass(frozen=True)
class Receipt:
    """The content of an opened receipt."""

    # canonical texts (`neverseen.labels`)
    id: str
    owner: str
    label: str
    fingerprint: bytes  # of the raw sample's content (`neverseen.backbones.contents`)
    quantised: np.ndarray  # int8, of shape (d0,)
    salt: bytes = b""  # empty, or `SALT_SIZE` random bytes


def seal(said: Receipt, key: Key, model: bytes) -> bytes:
    """Seal a receipt; return the bytes that its owner keeps.

    Parameters
    ----------
    said : Receipt
        Its content.
    key : Key
        The newest receipt key.
    model : bytes
        Configuration digest of the issuing model; 32 bytes.
    """
    texts = [text.encode() for text in (said.id, said.owner, said.label)]
    fixed = model[:_MODEL_SIZE] + said.fingerprint + said.salt + _LENGTHS.pack(*map(len, texts))
    joined = b"".join(texts)
    content = fixed + joined + bytes(-len(joined) % _PAD) + said.quantised.astype("int8", copy=False).tobytes()
    length = _HEADER.size + len(content) + _TAG_SIZE
    nonce = hashlib.blake2b(content, key=key.reveal(), digest_size=12, person=b"neverseen:nonce").digest()
    header = _HEADER.pack(_SALTED if said.salt else _PLAIN, length, bytes.fromhex(key.check()), nonce)
    sealed: bytes = _cipher(key).encrypt(nonce, content, header)
    return header + sealed


def unseal(receipt: Any, row: int, keys: Sequence[Key], model: bytes) -> Receipt:
    """Return the content of a receipt, or raise `ReceiptRejectedError`.

    The content is read only after its seal is verified.

    Parameters
    ----------
    row : int
        Its position in the request, for the error.
    keys : sequence of Key
        Receipt keys that may have sealed it.
    model : bytes
        Configuration digest of the model that opens it.
    """
    receipt = bytes(receipt)
    if not receipt or not any(receipt.startswith(prefix[: len(receipt)]) for prefix in PREFIXES):
        raise _rejected(row, "foreign", "is not a receipt: receipts start with the letters NSR1 or NSR2")
    if len(receipt) < _HEADER.size:
        raise _rejected(row, "truncated", f"is cut short: it has only {len(receipt)} bytes")
    prefix, length, check, nonce = _HEADER.unpack_from(receipt)
    if len(receipt) < length:
        raise _rejected(row, "truncated", f"is cut short: it has only {len(receipt)} of {length} bytes")
    if len(receipt) > length or length > _SIZE_LIMIT:
        raise _rejected(row, "altered", f"was altered: it has {len(receipt)} bytes but states {length}")
    key = next((key for key in keys if bytes.fromhex(key.check()) == check), None)
    if key is None:
        raise _rejected(
            row,
            "key",
            "was sealed under a key that this model does not have: it is another model's, or the key was dropped",
        )
    content = _opened(receipt, key, nonce)
    if content is None:
        raise _rejected(row, "altered", "was altered: its seal is broken")
    if content[:_MODEL_SIZE] != model[:_MODEL_SIZE]:
        raise _rejected(row, "model", "belongs to another model, with other settings or another backbone")
    return _parsed(content, SALT_SIZE if prefix == _SALTED else 0)


def key_check_of(receipt: bytes) -> str:
    """Return the `Key.check` of the key that sealed a receipt."""
    check: bytes = _HEADER.unpack_from(receipt)[2]
    return check.hex()


def is_salted(receipt: bytes) -> bool:
    """Return whether a receipt carries a random salt."""
    return receipt.startswith(PREFIXES[1:])


def commitment(receipt: bytes) -> bytes:
    """Return the public commitment of a receipt, 32 bytes that only its holder recognises."""
    return hashlib.sha256(b"neverseen:commitment:1" + receipt).digest()


def _opened(receipt: bytes, key: Key, nonce: bytes) -> bytes | None:
    from cryptography.exceptions import InvalidTag

    try:
        content: bytes = _cipher(key).decrypt(nonce, receipt[_HEADER.size :], receipt[: _HEADER.size])
    except (InvalidTag, ValueError):  # the latter if the rest is shorter than a tag
        return None
    return content


def _parsed(content: bytes, salt_size: int) -> Receipt:
    """Return the parts of a verified content. `seal` made it, so it is well-formed."""
    import numpy as np  # the help of a command, and the checks of certificates, do without

    place = _MODEL_SIZE + FINGERPRINT_SIZE
    fingerprint, salt = content[_MODEL_SIZE:place], content[place : place + salt_size]
    lengths = _LENGTHS.unpack_from(content, place + salt_size)
    place, texts = place + salt_size + _LENGTHS.size, []
    for length in lengths:
        texts.append(content[place : place + length].decode())
        place += length
    id_text, owner, label = texts
    place += -sum(lengths) % _PAD
    return Receipt(id_text, owner, label, fingerprint, np.frombuffer(content, np.int8, offset=place), salt)


def require_cipher() -> Any:
    """Return the class of the cipher, or raise `MissingPackageError`."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV
    except ImportError as error:
        raise MissingPackageError("receipts need the package cryptography: pip install cryptography") from error
    try:
        AESGCMSIV(bytes(32))
    except UnsupportedAlgorithm as error:
        raise MissingPackageError(
            "receipts need AES-GCM-SIV, which the OpenSSL behind the package cryptography does not have: install its "
            "own wheel (pip install --force-reinstall cryptography), or OpenSSL 3.2 or newer"
        ) from error
    return AESGCMSIV


def _cipher(key: Key) -> Any:
    """Return the cipher under a key of its own, derived from the receipt key."""
    derived = hashlib.blake2b(key=key.reveal(), digest_size=32, person=b"neverseen:seal").digest()
    return require_cipher()(derived)


def _rejected(row: int, reason: str, words: str) -> ReceiptRejectedError:
    return ReceiptRejectedError(words, row, reason)
