"""`app.tasks`: questions that workflows ask people, and compensations that people perform."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from typing import Any

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.questions import ManualAnswer, QuestionKind, QuestionStatus
from redrive.core.replay_plan import ReplayMode
from redrive.core.roles import Permission
from redrive.core.transitions import AuditWrite
from redrive.desk.actor import Actor
from redrive.desk.api_operations import operation
from redrive.desk.models import AuditRecord, Caller, Task
from redrive.desk.presenter import Presenter, present_page
from redrive.desk.replays import Replayer, ReplayOrder, make_replay_request
from redrive.desk.validation import AudienceCheck, PayloadChecker, is_id, require_long_text, require_text
from redrive.errors import ConfigurationError, Conflict, NotAllowed, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.encryption.keyring import Unreadable
from redrive.store.filters import AuditFilter, TaskFilter, require_filter
from redrive.store.port import DeskStore
from redrive.store.questions import GivenAnswer, OpenQuestions, QuestionRow
from redrive.store.result_page import Page
from redrive.time_values import to_datetime

_MAX_HISTORY = 200
_MANUAL_MODES = {ManualAnswer.DONE: ReplayMode.COMPLETE, ManualAnswer.SKIP: ReplayMode.SKIP}


class Tasks:
    """Tasks: listed, answered, assigned, commented on."""

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        presenter: Presenter,
        checker: PayloadChecker,
        replayer: Replayer,
        audience: AudienceCheck,
        caller: Caller | None = None,
    ) -> None:
        self._store = store
        self._audience = audience
        self._clock = clock
        self._presenter = presenter
        self._checker = checker
        self._replayer = replayer
        self._caller = caller or Caller()

    @operation("GET /tasks", Permission.LOOK, id="list_tasks")
    async def list(self, filter: TaskFilter | None = None, *, limit: int = 50, cursor: str | None = None) -> Page[Task]:
        """Return a page of tasks, newest first."""
        page = await self._store.questions(require_filter(filter, TaskFilter), limit=limit, cursor=cursor)
        apart = await self._audience.find_apart(page.items, self._caller.who or "")
        return await present_page(page, partial(self._present, self._presenter, apart))

    @operation("GET /tasks/{id}", Permission.LOOK, id="show_task")
    async def get(self, id: str, *, tenant: str | None = None, reveal: bool = False, by: str = "unknown") -> Task:
        """Return one task with its history.

        Secrets are redacted; `reveal=True` shows them, and the audit log records who saw them.
        """
        row, presenter = await self._find(id, tenant), self._presenter
        if reveal:
            await self._store.note([self._make_audit(AuditEvent.TASK_REVEALED, row, Actor(by))])
            presenter = Presenter(None)
        lines = [*(await self._store.audit(AuditFilter(subject=row.public_id), limit=_MAX_HISTORY, cursor=None)).items]
        if row.status is QuestionStatus.WITHDRAWN:
            # Cancelling a run withdraws its tasks, and is noted about the run.
            where = AuditFilter(subject=row.run_id, event=AuditEvent.RUN_CANCELLED.value, since=row.created_at)
            lines = [*(await self._store.audit(where, limit=1, cursor=None)).items, *lines]
        apart = await self._audience.find_apart([row], by)
        return self._present(presenter, apart, row, by=by, history=tuple(map(presenter.line, reversed(lines))))

    async def waiting(self, *, tenant: str | None = None) -> OpenQuestions:
        """Count the open tasks, and return since when the oldest is open."""
        return await self._store.open_questions(tenant=tenant)

    @operation("POST /tasks/{id}/answer", Permission.ANSWER, id="answer_task")
    async def answer(
        self, id: str, value: Any, *, note: str | None = None, by: str = "unknown", tenant: str | None = None
    ) -> Task:
        """Answer a task: the first answer counts, and its run continues.

        The same answer of the same caller gets the same reply; another one is a conflict that names the first.
        """
        row, actor = await self._find(id, tenant), Actor(by, None if not note else require_long_text("note", note))
        outside = self._audience.require(row, by, await self._audience.find_apart([row], by))
        what = Reason(ReasonCode.TASK_ANSWER, task=row.public_id)
        text = await self._checker.encode_answer(what, json.loads(_open(row.schema)), value)
        if row.status is QuestionStatus.OPEN:
            if row.kind is QuestionKind.MANUAL:
                await self._perform(row, ManualAnswer(value), actor)
            else:
                await self._record(row, text, actor, outside)
            row = await self._find(id, tenant)
        if row.status is not QuestionStatus.ANSWERED:
            raise Conflict(Reason(ReasonCode.TASK_CLOSED, task=row.public_id, status=row.status.value))
        if row.answered_by != by or json.loads(_open(row.answer)) != json.loads(text):
            raise self._make_conflict(row)
        return await self.get(id, tenant=tenant, by=by)

    async def _record(self, row: QuestionRow, text: str, actor: Actor, outside: bool) -> None:
        # What was chosen is part of the log. A value of another form is a payload, which the log outlives.
        chosen = {"answer": json.loads(text)} if "enum" in json.loads(row.schema) else {}
        # The note is not the reason of the line: reasons are stored in clear, notes are sealed.
        noted = {} if actor.reason is None else {"note": actor.reason}
        after = json.dumps({"run": row.run_id, **chosen, **noted, **({"outside": True} if outside else {})})
        audit = self._make_audit(AuditEvent.TASK_ANSWERED, row, Actor(actor.by), after=after)
        answer = GivenAnswer(
            public_id=row.public_id, tenant=row.tenant, by=actor.by, answer=text, note=actor.reason, audit=audit
        )
        await self._store.answer_question(answer)

    async def _perform(self, row: QuestionRow, answer: ManualAnswer, actor: Actor) -> None:
        """Decide on a compensation as the ledger of the rollback does."""
        request = await make_replay_request(_MANUAL_MODES[answer], undo=row.key)
        try:
            await self._replayer.replay(row.run_id, ReplayOrder(request=request, actor=actor), tenant=row.tenant)
        except Conflict:
            # Another user may have decided on it meanwhile: then the task names that user.
            if (await self._find(row.public_id, row.tenant)).status is QuestionStatus.OPEN:
                raise

    @operation("POST /tasks/{id}/assign", Permission.NOTE, id="assign_task")
    async def assign(self, id: str, *, to: str | None, by: str = "unknown", tenant: str | None = None) -> Task:
        """Assign an open task to a user; `to=None` leaves it unassigned."""
        owner = None if to is None else require_text("to", to).lower()
        row = await self._find(id, tenant)
        before, after = (None if name is None else json.dumps(name) for name in (row.owner, owner))
        audit = self._make_audit(AuditEvent.TASK_ASSIGNED, row, Actor(by), before=before, after=after)
        if not await self._store.assign_question(row.public_id, owner, audit):
            row = await self._find(id, tenant)
            raise Conflict(Reason(ReasonCode.TASK_CLOSED, task=row.public_id, status=row.status.value))
        return await self.get(id, tenant=tenant, by=by)

    @operation("POST /tasks/{id}/comment", Permission.NOTE, id="comment_task")
    async def comment(self, id: str, text: str, *, by: str = "unknown", tenant: str | None = None) -> Task:
        """Add a comment to a task."""
        require_long_text("a comment", text)
        row = await self._find(id, tenant)
        after = json.dumps(text, ensure_ascii=False)
        await self._store.note([self._make_audit(AuditEvent.TASK_COMMENTED, row, Actor(by), after=after)])
        return await self.get(id, tenant=tenant, by=by)

    async def _find(self, id: str, tenant: str | None) -> QuestionRow:
        row = await self._store.question(id, tenant=tenant) if is_id(id) else None
        if row is None:
            raise NotFound(Reason(ReasonCode.TASK_NOT_FOUND, id=quote(id)))
        return row

    def _make_conflict(self, row: QuestionRow) -> Conflict:
        """Return the error for an answer that came after another one."""
        chosen = "enum" in json.loads(_open(row.schema))
        answer = self._presenter.payload(row.answer) if chosen else None
        at = to_datetime(row.answered_at or 0).isoformat()
        # With its colons, the name of a token looks like a secret, which errors do not show.
        by = (row.answered_by or "").replace(":", " ")
        return Conflict(Reason(ReasonCode.TASK_ANSWERED, by=by, answer=answer, at=at))

    def _make_audit(
        self, event: AuditEvent, row: QuestionRow, actor: Actor, before: str | None = None, after: str | None = None
    ) -> AuditWrite:
        return actor.make_audit(self._clock, event, row.tenant, row.public_id, before=before, after=after)

    def _present(
        self,
        presenter: Presenter,
        apart: Collection[str],
        row: QuestionRow,
        *,
        by: str = "",
        history: tuple[AuditRecord, ...] = (),
    ) -> Task:
        try:
            self._audience.require(row, by or self._caller.who or "", apart)
            allowed = row.status is QuestionStatus.OPEN
        except NotAllowed:
            allowed = False
        return presenter.task(row, may_answer=allowed, history=history)


def _open(text: str | None) -> str:
    """Return a stored payload; ConfigurationError if it cannot be read."""
    if isinstance(text, Unreadable):
        raise ConfigurationError(text.why)
    return text or "null"
