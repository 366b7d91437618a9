"""Remote steps that processors of BullMQ execute: an attempt becomes a job, and the end of the job is its answer.

    take      take tasks of the queue from the store, also those of retries that are due within the hour
    add       each becomes a job, a retry a delayed one; its id names run, step and attempt, so a repeat finds the job
    begin     a processor has taken the job: the attempt begins, and with it its time limit
    answer    the job has ended: the store decides as for every step, and a retry is the next job

The tasks of a bridge that died are free when its lease expires. The next bridge adds the same ids again, finds the
jobs, and answers for those that have ended meanwhile. Nothing is decided from what Redis holds but the end of a job.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from redrive.app.sources import Accept
from redrive.bridges.bullmq.queues import OUTAGE_PAUSE, QueueAddress, end_tasks, find_failures
from redrive.clock import MICROS, SystemClock
from redrive.core.classify import Category
from redrive.core.failure import Failure, ReportedError
from redrive.core.json_schema import find_json_fault
from redrive.core.secret_and_sealed_text import is_sealed
from redrive.errors import ConfigurationError, StoreError, StoreUnavailable
from redrive.settle.step_tasks import StepQueues, TaskReport, read_run_options, read_step_options
from redrive.store.step_tasks import TaskCase, TaskClaim, TaskHeartbeat, TaskStatus
from redrive.store.workers import Catalogue, HeartbeatReply, NewWorker
from redrive.worker.claimer import Wakeup
from redrive.worker.lease import Lease

if TYPE_CHECKING:
    import bullmq
    from redis.asyncio import Redis

    from redrive.app import Redrive
    from redrive.app.runtime import Runtime
    from redrive.settings import Settings

T = TypeVar("T")
log = logging.getLogger("redrive.bridges")

_AHEAD = 3600 * MICROS  # retries that are due within this time are delayed jobs
_AT_ONCE = 256  # tasks that are taken at a time
_POLL = 1.0  # seconds after which the bridge looks for tasks without a notification
_BEAT = 2.0  # seconds between two looks at the tasks that have jobs
_LOOK = 8  # of these looks, one asks Redis for all jobs: an event may have been lost
_BLOCK = 5000  # milliseconds of a read of events
_KEPT = 7 * 24 * 3600  # seconds for which BullMQ keeps an ended job: a bridge may be away for so long
_TYPE = re.compile(r"([A-Za-z_$][\w$.]{0,200})(?::|$)")


class StepOptions(TypedDict, total=False):
    """The options of `steps`."""

    steps: str
    tenant: str | None
    jobs: int
    allow_clear: bool


class StepJobs:
    """A source of answers instead of runs: it lets processors of a queue execute remote steps."""

    def __init__(self, address: QueueAddress, options: StepOptions) -> None:
        self.address = address
        self.steps = options.get("steps", address.queue)
        self.tenant = options.get("tenant")
        self.most = options.get("jobs", 1000)
        if not isinstance(self.most, int) or self.most < 1:
            raise ConfigurationError(f"jobs is {self.most!r}: give a whole number above 0")
        self._allow_clear = options.get("allow_clear", False)
        self._app: Redrive | None = None

    def bind(self, app: Redrive) -> None:
        """Take the app in whose store the tasks are."""
        self._app = app

    async def serve(self, accept: Accept) -> None:
        """Make jobs of tasks until the task is cancelled. Jobs stay in Redis, for the next bridge."""
        import bullmq

        assert self._app is not None, "app.source binds a source"
        runtime: Runtime = self._app.runtime
        if runtime.encrypts and not self._allow_clear:
            raise ConfigurationError(
                "payloads are encrypted in the store, but inputs of steps would be readable in Redis: "
                "allow it with bull.steps(..., allow_clear=True)"
            )
        client = await self.address.connect()
        try:
            queue = bullmq.Queue(self.address.queue, {"connection": client, "prefix": self.address.prefix})
            await _Session(self, runtime, self._app.settings, client, queue).run()
        finally:
            await client.aclose()

    async def close(self) -> None:
        """Nothing stays open after `serve`."""


class _Session:
    """A registration of the bridge as a worker of steps. `open`: the tasks that have jobs, by the id of the job."""

    def __init__(
        self, source: StepJobs, runtime: Runtime, settings: Settings, client: Redis, queue: bullmq.Queue
    ) -> None:
        self._source = source
        self._store = runtime.store
        self._client: Any = client  # the types of the library name every answer that a command could have
        self._queue = queue
        self._clock = SystemClock()
        self._lease_time, self._max_payload = settings.lease, settings.max_payload
        self._queues = StepQueues(lambda: runtime.store, self._clock, self._max_payload, lambda: runtime.listeners)
        self._wakeup = Wakeup(self._clock)
        self._wake_workers = runtime.wake_workers
        self._worker = 0
        self._expired = asyncio.Event()
        self._open: dict[str, TaskCase] = {}
        self._begun: set[str] = set()
        self._after = ""

    async def run(self) -> None:
        """Register, make jobs of tasks and answer, until cancelled or until the lease has expired."""
        new = NewWorker(
            name=f"bullmq:{self._source.address.queue} {socket.gethostname()}:{os.getpid()}",
            version="",
            workflows=(),
            lease=int(self._lease_time * MICROS),
            queues=(self._source.steps,),
        )
        self._worker = await self._store.enlist(new, Catalogue(version="", workflows=(), steps=()))
        connection = self._store.lease_connection()
        lease = Lease(connection, self._clock, self._worker, self._lease_time, heartbeats=dict, on_beat=self._on_beat)
        lease.start()
        loops = [
            asyncio.create_task(each, name=f"redrive steps {self._source.address.queue}")
            for each in (
                self._take_forever(),
                self._listen_forever(),
                self._beat_forever(),
                self._wakeup.listen(self._store.changed, lambda: None),
                self._expired.wait(),
            )
        ]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(loops)
            await lease.stop()
            with suppress(StoreError):  # the lease will expire
                await self._store.retire(self._worker)
        for each in done:
            each.result()
        raise StoreUnavailable("the lease of the bridge has expired")

    def _on_beat(self, beat: HeartbeatReply) -> None:
        if not beat.alive:
            self._expired.set()

    async def _repeat(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of the store or of Redis, however long that takes."""
        while True:
            try:
                return await ask()
            except find_failures() as error:
                log.warning("steps of queue %s wait for an answer: %s", self._source.steps, error)
                await self._clock.sleep(OUTAGE_PAUSE)

    # -- taking ---------------------------------------------------------------------------------------

    async def _take_forever(self) -> None:
        while True:
            room = min(_AT_ONCE, self._source.most - len(self._open))
            claim = TaskClaim(
                worker=self._worker,
                queue=self._source.steps,
                names=None,
                most=room,
                begins=False,
                tenant=self._source.tenant,
                after=self._after,
                ahead=_AHEAD,
            )
            cases = [] if room < 1 else await self._repeat(lambda: self._queues.take(claim))  # noqa: B023
            if cases:
                self._after = max(case.tenant for case in cases)
                sealed = [case for case in cases if is_sealed(case.input)]
                await self._add([case for case in cases if case not in sealed])
                await self._repeat(lambda: self._refuse(sealed))  # noqa: B023
            if len(cases) < room or room < 1:
                await self._wakeup.wait(_POLL)

    async def _refuse(self, cases: Sequence[TaskCase]) -> None:
        """Fail steps whose inputs are encrypted by workers: no processor could read them."""
        why = "the input is encrypted by its workers, and processors of BullMQ have no keys"
        failure = Failure.of(Category.MISSING_CONFIG, why, error_type="redrive.Unreadable")
        if cases:
            await self._queues.settle([TaskReport(case=case, failure=failure) for case in cases])

    async def _add(self, cases: Sequence[TaskCase]) -> None:
        """Add the jobs of tasks. One that exists already stays as it is."""
        if not cases:
            return
        places = {_make_id(case): case for case in cases}
        self._open |= places
        self._begun -= places.keys()
        now = self._store.now()
        # An at-most-once step has begun before its job exists: it is never added twice.
        await self._begin([id for id, case in places.items() if _runs_once(case) and case.due_at <= now])
        await self._repeat(lambda: self._put(cases))
        if found := [id for id, case in places.items() if case.fence > 1]:
            await self._repeat(lambda: self._look(found))

    async def _put(self, cases: Iterable[TaskCase]) -> None:
        await self._queue.addBulk([await self._make_job(case) for case in cases])

    async def _make_job(self, case: TaskCase) -> dict[str, Any]:
        about = {
            "runId": case.run_id,
            "workflow": case.workflow,
            "attempt": case.attempt,
            "idempotencyKey": await self._queues.find_key(case),
            "tenant": case.tenant,
            "correlationId": case.correlation_id or case.run_id,
        }
        if (trace := read_run_options(case).trace) is not None:
            about["traceparent"] = trace
        kept = {"age": _KEPT}
        options = {"jobId": _make_id(case), "attempts": 1, "removeOnComplete": kept, "removeOnFail": kept}
        if (delay := (case.due_at - self._store.now()) // 1000) > 0:
            options["delay"] = delay
        return {"name": case.name, "data": {**json.loads(case.input), "redrive": about}, "opts": options}

    # -- events of jobs -------------------------------------------------------------------------------

    async def _listen_forever(self) -> None:
        key, last = self._queue.keys["events"], None
        while True:
            try:
                if last is None:
                    newest = await self._client.xrevrange(key, count=1)
                    last = newest[0][0] if newest else "0-0"
                    await self._look(list(self._open))
                for _, entries in await self._client.xread({key: last}, block=_BLOCK):
                    await self._follow([fields for _, fields in entries])
                    last = entries[-1][0]
            except find_failures() as error:
                log.warning("events of queue %s cannot be read: %s", self._source.address.queue, error)
                last = None
                await self._clock.sleep(OUTAGE_PAUSE)

    async def _follow(self, events: Sequence[dict[str, str]]) -> None:
        """Begin, note progress and answer, as events of jobs say."""
        known = [each for each in events if each.get("jobId") in self._open]
        ended = list(dict.fromkeys(each["jobId"] for each in known if each["event"] in ("completed", "failed")))
        await self._begin([each["jobId"] for each in known if each["event"] == "active" and each["jobId"] not in ended])
        progress = {each["jobId"]: each.get("data") for each in known if each["event"] == "progress"}
        if progress:
            await self._store.beat_tasks(
                self._worker, [self._make_beat(self._open[id], details) for id, details in progress.items()]
            )
        await self._answer(ended)

    async def _begin(self, ids: Iterable[str]) -> None:
        """Note that processors have taken jobs."""
        new = [id for id in ids if id in self._open and id not in self._begun]
        beats = [self._make_beat(self._open[id]) for id in new]
        if beats:
            await self._repeat(lambda: self._store.begin_tasks(self._worker, beats))
            self._begun.update(new)

    async def _answer(self, ids: Sequence[str]) -> None:
        """Answer with the ends of jobs."""
        cases = {id: case for id in ids if (case := self._open.get(id)) is not None}
        ends = await self._read_ends(list(cases))
        reports = {id: await self._make_report(cases[id], end) for id, end in ends.items()}
        if not reports:
            return
        await self._repeat(lambda: self._queues.settle(list(reports.values())))
        for id in reports:
            if self._open.get(id) is cases[id]:
                del self._open[id]
                self._begun.discard(id)
        self._wake_workers()
        self._wakeup.notify()  # a retry is the next job
        for id, report in reports.items():
            if report.failure is None:
                await self._remove(id)

    async def _read_ends(self, ids: Sequence[str]) -> dict[str, tuple[str | None, str | None, str | None]]:
        """Return result, reason of the failure and stacks of those jobs that have ended, as texts."""
        pipe = self._client.pipeline(transaction=False)
        for id in ids:
            pipe.hmget(self._queue.toKey(id), ["finishedOn", "returnvalue", "failedReason", "stacktrace"])
        found = await pipe.execute() if ids else []
        return {id: (each[1], each[2], each[3]) for id, each in zip(ids, found, strict=True) if each[0] is not None}

    async def _make_report(self, case: TaskCase, end: tuple[str | None, str | None, str | None]) -> TaskReport:
        result, reason, stacks = end
        if reason is not None:
            return TaskReport(case=case, failure=_read_failure(reason, stacks))
        return await self._queues.make_report(case, result or "null")

    # -- tasks that were taken away -------------------------------------------------------------------

    async def _beat_forever(self) -> None:
        """Find out which tasks are not wanted any more, and sometimes which events were lost."""
        count = 0
        while True:
            await self._clock.sleep(_BEAT)
            count += 1
            try:
                # A step with a limit for heartbeats is alive while its processor reports progress.
                beats = {
                    id: self._make_beat(case)
                    for id, case in self._open.items()
                    if id not in self._begun or read_step_options(case).heartbeat_timeout is None
                }
                alive = await self._store.beat_tasks(self._worker, list(beats.values())) if beats else set()
                await self._forget(
                    [id for id, beat in beats.items() if (beat.run, beat.index, beat.fence) not in alive]
                )
                if count % _LOOK == 0:
                    await self._look(list(self._open))
            except find_failures() as error:
                log.warning("steps of queue %s wait for an answer: %s", self._source.steps, error)

    async def _forget(self, ids: Sequence[str]) -> None:
        """Remove the jobs of tasks that were taken away, unless the same attempt comes again."""
        cases = {id: self._open[id] for id in ids if id in self._open}
        found = await self._store.task_cases([(case.run, case.index) for case in cases.values()]) if cases else []
        now = {(case.run, case.index): case for case in found}
        for id, case in cases.items():
            if self._open.get(id) is not case:
                continue
            del self._open[id]
            self._begun.discard(id)
            task = now.get((case.run, case.index))
            waits = task is not None and task.is_wanted and task.status in (TaskStatus.READY, TaskStatus.TAKEN)
            if task is None or not waits or task.attempt != case.attempt:
                await self._remove(id)
        self._wakeup.notify()

    async def _look(self, ids: Sequence[str]) -> None:
        """Begin, answer and add again, as jobs are now."""
        if not ids:
            return
        pipe = self._client.pipeline(transaction=False)
        pipe.lrange(self._queue.keys["active"], 0, -1)
        for id in ids:
            pipe.hmget(self._queue.toKey(id), ["timestamp", "finishedOn"])
        active, *jobs = await pipe.execute()
        known = dict(zip(ids, jobs, strict=True))
        await self._begin([id for id in active if id in known])
        await self._answer([id for id, job in known.items() if job[1] is not None])
        gone = [case for id, job in known.items() if job[0] is None and (case := self._open.get(id)) is not None]
        await self._put([case for case in gone if not (_runs_once(case) and _make_id(case) in self._begun)])

    async def _remove(self, id: str) -> None:
        with suppress(TypeError, *find_failures()):  # a processor has it, or BullMQ removes it later
            await self._queue.backend.remove(id, False)

    def _make_beat(self, case: TaskCase, details: str | None = None) -> TaskHeartbeat:
        usable = details is not None and len(details) <= self._max_payload and find_json_fault(details) is None
        heartbeat = details if usable else None
        return TaskHeartbeat(tenant=case.tenant, run=case.run, index=case.index, fence=case.fence, heartbeat=heartbeat)


def _make_id(case: TaskCase) -> str:
    """Return the id of the job of an attempt. BullMQ forbids colons."""
    return f"{case.run_id}-{case.index}-{case.attempt}"


def _runs_once(case: TaskCase) -> bool:
    return read_step_options(case).at_most_once


def _read_failure(reason: str, stacks: str | None) -> Failure:
    """Return the failure of a job. Its type is the first word of the stack, or of the last line of a Python stack."""
    stack = "".join((json.loads(stacks or "[]") or [""])[-1:])
    lines = stack.strip().splitlines() or [""]
    found = _TYPE.match(lines[0]) or _TYPE.match(lines[-1])
    kind = found[1] if found else "Error"
    error = ReportedError(type=kind, message=reason, stack=stack)
    return error.to_failure(non_retryable=kind == "UnrecoverableError")
