"""Tasks: steps that workers of a queue execute, apart from the worker that holds the run.

    READY ──taken──> TAKEN ──answered──> ANSWERED ──recorded by the run──> CLOSED
      ^                │
      └── next attempt ┘        worker lost: the same attempt again

A task begins and ends with the wait of its run (`waits`, kind `step`), by triggers of the schema. Its fence grows each
time it is handed out: an answer counts only under the fence of its ticket. The last answer is kept for repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from redrive.core.states import RunStatus, StepStatus
from redrive.core.transitions import Transition
from redrive.store.children import WokenRun
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("step_tasks.sql")

_LIVE = frozenset(
    {RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SLEEPING}
)  # a run in another status takes no answers


class TaskStatus(StrEnum):
    """The status of a task. PARKED: its run had ended when a worker asked."""

    READY = "READY"
    TAKEN = "TAKEN"
    ANSWERED = "ANSWERED"
    PARKED = "PARKED"
    CLOSED = "CLOSED"


class TaskAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer of a task of a run: an output or a failure. `answered` is False for one that was set aside."""

    index: int
    answered: bool
    tenant: str
    attempt: int
    began_at: int
    output: str | None
    failure: str | None


class TaskClaim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request for up to `most` due tasks of a queue. With a `tenant`, only of that one.

    `names`: the steps that the worker executes; None for all. `begins`: it calls their bodies at once. `after`: the
    tenant that was served last, so that all have their turn. `workflows`: only tasks of their runs. `ahead`: also tasks
    that are due within so many microseconds.
    """

    worker: int
    queue: str
    names: tuple[str, ...] | None
    most: int
    begins: bool = True
    tenant: str | None = None
    after: str = ""
    workflows: tuple[str, ...] | None = None
    ahead: int = 0


class TaskCase(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task with everything that handing it out, or deciding on its answer, needs of its run and its step."""

    run: int
    index: int
    tenant: str
    queue: str
    name: str
    status: TaskStatus
    attempt: int
    fence: int
    worker: int | None
    begun: bool
    deaths: int
    due_at: int
    began_at: int
    limit_at: int | None
    admitted: str | None
    settled: int
    reply: str | None
    run_id: str
    workflow: str
    run_fence: int
    run_status: RunStatus
    correlation_id: str | None
    root: str | None
    generation: int
    options: str | None
    key: str
    first_at: int
    input: str
    step_options: str

    @property
    def is_wanted(self) -> bool:
        """True if the run may still use an answer."""
        return self.run_status in _LIVE


class TaskWrite(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about one ticket: the next state of its task, and what its transition adds to the history.

    `delay`: until the next attempt. `reply`: the answer that a repeat gets. `decided`: attempts, audit lines, messages
    and samples of circuits are written from it, the rest of it is not.
    """

    run: int
    index: int
    fence: int
    tenant: str
    worker: int | None
    status: TaskStatus
    attempt: int
    deaths: int = 0
    delay: int = 0
    output: str | None = None
    failure: str | None = None
    reply: str | None = None
    shown: StepStatus | None = None
    decided: Transition


class TaskRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task without an answer, for users."""

    run: int
    index: int
    tenant: str
    queue: str
    name: str
    status: TaskStatus
    attempt: int
    due_at: int
    began_at: int
    worker: int | None
    beat_at: int | None
    heartbeat: str | None


class TaskHeartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sign of life of a task, under the fence of its ticket. `heartbeat`: its details for users."""

    tenant: str
    run: int
    index: int
    fence: int
    heartbeat: str | None = None


class TaskQueueRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tasks of a tenant in a queue. `late`: due for more than a minute. `since`: when the first is or was due."""

    tenant: str
    queue: str
    due: int
    late: int
    taken: int
    since: int | None


class TaskDesk(Protocol):
    """Calls about tasks that users make. A tenant view answers them too."""

    async def open_tasks(self, run: int, *, most: int = 100) -> list[TaskRow]:
        """Return the tasks of a run that have no answer yet."""

    async def task_queues(self, *, tenant: str | None = None) -> list[TaskQueueRow]:
        """Return the tasks of each queue and tenant."""

    async def settle_tasks(self, writes: Sequence[TaskWrite]) -> set[tuple[int, int]]:
        """Record decisions whose tickets still hold, in one commit; return run and index of these tasks.

        The runs of final answers are woken.
        """


class TaskStore(TaskDesk, Protocol):
    """All calls about tasks."""

    async def take_tasks(self, claim: TaskClaim) -> list[TaskCase]:
        """Give a live worker due tasks, each under a fence one higher than before."""

    async def task_cases(self, tasks: Sequence[tuple[int, int]]) -> list[TaskCase]:
        """Return tasks by run and index; those that do not exist are missing."""

    async def begin_tasks(self, worker: int, tasks: Sequence[TaskHeartbeat]) -> set[tuple[int, int, int]]:
        """Note that a worker calls the bodies of tasks from now on; return run, index and fence of those it has."""

    async def admit_task(self, case: TaskCase, admitted: str) -> None:
        """Note how a circuit admitted a task that was handed out."""

    async def beat_tasks(self, worker: int, beats: Sequence[TaskHeartbeat]) -> set[tuple[int, int, int]]:
        """Record heartbeats; return run, index and fence of the tasks that the worker still has."""

    async def lost_tasks(self, most: int) -> list[tuple[TaskCase, bool]]:
        """Return tasks of workers that are dead or have stopped, with True if the worker died."""

    async def late_tasks(self, margin: int, most: int) -> list[TaskCase]:
        """Return tasks whose attempt passed its limit by more than this time."""


def find_last_in_turn(tenants: Iterable[str], after: str) -> str:
    """Return the tenant that was served last, if the turn began with the first tenant after `after`."""
    return max(tenants, key=lambda tenant: (tenant <= after, tenant))


class TaskCalls:
    """Implements `TaskStore`."""

    database: Database

    @write_call(begin=False)
    async def take_tasks(self, session: Session, claim: TaskClaim) -> list[TaskCase]:
        at = await session.now()
        found = await session.rows(SQL["task_tenants"], queue=claim.queue, until=at + claim.ahead)
        tenants = sorted(row[0] for row in found if claim.tenant in (None, row[0]))
        if not tenants:
            return []
        later = [tenant for tenant in tenants if tenant > claim.after]
        turns = (later + [tenant for tenant in tenants if tenant <= claim.after])[: claim.most]
        async with session.transaction():
            taken = await _take(session, claim, turns, at, suspects=bool(found[0][1]))
            cases = await _read_cases(session, taken)
            for case in cases:
                if not case.is_wanted:
                    await session.rows(SQL["end_task_wait"], run=case.run, index=case.index)
                    await session.rows(SQL["park_task"], run=case.run, index=case.index, fence=case.fence)
            wanted = [case for case in cases if case.is_wanted]
            if claim.begins and wanted:
                places = {"runs": [case.run for case in wanted], "indexes": [case.index for case in wanted]}
                await session.rows(SQL["show_begun"], **places, at=at)
            return wanted

    @read_call()
    async def task_cases(self, session: Session, tasks: Sequence[tuple[int, int]]) -> list[TaskCase]:
        return await _read_cases(session, tasks)

    @write_call()
    async def begin_tasks(
        self, session: Session, worker: int, tasks: Sequence[TaskHeartbeat]
    ) -> set[tuple[int, int, int]]:
        places = _list_places(tasks)
        async with session.transaction():
            at = await session.now()
            rows = await session.rows(SQL["begin_tasks"], worker=worker, **places, at=at)
            if rows:
                shown = {"runs": [row[0] for row in rows], "indexes": [row[1] for row in rows]}
                await session.rows(SQL["show_begun"], **shown, at=at)
        return {(run, index, fence) for run, index, fence in rows}

    @write_call()
    async def admit_task(self, session: Session, case: TaskCase, admitted: str) -> None:
        await session.rows(SQL["admit_task"], run=case.run, index=case.index, fence=case.fence, admitted=admitted)

    @write_call()
    async def beat_tasks(
        self, session: Session, worker: int, beats: Sequence[TaskHeartbeat]
    ) -> set[tuple[int, int, int]]:
        details = [beat.heartbeat for beat in sorted(beats, key=_get_place)]
        at = await session.now()
        rows = await session.rows(SQL["beat_tasks"], worker=worker, **_list_places(beats), details=details, at=at)
        return {(run, index, fence) for run, index, fence in rows}

    async def settle_tasks(self, writes: Sequence[TaskWrite]) -> set[tuple[int, int]]:
        kept, woken = await self._settle_tasks(sorted(writes, key=lambda each: (each.run, each.index)))
        if woken:
            self.on_woken(woken)  # type: ignore[attr-defined]  # of the calls about children
        return kept

    @write_call()
    async def _settle_tasks(
        self, session: Session, writes: Sequence[TaskWrite]
    ) -> tuple[set[tuple[int, int]], list[WokenRun]]:
        final = sorted({each.run for each in writes if each.status is TaskStatus.ANSWERED})
        async with session.transaction():
            if final:
                await session.rows(SQL["lock_task_runs"], runs=final)
            at = await session.now()
            rows = await session.write_many(SQL["settle_task"], [_task_values(each, at) for each in writes])
            kept = {(run, index) for run, index in rows}
            settled = [each for each in writes if (each.run, each.index) in kept]
            await _write_history(session, settled, at)
            wake = sorted({each.run for each in settled if each.status is TaskStatus.ANSWERED})
            found = await session.rows(SQL["wake_task_runs"], runs=wake, at=at) if wake else []
        return kept, [WokenRun(run, wakeups, bool(due)) for run, wakeups, due in found]

    @read_call()
    async def lost_tasks(self, session: Session, most: int) -> list[tuple[TaskCase, bool]]:
        rows = await session.rows(SQL["lost_tasks"], most=most)
        died = {(run, index): bool(flag) for run, index, flag in rows}
        return [(case, died[case.run, case.index]) for case in await _read_cases(session, rows)]

    @read_call()
    async def late_tasks(self, session: Session, margin: int, most: int) -> list[TaskCase]:
        before = await session.now() - margin
        return await _read_cases(session, await session.rows(SQL["late_tasks"], before=before, most=most))

    @read_call()
    async def open_tasks(self, session: Session, run: int, *, most: int = 100) -> list[TaskRow]:
        return [
            build_record(TaskRow, row, status=TaskStatus)
            for row in await session.rows(SQL["open_tasks"], run=run, most=most)
        ]

    @read_call()
    async def task_queues(self, session: Session, *, tenant: str | None = None) -> list[TaskQueueRow]:
        rows = await session.rows(SQL["task_queues"], tenant=tenant, at=await session.now())
        return [build_record(TaskQueueRow, row) for row in rows]


def _get_place(beat: TaskHeartbeat) -> tuple[int, int]:
    return beat.run, beat.index


def _list_places(beats: Sequence[TaskHeartbeat]) -> dict[str, list[int]]:
    """Return the tickets of tasks as parameters, in the order in which all lock these rows."""
    ordered = sorted(beats, key=_get_place)
    return {
        "runs": [beat.run for beat in ordered],
        "indexes": [beat.index for beat in ordered],
        "fences": [beat.fence for beat in ordered],
    }


async def read_task_answers(session: Session, run: int) -> tuple[TaskAnswer, ...]:
    """Return the answers of a run's tasks, and those that were set aside."""
    rows = await session.rows(SQL["task_answers"], run=run)
    return tuple([TaskAnswer(row[0], bool(row[1]), *row[2:]) for row in rows])


async def _take(
    session: Session, claim: TaskClaim, turns: Sequence[str], at: int, *, suspects: bool
) -> list[Sequence[int]]:
    """Take due tasks of these tenants, an equal share of each; return run and index of each task."""
    given = {
        "worker": claim.worker,
        "queue": claim.queue,
        "at": at,
        "until": at + claim.ahead,
        "begun": int(claim.begins),
    }
    given |= {"any_name": claim.names is None, "names": list(claim.names or ())}
    given |= {"everywhere": claim.workflows is None, "workflows": list(claim.workflows or ())}
    taken: list[Sequence[int]] = []
    for number, tenant in enumerate(turns):
        share = -(-(claim.most - len(taken)) // (len(turns) - number))
        risky = await session.rows(SQL["take_tasks"], **given, tenant=tenant, suspects=True, most=1) if suspects else []
        most = share - len(risky)
        plain = await session.rows(SQL["take_tasks"], **given, tenant=tenant, suspects=False, most=most) if most else []
        taken += [*risky, *plain]
    return taken


async def _read_cases(session: Session, tasks: Sequence[Sequence[int]]) -> list[TaskCase]:
    if not tasks:
        return []
    runs, indexes = [task[0] for task in tasks], [task[1] for task in tasks]
    rows = await session.rows(SQL["task_cases"], runs=runs, indexes=indexes)
    return [build_record(TaskCase, row, status=TaskStatus, run_status=RunStatus, begun=bool) for row in rows]


def _task_values(write: TaskWrite, at: int) -> dict[str, Any]:
    return {
        "run": write.run,
        "index": write.index,
        "fence": write.fence,
        "status": write.status.value,
        "attempt": write.attempt,
        "due_at": at + write.delay,
        "deaths": write.deaths,
        "output": write.output,
        "failure": write.failure,
        "reply": write.reply,
    }


async def _write_history(session: Session, writes: Sequence[TaskWrite], at: int) -> None:
    """Write what decisions add to the history: attempts, samples of circuits, audit lines, messages."""
    attempts = [
        {
            "run": each.run,
            "index": each.index,
            "attempt": attempt.attempt,
            "fence": each.fence,
            "tenant": each.tenant,
            "ending": attempt.end.value,
            "began_at": at - attempt.began_ago,
            "ended_at": at,
            "category": attempt.category,
            "failure": attempt.failure,
            "decision": attempt.decision,
            "next_at": None if attempt.next_in is None else at + attempt.next_in,
            "worker": each.worker,
        }
        for each in writes
        for attempt in each.decided.attempts
    ]
    if attempts:
        await session.write_many(SQL["put_task_attempt"], attempts)
    for each in writes:
        if each.shown is not None:
            shown = {"shown": each.shown.value, "made": each.attempt - 1, "due_at": at + each.delay}
            await session.rows(SQL["show_waiting"], run=each.run, index=each.index, **shown)
        for sample in each.decided.samples:
            circuit = {"tenant": each.tenant, "key": sample.key, "at": at}
            await session.rows(SQL["put_task_circuit"], **circuit, settings=sample.settings)
            if sample.good is not None:
                await session.rows(
                    SQL["put_task_sample"],
                    **circuit,
                    run=each.run,
                    index=each.index,
                    attempt=sample.attempt,
                    fence=each.fence,
                    generation=sample.generation,
                    good=int(sample.good),
                    category=sample.category,
                )
    if lines := [line for each in writes for line in each.decided.audit]:
        await session.note(lines)
    if published := [each.decided for each in writes if each.decided.messages]:
        await session.publish(published, at)
