"""Replays and rollbacks of failed runs: planned, checked and applied.

A decision is applied once, however often it is sent. It is made on a run as it was read under a fence, and the
store writes only one decision per fence. A second request reads the run again: it finds the same decision and
returns its answer, or another one, which is a conflict.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from redrive.clock import Clock
from redrive.core.failure_reason import FailureReason
from redrive.core.journal import EntryRow, entry_name
from redrive.core.json_edit import Change, diff_json, merge_patch, unmask
from redrive.core.keys_and_ids import letter_id
from redrive.core.questions import task_id
from redrive.core.redact import Redactor
from redrive.core.replay_plan import (
    REPLAYABLE_STATUSES,
    ReplayMode,
    ReplayRequest,
    ReplayTarget,
    plan_replay,
    resolve_step_key,
)
from redrive.core.replay_transitions import ReplayDecision, reopen_run, restart_run
from redrive.core.run_options import StepOptions
from redrive.core.saga import find_passed_pivot, find_step_effects, find_unfinished, follow_up_key, read_ledger
from redrive.core.secret_and_sealed_text import make_sealed_value, read_sealed_value
from redrive.core.states import (
    CLOSED_LETTER_STATUSES,
    FINAL_RUN_STATUSES,
    EntryKind,
    LetterStatus,
    RunStatus,
    StepStatus,
)
from redrive.core.transitions import NewRun, ReplayWrite, Transition
from redrive.core.waits_and_events import Wait, WaitMode
from redrive.desk.actor import Acting, Actor
from redrive.desk.letter_status import require_open_letter
from redrive.desk.models import Caller
from redrive.desk.presenter import parse_changes, present_row
from redrive.desk.validation import (
    AudienceCheck,
    PayloadChecker,
    encode_json,
    in_thread_if_large,
    is_id,
    make_invalid_reason,
    measure_size,
    require_bool,
    require_text,
)
from redrive.errors import ConfigurationError, Conflict, InputError, NotFound
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import replace
from redrive.settings import ENVIRONMENT_VARIABLES
from redrive.settle.settler import find_last_attempts, make_run_view
from redrive.store.encryption.keyring import SEALED_ERROR, Unreadable
from redrive.store.letters import DecisionCase, LetterState, ReplayRow
from redrive.store.port import DeskStore
from redrive.store.runs import RunRow
from redrive.store.sql_store import repeat_until_answered
from redrive.time_values import to_datetime

_OBJECT_OPTIONS = frozenset({"input", "patch", "skip_steps"})
_JSON_OPTIONS = _OBJECT_OPTIONS | {"output"}
_KNOWN_OPTIONS = _JSON_OPTIONS | {"from_step", "retry", "new_operation", "ask_again", "undo"}


class ReplayOptions(Acting, total=False):
    """Keywords of a replay beside its letter and its mode."""

    from_step: int | None
    input: Mapping[str, Any] | None
    patch: Mapping[str, Any] | None
    output: Any
    retry: RetryPolicy | None
    new_operation: bool
    ask_again: bool
    idempotency_key: str | None
    tenant: str | None


class ReplayOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its actor. A repeat with the same `key` is the same decision, whatever happened since.

    `of_run`: the request names the run, so a closed letter does not matter.
    """

    request: ReplayRequest
    actor: Actor
    key: str | None = None
    of_run: bool = False

    def __post_init__(self) -> None:
        if self.key is not None:
            require_text("idempotency_key", self.key)


async def make_replay_order(
    mode: str, *, idempotency_key: str | None = None, of_run: bool = False, **options: Any
) -> ReplayOrder:
    """Parse the options of a replay, with its actor and its key."""
    actor = Actor(options.pop("by", "unknown"), options.pop("reason", None))
    request = await make_replay_request(mode, **options)
    return ReplayOrder(request=request, actor=actor, key=idempotency_key, of_run=of_run)


async def make_replay_request(mode: str, **options: Any) -> ReplayRequest:
    """Parse a request; a thread parses a large one."""

    def parse() -> ReplayRequest:
        if unknown := ", ".join(sorted(options.keys() - _KNOWN_OPTIONS)):
            known = tuple(sorted(_KNOWN_OPTIONS))
            raise InputError(Reason(ReasonCode.REPLAY_OPTION_UNKNOWN, names=unknown, known=known))
        if not isinstance(mode, str) or mode.upper() not in ReplayMode.__members__:
            raise InputError(Reason(ReasonCode.REPLAY_MODE_UNKNOWN, given=quote(mode), known=tuple(ReplayMode)))
        given = {name: value for name, value in options.items() if value is not None}
        retry = given.pop("retry", None)
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise InputError(Reason(ReasonCode.RETRY_POLICY_NEEDED, given=type(retry).__name__))
        for name in given.keys() & _OBJECT_OPTIONS:
            value = given[name]
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise InputError(Reason(ReasonCode.OBJECT_NEEDED, field=name, given=quote(value)))
        for name in given.keys() & _JSON_OPTIONS:
            encode_json(given[name], name)
        counts = Counter(resolve_step_key(name) for name in given.get("skip_steps", ()))
        if repeated := [key for key, count in counts.items() if count > 1]:
            raise InputError(Reason(ReasonCode.SKIP_STEPS_TWICE, step=repeated[0]))
        if type(given.get("from_step", 0)) is not int:
            raise InputError(Reason(ReasonCode.FROM_STEP_INVALID, given=quote(given["from_step"])))
        require_bool("new_operation", given.get("new_operation", False))
        require_bool("ask_again", given.get("ask_again", False))
        if "undo" in given:
            require_text("the name of a compensation", given["undo"])
        retry_json = None if retry is None else retry.to_json()
        request = ReplayRequest(mode=ReplayMode(mode.upper()), retry=retry_json, **given)
        _ = request.digest  # computed in the same thread, and cached
        return request

    return await in_thread_if_large(parse, measure_size(options))


log = logging.getLogger("redrive.desk")


async def find_rollback(store: DeskStore, case: DecisionCase) -> tuple[tuple[EntryRow, ...], str | None]:
    """Find the compensations of a run, in order, as they would be recorded, and the pivot that forbids them.

    This process may lack the code: the journal and the registered options of the steps say enough.
    """
    names = sorted({entry.name for entry in case.journal if entry.kind is EntryKind.STEP})
    options: dict[str, StepOptions] = {}
    for item in await store.known(names):  # the newest first
        if item.kind == "step":
            options.setdefault(item.name, StepOptions.from_json(item.options))
    effects = find_step_effects(case.journal, find_last_attempts(await store.attempts(case.run.id)), options)
    undoes: list[EntryRow] = []
    for each in effects:
        found = options.get(each.entry.name)
        name = None if found is None else found.cancel or found.undo
        if name is not None:
            new = {"key": follow_up_key(each.entry, name), "kind": EntryKind.UNDO, "name": name}
            none = dict.fromkeys(("output", "failure", "options"))
            undoes.append(replace(each.entry, status=StepStatus.PENDING, **new, **none))
    return tuple(undoes), find_passed_pivot(case.journal, effects, options)


_KEPT_OF_RUN = (
    *("tenant", "workflow", "queue", "priority", "timeout", "version"),
    *("correlation_id", "parent", "generation", "handler_for"),
)
"""The fields of a run that a new run for a replay keeps."""

SUCCESSFUL_STATUSES = frozenset({RunStatus.SUCCESS, RunStatus.PARTIAL, RunStatus.COMPENSATED})
"""Final statuses of a replay that succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The answer to a decision: the replay, its letter, and the run that it continues or starts."""

    letter_id: str
    number: int
    mode: str
    run_id: str
    by: str
    reason: str | None
    at: datetime
    changes: tuple[Change, ...] = ()


class PreparedReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A case with the decision about it, and the rows that the decision writes.

    `children`: runs that the run waits for again, and that are replayed first because they failed.
    """

    case: DecisionCase
    decision: ReplayDecision
    transition: Transition
    children: tuple[str, ...] = ()


class Replayer:
    """Plans and applies replays, one or many at a time, for a caller."""

    def __init__(
        self,
        store: DeskStore,
        clock: Clock,
        checker: PayloadChecker,
        redactor: Redactor,
        on_change: Callable[[str], None],
        audience: AudienceCheck,
        caller: Caller | None = None,
    ) -> None:
        self._store = store
        self._audience = audience
        self._caller = caller or Caller()
        self._clock = clock
        self._checker = checker
        self._redactor = redactor
        self._on_change = on_change

    async def replay(self, id: str, order: ReplayOrder, *, tenant: str | None = None) -> Replay:
        """Apply the decision, or return the answer of the same earlier one."""
        while True:
            case = await self.load_case(id, tenant=tenant)
            before = await self.find_earlier_answer(case, order)
            if before is not None:
                return before
            prepared = await self.prepare(case, order)
            await self.require_registered_workflow(case)
            (answer,) = await self.apply([prepared])
            if answer is not None:
                return answer

    async def require_registered_workflow(self, case: DecisionCase) -> None:
        """Refuse a run whose workflow no code has: no worker would execute it. A dry run only warns."""
        await self._checker.require_registered(case.run.workflow)

    async def is_abandoned(self, case: DecisionCase) -> bool:
        """Return True if workers are alive, but none that has the workflow of the run."""
        return await self._checker.is_abandoned(case.run.workflow)

    async def load_case(self, id: str, *, tenant: str | None = None) -> DecisionCase:
        """Load a case by the id of a letter or of a run."""
        for case in await self._store.cases([id]) if is_id(id) else ():
            if tenant in (None, case.run.tenant):
                return case
        raise NotFound(Reason(ReasonCode.LETTER_OR_RUN_NOT_FOUND, id=quote(id)))

    async def load_letter(self, id: str, *, tenant: str | None = None) -> tuple[DecisionCase, LetterState]:
        """Load the case of a dead letter by its own id, or by the id of any run that it was about."""
        for known in (id, letter_id(id)) if is_id(id) else ():
            for case in await self._store.cases([known]):
                if case.letter is not None and tenant in (None, case.run.tenant):
                    return case, case.letter
            if await self._store.letter(known, tenant=tenant) is not None:
                raise Conflict(Reason(ReasonCode.LETTER_RUN_PURGED, id=known))
        raise NotFound(Reason(ReasonCode.LETTER_NOT_FOUND, id=quote(id)))

    async def apply(self, prepared: Sequence[PreparedReplay]) -> list[Replay | None]:
        """Write decisions; the answer is None where the run has changed since it was read."""
        for each in prepared:
            await self._replay_children(each)
        transitions = [each.transition for each in prepared]
        answers = await repeat_until_answered(lambda: self._store.apply(transitions), self._clock)
        replays: list[Replay | None] = []
        for each, answer in zip(prepared, answers, strict=True):
            self._on_change(each.case.run.public_id)
            write = each.transition.replay
            assert write is not None
            number = len(each.case.replays) + 1
            replays.append(_make_replay(write, number, answer.now) if answer.kept else None)
        return replays

    async def _replay_children(self, prepared: PreparedReplay) -> None:
        """Replay the failed children of a run. The run itself comes second: it waits for what their replays lead to."""
        decision, run = prepared.decision, prepared.case.run
        order = ReplayOrder(
            request=ReplayRequest(mode=ReplayMode.FROM_FAILED),
            actor=Actor(decision.by, decision.reason),
            key=f"run:{run.public_id}:{run.fence}",  # the same for all users who decide on the run as it is now
            of_run=True,
        )
        for child in prepared.children:
            try:
                await self.replay(child, order)
            except Conflict as conflict:  # another user was first, so the run waits for that decision
                log.debug("not replayed with its parent: %s", conflict, extra={"redrive": {"run_id": child}})

    async def _find_failed_children(self, again: Sequence[EntryRow], request: ReplayRequest) -> tuple[str, ...]:
        """Return the failed runs that these entries wait for. A run that cannot be replayed is refused."""
        if request.new_operation and request.mode in (ReplayMode.FULL, ReplayMode.FROM_STEP):
            return ()  # new children are started
        found: list[str] = []
        for entry in again:
            if entry.kind is not EntryKind.WAIT or entry.status is StepStatus.SUCCESS:
                continue
            wait = Wait.from_json(entry.input or "")
            if wait.mode is WaitMode.RUN:
                found += await self._find_failed_child(wait.names[0])
        return tuple(dict.fromkeys(found))

    async def _find_failed_child(self, run_id: str) -> list[str]:
        """Return the run, or the one that a full replay started in its place, if it failed."""
        while True:
            cases = await self._store.cases([run_id])
            last = cases[0].replays[-1] if cases and cases[0].replays else None
            if last is None or last.run_id == run_id:
                break
            run_id = last.run_id
        status = cases[0].run.status if cases and cases[0].run.input is not None else None
        if status is RunStatus.SUCCESS or (status is not None and status not in FINAL_RUN_STATUSES):
            return []
        if status is None or status not in REPLAYABLE_STATUSES:
            raise Conflict(Reason(ReasonCode.CHILD_NOT_REPLAYABLE, run=run_id, status=status))
        return [run_id]

    async def find_earlier_answer(self, case: DecisionCase, order: ReplayOrder) -> Replay | None:
        """Return the answer of the same earlier decision; Conflict if another one is in force.

        A decision with values of another caller is never the same one for a caller who may not see
        payloads: an answer that depended on the values would let that caller guess them.
        """
        for row in case.replays:
            if order.key is not None and row.key == order.key:
                if not self._is_same_decision(row, order):
                    raise Conflict(Reason(ReasonCode.KEY_USED, key=order.key, id=case.subject))
                return _make_replay(row, row.number, row.at)
        if order.request.undo is not None:
            # The run may be at the next compensation by now.
            next_undo = find_unfinished(read_ledger(case.journal))
            entries = () if next_undo is None else (next_undo.undone, next_undo.entry)
            names = {name for entry in entries for name in (entry.name, entry.key)}
            rows = () if order.request.undo in names else reversed(case.replays)
            before = next((each for each in rows if self._is_same_decision(each, order)), None)
            if before is not None:
                return _make_replay(before, before.number, before.at)
            if case.run.status is RunStatus.COMPENSATING:
                return None
        last = case.replays[-1] if case.replays else None
        letter = case.letter
        if order.of_run and letter is not None and letter.status in CLOSED_LETTER_STATUSES:
            letter = None
        # The run that the last replay continued or started may have been purged.
        latest = case.run if last is None or last.run_id == case.run.public_id else await self._store.run(last.run_id)
        became = None if latest is None else latest.status
        if last is not None and self._is_same_decision(last, order) and _is_in_force(letter, last, became):
            return _make_replay(last, last.number, last.at)
        require_open_letter(letter)
        elsewhere = last is not None and last.run_id != case.run.public_id
        if letter is None and last is not None and elsewhere and became is not RunStatus.CANCELLED:
            raise Conflict(Reason(ReasonCode.RUN_REPLAYED_AS, run=case.run.public_id, other=last.run_id))
        return None

    def _is_same_decision(self, row: ReplayRow, order: ReplayOrder) -> bool:
        """Return True if a decision that was made is the one that is asked for."""
        if order.request.has_payloads and not (self._caller.sees_payloads or row.by == order.actor.by):
            return False
        return row.digest == order.request.digest

    async def _check_output(self, failed: EntryRow, output: Any) -> str:
        """Return the result that a user gives for a failed entry: of a step by its type, of a wait by its schema."""
        if failed.kind is not EntryKind.WAIT:
            return await self._checker.encode_output(failed.name, output)
        schema = Wait.from_json(failed.input or "").answer_schema()
        return await self._checker.encode_answer(Reason(ReasonCode.STEP_OUTPUT, step=failed.name), schema, output)

    async def _check_skipped(self, case: DecisionCase, order: ReplayOrder) -> dict[str, str]:
        """Return the results that a user gives instead of executing steps, by the names that the user gave."""
        recorded = {entry.key: entry for entry in case.journal if entry.kind is EntryKind.WAIT and not entry.superseded}
        given: dict[str, str] = {}
        for name, value in (order.request.skip_steps or {}).items():
            key = resolve_step_key(name)
            if key in recorded:
                await self._require_answerer(case.run, recorded[key], order.actor.by)
                given[name] = await self._check_output(recorded[key], value)
            else:
                given[name] = await self._checker.encode_output(entry_name(key), value)
        return given

    async def _require_answerer(self, run: RunRow, entry: EntryRow, by: str) -> None:
        """Refuse an answer of others than the people who were asked: they would approve what they may not."""
        if entry.kind is EntryKind.WAIT and Wait.from_json(entry.input or "").mode is WaitMode.TASK:
            row = await self._store.question(task_id(run.public_id, entry.index))
            if row is not None:
                self._audience.require(row, by, await self._audience.find_apart([row], by))

    async def prepare(self, case: DecisionCase, order: ReplayOrder) -> PreparedReplay:
        """Plan the decision and check its values; every reason to refuse it is found here."""
        request, run = order.request, case.run
        if run.input is None:
            raise Conflict(Reason(ReasonCode.RUN_PURGED, run=run.public_id))
        _refuse_unreadable(case)
        undoes, pivot = await find_rollback(self._store, case) if request.mode is ReplayMode.ROLLBACK else ((), None)
        target = ReplayTarget(
            run_id=run.public_id,
            status=run.status,
            ended_at=run.finished_at or 0,
            ending=None if run.failure is None else _parse_failure_reason(run.failure),
            journal=case.journal,
            undoes=undoes,
            pivot=pivot,
        )
        plan = plan_replay(target, request)
        text, edits = await self._edit_input(case, request) if request.edits else (None, ())
        output = None
        if request.gives_output and plan.failed is not None and not plan.undo:
            await self._require_answerer(run, plan.failed, order.actor.by)
            output = await self._check_output(plan.failed, request.output)
        decision = ReplayDecision(
            request=request,
            plan=plan,
            letter=case.subject,
            is_open=case.letter is not None and case.letter.status is LetterStatus.OPEN,
            by=order.actor.by,
            reason=order.actor.reason,
            key=order.key,
            input=text,
            changes=json.dumps([each.to_json() for each in edits]) if request.edits else None,
            output=output,
            skipped=await self._check_skipped(case, order),
        )
        children = await self._find_failed_children(plan.again, request)
        view = make_run_view(run, with_letter=False)
        if request.mode is ReplayMode.FULL:
            transition = restart_run(view, run.status, decision, _copy_run(run, self._clock.new_id()))
        else:
            transition = reopen_run(view, run.status, decision)
        return PreparedReplay(case=case, decision=decision, transition=transition, children=children)

    async def _edit_input(self, case: DecisionCase, request: ReplayRequest) -> tuple[str, tuple[Change, ...]]:
        redactor = self._redactor
        sealed = None if request.input is None else read_sealed_value(request.input)
        if sealed is not None:
            what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=case.run.workflow)
            text = self._checker.check_sealed(sealed, what)
            return text, (Change(path="$", kind="changed", after=make_sealed_value(text)),)
        if isinstance(case.run.input, Unreadable):
            raise InputError(
                Reason(
                    ReasonCode.INPUT_SEALED, run=case.run.public_id, variable=ENVIRONMENT_VARIABLES["encryption_keys"]
                )
            )

        def edit() -> tuple[Any, Any, Any]:
            """Return the input of the run, the edited one, and the edited one with the user's masks."""
            original = json.loads(case.run.input or "null")
            if request.patch is None:
                return original, unmask(request.input, original, redactor), request.input
            edited = merge_patch(original, unmask(request.patch, original, redactor))
            return original, edited, merge_patch(redactor.redact(original), request.patch)

        size = measure_size(case.run.input, request.patch, request.input)
        original, edited, masked = await in_thread_if_large(edit, size)
        text = await self._checker.encode_input(case.run.workflow, edited)

        def compare() -> tuple[Change, ...]:
            stored = json.loads(text)
            # An added field that the type of the input drops is refused: its name is probably misspelt.
            changes = diff_json(original, edited)
            added = {each.path for each in changes if each.kind == "added" and each.after is not None}
            lost = [each.path for each in diff_json(stored, edited) if each.kind == "added" and each.path in added]
            if lost:
                unknown = Reason(ReasonCode.FIELD_UNKNOWN, known=None)
                what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=case.run.workflow)
                faults = [Reason(ReasonCode.FAULT, path=path, why=unknown) for path in lost]
                raise InputError(make_invalid_reason(what, faults))
            return diff_json(original, stored, redactor, sent=masked)

        return text, await in_thread_if_large(compare, size + len(text))


def _is_in_force(letter: LetterState | None, last: ReplayRow, became: RunStatus | None) -> bool:
    """Return True while a replay runs, and after it succeeded. A failed one allows another decision."""
    if letter is not None:
        ended_well = last.outcome in SUCCESSFUL_STATUSES
        return letter.status is LetterStatus.REPLAYING or (letter.status is LetterStatus.RESOLVED and ended_well)
    return became is not None and (became not in FINAL_RUN_STATUSES or became in SUCCESSFUL_STATUSES)


def _refuse_unreadable(case: DecisionCase) -> None:
    """Refuse a run whose failure this process cannot decrypt: a plan needs it. Workers may encrypt the input."""
    run = case.run
    why = Reason(ReasonCode.TEXT, text=run.failure.why) if isinstance(run.failure, Unreadable) else None
    ending = None if why is not None or run.failure is None else _parse_failure_reason(run.failure)
    if ending is not None and ending.failure.error_type == SEALED_ERROR:
        why = ending.reason
    if why is not None:
        raise ConfigurationError(Reason(ReasonCode.RUN_SEALED, run=run.public_id, why=why))


@lru_cache(maxsize=64)
def _parse_failure_reason(text: str) -> FailureReason:
    """Parse a failure. The cache helps because letters of one bulk action often have the same failure."""
    return FailureReason.from_json(text)


def _copy_run(run: RunRow, public_id: str) -> NewRun:
    kept: dict[str, Any] = {name: getattr(run, name) for name in _KEPT_OF_RUN}
    kept |= {"input": run.input or "", "options": run.options or "", "root": run.root or run.public_id}
    return NewRun(public_id=public_id, replay_of=run.public_id, **kept)


def _make_replay(row: ReplayRow | ReplayWrite, number: int, at: int) -> Replay:
    given = {"letter_id": row.letter, "number": number, "at": to_datetime(at)}
    return present_row(Replay, row, **given, changes=parse_changes(row.changes))
