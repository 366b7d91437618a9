"""Rollback and confirmation: the steps that follow after the workflow function has ended.

A rollback undoes the steps of a run, one compensation after the other, in the reverse order of completion:

    read      the journal: what happened, what may have happened, was a pivot passed?
    plan      one entry for each compensation, all of them in one commit
    undo      the next one, until it succeeds; a manual task releases the run, and so does a child until it has ended
    end       as the run would have ended, or with a dead letter for the compensation that failed

A confirmation does so for reservations when the function has returned, in order of completion, before the run
succeeds. Nothing is undone after the first confirmation: one that fails becomes a dead letter, and a replay
continues with it.

Each is a journal entry like a step's, with attempts and retries. All entries are written before the first of
them begins, so any worker can continue from the journal at any point.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redrive.actions import Action, ApiCall, Manual, Notify, Sql
from redrive.core import saga
from redrive.core.children import is_answer, is_undone
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode, Stage
from redrive.core.journal import EntryRow, Journal, entry_key
from redrive.core.outcomes import (
    ChildAwaited,
    ChildUndone,
    EntryRef,
    FollowUpsPlanned,
    ManualActionRequested,
    PlannedFollowUp,
    RollbackEnded,
    RunIdle,
    ValueRecorded,
    WorkflowFailed,
    WorkflowReturned,
)
from redrive.core.run_options import StepOptions
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.errors import MisusedStep, PayloadError, RunDetached, StepFailed
from redrive.http.client import HttpClient, HttpRequest
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settings import AllowedHost
from redrive.settle.settler import find_last_attempts
from redrive.store.encryption.keyring import Unreadable
from redrive.store.sql_store import repeat_until_answered
from redrive.store.user_database import execute_on_user_database
from redrive.worker.attempt import Attempt
from redrive.worker.branches import current_scope
from redrive.worker.step_call import StepCall

if TYPE_CHECKING:
    from redrive.store.children import AwaitedRun
    from redrive.worker.backend import RollbackCause
    from redrive.worker.branches import Branch
    from redrive.worker.definitions import Step
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
        if self._client is None:
            self._client = HttpClient(self._allowed)
        answer = await self._client.send(
            HttpRequest(url=request.url, method=request.method, headers=headers, body=body, timeout=request.timeout)
        )
        answer.raise_for_status(f"{request.method} {action.origin}")

    async def execute(self, action: Sql, data: Mapping[str, Any]) -> int:
        """Execute the statement; return the number of rows that it changed."""
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
        raise MisusedStep(
            f"a declared action ({action.kind}) cannot be called: it runs in a rollback. "
            "In a test, use redrive.testing.engine"
        )
    # The fields that templates may name of the step that is undone, and of the step that undoes it.
    step = {
        "name": here.place.key.rpartition("/")[0].rpartition("/")[2].rpartition("#")[0],
        "idempotency_key": here.idempotency_key,
        "run_id": here.run_id,
        "tenant": here.tenant,
        "correlation_id": here.correlation_id,
    }
    data = {"input": input, "result": result, "step": step}
    runner = here.execution.worker.actions
    match action:
        case ApiCall():
            return await runner.call(action, data, here.idempotency_key)
        case Sql():
            return await runner.execute(action, data)
        case Notify():
            # Published, so that it is committed with the step's success, and returned for the step's record.
            message = {"channel": action.channel, "subject": f"{step['name']} was undone", "text": action.render(data)}
            here.publish(NOTIFY_TOPIC, message)
            return message
        case Manual():
            raise MisusedStep("a manual task is done by a user, not by an engine")


def render_instructions(action: Manual, text: str, step: str) -> str:
    """Return the instructions for a user. If a field is missing, its template is not filled in."""
    try:
        return action.render({**json.loads(text), "step": {"name": step}})
    except PayloadError as error:
        return f"{action.instructions} ({error})"


_CHILD_OPTIONS = StepOptions(action="child").to_json()
_FAILED = frozenset({StepStatus.FAILED, StepStatus.DLQ})
_DONE = frozenset({StepStatus.SUCCESS, StepStatus.SKIPPED})
_ROLLED_BACK_REASON = Reason(ReasonCode.RUN_ROLLED_BACK)
_UNKNOWN_CAUSE = FailureReason(
    failure=Failure.of(Category.UNKNOWN, str(_ROLLED_BACK_REASON), "redrive.RolledBack"),
    code=LetterCode.NON_RETRYABLE,
    reason=_ROLLED_BACK_REASON,
)


class FollowUpFailed(Exception):
    """A compensation or confirmation that failed for good; `ending` says how, and `place` where."""

    def __init__(self, ending: FailureReason, place: EntryRef | None = None, attempt: int = 1) -> None:
        super().__init__(str(ending.reason))
        self.ending = ending
        self.place = place
        self.attempt = attempt

    def outcome(self, execution: Execution) -> WorkflowFailed:
        """Return the outcome: a dead letter."""
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
            lambda: execution.worker.backend.journal(execution.claimed.id), execution.clock
        )
        execution.journal.continue_numbers(Journal(rows))
        return rows

    async def plan(self, steps: Iterable[tuple[EntryRow, Step[Any, Any] | None, bool, bool]]) -> None:
        """Record new entries, each from (entry to follow up, step to call, is it uncertain, does it run).

        The entry of a child has no step to call.
        """
        plan = []
        for entry, step, uncertain, runs in steps:
            if step is None:
                key = saga.follow_up_key(entry, saga.CHILD_UNDO)
                place = EntryRef(self._execution.journal.new_index(), key, self._kind, saga.CHILD_UNDO)
                plan.append(PlannedFollowUp(place=place, input=f'{{"run":{entry.output}}}', options=_CHILD_OPTIONS))
                continue
            for text in (entry.input, entry.output):
                if isinstance(text, Unreadable):
                    raise FollowUpFailed(self._make_input_failure(entry.name, PayloadError(text.why)))
            key = saga.follow_up_key(entry, step.name)
            plan.append(
                PlannedFollowUp(
                    place=EntryRef(self._execution.journal.new_index(), key, self._kind, step.name),
                    input=saga.build_undo_input(entry, declared=step.action is not None, uncertain=uncertain),
                    options=step.options_text,
                    runs=runs,
                )
            )
        if plan:
            await self._execution.settle(FollowUpsPlanned(run=self._execution.view, plan=tuple(plan)))

    async def do(self, entry: EntryRow, step: Step[Any, Any]) -> None:
        """Call the step of an entry until it succeeds; raise FollowUpFailed if it fails for good."""
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
            now = execution.clock.monotonic()
            await StepCall(execution, self._branch, step, place, entry.input or "{}", now).run(begun, args, kwargs)
        except StepFailed:
            known = execution.calls.find_failure(entry.key)
            assert known is not None
            raise FollowUpFailed(*known) from None
        finally:
            self._branch.busy -= 1

    def _make_input_failure(self, name: str, error: PayloadError) -> FailureReason:
        return FailureReason(
            failure=self._execution.capture(error),
            code=LetterCode.VALIDATION_FAILED,
            reason=Reason(ReasonCode.STEP_INPUT_UNUSABLE, step=name, why=Reason.of_error(error)),
            stage=Stage.FETCH,
            step=name,
        )


def _entry_position(entry: EntryRow) -> EntryRef:
    return EntryRef(entry.index, entry.key, entry.kind, entry.name)


async def confirm_and_end(execution: Execution, branch: Branch, ended: WorkflowReturned) -> None:
    """Confirm the reservations of the function, then end the run with its result."""
    follow_up = FollowUp(execution, branch, EntryKind.CONFIRM)
    steps = follow_up.steps
    try:
        pairs = saga.find_steps_to_confirm(await follow_up.read(), follow_up.options)
        missing = [(row, confirm) for row, known in pairs if known is None and (confirm := steps[row.name].confirm)]
        if missing:
            await follow_up.plan((row, confirm, False, True) for row, confirm in missing)
            pairs = saga.find_steps_to_confirm(await follow_up.read(), follow_up.options)
        for row, entry in pairs:
            confirm = steps[row.name].confirm
            if entry is not None and confirm is not None and entry.status not in _DONE:
                await follow_up.do(entry, confirm)
    except FollowUpFailed as failed:
        await execution.settle(failed.outcome(execution))  # it ends the run, so this does not return
    await execution.settle(replace(ended, run=execution.view))


async def roll_back(execution: Execution, branch: Branch) -> None:
    """Undo the steps of the run, and end it."""
    await _Rollback(execution, branch).run()


class _Rollback:
    """The rollback of one run by one worker."""

    _recorded: RollbackCause
    _cause: FailureReason
    _stopped_before: bool

    def __init__(self, execution: Execution, branch: Branch) -> None:
        self._execution = execution
        self._follow_up = FollowUp(execution, branch, EntryKind.UNDO)
        self._ends_as = RunStatus(execution.claimed.ends_as or RunStatus.COMPENSATED)

    async def run(self) -> None:
        """Continue the rollback wherever it is."""
        execution, backend = self._execution, self._execution.worker.backend
        await self._load_cause()
        journal = await self._follow_up.read()
        attempts = await repeat_until_answered(lambda: backend.attempts(execution.claimed.id), execution.clock)
        options = self._follow_up.options
        effects = saga.find_step_effects(journal, find_last_attempts(attempts), options)
        if not saga.read_ledger(journal) and saga.find_passed_pivot(journal, effects, options) is not None:
            await self._end_run(forward=True)
            return
        try:
            rows = await self._plan_compensations(journal, effects)
            for row in rows:
                if row.is_done:
                    continue
                await (self._undo_child(row) if row.is_child else self._compensate(row))
            rows = saga.read_ledger(await self._follow_up.read()) if any(row.is_child for row in rows) else rows
        except FollowUpFailed as failed:
            await execution.settle(failed.outcome(execution))
            return
        await self._end_run(rows)

    async def _load_cause(self) -> None:
        """Read why the run is rolled back, and whether it has a letter."""
        execution = self._execution
        self._recorded = recorded = await repeat_until_answered(
            lambda: execution.worker.backend.rollback_cause(execution.claimed), execution.clock
        )
        execution.view = replace(execution.view, letter_unwritten=not recorded.has_letter)
        ending = _UNKNOWN_CAUSE if recorded.failure is None else FailureReason.from_json(recorded.failure)
        self._cause = ending.cause or ending
        self._stopped_before = ending.cause is not None

    async def _plan_compensations(
        self, journal: list[EntryRow], effects: tuple[saga.StepEffect, ...]
    ) -> tuple[saga.LedgerRow, ...]:
        """Record the whole ledger and return it."""
        steps = self._follow_up.steps
        unknown = [each.entry.name for each in effects if each.entry.name not in steps]
        if unknown:
            await self._wait_for_code(Reason(ReasonCode.COMPENSATION_UNKNOWN, steps=tuple(dict.fromkeys(unknown))))
        known = {row.undone.index for row in saga.read_ledger(journal)}
        missing = [each for each in effects if each.entry.index not in known]
        # A reservation is always cancelled. Other steps are undone if the run rolls back.
        rolls_back = self._ends_as is RunStatus.COMPENSATED or self._execution.view.options.rollback
        if rolls_back:
            children = await self._stop_children(journal)
            missing += [each for each in children if each.entry.index not in known]
        plan: list[tuple[EntryRow, Step[Any, Any] | None, bool, bool]] = []
        for each in saga.sort_effects(missing, journal):
            if each.entry.kind is EntryKind.START:
                plan.append((each.entry, None, False, True))
                continue
            step = steps[each.entry.name]
            undo = step.cancel or (step.undo if rolls_back else None)
            if undo is not None:
                plan.append((each.entry, undo.step, each.uncertain, undo.uncertain or not each.uncertain))
        if not plan:
            return saga.read_ledger(journal)
        await self._follow_up.plan(plan)
        return saga.read_ledger(await self._follow_up.read())

    async def _stop_children(self, journal: list[EntryRow]) -> tuple[saga.StepEffect, ...]:
        """Cancel the children that are under way; return the starts of all. A start that a crash hid is recorded."""
        execution = self._execution
        backend, view = execution.worker.backend, execution.view
        children = await repeat_until_answered(lambda: backend.children(view), execution.clock)
        for child in children:
            if child.under_way:
                await self._end_child(child.run_id, undo=False)
        known = {row.output for row in journal if row.kind is EntryKind.START}
        lost = [child for child in children if json.dumps(child.run_id) not in known]
        for child in lost:
            index, name = execution.journal.new_index(), f"redrive.start {child.workflow}"
            place = EntryRef(index, entry_key("", name, index), EntryKind.START, name)
            done = execution.journal.new_done_number()
            await execution.settle(ValueRecorded(run=view, place=place, output=json.dumps(child.run_id), done=done))
        if lost:
            journal[:] = await self._follow_up.read()
        return saga.find_child_effects(journal, {child.run_id for child in children})

    async def _end_child(self, run_id: str, *, undo: bool) -> AwaitedRun:
        """Cancel or roll back a child; return its state. Detach the run if it was taken away."""
        execution = self._execution
        backend, view = execution.worker.backend, execution.view
        with execution.calls.ask_store():
            found = await repeat_until_answered(lambda: backend.end_child(view, run_id, undo=undo), execution.clock)
        if found is None or found.fence != view.fence:
            execution.detach()
            raise RunDetached
        return found

    async def _undo_child(self, row: saga.LedgerRow) -> None:
        """Have a child rolled back, and wait for its end without a worker."""
        execution, place, run_id = self._execution, _entry_position(row.entry), str(json.loads(row.undone.output or ""))
        awaited = False
        while True:
            found = await self._end_child(run_id, undo=True)
            end = found.end
            if end is None or is_answer(end.status, end.open_letter, letters=False):
                left = end is None or not is_undone(end.status, end.ends_as, end.executed)
                output = json.dumps({"run": run_id, "status": None if end is None else end.status.value})
                await execution.settle(ChildUndone(run=execution.view, place=place, output=output, left=left))
                return
            if awaited:
                # The store makes the run due at once if the child has ended since the last look.
                await execution.settle(RunIdle(run=execution.view, delay=None, hold=0, seen=found.wakeups))
                execution.detach()
                raise RunDetached
            await execution.settle(ChildAwaited(run=execution.view, place=place, subject=end.subject))
            awaited = True

    async def _wait_for_code(self, difference: Reason) -> None:
        """Release the run for a worker that has the code, or give up; then detach it."""
        execution = self._execution
        outcome = await execution.worker.handle_code_change(execution.claimed, execution.view, difference)
        await execution.settle(outcome)
        execution.detach()
        raise RunDetached

    async def _compensate(self, row: saga.LedgerRow) -> None:
        step = self._follow_up.steps.get(row.entry.name)
        if step is None:
            missing = Reason(ReasonCode.COMPENSATION_MISSING, compensation=row.entry.name, step=row.undone.name)
            await self._wait_for_code(missing)
            return
        if isinstance(step.action, Manual):
            await self._assign_manual_task(row, step.action)
        try:
            await self._follow_up.do(row.entry, step)
        except FollowUpFailed as failed:
            ending = replace(
                failed.ending,
                code=LetterCode.COMPENSATION_FAILED,
                reason=Reason(ReasonCode.STEP_NOT_UNDONE, step=row.undone.name, why=failed.ending.reason),
                cause=self._cause,
            )
            raise FollowUpFailed(ending, failed.place, failed.attempt) from None

    async def _assign_manual_task(self, row: saga.LedgerRow, action: Manual) -> None:
        """Record instructions for a user, and let the run wait for that without a worker."""
        execution = self._execution
        text = render_instructions(action, row.entry.input or "{}", row.undone.name)
        await execution.settle(
            ManualActionRequested(run=execution.view, place=_entry_position(row.entry), instructions=text)
        )
        execution.detach()
        raise RunDetached

    async def _end_run(self, rows: tuple[saga.LedgerRow, ...] = (), *, forward: bool = False) -> None:
        # The failure was reported before if a rollback had stopped, or if the letter contains it.
        recorded = self._recorded
        if recorded.letter_code is None:
            unreported = not self._stopped_before
        else:
            unreported = (
                recorded.letter_code != LetterCode.COMPENSATION_FAILED and recorded.letter_failure != recorded.failure
            )
        await self._execution.settle(
            RollbackEnded(
                run=self._execution.view,
                ending=self._cause,
                ends_as=self._ends_as,
                fresh=unreported,
                forward=forward,
                count=sum(not row.is_listed_only for row in rows),
                uncertain=tuple(row.undone.name for row in rows if row.is_listed_only and not row.is_child),
                left=tuple(str(json.loads(row.undone.output or "")) for row in rows if row.is_left),
                succeeded=recorded.succeeded,
            )
        )
