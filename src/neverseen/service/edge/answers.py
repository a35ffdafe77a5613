"""Answers as JSON: long ones in parts, beside the event loop.

Python runs one thread at a time, and a call that writes a long list holds up all others, whichever thread makes it.
So a long list is written in parts, between which others have their turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

_MANY = 500  # values that take a fraction of a millisecond
_ONE = 2000  # values that are written in one go, where a list has few but large entries
_LETTERS = 20_000  # of a part, about
_encode = json.JSONEncoder(separators=(",", ":")).encode


def answer(content: Any, status: int = 200) -> Response:
    """Return a JSON answer."""
    written = content if isinstance(content, bytes) else _encode(content)
    return Response(written, status, media_type="application/json")


def is_long(content: Any) -> bool:
    """Return whether it takes long to write JSON values; those of a list are taken to be like the first."""
    return _count(content) > _MANY


def _count(content: Any) -> int:
    if isinstance(content, list):
        return len(content) * max(1, _count(content[0])) if content else 0
    if isinstance(content, dict):
        return len(content) + sum(_count(value) for value in content.values() if isinstance(value, (dict, list)))
    return 0


def written(content: Any) -> bytes:
    """Return JSON values as bytes, as `answer` writes them, in parts.

    Examples
    --------
    >>> written({"version": 1, "predictions": [{"label": "cat"}] * 2, "more": {"none": []}})
    b'{"version":1,"predictions":[{"label":"cat"},{"label":"cat"}],"more":{"none":[]}}'
    """
    return b"".join(part.encode() for part in _parts(content))


def _parts(content: Any) -> Iterator[str]:
    mark = ""
    if isinstance(content, dict):
        yield "{"
        for name, value in content.items():
            yield f"{mark}{_encode(name)}:"
            yield from _parts(value)
            mark = ","
        yield "}"
    elif isinstance(content, list) and content:
        yield "["
        if _count(content[0]) > _ONE:
            for each in content:
                yield mark
                yield from _parts(each)
                mark = ","
        else:
            step = max(1, _LETTERS // len(_encode(content[0])))
            for first in range(0, len(content), step):
                yield mark + _encode(content[first : first + step])[1:-1]
                mark = ","
        yield "]"
    else:
        yield _encode(content)
