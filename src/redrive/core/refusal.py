"""What to record instead of an outcome whose rows the store refused for what they contain."""

from __future__ import annotations

from dataclasses import replace

from redrive.core.classify import Category
from redrive.core.ending import Ending, LetterCode, Stage
from redrive.core.failure import Failure
from redrive.core.options import StepOptions
from redrive.core.outcome import (
    Began,
    Ended,
    Escaped,
    Handed,
    Noted,
    Outcome,
    Parked,
    Planned,
    Raised,
    Returned,
    Undone,
)
from redrive.reasons import Reason, ReasonCode

__all__ = ["instead_of"]


def instead_of(outcome: Outcome, refusal: str) -> Outcome:
    """The nearest outcome that carries none of the refused data: the failure it amounts to.

    A result that cannot be stored fails its step, a failure that cannot be stored is replaced by a
    plain one, and so is what belongs to the run as a whole.
    """
    reason = Reason(ReasonCode.STORE_REFUSED_DATA, why=refusal)
    failure = Failure.of(Category.INTERNAL, str(reason), error_type=_TYPE)
    match outcome:
        case Returned():
            return Raised(
                run=outcome.run,
                place=outcome.place,
                attempt=outcome.attempt,
                began_ago=outcome.began_ago,
                first_ago=outcome.began_ago,
                done=outcome.done,
                input="null",
                failure=failure,
                step=StepOptions(),
                cause=LetterCode.INFRASTRUCTURE_FAILURE,
                why=reason,
                stage=Stage.COMMIT,
                resumes=outcome.resumes,
                admitted=outcome.admitted,
            )
        case Raised():
            return replace(
                outcome,
                input="null",
                failure=failure,
                cause=LetterCode.INFRASTRUCTURE_FAILURE,
                why=reason,
                stage=Stage.COMMIT,
            )
        case Began() | Parked():
            return replace(outcome, input="null")
        case Noted():
            return _escaped(outcome, failure, reason)
        case Handed():
            return replace(outcome, instructions="what is to be done cannot be shown; see the step's input")
        case Ended() | Escaped() | Planned() | Undone():
            return _escaped(outcome, failure, reason)
        case _:
            return outcome


_TYPE = "redrive.errors.DataRefused"


def _escaped(
    outcome: Noted | Ended | Escaped | Planned | Undone, failure: Failure, reason: Reason
) -> Escaped:
    undoing = outcome.run.undoing
    code = LetterCode.COMPENSATION_FAILED if undoing else LetterCode.INFRASTRUCTURE_FAILURE
    ending = Ending(failure=failure, code=code, reason=reason, stage=Stage.COMMIT)
    rolls_back = isinstance(outcome, Escaped) and outcome.rolls_back
    return Escaped(run=outcome.run, ending=ending, rolls_back=rolls_back)
