"""Notifications while store calls fail, lose their reply or kill the worker: each failure is notified once."""

from __future__ import annotations

import pytest
from notify_kit import OPS, Postbox, failing

from redrive import Redrive
from redrive.testing import engine
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault, Plan, crash_after, crash_before
from redrive.testing.step_faults import Crash

CALLS = (
    "notifications.rules",
    "notifications.due",
    "notifications.add",
    "notifications.send",
    "claim_deliveries",
    "record_deliveries",
)
FAULTS = {
    "fails": FAIL,
    "loses its reply": LOSE,
    "is never made": crash_before(Crash()),
    "kills its caller": crash_after(Crash()),
}


def once(number: int, fault: Fault, of: str) -> Plan:
    """Return a plan with a fault at the call of this name and number, in any worker."""
    left = [number]

    def plan(call: Call) -> Fault | None:
        left[0] -= call.name == of
        return fault if call.name == of and left[0] == 0 else None

    return plan


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_every_failure_is_notified_and_counted_once(box: Postbox, call: str, fault: Fault) -> None:
    app = Redrive(smtp_url=box.url)
    fulfil = failing(app, notify={"email": OPS})
    for number in (1, 2):
        box.mails.clear()
        async with engine(app, plan=once(number, fault, call)) as e:
            await fulfil.start("A", why="one")
            await fulfil.start("B", why="another")
            await e.settle()
            await e.advance("10m")
            inbox = (await app.notifications.list()).items
            assert sorted(item.count for item in inbox) == [1, 1]
            assert len({str(mail["Message-ID"]) for mail in box.to(OPS)}) == 2
