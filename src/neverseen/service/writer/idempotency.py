"""Repeated requests: done once, answered each time.

A request with an idempotency key is known by a *tag*, a keyed digest of the API key's name and the idempotency key.
The ledger keeps the tag and digests of the request's body with the change, in one transaction. So the service
recognises a repetition even after a crash, and can tell it from another request with the same key. A repetition that
comes while the first request is running waits for it.

A seal clears everything with which a thief with all keys could test a guess. One digest of a body can stay, the
*lasting* one. It also covers the receipts that the request showed or was given, if each carries a random salt. Nobody
can guess a salt, and the salt is deleted with its sample. Without a lasting digest, a repetition cannot be told from
another request: both are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from neverseen.errors import FileRejectedError
from neverseen.holdings import LEARN
from neverseen.io.files import create_file, read_secret
from neverseen.ledger import LASTING, RequestRow
from neverseen.proof.receipts import is_salted
from neverseen.service.errors import Refusal

NAME = "secret"
_SIZE = 32  # bytes; the file has them in hex


class Repetitions:
    """Recognises repeated requests, and lets them share one answer.

    Parameters
    ----------
    folder : Path
        The service's own folder. It holds a secret, without which tags reveal nothing.
    tagged : bool
        Whether there are requests with tags. Then a missing secret is not made anew: no repetition could be recognised.
    """

    def __init__(self, folder: Path, tagged: bool = False) -> None:
        self._secret = _secret(folder / NAME, tagged)
        self._running: dict[bytes, tuple[bytes, asyncio.Future[Any]]] = {}

    def tag(self, client: str, key: str) -> bytes:
        """Return the tag of a client's idempotency key."""
        return self._digest(b"neverseen:idem", client.encode() + b"\0" + key.encode())

    def body(self, action: str, *parts: bytes | bytearray | memoryview) -> bytes:
        """Return the keyed digest of a request's content, given in parts."""
        return self._digest(b"neverseen:body", action.encode() + b"\0", *parts)

    async def once(self, tag: bytes | None, body: bytes, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work, or wait for the request that does it under the same tag.

        If the work is already a future, of another request, just wait for it.
        """
        if tag is None:
            return await work()
        while tag in self._running:
            first_body, first = self._running[tag]
            failed = False
            try:
                result = await asyncio.shield(first)
            except Refusal:
                failed = True
                if first_body == body:
                    raise
                # The call that made it may not have noted its end yet, and waiting for it would never end.
                self._finished(tag, first)
            if not failed:
                if first_body == body:
                    return result
                raise conflict(result.row.id)
        task = asyncio.ensure_future(work())
        self._running[tag] = (body, task)
        task.add_done_callback(lambda done: self._finished(tag, done))
        return await asyncio.shield(task)  # it goes on if its sender hangs up: others may wait for it

    def _finished(self, tag: bytes, task: asyncio.Future[Any]) -> None:
        if tag in self._running and self._running[tag][1] is task:
            del self._running[tag]
        if not task.cancelled():
            task.exception()  # seen, whether anybody waits or not

    def _digest(self, person: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
        hasher = hashlib.blake2b(key=self._secret, digest_size=32, person=person)
        for part in parts:
            hasher.update(part)
        return hasher.digest()


def _secret(path: Path, tagged: bool) -> bytes:
    """Return the secret in a file, which is made if there is none and no request has a tag."""
    if not tagged and not os.path.lexists(path):
        create_file(path, [secrets.token_hex(_SIZE).encode()])
    try:
        found = bytes.fromhex(read_secret(path, 2 * _SIZE).decode("ascii")) if path.is_file() else b""
    except FileRejectedError as error:
        raise FileRejectedError(f"{path} cannot be used: {error}") from None
    except ValueError:
        found = b""
    if len(found) != _SIZE:
        raise FileRejectedError(
            f"{path} is missing or damaged, and without it a request that is sent again would happen twice: put it "
            "back from a copy of the folder. If there is no copy, write a new secret there (openssl rand -hex 32, mode "
            "600). Then no request of before is recognised"
        )
    return found


def to_keep(body: bytes, receipts: Sequence[bytes]) -> bytes:
    """Return the digests of a body that the ledger keeps: the lasting one, if there is one, and the body's own.

    `body` comes from `Repetitions.body`. `receipts` are those that the request shows or is given.
    """
    return _lasting(body, receipts) + body


def told_apart(row: RequestRow, body: bytes, receipts: Sequence[bytes] | None) -> Refusal | None:
    """Return the refusal of a request with a known tag, unless it is a repetition that can be answered.

    A learn is answered with its receipts, made again from the held samples. These samples may have been forgotten
    since, and learned again by somebody else. So the receipts must be the original ones. `row` is the ledger's row of
    the tag, and `body` that of the new request. `receipts` are as for `to_keep`; None if they are no longer known.
    """
    kept = row.body or b""
    lasting, own = (kept[:LASTING], kept[LASTING:]) if len(kept) >= LASTING else (b"", kept)
    learned = row.kind == LEARN
    if own and own != body:
        return conflict(row.id)
    same = receipts is not None and lasting == _lasting(body, receipts)
    if learned and not lasting and any(is_salted(each) for each in receipts or ()):
        same = False  # it was given receipts without salts
    if own:
        return _gone(row.id) if learned and not same else None
    if not lasting or receipts is None or (learned and not same):  # or another request's, of the same samples
        return Refusal(
            "idempotency_expired",
            f"this idempotency key was used for {row.id}, and the body of that request is no longer known: nothing was "
            f"done. Ask GET /v1/requests/{row.id} what became of it, and use a new key for a new request",
            request=row.id,
        )
    return None if same else conflict(row.id)


def conflict(request: str | None = None) -> Refusal:
    """Return the refusal of a request that uses the idempotency key of another one."""
    words = "this idempotency key was used for another request: use a new key for each request"
    return Refusal("idempotency_conflict", words, request=request)


def _gone(request: str) -> Refusal:
    words = (
        f"this request was carried out before, as {request}, and its receipts cannot be made again: its samples were "
        "forgotten since, or their receipt key was dropped. Nothing was done"
    )
    return Refusal("receipts_gone", words, request=request)


def _lasting(body: bytes, receipts: Sequence[bytes]) -> bytes:
    """Return a digest of `LASTING` bytes that a seal need not clear; empty if there can be none."""
    if not receipts or not all(is_salted(each) for each in receipts):
        return b""
    joined = b"".join(len(part).to_bytes(8) + part for part in (body, *receipts))
    return b"\1" + hashlib.blake2b(joined, digest_size=LASTING - 1, person=b"neverseen:lasts").digest()
