"""The console's files, served from the package. Each is read once; no path from a request reaches the disk."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from neverseen.service.edge.bundling import bundle
from neverseen.service.errors import Refusal

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_START = "index.html"
_FIRST, _BUNDLE = "app.js", "bundle.js"
"""The module that imports all others, and the one script that the page asks for."""
_NUMBER = re.compile(r"[1-9][0-9]{0,15}", re.ASCII)
"""A certificate's number in a path of the console. It stays a text, since converting many digits takes long."""
_EMPTY = b"<!doctype html><title>neverseen</title><p>The service runs. Its console is not installed."


@dataclass(frozen=True)
class File:
    """A file of the console, plain and compressed."""

    content: bytes
    kind: str
    etag: str
    compressed: bytes

    @classmethod
    def of(cls, content: bytes, kind: str) -> File:
        """Return a file; it is compressed once."""
        return cls(content, kind, hashlib.sha256(content).hexdigest()[:32], gzip.compress(content, 9, mtime=0))

    def response(self, request: Request) -> Response:
        """Return the file, or the answer that it has not changed."""
        small = len(self.compressed) < len(self.content) and _takes_gzip(request.headers.get("accept-encoding", ""))
        etag = f'"{self.etag}-gzip"' if small else f'"{self.etag}"'  # of these bytes: a cache may hold both
        headers = {"Cache-Control": "no-cache", "ETag": etag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        headers["Content-Type"] = self.kind
        if small:
            headers["Content-Encoding"] = "gzip"
        return Response(self.compressed if small else self.content, headers=headers)


def _takes_gzip(accepted: str) -> bool:
    """Return whether an ``Accept-Encoding`` header accepts gzip."""
    for entry in accepted.lower().split(","):
        name, _, quality = entry.replace(" ", "").partition(";q=")
        if name == "gzip":
            return quality.strip("0.") != "" or quality == ""
    return False


def read_console() -> dict[str, File]:
    """Return the files of the console, by their paths within it."""
    found: dict[str, File] = {}

    def gather(folder: Traversable, start: str) -> None:
        for entry in folder.iterdir():
            kind = _TYPES.get(entry.name.rpartition(".")[2])
            if entry.is_dir() and not entry.name.startswith(("_", ".")):
                gather(entry, f"{start}{entry.name}/")
            elif kind is not None and entry.is_file():
                found[start + entry.name] = File.of(entry.read_bytes(), kind)

    place = resources.files("neverseen.service") / "console"
    if place.is_dir():
        gather(place, "")
    if _FIRST in found:
        modules = {name: file.content.decode() for name, file in found.items() if name.endswith(".js")}
        found[_BUNDLE] = File.of(bundle(modules, _FIRST).encode(), _TYPES["js"])
    found.setdefault(_START, File.of(_EMPTY, _TYPES["html"]))
    return found


def router() -> APIRouter:
    """Return the routes of the console."""
    routes = APIRouter(include_in_schema=False)
    files = read_console()

    async def start(request: Request) -> Response:
        return files[_START].response(request)

    async def certificate(request: Request) -> Response:
        if not _NUMBER.fullmatch(str(request.path_params["number"])):
            raise Refusal("not_found", "there is no such certificate")
        return files[_START].response(request)

    async def file(request: Request) -> Response:
        found = files.get(str(request.path_params["path"]))
        if found is None:
            raise Refusal("not_found", "there is no such file")
        return found.response(request)

    routes.get("/")(start)
    routes.get("/certificates/{number}")(certificate)
    routes.get("/console/{path:path}")(file)
    return routes
