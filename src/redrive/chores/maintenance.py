"""Maintenance: purging, failure groups, circuits, unclaimable runs, children, escalations; and the loop of a chore."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence

from redrive.clock import MICROS, Clock
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.children import cancels_children
from redrive.core.engine_messages import OpenQuestion, build_question_message
from redrive.core.keys_and_ids import encode_key, letter_id
from redrive.core.notification_rules import Escalation, NotificationEvent, StoredRules, find_escalation, find_rule
from redrive.core.outcomes import LetterClosed
from redrive.core.payload.plain_json import to_json_text
from redrive.core.questions import Audience, PlannedStep, decode_plan, encode_plan
from redrive.core.roles import Role
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite
from redrive.errors import Conflict, StoreError
from redrive.observability.counters import SettleListener
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settings import Settings
from redrive.settle.cancellation import cancel_run
from redrive.settle.circuits import apply_time, update_circuit
from redrive.settle.settler import (
    LocalSettler,
    load_notify_rules,
    make_escalation,
    make_lenient_run_view,
    parse_run_options,
    settle_bisecting,
)
from redrive.store.children import OwnedRun, RunWait
from redrive.store.chores import PurgeRequest
from redrive.store.circuits import CircuitRow
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import Store
from redrive.store.questions import QuestionRow, QuestionStep
from redrive.store.runs import RunRow
from redrive.time_values import FOREVER

log = logging.getLogger("redrive.chores")

_PURGE_BATCH = 500
_MAX_PURGE_BATCHES = 100
_GROUP_BATCH = 2000
_MAX_GROUP_BATCHES = 50
_REPLAY_BATCH = 500
_DAY = 86_400
_CHILD_PAGE = 500
_MAX_CHILD_PAGES = 20
_VISIBILITY_MARGIN = 10 * MICROS  # samples may become visible this much later than they were made


async def run_every(
    interval: float,
    chore: Callable[[], Awaitable[int]],
    clock: Clock,
    *,
    pause: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Repeat a chore for as long as the task lives.

    `pause` replaces the sleep between two rounds. It may return early, if there is something to do.
    """
    wait = pause or clock.sleep
    while True:
        # A random share of the interval keeps processes that started together from asking at the same moment.
        await wait(interval * (0.75 + clock.draw() / 2))
        try:
            await chore()
        except StoreError as error:
            log.warning("chore %s was postponed: %s", chore.__qualname__, error)
        except Exception:  # of any kind: a process must not give up its chores
            log.exception("chore %s failed; it is tried again", chore.__qualname__)


class Purger:
    """Expires open letters; removes old runs, letters, messages, idempotency keys, workers and audit entries."""

    def __init__(self, store: Store, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._settler = LocalSettler(store, clock)
        self._purge = PurgeRequest(
            runs=int(settings.retention * MICROS),
            keep=settings.retention_runs,
            letters=None if settings.dlq_retention >= FOREVER else int(settings.dlq_retention * MICROS),
            workers=_DAY * MICROS,
            audit=int(settings.audit_retention * MICROS),
            messages=int(settings.outbox_retention * MICROS),
            limit=_PURGE_BATCH,
        )

    async def run_once(self) -> int:
        """Remove expired rows, batch by batch, so that other writers get their turn; return their number."""
        # The catalogue also has workflows of other processes, so that all processes purge alike.
        kept = {each.name: json.loads(each.options).get("retention_runs") for each in await self._store.workflows()}
        purge = replace(self._purge, keeps={name: count for name, count in kept.items() if count is not None})
        total = 0
        for _ in range(_MAX_PURGE_BATCHES):
            removed = await self._expire_letters() + await self._store.purge(purge)
            total += removed
            if removed < _PURGE_BATCH:
                break
        return total

    async def _expire_letters(self) -> int:
        """Close letters whose retention is over. A user's decision at the same moment wins by the fence."""
        outcomes = [
            LetterClosed(
                run=make_lenient_run_view(run),
                letter=run.letter or letter_id(run.public_id),
                status=LetterStatus.EXPIRED,
                ended=run.status,
                by=ENGINE_ACTOR,
                reason=Reason(ReasonCode.LETTER_EXPIRED).to_text(),
            )
            for run in await self._store.runs_with_expired_letters(_PURGE_BATCH)
        ]
        settled = await settle_bisecting(self._settler, outcomes) if outcomes else []
        return sum(each.kept for each in settled)


class GroupAggregator:
    """Adds changes of letters to the failure groups. Any number of processes do so; none adds a change twice."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        """Add all changes, batch by batch, so that other writers get their turn; return their number."""
        total = 0
        for _ in range(_MAX_GROUP_BATCHES):
            added = await self._store.fold(_GROUP_BATCH)
            total += added
            if added < _GROUP_BATCH:
                break
        return total


class ReplayCounter:
    """Counts the replays that users decided on, for metrics. Any number of processes do so; none counts one twice.

    The numbers are in the store: the command line may decide on a replay in a process that is never scraped, and a
    process that starts later reports all replays before it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        """Count all replays that no process has counted yet; return their number."""
        total = 0
        while found := await self._store.count_replays(_REPLAY_BATCH):
            total += found
        return total


class UnclaimableRunMonitor:
    """Logs due runs that no live worker can claim. They are never dead-lettered: they wait for a worker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reported: frozenset[tuple[str, str, str | None]] = frozenset()

    async def run_once(self) -> int:
        """Log what changed; return the number of workflows and queues without a worker."""
        waiting = {(each.workflow, each.queue, each.version): each for each in await self._store.unclaimable(())}
        for lane in waiting.keys() - self._reported:
            each = waiting[lane]
            missing = "takes this queue" if each.registered else "has it registered"
            if each.version is not None and not each.registered:
                missing = f"has version {each.version!r}, to which they are pinned"
            log.warning(
                "runs of workflow %r in queue %r wait, %d due: no live worker %s", *lane[:2], each.runs, missing
            )
        for workflow, queue, _ in self._reported - waiting.keys():
            log.info("runs of workflow %r in queue %r have a worker again", workflow, queue)
        self._reported = frozenset(waiting)
        return len(waiting)


class CircuitUpdater:
    """Updates circuits that are due, and releases parked runs. `seen` gets the state of each of them."""

    def __init__(self, store: Store, seen: Callable[[CircuitRow], None] = lambda row: None) -> None:
        self._store = store
        self._seen = seen
        self._since = 0

    async def run_once(self) -> int:
        """Update all circuits that are due; return the number of runs that were released."""
        now = self._store.now()
        released = 0
        for key in await self._store.circuits_due(self._since):
            row, count = await update_circuit(self._store, key, apply_time)
            self._seen(row)
            released += count
        self._since = now - _VISIBILITY_MARGIN
        return released


class ChildUpdater:
    """Cancels runs whose owner has ended, and wakes runs that wait for one that has ended.

    The process that records an end wakes the runs that wait for it. This chore does so for a process that died in
    between. Each round reads a limited number of rows, and the next one continues there.
    """

    def __init__(self, store: Store, clock: Clock, *, listeners: Sequence[SettleListener] = ()) -> None:
        self._store = store
        self._settler = LocalSettler(store, clock, listeners=listeners)
        self._last_owned: OwnedRun | None = None
        self._last_wait: RunWait | None = None

    async def run_once(self) -> int:
        """Return the number of runs that were cancelled or woken."""
        return await self._cancel_orphans() + await self._wake_waiting()

    async def _cancel_orphans(self) -> int:
        count = 0
        for _ in range(_MAX_CHILD_PAGES):
            page = await self._store.owned_runs(self._last_owned, _CHILD_PAGE)
            ended = {each.run_id: each.owner for each in page if each.status and cancels_children(each.status)}
            for row in await self._store.runs_by_id(list(ended)) if ended else ():
                if row.status is RunStatus.COMPENSATING:
                    continue
                about = {"redrive": {"run_id": row.public_id}}
                try:
                    count += await cancel_run(self._store, self._settler, row, f"run:{ended[row.public_id]}", "")
                except Conflict as refusal:  # it ended meanwhile, or it is about to
                    log.debug("not cancelled with its parent: %s", refusal, extra=about)
                except StoreError:
                    raise
                except Exception:  # of any kind: one run must not hinder the others
                    log.exception("could not cancel a run whose parent has ended", extra=about)
            self._last_owned = page[-1] if len(page) == _CHILD_PAGE else None
            if self._last_owned is None:
                break
        return count

    async def _wake_waiting(self) -> int:
        count = 0
        for _ in range(_MAX_CHILD_PAGES):
            page = await self._store.run_waits(self._last_wait, _CHILD_PAGE)
            count += await self._store.wake_answered(page) if page else 0
            self._last_wait = page[-1] if len(page) == _CHILD_PAGE else None
            if self._last_wait is None:
                break
        return count


_LETTER_BATCH = 500
_TASK_BATCH = 200


class LetterEscalator:
    """Escalates dead letters that are open for longer than a stored rule, or else the settings, allow."""

    def __init__(self, store: Store, clock: Clock, settings: Settings, on_messages: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._default = Escalation(after=settings.escalate_after, to=settings.escalate_to)
        self._on_messages = on_messages

    async def run_once(self) -> int:
        """Escalate the letters that are due; return their number."""
        store, now, done = self._store, self._store.now(), 0
        rules = await load_notify_rules(store)
        if not self._default.after and not any(rule.escalate for rule in rules.values()):
            return 0
        for tenant, workflow, oldest in await store.unescalated():
            rule = find_escalation(rules, tenant, workflow, self._default)
            before = now - int(rule.after * MICROS)
            if rule.after and oldest <= before:
                due = await store.letters_to_escalate(tenant, workflow, before=before, limit=_LETTER_BATCH)
                await self._escalate(due, rule, rules, now)
                done += len(due)
        if done:
            self._on_messages()
        return done

    async def _escalate(self, due: Sequence[str], rule: Escalation, rules: StoredRules, now: int) -> None:
        store = self._store
        for id in due:
            letter = await store.letter(id)
            if letter is None or letter.escalated_to is not None:
                continue
            audit = AuditWrite(
                event=AuditEvent.LETTER_ESCALATED.value,
                tenant=letter.tenant,
                by=ENGINE_ACTOR,
                subject=letter.run_id,
                letter=id,
                after=json.dumps(rule.to, ensure_ascii=False),
                reason=Reason(ReasonCode.LETTER_ESCALATED, after=rule.after).to_text(),
                # The same in each process, so that two that see the letter at once write and send this once.
                token=encode_key("escalated", id, str(letter.failed_at)),
            )
            await store.triage(make_escalation(letter, rule.to, audit, rules, now))


class TaskEscalator:
    """Reminds of open tasks whose time limit is near, and asks more people where the workflow says so."""

    def __init__(self, store: Store, on_messages: Callable[[], None]) -> None:
        self._store = store
        self._on_messages = on_messages

    async def run_once(self) -> int:
        """Carry out the steps that are due; return their number."""
        due = await self._store.due_questions(_TASK_BATCH)
        if not due:
            return 0
        rules, done = await load_notify_rules(self._store), 0
        for row in due:
            step, *rest = decode_plan(row.plan)
            run = await self._store.run(row.run_id)
            done += await self._store.advance_question(self._build_step(row, run, step, tuple(rest), rules))
        if done:
            self._on_messages()
        return done

    def _build_step(
        self, row: QuestionRow, run: RunRow | None, step: PlannedStep, rest: tuple[PlannedStep, ...], rules: StoredRules
    ) -> QuestionStep:
        before = Audience(role=Role(row.role) if row.role else None, people=tuple(json.loads(row.people)))
        audience = before if step.to is None else before.widen(step.to)
        event = NotificationEvent.TASK_DUE if step.to is None else NotificationEvent.TASK_ESCALATED
        question = OpenQuestion(
            task=row.public_id,
            tenant=row.tenant,
            workflow=row.workflow,
            run_id=row.run_id,
            text=row.question.why if isinstance(row.question, Unreadable) else row.question,
            audience=str(audience),
            correlation_id=run.correlation_id or row.run_id if run is not None else row.run_id,
            channel=row.notify,
            due_at=row.due_at,
        )
        code = None if run is None or run.options is None else parse_run_options(run.options).notify
        rule = find_rule(rules, code, row.tenant, row.workflow)
        message = build_question_message(event, question, rule, self._store.now(), len(rest))
        return QuestionStep(
            public_id=row.public_id,
            tenant=row.tenant,
            was_due_at=row.next_at or 0,
            role=None if audience.role is None else audience.role.value,
            people=to_json_text(audience.people),
            plan=encode_plan(rest),
            next_at=row.created_at + rest[0].after if rest else None,
            audit=None if step.to is None else _build_audit(row, step, audience),
            messages=() if message is None else (message,),
        )


def _build_audit(row: QuestionRow, step: PlannedStep, audience: Audience) -> AuditWrite:
    return AuditWrite(
        event=AuditEvent.TASK_ESCALATED.value,
        tenant=row.tenant,
        by=ENGINE_ACTOR,
        subject=row.public_id,
        after=to_json_text(str(audience)),
        reason=Reason(ReasonCode.TASK_ESCALATED, after=step.after / MICROS).to_text(),
        token=encode_key("task escalated", row.public_id, str(step.after)),
    )
