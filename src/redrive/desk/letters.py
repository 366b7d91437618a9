"""`app.dlq`: dead letters, the decisions about them, and their triage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, Unpack, overload

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.keys_and_ids import letter_id, run_id_of_letter
from redrive.core.notification_rules import Escalation, StoredRules, find_channels
from redrive.core.replay_plan import ReplayMode
from redrive.core.roles import Permission
from redrive.core.states import LetterStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.bulk import BulkActions
from redrive.desk.groups import GroupActions
from redrive.desk.letter_status import close_letter, make_closed_conflict, reopen_letter
from redrive.desk.models import DeadLetter
from redrive.desk.presenter import Presenter, present_page
from redrive.desk.preview import DryRun, Previewer
from redrive.desk.replays import Replay, Replayer, ReplayOptions, make_replay_order
from redrive.desk.runs import find_failure_handler_runs
from redrive.desk.validation import (
    in_thread_if_large,
    is_id,
    measure_size,
    require_bool,
    require_channel,
    require_long_text,
    require_text,
)
from redrive.errors import InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.settle.settler import LocalSettler, find_code_rule, load_notify_rules, make_escalation
from redrive.store.filters import AuditFilter, LetterFilter, require_filter
from redrive.store.letters import Facets, LetterRow, Triage
from redrive.store.port import DeskStore
from redrive.store.result_page import Page

_MAX_HISTORY = 200
_MAX_FACET_LETTERS = 2_000


class DeadLetters(GroupActions, BulkActions):
    """Dead letters, found by their own id or by that of their run, their causes, and bulk actions on many of them."""

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        presenter: Presenter,
        replayer: Replayer,
        previewer: Previewer,
        on_bulk: Callable[[], None] = lambda: None,
        on_messages: Callable[[], None] = lambda: None,
        limited_to: Escalation | None = None,
        knows_channel: Callable[[str], bool] = lambda _: False,
    ) -> None:
        super().__init__(store, clock, previewer, presenter, on_bulk)
        self._on_messages = on_messages
        self._limited_to = limited_to
        self._knows_channel = knows_channel
        self._settler = LocalSettler(store, clock)
        self._replayer = replayer

    @operation("GET /workflow-dlq/{id}", Permission.LOOK)
    async def get(self, id: str, *, tenant: str | None = None, reveal: bool = False, by: str = "unknown") -> DeadLetter:
        """Return one dead letter with its run's steps, every attempt, its replays and its history.

        Secrets are redacted; `reveal=True` shows them, and the audit log records who saw them.
        """
        letter = await self._find_letter(id, tenant)
        presenter = self._presenter
        if reveal:
            await self._store.note([self._make_audit(AuditEvent.LETTER_REVEALED, letter, Actor(by))])
            presenter = Presenter(None)
        case = next(iter(await self._store.cases([letter.public_id])), None)
        attempts = await self._store.attempts(letter.run)
        history = await self._store.audit(AuditFilter(letter=letter.public_id), limit=_MAX_HISTORY, cursor=None)
        replays = () if case is None else case.replays
        lineage = [run_id_of_letter(letter.public_id), *(replay.run_id for replay in replays), letter.run_id]
        journal = () if case is None else case.journal
        size = measure_size(letter, journal, attempts, history.items, replays)
        present = partial(
            presenter.letter,
            letter,
            steps=await in_thread_if_large(partial(presenter.steps, journal, attempts, letter.options), size),
            replays=replays,
            history=reversed(history.items),
            purged=case is None or case.run.input is None,
            handler_for=None if case is None else case.run.handler_for,
            handled_by=await find_failure_handler_runs(self._store, *lineage),
        )
        return await in_thread_if_large(present, size)

    async def _find_letter(self, id: str, tenant: str | None) -> LetterRow:
        """Find a letter by its own id, by the id of the run that it was written for, or of its present run."""
        if (row := await self._find_by_any_id(id, tenant)) is not None:
            return row
        _, about = await self._replayer.load_letter(id, tenant=tenant)
        if (row := await self._find_by_any_id(about.public_id, tenant)) is not None:
            return row
        raise NotFound(Reason(ReasonCode.LETTER_NOT_FOUND, id=quote(id)))

    async def _find_by_any_id(self, id: str, tenant: str | None) -> LetterRow | None:
        for known in (id, letter_id(id)) if is_id(id) else ():
            if (row := await self._store.letter(known, tenant=tenant)) is not None:
                return row
        return None

    @operation("GET /workflow-dlq", Permission.LOOK, id="list_letters")
    async def list(
        self, filter: LetterFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[DeadLetter]:
        """Return a page of dead letters, newest first, without their stacks."""
        page = await self._store.letters(require_filter(filter, LetterFilter), limit=limit, cursor=cursor)
        return await present_page(page, partial(self._presenter.letter, stack=False))

    @operation("GET /workflow-dlq/count", Permission.LOOK, id="count_letters", field="total")
    async def count(self, filter: LetterFilter | None = None) -> int:
        """Return the number of dead letters that match."""
        return await self._store.count_letters(require_filter(filter, LetterFilter))

    @operation("GET /workflow-dlq/facets", Permission.LOOK, id="show_facets")
    async def facets(self, filter: LetterFilter | None = None) -> Facets:
        """Count the newest 2,000 letters that match by code, stage, workflow, step and owner."""
        return await self._store.facets(require_filter(filter, LetterFilter), most=_MAX_FACET_LETTERS)

    @overload
    async def replay(
        self, id: str, mode: str = ..., *, dry_run: Literal[False] = ..., **options: Unpack[ReplayOptions]
    ) -> Replay: ...
    @overload
    async def replay(
        self, id: str, mode: str = ..., *, dry_run: bool, **options: Unpack[ReplayOptions]
    ) -> Replay | DryRun: ...
    @operation(
        "POST /workflow-dlq/{id}/replay", Permission.DECIDE, from_step="from_step_index", retry="override_retry_policy"
    )
    async def replay(
        self, id: str, mode: str = "FROM_FAILED", *, dry_run: bool = False, **options: Unpack[ReplayOptions]
    ) -> Replay | DryRun:
        """Replay a dead-lettered run.

        `FROM_FAILED` continues at the failed step, `FROM_STEP` at `from_step`, `STEP_ONLY` executes the failed
        step alone, `SKIP` takes `output` for its result, `FULL` starts a new run. `input` or
        `patch` edit the input, and with `ask_again` people are asked again who answered for the original input.
        `retry` overrides the policy; `new_operation` gives outside services new idempotency keys. The same decision
        sent again gets the same answer; another one is a Conflict.
        `dry_run` returns what would happen, and changes nothing; for a decision that was made before, it returns
        the answer of that one.
        """
        _, letter = await self._replayer.load_letter(id, tenant=options.pop("tenant", None))
        order = await make_replay_order(mode, **options)
        if require_bool("dry_run", dry_run):
            return await self._previewer.preview(letter.public_id, order)
        return await self._replayer.replay(letter.public_id, order)

    @operation("POST /workflow-dlq/{id}/complete", Permission.DECIDE)
    async def complete(self, id: str, output: Any, *, tenant: str | None = None, **acting: Unpack[Acting]) -> Replay:
        """Give the failed step's result by hand, and continue the run with it."""
        _, letter = await self._replayer.load_letter(id, tenant=tenant)
        order = await make_replay_order(ReplayMode.COMPLETE, output=output, **acting)
        return await self._replayer.replay(letter.public_id, order)

    @operation("POST /workflow-dlq/{id}/resolve", Permission.DECIDE, id="resolve_letter")
    async def resolve(self, id: str, *, tenant: str | None = None, **acting: Unpack[Acting]) -> DeadLetter:
        """Close a letter whose cause was handled outside; its run has failed for good."""
        return await self._close(id, LetterStatus.RESOLVED, Actor(**acting), tenant)

    @operation("POST /workflow-dlq/{id}/ignore", Permission.DECIDE, id="ignore_letter")
    async def ignore(self, id: str, *, tenant: str | None = None, **acting: Unpack[Acting]) -> DeadLetter:
        """Close a letter that needs no action; its run has failed for good."""
        return await self._close(id, LetterStatus.IGNORED, Actor(**acting), tenant)

    async def _close(self, id: str, status: LetterStatus, actor: Actor, tenant: str | None) -> DeadLetter:
        while True:
            case, letter = await self._replayer.load_letter(id, tenant=tenant)
            outcome = close_letter(case.run, letter, status, actor)
            if outcome is None and actor.reason not in (None, letter.resolution):
                raise make_closed_conflict(letter)
            # A run that changed since it was read is not closed: the loop reads it again.
            if outcome is None or (await self._settler.settle([outcome]))[0].kept:
                return await self.get(id, tenant=tenant)

    @operation("POST /workflow-dlq/{id}/reopen", Permission.DECIDE, id="reopen_letter")
    async def reopen(self, id: str, *, tenant: str | None = None, **acting: Unpack[Acting]) -> DeadLetter:
        """Reopen a letter that a user resolved or ignored. Its run waits for a decision again."""
        actor = Actor(**acting)
        while True:
            outcome = reopen_letter(*await self._replayer.load_letter(id, tenant=tenant), actor)
            if outcome is None or (await self._settler.settle([outcome]))[0].kept:
                return await self.get(id, tenant=tenant)

    @operation("POST /workflow-dlq/{id}/assign", Permission.NOTE, id="assign_letter")
    async def assign(self, id: str, *, to: str | None, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        """Assign a letter to a user; `to=None` leaves it unassigned."""
        assignee = "" if to is None else require_text("to", to)
        letter = await self._find_letter(id, tenant)
        line = self._make_audit(AuditEvent.LETTER_ASSIGNED, letter, Actor(by), before=letter.owner, after=to)
        return await self._write_triage(Triage(letter=letter.public_id, owner=assignee, audit=line), tenant)

    @operation("POST /workflow-dlq/{id}/escalate", Permission.NOTE, id="escalate_letter")
    async def escalate(
        self, id: str, *, to: str | None, tenant: str | None = None, **acting: Unpack[Acting]
    ) -> DeadLetter:
        """Escalate a letter to a role, a user, or a channel (`#name`), and notify; `to=None` takes it back."""
        name, actor = "" if to is None else require_text("to", to), Actor(**acting)
        letter = await self._find_letter(id, tenant)
        line = self._make_audit(AuditEvent.LETTER_ESCALATED, letter, actor, before=letter.escalated_to, after=to)
        note = Triage(letter=letter.public_id, escalate=name, audit=line)
        if name:
            rules = await load_notify_rules(self._store)
            await self._check_channel(name, letter, rules)
            note = make_escalation(letter, name, line, rules, self._store.now())
        shown = await self._write_triage(note, tenant)
        self._on_messages()
        return shown

    async def _check_channel(self, to: str, letter: LetterRow, rules: StoredRules) -> None:
        """Refuse a channel that no code registered, or that is not for this tenant.

        A channel belongs to the app, and a caller over HTTP must not write to those of other tenants: a rule of the
        tenant, the code of the workflow or the settings must name it.
        """
        if not to.startswith("#"):
            return
        limits = self._limited_to
        if limits and to[1:] not in find_channels(rules, find_code_rule(letter), letter.tenant, limits):
            raise InputError(Reason(ReasonCode.CHANNEL_NOT_ALLOWED, channel=to, tenant=letter.tenant))
        await require_channel(self._store, to[1:], self._knows_channel)

    @operation("POST /workflow-dlq/{id}/comment", Permission.NOTE, id="comment_letter")
    async def comment(self, id: str, text: str, *, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        """Add a comment to a letter."""
        require_long_text("a comment", text)
        letter = await self._find_letter(id, tenant)
        line = self._make_audit(AuditEvent.LETTER_COMMENTED, letter, Actor(by), after=text)
        return await self._write_triage(Triage(letter=letter.public_id, audit=line), tenant)

    @operation("POST /workflow-dlq/{id}/tag", Permission.NOTE, id="tag_letter")
    async def tag(self, id: str, tags: Iterable[str], *, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        """Set the tags of a letter, replacing those it has."""
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise InputError(Reason(ReasonCode.TAGS_NEEDED, given=quote(tags)))
        chosen = tuple(dict.fromkeys(require_text("a tag", tag) for tag in tags))
        letter = await self._find_letter(id, tenant)
        before, after = ", ".join(letter.tags), ", ".join(chosen)
        line = self._make_audit(AuditEvent.LETTER_TAGGED, letter, Actor(by), before=before, after=after)
        return await self._write_triage(Triage(letter=letter.public_id, tags=chosen, audit=line), tenant)

    async def _write_triage(self, triage: Triage, tenant: str | None) -> DeadLetter:
        if not await self._store.triage(triage):
            raise NotFound(Reason(ReasonCode.LETTER_NOT_FOUND, id=quote(triage.letter)))
        return await self.get(triage.letter, tenant=tenant)

    def _make_audit(
        self, event: AuditEvent, letter: LetterRow, actor: Actor, before: str | None = None, after: str | None = None
    ) -> AuditWrite:
        return actor.make_audit(
            self._clock,
            event,
            letter.tenant,
            letter.run_id,
            letter=letter.public_id,
            before=None if before is None else json.dumps(before, ensure_ascii=False),
            after=None if after is None else json.dumps(after, ensure_ascii=False),
        )
