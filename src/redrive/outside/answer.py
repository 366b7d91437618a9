"""Answers: what a server said, read with suspicion.

HTTP/1.1 and 1.0, bodies by length, in chunks, or up to the end of the connection. Whatever could be read in
two ways is refused (two lengths, folded headers, unknown codings): the rest would be read wrongly, too.
"""

from __future__ import annotations

import json
import re
from dataclasses import field
from typing import Any

from redrive.errors import ConfigurationError, PayloadError, RedriveError
from redrive.frozen import dataclass
from redrive.outside.wire import Wire

__all__ = ["BadStatus", "HttpResponse", "Redirected", "read_answer"]

_STATUS = re.compile(rb"HTTP/1\.(?P<minor>[01]) (?P<code>[1-5]\d\d)(?: (?P<reason>.*))?")
_HEADER = re.compile(rb"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[^\x00\r\n]*?)[ \t]*")
_CHUNK = re.compile(rb"(?P<size>[0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_UNPRINTABLE = re.compile(r"[^ -~\xa0-\uffff]+")
_LONGEST_LINE = 32 << 10
_LARGEST_HEAD = 64 << 10
_MOST_HEADERS = 200
_MOST_INTERIM = 10
_EXCERPT = 200


class BadStatus(RedriveError):
    """The server answered with something else than success. `status_code` decides about a retry."""

    def __init__(self, message: str, *, status_code: int, headers: dict[str, str]) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.headers = headers


class Redirected(BadStatus, ConfigurationError):
    """The server sent us elsewhere, where we do not go: the address has to be corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A whole answer. Names of headers are in small letters; a body beyond the limit is cut, and says so."""

    status_code: int
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    truncated: bool = False

    def raise_for_status(self, what: str = "the server", *, quoted: bool = True) -> HttpResponse:
        """The answer itself if it is a success; else an error that tells `what` answered and how.

        `quoted`: the error repeats some of what the server wrote.
        """
        if 200 <= self.status_code < 300:
            return self
        said = f"{what} answered {self.status_code} {self.reason if quoted else ''}".rstrip()
        if self.status_code < 400:
            place = f", to {_shown(self.headers.get('location', '')) or 'nowhere'}" if quoted else ""
            message = f"{said}{place}. Redirects are not followed; give the final address."
            raise Redirected(message, status_code=self.status_code, headers=self.headers)
        excerpt = _shown(self.body[: 4 * _EXCERPT].decode("utf-8", "replace")) if quoted else ""
        message = f"{said}: {excerpt}" if excerpt else said
        raise BadStatus(message, status_code=self.status_code, headers=self.headers)

    def json(self) -> Any:
        """The body as JSON."""
        try:
            return json.loads(b"" if self.truncated else self.body)
        except (ValueError, RecursionError):
            why = "was cut, being too large" if self.truncated else "is not JSON"
            raise PayloadError(f"the body of the answer {why}") from None


async def read_answer(wire: Wire, method: str, most: int) -> tuple[HttpResponse, bool]:
    """The answer to a request with this method, and whether the connection may be used again."""
    for _ in range(_MOST_INTERIM):
        minor, status, reason = await _status_line(wire)
        headers = await _headers(wire)
        if status == 101:
            raise ConnectionError("the server wants to speak another protocol")
        if status >= 200:
            break
    else:
        raise ConnectionError("the server sent interim answers without end")
    body, whole, ends = await _body(wire, method, status, headers, most)
    closing = "close" in re.split(r"[ \t]*,[ \t]*", headers.get("connection", "").lower())
    answer = HttpResponse(status_code=status, reason=reason, headers=headers, body=body, truncated=not whole)
    return answer, whole and ends and minor == b"1" and not closing


async def _status_line(wire: Wire) -> tuple[bytes, int, str]:
    # The first five bytes alone, so that something else than HTTP is not waited for to say more.
    start = await wire.exactly(5)
    found = _STATUS.fullmatch(start + await wire.line(_LONGEST_LINE)) if start == b"HTTP/" else None
    if found is None:
        raise ConnectionError("the server did not answer in HTTP/1.1")
    return found["minor"], int(found["code"]), _shown((found["reason"] or b"").decode("latin-1"))


async def _headers(wire: Wire) -> dict[str, str]:
    headers: dict[str, str] = {}
    left = _LARGEST_HEAD
    for _ in range(_MOST_HEADERS):
        line = await wire.line(min(left, _LONGEST_LINE))
        if not line:
            return headers
        left -= len(line)
        found = _HEADER.fullmatch(line)
        if found is None:
            raise ConnectionError("the server sent a header that cannot be read")
        name, value = found["name"].decode().lower(), found["value"].decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    raise ConnectionError("the head of the answer is too large")


async def _body(
    wire: Wire, method: str, status: int, headers: dict[str, str], most: int
) -> tuple[bytes, bool, bool]:
    """The body up to `most` bytes, whether that is all of it, and whether its end was told beforehand."""
    if method == "HEAD" or status in (204, 304):
        return b"", True, True
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None:
        if coding.lower() != "chunked":
            raise ConnectionError("the body of the answer is in a coding that was not asked for")
        # Both a coding and a length: the coding counts, and nothing after it is to be trusted.
        return *await _chunks(wire, most), length is None
    if length is None:
        return *await _rest(wire, most), False
    if not _LENGTH.fullmatch(length):
        raise ConnectionError("the length of the answer cannot be read")
    return await wire.exactly(min(int(length), most)), int(length) <= most, True


async def _chunks(wire: Wire, most: int) -> tuple[bytes, bool]:
    body = bytearray()
    while size := await _chunk_size(wire):
        room = most - len(body)
        body += await wire.exactly(min(size, room))
        if size > room:
            return bytes(body), False
        if await wire.exactly(2) != b"\r\n":
            raise ConnectionError("a chunk of the answer does not end where it should")
    await _headers(wire)  # what may follow the last chunk, of no use to us
    return bytes(body), True


async def _chunk_size(wire: Wire) -> int:
    found = _CHUNK.fullmatch(await wire.line(_LONGEST_LINE))
    if found is None:
        raise ConnectionError("the size of a chunk cannot be read")
    return int(found["size"], 16)


async def _rest(wire: Wire, most: int) -> tuple[bytes, bool]:
    body = bytearray()
    while piece := await wire.some(most + 1 - len(body)):
        body += piece
        if len(body) > most:
            return bytes(body[:most]), False
    return bytes(body), True


def _shown(text: str) -> str:
    """A little of what a stranger wrote, on one line."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())[:_EXCERPT]
