"""`app.dlq`: look at dead letters, decide about them, note things on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, overload

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.idempotency import letter_id, run_id_of_letter
from redrive.core.replay import ReplayMode
from redrive.core.schedule import parse_rate
from redrive.core.states import LetterStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.bulk import BulkOperations, DryRunOfMany, LetterSet, SetItem
from redrive.desk.decisions import (
    Replay,
    Replayer,
    ReplayOrder,
    close_letter,
    make_closed_conflict,
    make_replay_request,
)
from redrive.desk.models import DeadLetter
from redrive.desk.presenter import GroupList, Presenter, in_thread_if_large, measure_size, present_groups
from redrive.desk.preview import DryRun, Previewer
from redrive.desk.runs import find_failure_handler_runs
from redrive.desk.validation import check_reason, is_id, require_actor, require_bool, require_long_text, require_text
from redrive.errors import InputError, NotFound
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote
from redrive.settle.settler import LocalSettler
from redrive.store.bulk import BulkChange, BulkVerb
from redrive.store.filters import AuditFilter, GroupFilter, LetterFilter
from redrive.store.letters import Facets, LetterRow, Triage
from redrive.store.list_query import Page
from redrive.store.port import DeskStore

_MAX_HISTORY = 200
_MAX_FACET_LETTERS = 2_000


class ReplayOptions(TypedDict, total=False):
    """What `replay` takes beside the letter and the mode."""

    from_step: int | None
    input: Mapping[str, Any] | None
    patch: Mapping[str, Any] | None
    output: Any
    retry: RetryPolicy | None
    new_operation: bool
    by: str
    reason: str | None
    idempotency_key: str | None
    tenant: str | None


class DeadLetters:
    """Dead letters as people see and handle them. A run's id finds its letter, too."""

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        shaper: Presenter,
        replayer: Replayer,
        previewer: Previewer,
        on_set: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settler = LocalSettler(store, clock)
        self._shaper = shaper
        self._replayer = replayer
        self._previewer = previewer
        self._sets = BulkOperations(store, clock, previewer, shaper, on_set)

    # -- looking ---------------------------------------------------------------------------------------

    async def get(self, id: str, *, tenant: str | None = None, reveal: bool = False, by: str = "unknown") -> DeadLetter:
        """One dead letter with its run's steps, every attempt, its replays and its history.

        Secrets are hidden; `reveal=True` shows them, and the audit log says who looked.
        """
        letter = await self._find_letter(id, tenant)
        shaper = self._shaper
        if reveal:
            await self._store.note([self._make_audit(AuditEvent.LETTER_REVEALED, letter, by)])
            shaper = Presenter(None)
        case = next(iter(await self._store.cases([letter.public_id])), None)
        attempts = await self._store.attempts(letter.run)
        history = await self._store.audit(AuditFilter(letter=letter.public_id), limit=_MAX_HISTORY, cursor=None)
        replays = () if case is None else case.replays
        lineage = [run_id_of_letter(letter.public_id), *(replay.run_id for replay in replays), letter.run_id]
        journal = () if case is None else case.journal
        size = measure_size(letter, journal, attempts, history.items, replays)
        shape = partial(
            shaper.letter,
            letter,
            steps=await in_thread_if_large(partial(shaper.steps, journal, attempts), size),
            replays=replays,
            history=reversed(history.items),
            purged=case is None or case.run.input is None,
            handler_for=None if case is None else case.run.handler_for,
            handled_by=await find_failure_handler_runs(self._store, *lineage),
        )
        return await in_thread_if_large(shape, size)

    async def _find_letter(self, id: str, tenant: str | None) -> LetterRow:
        """By its own id, by the id of the run it was written for, or of the one it is about now."""
        if (row := await self._find_by_any_id(id, tenant)) is not None:
            return row
        _, about = await self._replayer.letter(id, tenant=tenant)
        if (row := await self._find_by_any_id(about.public_id, tenant)) is not None:
            return row
        raise NotFound(Reason(ReasonCode.LETTER_NOT_FOUND, id=quote(id)))

    async def _find_by_any_id(self, id: str, tenant: str | None) -> LetterRow | None:
        for known in (id, letter_id(id)) if is_id(id) else ():
            if (row := await self._store.letter(known, tenant=tenant)) is not None:
                return row
        return None

    async def list(
        self, filter: LetterFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[DeadLetter]:
        """A page of dead letters, newest first, without their stacks."""
        page = await self._store.letters(filter or LetterFilter(), limit=limit, cursor=cursor)
        letters = await in_thread_if_large(
            lambda: [self._shaper.letter(row, stack=False) for row in page.items], measure_size(page.items)
        )
        return Page(letters, page.next, page.prev)

    async def count(self, filter: LetterFilter | None = None) -> int:
        """How many dead letters match."""
        return await self._store.count_letters(filter or LetterFilter())

    async def groups(
        self, tenant: str | None = None, *, status: str | None = "OPEN", limit: int = 50, cursor: str | None = None
    ) -> GroupList:
        """A page of failures with one cause each, the one seen last first.

        Only those with open letters; `status=None` lists all. They are counted a few seconds late: all that
        happened before `as_of` is in.
        """
        where = GroupFilter(tenant=tenant, status=status)
        page = await self._store.groups(where, limit=limit, cursor=cursor)
        return await in_thread_if_large(partial(present_groups, page, self._shaper), measure_size(page.items))

    async def facets(self, filter: LetterFilter | None = None) -> Facets:
        """How the newest 2,000 letters that match are spread over codes, stages, workflows, steps, owners."""
        return await self._store.facets(filter or LetterFilter(), most=_MAX_FACET_LETTERS)

    # -- deciding --------------------------------------------------------------------------------------

    @overload
    async def replay(
        self, id: str, mode: str = ..., *, dry_run: Literal[False] = ..., **options: Unpack[ReplayOptions]
    ) -> Replay: ...
    @overload
    async def replay(
        self, id: str, mode: str = ..., *, dry_run: bool, **options: Unpack[ReplayOptions]
    ) -> Replay | DryRun: ...
    async def replay(
        self,
        id: str,
        mode: str = "FROM_FAILED",
        *,
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        **options: Any,
    ) -> Replay | DryRun:
        """Run a dead-lettered run again.

        `FROM_FAILED` goes on at the failed step, `FROM_STEP` at `from_step`, `STEP_ONLY` does the failed
        step and nothing else, `SKIP` takes `output` for its result, `FULL` starts a new run. `input` or
        `patch` edit the input, `retry` overrides the policy; `new_operation` gives outside services new
        idempotency keys. The same decision sent again gets the same answer; another one is a Conflict.
        `dry_run` says what would happen, and changes nothing; of a decision that was made before, that is its
        answer.
        """
        _, letter = await self._replayer.letter(id, tenant=tenant)
        request = await make_replay_request(mode, **options)
        order = ReplayOrder(request=request, by=by, reason=reason, key=idempotency_key)
        if require_bool("dry_run", dry_run):
            return await self._previewer.preview(letter.public_id, order)
        return await self._replayer.replay(letter.public_id, order)

    async def complete(
        self, id: str, output: Any, *, by: str = "unknown", reason: str | None = None, tenant: str | None = None
    ) -> Replay:
        """Give the failed step's result by hand, and let the run go on with it."""
        _, letter = await self._replayer.letter(id, tenant=tenant)
        request = await make_replay_request(ReplayMode.COMPLETE, output=output)
        return await self._replayer.replay(letter.public_id, ReplayOrder(request=request, by=by, reason=reason))

    async def resolve(
        self, id: str, *, by: str = "unknown", reason: str | None = None, tenant: str | None = None
    ) -> DeadLetter:
        """Close a letter whose cause was dealt with outside; its run has failed for good."""
        return await self._close(id, LetterStatus.RESOLVED, by, reason, tenant)

    async def ignore(
        self, id: str, *, by: str = "unknown", reason: str | None = None, tenant: str | None = None
    ) -> DeadLetter:
        """Close a letter that needs nothing done; its run has failed for good."""
        return await self._close(id, LetterStatus.IGNORED, by, reason, tenant)

    async def _close(
        self, id: str, status: LetterStatus, by: str, reason: str | None, tenant: str | None
    ) -> DeadLetter:
        while True:
            case, letter = await self._replayer.letter(id, tenant=tenant)
            why = check_reason(reason)
            outcome = close_letter(case.run, letter, status, by=require_actor(by), reason=why)
            if outcome is None and why not in (None, letter.resolution):
                raise make_closed_conflict(letter)
            if outcome is None:
                return await self.get(id, tenant=tenant)
            (settled,) = await self._settler.settle([outcome])
            if settled.kept:
                return await self.get(id, tenant=tenant)

    # -- deciding on many ------------------------------------------------------------------------------

    @overload
    async def replay_many(
        self, letters: LetterFilter | Iterable[str], *, dry_run: Literal[False] = ..., **options: Any
    ) -> LetterSet: ...
    @overload
    async def replay_many(
        self, letters: LetterFilter | Iterable[str], *, dry_run: bool, **options: Any
    ) -> LetterSet | DryRunOfMany: ...
    async def replay_many(
        self,
        letters: LetterFilter | Iterable[str],
        *,
        mode: str = "FROM_FAILED",
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        tenant: str | None = None,
        rate: str | None = None,
        **options: Any,
    ) -> LetterSet | DryRunOfMany:
        """Replay all open letters that match a filter, or those with these ids, each at most once.

        Takes the options of `replay`, and returns a set at once: nodes with a worker carry it out, a batch at
        a time. A letter on which the decision is refused is marked with the reason; the others go on.
        `rate` spares a dependency that recovers: "50/s" lets at most 50 letters go in a second, whoever
        carries it out; `rate_set` changes it on the way, `pause_set` and `resume_set` hold it up.
        `dry_run` says how many match, and for the first 500 what would be refused; it changes nothing.
        """
        order = ReplayOrder(request=await make_replay_request(mode, **options), by=by, reason=reason)
        if require_bool("dry_run", dry_run):
            return await self._sets.preview(letters, order, tenant)
        return await self._sets.begin("REPLAY", letters, order, by=by, reason=reason, tenant=tenant, rate=rate)

    async def resolve_many(
        self,
        letters: LetterFilter | Iterable[str],
        *,
        by: str = "unknown",
        reason: str | None = None,
        tenant: str | None = None,
        rate: str | None = None,
    ) -> LetterSet:
        """Resolve all open letters that match a filter, or those with these ids."""
        return await self._sets.begin("RESOLVE", letters, by=by, reason=reason, tenant=tenant, rate=rate)

    async def ignore_many(
        self,
        letters: LetterFilter | Iterable[str],
        *,
        by: str = "unknown",
        reason: str | None = None,
        tenant: str | None = None,
        rate: str | None = None,
    ) -> LetterSet:
        """Ignore all open letters that match a filter, or those with these ids."""
        return await self._sets.begin("IGNORE", letters, by=by, reason=reason, tenant=tenant, rate=rate)

    async def set(self, id: str, *, tenant: str | None = None) -> LetterSet:
        """A decision on many letters and how far it is."""
        return await self._sets.get(id, tenant=tenant)

    async def sets(self, *, limit: int = 50, cursor: str | None = None, tenant: str | None = None) -> Page[LetterSet]:
        """A page of decisions on many letters, the newest first."""
        return await self._sets.list(limit, cursor, tenant)

    async def set_items(
        self,
        id: str,
        *,
        status: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> Page[SetItem]:
        """A page of a set's letters with what became of each; `status="FAILED"` lists those refused."""
        return await self._sets.items(id, status, limit, cursor, tenant)

    async def stop_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> LetterSet:
        """Decide on no further letter of a set. What was decided stays so."""
        return await self._sets.change(id, BulkChange(BulkVerb.STOP), by=by, tenant=tenant)

    async def pause_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> LetterSet:
        """Decide on no further letter of a set until it is resumed. What is in hand is finished."""
        return await self._sets.change(id, BulkChange(BulkVerb.PAUSE), by=by, tenant=tenant)

    async def resume_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> LetterSet:
        """Go on with a set that was paused, where it was."""
        return await self._sets.change(id, BulkChange(BulkVerb.RESUME), by=by, tenant=tenant)

    async def rate_set(self, id: str, rate: str | None, *, by: str = "unknown", tenant: str | None = None) -> LetterSet:
        """Let a set decide on at most so many letters from now on, such as "50/s"; None is no limit."""
        change = BulkChange(BulkVerb.RATE, None if rate is None else parse_rate(rate))
        return await self._sets.change(id, change, by=by, tenant=tenant)

    # -- noting ----------------------------------------------------------------------------------------

    async def assign(self, id: str, *, to: str | None, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        """Say who looks after a letter; `to=None` says nobody."""
        letter = await self._find_letter(id, tenant)
        owner = "" if to is None else require_text("to", to)
        line = self._make_audit(AuditEvent.LETTER_ASSIGNED, letter, by, before=letter.owner, after=to)
        await self._write_triage(Triage(letter=letter.public_id, owner=owner, audit=line))
        return await self.get(id, tenant=tenant)

    async def comment(self, id: str, text: str, *, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        """Say something about a letter."""
        require_long_text("a comment", text)
        letter = await self._find_letter(id, tenant)
        line = self._make_audit(AuditEvent.LETTER_COMMENTED, letter, by, after=text)
        await self._write_triage(Triage(letter=letter.public_id, audit=line))
        return await self.get(id, tenant=tenant)

    async def tag(self, id: str, tags: Iterable[str], *, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        """Mark a letter with words, in place of those it has."""
        chosen = _check_tags(tags)
        letter = await self._find_letter(id, tenant)
        line = self._make_audit(
            AuditEvent.LETTER_TAGGED, letter, by, before=", ".join(letter.tags), after=", ".join(chosen)
        )
        await self._write_triage(Triage(letter=letter.public_id, tags=chosen, audit=line))
        return await self.get(id, tenant=tenant)

    async def _write_triage(self, triage: Triage) -> None:
        if not await self._store.triage(triage):
            raise NotFound(Reason(ReasonCode.LETTER_NOT_FOUND, id=quote(triage.letter)))

    def _make_audit(
        self, event: AuditEvent, letter: LetterRow, by: str, before: str | None = None, after: str | None = None
    ) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=letter.tenant,
            by=require_actor(by),
            subject=letter.run_id,
            letter=letter.public_id,
            before=_encode_json(before),
            after=_encode_json(after),
            token=self._clock.new_id(),
        )


def _check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InputError(f"tags are a list of words, such as [{tags!r:.60}], not {type(tags).__name__}")
    return tuple(dict.fromkeys(require_text("a tag", tag) for tag in tags))


def _encode_json(text: str | None) -> str | None:
    return None if text is None else json.dumps(text, ensure_ascii=False)
