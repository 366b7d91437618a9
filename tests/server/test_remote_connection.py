"""The connections of a remote worker: answers as servers and proxies send them, and answers that are none."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from http_trust import make_trust

from redrive.errors import ConfigurationError, NotFound, StoreError, StoreUnavailable
from redrive.remote.client import Address, Client
from redrive.remote.worker_connection import Server

BODY = b'{"done":true}'
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n" + BODY
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n"
    + BODY[:5]
    + b"\r\n8\r\n"
    + BODY[5:]
    + b"\r\n0\r\n\r\n"
)
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
LAST = PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
PROBLEM = b'{"code":"not_found","detail":"the run is unknown"}'
CLOSE = b""


class Script:
    """A server that answers each request with the next pieces of a script; an empty piece closes the connection."""

    def __init__(self, answers: Sequence[Sequence[bytes]]) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.was_asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                self.was_asked.set()
                for piece in self.answers.pop(0):
                    if piece == CLOSE:
                        return
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted(*answers: Sequence[bytes]) -> AsyncIterator[tuple[Script, Server]]:
    script = Script(answers)
    listening = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    server = Server(Address.read(f"http://127.0.0.1:{port}/under"), "rdk_secret")
    async with listening:
        yield script, server
        server.close()


async def call(server: Server) -> bytes:
    return await server.call("POST", "worker/settle", b"{}", {"Redrive-Worker": "7"})


@pytest.mark.parametrize(
    "pieces",
    [[PLAIN], [bytes([each]) for each in PLAIN], [CHUNKED[:60], CHUNKED[60:70], CHUNKED[70:]]],
    ids=["whole", "byte by byte", "in chunks"],
)
async def test_answers_are_read_on_one_connection(pieces: list[bytes]) -> None:
    async with scripted(pieces, pieces) as (script, server):
        assert [await call(server), await call(server)] == [BODY, BODY]
    assert script.connections == 1
    head, body = script.requests[1].split(b"\r\n\r\n")
    assert head.startswith(b"POST /under/api/v1/worker/settle HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer rdk_secret\r\n" in head
    assert b"\r\nRedrive-Worker: 7\r\n" in head
    assert body == b"{}"


@pytest.mark.parametrize("first", [[LAST], [ENDLESS, CLOSE], [PLAIN, CLOSE], [PLAIN, b"more", CLOSE]])
async def test_a_connection_that_ended_is_replaced(first: list[bytes]) -> None:
    async with scripted(first, [PLAIN]) as (script, server):
        assert [await call(server), await call(server)] == [BODY, BODY]
    assert script.connections == 2


async def test_a_request_is_repeated_once_if_its_connection_was_closed_meanwhile() -> None:
    async with scripted([PLAIN], [CLOSE], [PLAIN], [CLOSE], [CLOSE]) as (script, server):
        assert [await call(server), await call(server)] == [BODY, BODY]
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await call(server)
    assert (script.connections, len(script.requests)) == (3, 5)


@pytest.mark.parametrize(
    "answer",
    [[CLOSE], [b"SSH-2.0-OpenSSH\r\n\r\n"], [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000], [PLAIN[:-1], CLOSE]],
    ids=["none", "of another protocol", "without an end of its head", "cut off"],
)
async def test_what_is_no_answer_counts_as_an_outage(answer: list[bytes]) -> None:
    async with scripted(answer, [PLAIN]) as (script, server):
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await call(server)
        assert await call(server) == BODY
    assert script.connections == 2


async def test_problems_become_errors_and_keep_the_connection() -> None:
    problem = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b" % (len(PROBLEM), PROBLEM)
    page = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>"
    async with scripted([problem], [page], [PLAIN]) as (script, server):
        with pytest.raises(NotFound, match="the run is unknown"):
            await call(server)
        with pytest.raises(StoreError, match="with status 502, unlike a Redrive server"):
            await call(server)
        assert await call(server) == BODY
    assert script.connections == 1


async def test_a_cancelled_call_closes_its_connection() -> None:
    async with scripted([], [PLAIN]) as (script, server):
        waiting = asyncio.create_task(call(server))
        await script.was_asked.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert await call(server) == BODY
    assert script.connections == 2


def test_a_token_with_a_line_break_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Server(Address.read("https://redrive.example.com"), "rdk_secret\r\nHost: other")
    assert "secret" not in str(refused.value)


async def test_large_requests_and_answers_are_compressed() -> None:
    packed = gzip.compress(BODY)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    broken = head.replace(b"gzip\r\n", b"gzip\r\nConnection: close\r\n") + bytes(len(packed))
    large = b"[" + b"1," * 4000 + b"1]"
    async with scripted([head + packed], [PLAIN], [broken]) as (script, server):
        assert await server.call("POST", "x", large, {}) == BODY
        server.compresses = True
        assert await server.call("POST", "x", large, {}) == BODY
        with pytest.raises(StoreUnavailable):
            await server.call("POST", "x", b"{}", {})
    plain, sent, small = (request.partition(b"\r\n\r\n") for request in script.requests)
    assert plain[2] == large
    assert b"Content-Encoding: gzip" in sent[0]
    assert (gzip.decompress(sent[2]), small[2]) == (large, b"{}")
    assert len(sent[2]) < len(large) / 10


@asynccontextmanager
async def proxied(status: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Run a proxy that answers CONNECT with a status, and passes connections on to ports of this machine."""
    asked: list[bytes] = []
    tasks: list[asyncio.Task[None]] = []

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        target.close()
        with suppress(OSError):
            await target.wait_closed()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        if not status.startswith(b"200"):
            writer.close()
            await writer.wait_closed()
            return
        port = int(asked[-1].split(b" ")[1].rpartition(b":")[2])
        back, there = await asyncio.open_connection("127.0.0.1", port)
        tasks.extend(asyncio.create_task(each) for each in (copy(reader, there), copy(back, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://me:p%40ss@127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        await asyncio.gather(*tasks)  # the tests close their connections


async def test_workers_and_clients_reach_the_server_through_a_proxy(tmp_path: Path) -> None:
    trust, script = make_trust(tmp_path, "redrive.example.com"), Script([[PLAIN], [PLAIN]])
    there = await asyncio.start_server(script.serve, "127.0.0.1", 0, ssl=trust.server)
    async with there:
        url = f"https://redrive.example.com:{there.sockets[0].getsockname()[1]}"
        async with proxied(b"200 OK") as (proxy, asked):
            address = Address.read(url, proxy, str(trust.file))
            server, client = Server(address, "rdk_secret"), Client(address, "rdk_secret")
            assert await server.call("POST", "x", b"{}", {}) == BODY
            assert await asyncio.to_thread(client.call, "POST", "x", b"{}", {}) == BODY
            server.close()
            client.close()
        for head in asked:
            assert head.startswith(f"CONNECT {url.removeprefix('https://')} HTTP/1.".encode())
            assert b"Proxy-Authorization: Basic bWU6cEBzcw==" in head
            assert b"rdk_secret" not in head
        async with proxied(b"407 Proxy Authentication Required") as (proxy, asked):
            address = Address.read(url, proxy, str(trust.file))
            with pytest.raises(StoreUnavailable, match="407"):
                await Server(address, "rdk_secret").call("POST", "x", b"{}", {})
            with pytest.raises(StoreUnavailable, match="407"):
                await asyncio.to_thread(Client(address, "rdk_secret").call, "POST", "x", b"{}", {})
    for wrong in ("https://proxy:1", "proxy:3128", "http://proxy:port"):
        with pytest.raises(ConfigurationError, match="proxy"):
            Address.read(url, wrong)
    assert Address.read("http://127.0.0.1:1", proxy).way is None
    with pytest.raises(ConfigurationError, match="REDRIVE_CA_FILE"):
        Address.read(url, "", str(tmp_path / "missing.pem")).make_tls()
