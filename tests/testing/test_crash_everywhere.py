"""Crashes at every point: correct workflows survive, and each kind of mistake is detected and named."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

import redrive
from redrive import ChildFailed, Redrive, RetryPolicy, RunFilter, StepFailed, run_info, step_info
from redrive.chores import Reaper
from redrive.core.states import RunStatus
from redrive.store.notifications import NotificationStore
from redrive.store.port import LeaseConnection, Store
from redrive.testing import CrashPoint, Engine, RunReport, crash_everywhere, engine
from redrive.testing.crash import _SKIPPED_CALLS, CrashTiming, _RecordingPlan
from redrive.worker.step_call import StepCall

pytestmark = pytest.mark.heavy


def make_app() -> Redrive:
    return Redrive("sqlite:///never-opened.db")


def with_steps() -> tuple[Redrive, Any, Any]:
    app = make_app()

    @app.step
    async def add(a: int, b: int) -> int:
        return a + b

    @app.step(retry=RetryPolicy(max_retries=3))
    async def flaky(n: int) -> int:
        if step_info().attempt < 3:
            raise ConnectionError("not yet")
        return n

    return app, add, flaky


# -- correct workflows ---------------------------------------------------------------------------------------


async def test_a_sound_workflow_survives_every_point() -> None:
    app, add, flaky = with_steps()

    @app.workflow
    async def sound(n: int) -> int:
        first = await add(n, 1)
        await redrive.sleep("2d")
        left, right = await asyncio.gather(add(first, 1), flaky(first))
        async with redrive.timeout("1d"):
            return await add(left, right)

    points = await crash_everywhere(sound, 1)
    assert {point.manner for point in points} == set(CrashTiming)
    assert {point.call for point in points} == {"enlist", "claim", "apply", "add", "flaky"}
    steps = [point for point in points if point.manner is CrashTiming.DURING]
    assert {(point.call, point.number) for point in steps} == {
        *(("add", n) for n in (1, 2, 3)),
        *(("flaky", n) for n in (1, 2, 3)),
    }


async def test_a_run_that_fails_has_one_letter_wherever_it_crashes() -> None:
    app, add, _ = with_steps()

    @app.step
    async def refuse() -> None:
        raise ValueError("never")

    @app.workflow
    async def doomed(n: int) -> None:
        await add(n, 1)
        try:
            await refuse()
        except StepFailed:
            await add(n, 2)
        await refuse()

    assert await crash_everywhere(doomed, 1)


async def test_values_that_depend_on_time_or_chance_are_not_compared() -> None:
    app, add, _ = with_steps()

    @app.workflow
    async def by_chance() -> list[str]:
        await add(1, 1)
        return [str(redrive.uuid()), str(redrive.now()), str(redrive.random())]

    assert await crash_everywhere(by_chance)


async def test_a_step_that_runs_at_most_once_may_end_the_run_but_is_never_called_twice() -> None:
    app, add, _ = with_steps()
    calls: list[int] = []
    ends: set[str] = set()

    @app.step(at_most_once=True)
    async def launch(n: int) -> int:
        calls.append(n)
        return n

    @app.workflow
    async def rocket(n: int) -> int:
        return await launch(await add(n, 1))

    async def fresh(e: Engine) -> None:
        calls.clear()

    async def once(e: Engine, run: RunReport) -> None:
        assert len(calls) <= 1
        ends.add(run.status)

    await crash_everywhere(rocket, 1, setup=fresh, check=once)
    assert ends == {"SUCCESS", "DLQ_PENDING"}


async def test_a_transactional_effect_happens_exactly_once() -> None:
    app, add, _ = with_steps()

    @app.step(transactional=True)
    async def debit(tx: Any, amount: int) -> int:
        await tx.execute("CREATE TABLE IF NOT EXISTS debits (amount INTEGER)")
        await tx.execute("INSERT INTO debits VALUES (?)", amount)
        return amount

    @app.workflow
    async def pay(amount: int) -> int:
        return await debit(await add(amount, 0))

    async def debited_once(e: Engine, run: RunReport) -> None:
        assert await e.fetch("SELECT amount FROM debits") == [{"amount": 5}]

    points = await crash_everywhere(pay, 5, check=debited_once)
    assert {"transaction.execute", "transaction.commit"} <= {point.call for point in points}


async def test_runs_that_a_workflow_starts_are_started_once() -> None:
    app, add, _ = with_steps()

    @app.workflow
    async def child(n: int) -> int:
        return await add(n, n)

    @app.workflow
    async def parent() -> int:
        for n in range(2):
            await child.start(n)
        return await add(1, 2)

    assert await crash_everywhere(parent)


async def test_waits_sends_and_statuses_survive_every_point() -> None:
    """Events come early, while the run waits in memory, and while it waits in the store; it also sends to itself."""
    app = Redrive("sqlite:///never-opened.db", hold="1s")

    @app.step
    async def ask() -> None:
        redrive.set_status("asked", progress=0.5)
        await app.runs.send(step_info().run_id, "echo", "from the step")

    @app.workflow
    async def order() -> list[Any]:
        await ask()
        found = [await redrive.wait_for("approved", timeout="300d")]
        await app.runs.send(run_info().run_id, "echo", "from the workflow")
        found += await redrive.receive("echo", upto=2, within="1d")
        late, never = await asyncio.gather(
            redrive.wait_for("note"), redrive.wait_for("never", timeout="1h", default="nothing")
        )
        return [*found, late, never]

    async def check(e: Engine, report: RunReport) -> None:
        assert report.result == ["ann", "from the step", "from the workflow", "hello", "nothing"]
        events = await app.runs.events(report.id)
        assert [event.status.value for event in events] == ["TAKEN"] * 4
        assert report.described.note is None or report.described.note.text == "asked"

    points = await crash_everywhere(order, check=check, events=[("approved", "ann"), ("note", "hello")])
    assert len(points) > 30


async def test_a_parent_and_its_children_survive_every_point() -> None:
    """Children that end at once, that end later, and that fail; each is started once, and its end is never missed."""
    app, add, _ = with_steps()

    @app.step(retry=RetryPolicy(max_retries=0))
    async def fail() -> None:
        raise ValueError("no")

    @app.workflow
    async def child(n: int, pause: str | None = None) -> int:
        if pause is not None:
            await redrive.sleep(pause)
        return await add(n, 1)

    @app.workflow
    async def broken() -> None:
        await fail()

    @app.workflow
    async def parent() -> list[Any]:
        found: list[Any] = [await child.run(1), await child.run(2, "2h")]
        try:
            await broken.run(on_letter="fail")
        except ChildFailed as error:
            found.append(error.status)
        return found

    async def check(e: Engine, report: RunReport) -> None:
        assert report.result == [2, 3, "DLQ_PENDING"]
        runs = (await e.app.runs.list()).items
        assert sorted(run.workflow for run in runs) == ["broken", "child", "child", "parent"]
        assert {run.status for run in runs if run.workflow != "broken"} == {RunStatus.SUCCESS}

    points = await crash_everywhere(parent, check=check)
    assert {point.call for point in points} >= {"awaited_run", "apply", "add"}


@pytest.mark.slow
async def test_a_rollback_that_reaches_a_child_survives_every_crash() -> None:
    app, calls = Redrive("sqlite:///:memory:"), list[str]()

    @app.step
    async def book(n: int) -> int:
        return n

    @book.compensate
    async def cancel(n: int, result: int) -> None:
        calls.append(f"cancel {n}")

    @app.step(retry=RetryPolicy(max_retries=0))
    async def fail() -> None:
        raise ValueError("no")

    @app.workflow(rollback=True)
    async def child(n: int) -> int:
        return await book(n)

    @app.workflow(rollback=True)
    async def parent() -> None:
        await book(1)
        await child.run(2)
        await fail()

    async def check(e: Engine, report: RunReport) -> None:
        assert report.status is RunStatus.COMPENSATED
        assert list(dict.fromkeys(calls)) == ["cancel 2", "cancel 1"]
        calls.clear()
        (run,) = (await e.app.runs.list(RunFilter(workflow="child"))).items
        assert run.status is RunStatus.COMPENSATED
        assert await e.app.handle(run.id).result() == 2
        assert [entry.status for entry in (await e.app.saga(report.id)).entries] == ["SUCCESS", "SUCCESS"]

    points = await crash_everywhere(parent, check=check)
    assert {point.call for point in points} >= {"children_of", "awaited_run", "apply"}


async def test_start_options_and_keyword_arguments_are_passed_on() -> None:
    app, add, _ = with_steps()
    tenants: set[str] = set()

    @app.workflow
    async def keyed(*, n: int) -> int:
        return await add(n, 1)

    async def look(e: Engine, run: RunReport) -> None:
        tenants.add(run.described.tenant)
        assert run.result == 8

    await crash_everywhere(keyed, n=7, tenant="acme", check=look)
    assert tenants == {"acme"}


async def test_fakes_that_remember_their_calls_cause_no_false_alarm() -> None:
    """A fake that fails at its first call fails in the first run only."""
    app = make_app()
    calls: list[str] = []

    @app.step
    async def flaky() -> str:
        calls.append("called")
        if len(calls) <= 2:
            raise ConnectionError("not yet")
        return "done"

    @app.step
    async def make_id() -> str:
        return str(uuid.uuid4())

    @app.workflow
    async def working() -> list[str]:
        return [await make_id(), await flaky()]

    assert await crash_everywhere(working)


# -- mistakes that are detected ------------------------------------------------------------------------------


async def test_state_kept_in_a_global_is_detected() -> None:
    app, add, _ = with_steps()
    seen: list[int] = []

    @app.workflow
    async def forgetful() -> list[int]:
        seen.append(await add(1, 1))
        seen.append(await add(2, 2))
        return list(seen)

    async def fresh(e: Engine) -> None:
        seen.clear()

    with pytest.raises(AssertionError) as failure:
        await crash_everywhere(forgetful, setup=fresh)
    text = str(failure.value)
    assert "workflow 'forgetful' does not survive a crash before" in text
    assert "the run returned [2, 2, 4] instead of [2, 4]" in text


async def test_state_that_leaks_from_run_to_run_is_detected_before_any_crash() -> None:
    app, add, _ = with_steps()
    seen: list[int] = []

    @app.workflow
    async def leaky() -> int:
        seen.append(await add(1, 1))
        return len(seen)

    with pytest.raises(AssertionError, match="differs between two undisturbed runs"):
        await crash_everywhere(leaky)


async def test_control_flow_that_depends_on_memory_is_detected() -> None:
    """The resumed function calls other steps than the first execution."""
    app, add, _ = with_steps()
    memory: dict[str, int] = {}

    @app.step
    async def use(value: int) -> int:
        return value

    @app.workflow
    async def cached() -> int:
        if "value" not in memory:
            memory["value"] = await add(1, 1)
        return await use(memory["value"])

    async def fresh(e: Engine) -> None:
        memory.clear()

    with pytest.raises(AssertionError, match="/add#0 is missing from the journal"):
        await crash_everywhere(cached, setup=fresh)


async def test_an_effect_outside_of_any_step_is_detected_by_a_check() -> None:
    app, add, _ = with_steps()
    mails: list[str] = []

    @app.workflow
    async def careless() -> int:
        mails.append("sent by the workflow function itself")
        return await add(1, 1)

    async def fresh(e: Engine) -> None:
        mails.clear()

    async def one_mail(e: Engine, run: RunReport) -> None:
        assert len(mails) == 1, "mails were sent twice"

    with pytest.raises(AssertionError, match=r"does not survive a crash .*mails were sent twice"):
        await crash_everywhere(careless, setup=fresh, check=one_mail)


async def test_a_check_that_fails_without_a_crash_fails_at_once() -> None:
    app, add, _ = with_steps()

    @app.workflow
    async def fine() -> int:
        return await add(1, 1)

    async def wrong(e: Engine, run: RunReport) -> None:
        assert run.result == 3, "two is not three"

    with pytest.raises(AssertionError, match=r"^two is not three"):
        await crash_everywhere(fine, check=wrong)


async def test_a_workflow_that_never_ends_is_named() -> None:
    app = make_app()
    never = asyncio.Event()
    crashed: list[bool] = []

    @app.step
    async def add() -> int:
        return 1

    @app.workflow
    async def hangs_the_second_time() -> int:
        value = await add()
        if crashed:
            await never.wait()
        crashed.append(True)
        return value

    async def fresh(e: Engine) -> None:
        crashed.clear()

    from redrive.testing import crash

    patience, crash._PATIENCE = crash._PATIENCE, 3.0
    try:
        with pytest.raises(AssertionError, match="waits for something outside of its steps"):
            await crash_everywhere(hangs_the_second_time, setup=fresh)
    finally:
        crash._PATIENCE = patience


# -- bugs of the engine itself -------------------------------------------------------------------------------


async def test_a_death_that_uses_an_attempt_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    app, add, _ = with_steps()

    @app.workflow
    async def fine() -> int:
        return await add(1, 1)

    take_up = StepCall._resume

    async def miscount(self: Any, entry: Any) -> None:
        await take_up(self, entry)
        self._attempt += 1

    monkeypatch.setattr(StepCall, "_resume", miscount)
    with pytest.raises(AssertionError, match=r"a crash during call #1 of step 'add': /add#0 took 2 attempts"):
        await crash_everywhere(fine)


async def test_an_at_most_once_step_that_is_called_twice_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app()

    @app.step(at_most_once=True)
    async def launch() -> int:
        return 1

    @app.workflow
    async def rocket() -> int:
        return await launch()

    async def forget(self: Any, entry: Any) -> None: ...

    monkeypatch.setattr(StepCall, "_resume", forget)
    with pytest.raises(AssertionError, match="the body of /launch#0 was called 2 times; at most 1 is right"):
        await crash_everywhere(rocket)


async def test_a_lost_run_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    app, add, _ = with_steps()

    @app.workflow
    async def fine() -> int:
        return await add(1, 1)

    async def find_nobody(self: Any) -> int:
        return 0

    monkeypatch.setattr(Reaper, "_recover_orphans", find_nobody)
    with pytest.raises(AssertionError, match=r"has not ended after .* it is RUNNING"):
        await crash_everywhere(fine)


async def test_the_app_must_not_be_open() -> None:
    app, add, _ = with_steps()

    @app.workflow
    async def fine() -> int:
        return await add(1, 1)

    async with engine(app):
        with pytest.raises(redrive.errors.ConfigurationError, match="open already"):
            await crash_everywhere(fine)


def test_a_crash_point_describes_its_place() -> None:
    assert (
        str(CrashPoint(CrashTiming.AFTER, "apply", 7, "step 'charge' was being recorded"))
        == "a crash after apply #7, as step 'charge' was being recorded"
    )
    assert str(CrashPoint(CrashTiming.LOST, "claim", 1)) == "the lost reply of claim #1"
    assert str(CrashPoint(CrashTiming.DURING, "charge", 2)) == "a crash during call #2 of step 'charge'"


@pytest.mark.parametrize(
    ("beyond", "complaint"),
    [
        (CrashPoint(CrashTiming.BEFORE, "apply", 99), None),  # batches differ from run to run
        (CrashPoint(CrashTiming.BEFORE, "cases", 1), "did not come to a crash before cases #1"),
        (CrashPoint(CrashTiming.DURING, "flaky", 1), "did not come to a crash during call #1 of step 'flaky'"),
    ],
    ids=str,
)
async def test_a_crash_point_that_is_not_reached_does_not_count_as_survived(
    monkeypatch: pytest.MonkeyPatch, beyond: CrashPoint, complaint: str | None
) -> None:
    app, add, _ = with_steps()
    learned: list[CrashPoint] = []
    points = _RecordingPlan.points

    @app.workflow
    async def fine() -> int:
        return await add(1, 1)

    def and_one_more(self: _RecordingPlan) -> list[CrashPoint]:
        learned[:] = points(self)
        return [*learned, beyond]

    monkeypatch.setattr(_RecordingPlan, "points", and_one_more)
    if complaint is None:
        assert await crash_everywhere(fine) == learned  # all existing points, and not the one after them
    else:
        with pytest.raises(AssertionError, match=complaint):
            await crash_everywhere(fine)


def test_skipped_calls_exist() -> None:
    """A renamed call would no longer be skipped, which takes time and shows nothing."""
    parts = {"lease": LeaseConnection, "notifications": NotificationStore}
    named = [name.rpartition(".") for name in _SKIPPED_CALLS]
    assert all(hasattr(parts[part] if part else Store, call) for part, _, call in named)
