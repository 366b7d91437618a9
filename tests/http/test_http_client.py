"""The HTTP client against real servers: requests, answers, and the reuse of connections."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import sys

import pytest
from cases import each
from http_kit import OK, Talk, answering, client, closing_after, leads_to, serving, silent_after, until
from http_trust import Trust

import redrive.http.client as http_module
from redrive import Redrive
from redrive.core.classify import Category, classify
from redrive.errors import InputError, PayloadError, RedriveError
from redrive.http.client import BadStatus, HttpRequest, HttpResponse, Redirected


def get(url: str, **rest: object) -> HttpRequest:
    return HttpRequest(url=url, method="GET", **rest)  # type: ignore[arg-type]


def post(url: str, **headers: str) -> HttpRequest:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest(url=url, headers=named, body=b"{}")


# -- requests ----------------------------------------------------------------------------------------------


async def test_a_request_arrives_as_it_was_written() -> None:
    async with serving(answering(OK)) as server, client() as http:
        request = HttpRequest(
            url=server.url("/a%20b?c=1"), headers={"X-Name": "Zoë", "user-agent": "mine"}, body=b"\x00\xff{}"
        )
        answer = await http.send(request)
    assert (answer.status_code, answer.reason, answer.body) == (200, "OK", b"ok")
    (asked,) = server.asked
    assert (asked.line, asked.body) == ("POST /a%20b?c=1 HTTP/1.1", b"\x00\xff{}")
    assert asked.headers == {
        "Host": f"127.0.0.1:{server.port}",
        "Accept-Encoding": "identity",
        "X-Name": "Zoë",
        "user-agent": "mine",
        "Content-Length": "4",
    }


async def test_spaces_around_the_value_of_a_header_are_left_out() -> None:
    async with serving(answering(OK)) as server, client() as http:
        await http.send(HttpRequest(url=server.url(), headers={"X-A": " one\ttwo ", "X-B": "\t"}))
    assert (server.asked[0].headers["X-A"], server.asked[0].headers["X-B"]) == ("one\ttwo", "")


async def test_a_request_without_a_body_has_a_content_length_where_a_body_is_expected() -> None:
    async with serving(answering(OK)) as server, client() as http:
        await http.send(get(server.url()))
        await http.send(HttpRequest(url=server.url()))
    assert ["Content-Length" in asked.headers for asked in server.asked] == [False, True]


async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 20_000
    async with serving(answering(OK)) as server, client() as http:
        await http.send(HttpRequest(url=server.url(), body=body))
    assert server.asked[0].body == body


@each(
    "options, words",
    [
        ({"method": "get"}, "not an HTTP method"),
        ({"method": "GET / HTTP/1.1\r\nX: y"}, "not an HTTP method"),
        ({"headers": {"X\r\nY": "1"}}, "cannot be sent"),
        ({"headers": {"X Y": "1"}}, "cannot be sent"),
        ({"headers": {"": "1"}}, "cannot be sent"),
        ({"headers": {"X": "1\r\nY: 2"}}, "cannot be sent"),
        ({"headers": {"X": "1\x00"}}, "cannot be sent"),
        ({"headers": {"X": "\ud800"}}, "cannot be sent"),
        ({"headers": {"Host": "evil.example"}}, "set by the client"),
        ({"headers": {"transfer-encoding": "chunked"}}, "set by the client"),
        ({"headers": {"Content-Length": "1"}}, "set by the client"),
    ],
)
def test_a_request_that_could_be_read_as_two_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        HttpRequest(url="http://example.org/", **options)  # type: ignore[arg-type]


# -- answers -----------------------------------------------------------------------------------------------

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
    (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, b""),
    (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, b"ok"),
    (b"HTTP/1.1 201 Made\r\n" + CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", 201, b"abcde"),
    (b"HTTP/1.1 200 OK\r\n" + CHUNKED.lower() + b"A\r\n0123456789\r\n0\r\nX: 1\r\n\r\n", 200, b"0123456789"),
    (b"HTTP/1.1 204 None\r\n\r\n", 204, b""),
    (b"HTTP/1.1 304 Same\r\nContent-Length: 99\r\n\r\n", 304, b""),
    (b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Go\r\n\r\n" + OK, 200, b"ok"),
    (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", 503, b"busy"),
]


@pytest.mark.parametrize(("answer", "status", "body"), ANSWERS)
async def test_answers_are_read_whole_and_their_connection_is_used_again(
    answer: bytes, status: int, body: bytes
) -> None:
    async with serving(answering(answer)) as server, client() as http:
        found = [await http.send(get(server.url())) for _ in range(3)]
    assert [(each.status_code, each.body, each.truncated) for each in found] == [(status, body, False)] * 3
    assert server.connections == 1


@pytest.mark.parametrize(("answer", "status", "body"), ANSWERS)
async def test_answers_that_arrive_byte_by_byte_are_read_all_the_same(answer: bytes, status: int, body: bytes) -> None:
    async def behave(talk: Talk) -> None:
        await talk.hear()
        for byte in answer:
            await talk.say(bytes([byte]))
            await asyncio.sleep(0)
        await talk.gone()

    async with serving(behave) as server, client() as http:
        found = await http.send(get(server.url()))
    assert (found.status_code, found.body) == (status, body)


@pytest.mark.parametrize("answer", [each for each, status, _ in ANSWERS if status not in (204, 304)])
async def test_an_answer_that_ends_anywhere_before_its_end_is_a_failure(answer: bytes) -> None:
    cut = iter(range(len(answer)))

    async def behave(talk: Talk) -> None:
        await talk.hear()
        await talk.say(answer[: next(cut)])

    async with serving(behave) as server, client() as http:
        for _ in range(len(answer)):
            with pytest.raises(ConnectionError, match="closed before") as caught:
                await http.send(get(server.url()))
            assert classify(caught.value).category == Category.NETWORK
    assert server.connections == len(answer)


async def test_the_answer_to_head_has_no_body() -> None:
    async with serving(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")) as server, client() as http:
        for _ in range(2):
            answer = await http.send(HttpRequest(url=server.url(), method="HEAD"))
            assert (answer.body, answer.headers) == (b"", {"content-length": "500"})
    assert server.connections == 1


async def test_a_body_may_end_with_its_connection() -> None:
    async with serving(closing_after(b"HTTP/1.0 200 OK\r\n\r\nall of it")) as server, client() as http:
        for _ in range(2):
            assert (await http.send(get(server.url()))).body == b"all of it"
    assert server.connections == 2


async def test_headers_are_found_by_small_letters_and_joined() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-A:  one \r\nx-a:two\r\n folded\r\nEmpty:\r\nContent-Length: 0\r\n\r\n"
    async with serving(answering(head)) as server, client() as http:
        headers = (await http.send(get(server.url()))).headers
    assert headers == {"x-a": "one, two folded", "empty": "", "content-length": "0"}


def test_a_body_is_read_as_json() -> None:
    assert HttpResponse(status_code=200, body=b'{"a": [1]}').json() == {"a": [1]}
    for body in (b"", b"nope", b"\xff", b"[" * 100_000):
        with pytest.raises(PayloadError, match="is not JSON"):
            HttpResponse(status_code=200, body=body).json()


ENDLESS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFF\r\n",
]


@pytest.mark.parametrize("head", ENDLESS)
async def test_a_body_beyond_the_limit_is_cut_and_says_so(head: bytes) -> None:
    async def behave(talk: Talk) -> None:
        await talk.hear()
        await talk.say(head)
        while True:
            await talk.say(b"x" * 10_000)

    async with serving(behave) as server, client() as http:
        answer = await http.send(get(server.url(), max_body=25_000))
        assert (answer.status_code, answer.body, answer.truncated) == (200, b"x" * 25_000, True)
        await until(lambda: server.open == 0)
        with pytest.raises(PayloadError, match="was cut"):
            answer.json()


async def test_a_large_answer_is_read_whole() -> None:
    body = bytes(range(256)) * 20_000
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    chunked = b"HTTP/1.1 200 OK\r\n%s%X\r\n%s\r\n0\r\n\r\n" % (CHUNKED, len(body), body)
    async with serving(answering(plain, chunked)) as server, client() as http:
        for _ in range(2):
            assert (await http.send(get(server.url(), max_body=len(body)))).body == body
    assert server.connections == 1


async def test_a_body_of_exactly_the_limit_is_whole() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    async with serving(answering(chunked, plain)) as server, client() as http:
        for _ in range(2):
            answer = await http.send(get(server.url(), max_body=5))
            assert (answer.body, answer.truncated) == (b"hello", False)
    assert server.connections == 1


# -- statuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "headers", "category", "wait"),
    [
        (400, b"", Category.VALIDATION, None),
        (401, b"", Category.AUTHORIZATION, None),
        (404, b"", Category.NOT_FOUND, None),
        (409, b"", Category.CLIENT_ERROR, None),
        (429, b"Retry-After: 30\r\n", Category.RATE_LIMIT, 30.0),
        (500, b"", Category.SERVER_ERROR, None),
        (503, b"retry-after: Thu, 01 Jan 1970 00:01:40 GMT\r\n", Category.SERVER_ERROR, 40.0),
        (504, b"", Category.TIMEOUT, None),
    ],
)
async def test_an_error_status_becomes_an_error_that_the_engine_classifies(
    status: int, headers: bytes, category: Category, wait: float | None
) -> None:
    answer = b"HTTP/1.1 %d Oh\x1bno\r\n%sContent-Length: 11\r\n\r\nsorry\r\n\x00 :(" % (status, headers)
    async with serving(answering(answer)) as server, client() as http:
        found = await http.send(get(server.url()))
        with pytest.raises(BadStatus, match=f"the bank answered {status} Oh no: sorry :\\(") as caught:
            found.raise_for_status("the bank")
    signal = classify(caught.value, now=60.0)
    assert (signal.category, signal.status_code, signal.retry_after) == (category, status, wait)


def test_a_successful_answer_is_returned() -> None:
    answer = HttpResponse(status_code=202)
    assert answer.raise_for_status() is answer


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed_and_not_retried(status: int) -> None:
    async with serving(answering(OK)) as inside, client(f"127.0.0.1:{inside.port}, localhost") as http:
        to = inside.url("/secret").encode()
        redirect = b"HTTP/1.1 %d Over\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, to)
        async with serving(answering(redirect)) as server:
            answer = await http.send(post(server.url(host="localhost")))
        assert (answer.status_code, answer.headers["location"]) == (status, to.decode())
        with pytest.raises(Redirected, match="Redirects are not followed") as caught:
            answer.raise_for_status()
        assert classify(caught.value).category == Category.MISSING_CONFIG
    assert inside.connections == 0


# -- connections -------------------------------------------------------------------------------------------


async def test_requests_in_a_row_share_one_connection() -> None:
    async with serving(answering(OK)) as server, client() as http:
        for _ in range(50):
            await http.send(post(server.url()))
    assert (server.connections, len(server.asked)) == (1, 50)


async def test_concurrent_requests_have_separate_connections_up_to_the_limit() -> None:
    async def slow(talk: Talk) -> None:
        while True:
            await talk.hear()
            await asyncio.sleep(0.002)
            await talk.say(OK)

    async with serving(slow) as server, client(per_host=4) as http:
        answers = await asyncio.gather(*(http.send(post(server.url(f"/{n}"))) for n in range(40)))
        assert server.open <= server.connections == 4
    assert [answer.body for answer in answers] == [b"ok"] * 40
    assert len({asked.line for asked in server.asked}) == 40


async def test_each_request_gets_its_own_answer() -> None:
    async def echo(talk: Talk) -> None:
        while True:
            body = (await talk.hear()).body
            await talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async def ask(number: int) -> bool:
        body = b"%d" % number * (number % 7)
        return (await http.send(HttpRequest(url=server.url(), body=body))).body == body

    async with serving(echo) as server, client(per_host=8) as http:
        assert all(await asyncio.gather(*(ask(number) for number in range(300))))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        OK + b"\r\n",
    ],
)
async def test_a_connection_whose_state_is_in_doubt_is_not_used_again(answer: bytes) -> None:
    async with serving(silent_after(answer)) as server, client() as http:
        for _ in range(3):
            assert (await http.send(post(server.url()))).body == b"ok"
    assert server.connections == 3


async def test_data_on_an_idle_connection_closes_it_and_answers_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_KEEP_ALIVE", 600)
    at_rest = asyncio.Event()

    async def behave(talk: Talk) -> None:
        await talk.hear()
        await talk.say(OK)
        if talk.number == 1:
            await at_rest.wait()
            while True:
                await talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await talk.gone()

    async with serving(behave) as server, client() as http:
        await http.send(post(server.url()))
        at_rest.set()
        await until(lambda: server.open == 0)
        assert (await http.send(post(server.url()))).body == b"ok"
    assert server.connections == 2


async def test_an_idle_connection_that_the_server_closed_is_replaced() -> None:
    async with serving(closing_after(OK)) as server, client() as http:
        for _ in range(3):
            assert (await http.send(post(server.url()))).body == b"ok"
            await until(lambda: not http._connections)
    assert (server.connections, len(server.asked)) == (3, 3)


async def test_a_connection_that_is_being_closed_is_not_used_again() -> None:
    async with serving(answering(OK)) as server, client() as http:
        await http.send(post(server.url()))
        for connection in http._connections:
            connection.abort()  # as its timer does, an instant before the next request
        assert (await http.send(post(server.url()))).body == b"ok"
    assert server.connections == 2


async def rude(talk: Talk) -> None:
    """Answer once, and close when the second request comes."""
    await talk.hear()
    await talk.say(OK)
    await talk.hear()


@pytest.mark.parametrize("header", ["Idempotency_Key", "webhook_id"])
async def test_a_request_that_met_a_closing_connection_is_repeated_if_that_is_safe(header: str) -> None:
    async with serving(rude) as server, client() as http:
        for _ in range(2):
            assert (await http.send(post(server.url(), **{header: "k"}))).body == b"ok"
        assert (await http.send(get(server.url()))).body == b"ok"
    assert (server.connections, len(server.asked)) == (3, 5)


async def test_a_request_that_may_have_taken_effect_is_not_repeated() -> None:
    async with serving(rude) as server, client() as http:
        await http.send(post(server.url()))
        with pytest.raises(ConnectionError, match="closed before"):
            await http.send(post(server.url()))
    assert (server.connections, len(server.asked)) == (1, 2)


async def test_a_request_that_was_answered_in_part_is_not_repeated() -> None:
    async def behave(talk: Talk) -> None:
        await talk.hear()
        await talk.say(OK)
        await talk.hear()
        await talk.say(b"HTTP/1.1 200")

    async with serving(behave) as server, client() as http:
        await http.send(get(server.url()))
        with pytest.raises(ConnectionError, match="closed before"):
            await http.send(get(server.url()))
    assert server.connections == 1


async def test_idle_connections_are_closed_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_KEEP_ALIVE", 0.02)
    async with serving(answering(OK)) as server, client() as http:
        await asyncio.gather(*(http.send(post(server.url())) for _ in range(5)))
        await until(lambda: server.open == 0)
        await until(lambda: not http._connections)
        assert http._pools == {}


async def test_a_connection_is_used_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_MAX_REQUESTS", 3)
    async with serving(answering(OK)) as server, client() as http:
        for _ in range(7):
            await http.send(post(server.url()))
    assert server.connections == 3


async def test_closing_the_client_ends_its_connections_and_waiting_requests() -> None:
    async with serving(silent_after(b"HTTP/1.1")) as server:
        async with client() as http:
            waiting = asyncio.create_task(http.send(get(server.url())))
            await until(lambda: len(server.asked) == 1)
        assert http._connections == {}
        with pytest.raises(ConnectionError, match="closed before"):
            await waiting
        await until(lambda: server.open == 0)
        with pytest.raises(RuntimeError, match="is closed"):
            await http.send(get(server.url()))


async def test_a_cancelled_request_releases_its_connection_and_its_slot() -> None:
    async def behave(talk: Talk) -> None:
        await talk.hear()
        if talk.number > 1:
            await talk.say(OK)
        await talk.gone()

    async with serving(behave) as server, client(per_host=1) as http:
        task = asyncio.create_task(http.send(get(server.url())))
        await until(lambda: len(server.asked) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.open == 0)
        assert (await http.send(get(server.url()))).body == b"ok"


# -- addresses ---------------------------------------------------------------------------------------------


async def test_an_address_that_the_guard_refuses_is_not_connected_to() -> None:
    async with serving(answering(OK)) as server, client("localhost:1", lookup=leads_to(["127.0.0.1"])) as http:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "rebound.example"):
            with pytest.raises(InputError, match="REDRIVE_ALLOW_HOSTS"):
                await http.send(get(server.url(host=host)))
    assert server.connections == 0


async def test_a_name_that_resolves_to_a_private_address_later_is_refused() -> None:
    lookup = leads_to(["127.0.0.1"], ["127.0.0.2"])
    async with (
        serving(closing_after(OK)) as good,
        serving(answering(OK), host="127.0.0.2", port=good.port) as bad,
        client("127.0.0.1", lookup=lookup) as http,
    ):
        assert (await http.send(get(good.url(host="moving.example")))).body == b"ok"
        await until(lambda: not http._connections)
        with pytest.raises(InputError, match="not public"):
            await http.send(get(good.url(host="moving.example")))
    assert (good.connections, bad.connections) == (1, 0)
    assert good.asked[0].headers["Host"] == f"moving.example:{good.port}"


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    lookup = leads_to(["127.0.0.3", "127.0.0.1"])
    async with serving(answering(OK)) as server, client("shop.example", lookup=lookup) as http:
        assert (await http.send(get(server.url(host="shop.example")))).body == b"ok"


async def test_a_port_without_a_listener_is_a_network_failure() -> None:
    async with serving(answering(OK)) as server:
        pass
    async with client() as http:
        with pytest.raises(ConnectionError, match=rf"GET http://127.0.0.1:{server.port}: cannot connect") as caught:
            await http.send(get(server.url("/secret?token=1")))
    assert classify(caught.value).category == Category.NETWORK
    assert "secret" not in str(caught.value)


async def test_a_name_that_cannot_be_resolved_is_a_network_failure() -> None:
    async with client(lookup=leads_to([])) as http:
        with pytest.raises(ConnectionError, match=r"gone\.example has no address"):
            await http.send(get("http://gone.example/"))


# -- TLS ---------------------------------------------------------------------------------------------------


async def test_tls_is_verified_for_the_name_while_the_address_is_pinned(trust: Trust) -> None:
    names: list[str | None] = []
    trust.server.sni_callback = lambda _socket, name, _context: names.append(name)
    async with (
        serving(answering(OK), tls=trust.server) as server,
        client("shop.example", tls=trust.client, lookup=leads_to(["127.0.0.1"])) as http,
    ):
        for _ in range(3):
            answer = await http.send(post(server.url("/x", host="shop.example")))
            assert json.loads(answer.body.replace(b"ok", b"1")) == 1
    trust.server.sni_callback = None
    assert names == ["shop.example"]
    assert server.connections == 1
    assert server.asked[0].headers["Host"] == f"shop.example:{server.port}"


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1"])
async def test_a_certificate_for_another_name_is_refused(trust: Trust, host: str) -> None:
    options = {"tls": trust.client, "lookup": leads_to(["127.0.0.1"])}
    async with (
        serving(answering(OK), tls=trust.server) as server,
        client("other.example, 127.0.0.1", **options) as http,
    ):
        with pytest.raises(ConnectionError, match="certificate verify failed") as caught:
            await http.send(post(server.url(host=host)))
    assert classify(caught.value).category == Category.NETWORK
    assert server.asked == []


async def test_an_untrusted_certificate_is_refused(trust: Trust) -> None:
    async with (
        serving(answering(OK), tls=trust.server) as server,
        client("shop.example", lookup=leads_to(["127.0.0.1"])) as http,
    ):
        with pytest.raises(ConnectionError, match="certificate verify failed"):
            await http.send(post(server.url(host="shop.example")))
    assert server.asked == []


async def test_plain_http_where_tls_is_expected_and_the_reverse_are_failures(
    trust: Trust, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")
    async with (
        serving(silent_after(OK)) as plain,
        serving(answering(OK), tls=trust.server) as secure,
        client(tls=trust.client) as http,
    ):
        with pytest.raises(ConnectionError):
            await http.send(get(secure.url().replace("https", "http")))
        plain.scheme = "https"
        with pytest.raises((ConnectionError, TimeoutError)):
            await http.send(get(plain.url(), timeout=0.3))
    assert plain.asked == secure.asked == []


async def test_a_tls_server_that_closes_early_is_a_failure(trust: Trust) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"
    async with (
        serving(closing_after(half), tls=trust.server) as server,
        client("shop.example", tls=trust.client, lookup=leads_to(["127.0.0.1"])) as http,
    ):
        with pytest.raises(ConnectionError, match="closed before"):
            await http.send(get(server.url(host="shop.example")))


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop does not exist there")
def test_the_client_works_on_uvloop_as_well(trust: Trust) -> None:
    import uvloop

    async def scene() -> list[int]:
        options = {"tls": trust.client, "lookup": leads_to(["127.0.0.1"])}
        async with (
            serving(answering(OK)) as plain,
            serving(answering(OK), tls=trust.server) as secure,
            serving(silent_after(b"HTTP/1.1")) as slow,
            client("127.0.0.1, shop.example", **options) as http,
        ):
            for _ in range(3):
                await http.send(post(plain.url()))
                await http.send(post(secure.url(host="shop.example")))
            with pytest.raises(TimeoutError):
                await http.send(get(slow.url(), timeout=0.1))
        return [plain.connections, secure.connections, slow.connections]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(scene()) == [1, 1, 1]


def test_the_system_certificates_are_trusted_by_default() -> None:
    context = client()._tls_context()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_missing_h11_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Redrive("sqlite:///:memory:")
    monkeypatch.setattr(http_module, "find_spec", lambda name: None)
    secret = "whsec_" + base64.b64encode(bytes(32)).decode()
    for use in (
        lambda: client(),
        lambda: app.webhook("hook", "https://example.org/in", "*", secret=secret),
        lambda: app.channel("ops", slack="https://example.org/in"),
    ):
        with pytest.raises(RedriveError, match=r"pip install 'redrive\[http\]'"):
            use()
