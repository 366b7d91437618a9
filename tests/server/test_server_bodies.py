"""Request bodies at a real server: reading, size limits, parsing, and refusal at each stage."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from server_kit import PATIENCE, PREFIX, World, access_of, caller, opened, served_here

from redrive.core.roles import Role
from redrive.server import request_body as bodies
from redrive.server import request_guard
from redrive.server.limits import Limits
from redrive.server.pages import forms
from redrive.server.pages import replay_form as wishes
from redrive.server.problem_responses import ProblemError
from redrive.store.accounts import NewUser

FORM = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
JSON = {"Content-Type": "application/json"}


def ask(address: str, head: list[str], body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """Send raw bytes over a socket and return status and JSON of the response."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as line:
        line.sendall("\r\n".join([*head, "Host: x", "", ""]).encode() + body)
        answer = line.makefile("rb")
        status = int(answer.readline().split()[1])
        length = 0
        while (header := answer.readline().strip()) != b"":
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status, json.loads(answer.read(length))


# -- compression -----------------------------------------------------------------------------------------


def test_a_compressed_body_is_inflated_up_to_the_limit(world: World) -> None:
    def post(body: bytes, encoding: str = "gzip") -> tuple[int, dict[str, Any]]:
        head = [f"POST {PREFIX}/runs:batch HTTP/1.1", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        token = f"Authorization: Bearer {world.tokens['acme', 'ADMIN']}"
        return ask(world.address, [*head, token, f"Content-Encoding: {encoding}"], body)

    run = gzip.compress(json.dumps({"runs": [{"workflow": "unknown", "input": {"text": "x" * 9000}}]}).encode())
    status, problem = post(run)
    assert (status, problem["reason_code"]) == (422, "code_unregistered")
    bomb = gzip.compress(bytes(100_000_000))
    assert len(bomb) < 100_000
    status, problem = post(bomb)
    assert (status, problem["reason_code"]) == (413, "body_too_large")
    for body, encoding, expected in ((run[:-20], "gzip", 400), (b"{}", "gzip", 400), (b"{}", "br", 415)):
        status, problem = post(body, encoding)
        assert (status, problem["reason_code"]) == (expected, "body_not_gzip")
    tracemalloc.start()
    try:
        with pytest.raises(ProblemError):
            bodies.inflate_body(bomb, 16 << 20)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_answers_to_other_machines_are_compressed_if_they_are_large(world: World) -> None:
    client = world.client()
    far = client.get("/openapi.json", headers={"X-Forwarded-For": "192.0.2.7"})
    near = client.get("/openapi.json")
    small = client.get("/me", headers={"X-Forwarded-For": "192.0.2.7"})
    assert [each.headers.get("content-encoding") for each in (far, near, small)] == ["gzip", None, None]
    assert far.json() == near.json()


# -- before the body is read -----------------------------------------------------------------------------


@pytest.mark.parametrize("credential", [[], ["Authorization: Bearer wrong"]])
def test_a_request_without_a_credential_is_refused_before_its_body(world: World, credential: list[str]) -> None:
    head = [f"POST {PREFIX}/runs HTTP/1.1", "Content-Type: application/json", "Content-Length: 15000000"]
    status, problem = ask(world.address, [*head, *credential])
    assert (status, problem["code"]) == (401, "not_signed_in")


@pytest.mark.parametrize("path", [f"{PREFIX}/login", "/app/login"])
def test_an_anonymous_body_is_limited_to_64_kib(world: World, path: str) -> None:
    head = [f"POST {path} HTTP/1.1", "Content-Type: application/json", "Content-Length: 65537"]
    assert ask(world.address, head)[0] == 413
    chunked = [*head[:2], "Transfer-Encoding: chunked"]
    assert ask(world.address, chunked, b"10001\r\n" + b" " * 0x10001 + b"\r\n")[0] == 413


def test_an_anonymous_body_has_a_limited_number_of_keys_and_fields(world: World) -> None:
    anonymous = world.bearer(None)
    for count, status in ((100, 422), (101, 422)):
        problem = anonymous.post("/login", json={f"k{number}": 1 for number in range(count)}).json()
        assert (problem["status"], problem["code"] == "too_complex") == (status, count > 100)
    login = f"{world.address}/app/login"
    assert anonymous.post(login, content="a=1&" * 99 + "a=1", headers=FORM).headers["content-type"] == (
        "text/html; charset=utf-8"
    )
    problem = anonymous.post(login, content="a=1&" * 100 + "a=1", headers=FORM).json()
    assert problem["detail"] == "the form has too many fields: send at most 100"


def test_an_authenticated_body_has_bounded_keys_containers_values_and_names(world: World) -> None:
    def code(body: str) -> str:
        answer = world.client("acme", "STAFF").post("/runs", content=body, headers=JSON)
        return f"{answer.status_code} {answer.json()['code']}"

    keys = ",".join(f'"k{number}":1' for number in range(100_001))
    assert code(f'{{"workflow":"remind","input":{{{keys}}}}}') == "422 too_complex"
    assert code(f'{{"workflow":"remind","input":{{"a":[{"[]," * 100_000}1]}}}}') == "422 too_complex"
    assert code(f'{{"workflow":"remind","input":{{"a":[{"1," * 500_000}1]}}}}') == "422 too_complex"
    unknown = world.client().post("/runs", json={f"k{number}": 1 for number in range(50_000)}).json()
    assert [each["reason"] for each in unknown["errors"]] == ["too many names"]


def test_content_length_together_with_transfer_encoding_is_refused(world: World) -> None:
    head = [f"POST {PREFIX}/login HTTP/1.1", "Content-Type: application/json"]
    both = [*head, "Content-Length: 2", "Transfer-Encoding: chunked"]
    status, problem = ask(world.address, both, b"2\r\n{}\r\n0\r\n\r\n")
    assert (status, "send one of them" in problem["detail"]) == (400, True)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig"])
def test_json_that_is_not_utf_8_is_refused_before_it_is_parsed(world: World, encoding: str) -> None:
    body = json.dumps({"workflow": "remind"}).encode(encoding)
    answer = world.client().post("/runs", content=body, headers=JSON)
    assert (answer.status_code, "UTF-8" in answer.json()["detail"]) == (400, True)
    deep = ("[" * 65 + "]" * 65).encode(encoding)
    assert world.client().post("/runs", content=deep, headers=JSON).status_code == 400
    named = {"Content-Type": f"application/json; charset={encoding}"}
    assert world.client().post("/runs", content=b'{"workflow": "remind"}', headers=named).status_code == 415


def test_the_utf_8_charset_may_be_declared_and_is_checked(world: World) -> None:
    body = '{"workflow": "remind", "input": {"to": "Łódź"}}'
    named = {"Content-Type": 'application/json; charset="UTF-8"'}
    assert world.client().post("/runs", content=body.encode(), headers=named).status_code == 201
    assert world.client().post("/runs", content=body.encode("iso8859-2"), headers=named).status_code == 400


def test_query_parameters_are_bounded(world: World) -> None:
    def get(query: str) -> dict[str, Any]:
        found: dict[str, Any] = world.client().get(f"/runs?{query}").json()
        return found

    assert "items" in get("&".join(["index=order:A-1"] * 10))
    assert get("&".join(["index=order:A-1"] * 11))["code"] == "invalid_request"
    for query in ("&".join(["x=1"] * 51), "&".join(f"x{number}=1" for number in range(201))):
        assert (get(query)["status"], "too many parameters" in get(query)["detail"]) == (422, True)


# -- the event loop --------------------------------------------------------------------------------------


class Spy:
    """A wrapper of a function that handles a body. It records the function's threads and waits for a signal there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *places: tuple[Any, str]) -> None:
        self.called = threading.Event()
        self.go_on = threading.Event()
        self.loop = threading.get_ident()
        self.in_loop: list[int] = []
        self.elsewhere: list[int] = []
        for module, name in places:
            monkeypatch.setattr(module, name, self._wrapped(getattr(module, name)))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(body: bytes, *more: Any) -> Any:
            if threading.get_ident() == self.loop:
                self.in_loop.append(len(body))
            else:
                self.elsewhere.append(len(body))
                self.called.set()
                assert self.go_on.wait(PATIENCE), "the event loop did not answer while a body was handled"
            return real(body, *more)

        return call


@pytest.mark.parametrize(
    ("module", "name", "path", "headers", "body"),
    [
        (request_guard, "find_json_excess", f"{PREFIX}/runs", JSON, b'{"workflow": "remind", "x": "%s"}'),
        (bodies, "parse_json", f"{PREFIX}/runs", JSON, b'{"workflow": "remind", "x": "%s"}'),
        (forms, "parse_form", "/app/circuits/settings", FORM, b"do=open&reason=%s"),
    ],
)
async def test_the_loop_answers_while_a_large_body_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, path: str, headers: Any, body: bytes
) -> None:
    """The thread that handles the body continues after /healthz was answered: in the loop that would hang."""
    spy = Spy(monkeypatch, (module, name))
    async with served_here(tmp_path, Limits()) as world, caller(world) as client:
        large = asyncio.create_task(client.post(path, content=body % (b"%41" * 700_000), headers=headers))
        await asyncio.to_thread(spy.called.wait, PATIENCE)
        for _ in range(20):
            assert (await client.get("/healthz")).status_code == 200
        spy.go_on.set()
        assert (await large).status_code in (303, 404, 422)
    assert spy.elsewhere
    assert not spy.in_loop


async def test_the_loop_itself_handles_small_bodies_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch, (request_guard, "find_json_excess"), (bodies, "parse_json"), (forms, "parse_form"))
    spy.go_on.set()
    async with served_here(tmp_path, Limits()) as world, caller(world) as client:
        for size in (10, bodies.INLINE_BYTES - 100, bodies.INLINE_BYTES + 100, 2_000_000):
            body = {"workflow": "remind", "input": {"to": "x" * size}}
            assert (await client.post(f"{PREFIX}/runs", json=body)).status_code in (201, 413)
        async with caller(world, known=False, **FORM) as anonymous:
            for size in (10, 60_000):
                page = await anonymous.post("/app/login", content=f"email={'%41' * (size // 3)}")
                assert page.status_code == 422
    assert len(spy.in_loop) >= 5
    assert max(spy.in_loop) <= bodies.INLINE_BYTES
    assert len(spy.elsewhere) >= 5


# -- bytes, time and rates -------------------------------------------------------------------------------


async def test_pending_request_bytes_are_bounded_per_credential_and_in_total(tmp_path: Path) -> None:
    limits = Limits(in_flight=300_000, in_flight_each=200_000)
    async with served_here(tmp_path, limits) as world:
        host, port = world.address.removeprefix("http://").split(":")

        async def hold(role: str) -> asyncio.StreamWriter:
            """Send a part of a body, so that the server holds its bytes."""
            reader, writer = await asyncio.open_connection(host, int(port))
            head = [
                f"POST {PREFIX}/runs HTTP/1.1",
                "Host: x",
                f"Authorization: Bearer {world.tokens['acme', role]}",
                "Content-Type: application/json",
                "Content-Length: 160000",
                "Expect: 100-continue",
            ]
            writer.write("\r\n".join([*head, "", ""]).encode())
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b" " * 150_000)
            await writer.drain()
            return writer

        async def send(role: str, size: int) -> int:
            headers = {**JSON, "Authorization": f"Bearer {world.tokens['acme', role]}"}
            async with caller(world, known=False) as client:
                body = b'{"workflow": "remind"}' + b" " * size
                return (await client.post(f"{PREFIX}/runs", content=body, headers=headers)).status_code

        async def until(role: str, status: int) -> None:
            """Send requests until the server has counted the bytes of the other connections."""
            async with asyncio.timeout(PATIENCE):
                while await send(role, 100_000) != status:  # noqa: ASYNC110 - a real server
                    await asyncio.sleep(0.01)

        held = [await hold("ADMIN")]
        await until("ADMIN", 429)
        assert await send("STAFF", 100_000) == 201
        held.append(await hold("STAFF"))
        await until("OWNER", 503)
        for writer in held:
            writer.close()
        await until("OWNER", 201)


SLOW_STARTS = [
    b"POST /api/v1/login HTTP/1.1\r\nX: ",
    # The server refuses this request before it reads the body, which then arrives slowly.
    b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 15000000\r\n\r\n",
    # This is a complete request and half of the next one.
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal",
]


async def test_a_slow_connection_is_closed(tmp_path: Path) -> None:
    async with served_here(tmp_path, Limits(header_seconds=0.3)) as world:
        host, port = world.address.removeprefix("http://").split(":")
        for start in SLOW_STARTS:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(start)
            reading = asyncio.create_task(reader.read())
            for _ in range(400):
                if reading.done():
                    break
                writer.write(b"x")
                await asyncio.sleep(0.03)
            assert reading.done(), f"the server still waits after {start!r}"
            writer.close()


async def test_a_slow_body_is_abandoned(tmp_path: Path) -> None:
    async with served_here(tmp_path, Limits(seconds=0.3)) as world:
        head = [f"POST {PREFIX}/login HTTP/1.1", "Content-Type: application/json", "Content-Length: 9"]
        status, _ = await asyncio.to_thread(ask, world.address, head, b"{")
        assert status == 408


async def test_anonymous_requests_are_limited_by_address_and_others_are_not(tmp_path: Path) -> None:
    limits = Limits(anonymous_rate=0.001, anonymous_burst=6)
    async with (
        served_here(tmp_path, limits, trusted_proxies="127.0.0.1") as world,
        caller(world) as known,
        caller(world, known=False) as anonymous,
    ):

        async def statuses(address: str, *paths: str, **headers: str) -> list[int]:
            headers = {"X-Forwarded-For": address, **headers}
            return [(await anonymous.get(path, headers=headers)).status_code for path in paths]

        paths = ["/app/login", "/readyz", f"{PREFIX}/me"]
        assert await statuses("2001:db8::1", *paths) == [200, 200, 401]
        assert await statuses("2001:db8::2:1", *paths) == [200, 200, 401], "the same /64 shares a limit"
        assert await statuses("2001:db8::3", *paths, "/healthz") == [429, 429, 429, 200]
        assert await statuses("2001:db8::3", *paths, Authorization="Bearer wrong") == [429, 429, 429]
        assert await statuses("2001:db8:0:1::1", *paths) == [200, 200, 401]
        headers = {"X-Forwarded-For": "2001:db8::1"}
        assert (await known.get(f"{PREFIX}/me", headers=headers)).status_code == 200
        run = await known.post(f"{PREFIX}/runs", json={"workflow": "remind"}, headers=headers)
        assert run.status_code == 201


# -- refused before anything is parsed -------------------------------------------------------------------


class Never:
    """A replacement of functions that parse a body. It counts their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *places: tuple[Any, str]) -> None:
        self.calls: list[str] = []
        for module, name in places:
            monkeypatch.setattr(module, name, self._counted(name, getattr(module, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self.calls.append(name)
            return real(*given)

        return call


async def test_a_body_far_above_the_largest_payload_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body for one payload may have six times its bytes and 64 KiB; one for many runs has more."""
    never = Never(monkeypatch, (request_guard, "find_json_excess"), (bodies, "parse_json"), (forms, "parse_form"))
    async with served_here(tmp_path, Limits(), max_payload="100KB") as world, caller(world) as client:
        most = 600_000 + (64 << 10)
        for path in ("/runs", f"/workflow-dlq/{world.ids['acme']['letter']}/replay"):
            answer = await client.post(f"{PREFIX}{path}", content=b"[" * (most + 1), headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        page = await client.post("/app/circuits/settings", content=b"x" * (most + 1), headers=FORM)
        assert page.status_code == 413
        assert never.calls == []
        some = {"workflow": "remind", "input": {"to": "x" * 90_000}}
        batch = await client.post(f"{PREFIX}/runs:batch", json={"runs": [some] * 10})
        assert (batch.status_code, never.calls) == (201, ["find_json_excess", "parse_json"])


async def test_a_number_with_too_many_digits_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = Never(monkeypatch, (bodies, "parse_json"), (wishes, "parse_typed_json"))
    numbers = ("9" * 513, "-" + "9" * 513, "0." + "1" * 513, "1e" + "0" * 513)
    async with served_here(tmp_path, Limits()) as world, caller(world) as client:
        for number in numbers:
            for spaces in (0, 65_000, 65_400):  # The end of a chunk cuts the last one in two.
                body = f'{{"workflow": "remind", "input": {{"to": {" " * spaces}{number}}}}}'
                answer = await client.post(f"{PREFIX}/runs", content=body, headers=JSON)
                assert (answer.status_code, answer.json()["code"]) == (422, "too_complex"), number
                assert "512 digits" in answer.json()["detail"]
        assert never.calls == []
        page = f"/app/admin/dlq/{world.ids['acme']['letter']}/replay"
        async with signed_in(world) as browser:
            for number in numbers:
                form = {"mode": "FROM_FAILED", "input": f'{{"amount": {" " * 20_000}{number}}}'}
                shown = await browser.post(page, data=form)
                assert (shown.status_code, "512 digits" in shown.text) == (422, True), number
        assert never.calls == ["parse_json"], "only the sign-in was parsed"
        text = {"workflow": "remind", "input": {"to": "9" * 513, "9" * 600: 1}}
        assert (await client.post(f"{PREFIX}/runs", json=text)).status_code == 422
        assert never.calls == ["parse_json"] * 2


async def test_a_large_form_field_is_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch, (wishes, "parse_typed_json"))
    spy.go_on.set()
    async with served_here(tmp_path, Limits()) as world, signed_in(world) as browser:
        page = f"/app/admin/dlq/{world.ids['acme']['letter']}/replay"
        for size in (10, 300_000):
            form = {"mode": "FROM_FAILED", "input": json.dumps({"order": "x" * size, "amount": 1})}
            assert (await browser.post(page, data=form)).status_code == 200
    assert max(spy.in_loop) < 1000
    assert max(spy.elsewhere) > 300_000


@asynccontextmanager
async def signed_in(world: World) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield the client of a signed-in admin of acme."""
    async with opened(world.url) as store:
        new = NewUser(email="kim@acme.example", tenant="acme", role=Role.ADMIN, password="a good password")
        await access_of(store).create_user(new)
    headers = {"Sec-Fetch-Site": "same-origin"}
    async with httpx2.AsyncClient(base_url=world.address, headers=headers, timeout=PATIENCE) as browser:
        login = {"email": "kim@acme.example", "password": "a good password"}
        (await browser.post(f"{PREFIX}/login", json=login)).raise_for_status()
        yield browser
