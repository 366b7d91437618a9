"""Request bodies: bytes held in memory, limits of JSON, and parsing.

A body is measured before it is parsed. Threads of this module measure and parse a body of more than
`INLINE_BYTES`, so that the event loop handles other requests meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from fastapi import Request

from redrive.reasons import Reason, ReasonCode
from redrive.server.problem_responses import ProblemError

INLINE_BYTES = 16 * 1024
"""Bytes up to which a body is handled in the event loop: that takes less work than passing it to a thread."""

_CHUNK = 64 * 1024
_threads = ThreadPoolExecutor(2, thread_name_prefix="redrive-body")
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_NON_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

T = TypeVar("T")


class JsonLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Upper limits of one JSON text: nesting, keys, objects and arrays, values, digits of a number."""

    depth: int
    keys: int
    containers: int
    values: int
    digits: int = 512


async def run_off_loop(size: int, call: Callable[..., T], *arguments: Any) -> T:
    """Return `call(*arguments)`, run in a thread if it handles more than `INLINE_BYTES`."""
    if size <= INLINE_BYTES:
        return call(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_threads, call, *arguments)


COMPRESS_FROM = 4 << 10
"""Bytes of a body that is worth compressing."""


def inflate_body(body: bytes, most: int) -> bytes:
    """Return a body that was compressed with gzip. Inflating stops at `most` bytes, and the body is refused."""
    inflater, size = zlib.decompressobj(wbits=31), 0
    parts: list[bytes] = []
    try:
        while not inflater.eof:
            part = inflater.decompress(inflater.unconsumed_tail if parts else body, _CHUNK)
            if not part and not inflater.eof:
                raise zlib.error("the body has no end")
            size += len(part)
            if size > most:
                raise ProblemError(413, Reason(ReasonCode.BODY_TOO_LARGE, most=most))
            parts.append(part)
    except zlib.error:
        raise ProblemError(400, Reason(ReasonCode.BODY_NOT_GZIP)) from None
    return b"".join(parts)


class BytesInFlight:
    """Counts the bytes of request bodies in memory, in total and for each sender."""

    def __init__(self, total: int, each: int) -> None:
        self._total = total
        self._each = each
        self._held: Counter[str] = Counter()
        self._sum = 0

    @contextmanager
    def reserve(self, sender: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes of one body or refuses them. The block's end releases them."""
        mine = 0

        def add(size: int) -> None:
            nonlocal mine
            if self._held[sender] + size > self._each:
                reason = Reason(ReasonCode.BODIES_TOO_LARGE, limit=self._each)
                raise ProblemError(429, reason, headers={"Retry-After": "1"})
            if self._sum + size > self._total:
                reason = Reason(ReasonCode.BODIES_TOO_LARGE, limit=None)
                busy = {"code": "busy", "title": "The server is busy"}
                raise ProblemError(503, reason, **busy, headers={"Retry-After": "1"})
            mine += size
            self._sum += size
            self._held[sender] += size

        try:
            yield add
        finally:
            self._sum -= mine
            self._held[sender] -= mine
            if not self._held[sender]:
                del self._held[sender]


def check_encoding(charset: str | None, body: bytes) -> None:
    """Refuse JSON that is not UTF-8, because `find_json_excess` reads only UTF-8."""
    if charset is not None and charset.strip().strip('"').lower() not in ("utf-8", "utf8"):
        raise ProblemError(415, Reason(ReasonCode.BODY_NOT_UTF8))
    if body.startswith(_BOMS) or b"\0" in body[:4]:
        raise ProblemError(400, Reason(ReasonCode.BODY_NOT_UTF8))


def find_json_excess(body: bytes, most: JsonLimits) -> Reason | None:
    """Return the limit of `most` that a JSON text exceeds, None if there is none, without parsing the text.

    The text is read in chunks: a thread that measures a large body lets other threads run in between.
    """
    depth = keys = containers = commas = start = 0
    in_text = False
    tail = b""  # the end of the last chunk outside strings: a number may continue in the next chunk
    long_number = re.compile(rb"[0-9]{%d}" % (most.digits + 1))
    while start < len(body):
        chunk = body[start : start + _CHUNK]
        # An escape that is cut in two would hide the end of a string: its backslash starts the next chunk.
        odd = (len(chunk) - len(chunk.rstrip(b"\\"))) % 2
        if odd and start + _CHUNK < len(body):
            chunk = chunk[:-1]
        start += len(chunk)
        pieces = _ESCAPE.sub(b"", chunk).split(b'"')
        bare = b"".join(pieces[in_text::2])
        in_text ^= len(pieces) % 2 == 0
        keys += bare.count(b":")
        commas += bare.count(b",")
        brackets = bare.translate(None, _NON_BRACKETS)
        containers += brackets.count(b"[") + brackets.count(b"{")
        # Reading and writing a number takes time that grows with the square of its digits.
        if long_number.search(tail + bare):
            return Reason(ReasonCode.JSON_TOO_MANY_DIGITS, most=most.digits)
        tail = (tail + bare)[-most.digits :]
        if keys > most.keys:
            return Reason(ReasonCode.JSON_TOO_MANY_KEYS, most=most.keys)
        if containers > most.containers:
            return Reason(ReasonCode.JSON_TOO_MANY_CONTAINERS, most=most.containers)
        if commas + containers > most.values:
            return Reason(ReasonCode.JSON_TOO_MANY_VALUES, most=most.values)
        for bracket in brackets:
            depth += 1 if bracket in b"[{" else -1
            if depth > most.depth:
                return Reason(ReasonCode.NESTED_TOO_DEEP, most=most.depth)
    return None


class JsonRequest(Request):
    """A request whose JSON a thread parses if it is large."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await run_off_loop(len(body), parse_json, body)
        return self._json


def parse_json(body: bytes) -> Any:
    """Parse a JSON text in UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError("not UTF-8", "", error.start) from None
    if len(body) <= INLINE_BYTES:
        return json.loads(text)
    # Functions written in Python read the numbers. Without them the parser holds the interpreter lock until it
    # has read the whole text, and the event loop would have to wait for this thread.
    return json.loads(text, parse_int=lambda digits: int(digits), parse_float=lambda digits: float(digits))


def parse_form(body: bytes) -> list[tuple[str, str]]:
    """Return the fields of a form in order; ValueError if they are not UTF-8."""
    fields = []
    for pair in body.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            fields.append((_unquote(name), _unquote(value)))
    return fields


def _unquote(text: bytes) -> str:
    """Decode `%XX` and `+` chunk by chunk: decoding the whole text at once takes 80 times its memory."""
    text = text.replace(b"+", b" ")
    parts = []
    start = 0
    while start < len(text):
        end = start + _CHUNK
        # An escape has three bytes: the chunk ends before one that it would cut.
        cut = text.rfind(b"%", max(start, end - 2), end) if end < len(text) else -1
        parts.append(unquote_to_bytes(text[start : cut if cut > start else end]))
        start = cut if cut > start else end
    return b"".join(parts).decode()
