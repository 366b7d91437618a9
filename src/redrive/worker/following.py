"""What is done about steps when the workflow function has ended: shared by rollbacks and confirmations.

Each is a journal entry like a step's, tried, retried and recorded in the same way. The entries are written
down before the first of them begins, so that whoever goes on with them finds all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redrive.core.ending import Ending, LetterCode, Stage
from redrive.core.journal import EntryRow
from redrive.core.options import StepOptions
from redrive.core.outcome import Escaped, Place, Planned, Undoing
from redrive.core.saga import follow_key, undo_input
from redrive.core.states import EntryKind, StepStatus
from redrive.errors import PayloadError, StepFailed
from redrive.reasons import Reason, ReasonCode
from redrive.settle.settler import until_answered
from redrive.store.seal import is_sealed, why_sealed
from redrive.worker.tries import Tries

if TYPE_CHECKING:
    from redrive.worker.branch import Branch
    from redrive.worker.definition import Step
    from redrive.worker.execution import Execution

__all__ = ["Following", "Stuck"]

_FAILED = frozenset({StepStatus.FAILED, StepStatus.DLQ})


class Stuck(Exception):
    """Something that had to be done failed for good; `ending` says how, and `place` where."""

    def __init__(self, ending: Ending, place: Place | None = None, attempt: int = 1) -> None:
        super().__init__(str(ending.reason))
        self.ending = ending
        self.place = place
        self.attempt = attempt

    def outcome(self, execution: Execution) -> Escaped:
        """What it amounts to: a letter."""
        return Escaped(run=execution.view, ending=self.ending, place=self.place, attempt=self.attempt)


class Following:
    """The journal of a run whose function has ended, and what is added to it."""

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
        """What is known of them without calling them."""
        return {name: step.options for name, step in self.steps.items()}

    async def read(self) -> list[EntryRow]:
        """The journal as it stands. New entries are numbered behind it."""
        execution = self._execution
        rows = await until_answered(
            lambda: execution.worker.store.journal(execution.claimed.id), execution.clock
        )
        execution.number_from(rows)
        return rows

    async def plan(self, wanted: Iterable[tuple[EntryRow, Step[Any, Any], bool, bool]]) -> None:
        """Write down what is to be done: about which entry, by which step, how certain, if at all."""
        plan = tuple(self._undoing(*each) for each in wanted)
        if plan:
            await self._execution.settle(Planned(run=self._execution.view, plan=plan))

    def _undoing(self, entry: EntryRow, step: Step[Any, Any], uncertain: bool, runs: bool) -> Undoing:
        for text in (entry.input, entry.output):
            if text is not None and is_sealed(text):
                raise Stuck(self._unusable(entry.name, PayloadError(why_sealed(text))))
        return Undoing(
            place=Place(self._execution.next_index(), follow_key(entry, step.name), self._kind, step.name),
            input=undo_input(entry, declared=step.action is not None, uncertain=uncertain),
            options=step.options_text,
            runs=runs,
        )

    async def do(self, entry: EntryRow, step: Step[Any, Any]) -> None:
        """Do what an entry says, until it succeeds; Stuck if it fails for good."""
        execution, place = self._execution, place_of(entry)
        if entry.status in _FAILED:
            raise Stuck(Ending.from_json(entry.failure or ""), place, entry.attempt)
        try:
            args, kwargs = step.signature.decode(entry.input or "{}")
        except PayloadError as error:
            raise Stuck(self._unusable(entry.name, error), place, entry.attempt) from None
        self._branch.go_in()
        try:
            begun = None if entry.status is StepStatus.PENDING else entry
            await Tries(execution, self._branch, step, place, entry.input or "{}").until_settled(
                begun, args, kwargs
            )
        except StepFailed:
            raise Stuck(*execution.endings[entry.key]) from None
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


def place_of(entry: EntryRow) -> Place:
    """Where an entry stands."""
    return Place(entry.index, entry.key, entry.kind, entry.name)


def blamed(ending: Ending, cause: Ending, step: str) -> Ending:
    """The failure of a compensation, with what the run was rolled back for."""
    return replace(
        ending,
        code=LetterCode.COMPENSATION_FAILED,
        reason=Reason(ReasonCode.STEP_NOT_UNDONE, step=step, why=ending.reason),
        cause=cause,
    )
