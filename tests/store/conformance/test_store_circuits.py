"""Conformance tests of circuits: samples count once, one of many updates wins, permits are returned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from store_kit import DAY, SECOND, Kit, becomes, entry, noted, writes

from redrive.core.circuit import Admission, CircuitState, CircuitStatus
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import CircuitSampleWrite, RunWrite
from redrive.record_fields import replace
from redrive.store.chores import PurgeRequest
from redrive.store.circuits import CircuitUpdate, PermitRequest
from redrive.store.claims import ClaimedRun
from redrive.store.filters import AuditFilter, CircuitFilter

SETTINGS = '{"name": "payments"}'
HALF_OPEN = CircuitState(status=CircuitStatus.HALF_OPEN, generation=2)
CLOSED = CircuitState(status=CircuitStatus.CLOSED, generation=3)


def mark(good: bool | None = False, **more: Any) -> CircuitSampleWrite:
    given = {"key": "payments", "settings": SETTINGS, "generation": 0, "index": 0, "attempt": 1}
    return CircuitSampleWrite(**{**given, "good": good, "category": "timeout", **more})


def turned(state: CircuitState, *, version: int = 0, **more: Any) -> CircuitUpdate:
    given: dict[str, Any] = {
        "tenant": "default",
        "key": "payments",
        "version": version,
        "state": state,
        "next_wave_at": 0,
        "settings": SETTINGS,
        "override": None,
        "why": "because",
        "by": "ann",
        "changed": True,
    }
    return CircuitUpdate(**{**given, **more})


def ask(run: ClaimedRun, index: int = 0) -> PermitRequest:
    return PermitRequest(tenant=run.tenant, key="payments", settings=SETTINGS, run=run.id, fence=run.fence, index=index)


async def park(kit: Kit, count: int, *, key: str = "payments", tenant: str = "default") -> list[str]:
    """Start runs that wait for a circuit."""
    ids = await kit.start(count, tenant=tenant)
    worker = await kit.worker()
    claims = await kit.claim(worker, capacity=count)
    change = RunWrite(status=RunStatus.SLEEPING, take=True, parked_on=key)
    answers = await kit.store.apply([writes(run, change=change) for run in claims.runs], worker=worker)
    assert [answer.kept for answer in answers] == [True] * count
    return ids


async def test_an_unknown_circuit_is_closed(kit: Kit) -> None:
    case = await kit.store.circuit("default", "payments")
    assert (case.row.status, case.row.generation, case.row.version) == (CircuitStatus.CLOSED, 0, 0)
    assert (case.samples, case.probing, case.row.parked) == ((), 0, 0)
    assert (await kit.store.circuits(CircuitFilter(), limit=5, cursor=None)).items == []


async def test_samples_are_written_once_with_their_transition(kit: Kit) -> None:
    worker, run = await kit.held()
    written = writes(run, entry(0, StepStatus.RETRYING, wake_in=DAY), samples=(mark(),))
    for _ in range(2):
        assert (await kit.store.apply([written], worker=worker))[0].kept
    case = await kit.store.circuit("default", "payments")
    assert [(each.generation, each.good) for each in case.samples] == [(0, False)]
    assert (case.row.version, case.row.settings, case.category) == (1, SETTINGS, "timeout")


async def test_a_worker_that_lost_the_run_writes_no_samples(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)], worker=worker)
    assert not (await kit.store.apply([writes(run, entry(0), samples=(mark(),))], worker=worker))[0].kept
    assert (await kit.store.circuit("default", "payments")).samples == ()


async def test_samples_of_another_generation_tenant_or_circuit_are_not_counted(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.update_circuit(turned(CLOSED))
    marks = (
        mark(generation=2),
        mark(index=1, generation=3),
        mark(True, index=2, generation=3),
        mark(index=3, key="post", generation=3),
    )
    await kit.store.apply([writes(run, samples=marks)], worker=worker)
    case = await kit.store.circuit("default", "payments")
    assert sorted((each.generation, each.good) for each in case.samples) == [(3, False), (3, True)]
    assert (await kit.store.circuit("acme", "payments")).row.version == 0


async def test_one_of_many_concurrent_updates_wins(kit: Kit) -> None:
    others = [await kit.beside() for _ in range(3)]
    opened = turned(CircuitState(status=CircuitStatus.OPEN, generation=1, until=60 * SECOND))
    answers = await asyncio.gather(*[store.update_circuit(opened) for store in [kit.store, *others]])
    assert sorted(answer.kept for answer in answers) == [False, False, False, True]
    row = (await kit.store.circuit("default", "payments")).row
    assert (row.status, row.generation, row.version, row.until) == ("OPEN", 1, 1, 60 * SECOND)
    again = [store.update_circuit(turned(HALF_OPEN, version=1)) for store in [kit.store, *others]]
    assert sum(answer.kept for answer in await asyncio.gather(*again)) == 1
    assert (await kit.store.circuit("default", "payments")).row.version == 2


async def test_a_kept_update_is_written_to_the_audit_log(kit: Kit) -> None:
    line = noted("circuit.opened", subject="payments", token="t1")
    opened = turned(CircuitState(status=CircuitStatus.OPEN, generation=1), audit=(line,))
    assert (await kit.store.update_circuit(opened)).kept
    assert not (await kit.store.update_circuit(replace(opened, audit=(replace(line, token="t2"),)))).kept
    page = await kit.store.audit(AuditFilter(event="circuit."), limit=5, cursor=None)
    assert [(each.event, each.by, each.subject) for each in page.items] == [("circuit.opened", "ann", "payments")]


async def held(kit: Kit, count: int) -> tuple[int, list[ClaimedRun]]:
    await kit.start(count)
    worker = await kit.worker()
    return worker, (await kit.claim(worker, capacity=count)).runs


async def test_as_many_permits_as_probes_are_granted(kit: Kit) -> None:
    _, runs = await held(kit, 6)
    await kit.store.update_circuit(turned(HALF_OPEN))
    stores = [kit.store, await kit.beside(), await kit.beside()]
    asked = [stores[number % 3].permit(ask(run)) for number, run in enumerate(runs)]
    given = [permit.admission for permit in await asyncio.gather(*asked)]
    assert sorted(given) == [Admission.PROBE] * 3 + [Admission.STAY_OUT] * 3
    again = [(await kit.store.permit(ask(run))).admission for run in runs]
    assert again == given  # asking again changes nothing
    assert (await kit.store.circuit("default", "payments")).probing == 3


async def test_a_permit_is_returned_when_its_fence_ends(kit: Kit) -> None:
    _, runs = await held(kit, 4)
    await kit.store.update_circuit(turned(HALF_OPEN))
    for run in runs[:3]:
        assert (await kit.store.permit(ask(run))).admission is Admission.PROBE
    assert (await kit.store.permit(ask(runs[3]))).admission is Admission.STAY_OUT
    lost = becomes(runs[0], RunStatus.PENDING, wake_in=0, take=True)
    await kit.store.apply([lost])
    assert (await kit.store.permit(ask(runs[0]))).admission is Admission.STAY_OUT  # an old fence gets no permit
    assert (await kit.store.permit(ask(runs[3]))).admission is Admission.PROBE


async def test_a_probe_without_a_result_only_returns_its_permit(kit: Kit) -> None:
    worker, runs = await held(kit, 2)
    await kit.store.update_circuit(turned(HALF_OPEN, override='{"probes": 1}'))
    assert (await kit.store.permit(ask(runs[0]))).admission is Admission.PROBE
    assert (await kit.store.permit(ask(runs[1]))).admission is Admission.STAY_OUT
    nothing = mark(None, generation=2, probe=True)
    await kit.store.apply([writes(runs[0], samples=(nothing,))], worker=worker)
    assert (await kit.store.permit(ask(runs[1]))).admission is Admission.PROBE
    assert (await kit.store.circuit("default", "payments")).samples == ()


@pytest.mark.parametrize("good", [True, False])
async def test_an_ended_probe_frees_its_permit_only_after_its_result_was_counted(kit: Kit, good: bool) -> None:
    worker, runs = await held(kit, 2)
    await kit.store.update_circuit(turned(HALF_OPEN, override='{"probes": 1}'))
    await kit.store.permit(ask(runs[0]))
    await kit.store.apply([writes(runs[0], samples=(mark(good, generation=2, probe=True),))], worker=worker)
    permit = await kit.store.permit(ask(runs[1]))
    assert (permit.admission, permit.stale) == (Admission.STAY_OUT, True)


async def test_two_branches_of_a_run_need_a_permit_each(kit: Kit) -> None:
    _, runs = await held(kit, 1)
    await kit.store.update_circuit(turned(HALF_OPEN, override='{"probes": 1}'))
    assert (await kit.store.permit(ask(runs[0], 0))).admission is Admission.PROBE
    assert (await kit.store.permit(ask(runs[0], 1))).admission is Admission.STAY_OUT


async def test_a_closed_circuit_admits_all_runs_and_an_open_one_none(kit: Kit) -> None:
    _, runs = await held(kit, 1)
    assert (await kit.store.permit(ask(runs[0]))).admission is Admission.CALL
    await kit.store.update_circuit(turned(CircuitState(status=CircuitStatus.OPEN, generation=1)))
    assert (await kit.store.permit(ask(runs[0]))).admission is Admission.STAY_OUT


async def test_parked_runs_resume_in_the_order_they_were_parked(kit: Kit) -> None:
    ids = await park(kit, 5)
    theirs = await park(kit, 2, tenant="acme")
    released = await kit.store.update_circuit(turned(CLOSED, releases=3))
    assert (released.kept, released.released) == (True, 3)
    claims = await kit.claim(await kit.worker(), capacity=10)
    assert [run.public_id for run in claims.runs] == ids[:3]
    assert (await kit.store.circuit("default", "payments", counted=10)).row.parked == 2
    assert (await kit.store.circuit("acme", "payments", counted=10)).row.parked == len(theirs)


async def test_a_claim_unparks_its_run(kit: Kit) -> None:
    worker, run = await kit.held()
    change = RunWrite(status=RunStatus.SLEEPING, wake_in=5 * SECOND, take=True, parked_on="payments")
    await kit.store.apply([writes(run, change=change)], worker=worker)
    assert (await kit.look(run)).parked_on == "payments"
    kit.clock.move(5 * SECOND)
    assert len((await kit.claim(worker)).runs) == 1
    assert (await kit.look(run)).parked_on is None
    assert (await kit.store.update_circuit(turned(CLOSED, releases=5))).released == 0


async def test_ended_runs_are_not_released(kit: Kit) -> None:
    worker, run = await kit.held()
    change = RunWrite(status=RunStatus.SLEEPING, take=True, parked_on="payments")
    await kit.store.apply([writes(run, change=change)], worker=worker)
    now = await kit.look(run)
    await kit.store.apply([writes(now, change=RunWrite(status=RunStatus.CANCELLED, take=True))])
    assert (await kit.store.update_circuit(turned(CLOSED, releases=5))).released == 0


async def test_due_circuits_are_found(kit: Kit) -> None:
    assert await kit.store.circuits_due(0) == []
    now = kit.clock.now()
    opened = CircuitState(status=CircuitStatus.OPEN, generation=1, until=now + SECOND)
    await kit.store.update_circuit(turned(opened))
    await kit.store.update_circuit(turned(replace(opened, until=None), key="by hand"))
    await park(kit, 2)
    assert await kit.store.circuits_due(0) == []
    kit.clock.move(SECOND)
    assert await kit.store.circuits_due(0) == [("default", "payments")]
    later = turned(HALF_OPEN, version=1, next_wave_at=now + 3 * SECOND)
    await kit.store.update_circuit(later)
    assert await kit.store.circuits_due(0) == []
    kit.clock.move(2 * SECOND)
    assert await kit.store.circuits_due(0) == [("default", "payments")]
    await park(kit, 1, key="forgotten", tenant="acme")
    await park(kit, 1, key="post")
    places = [("acme", "forgotten"), ("default", "payments"), ("default", "post")]
    assert sorted(await kit.store.circuits_due(0)) == places


async def test_circuits_with_recent_samples_are_due(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([writes(run, samples=(mark(),))], worker=worker)
    now = kit.clock.now()
    assert await kit.store.circuits_due(now) == [("default", "payments")]
    assert await kit.store.circuits_due(now + 1) == []


async def test_workers_read_the_changes_since_their_last_read(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([writes(run, samples=(mark(key="quiet"),))], worker=worker)
    await kit.store.update_circuit(turned(CircuitState(status=CircuitStatus.OPEN, generation=1)))
    at = kit.clock.now()
    assert [row.key for row in await kit.store.circuits_changed_since(0)] == ["payments"]
    kit.clock.move(SECOND)
    assert await kit.store.circuits_changed_since(at + 1) == []
    wave = turned(HALF_OPEN, version=1, changed=False)
    await kit.store.update_circuit(wave)
    assert await kit.store.circuits_changed_since(at + 1) == []
    await kit.store.update_circuit(turned(CLOSED, version=2))
    (row,) = await kit.store.circuits_changed_since(at + 1)
    assert (row.status, row.generation, row.version, row.changed_at) == ("CLOSED", 3, 3, at + SECOND)


async def test_circuits_are_listed_by_pages(kit: Kit) -> None:
    for number in range(5):
        state = CircuitState(status=CircuitStatus.OPEN if number % 2 else CircuitStatus.CLOSED, generation=1)
        tenant = "acme" if number == 4 else "default"
        await kit.store.update_circuit(turned(state, key=f"c{number}", tenant=tenant))
    await park(kit, 3, key="c1")
    first = await kit.store.circuits(CircuitFilter(), limit=3, cursor=None)
    assert [row.key for row in first.items] == ["c4", "c3", "c2"]
    second = await kit.store.circuits(CircuitFilter(), limit=3, cursor=first.next)
    assert [(row.key, row.parked) for row in second.items] == [("c1", 3), ("c0", 0)]
    back = await kit.store.circuits(CircuitFilter(), limit=3, cursor=second.prev)
    assert back.items == first.items
    where = CircuitFilter(tenant="default", status="OPEN")
    assert [row.key for row in (await kit.store.circuits(where, limit=9, cursor=None)).items] == ["c3", "c1"]


async def test_samples_and_permits_are_kept_as_long_as_they_can_count(kit: Kit) -> None:
    worker, runs = await held(kit, 2)
    await kit.store.update_circuit(turned(HALF_OPEN))
    for run in runs:
        await kit.store.permit(ask(run))
    await kit.store.apply([writes(runs[0], samples=(mark(generation=2),))], worker=worker)
    await kit.store.apply([becomes(runs[0], RunStatus.PENDING, wake_in=0, take=True)], worker=worker)
    keep = PurgeRequest(runs=9 * DAY, letters=9 * DAY, workers=9 * DAY, limit=100)
    kit.clock.move(DAY - 1)
    assert await kit.store.purge(keep) == 0
    kit.clock.move(1)
    assert await kit.store.purge(keep) == 2  # the sample, and the permit of the run that continued
    case = await kit.store.circuit("default", "payments")
    assert (case.samples, case.probing) == ((), 1)
