"""Questions to people, which users see as tasks: lists, answers, assignments, and the steps of open questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import msgspec

from redrive.core.questions import ANSWERING_ROLES, QuestionKind, QuestionStatus
from redrive.core.transitions import AuditWrite, MessageWrite, Transition
from redrive.store.children import WokenRun
from redrive.store.filters import TaskFilter
from redrive.store.result_page import Page, PageRequest, read_page
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

SQL = Statements("questions.sql")
CHILDREN = Statements("children.sql")

MOST_COUNTED = 1_000
"""Open questions are counted up to this many."""


class QuestionRow(msgspec.Struct, frozen=True, gc=False):
    """A stored question. `people`, `apart_from`, `plan` and `answer` are JSON."""

    id: int
    public_id: str
    tenant: str
    run: int
    index: int
    run_id: str
    workflow: str
    key: str
    kind: QuestionKind
    status: QuestionStatus
    role: str | None
    people: str
    apart_from: str
    question: str
    shown: str | None
    schema: str
    created_at: int
    due_at: int | None
    next_at: int | None
    plan: str | None
    late_at: int | None
    notify: str | None
    owner: str | None
    answered_at: int | None
    answered_by: str | None
    answer: str | None
    note: str | None
    replaces: str | None


class GivenAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An answer to a question. `answer` is JSON."""

    public_id: str
    tenant: str
    by: str
    answer: str
    note: str | None
    audit: AuditWrite


class QuestionStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step of an open question that is done: its new audience, and the steps that are left."""

    public_id: str
    tenant: str
    was_due_at: int
    role: str | None
    people: str
    plan: str | None
    next_at: int | None
    audit: AuditWrite | None
    messages: tuple[MessageWrite, ...] = ()


class RecordedAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a question. `answer` is JSON."""

    tenant: str
    by: str
    at: int
    answer: str
    note: str | None


class AskedQuestion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer that a run waits for, None as long as there is none; with the wake-ups and the fence of the run."""

    wakeups: int
    fence: int
    answer: RecordedAnswer | None


class OpenQuestions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The number of open questions, up to 1,000, and since when the oldest is open."""

    count: int = 0
    oldest: int | None = None


class QuestionDesk(Protocol):
    """Calls about questions that users make. A tenant view answers them too."""

    async def questions(self, where: TaskFilter, *, limit: int, cursor: str | None) -> Page[QuestionRow]:
        """Return a page of questions, newest first."""

    async def question(self, public_id: str, *, tenant: str | None = None) -> QuestionRow | None:
        """Return one question."""

    async def open_questions(
        self, *, tenant: str | None = None, workflows: Collection[str] | None = None
    ) -> OpenQuestions:
        """Count the open questions."""

    async def answer_question(self, answer: GivenAnswer) -> bool:
        """Record an answer and wake the run; return False if the question is not open any more."""

    async def assign_question(self, public_id: str, owner: str | None, audit: AuditWrite) -> bool:
        """Assign an open question to a user; return False if it is not open."""


class QuestionStore(QuestionDesk, Protocol):
    """All calls about questions."""

    async def asked_question(self, run: int, index: int) -> AskedQuestion | None:
        """Return the answer that a run waits for at an entry of its journal; None if the run does not exist."""

    async def due_questions(self, most: int) -> list[QuestionRow]:
        """Return open questions of which a step is due."""

    async def advance_question(self, step: QuestionStep) -> bool:
        """Record that a step of a question is done; return False if another process was first."""


class QuestionCalls:
    """Implements `QuestionStore`."""

    database: Database
    tell_woken: Callable[[Sequence[WokenRun]], None]

    @read_call()
    async def questions(
        self, session: Session, where: TaskFilter, *, limit: int, cursor: str | None
    ) -> Page[QuestionRow]:
        request = PageRequest.of(limit, cursor)
        # The names in the list are quoted, so that one cannot match a part of another.
        quoted = "%" + re.sub(r"([\\%_])", r"\\\1", f'"{(where.person or "").lower()}"') + "%"
        more = {} if where.person is None else {"quoted": quoted}
        return await read_page(session, SQL, "questions", request, _condition_values(where), _question_row, **more)

    @read_call()
    async def question(self, session: Session, public_id: str, *, tenant: str | None = None) -> QuestionRow | None:
        row = await session.row(SQL["question"], public_id=public_id, tenant=tenant)
        return None if row is None else _question_row(row)

    @read_call()
    async def open_questions(
        self, session: Session, *, tenant: str | None = None, workflows: Collection[str] | None = None
    ) -> OpenQuestions:
        names, some = sorted(workflows or ()), workflows is not None
        row = await session.row(SQL["open_questions"], tenant=tenant, workflows=names, some=some, most=MOST_COUNTED)
        return OpenQuestions(count=row[0], oldest=row[1])

    async def answer_question(self, answer: GivenAnswer) -> bool:
        woken = await self._record_answer(answer)
        if woken is None:
            return False
        self.tell_woken(woken)
        return True

    @write_call()
    async def _record_answer(self, session: Session, answer: GivenAnswer) -> list[WokenRun] | None:
        async with session.transaction():
            run = await session.value(SQL["lock_question_run"], public_id=answer.public_id)
            now = await session.now()
            given = {"by": answer.by, "answer": answer.answer, "note": answer.note, "now": now}
            if run is None or not await session.change(
                SQL["answer_question"], answer.audit, public_id=answer.public_id, **given
            ):
                return None
            woken = await session.rows(CHILDREN["wake_waiting"], run=run, asleep=False, now=now)
        return [WokenRun(each, wakeups, bool(due)) for each, wakeups, due in woken]

    @write_call()
    async def assign_question(self, session: Session, public_id: str, owner: str | None, audit: AuditWrite) -> bool:
        return await session.change(SQL["assign_question"], audit, public_id=public_id, owner=owner)

    @read_call()
    async def asked_question(self, session: Session, run: int, index: int) -> AskedQuestion | None:
        row = await session.row(SQL["asked_question"], run=run, idx=index)
        if row is None:
            return None
        wakeups, fence, by, at, answer, note, tenant = row
        recorded = None if at is None else RecordedAnswer(tenant=tenant, by=by, at=at, answer=answer, note=note)
        return AskedQuestion(wakeups=wakeups, fence=fence, answer=recorded)

    @read_call()
    async def due_questions(self, session: Session, most: int) -> list[QuestionRow]:
        return [_question_row(row) for row in await session.rows(SQL["due_questions"], most=most)]

    @write_call()
    async def advance_question(self, session: Session, step: QuestionStep) -> bool:
        values = {
            name: getattr(step, name) for name in ("public_id", "was_due_at", "role", "people", "plan", "next_at")
        }
        async with session.transaction():
            now = await session.now()
            changed = await session.change(SQL["advance_question"], step.audit, **values, now=now)
            if changed and step.messages:
                # As for the notifications of lanes: nothing else is written with the messages.
                await session.publish([Transition(run=0, tenant=step.tenant, fence=0, messages=step.messages)], now)
        return changed


def _question_row(row: Sequence[Any]) -> QuestionRow:
    return build_record(QuestionRow, row, kind=QuestionKind, status=QuestionStatus)


def _condition_values(where: TaskFilter) -> dict[str, Any]:
    """Return the values of a filter by the names of the conditions."""
    status, role = where.status, where.role
    values: dict[str, Any] = {
        "tenant": where.tenant,
        "workflow": where.workflow,
        "workflows": None if where.workflows is None else list(where.workflows),
        "run_id": where.run_id,
        "owner": where.owner,
        # Partial indexes need the state as a constant.
        "open": True if status == QuestionStatus.OPEN else None,
        "closed": True if status == "CLOSED" else None,
        "status": None if status in (QuestionStatus.OPEN, "CLOSED") else status,
        "late": where.late or None,
    }
    if role is not None:
        values["roles"] = ANSWERING_ROLES[: ANSWERING_ROLES.index(role) + 1] if role in ANSWERING_ROLES else []
    if where.person is not None:
        values["person"] = where.person.lower()
    return values


async def purge_questions(session: Session, before: int, most: int) -> int:
    """Remove the questions of purged runs from before a time; return their number."""
    return len(await session.rows(SQL["delete_old_questions"], before=before, most=most))
