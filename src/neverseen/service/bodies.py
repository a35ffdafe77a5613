"""Reading what a client sends, and no more of it than is allowed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from python_multipart.exceptions import MultipartParseError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from neverseen.service.errors import Refusal
from neverseen.service.schemas import Body
from neverseen.service.settings import Settings

Model = TypeVar("Model", bound=Body)
JSON, FORM = "application/json", "multipart/form-data"
_DRAIN = 2**20  # bytes that are still read of a body that is refused, so that its sender sees the answer
_DRAIN_SECONDS = 1.0
_PUBLIC_SHARE = 8


@dataclass(frozen=True)
class Form:
    """The fields of a form: files with their content, and texts."""

    files: dict[str, list[bytes]]
    texts: dict[str, str]


class Bodies:
    """Reads bodies within the limits of one, and of all that are held at a time.

    Parameters
    ----------
    settings : Settings
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held = {False: 0, True: 0}
        self._deadlines = Deadlines()

    @asynccontextmanager
    async def reading(self, request: Request, public: bool = False) -> AsyncIterator[bytes]:
        """Hand out the body of a request; it counts as held until this is left.

        Those of requests without a key are smaller, and count for themselves: they do not crowd out the others.
        """
        share = _PUBLIC_SHARE if public else 1
        most = self._settings.max_body // share
        length = request.headers.get("content-length", "0")
        parts: list[bytes] = []
        size = 0
        try:
            if not (length.isascii() and length.isdigit()) or int(length[:20]) > most:
                raise _too_large(most)
            with self._deadlines.within(self._settings.body_timeout):
                async for part in request.stream():
                    size += len(part)
                    self._held[public] += len(part)
                    if size > most:
                        raise _too_large(most)
                    if self._held[public] > self._settings.max_waiting_bytes // share:
                        raise Refusal("busy", "too much is being sent at a time: try again in a moment", wait=1)
                    parts.append(part)
            yield parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise Refusal("timeout", "the body did not come in time: send it again") from None
        except ClientDisconnect:
            raise Refusal("timeout", "the connection was closed before the body had come") from None
        except Refusal as refusal:
            if refusal.code in ("too_large", "busy"):
                await _drain(request)
            raise
        finally:
            self._held[public] -= size


class Deadlines:
    """Time limits for many at once, cheaply: one timer looks after all of them, and is late by up to a second."""

    def __init__(self) -> None:
        self._until: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._looking = False

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Raise `TimeoutError` in the task that is inside for longer than this."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("this is for tasks")
        loop = asyncio.get_running_loop()
        self._until[task] = loop.time() + seconds
        if not self._looking:
            self._looking = True
            loop.call_later(min(1.0, seconds), self._look, loop)
        try:
            yield
        except asyncio.CancelledError:
            if task in self._late and task.uncancel() <= 0:
                raise TimeoutError from None
            raise
        finally:
            del self._until[task]
            self._late.discard(task)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task, until in self._until.items():
            if until <= now and task not in self._late:
                self._late.add(task)
                task.cancel()
        self._looking = bool(self._until)
        if self._looking:
            nearest = min(self._until.values())
            loop.call_later(min(1.0, max(0.01, nearest - now)), self._look, loop)


async def _drain(request: Request) -> None:
    """Read a little more, and let it go."""
    size = 0
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while size < _DRAIN:
                message = await request.receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
    except TimeoutError:
        return


def content_type(request: Request, *allowed: str) -> str:
    """Return which of the allowed content types a request has, or refuse it."""
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in allowed:
        raise Refusal("wrong_content_type", f"send the body as {' or '.join(allowed)}; got {found[:60] or 'nothing'!r}")
    return found


def parsed(model: type[Model], body: bytes) -> Model:
    """Return a JSON body, checked."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _refused(error) from None
    except RecursionError:
        raise Refusal("invalid_json", "the body is nested too deeply") from None


def parsed_list(adapter: TypeAdapter[Any], words: str, field: str) -> Any:
    """Return a list that is a field of a form, as JSON, checked."""
    try:
        return adapter.validate_json(words)
    except ValidationError as error:
        refusal = _refused(error)
        raise Refusal("invalid_request", f"{field}: {refusal.message}") from None


def _refused(error: ValidationError) -> Refusal:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return Refusal("invalid_json", f"the body is not JSON that can be read: {first['msg'][:200]}")
    place = first["loc"]
    row = next((part for part in place if isinstance(part, int)), None)
    where = ".".join(str(part) for part in place if str(part).isidentifier() or isinstance(part, int))[:200]
    words = first["msg"].removeprefix("Value error, ")
    return Refusal("invalid_request", f"{where}: {words}" if where else words, row=row)


async def form(
    request: Request, body: bytes, settings: Settings, files: tuple[str, ...], texts: tuple[str, ...]
) -> Form:
    """Return the fields of a multipart body. A field that is none of these, or a text given twice, is refused."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    most = settings.max_batch
    parser = MultiPartParser(request.headers, stream(), max_files=most, max_fields=len(texts), max_part_size=2**22)
    parser.spool_max_size = settings.max_body + 1  # in memory, where the body is already; never on disk
    try:
        fields = await parser.parse()
    except (MultiPartException, MultipartParseError, KeyError, ValueError, LookupError) as error:
        words = getattr(error, "message", str(error))
        raise Refusal("invalid_request", f"the form cannot be read: {str(words)[:200]}") from None
    try:
        return await _sorted(fields, files, texts)
    finally:
        await fields.close()


async def _sorted(fields: FormData, files: tuple[str, ...], texts: tuple[str, ...]) -> Form:
    found_files: dict[str, list[bytes]] = {}
    found_texts: dict[str, str] = {}
    for name, value in fields.multi_items():
        if isinstance(value, UploadFile) and name in files:
            found_files.setdefault(name, []).append(await value.read())
        elif isinstance(value, str) and name in texts:
            if name in found_texts:
                raise Refusal("invalid_request", f"the field {name} is there twice")
            found_texts[name] = value
        else:
            known = ", ".join([*(f"{each} (a file)" for each in files), *texts])
            raise Refusal("invalid_request", f"the form has a field that is none of {known}")
    return Form(found_files, found_texts)


def receipts_in(content: bytes) -> list[str]:
    """Return the receipts, in base64, of a file as ``neverseen learn`` writes it, or of one receipt's bytes."""
    if not content.lstrip().startswith(b"{"):
        return [base64.b64encode(content).decode()]
    found = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            token = json.loads(line)["receipt"]
        except (ValueError, TypeError, KeyError, RecursionError):
            token = None
        if not isinstance(token, str):
            raise Refusal("invalid_request", f"line {number} of the file is not a receipt as learn writes it")
        found.append(token)
    return found


def _too_large(most: int) -> Refusal:
    return Refusal("too_large", f"the body is larger than {most} bytes: send it in parts")
