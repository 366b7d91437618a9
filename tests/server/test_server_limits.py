"""Limits of requests, each tested without a network."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.clock import SystemClock
from redrive.errors import NotFound
from redrive.server.limits import Limits, LoginLimiter, RateLimiter
from redrive.server.live_updates import MAX_POLLS_PER_WORKER, LongPolls, StreamHub
from redrive.server.problem_responses import ProblemError
from redrive.server.request_body import JsonLimits, find_json_excess, parse_form
from redrive.server.request_guard import RequestGuard, Sender
from redrive.testing import VirtualClock

SMALL = Limits(body=100, depth=4, seconds=0.05)


async def ask(messages: list[Any], headers: dict[str, str] | None = None, method: str = "POST") -> tuple[int, bytes]:
    """Return the status of a guarded application, and the body that the application received."""
    seen: list[bytes] = []
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        if not messages:
            await asyncio.sleep(60)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http",
        "method": method,
        "path": "/",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }

    async def identify(request: Any) -> Sender:
        return Sender("ann", known=True)

    await RequestGuard(application, SMALL, identify, max_payload=1 << 20)(scope, receive, send)
    return sent[0]["status"], seen[0] if seen else b""


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_parts_arrives_whole() -> None:
    assert await ask([part(b"[1", True), part(b",2", True), part(b"]")]) == (200, b"[1,2]")


async def test_a_body_that_does_not_end_is_refused() -> None:
    assert (await ask([part(b"[1", True)]))[0] == 408


async def test_the_received_bytes_are_counted_whatever_the_declared_length() -> None:
    assert (await ask([part(b"x" * 60, True), part(b"x" * 60)]))[0] == 413
    assert (await ask([part(b"")], {"content-length": "101"}))[0] == 413
    assert (await ask([part(b"")], {"content-length": "-1"}))[0] == 400


async def test_a_client_that_disconnects_causes_no_server_error() -> None:
    assert (await ask([part(b"[", True), {"type": "http.disconnect"}]))[0] == 400


async def test_headers_have_a_size_limit() -> None:
    assert (await ask([part(b"")], {"x": "y" * 40_000}))[0] == 431


async def test_a_get_request_needs_no_body() -> None:
    assert await ask([], method="GET") == (200, b"")


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_the_measured_depth_equals_the_parsed_depth(value: Any) -> None:
    def deepest(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + max(map(deepest, value.values()), default=0)
        return 1 + max(map(deepest, value), default=0) if isinstance(value, list) else 0

    for ascii in (True, False):
        text = json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
        assert (find_json_excess(text, most(depth=3)) is not None) == (deepest(value) > 3)


def most(**given: int) -> JsonLimits:
    """Return limits that are unbounded, except for the given ones."""
    large = {"depth": 10**9, "keys": 10**9, "containers": 10**9, "values": 10**9}
    return JsonLimits(**{**large, **given})


def test_keys_containers_and_values_are_counted_outside_of_texts() -> None:
    body = rb'{"a:,[{": [1, 2], "b\\": {"c\":": "x, y: [z"}}'
    assert len(json.loads(body)) == 2
    for name, right in {"keys": 3, "containers": 3, "values": 3 + 2, "depth": 2}.items():
        assert find_json_excess(body, most(**{name: right})) is None
        assert find_json_excess(body, most(**{name: right - 1})) is not None


@pytest.mark.parametrize("before", range(60, 70))
def test_json_is_measured_correctly_across_chunks(before: int) -> None:
    """Chunks have 64 KiB: an escape, a quote and a key are each split between two chunks."""
    for inside in (b'\\"[[[', b'\\\\\\"[[[', b"[[["):
        body = b'["' + b"x" * (64 * 1024 - before) + inside * 20 + b'", {"k": [1]}]'
        assert json.loads(body)[1] == {"k": [1]}
        assert find_json_excess(body, most(depth=3, keys=1, containers=3)) is None
        assert find_json_excess(body, most(depth=2)) is not None


@pytest.mark.parametrize("before", range(6))
def test_a_form_is_decoded_correctly_across_chunks(before: int) -> None:
    value = "x" * before + "ąć+ %&=" * 20_000
    assert parse_form(urlencode([("a", value), ("b", "")]).encode()) == [("a", value), ("b", "")]
    assert parse_form(b"a=%zz&&b%") == [("a", "%zz"), ("b%", "")]


async def test_the_streams_of_a_user_are_limited() -> None:
    def view(tenant: str, workflows: frozenset[str] | None) -> Any:
        raise NotFound("this test has no store; the hub reads again after an error")

    hub = StreamHub(view, every=60, most=9, each=2)
    held = [hub.listen("acme", "ann") for _ in range(2)]
    for stream in held:
        hub.check("ann")
        assert await anext(stream)
    with pytest.raises(ProblemError, match="the limit is 2: close one"):
        hub.check("ann")
    hub.check("bob")
    await held[0].aclose()  # type: ignore[attr-defined]
    hub.check("ann")
    await held[1].aclose()  # type: ignore[attr-defined]


async def test_the_long_polls_of_a_worker_are_limited() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    polls = LongPolls(never, SystemClock())
    waiting = [asyncio.create_task(polls.wait(1, ("kind",), 60.0)) for _ in range(MAX_POLLS_PER_WORKER)]
    await asyncio.sleep(0)
    with pytest.raises(ProblemError) as refused:
        await polls.wait(1, ("kind",), 60.0)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
    other = asyncio.create_task(polls.wait(2, ("kind",), 60.0))
    waiting.pop().cancel()
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(polls.wait(1, ("kind",), 60.0)))  # there is room again
    await asyncio.sleep(0)
    polls.close()
    assert await asyncio.gather(other, *waiting) == [False] * (MAX_POLLS_PER_WORKER + 1)


async def test_a_long_poll_is_answered_although_others_of_its_kind_end_at_the_same_moment() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    polls = LongPolls(never, SystemClock())
    first, second = [asyncio.create_task(polls.wait(each, ("kind",), 60.0)) for each in (1, 2)]
    await asyncio.sleep(0)
    polls.notify_one(("kind",))
    third = asyncio.create_task(polls.wait(3, ("kind",), 60.0))  # begins after the first ends, before the second does
    polls.notify_one(("kind",))
    assert await asyncio.gather(first, second) == [True, True]
    polls.notify_one(("kind",))
    async with asyncio.timeout(20):
        assert await third
    polls.close()


def test_a_rate_limit_applies_and_recovers() -> None:
    clock = VirtualClock()
    begun = clock.now()
    rates = RateLimiter(clock, rate=1.0, burst=3)
    for _ in range(3):
        rates.take("ann")
    with pytest.raises(ProblemError) as caught:
        rates.take("ann")
    assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
    rates.take("bob")
    clock.move_to(begun + 1_000_000)
    rates.take("ann")
    with pytest.raises(ProblemError):
        rates.take("ann")


def test_only_failed_logins_count_and_users_cannot_lock_others_out() -> None:
    tries = LoginLimiter(VirtualClock(), Limits(login_burst=2))
    for _ in range(100):
        tries.take("here", "ann")
        tries.give_back("here", "ann")
    for _ in range(2):
        tries.take("there", "ann")
    with pytest.raises(ProblemError):
        tries.take("there", "ann")
    tries.take("here", "ann")
    tries.take("there", "bob")
    for number in range(40 - 3):
        tries.take(f"place {number}", "ann")
    with pytest.raises(ProblemError):
        tries.take("one more place", "ann")
    for number in range(40 - 3):
        tries.take("there", f"address {number}")
    with pytest.raises(ProblemError):
        tries.take("there", "one more address")


def test_the_number_of_rate_limit_buckets_is_bounded() -> None:
    rates = RateLimiter(VirtualClock(), rate=1.0, burst=1, most=10)
    for number in range(100):
        rates.take(str(number))
    assert len(rates._buckets) == 10
