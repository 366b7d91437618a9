"""Questions to people on every database: answers, time limits, audiences, escalations, replays, crashes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from engines import KINDS, OnStore, on

import redrive
from redrive import Answer, Manual, NonRetryable, Redrive, TaskFilter, WaitExpired
from redrive.app.runtime import Desk
from redrive.core.keys_and_ids import letter_id
from redrive.core.roles import Role
from redrive.desk.models import Caller, Task
from redrive.desk.preview import DryRun
from redrive.errors import Conflict, InputError, MisusedStep, NotAllowed, NotFound, StepFailed
from redrive.testing import Engine, crash_everywhere

app = Redrive()
ANN, BOB = "ann@example.org", "bob@example.org"


@dataclass
class Decision:
    approved: bool
    limit: int = 0

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError("limit is negative")


@app.step
async def pay(name: str, says: str) -> str:
    return f"{name}: {says}"


@app.workflow
async def refund(name: str = "jo", cents: int = 4000) -> str:
    answer = await redrive.ask(
        f"Refund {cents / 100:.2f} to {name}?",
        options=["approve", "reject"],
        show={"name": name, "api_key": "s3cr3t"},
        to=["ADMIN", ANN],
        timeout="3d",
        escalate={"1d": ["OWNER", BOB]},
    )
    return await pay(name, f"{answer.value} by {answer.by}, {answer.note}")


@app.workflow
async def typed() -> int:
    answer = await redrive.ask("How much?", form=Decision)
    assert isinstance(answer, Answer)
    return answer.value.limit if answer.value.approved else 0


@app.workflow
async def four_eyes() -> str:
    first = await redrive.ask("First?", options=["yes"], apart_from=redrive.run_info().started_by)
    second = await redrive.ask("Second?", options=["yes"], apart_from=[first.by, None])
    return f"{first.by} and {second.by}"


@app.workflow
async def raced() -> str:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(redrive.ask("Which?", options=["a", "b"]))
        told = group.create_task(redrive.wait_for("enough"))
        await asyncio.wait([asked, told], return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            asked.cancel()
            return "enough"
        told.cancel()
        return (await asked).value


@app.step
async def refuse() -> None:
    raise NonRetryable("no")


@app.workflow
async def asks_then_fails() -> None:
    await redrive.ask("Go on?", options=["yes"])
    await refuse()


@app.step(compensate=Manual("Take the {{input.name}} from the shelf"))
async def shelve(name: str) -> None:
    return None


@app.workflow(rollback=True)
async def stored(name: str) -> None:
    await shelve(name)
    await refuse()


@pytest.fixture(params=KINDS)
async def on_store(request: pytest.FixtureRequest) -> AsyncIterator[OnStore]:
    async with on(request.param) as opened:
        yield opened


def acting(e: Engine, role: Role) -> Desk:
    """Return the operations as a caller with this role has them over HTTP."""
    return app.runtime.desk(e.store.tenant_view("default"), e.clock, Caller("digest", role=role))


async def test_an_answer_continues_the_run_once(on_store: OnStore) -> None:
    async with on_store(app) as e:
        handle = await refund.start()
        (task,) = await e.tasks(handle)
        assert (task.question, task.options) == ("Refund 40.00 to jo?", ("approve", "reject"))
        assert task.shown["name"] == "jo"
        assert task.shown["api_key"] != "s3cr3t"
        assert (await app.tasks.get(task.id, reveal=True, by=ANN)).shown["api_key"] == "s3cr3t"
        assert task.audience == f"ADMIN, {ANN}"
        assert task.due_at == task.created_at + timedelta(days=3)
        with pytest.raises(InputError):
            await e.answer("maybe")
        desk, values = app.tasks, [(ANN, "approve"), (BOB, "reject")] * 5
        answers = await asyncio.gather(
            *(desk.answer(task.id, value, note="fine", by=by) for by, value in values), return_exceptions=True
        )
        kept = [each for each in answers if isinstance(each, Task)]
        refused = [each for each in answers if isinstance(each, Conflict)]
        assert (len(kept), len(refused)) == (5, 5)
        assert len({each.answered_by for each in kept}) == 1
        first = kept[0]
        assert all(f"{first.answered_by} answered" in str(each) and first.answer in str(each) for each in refused)
        await e.settle()
        assert await handle.result() == f"jo: {first.answer} by {first.answered_by}, fine"
        assert e.calls(pay) == 1
        assert [line.event for line in (await desk.get(task.id)).history] == ["task.revealed", "task.answered"]
        assert await e.tasks() == []
        assert [each.id for each in (await desk.list(TaskFilter(status="CLOSED"))).items] == [task.id]
        with pytest.raises(Conflict):
            await desk.assign(task.id, to=ANN)


async def test_an_open_task_expires_and_escalates_in_time(on_store: OnStore) -> None:
    async with on_store(app) as e:
        handle = await refund.start()
        (task,) = await e.tasks()
        await e.advance("23h")
        assert (await app.tasks.get(task.id)).late_at is None
        await e.advance("1h")
        later = await app.tasks.get(task.id)
        assert later.people == (ANN, BOB)
        assert later.role == "ADMIN"
        assert later.late_at is not None
        assert [line.event for line in later.history] == ["task.escalated"]
        assert [each.id for each in (await app.tasks.list(TaskFilter(late=True, person=BOB))).items] == [task.id]
        await e.advance("1d 23h 59m")
        assert (await app.tasks.get(task.id)).is_open
        events = [item.event for item in (await app.notifications.list(reader="x")).items]
        assert sorted(events) == ["task_due", "task_escalated", "task_opened"]
        report = await e.finish(handle)
        assert report.error is not None
        assert report.letter is not None
        assert report.letter.code == "timeout"
        assert (await app.tasks.get(task.id)).status == "EXPIRED"
        with pytest.raises(Conflict, match="EXPIRED"):
            await e.answer("approve", task=task)
        await app.dlq.replay(report.letter.id)
        (again,) = await e.tasks()
        assert again.replaces == task.id
        assert again.id != task.id
        await e.answer("reject", by=ANN)
        assert (await e.finish(handle)).value == "jo: reject by ann@example.org, None"


async def test_only_the_audience_answers(on_store: OnStore) -> None:
    async with on_store(app) as e:
        await refund.start()
        (task,) = await e.tasks()
        with pytest.raises(NotAllowed, match=f"ADMIN, {re.escape(ANN)}"):
            await acting(e, Role.STAFF).tasks.answer(task.id, "approve", by=BOB)
        assert not (await acting(e, Role.STAFF).tasks.get(task.id, by=BOB)).may_answer
        assert (await acting(e, Role.STAFF).tasks.get(task.id, by="Ann@example.org")).may_answer
        with pytest.raises(NotFound):
            await app.runtime.desk(e.store.tenant_view("other"), e.clock).tasks.get(task.id)
        await acting(e, Role.STAFF).tasks.assign(task.id, to=ANN, by=BOB)
        await acting(e, Role.STAFF).tasks.comment(task.id, "please", by=BOB)
        answered = await acting(e, Role.ADMIN).tasks.answer(task.id, "approve", by=BOB)
        events = [line.event for line in answered.history]
        assert (answered.owner, events) == (ANN, ["task.assigned", "task.commented", "task.answered"])


async def test_a_second_person_is_asked_where_four_eyes_are(on_store: OnStore) -> None:
    async with on_store(app) as e:
        handle = await four_eyes.start(started_by="Ann@example.org")
        (task,) = await e.tasks()
        assert (await app.runs.get(handle.id)).started_by == "Ann@example.org"
        for role in (Role.STAFF, Role.OWNER):
            with pytest.raises(NotAllowed, match="another person"):
                await acting(e, role).tasks.answer(task.id, "yes", by=ANN)
        await e.answer("yes", by=BOB)
        (second,) = await e.tasks()
        with pytest.raises(NotAllowed):
            await e.answer("yes", by=BOB)
        await e.answer("yes", by=ANN)
        assert await handle.result() == f"{BOB} and {ANN}"
        assert second.apart_from == (BOB,)


async def test_an_owner_outside_the_audience_is_noted(on_store: OnStore) -> None:
    async with on_store(app) as e:

        @app.workflow(name=f"only_ann_{id(e)}")
        async def only_ann() -> None:
            await redrive.ask("Ann?", options=["yes"], to=ANN)

        await e.restart()
        await only_ann.start()
        answered = await acting(e, Role.OWNER).tasks.answer((await e.tasks())[0].id, "yes", by=BOB)
        assert answered.history[-1].after["outside"] is True


async def test_a_run_that_ends_withdraws_its_tasks(on_store: OnStore) -> None:
    async with on_store(app) as e:
        cancelled, won = await refund.start(), await raced.start()
        gone, kept = await e.tasks(cancelled), await e.tasks(won)
        await cancelled.cancel(by="ann", reason="ordered twice")
        await e.send(won, "enough")
        assert await won.result() == "enough"
        assert await e.tasks() == []
        (why,) = (await app.tasks.get(gone[0].id)).history
        assert (why.event, why.by, why.reason) == ("run.cancelled", "ann", "ordered twice")
        assert (await app.tasks.get(kept[0].id)).history == ()
        for (task,) in (gone, kept):
            assert (await app.tasks.get(task.id)).status == "WITHDRAWN"
            with pytest.raises(Conflict, match="WITHDRAWN"):
                await app.tasks.answer(task.id, task.options[0])


async def test_an_answer_has_the_type_of_its_form(on_store: OnStore) -> None:
    async with on_store(app) as e:
        good, bad = await typed.start(), await typed.start()
        tasks = {task.run_id: task for task in await e.tasks()}
        with pytest.raises(InputError, match="limit"):
            await e.answer({"approved": True, "limit": "many"}, task=tasks[good.id])
        await e.answer({"approved": True, "limit": 7}, task=tasks[good.id])
        assert await good.result() == 7
        await e.answer({"approved": True, "limit": -1}, task=tasks[bad.id], by=ANN)
        report = await e.finish(bad)
        assert report.letter is not None
        assert report.letter.category == "validation"
        assert f"the answer of {ANN}" in report.letter.reason
        await app.dlq.replay(report.letter.id)
        (again,) = await e.tasks()
        assert again.replaces == tasks[bad.id].id
        await e.answer({"approved": False})
        assert await bad.result() == 0


async def test_a_replay_keeps_answers_and_asks_anew_where_it_repeats(on_store: OnStore) -> None:
    async with on_store(app) as e:
        handle = await asks_then_fails.start()
        (task,) = await e.tasks()
        await e.answer("yes")
        report = await e.finish(handle)
        assert report.letter is not None
        await app.dlq.replay(report.letter.id)
        assert await e.tasks() == []
        await app.dlq.replay(report.letter.id, "FULL")
        (anew,) = await e.tasks()
        assert anew.replaces == task.id
        assert anew.run_id != task.run_id


@app.step
async def pay_back(cents: int) -> int:
    if cents > 100:
        raise NonRetryable("too much")
    return cents


@app.workflow
async def approved_refund(cents: int) -> str:
    answer = await redrive.ask("Refund?", options=["approve", "reject"])
    return f"{answer.value} {await pay_back(cents)}"


async def test_a_replay_with_another_input_can_ask_again(on_store: OnStore) -> None:
    async with on_store(app) as e:
        handles = [await approved_refund.start(500) for _ in range(2)]
        for _ in handles:
            await e.answer("approve", by=BOB)
        kept, anew = [letter_id((await e.finish(handle)).id) for handle in handles]
        change: dict[str, Any] = {"patch": {"cents": 50}, "by": ANN}
        plan = await app.dlq.replay(kept, dry_run=True, **change)
        assert isinstance(plan, DryRun)
        (warning,) = [each for each in plan.warnings if BOB in each]
        assert re.match(rf"{BOB} answered at \d{{4}}-\d\d-\d\d \d\d:\d\d UTC for the original input:", warning)
        plan = await app.dlq.replay(anew, dry_run=True, ask_again=True, **change)
        assert isinstance(plan, DryRun)
        assert not [each for each in plan.warnings if BOB in each]
        for options in ({"patch": None}, {"mode": "FULL"}):
            with pytest.raises(InputError, match="ask_again belongs to a replay that changes the input"):
                await app.dlq.replay(anew, **{**change, **options}, ask_again=True)
        await app.dlq.replay(kept, **change)
        assert (await e.finish(handles[0])).value == "approve 50"
        await app.dlq.replay(anew, ask_again=True, **change)
        (task,) = await e.tasks(handles[1])
        assert (task.replaces is None, task.run_id) == (False, handles[1].id)
        await e.answer("reject", task=task)
        assert (await e.finish(handles[1])).value == "reject 50"


@app.workflow
async def approved_in_time() -> str:
    starter = redrive.run_info().started_by
    return (await redrive.ask("Pay?", options=["yes", "no"], to="ADMIN", apart_from=starter, timeout="1d")).value


async def test_a_replay_gives_no_answer_in_the_place_of_those_who_were_asked(on_store: OnStore) -> None:
    """A result that a user enters for an expired question is an answer: the audience and four eyes hold for it."""
    async with on_store(app) as e:
        handle = await approved_in_time.start(started_by=ANN)
        report = await e.finish(handle)
        assert report.letter is not None
        desk, staff = acting(e, Role.ADMIN), acting(e, Role.STAFF)
        given = {"value": "yes"}
        for call in (
            desk.dlq.replay(report.letter.id, "SKIP", output=given, by=ANN),
            desk.dlq.complete(report.letter.id, given, by=ANN),
            desk.dlq.replay(report.letter.id, skip_steps={"redrive.ask": given}, by=ANN),
            desk.runs.retry(handle.id, "skip_failed", output=given, by=ANN),
            staff.dlq.replay(report.letter.id, "SKIP", output=given, by=BOB),
        ):
            with pytest.raises(NotAllowed):
                await call
        with pytest.raises(InputError, match="expected an object"):
            await desk.dlq.replay(report.letter.id, skip_steps={"redrive.ask": "yes"}, by=BOB)
        await desk.dlq.replay(report.letter.id, skip_steps={"redrive.ask": given}, by=BOB)
        assert (await e.finish(handle)).value == "yes"


async def test_a_manual_compensation_is_a_task(on_store: OnStore) -> None:
    async with on_store(app) as e:
        one, two = await stored.start("lamp"), await stored.start("sofa")
        tasks = {task.run_id: task for task in await e.tasks()}
        assert tasks[one.id].question == "Take the lamp from the shelf"
        assert tasks[one.id].kind == "manual"
        with pytest.raises(NotAllowed):
            await acting(e, Role.STAFF).tasks.answer(tasks[one.id].id, "done", by=BOB)
        await e.answer("done", task=tasks[one.id], by=ANN, note="took it")
        assert (await e.finish(one)).status == "COMPENSATED"
        answered = await app.tasks.get(tasks[one.id].id)
        assert (answered.answered_by, answered.answer, answered.note) == (ANN, "done", "took it")
        await (await app.saga(two.id)).skip("shelve", by=BOB)
        assert (await app.tasks.get(tasks[two.id].id)).answer == "skip"
        with pytest.raises(Conflict, match=BOB):
            await app.tasks.answer(tasks[two.id].id, "done", by=ANN)
        assert await e.tasks() == []


async def test_questions_survive_a_crash_anywhere() -> None:
    async def check(e: Engine, run: Any) -> None:
        assert [task.status for task in (await app.tasks.list()).items] == ["ANSWERED"]

    await crash_everywhere(self_answered, "reject", check=check)


@app.step
async def answer_own(value: str) -> None:
    """Answer the open task of the run, as a person would meanwhile."""
    (task,) = (await app.tasks.list(TaskFilter(run_id=redrive.step_info().run_id))).items
    await app.tasks.answer(task.id, value, by=ANN)


@app.workflow
async def self_answered(value: str) -> str:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(redrive.ask("Which?", options=["approve", "reject"]))
        await redrive.sleep("1m")
        await answer_own(value)
        found = (await asked).value
    assert found == value
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "options or form"),
        ({"options": ["a"], "form": int}, "options or form"),
        ({"options": []}, "different texts"),
        ({"options": ["a"], "to": "WORKER"}, "cannot answer"),
        ({"options": ["a"], "to": "bob"}, "mail address"),
        ({"options": ["a"], "escalate": {"2d": "OWNER"}, "timeout": "1d"}, "not before the time limit"),
        ({"options": ["a"], "escalate": "1d"}, "from a time"),
        ({"options": ["a"], "show": ["order"]}, "show must be an object"),
        ({"options": ["a"], "apart_from": 5}, "apart_from must be a text"),
        ({"options": ["a"], "apart_from": ["ann", b"bob"]}, "apart_from must be a text"),
        ({"options": ["a"], "notify": 5}, "notify must be a text"),
        ({"options": ["a"], "notify": "a\0"}, "notify contains a NUL"),
        ({"options": ["a"], "question": ""}, "question must be a text of 1 to 10,000 characters, not ''"),
        ({"options": ["a"], "question": "\ud800"}, "half a character"),
    ],
)
def test_a_question_without_a_possible_answer_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        redrive.ask(**{"question": "Which?", **options})


def test_a_question_needs_a_run() -> None:
    with pytest.raises(MisusedStep, match=r"e\.answer"):
        redrive.ask("Which?", options=["a"])
    assert issubclass(WaitExpired, TimeoutError)
    assert issubclass(StepFailed, Exception)
