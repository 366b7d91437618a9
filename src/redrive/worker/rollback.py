"""What is done about steps when the workflow function has ended: compensations and confirmations.

Rollback undoes what a run did, one compensation after the other, in the reverse order of completion:

    read      the journal: what happened, what may have happened, was a pivot passed?
    plan      one entry for each compensation, all of them in one commit
    undo      the next one, until it succeeds; a task for a person releases the run
    end       as the run would have ended, or with a letter for the compensation that failed

Confirmation does the same for reservations when the function has returned, in order of completion, before the
run succeeds. After the first confirmation there is no way back: one that fails becomes a letter, and a replay
continues with it.

Each is a journal entry like a step's, tried, retried and recorded in the same way. The entries are written
before the first of them begins, so any worker can continue at any point with what is in the journal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redrive.actions import Action, ApiCall, Manual, Notify, Sql
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow, Journal
from redrive.core.outcomes import (
    EntryRef,
    FollowUpsPlanned,
    ManualActionRequested,
    PlannedFollowUp,
    RollbackEnded,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.run_options import StepOptions
from redrive.core.saga import (
    LedgerRow,
    StepEffect,
    build_undo_input,
    find_passed_pivot,
    find_step_effects,
    find_steps_to_confirm,
    follow_up_key,
    read_ledger,
)
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.errors import MisusedStep, PayloadError, RunDetached, StepFailed
from redrive.http.client import HttpClient, HttpRequest
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.settings import AllowedHost
from redrive.settle.settler import find_last_attempts
from redrive.store.encryption.keyring import Unreadable
from redrive.store.session import repeat_until_answered
from redrive.store.user_database import execute_on_user_database
from redrive.worker.attempt import Attempt
from redrive.worker.branches import current_scope
from redrive.worker.step_call import StepCall

if TYPE_CHECKING:
    from redrive.store.letters import LetterRow
    from redrive.store.runs import RunRow
    from redrive.worker.branches import Branch
    from redrive.worker.definitions import Compensation, Step
    from redrive.worker.execution import Execution


_IDEMPOTENCY_HEADER = "Idempotency-Key"

NOTIFY_TOPIC = "redrive.notify"
"""The topic of messages that `Notify` sends."""


class ActionRunner:
    """Runs declared actions with a guarded HTTP client, and databases by name."""

    def __init__(self, connections: Mapping[str, str], allowed: Sequence[AllowedHost]) -> None:
        self._connections = connections
        self._allowed = allowed
        self._client: HttpClient | None = None

    async def call(self, action: ApiCall, data: Mapping[str, Any], key: str) -> None:
        """Make the call; anything but a success raises."""
        request = action.render(data)
        headers = dict(request.headers)
        if not any(name.lower() == _IDEMPOTENCY_HEADER.lower() for name in headers):
            headers[_IDEMPOTENCY_HEADER] = key
        body = b"" if request.body is None else request.body.encode()
        answer = await self._get_client().send(
            HttpRequest(url=request.url, method=request.method, headers=headers, body=body, timeout=request.timeout)
        )
        answer.raise_for_status(f"{request.method} {action.origin}")

    def _get_client(self) -> HttpClient:
        if self._client is None:
            self._client = HttpClient(self._allowed)
        return self._client

    async def execute(self, action: Sql, data: Mapping[str, Any]) -> int:
        """Execute the statement; returns how many rows it changed."""
        return await execute_on_user_database(
            self._connections[action.connection], action.statement, action.render(data)
        )

    async def close(self) -> None:
        """Close connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


async def run_action(action: Action, input: dict[str, Any], result: Any) -> Any:
    """Run an action as the body of a step."""
    here = current_scope.get()
    if not isinstance(here, Attempt):
        raise MisusedStep(f"a declared action ({action.kind}) is carried out by an engine only")
    data = {"input": input, "result": result, "step": _describe_step(here)}
    runner = here.execution.worker.actions
    match action:
        case ApiCall():
            return await runner.call(action, data, here.idempotency_key)
        case Sql():
            return await runner.execute(action, data)
        case Notify():
            return _publish_notification(action, data, here)
        case Manual():
            raise MisusedStep("a task for a person is not carried out by an engine")


def _describe_step(attempt: Attempt) -> dict[str, Any]:
    """Return what templates can name of the step that is undone, and of the step that undoes it."""
    return {
        "name": attempt.place.key.rpartition("/")[0].rpartition("/")[2].rpartition("#")[0],
        "idempotency_key": attempt.idempotency_key,
        "run_id": attempt.run_id,
        "tenant": attempt.tenant,
        "correlation_id": attempt.correlation_id,
    }


def _publish_notification(action: Notify, data: Mapping[str, Any], attempt: Attempt) -> dict[str, str]:
    """Publish the message, which is committed with the step's success; the step's record has it, too."""
    message = {"channel": action.channel, "subject": f"{data['step']['name']} was undone"}
    message["text"] = action.render(data)
    attempt.publish(NOTIFY_TOPIC, message)
    return message


def render_instructions(action: Manual, text: str, step: str) -> str:
    """Return the text for a person; if a field is missing, the text as it was written."""
    given = json.loads(text)
    try:
        return action.render({**given, "step": {"name": step}})
    except PayloadError as error:
        return f"{action.instructions} ({error})"


_FAILED = frozenset({StepStatus.FAILED, StepStatus.DLQ})
_DONE = frozenset({StepStatus.SUCCESS, StepStatus.SKIPPED})
_ROLLED_BACK_REASON = Reason(ReasonCode.RUN_ROLLED_BACK)
_UNKNOWN_CAUSE = FailureReason(
    failure=Failure.of(Category.UNKNOWN, str(_ROLLED_BACK_REASON), "redrive.RolledBack"),
    code=LetterCode.NON_RETRYABLE,
    reason=_ROLLED_BACK_REASON,
)


# -- entries that follow the function ----------------------------------------------------------------------


class FollowUpFailed(Exception):
    """A compensation or confirmation failed for good; `ending` says how, and `place` where."""

    def __init__(self, ending: FailureReason, place: EntryRef | None = None, attempt: int = 1) -> None:
        super().__init__(str(ending.reason))
        self.ending = ending
        self.place = place
        self.attempt = attempt

    def outcome(self, execution: Execution) -> WorkflowFailed:
        """Return the outcome: a letter."""
        return WorkflowFailed(run=execution.view, ending=self.ending, place=self.place, attempt=self.attempt)


class FollowUp:
    """The entries that are added to the journal of a run whose function has ended."""

    def __init__(self, execution: Execution, branch: Branch, kind: EntryKind) -> None:
        self._execution = execution
        self._branch = branch
        self._kind = kind

    @property
    def steps(self) -> Mapping[str, Step[Any, Any]]:
        """The steps that are registered here."""
        return self._execution.worker.steps

    @property
    def options(self) -> dict[str, StepOptions]:
        """The options of these steps."""
        return {name: step.options for name, step in self.steps.items()}

    async def read(self) -> list[EntryRow]:
        """Read the journal. New entries are numbered behind it."""
        execution = self._execution
        rows = await repeat_until_answered(
            lambda: execution.worker.store.journal(execution.claimed.id), execution.clock
        )
        execution.journal.continue_numbers(Journal(rows))
        return rows

    async def plan(self, wanted: Iterable[tuple[EntryRow, Step[Any, Any], bool, bool]]) -> None:
        """Record what is to be done: about which entry, by which step, how certain, if at all."""
        plan = tuple(self._make_planned_entry(*each) for each in wanted)
        if plan:
            await self._execution.settle(FollowUpsPlanned(run=self._execution.view, plan=plan))

    def _make_planned_entry(
        self, entry: EntryRow, step: Step[Any, Any], uncertain: bool, runs: bool
    ) -> PlannedFollowUp:
        for text in (entry.input, entry.output):
            if isinstance(text, Unreadable):
                raise FollowUpFailed(self._make_input_failure(entry.name, PayloadError(text.why)))
        return PlannedFollowUp(
            place=EntryRef(self._execution.journal.new_index(), follow_up_key(entry, step.name), self._kind, step.name),
            input=build_undo_input(entry, declared=step.action is not None, uncertain=uncertain),
            options=step.options_text,
            runs=runs,
        )

    async def do(self, entry: EntryRow, step: Step[Any, Any]) -> None:
        """Call the step of an entry until it succeeds; Stuck if it fails for good."""
        execution, place = self._execution, _entry_position(entry)
        if entry.status in _FAILED:
            raise FollowUpFailed(FailureReason.from_json(entry.failure or ""), place, entry.attempt)
        try:
            args, kwargs = step.signature.decode(entry.input or "{}")
        except PayloadError as error:
            raise FollowUpFailed(self._make_input_failure(entry.name, error), place, entry.attempt) from None
        self._branch.enter_call()
        try:
            begun = None if entry.status is StepStatus.PENDING else entry
            await StepCall(execution, self._branch, step, place, entry.input or "{}").run(begun, args, kwargs)
        except StepFailed:
            known = execution.requests.find_failure(entry.key)
            assert known is not None
            raise FollowUpFailed(*known) from None
        finally:
            self._branch.leave_call()

    def _make_input_failure(self, name: str, error: PayloadError) -> FailureReason:
        return FailureReason(
            failure=self._execution.capture(error),
            code=LetterCode.VALIDATION_FAILED,
            reason=Reason(ReasonCode.STEP_INPUT_UNUSABLE, step=name, why=Reason.of_error(error)),
            stage=Stage.INPUT,
            step=name,
        )


def _entry_position(entry: EntryRow) -> EntryRef:
    """Return the position of an entry."""
    return EntryRef(entry.index, entry.key, entry.kind, entry.name)


def _add_cause(ending: FailureReason, cause: FailureReason, step: str) -> FailureReason:
    """Return the failure of a compensation, with why the run was rolled back."""
    return replace(
        ending,
        code=LetterCode.COMPENSATION_FAILED,
        reason=Reason(ReasonCode.STEP_NOT_UNDONE, step=step, why=ending.reason),
        cause=cause,
    )


# -- confirmation ------------------------------------------------------------------------------------------


async def confirm_and_end(execution: Execution, branch: Branch, ended: WorkflowReturned) -> None:
    """Confirm what the function reserved, then end the run with its result."""
    follow_up = FollowUp(execution, branch, EntryKind.CONFIRM)
    try:
        await _confirm_reservations(follow_up)
    except FollowUpFailed as stuck:
        await execution.settle(stuck.outcome(execution))
    await execution.settle(replace(ended, run=execution.view))


async def _confirm_reservations(follow_up: FollowUp) -> None:
    pairs = find_steps_to_confirm(await follow_up.read(), follow_up.options)
    steps = follow_up.steps
    missing = [(row, confirm) for row, known in pairs if known is None and (confirm := steps[row.name].confirm)]
    if missing:
        await follow_up.plan((row, confirm, False, True) for row, confirm in missing)
        pairs = find_steps_to_confirm(await follow_up.read(), follow_up.options)
    for row, entry in pairs:
        confirm = steps[row.name].confirm
        if entry is not None and confirm is not None and entry.status not in _DONE:
            await follow_up.do(entry, confirm)


# -- rollback ----------------------------------------------------------------------------------------------


async def roll_back(execution: Execution, branch: Branch) -> None:
    """Undo what the run did, and end it."""
    await _Rollback(execution, branch).run()


class _Rollback:
    """The rollback of one run by one worker."""

    _run: RunRow
    _letter: LetterRow | None
    _cause: FailureReason
    _stopped_before: bool

    def __init__(self, execution: Execution, branch: Branch) -> None:
        self._execution = execution
        self._follow_up = FollowUp(execution, branch, EntryKind.UNDO)
        self._ends_as = RunStatus(execution.claimed.ends_as or RunStatus.COMPENSATED)

    async def run(self) -> None:
        """Continue the rollback wherever it is."""
        await self._load_cause()
        journal = await self._follow_up.read()
        effects = await self._load_effects(journal)
        options = self._follow_up.options
        if not read_ledger(journal) and find_passed_pivot(journal, effects, options) is not None:
            await self._end_run(forward=True)
            return
        try:
            rows = await self._plan_compensations(journal, effects)
            for row in rows:
                if not row.is_done:
                    await self._compensate(row)
        except FollowUpFailed as stuck:
            await self._execution.settle(stuck.outcome(self._execution))
            return
        await self._end_run(rows)

    async def _load_cause(self) -> None:
        """Read why the run is rolled back, and whether it has a letter."""
        execution = self._execution
        (case,) = await repeat_until_answered(
            lambda: execution.worker.store.cases([execution.claimed.public_id]), execution.clock
        )
        self._run, self._letter = case.run, None
        if case.letter is not None:
            self._letter = await repeat_until_answered(
                lambda: execution.worker.store.letter_of(execution.claimed.id), execution.clock
            )
        execution.view = replace(execution.view, letter_unwritten=case.letter is None)
        ending = _UNKNOWN_CAUSE if case.run.failure is None else FailureReason.from_json(case.run.failure)
        self._cause = ending.cause or ending
        self._stopped_before = ending.cause is not None

    async def _load_effects(self, journal: list[EntryRow]) -> tuple[StepEffect, ...]:
        execution = self._execution
        attempts = await repeat_until_answered(
            lambda: execution.worker.store.attempts(execution.claimed.id), execution.clock
        )
        return find_step_effects(journal, find_last_attempts(attempts), self._follow_up.options)

    # -- planning -------------------------------------------------------------------------------------

    async def _plan_compensations(
        self, journal: list[EntryRow], effects: tuple[StepEffect, ...]
    ) -> tuple[LedgerRow, ...]:
        """Record the whole ledger and return it."""
        steps = self._follow_up.steps
        unknown = [each.entry.name for each in effects if each.entry.name not in steps]
        if unknown:
            await self._wait_for_code(Reason(ReasonCode.COMPENSATION_UNKNOWN, steps=tuple(dict.fromkeys(unknown))))
        known = {row.undone.index for row in read_ledger(journal)}
        missing = [each for each in effects if each.entry.index not in known]
        wanted = [(each, undo) for each in missing if (undo := self._find_compensation(each)) is not None]
        if not wanted:
            return read_ledger(journal)
        await self._follow_up.plan(
            (each.entry, undo.step, each.uncertain, undo.uncertain or not each.uncertain) for each, undo in wanted
        )
        return read_ledger(await self._follow_up.read())

    def _find_compensation(self, each: StepEffect) -> Compensation | None:
        """Return what undoes a step: a reservation is always cancelled, the rest if the run rolls back."""
        step = self._follow_up.steps[each.entry.name]
        rolls_back = self._ends_as is RunStatus.COMPENSATED or self._execution.view.options.rollback
        return step.cancel or (step.undo if rolls_back else None)

    async def _wait_for_code(self, difference: Reason) -> None:
        """Release the run for a worker that has the code, or give up; it is not this worker's any more."""
        execution = self._execution
        outcome = await execution.worker.handle_code_change(execution.claimed, execution.view, difference)
        await execution.settle(outcome)
        execution.detach()
        raise RunDetached

    # -- undoing --------------------------------------------------------------------------------------

    async def _compensate(self, row: LedgerRow) -> None:
        step = self._follow_up.steps.get(row.entry.name)
        if step is None:
            missing = Reason(ReasonCode.COMPENSATION_MISSING, compensation=row.entry.name, step=row.undone.name)
            await self._wait_for_code(missing)
            return
        if isinstance(step.action, Manual):
            await self._assign_manual_task(row, step.action)
        try:
            await self._follow_up.do(row.entry, step)
        except FollowUpFailed as stuck:
            blame = _add_cause(stuck.ending, self._cause, row.undone.name)
            raise FollowUpFailed(blame, stuck.place, stuck.attempt) from None

    async def _assign_manual_task(self, row: LedgerRow, action: Manual) -> None:
        """Give a person instructions, and let the run wait for that without a worker."""
        execution = self._execution
        text = render_instructions(action, row.entry.input or "{}", row.undone.name)
        await execution.settle(
            ManualActionRequested(run=execution.view, place=_entry_position(row.entry), instructions=text)
        )
        execution.detach()
        raise RunDetached

    async def _end_run(self, rows: tuple[LedgerRow, ...] = (), *, forward: bool = False) -> None:
        await self._execution.settle(
            RollbackEnded(
                run=self._execution.view,
                ending=self._cause,
                ends_as=self._ends_as,
                fresh=self._is_unreported(),
                forward=forward,
                count=sum(not row.is_listed_only for row in rows),
                uncertain=tuple(row.undone.name for row in rows if row.is_listed_only),
            )
        )

    def _is_unreported(self) -> bool:
        """Return True if the failure was not reported yet: a rollback that stopped was, letter or not."""
        letter = self._letter
        if letter is None:
            return not self._stopped_before
        return letter.code != LetterCode.COMPENSATION_FAILED and letter.failure != self._run.failure
