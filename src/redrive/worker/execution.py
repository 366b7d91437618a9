"""One run in the hands of a worker: what its workflow function sees of the engine.

    drive     decode the input, call the function, settle how it ended
    step      recorded? -> the record.   new? -> try, settle, wait, try again ... -> value or StepFailed
    sleep     recorded? -> go on.        new? -> record when it is over, wait
    note      recorded? -> the record.   new? -> record it
    publish   recorded? -> nothing.      new? -> record it, with the message

Everything that leaves this module goes through the committer as an outcome, and comes back as what
was decided. When the run is no longer this worker's (it waits too long, was taken away, or the
worker stops), the execution is *put down*: from then on every engine call raises `PutDown`, nothing
more is sent, and its tasks are cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.clock import MICROS, Timer
from redrive.core.ending import Ending, Stage, step_failed
from redrive.core.failure import Failure
from redrive.core.failure import capture as capture_failure
from redrive.core.journal import MAX_ENTRIES, EntryRow, Journal, entry_key, entry_name
from redrive.core.keys import message_id
from redrive.core.outcome import (
    Ended,
    Escaped,
    Expired,
    Interrupted,
    Noted,
    OpenStep,
    Outcome,
    Place,
    Released,
    RunView,
    Slept,
    Stopped,
    Woke,
)
from redrive.core.payload import check_size
from redrive.core.quick import quick
from redrive.core.states import FINAL, EntryKind, RunStatus, StepStatus
from redrive.core.topics import check_topic
from redrive.errors import PutDown
from redrive.worker.attempt import Attempt
from redrive.worker.branch import Branch, current
from redrive.worker.confirm import confirm_all
from redrive.worker.function import TooManyEntries, call_function
from redrive.worker.limit import TimeLimit
from redrive.worker.publishing import written
from redrive.worker.rest import Rest
from redrive.worker.rollback import roll_back
from redrive.worker.tries import Tries
from redrive.worker.turnstile import Turnstile

if TYPE_CHECKING:
    from redrive.settle.settler import Settled
    from redrive.store.records import Claimed
    from redrive.worker.definition import Step, WorkflowDefinition
    from redrive.worker.loop import Worker

__all__ = ["Execution"]

T = TypeVar("T")
log = logging.getLogger("redrive.worker")

_NewPlace = quick(Place)
_UNWIND = 1.0  # how long branches of a run that ended may take to notice


class Execution:
    """A claimed run while this worker has it."""

    def __init__(
        self,
        worker: Worker,
        claimed: Claimed,
        workflow: WorkflowDefinition,
        *,
        claimed_at: int,
        ended: Ended | None = None,
    ) -> None:
        self.worker = worker
        self.claimed = claimed
        self.claimed_at = claimed_at
        self.clock = worker.clock
        self.correlation_id = claimed.correlation_id or claimed.public_id
        self.dead = False
        self.winding = False
        self.ending = False
        # Who undoes need not know the function: what may be missing is known by the version that recorded it.
        undoing = claimed.status is RunStatus.COMPENSATING
        self.view = RunView(
            id=claimed.id,
            public_id=claimed.public_id,
            tenant=claimed.tenant,
            workflow=claimed.workflow,
            fence=claimed.fence,
            input=claimed.input,
            options=worker.options_of(claimed.options),
            deaths=claimed.deaths,
            new_version=None if undoing or claimed.version == worker.version else worker.version,
            letter=claimed.letter,
            correlation_id=claimed.correlation_id,
            started_at=claimed.started_at,
            handler_for=claimed.handler_for,
            undoing=undoing,
        )
        self.workflow = workflow
        self._ended = ended
        self._follows = ended is not None or self.view.undoing
        self._reserved = False  # steps were called that are confirmed or cancelled in the end
        self._pivoted = False
        self._journal = Journal(() if self._follows else claimed.journal)
        self._loop = asyncio.get_running_loop()
        self.rest = Rest(self)
        self.turnstile = Turnstile(
            self._loop, self._journal, on_quiet=self._all_blocked, on_diverged=self._diverged
        )
        self.open: dict[int, Attempt] = {}
        self._in_flight = 0
        self.starting = 0  # runs that the store is being asked to start
        self._recording: dict[int, asyncio.Future[Settled]] = {}  # results on their way, by number
        self.kept_waiting = 0
        self._kept_out = 0  # calls that a replay of one step alone does not let begin
        self._unsaved: asyncio.Future[Settled] | None = None
        self._held_back: list[Noted] = []  # messages that wait until the journal has been walked through
        self._cut_off = False  # a replay of one step alone came to a message
        self.endings: dict[str, tuple[Ending, Place, int]] = {}
        self._helpers: set[asyncio.Task[Any]] = set()
        self._difference: str | None = None
        self._task: asyncio.Task[None] | None = None

    # -- the life of the run ------------------------------------------------------------------------

    def launch(self) -> asyncio.Task[None]:
        """Begin executing; the task ends when the run ended or was put down."""
        self._task = self._loop.create_task(self._drive(), name=f"redrive run {self.claimed.public_id}")
        return self._task

    async def _drive(self) -> None:
        root = Branch(self)
        me = asyncio.current_task()
        assert me is not None
        root.task = me
        self.turnstile.tasks[me] = root
        deadline = self._arm_deadline()
        try:
            if self._follows:
                await self._follow(root)
                return
            if self.claimed.deadline is not None and not self.left_until(self.claimed.deadline):
                await self._expire()
                return
            outcome = await self._call_function(root)
            if not self.dead:
                await self._close_branches(me)
                await self._finish(outcome)
        except PutDown:
            pass  # the run is somebody else's by now, or waits in the store
        except asyncio.CancelledError:
            if not self.dead:
                raise
        finally:
            if deadline is not None:
                deadline.cancel()
            self.turnstile.end(me)

    async def _call_function(self, root: Branch) -> Outcome:
        try:
            return await call_function(self, self.workflow, root)
        except PutDown:
            if self.dead or not self._cut_off:
                raise
            return self._stopped()

    async def _follow(self, root: Branch) -> None:
        """Do what follows the function: confirm what it reserved, or undo what it did."""
        if self._ended is not None:
            await confirm_all(self, root, self._ended)
        else:
            await roll_back(self, root)

    def _rolls_back(self, outcome: Escaped) -> bool:
        """True if what the function did is to be undone: it says so, or made reservations, and no pivot.

        A replay of one step alone ends as it began, and so does a run whose function was never called.
        """
        wanted = self.view.options.rollback or self._reserved
        called = outcome.ending.stage is not Stage.INPUT and self.claimed.sole_step is None
        return wanted and called and not self._pivoted

    async def _finish(self, outcome: Outcome) -> None:
        if self._cut_off:
            outcome = self._stopped()
        if self._difference is None and isinstance(outcome, Ended):
            forgotten = self._journal.forgotten()
            if forgotten:
                self._difference = self._journal.difference(())
        if self._difference is not None:
            outcome = await self.worker.code_changed(self.claimed, self.view, self._difference)
        else:
            self._send_held_back()
        if isinstance(outcome, Escaped):
            outcome = replace(outcome, rolls_back=self._rolls_back(outcome))
        elif isinstance(outcome, Ended) and self._reserved:
            self.dead = True  # whatever is left of the function's tasks sends nothing more
            self.worker.confirm(self, outcome)
            return
        settled = await self.settle(outcome)
        self.dead = True
        self.worker.ended(self.claimed, settled)

    async def _close_branches(self, me: asyncio.Task[Any]) -> None:
        """Cancel branches that wait; let steps in flight come to their end and be recorded."""
        self.ending = True
        while others := [task for task in self.turnstile.tasks if task is not me and not task.done()]:
            executing = {branch for attempt in self.open.values() for branch in attempt.branch.lineage()}
            idle = [task for task in others if self.turnstile.tasks[task] not in executing]
            for task in idle:
                task.cancel()
            limit = None if executing else _UNWIND
            ended, _ = await asyncio.wait(others, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not ended and not executing:
                log.warning("run %s: %d tasks ignore that it ended", self.claimed.public_id, len(others))
                return

    # -- engine calls -------------------------------------------------------------------------------

    def enter(self, branch: Branch, call: Coroutine[Any, Any, T]) -> Any:
        """Make an engine call from where the branch is: awaitable on the loop, blocking in a thread."""
        if not branch.threaded:
            return call
        context = contextvars.copy_context()
        context.run(current.set, None)
        return context.run(asyncio.run_coroutine_threadsafe, self._for_thread(call), self._loop).result()

    def _awaiting(self, branch: Branch) -> Branch:
        """The branch that awaits a call, which need not be the one that made it: see `gather(a(), b())`."""
        here = current.get()
        return here if isinstance(here, Branch) and here.execution is self else branch

    async def _for_thread(self, call: Coroutine[Any, Any, T]) -> T:
        """A call that a thread waits for; putting the run down must reach it, or the thread would stay."""
        task = asyncio.current_task()
        assert task is not None
        self._helpers.add(task)
        try:
            return await call
        finally:
            self._helpers.discard(task)

    def engine_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task of the engine's own on behalf of this run, which is no branch of it."""
        context = contextvars.copy_context()
        context.run(current.set, None)
        task = self._loop.create_task(work, context=context)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)
        return task

    def adopt(self, task: asyncio.Future[Any], branch: Branch, parent: Branch) -> None:
        """Count a task that workflow code created as a branch of this run."""
        branch.task = task if isinstance(task, asyncio.Task) else None
        self.turnstile.tasks[task] = branch
        parent.live_children += 1

        def gone(task: asyncio.Future[Any]) -> None:
            self.turnstile.tasks.pop(task, None)
            parent.live_children -= 1
            if (self.dead or self.ending) and not task.cancelled():
                task.exception()  # nobody is left to look at it
            self.turnstile.poke()

        task.add_done_callback(gone)

    async def step(
        self, branch: Branch, step: Step[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a step: from the record, or for real until it succeeds or fails for good."""
        branch = self._awaiting(branch)
        place, entry = self._place(branch, EntryKind.STEP, step.name)
        branch.go_in()
        try:
            if step.cancel is not None:
                self._reserved = True
            if entry is not None:
                if entry.done is not None:
                    await self.turnstile.pass_result(entry.done, entry.key)
                    return self._recorded(step, place, entry)
                if entry.status is StepStatus.CANCELLED:
                    await self._never()
            if self.claimed.sole_step is not None:
                await self._keep_out(place)
            if self._journal.turn is not None:
                await self._let_begin(place, entry)
            text = step.signature.encode(args, kwargs)
            check_size(text, self.worker.max_payload, step.its_input)
            value = await Tries(self, branch, step, place, text).until_settled(entry, args, kwargs)
            if step.options.pivot:
                self._pivoted = True
            return value
        except asyncio.CancelledError:
            if self.dead or self.ending:
                raise PutDown from None
            raise
        finally:
            branch.come_out()

    async def _let_begin(self, place: Place, entry: EntryRow | None) -> None:
        """Wait until a step may begin, or go on. One that is cancelled before it goes on has an end, too."""
        try:
            await self.turnstile.begin(place.key)
        except asyncio.CancelledError:
            if entry is not None and not self.dead:
                await self.settle(Interrupted(run=self.view, place=place, attempt=entry.attempt))
            raise

    async def _keep_out(self, place: Place) -> None:
        """Where one step alone is replayed, nothing else begins; the run stops when only that is left."""
        if self.claimed.sole_step in (None, place.key):
            return
        self._kept_out += 1
        self.turnstile.poke()
        await self._never()

    async def sleep(self, branch: Branch, seconds: float) -> None:
        """Wait durably."""
        branch = self._awaiting(branch)
        place, entry = self._place(branch, EntryKind.SLEEP, "redrive.sleep")
        branch.go_in()
        try:
            if entry is not None and entry.done is not None:
                await self.turnstile.pass_result(entry.done, entry.key)
                return
            if entry is not None and entry.status is StepStatus.CANCELLED:
                await self._never()
            await self._sleep_live(place, entry, seconds)
        except asyncio.CancelledError:
            recorded = entry is not None and entry.status is not StepStatus.RUNNING
            if not self.dead and not recorded and not self.worker.is_being_cancelled:
                await self.settle(Interrupted(run=self.view, place=place, resumes=self.rest.wake_up()))
            if self.dead or self.ending:
                raise PutDown from None
            raise
        finally:
            branch.come_out()

    async def _sleep_live(self, place: Place, entry: EntryRow | None, seconds: float) -> None:
        await self._keep_out(place)
        if self._journal.turn is not None:
            await self.turnstile.begin(place.key)
        await self.ready()
        if entry is None:
            delay = int(seconds * MICROS)
            settled = await self.settle(
                Slept(run=self.view, place=place, delay=delay, idle=self.alone(), hold=self.worker.hold())
            )
            await self.rest.wait(place, 1, seconds, settled.transition.change)
        else:
            await self.rest.wait(place, 1, self.left_until(entry.wake_at), None)
        done = self.next_done()
        await self.settle(Woke(run=self.view, place=place, done=done, resumes=self.rest.wake_up()))
        await self.turnstile.pass_result(done, place.key)

    def noted(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        """A value that is made once and is the same ever after."""
        if branch.threaded:
            return self.enter(branch, self._noted_later(branch, name, make))
        return self._note(branch, name, make)

    async def _noted_later(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        return self._note(branch, name, make)

    def _note(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        place, entry = self._place(branch, EntryKind.NOTE, name)
        if entry is not None and entry.output is not None:
            return json.loads(entry.output)
        value = make()
        self._unsaved = self.worker.committer.submit(
            Noted(run=self.view, place=place, output=json.dumps(value))
        )
        return value

    def publish(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        """Publish a message, once: a resumed run finds it in the journal."""
        if branch.threaded:
            return str(self.enter(branch, self._publish_later(branch, topic, payload, key)))
        return self._publish(branch, topic, payload, key)

    async def _publish_later(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        return self._publish(branch, topic, payload, key)

    def _publish(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        place, entry = self._place(branch, EntryKind.PUBLISH, f"redrive.publish {check_topic(topic)}")
        if entry is not None:
            return message_id(self.claimed.public_id, place.index, 0)
        if self.claimed.sole_step is not None:
            self._cut_off = True
            raise PutDown
        message = written(self, place.index, 0, topic, payload, key)
        said = Noted(run=self.view, place=place, output=json.dumps(message.public_id), messages=(message,))
        self._held_back.append(said)
        if self._journal.turn is None:
            self._send_held_back()
        return message.public_id

    def _send_held_back(self) -> None:
        """What code says that has not been seen to agree with the journal would be said to the world."""
        for said in self._held_back:
            self._unsaved = self.worker.committer.submit(said)
        self._held_back.clear()

    def limit(self, branch: Branch, seconds: float) -> TimeLimit:
        """Begin a durable time limit for the block of code that the current task enters."""
        place, entry = self._place(branch, EntryKind.TIMER, "redrive.timeout")
        task = asyncio.current_task()
        assert task is not None
        limit = TimeLimit(self, place, task)
        if entry is None:
            delay = int(seconds * MICROS)
            self.worker.committer.post(Slept(run=self.view, place=place, delay=delay, idle=False, hold=0))
            limit.watch(seconds)
        elif entry.done is not None:
            limit.was_reached(entry.done)
        elif entry.status is StepStatus.RUNNING:
            limit.watch(self.left_until(entry.wake_at))
        return limit

    async def start(self, branch: Branch, name: str, start: Callable[[str], Coroutine[Any, Any, str]]) -> str:
        """Start another run, once: `start` is given a key that stays the same when resumed."""
        branch = self._awaiting(branch)
        place, entry = self._place(branch, EntryKind.START, f"redrive.start {name}")
        branch.go_in()
        try:
            if entry is not None and entry.done is not None and entry.output is not None:
                await self.turnstile.pass_result(entry.done, entry.key)
                return str(json.loads(entry.output))
            await self._keep_out(place)
            if self._journal.turn is not None:
                await self.turnstile.begin(place.key)
            await self.ready()
            started = await self._ask_for(start, place)
            done = self.next_done()
            await self.settle(Noted(run=self.view, place=place, output=json.dumps(started), done=done))
            await self.turnstile.pass_result(done, place.key)
            return started
        except asyncio.CancelledError:
            if self.dead or self.ending:
                raise PutDown from None
            raise
        finally:
            branch.come_out()

    async def _ask_for(self, start: Callable[[str], Coroutine[Any, Any, str]], place: Place) -> str:
        self.starting += 1
        try:
            return await start(self._start_key(place))
        finally:
            self.starting -= 1

    def _start_key(self, place: Place) -> str:
        """The same for all replays of a run, like the idempotency keys of its steps."""
        claimed = self.claimed
        key = f"{claimed.root or claimed.public_id}{place.key}"
        return f"{key}:{claimed.generation}" if claimed.generation else key

    # -- journal ------------------------------------------------------------------------------------

    def _place(self, branch: Branch, kind: EntryKind, name: str) -> tuple[Place, EntryRow | None]:
        if self.dead or self.ending:
            raise PutDown
        journal = self._journal
        key = entry_key(branch.path, name, branch.count(name))
        entry = journal.ask(key)
        if entry is not None:
            return Place(entry.index, key, kind, name), entry
        index = journal.next_index
        if index - journal.set_aside >= MAX_ENTRIES:
            raise TooManyEntries(
                f"run {self.claimed.public_id} recorded {MAX_ENTRIES:,} entries, the most a run may have; "
                "split the work over several runs"
            )
        journal.next_index = index + 1
        return _NewPlace(index, key, kind, name), None

    def number_from(self, rows: Iterable[EntryRow]) -> None:
        """Number new entries behind those on record."""
        self._number_behind(Journal(rows))

    def follow(self, before: Execution) -> None:
        """Number new entries behind what another execution recorded, some of which may be on its way."""
        self._number_behind(before._journal)

    def _number_behind(self, known: Journal) -> None:
        journal = self._journal
        journal.next_index = max(journal.next_index, known.next_index)
        journal.next_done = max(journal.next_done, known.next_done)

    def next_index(self) -> int:
        """The number of a new entry."""
        index = self._journal.next_index
        self._journal.next_index = index + 1
        return index

    def next_done(self) -> int:
        number = self._journal.next_done
        self._journal.next_done = number + 1
        return number

    def _recorded(self, step: Step[Any, Any], place: Place, entry: EntryRow) -> Any:
        if entry.status in (StepStatus.SUCCESS, StepStatus.SKIPPED):
            self._pivoted = self._pivoted or step.options.pivot
            return step.signature.decode_result(entry.output or "null")
        ending = Ending.from_json(entry.failure or "")
        self.endings[entry.key] = (ending, place, entry.attempt)
        raise step_failed(ending, key=entry.key)

    # -- waiting ------------------------------------------------------------------------------------

    def _all_blocked(self) -> None:
        """Nothing moves by itself any more: the run waits, or is at the end of what it may do."""
        if self._kept_out and not self.busy and not self.rest.holds(self.claimed.sole_step):
            self.engine_task(self._stop())
        else:
            self.rest.all_wait()

    async def _stop(self) -> None:
        with suppress(PutDown):
            await self.settle(self._stopped())

    def _stopped(self) -> Outcome:
        """How a replay of one step alone ends that may not go on: as that step did."""
        failed = self.endings.get(self.claimed.sole_step or "")
        if failed is None:
            return Stopped(run=self.view, step=entry_name(self.claimed.sole_step or ""))
        ending, place, attempt = failed
        return Escaped(run=self.view, ending=ending, place=place, attempt=attempt)

    def alone(self) -> bool:
        """True if nothing else goes on in the run, so that a wait of this branch is a wait of the run."""
        return len(self.turnstile.tasks) <= 1 and not self._in_flight and not self.rest

    def left_until(self, wake_at: int | None) -> float:
        return max(0.0, ((wake_at or 0) - self.worker.store.now()) / MICROS)

    async def ready(self) -> None:
        """Return when new work may begin: the lease is good, nothing is being put down or wound up."""
        while True:
            if self.dead or self.ending:
                raise PutDown
            if self.winding:
                self.kept_waiting += 1  # it would go on now, and does so wherever the run is taken up next
                self.worker.came_to_stop()
                await self._never()
            if self._held_back and self._journal.turn is None:
                self._send_held_back()
            if self.rest.parking is not None:
                await asyncio.shield(self.rest.parking)
            elif self._unsaved is not None:
                unsaved, self._unsaved = self._unsaved, None
                self.check(await unsaved)
            elif self.worker.lease.healthy():
                return
            else:
                self.kept_waiting += 1
                try:
                    await self.clock.sleep(0.05)
                finally:
                    self.kept_waiting -= 1

    @property
    def is_ready(self) -> bool:
        """The quick form of `ready`, for the common case."""
        return (
            not (self.dead or self.ending or self.winding or self.rest.parking or self._unsaved)
            and not self._held_back
            and self.worker.lease.healthy()
        )

    async def _never(self) -> None:
        await self._loop.create_future()

    # -- settling -----------------------------------------------------------------------------------

    async def settle(self, outcome: Outcome) -> Settled:
        """Send an outcome and wait until what was decided is durable."""
        if self.dead:
            raise PutDown
        self._in_flight += 1
        answer = self.worker.committer.submit(outcome)
        done: int | None = getattr(outcome, "done", None)
        if done is not None:
            self._recording[done] = answer
        try:
            return self.check(await answer)
        finally:
            self._in_flight -= 1
            if done is not None:
                self._recording.pop(done, None)

    async def recorded_before(self, done: int) -> None:
        """Wait until no result with a lower number is on its way: whoever resumes will see that one first."""
        if lower := [answer for number, answer in self._recording.items() if number < done]:
            await asyncio.wait(lower)

    def check(self, settled: Settled) -> Settled:
        """Go on only with a run that is still this worker's."""
        change = settled.transition.change
        if settled.kept and settled.transition.clears_suspicion:
            self._cleared()
        if not settled.kept:
            log.info("run %s is no longer this worker's", self.claimed.public_id)
        elif change is None or change.status not in FINAL or self.ending:
            return settled
        else:
            self.worker.ended(self.claimed, settled)
        self.put_down()
        raise PutDown

    def _cleared(self) -> None:
        """The run has made progress and is no suspect any more: its worker may take the next one."""
        if self.view.deaths:
            self.view = replace(self.view, deaths=0)
            self.worker.bell.ring()

    def capture(self, error: BaseException) -> Failure:
        return capture_failure(error, self.worker.rules, self.worker.store.now() / MICROS)

    # -- putting down -------------------------------------------------------------------------------

    def put_down(self) -> None:
        """This worker has nothing more to do with the run: unwind its code, send nothing."""
        if self.dead:
            return
        self.dead = True
        self.turnstile.close()
        here = asyncio.current_task()
        for task in (*self.turnstile.tasks, *self._helpers):
            if task is not here:
                task.cancel()
        self.worker.put_down(self)

    async def give_back(self, delay: int) -> None:
        """Release the run for any worker to take up after `delay` microseconds."""
        await self.settle(Released(run=self.view, open=self.open_steps(), delay=delay))
        self.put_down()

    def wind_up(self) -> None:
        """The worker stops: begin nothing new; say so once nothing is in flight."""
        self.winding = True
        if not self.busy:
            self.worker.came_to_stop()

    @property
    def is_live(self) -> bool:
        """True while the workflow function goes on here."""
        return not self.dead and not self.ending

    @property
    def busy(self) -> bool:
        """True while a step executes, something is being recorded, or another run is being started."""
        return bool(self.open) or self._in_flight > 0 or self.starting > 0

    @property
    def settling(self) -> bool:
        """True while an answer is awaited, which will tell whether the run is still this worker's."""
        return self._in_flight > 0

    def release(self) -> Released:
        """The outcome of giving the run back as it is."""
        delay = 0.0 if self.open or self.kept_waiting else self.rest.first_due_in()
        return Released(run=self.view, open=self.open_steps(), delay=int(delay * MICROS))

    def open_steps(self) -> tuple[OpenStep, ...]:
        """The entries that have not ended: attempts under way, and waits."""
        now = self.clock.monotonic()
        executing = (
            OpenStep(place=a.place, attempt=a.attempt, began_ago=int((now - a.began) * MICROS))
            for a in self.open.values()
            if not a.over  # what is over is being recorded already
        )
        return (*executing, *self.rest.open_steps())

    def heartbeats(self) -> dict[tuple[int, int], str | None]:
        """The signs of life that steps sent since the last time."""
        attempts = list(self.open.values())  # the loop goes on opening and closing them meanwhile
        return {(self.claimed.id, a.place.index): a.news() for a in attempts if a.has_news}

    def _arm_deadline(self) -> Timer | None:
        if self.claimed.deadline is None or self._follows:
            return None
        return self.clock.call_later(self.left_until(self.claimed.deadline), self._deadline_passed)

    def _deadline_passed(self) -> None:
        if not self.dead and not self.ending:
            self.engine_task(self._expire())

    async def _expire(self) -> None:
        with suppress(PutDown):
            await self.settle(Expired(run=self.view, open=self.open_steps()))
            self.put_down()  # what it did is undone by whoever claims it next

    def _diverged(self, wanted: list[str]) -> None:
        """The code asks for something else than is recorded: end the function and settle that."""
        self._difference = self._journal.difference(wanted)
        self.turnstile.close()
        self.engine_task(self._give_up())

    async def _give_up(self) -> None:
        assert self._difference is not None
        outcome = await self.worker.code_changed(self.claimed, self.view, self._difference)
        with suppress(PutDown):
            await self.settle(outcome)
            self.put_down()
