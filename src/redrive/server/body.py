"""Request bodies: how many bytes are held, how a body is shaped, and how it is parsed.

A body is measured before it is parsed, and one of more than `INLINE` bytes is measured and parsed in threads
of this module. The event loop then handles other requests, and a burst of large bodies waits for these
threads only.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from fastapi import Request

from redrive.server.problems import ProblemError

INLINE_BYTES = 16 * 1024
"""Bytes up to which a body is handled in the event loop: less work than passing it to a thread."""

_CHUNK = 64 * 1024
_threads = ThreadPoolExecutor(2, thread_name_prefix="redrive-body")
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_NON_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENING_BRACKETS = frozenset(b"[{")
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

T = TypeVar("T")


class JsonLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Upper bounds for one JSON text: nesting, keys, objects and arrays, values, digits of a number."""

    depth: int
    keys: int
    containers: int
    values: int
    digits: int = 512


async def run_off_loop(size: int, call: Callable[..., T], *arguments: Any) -> T:
    """Return `call(*arguments)`, run in a thread if it handles more than INLINE bytes."""
    if size <= INLINE_BYTES:
        return call(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_threads, call, *arguments)


class BytesInFlight:
    """Counts the bytes of bodies that are held in memory: of all senders, and of each."""

    def __init__(self, total: int, each: int) -> None:
        self._total = total
        self._each = each
        self._held: Counter[str] = Counter()
        self._sum = 0

    @contextmanager
    def holding(self, sender: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts more bytes of one body or refuses them; all end with the block."""
        mine = 0

        def add(size: int) -> None:
            nonlocal mine
            if self._held[sender] + size > self._each:
                raise ProblemError(
                    429,
                    f"{self._each:,} bytes of bodies are under way for this sender: send fewer at a time",
                    headers={"Retry-After": "1"},
                )
            if self._sum + size > self._total:
                raise ProblemError(
                    503,
                    "too many request bodies are under way: repeat the request",
                    code="busy",
                    title="The server is busy",
                    headers={"Retry-After": "1"},
                )
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
    """Refuse JSON that is not UTF-8: nothing that measures a body reads other encodings."""
    if charset is not None and charset.strip().strip('"').lower() not in ("utf-8", "utf8"):
        raise ProblemError(415, "the charset of the body is not UTF-8: send JSON in UTF-8")
    if body.startswith(_BOMS) or b"\0" in body[:4]:
        raise ProblemError(400, "the body is not plain UTF-8: send JSON in UTF-8, without a byte order mark")


def find_json_excess(body: bytes, most: JsonLimits) -> str | None:
    """Return what a JSON text has too much of, None if it is within `most`. The text is not parsed.

    It is read in chunks, so that the thread that measures a large body lets others run in between.
    """
    depth = keys = containers = commas = start = 0
    in_text = False
    tail = b""  # the end of what stands outside texts: a number may go on in the next chunk
    long_number = re.compile(rb"[0-9]{%d}" % (most.digits + 1))
    while start < len(body):
        chunk = body[start : start + _CHUNK]
        # An escape that is cut in two would hide the end of a text: its backslash begins the next chunk.
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
            return f"a number in JSON may have {most.digits} digits: send a longer one as a text"
        tail = (tail + bare)[-most.digits :]
        if keys > most.keys:
            return f"JSON may have {most.keys:,} keys"
        if containers > most.containers:
            return f"JSON may have {most.containers:,} objects and arrays"
        if commas + containers > most.values:
            return f"JSON may have {most.values:,} values"
        for bracket in brackets:
            depth += 1 if bracket in _OPENING_BRACKETS else -1
            if depth > most.depth:
                return f"JSON may be nested {most.depth} deep"
    return None


class JsonRequest(Request):
    """A request whose JSON is parsed outside the event loop where it is large."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = await run_off_loop(len(body), parse_json, body)
        return self._json


def parse_json(body: bytes) -> Any:
    """Parse a JSON text in UTF-8.

    Numbers are read by functions of Python: the parser holds the interpreter's lock otherwise until it has
    read the whole text, and the event loop would wait for a thread as it would for itself.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError("not UTF-8", "", error.start) from None
    if len(body) <= INLINE_BYTES:
        return json.loads(text)
    return json.loads(text, parse_int=_read_int, parse_float=_read_float)


def _read_int(text: str) -> int:
    return int(text)


def _read_float(text: str) -> float:
    return float(text)


def parse_form(body: bytes) -> list[tuple[str, str]]:
    """Return the fields of a form in order; ValueError if they are not UTF-8."""
    fields = []
    for pair in body.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            fields.append((_unquote(name), _unquote(value)))
    return fields


def _unquote(text: bytes) -> str:
    """Decode `%XX` and `+`, chunk by chunk: decoding all at once takes 80 times the memory of the text."""
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
