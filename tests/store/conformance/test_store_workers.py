"""Conformance tests of workers: registration, heartbeats, death, and the safety of live workers."""

from __future__ import annotations

import asyncio
import json

import pytest
from store_kit import HOUR, LEASE, SECOND, Kit, becomes, catalogue, entry, noted, writes

from redrive.core.run_options import StepOptions
from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import Transition
from redrive.store.chores import PurgeRequest
from redrive.store.circuits import SuccessCount
from redrive.store.claims import ClaimRequest
from redrive.store.filters import AuditFilter, CircuitFilter
from redrive.store.port import Store
from redrive.store.workers import NewWorker, Receipt, StaleBatch, recent_crashes


async def beat(store: Store, worker: int, signs: dict | None = None):
    """Send one heartbeat from a thread, as a worker does."""
    line = store.lease_connection()
    try:
        return (await asyncio.to_thread(line.beat, {worker: signs or {}}))[worker]
    finally:
        line.close()


async def test_workers_are_listed_newest_first(kit: Kit) -> None:
    one = await kit.worker("a", "b")
    kit.clock.move(SECOND)
    two = await kit.worker(version="v2")
    rows = await kit.store.workers()
    assert [row.id for row in rows] == [two, one]
    assert (rows[1].workflows, rows[1].version, rows[1].state) == (("a", "b"), "v1", "LIVE")
    assert (rows[0].started_at, rows[0].beat_at) == (kit.clock.now(), kit.clock.now())
    assert rows[0].lease_until == kit.clock.now() + LEASE


async def test_leases_of_many_workers_are_renewed_at_once(kit: Kit) -> None:
    holders = [await kit.worker("w", lease=(number + 1) * LEASE) for number in range(3)]
    ended = await kit.worker()
    await kit.store.retire(ended)
    held = []
    for worker in holders[:2]:
        await kit.store.start([kit.new()])
        claim = ClaimRequest(worker=worker, workflows=("w",), capacity=1, suspect=True)
        held.append((await kit.store.claim(claim)).runs[0])
        await kit.store.apply([writes(held[-1], entry(0, StepStatus.RUNNING, limit_in=SECOND))], worker=worker)
    kit.clock.move(SECOND)
    line = kit.store.lease_connection()
    beats: dict[int, dict[tuple[int, int], str | None]] = {worker: {} for worker in (*holders, ended)}
    beats[holders[0]] = {(held[0].id, 0): '"mine"', (held[1].id, 0): '"of another worker"'}
    beats[ended] = {(held[1].id, 0): '"of a worker that ended"'}
    replies = await asyncio.to_thread(line.beat, beats)
    line.close()
    assert {worker: (reply.alive, sorted(reply.held)) for worker, reply in replies.items()} == {
        holders[0]: (True, [held[0].id]), holders[1]: (True, [held[1].id]), holders[2]: (True, []), ended: (False, []),
    }  # fmt: skip
    until = {row.id: row.lease_until for row in await kit.store.workers()}
    assert [until[worker] for worker in holders] == [kit.clock.now() + (number + 1) * LEASE for number in range(3)]
    assert until[ended] == kit.clock.now() - SECOND + LEASE
    assert [(await kit.store.journal(run.id))[0].heartbeat for run in held] == ['"mine"', None]


async def test_a_crash_differs_from_a_stop_and_is_reported_for_an_hour(kit: Kit) -> None:
    crashed, stopped, late = await kit.worker(), await kit.worker(), await kit.worker()
    await kit.store.retire(stopped)
    kit.clock.move(LEASE + SECOND)
    rows = await kit.store.workers()  # before the reaper has declared any dead
    assert [row.id for row in rows if row.has_crashed_at(kit.clock.now())] == [late, crashed]
    await kit.store.expire_workers()
    alive = await kit.worker()
    rows, own = await kit.store.workers(), kit.store.tenant_view("default")
    assert {row.id: row.state for row in rows} == {alive: "LIVE", late: "DEAD", stopped: "STOPPED", crashed: "DEAD"}
    assert [row.id for row in recent_crashes(rows, kit.clock.now())] == [late, crashed]
    assert [(await each.attention()).crashes for each in (kit.store, own)] == [2, 2]
    kit.clock.move(HOUR - 2 * SECOND)
    assert (await kit.store.attention()).crashes == 3, "the last one has not sent a heartbeat since"
    kit.clock.move(2 * SECOND)
    assert (await kit.store.attention()).crashes == 1
    assert [row.id for row in recent_crashes(await kit.store.workers(), kit.clock.now())] == [alive]


async def test_live_workers_are_listed_however_many_have_ended(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.store.workers.MAX_LISTED_WORKERS", 3)
    alive = await kit.worker()
    ended = [await kit.worker() for _ in range(4)]
    for worker in ended:
        await kit.store.retire(worker)
    assert [row.id for row in await kit.store.workers()] == [ended[3], ended[2], ended[1], alive]


async def test_every_registration_is_a_new_worker(kit: Kit) -> None:
    worker = NewWorker(name="same name", version="v", workflows=("w",), lease=LEASE)
    ids = [await kit.store.enlist(worker, catalogue("v", "w")) for _ in range(3)]
    assert len(set(ids)) == 3


async def test_a_heartbeat_renews_the_lease_and_returns_the_held_runs(kit: Kit) -> None:
    worker, run = await kit.held()
    kit.clock.move(10 * SECOND)
    answer = await beat(kit.store, worker)
    assert (answer.alive, answer.held, answer.now) == (True, frozenset({run.id}), kit.clock.now())
    (row,) = await kit.store.workers()
    assert (row.beat_at, row.lease_until) == (kit.clock.now(), kit.clock.now() + LEASE)


async def test_a_run_that_was_taken_away_is_no_longer_held(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.store.apply([becomes(run, RunStatus.CANCELLED, take=True)])
    assert (await beat(kit.store, worker)).held == frozenset()


async def test_a_live_worker_never_loses_its_runs(kit: Kit) -> None:
    worker, run = await kit.held()
    for _ in range(5):
        kit.clock.move(LEASE - 1)
        assert (await beat(kit.store, worker)).alive
        assert await kit.store.expire_workers() == []
    kit.clock.move(LEASE)
    assert await kit.store.expire_workers() == []  # not a moment too early
    assert (await kit.look(run)).worker == worker


async def test_a_worker_that_was_declared_dead_stays_dead(kit: Kit) -> None:
    worker, run = await kit.held()
    kit.clock.move(LEASE + 1)
    (dead,) = await kit.store.expire_workers()
    assert (dead.id, dead.state) == (worker, "DEAD")
    answer = await beat(kit.store, worker)
    assert (answer.alive, answer.held) == (False, frozenset({run.id}))
    (row,) = await kit.store.workers()
    assert row.state == "DEAD"


async def test_a_late_worker_that_was_not_declared_dead_stays_alive(kit: Kit) -> None:
    worker, _ = await kit.held()
    kit.clock.move(2 * LEASE)
    assert (await beat(kit.store, worker)).alive
    assert await kit.store.expire_workers() == []


async def test_a_dead_worker_is_reported_until_it_holds_no_runs(kit: Kit) -> None:
    worker, run = await kit.held()
    kit.clock.move(LEASE + 1)
    for _ in range(2):
        assert [row.id for row in await kit.store.expire_workers()] == [worker]
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)])
    assert await kit.store.expire_workers() == []


async def test_runs_of_a_retired_worker_are_orphans_at_once(kit: Kit) -> None:
    worker, _ = await kit.held()
    await kit.store.retire(worker)
    (left,) = await kit.store.expire_workers()
    assert (left.id, left.state) == (worker, "STOPPED")
    assert not (await beat(kit.store, worker)).alive


async def test_a_dead_worker_cannot_retire(kit: Kit) -> None:
    worker, _ = await kit.held()
    kit.clock.move(LEASE + 1)
    await kit.store.expire_workers()
    await kit.store.retire(worker)
    (row,) = await kit.store.workers()
    assert row.state == "DEAD"


async def test_held_runs_include_their_open_entries(kit: Kit) -> None:
    worker, run = await kit.held()
    steps = [entry(0, done=0), entry(1, StepStatus.RUNNING, input="i"), entry(2, StepStatus.RETRYING, wake_in=5)]
    await kit.store.apply([writes(run, *steps)], worker=worker)
    (held,) = await kit.store.held(worker)
    assert (held.run.public_id, held.worker) == (run.public_id, worker)
    assert (held.run.input, held.run.options) == (run.input, run.options)
    assert [(row.index, row.status) for row in held.open] == [(1, StepStatus.RUNNING), (2, StepStatus.RETRYING)]
    assert await kit.store.held(worker + 1) == []


# -- heartbeats of steps -------------------------------------------------------------------------------


async def begun(kit: Kit, **options) -> tuple:
    worker, run = await kit.held()
    step = StepOptions(**options)
    mark = entry(0, StepStatus.RUNNING, limit_in=int(step.limit * SECOND), options=step.to_json())
    await kit.store.apply([writes(run, mark)], worker=worker)
    return worker, run


async def test_a_step_s_heartbeat_is_recorded(kit: Kit) -> None:
    worker, run = await begun(kit)
    kit.clock.move(SECOND)
    await beat(kit.store, worker, {(run.id, 0): '{"done":3}'})
    (row,) = await kit.store.journal(run.id)
    assert (row.heartbeat_at, row.heartbeat) == (kit.clock.now(), '{"done":3}')
    kit.clock.move(SECOND)
    await beat(kit.store, worker, {(run.id, 0): None})
    (row,) = await kit.store.journal(run.id)
    assert (row.heartbeat_at, row.heartbeat) == (kit.clock.now(), '{"done":3}')


async def test_a_heartbeat_can_contain_any_text(kit: Kit) -> None:
    worker, run = await begun(kit)
    await beat(kit.store, worker, {(run.id, 0): "a\0b\x1a"})
    (row,) = await kit.store.journal(run.id)
    assert row.heartbeat == "a\0b\x1a"


async def test_heartbeats_for_another_worker_s_run_or_an_ended_step_are_ignored(kit: Kit) -> None:
    worker, run = await begun(kit)
    stranger = await kit.worker()
    before = await kit.store.journal(run.id)
    await beat(kit.store, stranger, {(run.id, 0): "x", (run.id, 7): "x", (12345, 0): "x"})
    assert await kit.store.journal(run.id) == before
    await kit.store.apply([writes(run, entry(0))], worker=worker)
    before = await kit.store.journal(run.id)
    await beat(kit.store, worker, {(run.id, 0): "x"})
    assert await kit.store.journal(run.id) == before


async def test_heartbeats_extend_the_silence_limit_but_not_the_timeout(kit: Kit) -> None:
    worker, run = await begun(kit, timeout=10.0, heartbeat_timeout=3.0)
    for _ in range(4):
        kit.clock.move(2 * SECOND)
        assert await kit.store.hung(0, 10) == []
        await beat(kit.store, worker, {(run.id, 0): None})
    kit.clock.move(2 * SECOND)  # 10 seconds have passed
    assert await kit.store.hung(0, 10) == []
    kit.clock.move(1)
    (hung,) = await kit.store.hung(0, 10)
    assert hung.run.id == run.id


async def test_a_step_without_heartbeats_hangs_at_its_silence_limit(kit: Kit) -> None:
    worker, run = await begun(kit, timeout=60.0, heartbeat_timeout=3.0)
    kit.clock.move(2 * SECOND)
    await beat(kit.store, worker, {(run.id, 0): None})
    kit.clock.move(3 * SECOND)
    assert await kit.store.hung(0, 10) == []
    kit.clock.move(1)
    assert [held.run.id for held in await kit.store.hung(0, 10)] == [run.id]


async def test_a_heartbeat_of_a_step_without_a_silence_limit_changes_no_limit(kit: Kit) -> None:
    worker, run = await begun(kit, timeout=5.0)
    kit.clock.move(4 * SECOND)
    await beat(kit.store, worker, {(run.id, 0): None})
    kit.clock.move(SECOND + 1)
    assert len(await kit.store.hung(0, 10)) == 1


async def test_ended_workers_are_purged_after_their_retention(kit: Kit) -> None:
    idle, holder = await kit.worker(), await kit.worker()
    await kit.start()
    (run,) = (await kit.claim(holder)).runs
    live = await kit.worker()
    await kit.store.retire(idle)
    await kit.store.retire(holder)
    purge = PurgeRequest(runs=SECOND, letters=SECOND, workers=SECOND, limit=100)
    kit.clock.move(LEASE)
    await beat(kit.store, live)
    assert await kit.store.purge(purge) == 0
    kit.clock.move(SECOND)
    assert await kit.store.purge(purge) == 1
    assert {row.id for row in await kit.store.workers()} == {holder, live}
    await kit.store.apply([becomes(run, RunStatus.PENDING, wake_in=0, take=True)])
    assert await kit.store.purge(purge) == 1


async def test_a_live_version_is_found_without_those_of_other_tenants(kit: Kit) -> None:
    async def enlist(version: str, **more: str) -> int:
        worker = NewWorker(name="n", version=version, workflows=("w",), lease=LEASE, **more)
        return await kit.store.enlist(worker, catalogue(version, "w"))

    gone = await enlist("gone")
    await kit.store.retire(gone)
    await enlist("local")
    await enlist("all", token="t")
    await enlist("acme", token="t", tenant="acme")
    found = {
        tenant: {
            name
            for name in ("gone", "local", "all", "acme")
            if await kit.store.has_live_worker("w", name, tenant=tenant)
        }
        for tenant in ("", "acme", "globex")
    }
    assert found == {"": {"local", "all", "acme"}, "acme": {"local", "all", "acme"}, "globex": {"local", "all"}}
    kit.clock.move(LEASE + SECOND)
    assert not await kit.store.has_live_worker("w", "local")


async def test_a_worker_that_registers_again_clears_the_runs_suspected_of_its_death(kit: Kit) -> None:
    def new(token: str, previous: int = 0) -> NewWorker:
        return NewWorker(name="n", version="v", workflows=("w",), lease=LEASE, token=token, previous=previous)

    code = catalogue("v", "w")
    _, run = await kit.held()
    worker = await kit.store.enlist(new("t"), code)
    kit.clock.move(LEASE + SECOND)
    await kit.store.expire_workers()

    async def deaths() -> int:
        row = await kit.store.run(run.public_id)
        assert row is not None
        return row.deaths

    await kit.store.apply([becomes(run, RunStatus.PENDING, take=True, wake_in=0, deaths=2)])
    await kit.store.record_suspects(worker, [run.id])
    await kit.store.enlist(new("another token", worker), code)
    assert await deaths() == 2
    await kit.store.enlist(new("t", worker), code)
    assert await deaths() == 1
    await kit.store.enlist(new("t", worker), code)  # a repeat
    assert await deaths() == 1
    await kit.store.record_suspects(worker, [run.id])  # recorded after the worker was back
    assert await deaths() == 0


async def test_a_report_of_successes_counts_once(kit: Kit) -> None:
    worker, other = await kit.worker(), await kit.worker()
    for me, number, calls in ((worker, 1, 3), (worker, 1, 3), (worker, 2, 4), (worker, 1, 3), (other, 1, 5)):
        await kit.store.count_successes(me, number, [SuccessCount("acme", "bank", "{}", calls, kit.clock.now())])
    page = await kit.store.circuits(CircuitFilter(tenant="acme"), limit=5, cursor=None)
    (stats,) = await kit.store.circuit_stats(page.items)
    assert stats.successes == 12


async def test_each_batch_of_a_remote_worker_is_written_once_and_with_its_answer(kit: Kit) -> None:
    new = NewWorker(name="far", version="v1", workflows=("w",), lease=LEASE, token="t")
    worker = await kit.store.enlist(new, catalogue("v1", "w"))
    await kit.start(2)
    claim = ClaimRequest(worker=worker, workflows=("w",), capacity=2, suspect=False)
    one, other = (await kit.store.claim(claim)).runs
    end = becomes(one, RunStatus.SUCCESS, output="7", take=True)
    batches: list[tuple[list[Transition], list[bool]]] = [
        ([writes(one, entry(0))], [True]),
        ([writes(one, entry(1), clears_suspicion=True)], [True]),
        ([writes(one, entry(2)), end], [True, True]),
        ([writes(one, entry(3))], [False]),  # the run is over
        ([writes(one, entry(3)), writes(other, entry(0))], [False, True]),
        ([writes(other, entry(0, StepStatus.FAILED))], [True]),  # the entry is there already
        ([], []),
    ]
    for number, (batch, kept) in enumerate(batches, start=1):
        receipt = Receipt(
            worker=worker,
            tenant="",
            number=number,
            digest=f"d{number}",
            make_answer=lambda kept: json.dumps(["kept" if each else "lost" for each in kept]),
        )
        kit.clock.move(SECOND)
        results = await kit.store.apply(batch, worker=worker, receipt=receipt)
        assert [each.kept for each in results] == kept
        row = await kit.store.remote_worker(worker)
        assert row is not None
        assert (row.number, row.digest) == (number, f"d{number}")
        assert json.loads(row.answer) == ["kept" if each else "lost" for each in kept]
        assert row.answered_at == (kit.store.now() if batch else 0)
        before = await kit.everything(other)
        for late in (batch, [writes(other, entry(9))], [writes(other, entry(9)), writes(other, entry(10))]):
            with pytest.raises(StaleBatch):
                await kit.store.apply(late, worker=worker, receipt=receipt)
        assert (await kit.everything(other), await kit.store.remote_worker(worker)) == (before, row)
    assert [each.index for each in await kit.store.journal(one.id)] == [0, 1, 2]
    assert (await kit.look(one)).output == "7"


async def test_a_drained_worker_keeps_its_runs_and_gets_no_more(kit: Kit) -> None:
    worker, run = await kit.held()
    await kit.start()
    assert not (await beat(kit.store, worker)).drain
    line = noted("worker.drained", tenant="", subject=str(worker))
    assert await kit.store.drain_worker(worker, line)
    assert not await kit.store.drain_worker(worker, line)
    answer = await beat(kit.store, worker)
    assert (answer.alive, answer.drain, answer.held) == (True, True, {run.id})
    assert (await kit.claim(worker)).runs == []
    started = await kit.store.start([kit.new(), kit.new()], worker=worker)
    started += await kit.store.start([kit.new()], worker=worker)
    assert [each.claimed for each in started] == [None] * 3
    (result,) = await kit.store.apply([writes(run, entry())], worker=worker)
    assert result.kept
    (row,) = await kit.store.workers()
    assert (row.draining, row.remote, row.is_alive_at(kit.store.now())) == (True, False, True)
    lines = await kit.store.audit(AuditFilter(event="worker.drained"), limit=10, cursor=None)
    assert [each.subject for each in lines.items] == [str(worker)]


async def test_a_retired_worker_loses_its_runs_without_a_death(kit: Kit) -> None:
    worker, run = await kit.held()
    line = noted("worker.retired", tenant="", subject=str(worker))
    assert await kit.store.retire_worker(worker, line)
    assert not await kit.store.retire_worker(worker, line)
    assert not await kit.store.drain_worker(worker, line)
    answer = await beat(kit.store, worker)
    assert (answer.alive, answer.drain) == (False, True)
    (result,) = await kit.store.apply([writes(run, entry())], worker=worker)
    assert not result.kept
    (orphaned,) = await kit.store.expire_workers()
    assert (orphaned.id, orphaned.state) == (worker, "STOPPED")


async def test_runs_that_a_remote_worker_sits_on_are_counted(kit: Kit) -> None:
    new = NewWorker(name="far", version="v1", workflows=("w",), lease=LEASE, token="t")
    far, near = await kit.store.enlist(new, catalogue("v1", "w")), await kit.worker()
    await kit.start(4)
    idle, busy, ended = (await kit.claim(far, capacity=3)).runs
    await kit.claim(near)
    await kit.store.apply([writes(busy, entry(0, StepStatus.RUNNING))], worker=far)

    async def stalled() -> dict[int, int]:
        return dict((await kit.store.count_held_by_worker()).stalled)

    assert (await kit.store.count_held_by_worker()).held == {far: 3, near: 1}
    kit.clock.move(10 * LEASE)
    assert await stalled() == {}
    kit.clock.move(1)
    assert await stalled() == {far: 2}
    assert (await kit.store.stats()).stalled == 2
    (row, _) = sorted(await kit.store.workers(), key=lambda each: each.id)
    assert bool(row.remote)

    receipt = Receipt(worker=far, tenant="", number=1, digest="d", make_answer=lambda _: "[]")
    end = becomes(ended, RunStatus.SUCCESS, output="1", take=True)
    assert (await kit.store.apply([end], worker=far, receipt=receipt))[0].kept
    assert await stalled() == {}, "the worker reported something"
    kit.clock.move(10 * LEASE + 1)
    assert await stalled() == {far: 1}
    await kit.store.retire_worker(far, noted())
    assert await stalled() == {}
    assert idle.id in {each.run.id for each in await kit.store.held(far)}
