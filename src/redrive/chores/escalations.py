"""Escalations of open dead letters and tasks, and reminders of tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from redrive.clock import MICROS, Clock
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.idempotency import encode_key
from redrive.core.notifications import OpenQuestion, build_question_message
from redrive.core.notify_rules import Escalation, NotificationEvent, StoredRules, find_escalation, find_rule
from redrive.core.payload.plain import to_json_text
from redrive.core.questions import Audience, PlannedStep, decode_plan, encode_plan
from redrive.core.roles import Role
from redrive.core.transitions import AuditWrite
from redrive.reasons import Reason, ReasonCode
from redrive.settings import Settings
from redrive.settle.settler import load_notify_rules, make_escalation, parse_run_options
from redrive.store.encryption.keyring import Unreadable
from redrive.store.port import Store
from redrive.store.questions import QuestionRow, QuestionStep
from redrive.store.runs import RunRow

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
