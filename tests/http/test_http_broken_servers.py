"""Broken and hostile servers: each causes a clear error within the time limit and affects no other request."""

from __future__ import annotations

import asyncio
import os

import pytest
from http_kit import OK, Talk, client, serving, silent_after, until

from redrive.core.classify import Category, classify
from redrive.http.client import HttpRequest

HEAD = b"HTTP/1.1 200 OK\r\n"

BROKEN = [
    (b"hello", "HTTP/1.1"),
    (b"SSH-2.0-OpenSSH_9.6\r\n", "HTTP/1.1"),
    (b"220 mail.example ESMTP\r\n", "HTTP/1.1"),
    (b"\x15\x03\x01\x00\x02\x02\x46", "HTTP/1.1"),
    (b"\r\n\r\n\r\n", "HTTP/1.1"),
    (b"HTTP/2 200\r\n\r\n", "HTTP/1.1"),
    (b"HTTP/1.1 OK\r\n\r\n", "HTTP/1.1"),
    (b"HTTP/1.1 099 Low\r\n\r\n", "HTTP/1.1"),
    (b"HTTP/1.1 600 High\r\n\r\n", "HTTP/1.1"),
    (b"HTTP/1.1 2000 Long\r\n\r\n", "HTTP/1.1"),
    (b"HTTP/1.1  200 OK\r\n\r\n", "HTTP/1.1"),
    (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "valid HTTP/1.1"),
    (b"HTTP/1.1 100 Go\r\n\r\n" * 50, "too many interim"),
    (HEAD + b"no colon\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b": empty\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"X : 1\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"X: a\x00b\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"X: a\rContent-Length: 0\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "valid HTTP/1.1"),
    (HEAD + b"Content-Length: -1\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"Content-Length: +1\r\n\r\na", "valid HTTP/1.1"),
    (HEAD + b"Content-Length: 0x1\r\n\r\na", "valid HTTP/1.1"),
    (HEAD + b"Content-Length: \r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", "valid HTTP/1.1"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n", "valid HTTP/1.1"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n\r\n", "valid HTTP/1.1"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 30 + b"\r\n", "valid HTTP/1.1"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", "valid HTTP/1.1"),
    (HEAD + b"X: " + b"x" * 100_000, "too large"),
    (HEAD + b"X: y\r\n" * 12_000, "too large"),
    (HEAD + (b"X: " + b"x" * 9_000 + b"\r\n") * 20, "too large"),
    (b"HTTP/1.1 200 " + b"x" * 100_000, "too large"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 100_000, "too large"),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 12_000, "too large"),
]


@pytest.mark.parametrize(("answer", "words"), BROKEN, ids=[f"{each[:40]!r}" for each, _ in BROKEN])
async def test_an_invalid_answer_is_refused_at_once_though_the_connection_stays_open(answer: bytes, words: str) -> None:
    async with serving(silent_after(answer)) as server, client() as http:
        with pytest.raises(ConnectionError, match=words) as caught:
            await http.send(HttpRequest(url=server.url("/secret"), timeout=20))
        assert classify(caught.value).category == Category.NETWORK
        assert str(caught.value).startswith(f"POST http://127.0.0.1:{server.port}: ")
        await until(lambda: server.open == 0)


async def test_an_error_about_an_invalid_answer_repeats_nothing_of_it() -> None:
    """A user could point a notification at another service and read its answer in the error."""
    for answer in (HEAD + b"secret header\r\n\r\n", b"HTTP/1.1 secret\r\n\r\n"):
        async with serving(silent_after(answer)) as server, client() as http:
            with pytest.raises(ConnectionError) as caught:
                await http.send(HttpRequest(url=server.url(), timeout=20))
        assert "secret" not in f"{caught.value!r} {caught.value.__cause__!r}"
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__cause__ is None


async def test_random_bytes_are_refused() -> None:
    async def behave(talk: Talk) -> None:
        await talk.hear()
        await talk.say(os.urandom(50_000))
        await talk.gone()

    async with serving(behave) as server, client() as http:
        for _ in range(20):
            with pytest.raises(ConnectionError):
                await http.send(HttpRequest(url=server.url(), timeout=20))


LATE = [
    b"",
    b"HTT",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n",
    b"HTTP/1.1 200 OK\r\n\r\nwithout end",
    b"HTTP/1.1 100 Go\r\n\r\n",
]


@pytest.mark.parametrize("answer", LATE)
async def test_a_server_that_falls_silent_anywhere_is_given_up_in_time(answer: bytes) -> None:
    async with serving(silent_after(answer)) as server, client() as http:
        with pytest.raises(TimeoutError, match="no complete answer within 100 ms") as caught:
            await http.send(HttpRequest(url=server.url("/secret"), timeout=0.1))
        assert classify(caught.value).category == Category.TIMEOUT
        assert "secret" not in str(caught.value)
        await until(lambda: server.open == 0)


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 O", b"K"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    ],
)
async def test_a_server_that_answers_too_slowly_is_given_up_in_time(head: bytes, drop: bytes) -> None:
    async def drip(talk: Talk) -> None:
        await talk.hear()
        await talk.say(head)
        while True:
            await talk.say(drop)
            await asyncio.sleep(0.005)

    async with serving(drip) as server, client() as http:
        with pytest.raises(TimeoutError):
            await http.send(HttpRequest(url=server.url(), timeout=0.15))
        await until(lambda: server.open == 0)


async def test_a_server_that_does_not_read_is_given_up_in_time() -> None:
    stop = asyncio.Event()

    async def deaf(talk: Talk) -> None:
        await stop.wait()

    async with serving(deaf) as server, client() as http:
        with pytest.raises(TimeoutError):
            await http.send(HttpRequest(url=server.url(), body=b"x" * 20_000_000, timeout=0.2))
        stop.set()


async def test_waiting_for_a_connection_counts_towards_the_time_limit() -> None:
    async with serving(silent_after(b"")) as server, client(per_host=1) as http:
        requests = [HttpRequest(url=server.url(), timeout=0.15) for _ in range(3)]
        results = await asyncio.gather(*map(http.send, requests), return_exceptions=True)
    assert [type(each) for each in results] == [TimeoutError] * 3
    assert server.connections <= 2


async def test_an_answer_before_the_request_was_read_is_used_and_the_connection_closed() -> None:
    async def hasty(talk: Talk) -> None:
        await talk.reader.readexactly(10)
        if talk.number == 1:
            await talk.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        else:
            await talk.say(OK)
        await talk.gone()

    async with serving(hasty) as server, client() as http:
        large = HttpRequest(url=server.url(), body=b"x" * 30_000_000)
        assert (await http.send(large)).status_code == 413
        assert (await http.send(HttpRequest(url=server.url()))).status_code == 200
    assert server.connections == 2


async def test_one_broken_server_does_not_hold_up_another() -> None:
    async with serving(silent_after(b"")) as broken, serving(silent_after(OK)) as good, client(per_host=1) as http:
        stuck = asyncio.create_task(http.send(HttpRequest(url=broken.url())))
        await until(lambda: len(broken.asked) == 1)
        assert (await http.send(HttpRequest(url=good.url()))).body == b"ok"
        assert not stuck.done()
        stuck.cancel()
        await asyncio.wait([stuck])
