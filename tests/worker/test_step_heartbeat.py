"""Step heartbeats: a step's heartbeat is not lost when the worker's heartbeat fails."""

from __future__ import annotations

from redrive.clock import SystemClock
from redrive.errors import StoreUnavailable
from redrive.store.workers import Beats, HeartbeatReply
from redrive.worker.lease import Lease


class Line:
    """A connection that fails once and records the heartbeats that it was sent."""

    def __init__(self) -> None:
        self.sent: list[dict[tuple[int, int], str | None]] = []
        self.fails = True

    def beat(self, beats: Beats) -> dict[int, HeartbeatReply]:
        if self.fails:
            self.fails = False
            raise StoreUnavailable("not now")
        ((worker, heartbeats),) = beats.items()
        self.sent.append(dict(heartbeats))
        return {worker: HeartbeatReply(alive=True, held=frozenset(), now=0)}

    def close(self) -> None: ...


async def test_a_step_heartbeat_whose_transmission_failed_is_sent_with_the_next_one() -> None:
    signs = iter([{(1, 0): '"half"'}, {(2, 0): None}, {}])
    line = Line()
    lease = Lease(line, SystemClock(), 1, 30.0, heartbeats=lambda: next(signs), on_beat=lambda beat: None)
    assert lease.renew_once() is None
    assert lease.renew_once() is not None
    assert lease.renew_once() is not None
    assert line.sent == [{(1, 0): '"half"', (2, 0): None}, {}]
