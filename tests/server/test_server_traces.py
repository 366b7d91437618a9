"""Traces: a run continues the trace of the request that started it."""

from __future__ import annotations

import pytest
from server_kit import World

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (f"00-{TRACE}-{SPAN}-01", TRACE),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}", None),
        ("<script>", None),
    ],
)
def test_a_traceparent_becomes_the_run_s_trace(world: World, header: str, found: str | None) -> None:
    client = world.client("acme", "ADMIN")
    started = client.post("/runs", json={"workflow": "remind"}, headers={"traceparent": header})
    assert started.status_code == 201
    assert client.get(f"/runs/{started.json()['id']}").json()["trace_id"] == found
