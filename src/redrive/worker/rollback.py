"""Undoing what a run did: its compensations, one after the other, in the reverse order of completion.

read      the journal: what happened, what may have happened, was a pivot passed?
plan      one entry for each compensation, all of them in one commit
undo      the next one, until it succeeds; a task for a person puts the run down
end       as the run would have ended, or with a letter for the compensation that failed

Any worker may take this up at any point: everything it needs is in the journal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from redrive.actions import Manual
from redrive.core.classify import Category
from redrive.core.ending import Ending, LetterCode
from redrive.core.failure import Failure
from redrive.core.journal import EntryRow
from redrive.core.outcome import Handed, Undone
from redrive.core.saga import Happened, LedgerRow, happened, ledger, passed_pivot
from redrive.core.states import EntryKind, RunStatus
from redrive.errors import PutDown
from redrive.reasons import Reason, ReasonCode
from redrive.settle.settler import until_answered
from redrive.settle.view import last_tries
from redrive.worker.acting import instructions
from redrive.worker.following import Following, Stuck, blamed, place_of

if TYPE_CHECKING:
    from redrive.store.records import LetterRow, RunRow
    from redrive.worker.branch import Branch
    from redrive.worker.definition import Undo
    from redrive.worker.execution import Execution

__all__ = ["roll_back"]

_WHY = Reason(ReasonCode.RUN_ROLLED_BACK)
_UNKNOWN = Ending(
    failure=Failure.of(Category.UNKNOWN, str(_WHY), "redrive.RolledBack"),
    code=LetterCode.NON_RETRYABLE,
    reason=_WHY,
)


async def roll_back(execution: Execution, branch: Branch) -> None:
    """Undo what the run did, and end it."""
    await _Rollback(execution, branch).go_on()


class _Rollback:
    """One run that is being rolled back, in the hands of one worker."""

    _run: RunRow
    _letter: LetterRow | None
    _cause: Ending
    _stopped_before: bool

    def __init__(self, execution: Execution, branch: Branch) -> None:
        self._execution = execution
        self._following = Following(execution, branch, EntryKind.UNDO)
        self._ends_as = RunStatus(execution.claimed.ends_as or RunStatus.COMPENSATED)

    async def go_on(self) -> None:
        """Take it up wherever it is."""
        await self._remember()
        journal = await self._following.read()
        effects = await self._effects(journal)
        options = self._following.options
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
        """Why the run is rolled back, and whether a letter tells of it."""
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
        return happened(journal, last_tries(attempts), self._following.options)

    # -- planning -------------------------------------------------------------------------------------

    async def _planned(self, journal: list[EntryRow], effects: tuple[Happened, ...]) -> tuple[LedgerRow, ...]:
        """The whole ledger, recorded."""
        steps = self._following.steps
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
        await self._following.plan(
            (each.entry, undo.step, each.uncertain, undo.uncertain or not each.uncertain)
            for each, undo in wanted
        )
        return ledger(await self._following.read())

    def _undo_of(self, each: Happened) -> Undo | None:
        """What undoes a step: a reservation is cancelled in any case, the rest if the run is rolled back."""
        step = self._following.steps[each.entry.name]
        rolls_back = self._ends_as is RunStatus.COMPENSATED or self._execution.view.options.rollback
        return step.cancel or (step.undo if rolls_back else None)

    async def _wait_for_code(self, difference: Reason) -> None:
        """Leave the run for a worker that has the code, or give up; in either case it is out of our hands."""
        execution = self._execution
        outcome = await execution.worker.code_changed(execution.claimed, execution.view, difference)
        await execution.settle(outcome)
        execution.put_down()
        raise PutDown

    # -- undoing --------------------------------------------------------------------------------------

    async def _undo(self, row: LedgerRow) -> None:
        step = self._following.steps.get(row.entry.name)
        if step is None:
            missing = Reason(
                ReasonCode.COMPENSATION_MISSING, compensation=row.entry.name, step=row.undone.name
            )
            await self._wait_for_code(missing)
            return
        if isinstance(step.action, Manual):
            await self._hand_over(row, step.action)
        try:
            await self._following.do(row.entry, step)
        except Stuck as stuck:
            blame = blamed(stuck.ending, self._cause, row.undone.name)
            raise Stuck(blame, stuck.place, stuck.attempt) from None

    async def _hand_over(self, row: LedgerRow, action: Manual) -> None:
        """Tell a person what to do, and let the run wait for that without a worker."""
        execution = self._execution
        text = instructions(action, row.entry.input or "{}", row.undone.name)
        await execution.settle(Handed(run=execution.view, place=place_of(row.entry), instructions=text))
        execution.put_down()
        raise PutDown

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
        """True if nobody was told of the failure: a rollback that stopped was told of, letter or not."""
        letter = self._letter
        if letter is None:
            return not self._stopped_before
        return letter.code != LetterCode.COMPENSATION_FAILED and letter.failure != self._run.failure
