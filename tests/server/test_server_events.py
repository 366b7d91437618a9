"""Hints: a page hears that something changed, and a server stops in good order while pages are open."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx2
import pytest
from server_kit import World, serving


def lines(response: httpx2.Response, seen: list[str]) -> None:
    with contextlib.suppress(httpx2.TransportError):  # the test is over, and its connection with it
        for line in response.iter_lines():
            seen.append(line)


def until(true, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_a_page_hears_of_its_own_tenant_s_changes_only(world: World) -> None:
    mine, theirs = ([], [])  # type: tuple[list[str], list[str]]
    with (
        world.client("acme", "VIEWER", headers={"X-Once": "1"}).stream("GET", "/events") as one,
        world.client("globex", "VIEWER", headers={"X-Once": "1"}).stream("GET", "/events") as two,
    ):
        assert one.headers["content-type"].startswith("text/event-stream")
        for response, seen in ((one, mine), (two, theirs)):
            threading.Thread(target=lines, args=(response, seen), daemon=True).start()
        until(lambda: "event: hello" in mine and "event: hello" in theirs)

        def told() -> bool:
            """Runs are started until one comes after the first look, from which changes are told."""
            world.client("acme", "STAFF").post("/runs", json={"workflow": "remind"})
            return any('"runs"' in line for line in mine)

        until(told)
        assert not any('"runs"' in line for line in theirs)


@pytest.mark.parametrize("signal", ["SIGTERM"])
def test_a_server_stops_in_good_order_with_streams_open(own_world: World, signal: str) -> None:
    with serving(own_world.url) as process:
        own_world.address = process.address
        seen: list[str] = []
        with own_world.client("acme", "VIEWER", headers={"X-Once": "1"}).stream("GET", "/events") as response:
            reader = threading.Thread(target=lines, args=(response, seen), daemon=True)
            reader.start()
            until(lambda: "event: hello" in seen)
            begun = time.monotonic()
            assert process.stop() == 0
            reader.join(20)
        assert "event: bye" in seen
        assert time.monotonic() - begun < 30
        assert any("stopped" in line for line in process.lines)
