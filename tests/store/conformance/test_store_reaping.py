"""Conformance tests of the reaper: it decides on lost runs, even if one run or the store is faulty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from store_kit import HOUR, LEASE, SECOND, Kit, entry, writes

from redrive.chores.reaper import Reaper
from redrive.core.run_options import RunOptions, StepOptions
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import Transition, TransitionResult
from redrive.errors import DataRefused, StoreUnavailable
from redrive.store.claims import ClaimedRun
from redrive.store.port import Store
from redrive.testing.faulty_store import FAIL, LOSE, Fault, inject_faults, nth

RUN, STEP, SLOW = RunOptions().to_json(), StepOptions().to_json(), StepOptions(timeout=3600).to_json()
UNREADABLE = '{"retry":'


class Refusing:
    """A store that refuses every write about one run."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.bad = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(self, transitions: Sequence[Transition], **options: Any) -> list[TransitionResult]:
        if any(each.run == self.bad for each in transitions):
            raise DataRefused("the store refused a row: on purpose")
        return await self._inner.apply(transitions, **options)


async def under_way(
    kit: Kit,
    *,
    options: Sequence[str] = (RUN,),
    step: Sequence[str] = (),
    lease: int = LEASE,
    workflow: str = "w",
    **more: int,
) -> list[ClaimedRun]:
    """Start a run for each of these options, held by one worker, with a begun step for each of `step`."""
    for each in options:
        await kit.start(options=each, workflow=workflow, **more)
    worker = await kit.worker(workflow, lease=lease)
    runs = (await kit.claim(worker, workflow, capacity=len(options))).runs
    assert len(runs) == len(options)
    marks = [
        writes(run, entry(0, StepStatus.RUNNING, limit_in=HOUR if text is SLOW else SECOND, options=text))
        for run, text in zip(runs, step, strict=False)
    ]
    assert all(answer.kept for answer in await kit.store.apply(marks, worker=worker))
    return sorted(runs, key=lambda run: run.id)


async def ends(kit: Kit, run: ClaimedRun) -> list[str]:
    """Return the outcomes of a run's attempts."""
    return [str(row.end) for row in await kit.store.attempts(run.id)]


REFUSED = {  # the fault of the runs, the moment it shows, and the result for the healthy runs
    "orphans": ({}, LEASE + 1, (RunStatus.PENDING, ["LOST"])),
    "hung": ({}, 5 * SECOND, (RunStatus.SLEEPING, ["TIMED_OUT"])),
    "overdue": ({"timeout": 3 * SECOND}, 5 * SECOND, (RunStatus.TIMED_OUT, ["CANCELLED"])),
}


def read_logged_fields(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields about a run of each line of the log."""
    return [getattr(record, "redrive", {}) for record in caplog.records]


@pytest.mark.parametrize("which", REFUSED)
async def test_a_refused_run_does_not_block_the_others(kit: Kit, which: str, caplog: pytest.LogCaptureFixture) -> None:
    more, later, good = REFUSED[which]
    runs = await under_way(kit, options=[RUN] * 3, step=[STEP] * 3 if which == "hung" else [SLOW] * 3, **more)
    kit.clock.move(later)
    store = Refusing(kit.store)
    store.bad = runs[1].id
    assert await Reaper(cast(Store, store), kit.clock).run_once() == 2
    bad = (RunStatus.RUNNING, [])
    assert [((await kit.look(run)).status, await ends(kit, run)) for run in runs] == [good, bad, good]
    assert runs[1].public_id in [fields.get("run_id") for fields in read_logged_fields(caplog)]
    store.bad = 0
    assert await Reaper(cast(Store, store), kit.clock).run_once() == 1  # nothing of it was lost


async def test_an_unreadable_run_does_not_block_the_others(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """The unreadable run is due like the others. The worker that claims it writes its letter."""
    runs = await under_way(kit, options=[RUN, UNREADABLE, RUN])
    kit.clock.move(LEASE + 1)
    assert await Reaper(kit.store, kit.clock).run_once() == 3
    found = [await kit.look(run) for run in runs]
    assert [(run.status, run.worker) for run in found] == [(RunStatus.PENDING, None)] * 3
    assert runs[1].public_id in [fields.get("run_id") for fields in read_logged_fields(caplog)]


async def test_an_unreadable_run_is_ended_at_its_deadline(kit: Kit) -> None:
    runs = await under_way(kit, options=[RUN, UNREADABLE, RUN], timeout=3 * SECOND)
    kit.clock.move(5 * SECOND)
    assert await Reaper(kit.store, kit.clock).run_once() == 3
    assert [(await kit.look(run)).status for run in runs] == [RunStatus.TIMED_OUT] * 3
    assert (await kit.letter(runs[1])).code == "timeout"


async def test_an_unreadable_step_is_taken_from_its_worker(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    runs = await under_way(kit, options=[RUN, RUN, UNREADABLE], step=[STEP, UNREADABLE, STEP])
    kit.clock.move(5 * SECOND)
    assert await Reaper(kit.store, kit.clock).run_once() == 3
    assert [await ends(kit, run) for run in runs] == [["TIMED_OUT"], ["LOST"], ["TIMED_OUT"]]
    found = await kit.look(runs[1])
    assert (found.status, found.worker, found.deaths) == (RunStatus.PENDING, None, 0)
    assert {"run_id": runs[1].public_id, "step": "charge"} in read_logged_fields(caplog)


async def everything_at_once(kit: Kit, name: str) -> tuple[ClaimedRun, ClaimedRun, ClaimedRun]:
    """Create a run of a dead worker, a hanging run and an overdue run of a live worker."""
    # PostgreSQL ends transactions that idle for a third of the shortest lease, as they may on a busy machine.
    (orphan,) = await under_way(kit, workflow=name, step=[SLOW], lease=15 * SECOND)
    (hung,) = await under_way(kit, workflow=name, step=[STEP], lease=HOUR)
    (late,) = await under_way(kit, workflow=name, timeout=SECOND, lease=HOUR)
    kit.clock.move(16 * SECOND)
    return orphan, hung, late


async def test_the_next_round_recovers_from_a_failure_of_any_call_of_the_reaper(kit: Kit) -> None:
    await everything_at_once(kit, "calm")
    counted = inject_faults(kit.store)
    assert await Reaper(counted, kit.clock).run_once() == 3
    calls = list(counted.calls)
    assert {"expire_workers", "held", "hung", "overdue", "apply"} <= set(calls)
    for number in range(1, len(calls) + 1):
        for fault in (FAIL, LOSE):
            await check_recovery(kit, number, fault)


async def check_recovery(kit: Kit, number: int, fault: Fault) -> None:
    orphan, hung, late = await everything_at_once(kit, f"{number} {fault.kind.name}")
    store = inject_faults(kit.store, nth(number, fault))
    reaper = Reaper(cast(Store, store), kit.clock)
    try:
        await reaper.run_once()
    except StoreUnavailable:
        await reaper.run_once()  # `every` also continues with the next round
    where = (store.calls[number - 1], fault)
    found = await kit.look(orphan)
    assert (found.status, found.worker, found.deaths) == (RunStatus.PENDING, None, 1), where
    assert await ends(kit, orphan) == ["LOST"], where
    assert await ends(kit, hung) == ["TIMED_OUT"], where
    found = await kit.look(late)
    assert (found.status, found.worker) == (RunStatus.TIMED_OUT, None), where
    assert (await kit.letter(late)).code == "timeout", where
    assert await reaper.run_once() == 0, where
