"""Rollback of runs with children: children are undone in the ledger of their parent (P7)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from saga_kit import OnStore, Outside, Refused, deed, ledger_of, new_app

import redrive
from redrive import Redrive, RunFilter
from redrive.app import Workflow
from redrive.core.states import RunStatus
from redrive.errors import Conflict


@dataclass
class Voyage:
    """A parent that books a flight, has a child book a hotel and a car, and then fails at the visa."""

    app: Redrive
    outside: Outside
    parent: Workflow[..., Any, Any]
    stay: Workflow[..., Any, Any]

    async def child(self, workflow: str = "stay") -> Any:
        (child,) = (await self.app.runs.list(RunFilter(workflow=workflow))).items
        return child


def voyage(*, pivot: bool = False, undone: bool = True, **options: Any) -> Voyage:
    app, outside = new_app(), Outside(broken={"visa": Refused})
    steps = {name: deed(app, outside, name) for name in ("flight", "hotel", "visa")}
    steps["car"] = deed(app, outside, "car", undo=not pivot, pivot=pivot)

    @app.workflow(**{"rollback": True, **options})
    async def stay(number: int) -> str:
        await steps["hotel"](number)
        await redrive.sleep(5)
        return await steps["car"](number)

    @app.workflow(rollback=undone)
    async def travel(number: int) -> str:
        await steps["flight"](number)
        booked = await stay.run(number)
        await steps["visa"](number)
        return booked

    return Voyage(app, outside, travel, stay)


async def test_a_child_is_undone_between_the_steps_of_its_parent_and_keeps_its_result(on_store: OnStore) -> None:
    v = voyage()
    async with on_store(v.app) as e:
        run = await e.run(v.parent, 7)
        assert run.status == "COMPENSATED"
        assert v.outside.names == ["flight", "hotel", "car", "visa", "undo_car", "undo_hotel", "undo_flight"]
        child = await v.child()
        assert (child.status, child.reason) == ("COMPENSATED", f"run {run.id}, which started this run, was rolled back")
        assert await v.app.handle(child.id).result() == "car 7 done"
        assert child.letter_id is None
        assert await ledger_of(e, run.id) == [
            ("redrive.start stay", "redrive.rollback", "SUCCESS"),
            ("flight", "undo_flight", "SUCCESS"),
        ]
        (entry, _) = (await v.app.saga(run.id)).entries
        assert (entry.type, entry.run, entry.input) == ("child", child.id, {"run": child.id})
        history = [line for line in (await v.app.audit.list()).items if line.event == "execution.rollback"]
        assert [(line.subject, line.by) for line in history].count((child.id, f"run:{run.id}")) == 1


async def test_a_child_under_way_is_cancelled_first_and_undoes_itself(on_store: OnStore) -> None:
    v = voyage()
    async with on_store(v.app) as e:
        handle = await v.parent.start(7)
        await e.settle()
        assert v.outside.names == ["flight", "hotel"]
        await handle.cancel(by="ann")
        run = await e.finish(handle)
        assert (run.status, (await v.child()).status) == ("CANCELLED", "CANCELLED")
        assert v.outside.undone == ["undo_hotel", "undo_flight"]
        assert (await ledger_of(e, run.id))[0] == ("redrive.start stay", "redrive.rollback", "SUCCESS")


async def test_a_rollback_waits_for_the_letter_of_a_child_that_cannot_be_undone(on_store: OnStore) -> None:
    v = voyage()
    v.outside.broken["undo_hotel"] = Refused
    async with on_store(v.app) as e:
        handle = await v.parent.start(7)
        await e.advance("1m")
        child = await v.child()
        assert (await handle.status(), child.status) == ("COMPENSATING", "DLQ_PENDING")
        (letter,) = (await v.app.dlq.list()).items
        assert (letter.run_id, letter.code) == (child.id, "compensation_failed")
        assert await v.app.handle(child.id).result() == "car 7 done"
        with pytest.raises(Conflict, match="is being rolled back"):
            await (await v.app.saga(handle.id)).skip("redrive.start stay", by="ann")
        await e.crash()
        del v.outside.broken["undo_hotel"]
        await v.app.dlq.replay(letter.id, by="ann")
        run = await e.finish(handle)
        assert run.status == "COMPENSATED"
        assert v.outside.undone == ["undo_car", "undo_hotel", "undo_hotel", "undo_flight"]
        assert (await v.app.dlq.get(letter.id)).status == "RESOLVED"
        assert (await v.child()).status == "COMPENSATED"


@pytest.mark.parametrize("why", ["no rollback", "pivot", "letter closed"])
async def test_a_child_that_is_not_undone_is_listed_as_left(on_store: OnStore, why: str) -> None:
    v = voyage(pivot=why == "pivot", **({"rollback": False} if why == "no rollback" else {}))
    if why == "letter closed":
        v.outside.broken["undo_hotel"] = Refused
    async with on_store(v.app) as e:
        handle = await v.parent.start(7)
        await e.advance("1m")
        for letter in (await v.app.dlq.list(redrive.LetterFilter(status="OPEN"))).items:
            await v.app.dlq.ignore(letter.id, by="ann")
        run = await e.finish(handle)
        child = await v.child()
        assert run.status == "COMPENSATED"
        assert v.outside.undone[-1:] == ["undo_flight"]
        assert child.status == ("FAILED" if why == "letter closed" else "SUCCESS")
        assert await v.app.handle(child.id).result() == "car 7 done"
        assert (await ledger_of(e, run.id))[0] == ("redrive.start stay", "redrive.rollback", "LEFT")
        (line,) = [
            line
            for line in (await v.app.audit.list()).items
            if line.event == "execution.rollback" and line.subject == run.id
        ]
        after = line.after if isinstance(line.after, dict) else json.loads(line.after or "{}")
        assert (after["left"], after["undone"]) == ([child.id], 1)
        ledger = await v.app.saga(run.id)
        assert (ledger.undone, ledger.done, len(ledger.entries)) == (1, 2, 2)


async def test_a_dry_run_of_a_rollback_says_that_children_are_rolled_back(on_store: OnStore) -> None:
    v = voyage(undone=False)
    async with on_store(v.app) as e:
        run = await e.run(v.parent, 7)
        plan = await v.app.runs.rollback(run.id, dry_run=True)
        assert [step.name for step in plan.again] == ["undo_flight"]
        assert plan.warnings == ("the run that this run started is rolled back first, unless that is not possible",)
        await v.app.runs.rollback(run.id)
        assert (await e.finish(v.app.handle(run.id))).status == "COMPENSATED"
        assert v.outside.undone == ["undo_car", "undo_hotel", "undo_flight"]


async def test_children_that_do_not_end_with_their_parent_are_left_alone(on_store: OnStore) -> None:
    app, outside = new_app(), Outside(broken={"visa": Refused})
    steps = {name: deed(app, outside, name) for name in ("hotel", "visa")}

    @app.workflow(rollback=True)
    async def stay(number: int) -> str:
        return await steps["hotel"](number)

    @app.workflow(rollback=True)
    async def travel(number: int) -> None:
        await (await stay.start(number)).result()
        await steps["visa"](number)

    async with on_store(app) as e:
        run = await e.run(travel, 7)
        assert (run.status, outside.names) == ("COMPENSATED", ["hotel", "visa"])
        assert await ledger_of(e, run.id) == []
        (child,) = (await app.runs.list(RunFilter(workflow="stay"))).items
        assert child.status is RunStatus.SUCCESS
