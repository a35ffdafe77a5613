"""API keys and their rights, in one file, with hashed tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from neverseen.errors import ConfigurationError, FileRejectedError, InputError, NeverseenError
from neverseen.io.files import locked_folder, read_secret, replace_file
from neverseen.labels import canonical_json, parse_json
from neverseen.service.errors import Refusal
from neverseen.service.operations.log import LOG

SCOPES = ("learn", "predict", "forget", "audit", "admin")
NAME, FORMAT = "keys.json", "neverseen-service-keys-1"
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}", re.ASCII)
"""The form of an owner's name."""
_PREFIX = "nsk_"
_TOKEN = re.compile(r"nsk_[A-Za-z0-9_-]{43}", re.ASCII)
_SIZE_LIMIT = 2**24
_PAUSE = 0.1  # seconds between two attempts to read an unusable file
_GRACE = 2.0  # seconds for which the old keys stay valid while the file is missing or unreadable


@dataclass(frozen=True)
class ApiKey:
    """An API key, without its token.

    Attributes
    ----------
    name : str
        For people, the audit log and the list of requests. No two keys have the same name, not even revoked ones.
    scopes : tuple of str
        Of `SCOPES`, sorted. ``"admin"`` implies all others.
    owner : str or None
        The owner whose samples the key may use; None for all samples.
    sha256 : str
        Of the token, in hex. The token has 256 random bits and cannot be guessed. A slow hash would only help people
        who want to keep the service busy.
    """

    name: str
    scopes: tuple[str, ...]
    owner: str | None
    sha256: str
    created: str
    revoked: str | None = None

    def may(self, scope: str) -> bool:
        """Return whether the key has a scope."""
        return scope in self.scopes or "admin" in self.scopes

    def owner_of(self, said: str | None) -> str | None:
        """Return whose samples a request is about: those of the key's owner, or else of the one that it names."""
        if said is not None and not OWNER.fullmatch(said):
            raise Refusal("invalid_request", "an owner is made of letters, digits and any of . _ @ + -")
        if self.owner is None:
            return said
        if said not in (None, self.owner):
            raise Refusal("forbidden", "this key belongs to another owner: leave owner out")
        return self.owner


class KeyFile:
    """The keys of a service, in its own folder. A change of another process is seen at once.

    While a file is being replaced, it may be missing or incomplete for a moment. So the old keys stay valid for two
    seconds after the last good read. After that none is valid, since one may have been revoked meanwhile.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keys = KeyFile(Path(folder))
    ...     token = keys.add("shop", ["learn", "forget"], owner="ada")
    ...     keys.find(token).scopes, keys.find("nsk_" + "x" * 43)
    (('forget', 'learn'), None)
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._seen: tuple[int, int, int] | None = None
        self._looked = self._sound = -math.inf  # when, and when the file could be read last
        self._fault: str | None = None
        self._keys: dict[str, ApiKey] = {}

    def find(self, token: str, look: bool = True) -> ApiKey | None:
        """Return the key of a token, or None if no valid key has it.

        Parameters
        ----------
        look : bool
            Whether to refuse the request if the file cannot be read, and may have a token that is not known. Without
            it, None.
        """
        if not _TOKEN.fullmatch(token):
            return None
        self.fault()
        digest = hashlib.sha256(token.encode()).hexdigest()
        found = self._keys.get(digest)
        if self._fault is not None and (found is None or time.monotonic() - self._sound > _GRACE):
            if look:
                raise Refusal("unavailable", "the API keys cannot be read now: try again in a moment", wait=2)
            return None
        if found is None or not hmac.compare_digest(found.sha256, digest) or found.revoked is not None:
            return None
        return found

    def fault(self) -> str | None:
        """Return why the file cannot be used now, or None."""
        if self._fault is None or time.monotonic() - self._looked > _PAUSE:
            self._look()
        return self._fault

    def all(self) -> list[ApiKey]:
        """Return all keys, revoked ones too, in the order of their names."""
        self._refresh()
        return sorted(self._keys.values(), key=lambda key: key.name)

    def add(self, name: str, scopes: Iterable[str], owner: str | None = None) -> str:
        """Make a key, and return its token, which is not stored."""
        wanted = tuple(sorted(set(scopes)))
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@ +-]{0,99}", name, re.ASCII):
            raise InputError(f"a key's name is made of letters, digits, spaces and any of . _ @ + -; got {name!r}")
        if not wanted or not set(wanted) <= set(SCOPES):
            raise InputError(f"scopes are one or more of {', '.join(SCOPES)}; got {', '.join(wanted) or 'none'}")
        if owner is not None and not OWNER.fullmatch(owner):
            raise InputError(f"an owner is made of letters, digits and any of . _ @ + -; got {owner!r}")
        if owner is not None and {"admin", "audit"} & set(wanted):
            raise InputError("a key with an owner cannot have the scopes audit or admin: they concern all owners")
        token = _PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        digest = hashlib.sha256(token.encode()).hexdigest()
        with self._changing():
            if any(key.name == name for key in self._keys.values()):
                raise InputError(f"the name {name!r} is taken, perhaps by a revoked key: choose another")
            self._write([*self._keys.values(), ApiKey(name, wanted, owner, digest, _now())])
        return token

    def revoke(self, name: str) -> ApiKey:
        """Revoke a key, and return it."""
        with self._changing():
            found = next((key for key in self._keys.values() if key.name == name), None)
            if found is None:
                raise InputError(f"there is no key {name!r}")
            revoked = replace(found, revoked=found.revoked or _now())
            self._write([revoked if key is found else key for key in self._keys.values()])
        return revoked

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep other processes from changing the file meanwhile."""
        with locked_folder(self.path.parent):
            self._refresh()
            yield

    def _write(self, keys: list[ApiKey]) -> None:
        listed = [asdict(key) for key in sorted(keys, key=lambda key: key.name)]
        replace_file(self.path, [canonical_json({"format": FORMAT, "keys": listed}).encode() + b"\n"])
        self._refresh()

    def _look(self) -> None:
        """Read the file if it has changed, and note whether it can be used."""
        before = self._fault
        try:
            self._refresh()
        except (NeverseenError, OSError) as error:
            self._fault = str(error)
            if self._fault != before:
                LOG.error("the API keys cannot be read: %s", error)

    def _refresh(self) -> None:
        self._looked = time.monotonic()
        if not self._keys and not self.path.exists():
            self._fault = None  # no key was made yet
            return
        about = os.stat(self.path)  # noqa: PTH116 (half the time: this is done for every request)
        seen = (about.st_ino, about.st_mtime_ns, about.st_size)
        if seen != self._seen:
            self._seen = None  # one that cannot be read is read again
            self._keys, self._seen = _read(self.path), seen
        self._fault, self._sound = None, self._looked


def maker_of(token: str, request_id: str) -> bytes:
    """Return a digest that identifies a request's sender after a seal: only the same token produces it.

    It is a digest of the token itself; the file of keys has a different digest of it. So somebody with all files can
    neither tell which key made a request, nor whether one key made two.
    """
    return hashlib.blake2b(request_id.encode(), key=token.encode(), digest_size=16, person=b"neverseen:maker").digest()


def _read(path: Path) -> dict[str, ApiKey]:
    try:
        content = read_secret(path, _SIZE_LIMIT)
        about: Any = parse_json(content)
        if about["format"] != FORMAT:
            raise FileRejectedError(f"{path} is not a file of API keys")
        keys = [ApiKey(**entry | {"scopes": tuple(entry["scopes"])}) for entry in about["keys"]]
        return {key.sha256: key for key in keys}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be used: {error}") from error


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
