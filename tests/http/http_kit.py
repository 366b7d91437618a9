"""Real HTTP servers on the loopback with the behaviour that a test chooses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from redrive.http.client import HttpClient
from redrive.http.ssrf import Lookup
from redrive.settings import parse_allowed_hosts

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Talk:
    """A connection, from the server's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: Server
    number: int

    async def hear(self) -> Asked:
        """Read the next request; raise IncompleteReadError at the end of the connection."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("utf-8")
        line, *rest = head.rstrip("\r\n").split("\r\n")
        headers = dict(each.split(": ", 1) for each in rest)
        body = await self.reader.readexactly(int(headers.get("Content-Length", 0)))
        asked = Asked(line, headers, body)
        self.server.asked.append(asked)
        return asked

    async def say(self, answer: bytes) -> None:
        self.writer.write(answer)
        await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the other side has closed."""
        while await self.reader.read(65_536):
            pass


Behaviour: TypeAlias = Callable[[Talk], Awaitable[None]]


@dataclass(slots=True)
class Server:
    """A record of the requests and connections of a server."""

    port: int = 0
    scheme: str = "http"
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"


def answering(*answers: bytes) -> Behaviour:
    """Send these answers in turn, then repeat the last one, on connections that stay open."""

    async def behave(talk: Talk) -> None:
        while True:
            await talk.hear()
            await talk.say(answers[min(len(talk.server.asked), len(answers)) - 1])

    return behave


def closing_after(answer: bytes) -> Behaviour:
    """Read one request, send this and close."""

    async def behave(talk: Talk) -> None:
        await talk.hear()
        await talk.say(answer)

    return behave


def silent_after(answer: bytes) -> Behaviour:
    """Read one request, send this, then keep the connection open and silent."""

    async def behave(talk: Talk) -> None:
        await talk.hear()
        await talk.say(answer)
        await talk.gone()

    return behave


@asynccontextmanager
async def serving(
    behave: Behaviour, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Server]:
    """Run a server with this behaviour on every connection."""
    seen = Server(scheme="https" if tls else "http")
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        seen.connections += 1
        seen.open += 1
        try:
            # Cancelled only by the end of the server, below.
            with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError, ssl.SSLError):
                await behave(Talk(reader, writer, seen, seen.connections))
        finally:
            writer.close()
            with suppress(asyncio.CancelledError, OSError):
                await writer.wait_closed()
            seen.open -= 1
            tasks.discard(task)

    server = await asyncio.start_server(connected, host, port, ssl=tls)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks))
        await server.wait_closed()


def client(allow: str = "127.0.0.1", **options: object) -> HttpClient:
    return HttpClient(parse_allowed_hosts(allow), **options)  # type: ignore[arg-type]


def leads_to(*answers: Sequence[str]) -> Lookup:
    """Return a resolver that gives these answers in turn, then repeats the last one."""
    given = iter(answers)
    last: list[Sequence[str]] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        last[:] = [next(given, last[0] if last else ())]
        return last[0]

    return lookup


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, with a limit that is long enough on any machine."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)
