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

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from redrive.actions import Manual
from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import Ending, LetterCode, Stage
from redrive.core.journal import EntryRow, Journal
from redrive.core.outcomes import Ended, Escaped, Handed, Place, Planned, Undoing, Undone
from redrive.core.run_options import StepOptions
from redrive.core.saga import (
    Happened,
    LedgerRow,
    follow_key,
    happened,
    ledger,
    passed_pivot,
    to_confirm,
    undo_input,
)
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.errors import PayloadError, RunDetached, StepFailed
from redrive.reasons import Reason, ReasonCode
from redrive.records import replace
from redrive.settle.settler import last_tries
from redrive.store.encryption.keyring import Unreadable
from redrive.store.session import until_answered
from redrive.worker.actions import instructions
from redrive.worker.step_call import StepCall

if TYPE_CHECKING:
    from redrive.store.records import LetterRow, RunRow
    from redrive.worker.branches import Branch
    from redrive.worker.definitions import Step, Undo
    from redrive.worker.execution import Execution

__all__ = ["confirm_all", "roll_back"]

_FAILED = frozenset({StepStatus.FAILED, StepStatus.DLQ})
_DONE = frozenset({StepStatus.SUCCESS, StepStatus.SKIPPED})
_WHY = Reason(ReasonCode.RUN_ROLLED_BACK)
_UNKNOWN = Ending(
    failure=Failure.of(Category.UNKNOWN, str(_WHY), "redrive.RolledBack"),
    code=LetterCode.NON_RETRYABLE,
    reason=_WHY,
)


# -- entries that follow the function ----------------------------------------------------------------------


class Stuck(Exception):
    """A compensation or confirmation failed for good; `ending` says how, and `place` where."""

    def __init__(self, ending: Ending, place: Place | None = None, attempt: int = 1) -> None:
        super().__init__(str(ending.reason))
        self.ending = ending
        self.place = place
        self.attempt = attempt

    def outcome(self, execution: Execution) -> Escaped:
        """Return the outcome: a letter."""
        return Escaped(run=execution.view, ending=self.ending, place=self.place, attempt=self.attempt)


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
        rows = await until_answered(
            lambda: execution.worker.store.journal(execution.claimed.id), execution.clock
        )
        execution.journal.number_behind(Journal(rows))
        return rows

    async def plan(self, wanted: Iterable[tuple[EntryRow, Step[Any, Any], bool, bool]]) -> None:
        """Record what is to be done: about which entry, by which step, how certain, if at all."""
        plan = tuple(self._undoing(*each) for each in wanted)
        if plan:
            await self._execution.settle(Planned(run=self._execution.view, plan=plan))

    def _undoing(self, entry: EntryRow, step: Step[Any, Any], uncertain: bool, runs: bool) -> Undoing:
        for text in (entry.input, entry.output):
            if isinstance(text, Unreadable):
                raise Stuck(self._unusable(entry.name, PayloadError(text.why)))
        return Undoing(
            place=Place(
                self._execution.journal.new_index(), follow_key(entry, step.name), self._kind, step.name
            ),
            input=undo_input(entry, declared=step.action is not None, uncertain=uncertain),
            options=step.options_text,
            runs=runs,
        )

    async def do(self, entry: EntryRow, step: Step[Any, Any]) -> None:
        """Call the step of an entry until it succeeds; Stuck if it fails for good."""
        execution, place = self._execution, _place_of(entry)
        if entry.status in _FAILED:
            raise Stuck(Ending.from_json(entry.failure or ""), place, entry.attempt)
        try:
            args, kwargs = step.signature.decode(entry.input or "{}")
        except PayloadError as error:
            raise Stuck(self._unusable(entry.name, error), place, entry.attempt) from None
        self._branch.go_in()
        try:
            begun = None if entry.status is StepStatus.PENDING else entry
            await StepCall(execution, self._branch, step, place, entry.input or "{}").run(begun, args, kwargs)
        except StepFailed:
            known = execution.requests.failure_of(entry.key)
            assert known is not None
            raise Stuck(*known) from None
        finally:
            self._branch.come_out()

    def _unusable(self, name: str, error: PayloadError) -> Ending:
        return Ending(
            failure=self._execution.capture(error),
            code=LetterCode.VALIDATION_FAILED,
            reason=Reason(ReasonCode.STEP_INPUT_UNUSABLE, step=name, why=Reason.of_error(error)),
            stage=Stage.INPUT,
            step=name,
        )


def _place_of(entry: EntryRow) -> Place:
    """Return the position of an entry."""
    return Place(entry.index, entry.key, entry.kind, entry.name)


def _blame(ending: Ending, cause: Ending, step: str) -> Ending:
    """Return the failure of a compensation, with why the run was rolled back."""
    return replace(
        ending,
        code=LetterCode.COMPENSATION_FAILED,
        reason=Reason(ReasonCode.STEP_NOT_UNDONE, step=step, why=ending.reason),
        cause=cause,
    )


# -- confirmation ------------------------------------------------------------------------------------------


async def confirm_all(execution: Execution, branch: Branch, ended: Ended) -> None:
    """Confirm what the function reserved, then end the run with its result."""
    follow_up = FollowUp(execution, branch, EntryKind.CONFIRM)
    try:
        await _confirm(follow_up)
    except Stuck as stuck:
        await execution.settle(stuck.outcome(execution))
    await execution.settle(replace(ended, run=execution.view))


async def _confirm(follow_up: FollowUp) -> None:
    pairs = to_confirm(await follow_up.read(), follow_up.options)
    steps = follow_up.steps
    missing = [
        (row, confirm) for row, known in pairs if known is None and (confirm := steps[row.name].confirm)
    ]
    if missing:
        await follow_up.plan((row, confirm, False, True) for row, confirm in missing)
        pairs = to_confirm(await follow_up.read(), follow_up.options)
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
    _cause: Ending
    _stopped_before: bool

    def __init__(self, execution: Execution, branch: Branch) -> None:
        self._execution = execution
        self._follow_up = FollowUp(execution, branch, EntryKind.UNDO)
        self._ends_as = RunStatus(execution.claimed.ends_as or RunStatus.COMPENSATED)

    async def run(self) -> None:
        """Continue the rollback wherever it is."""
        await self._remember()
        journal = await self._follow_up.read()
        effects = await self._effects(journal)
        options = self._follow_up.options
        if not ledger(journal) and passed_pivot(journal, effects, options) is not None:
            await self._end(forward=True)
            return
        try:
            rows = await self._planned(journal, effects)
            for row in rows:
                if not row.is_done:
                    await self._undo(row)
        except Stuck as stuck:
            await self._execution.settle(stuck.outcome(self._execution))
            return
        await self._end(rows)

    async def _remember(self) -> None:
        """Read why the run is rolled back, and whether it has a letter."""
        execution = self._execution
        (case,) = await until_answered(
            lambda: execution.worker.store.cases([execution.claimed.public_id]), execution.clock
        )
        self._run, self._letter = case.run, None
        if case.letter is not None:
            self._letter = await until_answered(
                lambda: execution.worker.store.letter_of(execution.claimed.id), execution.clock
            )
        execution.view = replace(execution.view, unwritten=case.letter is None)
        ending = _UNKNOWN if case.run.failure is None else Ending.from_json(case.run.failure)
        self._cause = ending.cause or ending
        self._stopped_before = ending.cause is not None

    async def _effects(self, journal: list[EntryRow]) -> tuple[Happened, ...]:
        execution = self._execution
        attempts = await until_answered(
            lambda: execution.worker.store.attempts(execution.claimed.id), execution.clock
        )
        return happened(journal, last_tries(attempts), self._follow_up.options)

    # -- planning -------------------------------------------------------------------------------------

    async def _planned(self, journal: list[EntryRow], effects: tuple[Happened, ...]) -> tuple[LedgerRow, ...]:
        """Record the whole ledger and return it."""
        steps = self._follow_up.steps
        unknown = [each.entry.name for each in effects if each.entry.name not in steps]
        if unknown:
            await self._wait_for_code(
                Reason(ReasonCode.COMPENSATION_UNKNOWN, steps=tuple(dict.fromkeys(unknown)))
            )
        known = {row.undone.index for row in ledger(journal)}
        missing = [each for each in effects if each.entry.index not in known]
        wanted = [(each, undo) for each in missing if (undo := self._undo_of(each)) is not None]
        if not wanted:
            return ledger(journal)
        await self._follow_up.plan(
            (each.entry, undo.step, each.uncertain, undo.uncertain or not each.uncertain)
            for each, undo in wanted
        )
        return ledger(await self._follow_up.read())

    def _undo_of(self, each: Happened) -> Undo | None:
        """Return what undoes a step: a reservation is always cancelled, the rest if the run rolls back."""
        step = self._follow_up.steps[each.entry.name]
        rolls_back = self._ends_as is RunStatus.COMPENSATED or self._execution.view.options.rollback
        return step.cancel or (step.undo if rolls_back else None)

    async def _wait_for_code(self, difference: Reason) -> None:
        """Release the run for a worker that has the code, or give up; it is not this worker's any more."""
        execution = self._execution
        outcome = await execution.worker.code_changed(execution.claimed, execution.view, difference)
        await execution.settle(outcome)
        execution.detach()
        raise RunDetached

    # -- undoing --------------------------------------------------------------------------------------

    async def _undo(self, row: LedgerRow) -> None:
        step = self._follow_up.steps.get(row.entry.name)
        if step is None:
            missing = Reason(
                ReasonCode.COMPENSATION_MISSING, compensation=row.entry.name, step=row.undone.name
            )
            await self._wait_for_code(missing)
            return
        if isinstance(step.action, Manual):
            await self._assign(row, step.action)
        try:
            await self._follow_up.do(row.entry, step)
        except Stuck as stuck:
            blame = _blame(stuck.ending, self._cause, row.undone.name)
            raise Stuck(blame, stuck.place, stuck.attempt) from None

    async def _assign(self, row: LedgerRow, action: Manual) -> None:
        """Give a person instructions, and let the run wait for that without a worker."""
        execution = self._execution
        text = instructions(action, row.entry.input or "{}", row.undone.name)
        await execution.settle(Handed(run=execution.view, place=_place_of(row.entry), instructions=text))
        execution.detach()
        raise RunDetached

    async def _end(self, rows: tuple[LedgerRow, ...] = (), *, forward: bool = False) -> None:
        await self._execution.settle(
            Undone(
                run=self._execution.view,
                ending=self._cause,
                ends_as=self._ends_as,
                fresh=self._is_fresh(),
                forward=forward,
                count=sum(not row.is_left_alone for row in rows),
                uncertain=tuple(row.undone.name for row in rows if row.is_left_alone),
            )
        )

    def _is_fresh(self) -> bool:
        """Return True if the failure was not reported yet: a rollback that stopped was, letter or not."""
        letter = self._letter
        if letter is None:
            return not self._stopped_before
        return letter.code != LetterCode.COMPENSATION_FAILED and letter.failure != self._run.failure
