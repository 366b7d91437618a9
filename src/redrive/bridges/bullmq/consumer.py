"""The source of BullMQ: jobs become runs, and their ends become the ends of the jobs.

    take      a job becomes active; all that came together are accepted in one commit
    accept    the run of the job is stored, or found: the id of the job is the key of the run
    park      the job becomes delayed: it holds no lock, no slot and no memory while its run lasts
    promote   the event `redrive.run.ended` makes the job wait; a parked job also looks by itself from time to time
    finish    the job is taken again, finds that its run has ended, and is completed or failed

A bridge may die at any point. A job that was active is given to another bridge when its lock expired, and its run is
found by its key. Nothing is decided from what Redis holds.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from redrive.app.sources import Accept, Accepted, Arrival, Refused
from redrive.bridges.bullmq.queues import (
    OUTAGE_PAUSE,
    QueueAddress,
    end_tasks,
    find_failures,
    find_outages,
    make_event_id,
    read_job_id,
)
from redrive.clock import SystemClock
from redrive.core.journal import EntryRow
from redrive.core.keys_and_ids import letter_id
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, LetterStatus, RunStatus, StepStatus
from redrive.errors import ConfigurationError, Conflict, InputError, NotFound, RetryAfter, StoreError
from redrive.sinks import Message
from redrive.store.encryption.keyring import Unreadable
from redrive.store.runs import RunRow
from redrive.time_values import Duration, parse_duration

if TYPE_CHECKING:
    import bullmq
    from redis.asyncio import Redis

    from redrive.app import Redrive

log = logging.getLogger("redrive.bridges")

_NEVER_FAIL_STALLED = 2**31 - 1  # BullMQ's default of 1 fails a job after two crashes of the bridge
_TAKE_AT_ONCE = 8  # jobs that are asked for at the same time
_STOP_GRACE = 5.0  # seconds in which jobs may be finished after a stop
_FIRST_PARK, _LONGEST_PARK = 60.0, 3600.0
_BUSY_PAUSE = 0.1  # seconds before the end of a run is told again to a job that is not parked yet
_MAX_WATCHED = 500  # parked jobs whose progress one bridge updates, the newest ones
_TENANTS_AGE = 5.0  # seconds for which the registered tenants are cached
_KEPT_COMPLETED = 100


class ConsumerOptions(TypedDict, total=False):
    """The options of `consume`."""

    workflow: str | None
    workflows: Sequence[str]
    tenant: str
    tenant_field: str | None
    complete: Literal["ended", "accepted"]
    input: Callable[[Any], Any] | None
    results: Literal["full", "redacted", "none"]
    retry: Literal["replay", "refuse"]
    progress: Duration | None
    concurrency: int | None
    lock: Duration
    stream: str | None


class _JobEnd(msgspec.Struct, frozen=True):
    """The end of a job: its result, or the reason of its failure."""

    result: Any = None
    failure: str | None = None


class _Watched(msgspec.Struct):
    """A parked job, and the progress that was written last."""

    job: str
    progress: Any


class Consumer:
    """A source that starts a run for each job of a queue, and a sink for the ends of these runs."""

    def __init__(self, address: QueueAddress, options: ConsumerOptions) -> None:
        self._address = address
        self._options = options
        self._workflow, self._workflows = options.get("workflow"), frozenset(options.get("workflows", ()))
        if (self._workflow is None) == (not self._workflows):
            raise ConfigurationError(
                "a consumer needs workflow=, or workflows= for jobs that name theirs; give one of them"
            )
        if "tenant" in options and options.get("tenant_field"):
            raise ConfigurationError("a consumer takes tenant= or tenant_field=, not both")
        for name, known in _CHOICES.items():
            if options.get(name, known[0]) not in known:
                raise ConfigurationError(f"{name} of a consumer is {options.get(name)!r}: give {' or '.join(known)}")
        self._lock = parse_duration(options.get("lock", 30.0), "lock")
        progress = options.get("progress", 5.0)
        self._progress = None if progress is None else parse_duration(progress, "progress")
        self.stream = options.get("stream") or address.stream
        self._clock = SystemClock()
        self._app: Redrive | None = None
        self._client: Redis | None = None
        self._worker: bullmq.Worker | None = None
        self._opening = asyncio.Lock()
        self._active: dict[str, asyncio.Event] = {}  # jobs in hand; the event is set when a job was given back
        self._room = asyncio.Event()
        self._watched: OrderedDict[str, _Watched] = OrderedDict()  # by run
        self._tenants: frozenset[str] = frozenset()
        self._tenants_read_at = 0.0
        self._token = 0

    def bind(self, app: Redrive) -> None:
        """Take the app whose workflows are started."""
        self._app = app

    @property
    def _runtime(self) -> Any:
        assert self._app is not None, "app.source binds a consumer"
        return self._app.runtime

    async def serve(self, accept: Accept) -> None:
        """Take jobs until the task is cancelled; then finish those in hand, for a few seconds at most."""
        worker = await self._open()
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the library for Redis loses a cancellation while it connects
            await self.close()
            raise asyncio.CancelledError
        worker.lockManager.start()
        in_hand: set[asyncio.Task[None]] = set()
        services = [asyncio.create_task(self._look_for_stalled(worker), name="redrive stalled jobs")]
        if self._progress is not None:
            services.append(asyncio.create_task(self._update_progress(self._progress), name="redrive progress"))
        taking = asyncio.create_task(self._take_forever(worker, accept, in_hand), name="redrive taking")
        try:
            await asyncio.wait([taking])
        finally:
            await end_tasks([taking])
            for service in services:
                service.cancel()
            if in_hand:
                await asyncio.wait(in_hand, timeout=_STOP_GRACE)
            for task in (*in_hand, *services):
                task.cancel()
            await asyncio.gather(*in_hand, *services, return_exceptions=True)
            await worker.lockManager.close()
            await self.close()
        taking.result()

    async def _take_forever(self, worker: bullmq.Worker, accept: Accept, in_hand: set[asyncio.Task[None]]) -> None:
        while True:
            jobs = await self._take(worker)
            task = asyncio.create_task(self._handle(worker, jobs, accept), name="redrive jobs")
            in_hand.add(task)
            task.add_done_callback(in_hand.discard)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client, self._worker = self._client, None, None
        if client is not None:
            await client.aclose()

    async def _open(self) -> bullmq.Worker:
        async with self._opening:
            if self._worker is None:
                import bullmq

                self._client = await self._address.connect()
                milliseconds = int(self._lock * 1000)
                self._worker = bullmq.Worker(
                    self._address.queue,
                    None,
                    {
                        "connection": self._client,
                        "prefix": self._address.prefix,
                        "lockDuration": milliseconds,
                        "stalledInterval": milliseconds,
                        "maxStalledCount": _NEVER_FAIL_STALLED,
                    },
                )
                self._worker.on(
                    "stalled", lambda job: log.warning("job %s was taken back from a bridge that died", job)
                )
        return self._worker

    # -- taking ---------------------------------------------------------------------------------------

    async def _take(self, worker: bullmq.Worker) -> list[bullmq.Job]:
        """Return the jobs that wait, as many as there is room for; wait until there is one."""
        while True:
            limit = self._options.get("concurrency") or self._app_concurrency
            if len(self._active) >= limit:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                first = await worker.getNextJob(self._make_token(worker))
                jobs = [] if first is None else [first]
                while jobs and jobs[-1] is not None and len(jobs) + len(self._active) < limit:
                    count = min(_TAKE_AT_ONCE, limit - len(jobs) - len(self._active))
                    jobs += await asyncio.gather(*(worker.moveToActive(self._make_token(worker)) for _ in range(count)))
            except find_outages() as error:
                log.warning("jobs of queue %s cannot be taken, Redis does not answer: %s", self._address.queue, error)
                await self._clock.sleep(OUTAGE_PAUSE)
                continue
            taken = [job for job in jobs if job is not None]
            for job in taken:
                self._active[job.id] = asyncio.Event()
                worker.lockManager.track_job(job.id, job.token, self._clock.now() // 1000)
            if taken:
                return taken

    @property
    def _app_concurrency(self) -> int:
        return 100 if self._app is None else self._app.settings.concurrency

    def _make_token(self, worker: bullmq.Worker) -> str:
        self._token += 1
        return f"{worker.id}:{self._token}"

    async def _look_for_stalled(self, worker: bullmq.Worker) -> None:
        """Let jobs of dead bridges wait again, when their locks have expired."""
        while True:
            await worker.runStalledJobsCheck()  # reports errors as events, and Redis may be away
            await self._clock.sleep(self._lock)

    # -- accepting ------------------------------------------------------------------------------------

    async def _handle(self, worker: bullmq.Worker, jobs: Sequence[bullmq.Job], accept: Accept) -> None:
        """Accept jobs in one commit; then complete, fail or park each."""
        try:
            answers = await self._repeat(lambda: self._accept(jobs, accept))
            known = [each.run_id for each in answers if isinstance(each, Accepted) and not each.new]
            runs = await self._repeat(lambda: self._load_runs(known)) if self._waits and known else {}
            await asyncio.gather(*(self._finish(job, answer, runs) for job, answer in zip(jobs, answers, strict=True)))
        except Exception:
            log.exception("unexpected error in the bridge of queue %s; its jobs come again", self._address.queue)
        finally:
            for job in jobs:
                worker.lockManager.untrack_job(job.id)
                self._active.pop(job.id).set()
            self._room.set()

    async def _repeat(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer of the store or of Redis, however long that takes. Locks of jobs are renewed meanwhile."""
        while True:
            try:
                return await ask()
            except find_failures() as error:
                log.warning("jobs of queue %s are kept until there is an answer: %s", self._address.queue, error)
                await self._clock.sleep(OUTAGE_PAUSE)

    async def _accept(self, jobs: Sequence[bullmq.Job], accept: Accept) -> list[Accepted | Refused]:
        read = [await self._read(job) for job in jobs]
        answers = iter(await accept([each for each in read if isinstance(each, Arrival)]))
        return [next(answers) if isinstance(each, Arrival) else each for each in read]

    async def _read(self, job: bullmq.Job) -> Arrival | Refused:
        """Return the run that a job asks for."""
        workflow = self._workflow
        if workflow is None:
            workflow = job.name
            if workflow not in self._workflows:
                return Refused(
                    reason=f"the job is called {workflow!r:.60}, and this queue starts {_list(self._workflows)}"
                )
        tenant, field = self._options.get("tenant", DEFAULT_TENANT), self._options.get("tenant_field")
        if field:
            given = job.data.get(field) if isinstance(job.data, dict) else None
            if not isinstance(given, str) or given not in await self._load_tenants():
                return Refused(reason=f"{field} of the job is {given!r:.60}, which is not a registered tenant")
            tenant = given
        make_input = self._options.get("input")
        try:
            input = job.data if make_input is None else make_input(job.data)
        except Exception as error:
            return Refused(reason=f"the job's data cannot be read: {type(error).__name__}: {error}")
        event = make_event_id(job.id, job.timestamp)
        return Arrival(stream=self.stream, id=event, workflow=workflow, input=input, tenant=tenant)

    async def _load_tenants(self) -> frozenset[str]:
        now = self._clock.monotonic()
        if not self._tenants or now - self._tenants_read_at > _TENANTS_AGE:
            self._tenants = frozenset(
                [each.tenant for each in await self._runtime.store.accounts.tenants() if each.disabled_at is None]
            )
            self._tenants_read_at = now
        return self._tenants

    async def _load_runs(self, run_ids: Sequence[str]) -> dict[str, RunRow]:
        """Return runs by id. The run of a letter that was replayed in full stands for the first one."""
        store = self._runtime.store
        found = {run.public_id: run for run in await store.runs_by_id(run_ids)}
        for run_id, run in list(found.items()):
            if run.status in FINAL_RUN_STATUSES and run.status is not RunStatus.SUCCESS:
                letter = await store.letter(letter_id(run_id), tenant=run.tenant)
                if letter is not None and letter.run_id != run_id:
                    found[run_id] = await store.run(letter.run_id) or run
        return found

    # -- finishing ------------------------------------------------------------------------------------

    @property
    def _waits(self) -> bool:
        return self._options.get("complete", "ended") == "ended"

    async def _finish(self, job: bullmq.Job, answer: Accepted | Refused, runs: dict[str, RunRow]) -> None:
        """Complete, fail or park a job."""
        if isinstance(answer, Refused):
            await self._end(job, _JobEnd(failure=answer.reason))
        elif not self._waits:
            await self._end(job, _JobEnd({"runId": answer.run_id, "new": answer.new}))
        else:
            run = runs.get(answer.run_id)
            about = {"redrive": {"run_id": answer.run_id, "job_id": job.id}}
            if run is not None and run.status in FINAL_RUN_STATUSES:
                if job.attemptsStarted <= 1:
                    log.warning("job %s asks for a run that has ended; nothing is executed", job.id, extra=about)
                end = await self._repeat(lambda: self._make_end(job, run))
                if end is not None:
                    await self._end(job, end)
                    return
            elif run is not None and job.stalledCounter:
                log.warning("Recovering stale run %s — previous attempt did not complete", answer.run_id, extra=about)
            await self._park(job, answer.run_id, run)

    async def _make_end(self, job: bullmq.Job, run: RunRow) -> _JobEnd | None:
        """Return the end of a job whose run has ended; None if the run was replayed because the job was retried."""
        if run.status is RunStatus.SUCCESS:
            return _JobEnd(await self._read_result(run))
        letter = await self._runtime.store.letter_of(run.id)
        if job.attemptsMade and letter is not None and self._options.get("retry", "replay") == "replay":
            if letter.status is LetterStatus.REPLAYING or await self._replay(job, letter.public_id):
                return None
        try:
            shown = await self._runtime.runs.get(run.public_id)
        except NotFound:
            return _JobEnd(failure=f"run {run.public_id} was removed")
        return _JobEnd(failure=shown.error or f"run {run.public_id} ended as {run.status.value}")

    async def _replay(self, job: bullmq.Job, letter: str) -> bool:
        """Replay a letter once for each retry of a job; return False if this retry has replayed it, or cannot."""
        key = f"{self.stream}:{make_event_id(job.id, job.timestamp)}:{job.attemptsMade}"
        (case,) = await self._runtime.store.cases([letter])
        if any(replay.key == key for replay in case.replays):
            return False
        try:
            by = f"bullmq:{self._address.queue}"
            await self._runtime.dlq.replay(letter, by=by, idempotency_key=key, reason="the job was retried")
        except (Conflict, InputError, NotFound) as error:
            log.warning("job %s was retried, but its dead letter cannot be replayed: %s", job.id, error)
            return False
        return True

    async def _read_result(self, run: RunRow) -> Any:
        how = self._options.get("results", "full")
        if how == "none" or run.output is None:
            return None
        if how == "redacted":
            return (await self._runtime.runs.get(run.public_id)).output
        if isinstance(run.output, Unreadable):
            raise StoreError(f"the result of run {run.public_id} is unreadable: {run.output.why}")
        return json.loads(run.output)

    async def _end(self, job: bullmq.Job, end: _JobEnd) -> None:
        import bullmq

        # The options of the producer take precedence, as they do in BullMQ.
        job.opts.setdefault("removeOnComplete", {"count": _KEPT_COMPLETED})
        job.opts.setdefault("removeOnFail", False)
        job.opts["stackTraceLimit"] = 0  # a stack would be that of the bridge
        if end.failure is None:
            await self._write(job, lambda: job.moveToCompleted(end.result, job.token))
        else:
            failure = end.failure
            # Not to be retried by BullMQ, whatever `attempts` the producer gave: the retries of the run are over.
            await self._write(job, lambda: job.moveToFailed(bullmq.UnrecoverableError(failure), job.token))

    async def _park(self, job: bullmq.Job, run_id: str, run: RunRow | None) -> None:
        if self._progress is not None:
            status = RunStatus.PENDING if run is None else run.status
            progress = {"runId": run_id, "status": status.value, "step": None, "stepsDone": 0}
            if run is None or not isinstance(job.progress, dict):
                await self._write(job, lambda: job.updateProgress(progress))
            self._watched[run_id] = _Watched(job.id, progress)
            self._watched.move_to_end(run_id)
            if len(self._watched) > _MAX_WATCHED:
                self._watched.popitem(last=False)
        delay = min(_FIRST_PARK * 2 ** min(job.attemptsStarted - 1, 10), _LONGEST_PARK)
        at = self._clock.now() // 1000 + int(delay * 1000)
        await self._write(job, lambda: job.moveToDelayed(at, job.token))

    async def _write(self, job: bullmq.Job, write: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Write to a job in hand. If its lock is lost, another bridge has it, or it was removed."""
        try:
            await self._repeat(write)
        except TypeError as error:  # the library's error for a job that is not in the expected state
            log.warning("job %s is not held any more: %s", job.id, error)

    # -- ends of runs ---------------------------------------------------------------------------------

    async def deliver(self, message: Message) -> None:
        """Let the job of a run that ended be taken again."""
        event = message.payload
        origin = event.get("origin")
        if not self._waits or origin is None or origin["stream"] != self.stream:
            return
        self._watched.pop(event["run_id"], None)
        worker, job_id = await self._open(), read_job_id(origin["id"])
        if (in_hand := self._active.get(job_id)) is not None:
            await in_hand.wait()
        state = await worker.backend.getState(job_id)
        try:
            if state == "delayed":
                await worker.backend.promote(job_id)
            elif state == "failed" and event["status"] == RunStatus.SUCCESS:
                await worker.backend.reprocessJob(await self._load_job(worker, job_id), "failed", {})
            elif state == "active":
                raise RetryAfter(_BUSY_PAUSE, "the job is not parked yet")
        except TypeError as error:  # the job moved meanwhile
            raise RetryAfter(_BUSY_PAUSE, str(error)) from None

    async def _load_job(self, worker: bullmq.Worker, job_id: str) -> bullmq.Job:
        import bullmq

        job = await bullmq.Job.fromId(worker, job_id)
        if job is None:
            raise TypeError(f"job {job_id} was removed")
        return job

    # -- progress -------------------------------------------------------------------------------------

    async def _update_progress(self, interval: float) -> None:
        """Write the progress of parked jobs where it changed."""
        while True:
            await self._clock.sleep(interval)
            try:
                await self._update_watched()
            except find_failures() as error:
                log.debug("progress of jobs is late: %s", error)

    async def _update_watched(self) -> None:
        worker, store = await self._open(), self._runtime.store
        for run in await store.runs_by_id(list(self._watched)) if self._watched else ():
            watched = self._watched.get(run.public_id)
            if watched is None:
                continue
            if run.status in FINAL_RUN_STATUSES:
                del self._watched[run.public_id]
                continue
            step, done = _summarise(await store.journal(run.id))
            progress = {"runId": run.public_id, "status": run.status.value, "step": step, "stepsDone": done}
            if progress != watched.progress:
                watched.progress = progress
                try:
                    await worker.backend.updateProgress(watched.job, progress)
                except TypeError:  # the job was removed; its run continues
                    del self._watched[run.public_id]


_CHOICES = {"complete": ("ended", "accepted"), "results": ("full", "redacted", "none"), "retry": ("replay", "refuse")}


def _summarise(journal: Sequence[EntryRow]) -> tuple[str | None, int]:
    """Return the step that is under way, and the number of steps that succeeded."""
    steps = [each for each in journal if each.kind is EntryKind.STEP]
    done = sum(each.status is StepStatus.SUCCESS for each in steps)
    open_steps = [each.name for each in steps if each.ended_at is None]
    return (open_steps[-1] if open_steps else None), done


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
