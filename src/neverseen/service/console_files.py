"""The console's files, served from the package. Each is read once; no path that comes from outside touches the disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from neverseen.service.errors import Refusal

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
}
_START = "index.html"
_EMPTY = b"<!doctype html><title>neverseen</title><p>The service runs. Its console is not installed."


@dataclass(frozen=True)
class File:
    """A file of the console."""

    content: bytes
    kind: str
    etag: str

    def response(self, request: Request) -> Response:
        """Return the file, or say that it has not changed."""
        headers = {"Cache-Control": "no-cache", "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers | {"Content-Type": self.kind})


def read_console() -> dict[str, File]:
    """Return the files of the console, by their paths within it."""
    found: dict[str, File] = {}

    def gather(folder: Traversable, start: str) -> None:
        for entry in folder.iterdir():
            kind = _TYPES.get(entry.name.rpartition(".")[2])
            if entry.is_dir() and not entry.name.startswith(("_", ".")):
                gather(entry, f"{start}{entry.name}/")
            elif kind is not None and entry.is_file():
                content = entry.read_bytes()
                found[start + entry.name] = File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    place = resources.files("neverseen.service") / "console"
    if place.is_dir():
        gather(place, "")
    found.setdefault(_START, File(_EMPTY, _TYPES["html"], '"none"'))
    return found


def router() -> APIRouter:
    """Return the routes of the console."""
    routes = APIRouter(include_in_schema=False)
    files = read_console()

    async def start(request: Request) -> Response:
        return files[_START].response(request)

    async def file(request: Request) -> Response:
        found = files.get(str(request.path_params["path"]))
        if found is None:
            raise Refusal("not_found", "there is no such file")
        return found.response(request)

    routes.get("/")(start)
    routes.get("/certificates/{number:int}")(start)
    routes.get("/console/{path:path}")(file)
    return routes
