"""The overview of a tenant: waiting runs, scheduled retries, late runs, and runs over time."""

from __future__ import annotations

import redrive
from redrive import NonRetryable, Redrive, RetryPolicy
from redrive.desk.overview import load_overview
from redrive.testing import engine

HOUR = {"seconds": 60, "slots": 60}


async def test_the_overview_counts_waiting_runs_and_the_last_hour() -> None:
    app = Redrive("sqlite:///never-opened.db")

    @app.step(retry=RetryPolicy(max_retries=5, base_delay=600, max_delay=600, jitter=0.0))
    async def call(card: str) -> None:
        if card == "declined":
            raise NonRetryable("no")
        if card == "down":
            raise ConnectionError("the bank is down")

    @app.workflow
    async def pay(card: str) -> None:
        await call(card)

    @app.workflow
    async def nap() -> None:
        await redrive.sleep("2h")

    async with engine(app) as e:
        store = app.runtime.store
        early = await pay.start("declined", tenant="acme")
        await e.settle()
        await e.advance("30m")
        for card in ("fine", "declined", "down"):
            await pay.start(card, tenant="acme")
        await nap.start(tenant="acme")
        await pay.start("declined", tenant="other")
        await e.settle()
        found = await load_overview(store.tenant_view("acme"), "acme", **HOUR)
        assert (found.open_letters, found.sleeping, found.running, found.late) == (2, 2, 0, 0)
        letter = await app.dlq.get(early.id)
        assert found.oldest_letter == letter.failed_at
        (again,) = found.retrying
        assert (again.step, again.attempt) == ("call", 1)
        assert (again.next_at - e.now).total_seconds() == 600
        assert (sum(found.runs.started), sum(found.runs.failed)) == (5, 2)
        assert (found.runs.started[-1], found.runs.failed[-1]) == (4, 1)
        assert found.runs.share == 0.4
        assert (await load_overview(store, None, **HOUR)).open_letters == 3
        await app.workflows.pause("pay")
        await pay.start("fine", tenant="acme")
        await e.advance("2m")
        later = await load_overview(store.tenant_view("acme"), "acme", **HOUR)
        assert (later.waiting, later.late) == (1, 1)
        assert later.late_since is not None
        assert (await load_overview(store.tenant_view("empty"), "empty", **HOUR)).runs.share is None
