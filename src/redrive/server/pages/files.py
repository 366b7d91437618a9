"""The files that browsers load beside pages: named after their content, so that they are kept for ever."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from redrive.errors import NotFound
from redrive.frozen import dataclass

__all__ = ["File", "packed", "files_routes", "static"]

files_routes = APIRouter()

_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_KEPT = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is sent."""

    name: str
    media: str
    plain: bytes
    small: bytes


@cache
def _all() -> dict[str, File]:
    """By the names that pages use, and by those that browsers ask for."""
    found: dict[str, File] = {}
    for path in (Path(__file__).parent / "static").iterdir():
        plain = path.read_bytes()
        name = f"{path.stem}.{hashlib.sha256(plain).hexdigest()[:12]}{path.suffix}"
        file = File(name, _MEDIA[path.suffix], plain, gzip.compress(plain, 9, mtime=0))
        found |= {path.name: file, name: file}
    return found


def static(name: str) -> str:
    """The name to ask for; it changes whenever the content does."""
    return _all()[name].name


def packed(request: Request) -> bool:
    """True if the browser takes compressed answers."""
    return "gzip" in request.headers.get("accept-encoding", "")


@files_routes.get("/static/{name}")
async def send(request: Request, name: str) -> Response:
    """One file."""
    file = _all().get(name)
    if file is None:
        raise NotFound("there is no such file; load the page again")
    if packed(request):
        return Response(file.small, media_type=file.media, headers={**_KEPT, "Content-Encoding": "gzip"})
    return Response(file.plain, media_type=file.media, headers=_KEPT)
