"""Requests that are sent again: done once, answered each time.

A request with an idempotency key is known by a *tag*, a keyed digest of the API key's name and the idempotency key,
which the ledger keeps with the change, in one transaction. So a repetition is recognised also after a crash. One that
comes while the first is under way waits for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from neverseen.errors import FileRejectedError
from neverseen.files import create_file, read_secret
from neverseen.service.errors import Refusal

NAME = "secret"


class Repetitions:
    """Tells requests that are sent again, and lets them share one answer.

    Parameters
    ----------
    folder : Path
        The service's own folder. A secret is kept there: without it, tags tell nothing.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        if not path.exists():
            create_file(path, [secrets.token_hex(32).encode()])
        try:
            self._secret = bytes.fromhex(read_secret(path, 64).decode())
        except ValueError as error:
            raise FileRejectedError(f"{path} cannot be used: {error}") from None
        self._running: dict[bytes, tuple[bytes, asyncio.Future[Any]]] = {}

    def tag(self, client: str, key: str) -> bytes:
        """Return what stands for an idempotency key of a client."""
        return self._digest(b"neverseen:idem", client.encode() + b"\0" + key.encode())

    def body(self, action: str, *parts: bytes | bytearray | memoryview) -> bytes:
        """Return what stands for the content of a request, given in parts."""
        return self._digest(b"neverseen:body", action.encode() + b"\0", *parts)

    async def once(self, tag: bytes | None, body: bytes, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work, or wait for whoever does it under the same tag already.

        Work that is a future already, of what others do, is waited for as it is.
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
            if not failed:
                if first_body == body:
                    return result
                raise Refusal(
                    "idempotency_conflict",
                    "this idempotency key was used for another request: use a new key for each request",
                )
        task = asyncio.ensure_future(work())
        self._running[tag] = (body, task)
        task.add_done_callback(lambda done: self._finished(tag, done))
        return await asyncio.shield(task)  # it goes on if its sender hangs up: others may wait for it

    def _finished(self, tag: bytes, task: asyncio.Future[Any]) -> None:
        self._running.pop(tag, None)
        if not task.cancelled():
            task.exception()  # seen, whether anybody waits or not

    def _digest(self, person: bytes, *parts: bytes | bytearray | memoryview) -> bytes:
        hasher = hashlib.blake2b(key=self._secret, digest_size=32, person=person)
        for part in parts:
            hasher.update(part)
        return hasher.digest()
