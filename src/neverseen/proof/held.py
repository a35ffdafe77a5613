"""The held tree: one hash stands for all samples of a version, and proves which are held and which are not.

It is a binary tree over the commitments of the held samples. A subtree holds the commitments that begin with the same
bits, and one that holds a single commitment is a leaf, however high up it is. So the set alone gives the tree its
shape, whatever came or went before.

A proof is the path of one commitment: the hashes beside it, from the root down, and what is at its end. If that is the
commitment itself, it is held; if it is another one, or nothing, it is not. No root has proofs of both, not even one
that somebody made up.

Checking a proof needs no secret and nothing else from the publisher. A failed check raises `CertificateRejectedError`.
Section 10.3 of ``docs/specification.md`` defines every byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from neverseen.errors import CertificateRejectedError, InputError, damaged
from neverseen.labels import canonical_json

__all__ = ["Path", "Proof", "check_absence", "check_presence", "prove", "root"]

SIZE = 32
"""Bytes of a commitment, and of a hash."""
BITS = 8 * SIZE
"""The most hashes beside a path."""
FORMAT = "neverseen-proof-1"
"""Format of `Proof`."""
SIZE_LIMIT = 2**15
"""The most bytes of a proof; one with `BITS` hashes is half as long."""
_LEAF, _NODE = b"neverseen:leaf:1", b"neverseen:node:1"
_MAX_NUMBER = 2**53 - 1
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)

Subtree = tuple[int, bytes]
"""How many commitments a subtree holds, and its hash."""
EMPTY: Subtree = (0, bytes(SIZE))
"""A subtree that holds none."""


class Path(NamedTuple):
    """The path of a commitment through a held tree.

    Attributes
    ----------
    leaf : bytes or None
        The one commitment that the subtree at its end holds; None if it holds none.
    siblings : tuple of bytes
        The hashes of the subtrees beside the path, from the root down.
    """

    leaf: bytes | None
    siblings: tuple[bytes, ...]


def leaf(commitment: bytes) -> Subtree:
    """Return the subtree that holds one commitment."""
    return 1, hashlib.sha256(_LEAF + commitment).digest()


def joined(left: Subtree, right: Subtree) -> Subtree:
    """Return the subtree of two halves: those commitments whose next bit is 0, and those whose next bit is 1."""
    count = left[0] + right[0]
    if count < 2:
        return left if left[0] else right
    return count, hashlib.sha256(_NODE + left[1] + right[1]).digest()


def folded(parts: Sequence[Subtree]) -> Subtree:
    """Return the subtree of 2, 4, 8 ... parts: the commitments by their next bits, in order."""
    while len(parts) > 1:
        parts = [joined(parts[place], parts[place + 1]) for place in range(0, len(parts), 2)]
    return parts[0]


def subtree(ordered: Sequence[bytes], depth: int = 0, start: int = 0, stop: int | None = None) -> Subtree:
    """Return the subtree of sorted commitments that are all different and share their first `depth` bits."""
    stop = len(ordered) if stop is None else stop
    if stop - start < 2:
        return leaf(ordered[start]) if start < stop else EMPTY
    middle = _middle(ordered, depth, start, stop)
    return joined(subtree(ordered, depth + 1, start, middle), subtree(ordered, depth + 1, middle, stop))


def path(ordered: Sequence[bytes], commitment: bytes, depth: int = 0) -> Path:
    """Return the path of a commitment through the subtree of `ordered`."""
    start, stop, siblings = 0, len(ordered), []
    while stop - start > 1:
        middle = _middle(ordered, depth, start, stop)
        halves = (start, middle), (middle, stop)
        mine = bit(commitment, depth)
        depth += 1
        siblings.append(subtree(ordered, depth, *halves[1 - mine])[1])
        start, stop = halves[mine]
    return Path(ordered[start] if start < stop else None, tuple(siblings))


def bit(commitment: bytes, place: int) -> int:
    """Return a bit of a commitment; the first is the highest of its first byte."""
    return commitment[place >> 3] >> (7 - (place & 7)) & 1


def _middle(ordered: Sequence[bytes], depth: int, start: int, stop: int) -> int:
    """Return where, in a part of sorted commitments, those begin whose bit at this depth is 1."""
    return bisect_left(ordered, 1, start, stop, key=lambda each: bit(each, depth))


def root(commitments: Iterable[bytes]) -> bytes:
    """Return the root of the held tree, which depends on the set of commitments alone.

    Examples
    --------
    >>> from neverseen.proof.receipts import commitment
    >>> first, second, third = (commitment(receipt) for receipt in (b"NSR1a", b"NSR1b", b"NSR1c"))
    >>> root([first, second]) == root([second, first]) != root([first, second, third])
    True
    >>> check_presence(root([first, second]), first, prove([first, second], first))
    >>> check_absence(root([first, second]), third, prove([first, second], third))
    """
    return subtree(_ordered(commitments))[1]


def prove(commitments: Iterable[bytes], commitment: bytes) -> Path:
    """Return the proof that a commitment is among others, or that it is not."""
    return path(_ordered(commitments), _sized(commitment))


def _ordered(commitments: Iterable[bytes]) -> list[bytes]:
    ordered = sorted(map(_sized, commitments))
    if any(one == other for one, other in pairwise(ordered)):
        raise InputError("a commitment is given twice: no two receipts have the same")
    return ordered


def _sized(commitment: bytes) -> bytes:
    if type(commitment) is not bytes or len(commitment) != SIZE:
        raise InputError(f"a commitment must be {SIZE} bytes: the SHA-256 that `commitment` makes of a receipt")
    return commitment


def check_presence(root: bytes, commitment: bytes, path: Path) -> None:
    """Raise `CertificateRejectedError` unless a path proves that a commitment is in the tree of this root."""
    if path.leaf != _sized(commitment):
        raise _rejected("it does not show that the commitment is there")
    _require_root(root, commitment, path)


def check_absence(root: bytes, commitment: bytes, path: Path) -> None:
    """Raise `CertificateRejectedError` unless a path proves that a commitment is not in the tree of this root."""
    if path.leaf == _sized(commitment):
        raise _rejected("it does not show that the commitment is absent")
    _require_root(root, commitment, path)


def _require_root(root: bytes, commitment: bytes, path: Path) -> None:
    """Raise unless a path is the one of a commitment through a tree of this root."""
    depth = len(path.siblings)
    if depth > BITS:
        raise _rejected(f"it has {depth} hashes, and no path has more than {BITS}")
    hashes = path.siblings if path.leaf is None else (path.leaf, *path.siblings)
    if any(type(each) is not bytes or len(each) != SIZE for each in hashes):
        raise _rejected(f"a hash or a commitment in it is not {SIZE} bytes long")
    if path.leaf is not None and any(bit(path.leaf, place) != bit(commitment, place) for place in range(depth)):
        raise _rejected("the commitment at its end is not on the path")
    if depth and path.siblings[-1] == EMPTY[1]:
        raise _rejected("it goes on below a subtree that holds at most one commitment")
    _, found = EMPTY if path.leaf is None else leaf(path.leaf)
    for place in reversed(range(depth)):
        pair = path.siblings[place], found
        found = hashlib.sha256(_NODE + b"".join(pair if bit(commitment, place) else reversed(pair))).digest()
    if found != root:
        raise _rejected("it does not lead to this root: it was altered, or is of another version")


def _rejected(why: str) -> CertificateRejectedError:
    return CertificateRejectedError(f"a proof does not hold: {why}")


@dataclass(frozen=True)
class Proof:
    """A proof that a version holds the sample of a receipt, or that it does not. It is kept as one line of JSON.

    Attributes
    ----------
    number, digest : int, str
        Of the certificate that states the root.
    root, commitment : str
        In hex.
    leaf : str or None
        The commitment at the end of the path, in hex.
    siblings : tuple of str
        The hashes beside the path, from the root down, in hex.
    """

    number: int
    digest: str
    root: str
    commitment: str
    leaf: str | None
    siblings: tuple[str, ...]

    @classmethod
    def of(cls, number: int, digest: str, root: str, commitment: bytes, path: Path) -> Proof:
        """Return the proof of a path."""
        ends = None if path.leaf is None else path.leaf.hex()
        return cls(number, digest, root, commitment.hex(), ends, tuple(each.hex() for each in path.siblings))

    @property
    def held(self) -> bool:
        """Whether it proves that the sample is held."""
        return self.leaf == self.commitment

    def check(self) -> None:
        """Raise `CertificateRejectedError` unless the path leads to the root.

        The caller compares the commitment with that of the receipt, and the root with that of the certificate.
        """
        about = bytes.fromhex(self.root), bytes.fromhex(self.commitment)
        ends = None if self.leaf is None else bytes.fromhex(self.leaf)
        path = Path(ends, tuple(map(bytes.fromhex, self.siblings)))
        (check_presence if self.held else check_absence)(*about, path)

    def to_json(self) -> bytes:
        """Return the proof's one text: canonical JSON and a line feed."""
        fields = {
            "certificate": {"digest": self.digest, "number": self.number},
            "commitment": self.commitment,
            "format": FORMAT,
            "leaf": self.leaf,
            "root": self.root,
            "siblings": list(self.siblings),
        }
        return canonical_json(fields).encode() + b"\n"

    @classmethod
    def from_json(cls, raw: bytes, source: str = "the proof") -> Proof:
        """Return the proof in a line of JSON, or raise `CertificateRejectedError`.

        Its form is checked, strictly: each proof has exactly one text. `check` checks what it says.
        """
        if len(raw) > SIZE_LIMIT:
            raise CertificateRejectedError(f"{source} is too large: at most {SIZE_LIMIT} bytes are read")
        with damaged(
            CertificateRejectedError(f"{source} is not a proof of format {FORMAT}: it is damaged, or foreign")
        ):
            fields: dict[str, Any] = json.loads(raw.decode("ascii"))
            about = fields["certificate"]
            read = cls(
                about["number"],
                about["digest"],
                fields["root"],
                fields["commitment"],
                fields["leaf"],
                tuple(fields["siblings"]),
            )
            hashes = [read.digest, read.root, read.commitment, *read.siblings]
            hashes += [] if read.leaf is None else [read.leaf]
            if not all(isinstance(each, str) and _HEX.fullmatch(each) for each in hashes):
                raise ValueError
            if type(read.number) is not int or not 1 <= read.number <= _MAX_NUMBER or len(read.siblings) > BITS:
                raise ValueError
            if read.to_json() != raw:
                raise ValueError
        return read
