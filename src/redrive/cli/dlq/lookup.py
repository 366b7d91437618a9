"""One decision on all letters that match a filter: say how many, ask, begin a set, wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, assert_never

import click
import msgspec

from redrive.app import Redrive
from redrive.cli.dlq.bulk import describe_bulk, follow_bulk
from redrive.cli.dlq.decision import DecisionOptions, render_plan
from redrive.cli.messages import CONFLICT, NOT_FOUND, REFUSED, CommandFailed, hint, rewrite_hints, worker_hint
from redrive.cli.options import find_letter_id, interruptible_prompt
from redrive.cli.output import echo_err, escape_line, on_terminal
from redrive.cli.target import Target, run_on
from redrive.core.states import LetterStatus
from redrive.desk.bulk import DryRunOfMany, LetterSet
from redrive.desk.models import DeadLetter, LetterOutcome, find_letter_outcome
from redrive.errors import Conflict, NotFound
from redrive.records import replace
from redrive.store.filters import LetterFilter

# -- How the work of a closed letter stands, and the command that leads on from there --------------------


class OutcomeAdvice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A sentence for the page, and a command with what it is for; no command where nothing leads on."""

    sentence: str
    purpose: str = ""
    title: str = ""
    command: tuple[str, ...] = ()


def advise_on_outcome(letter: DeadLetter) -> OutcomeAdvice | None:
    """How the work stands that a closed letter is about; None while the letter is not closed."""
    match find_letter_outcome(letter):
        case None:
            return None
        case LetterOutcome.SUCCEEDED:
            return _advise_inspection(letter, "It was run again since, and that went well. Nothing is left to do.")
        case LetterOutcome.PARTLY_SUCCEEDED:
            said = (
                "Its failed step alone was run again since. That step succeeded, and more would follow: the "
                "run is not finished."
            )
            return _advise_rerun(letter, said, purpose="go on with it", title="go on with it")
        case LetterOutcome.UNDONE:
            return _advise_inspection(letter, "What its run had done was undone. Nothing is left to do.")
        case LetterOutcome.CANCELLED:
            said = (
                "It was run again since, and was cancelled before it ended. Its work was not done, and a "
                "cancelled run does not go on: start a new one if the work is still wanted."
            )
            return _advise_inspection(letter, said)
        case LetterOutcome.REPLAY_RUNNING:
            run = _last_run_id(letter)
            return _advise_inspection(letter, f"It was run again since, as run {run}, which tells how that stands.")
        case LetterOutcome.FAILED_AGAIN:
            return _advise_rerun(letter, "It was run again since, and failed again.")
        case LetterOutcome.EXPIRED:
            return _advise_rerun(letter, "Nobody decided about it in time, so it expired. Its work was not done.")
        case LetterOutcome.CLOSED:
            return _advise_rerun(
                letter, _describe_closed(letter), purpose="run it again all the same", title="run anyway"
            )
        case _ as never:
            assert_never(never)


def _describe_closed(letter: DeadLetter) -> str:
    by = f" by {letter.closed_by}" if letter.closed_by else ""
    why = f": {escape_line(letter.resolution)}" if letter.resolution else ""
    return f"It was closed as {letter.status}{by}{why}. Nothing is left to do."


def _last_run_id(letter: DeadLetter) -> str:
    """The run that tells: that of the last replay, if there was one."""
    return letter.replays[-1].run_id if letter.replays else letter.run_id


def _advise_inspection(letter: DeadLetter, sentence: str) -> OutcomeAdvice:
    command = ("runs", "show", _last_run_id(letter))
    return OutcomeAdvice(sentence=sentence, purpose="see how it ended", title="how it ended", command=command)


def _advise_rerun(
    letter: DeadLetter, sentence: str, *, purpose: str = "run it again", title: str = "run it again"
) -> OutcomeAdvice:
    if letter.purged:
        return OutcomeAdvice(sentence=f"{sentence} Its run was removed since, so it cannot run again.")
    return OutcomeAdvice(sentence=sentence, purpose=purpose, title=title, command=("runs", "retry", letter.run_id))


# -- Dead letters as people name them, and what to say about one that cannot be acted on -----------------


T = TypeVar("T")


async def load_letter(app: Redrive, text: str) -> DeadLetter:
    """The letter that is meant, by its id, by its run's, or by a beginning of either."""
    id = await find_letter_id(app, text)
    try:
        return await app.dlq.get(id)
    except NotFound as error:
        raise CommandFailed(f"{error}; `{hint('dlq', 'list')}` shows those that are open", NOT_FOUND) from error


async def act_on_letter(letter: DeadLetter, act: Callable[[], Awaitable[T]]) -> T:
    """Do something about a letter; a conflict says which command leads on."""
    try:
        return await act()
    except Conflict as error:
        advice = _advise_on_conflict(letter)
        raise CommandFailed(f"{rewrite_hints(str(error))}{advice}", CONFLICT) from error


def require_open(letter: DeadLetter) -> None:
    """Say beforehand that a letter which nobody waits for cannot be closed."""
    if letter.status is not LetterStatus.OPEN:
        raise CommandFailed(f"{letter.id} is {letter.status} already, so it cannot be closed", CONFLICT)


def _advise_on_conflict(letter: DeadLetter) -> str:
    stands = advise_on_outcome(letter)
    if stands is not None:
        return f"\nTo {stands.purpose}: {hint(*stands.command)}" if stands.command else ""
    if letter.status is LetterStatus.REPLAYING:
        return f"\nTo follow it: {hint('runs', 'watch', letter.run_id)}"
    return f"\nTo see how it stands: {hint('dlq', 'show', letter.id)}"


def describe_letters(letters: list[DeadLetter]) -> str:
    """The letters as a question names them."""
    if len(letters) > 1:
        return f"{len(letters)} dead letters, {letters[0].id} to {letters[-1].id}"
    (letter,) = letters
    step = f", step {letter.step}" if letter.step else ""
    return f"dead letter {letter.id} ({letter.workflow}{step})"


# -- One decision on all letters that match a filter: say how many, ask, begin a set, wait for it --------


_TYPED_CONFIRMATION_FROM = 100  # from here on the number is typed, not agreed to
_MAX_REFUSALS = 5


class BulkDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on many letters: its words, how it is begun, and how it is tried where that can be done."""

    verb: str
    begin: Callable[[Redrive], Awaitable[LetterSet]]
    preview: Callable[[Redrive], Awaitable[DryRunOfMany]] | None = None


def run_bulk_decision(place: Target, where: LetterFilter, many: BulkDecision, asked: DecisionOptions) -> None:
    """Begin a set, unless it is only tried or nothing matches; `--wait` follows it."""
    begun = run_on(place, lambda app: _start_bulk(app, where, many, asked))
    if begun is None:
        return
    if asked.wait:
        follow_bulk(place, begun.id, asked.output)
        return
    asked.output.done(begun.id, begun, describe_bulk(begun))
    if on_terminal():
        echo_err(f"To follow it: {hint('dlq', 'sets', 'show', begun.id)}")


async def _start_bulk(
    app: Redrive, where: LetterFilter, many: BulkDecision, asked: DecisionOptions
) -> LetterSet | None:
    count = await app.dlq.count(replace(where, status=LetterStatus.OPEN))
    if asked.change.dry_run and many.preview is not None:
        plan = await many.preview(app)
        asked.output.done("", plan, "\n".join([*_render_bulk_plan(plan, many.verb), "Nothing was changed."]))
        return None
    if asked.change.dry_run or count == 0:
        would = (
            f"would {many.verb} {_format_letter_count(count)}"
            if count
            else "no open letter matches, so nothing was done"
        )
        asked.output.done("", {"total": count}, would)
        return None
    _confirm_count(count, many.verb, asked)
    begun = await many.begin(app)
    if not any(one.workers for one in await app.workflows.list()):
        echo_err(f"No worker is alive: it waits until one is started: {worker_hint()}")
    return begun


def _confirm_count(count: int, verb: str, asked: DecisionOptions) -> None:
    """A large number is typed by whoever means it."""
    change, what = asked.change, f"{verb.capitalize()} {_format_letter_count(count)}"
    if count < _TYPED_CONFIRMATION_FROM or change.yes:
        change.confirm(what)
        return
    change.require_yes(f"nothing was changed: say --yes to {verb} {_format_letter_count(count)} without being asked")
    with interruptible_prompt():
        typed = click.prompt(f"{what}? Type {count} to go on", default="", show_default=False, err=True)
    if typed.replace(",", "") != str(count):
        raise CommandFailed("nothing was changed", REFUSED)


def _render_bulk_plan(plan: DryRunOfMany, verb: str) -> list[str]:
    lines = [f"would {verb} {_describe_bulk_scope(plan)}"]
    if plan.refused:
        lines.append(f"{len(plan.refused):,} would be refused:")
        lines += (f"  {refusal.letter_id}: {refusal.reason}" for refusal in plan.refused[:_MAX_REFUSALS])
    if plan.sample:
        lines += ["one of the others:" if plan.refused else "for example:", *render_plan(plan.sample[0])]
    return lines


def _describe_bulk_scope(plan: DryRunOfMany) -> str:
    """The letters that the decision would be made on, as far as it was tried."""
    able = f"{plan.checked - len(plan.refused):,} of"
    if plan.checked < plan.total:
        return f"{able} the first {plan.checked:,} of {_format_letter_count(plan.total)}; the others were not tried"
    return f"{able} {_format_letter_count(plan.total)}" if plan.refused else _format_letter_count(plan.total)


def _format_letter_count(count: int) -> str:
    return f"{count:,} dead letter{'s' * (count != 1)}"
