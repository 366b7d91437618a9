"""Policies and time limits of a start, a step, a workflow, the store and the defaults."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from engines import OnStore

import redrive
from redrive import FailureEvent, Redrive, RetryPolicy, step_info
from redrive.core.states import RunStatus
from redrive.desk.run_starter import StartRequest
from redrive.errors import ConfigurationError, InputError, RegistrationError, UnknownWorkflow
from redrive.store.tenant_view import TenantView
from redrive.testing import crash_everywhere, engine
from redrive.worker.attempt import Attempt
from redrive.worker.branches import current_scope

PATIENT = RetryPolicy(base_delay="2h", max_delay="2h", jitter=0)


async def hang() -> None:
    """Sleep a billion seconds of virtual time."""
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


async def test_a_stored_default_applies_where_the_code_sets_no_policy(on_store: OnStore) -> None:
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
        assert await attempts(strict, "acme") == 2, "the policy in the code takes precedence over the default"
        assert await app.policies.delete(tenant="acme")
        assert await attempts(simple, "acme") == 6


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"start": "10s", "step": "20s", "workflow": "30s"}, "10 s"),
        ({"start": "40s", "step": "20s"}, "40 s"),
        ({"step": "20s", "workflow": "10s"}, "20 s"),
        ({"workflow": "30s"}, "30 s"),
        ({}, "10 m"),
    ],
)
@pytest.mark.parametrize("kind", ["timeout", "heartbeat"])
async def test_a_time_limit_of_the_start_precedes_that_of_the_step_and_of_the_workflow(
    given: dict[str, str], limit: str, kind: str
) -> None:
    app, beats = Redrive(), kind == "heartbeat"
    if beats and not given:
        return
    name = "heartbeat_timeout" if beats else "timeout"
    of_all = "heartbeat_timeout" if beats else "step_timeout"
    of_step: dict[str, Any] = {name: given["step"]} if "step" in given else {}
    of_workflow: dict[str, Any] = {of_all: given["workflow"]} if "workflow" in given else {}
    of_start: dict[str, Any] = {of_all: given["start"]} if "start" in given else {}

    @app.step(retry=RetryPolicy(max_retries=0), **of_step)
    async def dig() -> None:
        await hang()

    @app.workflow(**of_workflow)
    async def excavate() -> None:
        await dig()

    async with engine(app) as e:
        run = await e.run(excavate, **of_start)
        assert run.error is not None
        assert ("sent no heartbeat for " if beats else "did not finish within ") + limit in str(run.error)


async def test_the_limits_of_a_start_are_recorded_for_the_reaper_and_hold_for_compensations(on_store: OnStore) -> None:
    app = Redrive()

    @app.step
    async def take() -> int:
        return 1

    @take.compensate(retry=RetryPolicy(max_retries=0))
    async def put_back(result: int) -> None:
        await hang()

    @app.step(retry=RetryPolicy(max_retries=1, base_delay=0), timeout="1h")
    async def dig() -> None:
        if step_info().attempt == 1:
            await hang()
        raise LookupError("nothing here")

    @app.workflow(rollback=True)
    async def excavate() -> None:
        await take()
        await dig()

    async with on_store(app) as e:
        handle = await excavate.start(step_timeout="45s")
        await e.settle()
        began = e.now
        run = await e.finish(handle)
        assert run.letter is not None
        assert run.letter.code == "compensation_failed"
        assert "step 'put_back' did not finish within 45 s" in str(run.error)
        assert timedelta(seconds=90) <= e.now - began < timedelta(minutes=3)
        rows = await e.store.journal((await e.store.run(handle.id)).id)  # type: ignore[union-attr]
        assert all('"timeout":45.0' in (row.options or "") for row in rows if row.name == "put_back")


async def test_the_time_limit_of_a_start_replaces_that_of_the_workflow(on_store: OnStore) -> None:
    app = Redrive()

    @app.workflow(timeout="1h")
    async def wait() -> None:
        await redrive.sleep("30d")

    async with on_store(app) as e:
        for limit, seconds in (("2d", 2 * 86_400), (90, 90), (None, 3600)):
            began = e.now
            run = await e.run(wait, timeout=limit)
            assert run.status is RunStatus.TIMED_OUT
            assert timedelta(0) <= e.now - began - timedelta(seconds=seconds) < timedelta(minutes=1)


async def test_a_start_names_the_handler_of_its_failure_and_the_queue_of_handlers(on_store: OnStore) -> None:
    app, heard = Redrive(), list[str]()

    @app.workflow
    async def usual(event: FailureEvent) -> None:
        heard.append("usual")

    @app.workflow
    async def special(event: FailureEvent) -> None:
        heard.append(f"special {event.workflow}")

    @app.on_failure
    async def always(event: FailureEvent) -> None:
        heard.append("always")

    @app.workflow(on_failure=usual, failure_queue="bells")
    async def fail() -> None:
        raise LookupError

    @app.workflow
    async def nothing(word: str) -> None: ...

    async with on_store(app) as e:
        for options, names, queue in [
            ({}, {"usual", "always"}, "bells"),
            ({"on_failure": special}, {"special fail", "always"}, "bells"),
            ({"on_failure": "special", "failure_queue": "alarm"}, {"special fail", "always"}, "alarm"),
            ({"on_failure": always}, {"always"}, "bells"),
        ]:
            heard.clear()
            handlers = await e.handlers(await e.run(fail, **options))
            assert (set(heard), {each.described.queue for each in handlers}) == (names, {queue})
        with pytest.raises(RegistrationError, match="'nosuch', which is not registered"):
            await fail.start(on_failure="nosuch")
        with pytest.raises(RegistrationError, match="a FailureEvent does not fit"):
            await fail.start(on_failure=nothing)


async def test_a_process_without_the_code_starts_runs_with_a_handler_that_workers_registered(on_store: OnStore) -> None:
    app = Redrive()

    @app.workflow(timeout="2h", step_timeout="1m")
    async def special(event: FailureEvent) -> str:
        return event.workflow

    @app.workflow
    async def nothing(word: str) -> None: ...

    @app.workflow
    async def fail() -> None:
        raise LookupError

    def request(**options: Any) -> list[StartRequest]:
        return [StartRequest(workflow="fail", options=options)]

    async with on_store(app) as e:
        starter = app.runtime.starter
        (started,) = await starter.start(request(on_failure="special", failure_queue="alarm"))
        (handler,) = await e.handlers(await e.finish(app.handle(started.public_id)))
        assert (handler.described.workflow, handler.result, handler.described.queue) == ("special", "fail", "alarm")
        stored = await e.store.run(handler.id)
        assert stored is not None
        assert stored.timeout == 7200 * 1_000_000
        assert '"default_timeout":60.0' in (stored.options or "")
        with pytest.raises(InputError, match="'nothing' cannot handle failures"):
            await starter.start(request(on_failure="nothing"))
        with pytest.raises(UnknownWorkflow, match="nosuch"):
            await starter.start(request(on_failure="nosuch"))
        narrow = app.runtime.desk(TenantView(e.store, "default", workflows=("fail",)), e.clock).starter
        with pytest.raises(UnknownWorkflow, match="special"):
            await narrow.start(request(on_failure="special"))
        assert len((await app.runs.list()).items) == 2, "a refused start creates no run"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step_timeout": 0}, "step_timeout must be longer than 0"),
        ({"timeout": "0s"}, "timeout must be longer than 0"),
        ({"heartbeat_timeout": "soon"}, "heartbeat_timeout is 'soon'"),
        ({"failure_queue": "bells"}, "failure_queue needs a workflow that handles the failure"),
        ({"retry": 3}, "retry takes a RetryPolicy, not int"),
    ],
)
async def test_a_wrong_option_of_a_start_is_refused(options: dict[str, Any], words: str) -> None:
    app = Redrive()

    @app.workflow
    async def job() -> None: ...

    async with engine(app):
        with pytest.raises((InputError, ConfigurationError), match=words):
            await job.start(**options)
        assert not (await app.runs.list()).items


async def test_a_start_with_limits_survives_crashes() -> None:
    app = Redrive()

    @app.step(retry=RetryPolicy(max_retries=2, base_delay=0))
    async def dig() -> int:
        if step_info().attempt == 1:
            await hang()
        return step_info().attempt

    @app.workflow(step_timeout="20s")
    async def excavate() -> int:
        return await dig()

    await crash_everywhere(excavate)
