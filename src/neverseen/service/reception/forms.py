"""Forms (``multipart/form-data``), split without a Python loop over bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header

from neverseen.service.errors import Refusal

_AS_IT_IS = (b"7bit", b"8bit", b"binary")
_HEAD = 2**13  # bytes of the lines before a part's content
_TEXT = 2**22  # bytes of a part that is no file


@dataclass(frozen=True)
class Form:
    """The fields of a form: the place of each file in the body, and texts."""

    files: dict[str, list[tuple[int, int]]]
    texts: dict[str, bytes]


def form_of(content: bytes, content_type: str, most: int, files: tuple[str, ...], texts: tuple[str, ...]) -> Form:
    """Return the fields of a form with a limited number of files. Unknown fields are refused.

    So are texts that are given twice. The content type is the header, with the boundary.
    """
    found = Form({}, {})
    for count, (name, is_file, start, end) in enumerate(_parts(content, _boundary(content_type)), 1):
        if count > most + len(texts):
            raise Refusal("invalid_request", f"the form has more than {most} files: send at most {most} at a time")
        if is_file and name in files:
            found.files.setdefault(name, []).append((start, end))
        elif not is_file and name in texts:
            if name in found.texts:
                raise Refusal("invalid_request", f"the field {name} appears twice")
            if end - start > _TEXT:
                raise Refusal("invalid_request", f"the field {name} has more than {_TEXT} bytes")
            found.texts[name] = bytes(content[start:end])
        else:
            known = ", ".join([*(f"{each} (a file)" for each in files), *texts])
            raise Refusal("invalid_request", f"the form has an unknown field; known: {known}")
    return found


def _boundary(content_type: str) -> bytes:
    try:
        boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    except (UnicodeError, ValueError):
        boundary = b""
    if not 1 <= len(boundary) <= 70:
        raise _unreadable("its content type has no boundary of 1 to 70 characters")
    return boundary


def _parts(content: bytes, boundary: bytes) -> Iterator[tuple[str, bool, int, int]]:
    """Yield the name of each part, whether it is a file, and the start and end of its content."""
    line = b"--" + boundary
    between = b"\r\n" + line
    place = 0 if content.startswith(line) else content.find(between) + 2
    if place == 1:
        raise _unreadable("its boundary is not in it")
    place += len(line)
    while content[place : place + 2] != b"--":
        head_end = content.find(b"\r\n\r\n", place, place + _HEAD)
        end = content.find(between, head_end + 4)
        if content[place : place + 2] != b"\r\n" or head_end < 0 or end < 0:
            raise _unreadable("a part has no end, or too long a head")
        name, is_file = _described(content[place + 2 : head_end])
        yield name, is_file, head_end + 4, end
        place = end + len(between)


def _described(head: bytes) -> tuple[str, bool]:
    lines = [line.partition(b":")[::2] for line in bytes(head).lower().split(b"\r\n")]
    if any(kind.strip() == b"content-transfer-encoding" and value.strip() not in _AS_IT_IS for kind, value in lines):
        raise _unreadable("a part has a Content-Transfer-Encoding: send it as it is")
    for line in bytes(head).split(b"\r\n"):
        kind, _, value = line.partition(b":")
        if kind.strip().lower() == b"content-disposition":
            try:
                options = parse_options_header(value.strip().decode("latin-1"))[1]
                return options[b"name"].decode("utf-8", "replace"), b"filename" in options
            except (KeyError, ValueError):
                break
    raise _unreadable("a part has no name")


def _unreadable(why: str) -> Refusal:
    return Refusal("invalid_request", f"the form cannot be read: {why}")
