"""Replaying runs: one decision, applied once, however often it is sent.

The run's fence is what decides between those who press the button at the same moment: the decision is
made on what was read under it, and only one can be written. Whoever comes second looks again, and finds
either the same decision at work, whose answer is then theirs as well, or another one, which is a conflict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from redrive.clock import Clock
from redrive.core.audit import ENGINE_ACTOR, read_reason
from redrive.core.failure_reason import FailureReason
from redrive.core.idempotency import letter_id
from redrive.core.journal import EntryRow, entry_name
from redrive.core.json_edit import Change, diff_json, merge_patch, unmask
from redrive.core.outcomes import LetterClosed
from redrive.core.redact import Redactor
from redrive.core.reopen import ReplayDecision, reopen_run, restart_run
from redrive.core.replay import ReplayMode, ReplayPlan, ReplayRequest, ReplayTarget, plan_replay, resolve_step_key
from redrive.core.run_options import StepOptions
from redrive.core.saga import (
    StepEffect,
    find_passed_pivot,
    find_step_effects,
    find_unfinished,
    follow_up_key,
    read_ledger,
)
from redrive.core.states import (
    CLOSED_LETTER_STATUSES,
    FINAL_RUN_STATUSES,
    EntryKind,
    LetterStatus,
    RunStatus,
    StepStatus,
)
from redrive.core.transitions import NewRun, ReplayWrite, Transition
from redrive.desk.models import Caller
from redrive.desk.presenter import in_thread_if_large, measure_size, parse_changes
from redrive.desk.validation import (
    PayloadChecker,
    check_reason,
    encode_json,
    is_id,
    make_invalid_reason,
    require_actor,
    require_bool,
    require_text,
)
from redrive.duration import to_datetime
from redrive.errors import ConfigurationError, Conflict, InputError, NotFound
from redrive.observability.counters import Counters
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote
from redrive.records import replace
from redrive.settle.settler import find_last_attempts, make_run_view
from redrive.store.encryption.keyring import SEALED_ERROR, Unreadable
from redrive.store.letters import DecisionCase, LetterState, ReplayRow
from redrive.store.port import DeskStore
from redrive.store.runs import RunRow
from redrive.store.session import repeat_until_answered

# -- Closing a letter without a replay: the one rule for one letter and for many -------------------------


def close_letter(
    run: RunRow, letter: LetterState, status: LetterStatus, *, by: str, reason: str | None
) -> LetterClosed | None:
    """What closes the letter; None if somebody closed it so before. Conflict if it is not open."""
    if letter.status is status and letter.closed_by != ENGINE_ACTOR:
        return None
    if letter.status is status:
        raise make_closed_conflict(letter)
    if letter.status is not LetterStatus.OPEN:
        found = letter.status
        raise Conflict(Reason(ReasonCode.LETTER_NOT_OPEN, id=letter.public_id, status=found, wanted=status))
    return LetterClosed(
        run=make_run_view(run), letter=letter.public_id, status=status, ended=run.status, by=by, reason=reason
    )


def make_closed_conflict(letter: LetterState) -> Conflict:
    """It was closed so before, by the engine or for another reason: what is said now would get lost."""
    how = read_resolution(letter)
    return Conflict(Reason(ReasonCode.LETTER_CLOSED_BEFORE, id=letter.public_id, status=letter.status, how=how))


def read_resolution(letter: LetterState) -> Reason:
    """Return how a letter was closed."""
    if not letter.resolution:
        return Reason(ReasonCode.NO_REASON_GIVEN)
    return read_reason(letter.closed_by, letter.resolution)


# -- What a rollback would undo, told without the code: by the journal, and by what the code said of -----


class RollbackEffects(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The compensations of a run, in order, as they would be recorded; what makes it too late for them."""

    undoes: tuple[EntryRow, ...]
    pivot: str | None


async def find_rollback_effects(store: DeskStore, case: DecisionCase, names: Sequence[str]) -> RollbackEffects:
    """Look at a run that ended."""
    options: dict[str, StepOptions] = {}
    for item in await store.known(names):  # the newest first
        if item.kind == "step":
            options.setdefault(item.name, StepOptions.from_json(item.options))
    effects = find_step_effects(case.journal, find_last_attempts(await store.attempts(case.run.id)), options)
    undoes = [_make_compensation(each, options.get(each.entry.name)) for each in effects]
    return RollbackEffects(
        undoes=tuple(entry for entry in undoes if entry is not None),
        pivot=find_passed_pivot(case.journal, effects, options),
    )


def _make_compensation(each: StepEffect, options: StepOptions | None) -> EntryRow | None:
    name = None if options is None else options.cancel or options.undo
    if name is None:
        return None
    return replace(
        each.entry,
        key=follow_up_key(each.entry, name),
        kind=EntryKind.UNDO,
        name=name,
        status=StepStatus.PENDING,
        output=None,
        failure=None,
        options=None,
    )


# -- Replaying runs: one decision, applied once, however often it is sent --------------------------------


_OBJECT_OPTIONS = frozenset({"input", "patch", "skip_steps"})
_JSON_OPTIONS = _OBJECT_OPTIONS | {"output"}
_KNOWN_OPTIONS = _JSON_OPTIONS | {"from_step", "retry", "new_operation", "undo"}
SUCCESSFUL_STATUSES = frozenset({RunStatus.SUCCESS, RunStatus.PARTIAL, RunStatus.COMPENSATED})
"""How a replay ends that did what was asked."""


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A request with who sends it. `key` makes a repeat of it the same decision, whatever happened since.

    `of_run`: the run is meant, whatever became of its letter.
    """

    request: ReplayRequest
    by: str
    reason: str | None = None
    key: str | None = None
    of_run: bool = False

    def __post_init__(self) -> None:
        require_actor(self.by)
        check_reason(self.reason)
        if self.key is not None:
            require_text("idempotency_key", self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The answer to a decision: which replay of which letter, and the run it lets go on or starts."""

    letter_id: str
    number: int
    mode: str
    run_id: str
    by: str
    reason: str | None
    at: datetime
    changes: tuple[Change, ...] = ()


class PreparedReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A case with what was decided about it: the decision, and the rows it would write."""

    case: DecisionCase
    decision: ReplayDecision
    transition: Transition


class Replayer:
    """Plans and applies replays, one or many at a time, for a caller."""

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        checker: PayloadChecker,
        redactor: Redactor,
        on_change: Callable[[str], None],
        tally: Counters | None = None,
        caller: Caller | None = None,
    ) -> None:
        self._store = store
        self._caller = caller or Caller()
        self._clock = clock
        self._tally = tally
        self._checker = checker
        self._redactor = redactor
        self._on_change = on_change

    async def replay(self, id: str, order: ReplayOrder, *, tenant: str | None = None) -> Replay:
        """Apply the decision, or find that it was applied before."""
        while True:
            case = await self.case(id, tenant=tenant)
            before = await self.find_earlier_answer(case, order)
            if before is not None:
                return before
            prepared = await self.prepare(case, order)
            await self.require_registered_workflow(case)
            (answer,) = await self.apply([prepared])
            if answer is not None:
                return answer

    async def require_registered_workflow(self, case: DecisionCase) -> None:
        """A run of a workflow that no code has would wait for ever; a dry run only says so."""
        await self._checker.registered(case.run.workflow)

    async def is_abandoned(self, case: DecisionCase) -> bool:
        """True if workers live, but none that would go on with the run."""
        return await self._checker.is_abandoned(case.run.workflow)

    async def case(self, id: str, *, tenant: str | None = None) -> DecisionCase:
        """What there is to know, by the id of a letter or of a run."""
        for case in await self._store.cases([id]) if is_id(id) else ():
            if tenant in (None, case.run.tenant):
                return case
        raise NotFound(Reason(ReasonCode.LETTER_OR_RUN_NOT_FOUND, id=quote(id)))

    async def letter(self, id: str, *, tenant: str | None = None) -> tuple[DecisionCase, LetterState]:
        """The same for a dead letter; a run's id names its letter, wherever that is by now."""
        for known in (id, letter_id(id)) if is_id(id) else ():
            for case in await self._store.cases([known]):
                if case.letter is not None and tenant in (None, case.run.tenant):
                    return case, case.letter
            if await self._store.letter(known, tenant=tenant) is not None:
                raise Conflict(Reason(ReasonCode.LETTER_RUN_PURGED, id=known))
        raise NotFound(Reason(ReasonCode.LETTER_NOT_FOUND, id=quote(id)))

    async def apply(self, prepared: Sequence[PreparedReplay]) -> list[Replay | None]:
        """Write decisions; None where the run has changed since it was looked at."""
        transitions = [each.transition for each in prepared]
        answers = await repeat_until_answered(lambda: self._store.apply(transitions), self._clock)
        replays: list[Replay | None] = []
        for each, answer in zip(prepared, answers, strict=True):
            if self._tally is not None and answer.kept:
                self._tally.replayed(each.case.run.workflow, each.decision.request.mode.value)
            self._on_change(each.case.run.public_id)
            replays.append(_make_answer(each, answer.now) if answer.kept else None)
        return replays

    async def find_earlier_answer(self, case: DecisionCase, order: ReplayOrder) -> Replay | None:
        """The answer that the same decision got; Conflict if another one is in force.

        A decision with values of another caller is never the same one for a caller who may not see
        payloads: an answer that depended on the values would let that caller guess them.
        """
        for row in case.replays:
            if order.key is not None and row.key == order.key:
                if not self._is_same_decision(row, order):
                    raise Conflict(Reason(ReasonCode.KEY_USED, key=order.key, id=case.subject))
                return _make_replay(row, row.number, row.at)
        if order.request.undo is not None:
            before = self._find_earlier_decision(case, order)
            if before is not None or case.run.status is RunStatus.COMPENSATING:
                return before
        last = case.replays[-1] if case.replays else None
        letter = case.letter
        if order.of_run and letter is not None and letter.status in CLOSED_LETTER_STATUSES:
            letter = None
        became = None if last is None else await self._load_replay_status(case, last)
        if last is not None and self._is_same_decision(last, order) and _is_in_force(letter, last, became):
            return _make_replay(last, last.number, last.at)
        _require_open_letter(letter)
        elsewhere = last is not None and last.run_id != case.run.public_id
        if letter is None and last is not None and elsewhere and became is not RunStatus.CANCELLED:
            raise Conflict(Reason(ReasonCode.RUN_REPLAYED_AS, run=case.run.public_id, other=last.run_id))
        return None

    def _is_same_decision(self, row: ReplayRow, order: ReplayOrder) -> bool:
        """Return True if a decision that was made is the one that is asked for."""
        if order.request.has_payloads and not (self._caller.sees_payloads or row.by == order.by):
            return False
        return row.digest == order.request.digest

    def _find_earlier_decision(self, case: DecisionCase, order: ReplayOrder) -> Replay | None:
        """Return the answer to the same decision on a compensation; its run may be at the next one by now."""
        row = find_unfinished(read_ledger(case.journal))
        names = () if row is None else (row.undone.name, row.undone.key, row.entry.name, row.entry.key)
        if order.request.undo in names:
            return None
        same = (each for each in reversed(case.replays) if self._is_same_decision(each, order))
        return next((_make_replay(each, each.number, each.at) for each in same), None)

    async def _load_replay_status(self, case: DecisionCase, last: ReplayRow) -> RunStatus | None:
        """How the run stands that the last replay let go on or started; None if it was purged."""
        if last.run_id == case.run.public_id:
            return case.run.status
        started = await self._store.run(last.run_id)
        return None if started is None else started.status

    async def prepare(self, case: DecisionCase, order: ReplayOrder) -> PreparedReplay:
        """Plan the decision and check its values; every reason to refuse it is found here."""
        request, run = order.request, case.run
        if run.input is None:
            raise Conflict(Reason(ReasonCode.RUN_PURGED, run=run.public_id))
        _refuse_unreadable(case)
        subject = _make_subject(case)
        if request.mode is ReplayMode.ROLLBACK:
            subject = await self._add_rollback_effects(subject, case)
        intended = plan_replay(subject, request)
        text, edits = await self._edit_input(case, request) if request.edits else (None, ())
        decision = ReplayDecision(
            request=request,
            plan=intended,
            letter=case.subject,
            is_open=case.letter is not None and case.letter.status is LetterStatus.OPEN,
            by=order.by,
            reason=order.reason,
            key=order.key,
            input=text,
            changes=json.dumps([each.to_json() for each in edits]) if request.edits else None,
            output=await self._check_output(intended, request) if request.gives_output else None,
            skipped=await self._check_skipped_outputs(request.skip_steps) if request.skip_steps else {},
        )
        return PreparedReplay(case=case, decision=decision, transition=self._make_transition(case, decision))

    async def _add_rollback_effects(self, subject: ReplayTarget, case: DecisionCase) -> ReplayTarget:
        """The run, with what would be undone."""
        names = sorted({entry.name for entry in case.journal if entry.kind is EntryKind.STEP})
        effects = await find_rollback_effects(self._store, case, names)
        return replace(subject, undoes=effects.undoes, pivot=effects.pivot)

    def _make_transition(self, case: DecisionCase, decision: ReplayDecision) -> Transition:
        view, status = make_run_view(case.run, hears=False), case.run.status
        if decision.request.mode is not ReplayMode.FULL:
            return reopen_run(view, status, decision)
        return restart_run(view, status, decision, _copy_run(case, self._clock.new_id()))

    async def _edit_input(self, case: DecisionCase, request: ReplayRequest) -> tuple[str, tuple[Change, ...]]:
        redactor = self._redactor

        def meant() -> tuple[Any, Any, Any]:
            """Return the input of the run, the one that the user means, and that with the user's masks."""
            original = json.loads(case.run.input or "null")
            if request.patch is None:
                return original, unmask(request.input, original, redactor), request.input
            wanted = merge_patch(original, unmask(request.patch, original, redactor))
            return original, wanted, merge_patch(redactor.redact(original), request.patch)

        size = measure_size(case.run.input, request.patch, request.input)
        original, wanted, sent = await in_thread_if_large(meant, size)
        text = await self._checker.input(case.run.workflow, wanted)

        def compare() -> tuple[Change, ...]:
            became = json.loads(text)
            _refuse_dropped_fields(case, original, wanted, became)
            return diff_json(original, became, redactor, sent=sent)

        return text, await in_thread_if_large(compare, size + len(text))

    async def _check_output(self, intended: ReplayPlan, request: ReplayRequest) -> str | None:
        if intended.failed is None or intended.undo:
            return None
        return await self._checker.output(intended.failed.name, request.output)

    async def _check_skipped_outputs(self, outputs: Mapping[str, Any]) -> dict[str, str]:
        return {
            name: await self._checker.output(entry_name(resolve_step_key(name)), output)
            for name, output in outputs.items()
        }


def _refuse_dropped_fields(case: DecisionCase, original: Any, wanted: Any, became: Any) -> None:
    """A field that somebody added and that the type leaves out is misspelt, and would never be seen."""
    added = {each.path for each in diff_json(original, wanted) if each.kind == "added" and each.after is not None}
    lost = [each.path for each in diff_json(became, wanted) if each.kind == "added" and each.path in added]
    if lost:
        unknown = Reason(ReasonCode.FIELD_UNKNOWN, known=None)
        what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=case.run.workflow)
        raise InputError(make_invalid_reason(what, [Reason(ReasonCode.FAULT, path=path, why=unknown) for path in lost]))


def _is_in_force(letter: LetterState | None, last: ReplayRow, became: RunStatus | None) -> bool:
    """True while a replay goes on, and ever after if it ended well; a failed one is history."""
    if letter is not None:
        ended_well = last.outcome in SUCCESSFUL_STATUSES
        return letter.status is LetterStatus.REPLAYING or (letter.status is LetterStatus.RESOLVED and ended_well)
    return became is not None and (became not in FINAL_RUN_STATUSES or became in SUCCESSFUL_STATUSES)


async def make_replay_request(mode: str, **options: Any) -> ReplayRequest:
    """Read a request as people and programs write it; a thread reads a large one."""

    def make() -> ReplayRequest:
        request = _parse_request(mode, **options)
        _ = request.digest  # computed in the same thread, and remembered
        return request

    return await in_thread_if_large(make, measure_size(options))


def _parse_request(mode: str, **options: Any) -> ReplayRequest:
    """A request as people and programs write it."""
    if unknown := ", ".join(sorted(options.keys() - _KNOWN_OPTIONS)):
        known = tuple(sorted(_KNOWN_OPTIONS))
        raise InputError(Reason(ReasonCode.REPLAY_OPTION_UNKNOWN, names=unknown, known=known))
    chosen = _parse_mode(mode)
    retry = options.pop("retry", None)
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InputError(Reason(ReasonCode.RETRY_POLICY_NEEDED, given=type(retry).__name__))
    given = {name: value for name, value in options.items() if value is not None}
    for name in given.keys() & _OBJECT_OPTIONS:
        _require_object(name, given[name])
    for name in given.keys() & _JSON_OPTIONS:
        encode_json(given[name], name)
    _refuse_duplicates([resolve_step_key(name) for name in given.get("skip_steps", ())])
    if type(given.get("from_step", 0)) is not int:
        raise InputError(Reason(ReasonCode.FROM_STEP_INVALID, given=quote(given["from_step"])))
    require_bool("new_operation", given.get("new_operation", False))
    if "undo" in given:
        require_text("the name of a compensation", given["undo"])
    return ReplayRequest(mode=chosen, retry=None if retry is None else retry.to_json(), **given)


def _parse_mode(mode: Any) -> ReplayMode:
    for known in ReplayMode:
        if isinstance(mode, str) and mode.upper() == known:
            return known
    raise InputError(Reason(ReasonCode.REPLAY_MODE_UNKNOWN, given=quote(mode), known=tuple(ReplayMode)))


def _require_object(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(Reason(ReasonCode.OBJECT_NEEDED, field=name, given=quote(value)))


def _refuse_duplicates(keys: Sequence[str]) -> None:
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(Reason(ReasonCode.SKIP_STEPS_TWICE, step=key))


def _refuse_unreadable(case: DecisionCase) -> None:
    """A plan is made from how the run failed and what it was given: who cannot read these must not guess."""
    run = case.run
    sealed = [text for text in (run.input, run.failure) if isinstance(text, Unreadable)]
    ending = None if sealed or run.failure is None else _parse_failure_reason(run.failure)
    why = Reason(ReasonCode.TEXT, text=sealed[0].why) if sealed else None
    if ending is not None and ending.failure.error_type == SEALED_ERROR:
        why = ending.reason
    if why is not None:
        raise ConfigurationError(Reason(ReasonCode.RUN_SEALED, run=run.public_id, why=why))


def _make_subject(case: DecisionCase) -> ReplayTarget:
    run = case.run
    return ReplayTarget(
        run_id=run.public_id,
        status=run.status,
        ended_at=run.finished_at or 0,
        ending=None if run.failure is None else _parse_failure_reason(run.failure),
        journal=case.journal,
    )


@lru_cache(maxsize=64)
def _parse_failure_reason(text: str) -> FailureReason:
    """Remembered, because letters that are replayed together often say the same."""
    return FailureReason.from_json(text)


def _require_open_letter(letter: LetterState | None) -> None:
    """A letter that is being replayed or closed takes no other decision; its run may be retried by name."""
    if letter is None or letter.status is LetterStatus.OPEN:
        return
    if letter.status is LetterStatus.REPLAYING:
        raise Conflict(Reason(ReasonCode.LETTER_REPLAYING, id=letter.public_id))
    id, run, how = letter.public_id, letter.run_id, read_resolution(letter)
    if letter.closed_by == ENGINE_ACTOR and letter.status is LetterStatus.RESOLVED:
        raise Conflict(Reason(ReasonCode.LETTER_RESOLVED, id=id, how=how, run=run))
    raise Conflict(Reason(ReasonCode.LETTER_CLOSED, id=id, status=letter.status, how=how, run=run))


def _copy_run(case: DecisionCase, public_id: str) -> NewRun:
    run = case.run
    return NewRun(
        public_id=public_id,
        tenant=run.tenant,
        workflow=run.workflow,
        input=run.input or "",
        options=run.options or "",
        queue=run.queue,
        priority=run.priority,
        timeout=run.timeout,
        version=run.version,
        correlation_id=run.correlation_id,
        parent=run.parent,
        root=run.root or run.public_id,
        replay_of=run.public_id,
        generation=run.generation,
        handler_for=run.handler_for,
    )


def _make_answer(prepared: PreparedReplay, now: int) -> Replay:
    wanted = prepared.transition.replay
    assert wanted is not None
    return _make_replay(wanted, len(prepared.case.replays) + 1, now)


def _make_replay(said: ReplayRow | ReplayWrite, number: int, at: int) -> Replay:
    return Replay(
        letter_id=said.letter,
        number=number,
        mode=said.mode,
        run_id=said.run_id,
        by=said.by,
        reason=said.reason,
        at=to_datetime(at),
        changes=parse_changes(said.changes),
    )
