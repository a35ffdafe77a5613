"""The secrets of a model, and their file.

A model has one *membership* key for life. Its member digests are keyed with it, and they cannot be moved to another key
without the samples. A model has one or more *receipt* keys: receipts are sealed under the newest and opened under any,
so the receipt key can be rotated as often as you like.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from neverseen.errors import ConfigurationError, FileRejectedError, damaged
from neverseen.io.files import create_file, leftovers_of, locked_folder, read_secret, replace_file
from neverseen.labels import canonical_json

KEY_SIZE = 32
FORMAT = "neverseen-keys-1"
_SIZE_LIMIT = 2**20  # of a key file, before it is parsed
_PATIENCE = 10.0  # seconds to wait for whoever changes a key file


class Key:
    """A 32-byte secret. No representation, log line or error ever shows it.

    Examples
    --------
    >>> Key(bytes(32))
    Key(<secret>)
    """

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != KEY_SIZE:
            raise ConfigurationError(f"a key must be {KEY_SIZE} bytes; use Key.generate() for a new one")
        self._secret = secret

    @classmethod
    def generate(cls) -> Key:
        """Return a new key from the system's random source."""
        return cls(secrets.token_bytes(KEY_SIZE))

    def reveal(self) -> bytes:
        """Return the secret itself."""
        return self._secret

    def derive(self, purpose: bytes) -> Key:
        """Return another key for one purpose, named in at most 16 bytes. It reveals nothing about this one."""
        return Key(hashlib.blake2b(key=self._secret, digest_size=KEY_SIZE, person=purpose).digest())

    def check(self) -> str:
        """Return eight bytes in hex that identify this key and reveal nothing about it."""
        return hashlib.blake2b(key=self._secret, digest_size=8, person=b"neverseen:key-id").hexdigest()

    def __repr__(self) -> str:
        return "Key(<secret>)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash((Key, self._secret))


class Keyring:
    """All secrets of one model: its membership key and its receipt keys.

    Make one with `generate`, or together with its file with `create`. **If you lose it, you can no longer forget by
    receipt.** Anyone who has it can open every receipt.

    Parameters
    ----------
    receipts : sequence of Key
        Newest first; at least one.

    Examples
    --------
    >>> keys = Keyring.generate()
    >>> keys.rotate()
    >>> keys
    Keyring(<2 receipt keys>)
    """

    def __init__(self, membership: Key, receipts: list[Key] | tuple[Key, ...]) -> None:
        keys = (membership, *receipts)
        if len(keys) < 2 or not all(isinstance(key, Key) for key in keys):
            raise ConfigurationError("a keyring needs a membership key and at least one receipt key, each a Key")
        if len(set(keys)) != len(keys):
            raise ConfigurationError("the keys of a keyring must all be different")
        self.membership = membership
        self._receipts = tuple(receipts)
        self._path: Path | None = None
        self._stamp: tuple[int, ...] | None = None  # of the file when it was read
        self._seen = {key.check() for key in receipts}  # all receipt keys so far: a file whose newest is here is older
        self._rotating = threading.Lock()  # after the lock of the folder, for which others may have to wait

    @property
    def receipts(self) -> tuple[Key, ...]:
        """Receipt keys, newest first."""
        return self._receipts

    def current(self) -> tuple[Key, ...]:
        """Return the receipt keys for new receipts, newest first: if there is a file, the keys in it now.

        Another process may have rotated the keys and dropped the ones that this process knows. Nobody could open a
        receipt sealed under these. So this process then uses the keys in the file.
        """
        with self._rotating:
            if self._path is not None and self._stamp != (now := _stamp_of(self._path)):
                try:
                    receipts = self._there()
                except (OSError, FileRejectedError) as error:
                    system = getattr(error, "strerror", None)  # whose own words name the whole path
                    why = error if system is None else f"the key file {self._path.name} cannot be read: {system}"
                    raise ConfigurationError(f"no receipt is sealed: {why}") from error
                if not self._is_older(receipts):
                    self._receipts, self._stamp = receipts, now
                    self._seen.update(key.check() for key in receipts)
                else:
                    raise ConfigurationError(
                        f"the key file {self._path.name} is older than the keys in use: the newest key is not in it. "
                        "Receipts are sealed only under keys that are on disk. Put the newest file back"
                    )
            return self._receipts

    @contextmanager
    def unrotated(self) -> Iterator[tuple[Key, ...]]:
        """Yield `current`, and keep other processes from rotating the keys meanwhile.

        On systems and file systems without locks, other processes can still rotate them.
        """
        with ExitStack() as stack:
            if self._path is not None and os.name == "posix":
                try:
                    stack.enter_context(locked_folder(self._path.parent, shared_within=_PATIENCE))
                except TimeoutError:
                    raise ConfigurationError(
                        f"another process has the folder of the key file {self._path.name} locked, and no receipt is "
                        "sealed: see that it ends, and try again"
                    ) from None
                except OSError:  # no folder, as `current` will say, or no locks there
                    pass
            yield self.current()

    def _is_older(self, there: tuple[Key, ...]) -> bool:
        """Return whether the file is an older copy, perhaps rotated since.

        A rotation drops the oldest keys first. So if a newer key is gone and an older key is there, the older one came
        back.
        """
        held = [key in there for key in self._receipts]
        back = not held[0] and any(key.check() in self._seen for key in there)
        return back or held != sorted(held, reverse=True)

    def _there(self) -> tuple[Key, ...]:
        """Return the receipt keys in the file now."""
        path = self._path or Path()
        there = Keyring._read(path, path.name)  # clients of a service see the fault, but not the whole path
        if there.membership != self.membership:
            raise ConfigurationError(
                f"the key file {path.name} now holds the keys of another model: nothing was changed"
            )
        return there._receipts

    @classmethod
    def generate(cls, membership: Key | None = None) -> Keyring:
        """Return new keys, in memory only: `save` them before you hand out a receipt.

        Parameters
        ----------
        membership : Key, optional
            An existing membership key.
        """
        return cls(membership or Key.generate(), [Key.generate()])

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Keyring:
        """Make new keys and their file, of mode 600. An existing file is refused, not replaced."""
        place = Path(path).resolve()
        keys = cls.generate()
        try:
            create_file(place, [keys._as_bytes(keys._receipts)])
        except FileExistsError:
            raise FileExistsError(
                f"{place} already exists: open it with Keyring.load, or choose another name"
            ) from None
        keys._path = place
        return keys

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the keys to a file of mode 600, replaced whole or not at all; `rotate` keeps it up to date.

        An existing file is replaced only if it holds no other keys: lost keys cannot be made again.
        """
        place = Path(path).resolve()
        with _locked_folder(place), self._rotating:
            if place.exists():
                there = Keyring.load(place)
                if there.membership != self.membership or not set(there._receipts) <= set(self._receipts):
                    raise FileExistsError(f"{place} holds other keys, which would be lost: choose another name")
            replace_file(place, [self._as_bytes(self._receipts)])
            self._path = place

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Keyring:
        """Read the keys that `save` or `create` wrote. A file that others may read is refused."""
        place = Path(path).resolve()
        return cls._read(place, str(place))

    @classmethod
    def _read(cls, place: Path, name: str) -> Keyring:
        """Return the keys in a file; errors use this name for it."""
        if not place.is_file():
            raise FileNotFoundError(f"there is no key file {name}: make one with Keyring.create")
        refused = f"{name} is not a usable key file"
        try:
            raw = read_secret(place, _SIZE_LIMIT, name)
        except FileRejectedError as error:
            raise FileRejectedError(f"{refused}: {error}") from None
        with damaged(FileRejectedError(f"{refused}: it is damaged, or not a file of format {FORMAT}")):
            if len(raw) > _SIZE_LIMIT:
                raise ValueError
            fields = json.loads(raw)
            if fields["format"] != FORMAT:
                raise ValueError
            keys = cls(_key(fields["membership"]), [_key(digits) for digits in fields["receipts"]])
            if keys._as_bytes(keys._receipts) != raw:
                raise ValueError
        keys._path = place
        return keys

    def rotate(self, keep: int | None = None) -> None:
        """Seal receipts under a new key from now on. Old receipts remain valid.

        The file, if there is one, is rewritten first: no receipt is ever sealed under a key that is not on disk. If
        another process has added or dropped keys meanwhile, its changes are kept. A process that has loaded the keys
        adopts this rotation when it seals its next receipt. If one is learning, this waits until the change is made.

        Parameters
        ----------
        keep : int, optional
            Number of older receipt keys to keep; by default all. Receipts sealed under dropped keys are refused
            from now on.
        """
        if keep is not None and (not isinstance(keep, int) or keep < 0):
            raise ConfigurationError(f"keep must be a number of keys, 0 or more; got {keep!r}")
        with _locked_folder(self._path), self._rotating:
            older = self._receipts
            if self._path is not None:
                there = self._there()
                # If nobody has rotated since, or an older copy, a key that is not there was lost with that copy.
                unknown = [key for key in there if key.check() not in self._seen]
                older = there if there[0] in unknown and not self._is_older(there) else (*older, *unknown)
            receipts = (Key.generate(), *older[:keep])
            if self._path is not None:
                replace_file(self._path, [self._as_bytes(receipts)])
            self._receipts = receipts
            self._seen.update(key.check() for key in receipts)

    def __repr__(self) -> str:
        plural = "" if len(self._receipts) == 1 else "s"
        return f"Keyring(<{len(self._receipts)} receipt key{plural}>)"

    def _as_bytes(self, receipts: tuple[Key, ...]) -> bytes:
        fields = {
            "format": FORMAT,
            "membership": self.membership.reveal().hex(),
            "receipts": [key.reveal().hex() for key in receipts],
        }
        return canonical_json(fields).encode() + b"\n"


def _stamp_of(path: Path) -> tuple[int, ...]:
    """Return values that change whenever the key file is written."""
    try:
        about = path.stat()
    except OSError as error:
        raise ConfigurationError(
            f"the key file {path.name} is gone, or cannot be read ({error.strerror}). Receipts are sealed "
            "only under keys that are on disk: put it back"
        ) from error
    return about.st_ino, about.st_size, about.st_mtime_ns


def tidy(path: Path) -> None:
    """Remove partial key files of a process that died."""
    if leftovers_of(path):
        with _locked_folder(path):
            pass


@contextmanager
def _locked_folder(path: Path | None) -> Iterator[None]:
    """Keep other processes from changing the key file meanwhile; on systems without such locks, do nothing.

    Partial key files of a process that died are removed first: they hold keys, perhaps dropped ones.
    """
    if path is None or os.name != "posix" or not path.parent.is_dir():
        yield
        return
    with locked_folder(path.parent):
        for left in leftovers_of(path):
            with suppress(PermissionError, FileNotFoundError):  # somebody else's
                left.unlink()
        yield


def _key(digits: str) -> Key:
    return Key(bytes.fromhex(digits))
