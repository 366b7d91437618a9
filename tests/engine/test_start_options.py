"""Policies and time limits: those of a start, of a step, of a workflow, stored ones and defaults."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from engines import OnStore

from redrive import Redrive, RetryPolicy
from redrive.worker.attempt import Attempt
from redrive.worker.branches import current_scope

PATIENT = RetryPolicy(base_delay="2h", max_delay="2h", jitter=0)


async def hang() -> None:
    """Take a billion seconds of virtual time."""
    attempt = current_scope.get()
    assert isinstance(attempt, Attempt)
    await attempt.execution.clock.sleep(10**9)


@pytest.mark.parametrize("given", ["start", "stored step", "stored workflow", "step", "workflow", "stored default"])
async def test_a_run_whose_worker_died_waits_by_the_policy_in_force(given: str, on_store: OnStore) -> None:
    app = Redrive()

    @app.step(retry=PATIENT if given == "step" else None)
    async def dig() -> None:
        await hang()

    @app.workflow(retry=PATIENT if given == "workflow" else None)
    async def excavate() -> None:
        await dig()

    stored = {"stored step": {"step": "dig"}, "stored workflow": {"workflow": "excavate"}, "stored default": {}}
    options: dict[str, Any] = {"retry": PATIENT} if given == "start" else {}
    async with on_store(app) as e:
        if given in stored:
            await app.policies.set(PATIENT, **stored[given])
        handle = await excavate.start(**options)
        await e.advance("1s")
        await e.crash()
        waiting = await handle.describe()
        assert waiting.next_at is not None
        assert timedelta(hours=1, minutes=59) < waiting.next_at - e.now <= timedelta(hours=2)


async def test_a_stored_default_decides_where_the_code_says_nothing(on_store: OnStore) -> None:
    app, own = Redrive(), RetryPolicy(max_retries=1, base_delay=0)

    class Odd(Exception):
        pass

    @app.step
    async def plain() -> None:
        raise Odd

    @app.step(retry=own)
    async def careful() -> None:
        raise Odd

    @app.workflow
    async def simple() -> None:
        await plain()

    @app.workflow
    async def strict() -> None:
        await careful()

    async def attempts(workflow: Any, tenant: str) -> int:
        run = await e.run(workflow, tenant=tenant)
        assert run.letter is not None
        return run.letter.attempts

    async with on_store(app) as e:
        await app.policies.set(RetryPolicy(max_retries=5, base_delay=0))
        await app.policies.set(RetryPolicy(never_retry_on=["unknown"]), tenant="acme")
        assert await attempts(simple, "globex") == 6
        assert await attempts(simple, "acme") == 1, "the tenant's default says that unknown errors are not retried"
        assert await attempts(strict, "acme") == 2, "code goes before the default"
        assert await app.policies.delete(tenant="acme")
        assert await attempts(simple, "acme") == 6
