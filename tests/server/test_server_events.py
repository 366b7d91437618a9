"""Event streams: a page is notified of changes, and a server shuts down cleanly while streams are open."""

from __future__ import annotations

import contextlib
import threading
import time

import httpx2
import pytest
from server_kit import World, serving


def lines(response: httpx2.Response, seen: list[str]) -> None:
    with contextlib.suppress(httpx2.TransportError):  # The connection closes when the test ends.
        for line in response.iter_lines():
            seen.append(line)


def until(true, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def test_a_stream_reports_only_changes_of_its_tenant(world: World) -> None:
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
            """Start runs until one is reported: the stream reports only changes after its first read."""
            world.client("acme", "STAFF").post("/runs", json={"workflow": "remind"})
            return any('"runs"' in line for line in mine)

        until(told)
        assert not any('"runs"' in line for line in theirs)


@pytest.mark.parametrize("signal", ["SIGTERM"])
def test_a_server_stops_cleanly_while_streams_are_open(own_world: World, signal: str) -> None:
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
