"""The signing key of certificates, and its file."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neverseen.errors import FileRejectedError, InputError, MissingPackageError, damaged
from neverseen.io.files import create_file, read_secret
from neverseen.labels import canonical_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

KEY_FORMAT = "neverseen-signing-1"
_KEY_SIZE_LIMIT = 2**12
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)


class SigningKey:
    """The key that signs certificates. Its secret is never shown.

    Examples
    --------
    >>> key = SigningKey(bytes(32))
    >>> key
    SigningKey(<secret>, public='3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29')
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != 32:
            raise InputError("a signing key must be 32 bytes; use SigningKey.generate() for a new one")
        private, _ = ed25519_keys()
        self._secret = secret
        self._private = private.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw().hex()

    @classmethod
    def generate(cls) -> SigningKey:
        """Return a new key, in memory only: `save` it before you sign with it."""
        return cls(secrets.token_bytes(32))

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature of a message, 64 bytes."""
        return self._private.sign(message)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file of mode 600. An existing file is refused, not replaced."""
        fields = {"format": KEY_FORMAT, "public": self.public, "secret": self._secret.hex()}
        try:
            create_file(Path(path), [canonical_json(fields).encode() + b"\n"])
        except FileExistsError:
            raise FileExistsError(
                f"{path} already exists: open it with SigningKey.load, or choose another name"
            ) from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Read the key that `save` wrote. A file that others may read is refused."""
        place = Path(path)
        if not place.is_file():
            raise FileNotFoundError(f"there is no signing key {place}: make one with SigningKey.generate().save")
        refused = f"{place} is not a usable signing key"
        try:
            raw = read_secret(place, _KEY_SIZE_LIMIT)
        except FileRejectedError as error:
            raise FileRejectedError(f"{refused}: {error}") from None
        with damaged(FileRejectedError(f"{refused}: it is damaged, or not a file of format {KEY_FORMAT}")):
            fields = json.loads(raw)
            if canonical_json(fields).encode() + b"\n" != raw or fields["format"] != KEY_FORMAT:
                raise ValueError
            secret, public = fields["secret"], fields["public"]
            if set(fields) != {"format", "public", "secret"} or not _HEX.fullmatch(secret):
                raise ValueError
        key = cls(bytes.fromhex(secret))
        if key.public != public:
            raise FileRejectedError(f"{refused}: its secret and public parts do not belong together; it is damaged")
        return key

    def __repr__(self) -> str:
        return f"SigningKey(<secret>, public={self.public!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a signing key cannot be pickled or copied; save it to a separate file")


def ed25519_keys() -> tuple[type[ed25519.Ed25519PrivateKey], type[ed25519.Ed25519PublicKey]]:
    """Return the classes of private and public keys, or raise `MissingPackageError`."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingPackageError("certificates need the package cryptography: pip install cryptography") from error
    return ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey
