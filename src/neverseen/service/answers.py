"""Answers as JSON: long ones in parts, outside the event loop.

Python runs one thread at a time, so a call that writes a long list delays all other threads. So a long list is written
in parts, and others have their turn in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from starlette.responses import Response

_MANY = 500  # values that take a fraction of a millisecond
_ONE = 2000  # values that are written in one go, where a list has few but large entries
_LETTERS = 20_000  # of a part, about
_encode = json.JSONEncoder(separators=(",", ":")).encode


def answer(content: Any, status: int = 200) -> Response:
    """Return a JSON answer."""
    return _Json(content if isinstance(content, bytes) else _encode(content).encode(), status)


class _Json(Response):
    """An answer with two headers, which are not looked for first."""

    def __init__(self, body: bytes, status: int) -> None:
        self.status_code, self.background, self.body = status, None, body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


@lru_cache(maxsize=4)
def labels_of(classes: tuple[str, ...]) -> list[Any]:
    """Return classes as JSON values, given their canonical texts."""
    return [json.loads(name) for name in classes]


def is_long(content: Any) -> bool:
    """Return whether JSON values take long to write, judging a list by its first item."""
    return _count(content) > _MANY


def _count(content: Any) -> int:
    if isinstance(content, list):
        return len(content) * max(1, _count(content[0])) if content else 0
    if isinstance(content, dict):
        return len(content) + sum(_count(value) for value in content.values() if isinstance(value, (dict, list)))
    return 0


def written(content: Any) -> bytes:
    """Return the bytes that `answer` would write for JSON values, written in parts.

    Examples
    --------
    >>> written({"version": 1, "predictions": [{"label": "cat"}] * 2, "more": {"none": []}})
    b'{"version":1,"predictions":[{"label":"cat"},{"label":"cat"}],"more":{"none":[]}}'
    """
    return b"".join(part.encode() for part in _parts(content)) if is_long(content) else _encode(content).encode()


def _parts(content: Any) -> Iterator[str]:
    comma = ""
    if isinstance(content, dict):
        yield "{"
        for name, value in content.items():
            yield f"{comma}{_encode(name)}:"
            yield from _parts(value)
            comma = ","
        yield "}"
    elif isinstance(content, list) and content:
        yield "["
        if _count(content[0]) > _ONE:
            for each in content:
                yield comma
                yield from _parts(each)
                comma = ","
        else:
            step = max(1, _LETTERS // len(_encode(content[0])))
            for first in range(0, len(content), step):
                yield comma + _encode(content[first : first + step])[1:-1]
                comma = ","
        yield "]"
    else:
        yield _encode(content)
