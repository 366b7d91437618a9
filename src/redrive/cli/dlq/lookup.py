"""One decision on all letters that match a filter: say how many, ask, begin a set, wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar, assert_never

import click

from redrive.app import Redrive
from redrive.cli.dlq.bulk import follow, told
from redrive.cli.dlq.decision import Asked, sentences
from redrive.cli.messages import CONFLICT, NOT_FOUND, REFUSED, Stopped, hint, rewritten, worker_hint
from redrive.cli.options import asking, find_letter
from redrive.cli.output import clean, on_terminal, say
from redrive.cli.place import Place, ask
from redrive.core.states import LetterStatus
from redrive.desk.bulk import DryRunOfMany, LetterSet
from redrive.desk.models import Aftermath, DeadLetter, aftermath
from redrive.errors import Conflict, NotFound
from redrive.frozen import dataclass
from redrive.store.filters import LetterFilter

__all__ = [
    "Many",
    "Standing",
    "act_on",
    "decide_on_many",
    "found_letter",
    "must_be_open",
    "named",
    "standing",
]


# -- How the work of a closed letter stands, and the command that leads on from there --------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A sentence for the page, and a command with what it is for; no command where nothing leads on."""

    sentence: str
    aim: str = ""
    title: str = ""
    command: tuple[str, ...] = ()


def standing(letter: DeadLetter) -> Standing | None:
    """How the work stands that a closed letter is about; None while the letter is not closed."""
    match aftermath(letter):
        case None:
            return None
        case Aftermath.SUCCEEDED:
            return _ended(letter, "It was run again since, and that went well. Nothing is left to do.")
        case Aftermath.IN_PART:
            said = (
                "Its failed step alone was run again since. That step succeeded, and more would follow: the "
                "run is not finished."
            )
            return _again(letter, said, aim="go on with it", title="go on with it")
        case Aftermath.UNDONE:
            return _ended(letter, "What its run had done was undone. Nothing is left to do.")
        case Aftermath.CANCELLED:
            said = (
                "It was run again since, and was cancelled before it ended. Its work was not done, and a "
                "cancelled run does not go on: start a new one if the work is still wanted."
            )
            return _ended(letter, said)
        case Aftermath.GOES_ON:
            run = _run(letter)
            return _ended(letter, f"It was run again since, as run {run}, which tells how that stands.")
        case Aftermath.FAILED_AGAIN:
            return _again(letter, "It was run again since, and failed again.")
        case Aftermath.EXPIRED:
            return _again(letter, "Nobody decided about it in time, so it expired. Its work was not done.")
        case Aftermath.CLOSED:
            return _again(letter, _closed(letter), aim="run it again all the same", title="run anyway")
        case _ as never:
            assert_never(never)


def _closed(letter: DeadLetter) -> str:
    by = f" by {letter.closed_by}" if letter.closed_by else ""
    why = f": {clean(letter.resolution)}" if letter.resolution else ""
    return f"It was closed as {letter.status}{by}{why}. Nothing is left to do."


def _run(letter: DeadLetter) -> str:
    """The run that tells: that of the last replay, if there was one."""
    return letter.replays[-1].run_id if letter.replays else letter.run_id


def _ended(letter: DeadLetter, sentence: str) -> Standing:
    command = ("runs", "show", _run(letter))
    return Standing(sentence=sentence, aim="see how it ended", title="how it ended", command=command)


def _again(
    letter: DeadLetter, sentence: str, *, aim: str = "run it again", title: str = "run it again"
) -> Standing:
    if letter.purged:
        return Standing(sentence=f"{sentence} Its run was removed since, so it cannot run again.")
    return Standing(sentence=sentence, aim=aim, title=title, command=("runs", "retry", letter.run_id))


# -- Dead letters as people name them, and what to say about one that cannot be acted on -----------------


T = TypeVar("T")


async def found_letter(app: Redrive, text: str) -> DeadLetter:
    """The letter that is meant, by its id, by its run's, or by a beginning of either."""
    id = await find_letter(app, text)
    try:
        return await app.dlq.get(id)
    except NotFound as error:
        raise Stopped(f"{error}; `{hint('dlq', 'list')}` shows those that are open", NOT_FOUND) from error


async def act_on(letter: DeadLetter, act: Callable[[], Awaitable[T]]) -> T:
    """Do something about a letter; a conflict says which command leads on."""
    try:
        return await act()
    except Conflict as error:
        advice = _advice(letter)
        raise Stopped(f"{rewritten(str(error))}{advice}", CONFLICT) from error


def must_be_open(letter: DeadLetter) -> None:
    """Say beforehand that a letter which nobody waits for cannot be closed."""
    if letter.status is not LetterStatus.OPEN:
        raise Stopped(f"{letter.id} is {letter.status} already, so it cannot be closed", CONFLICT)


def _advice(letter: DeadLetter) -> str:
    stands = standing(letter)
    if stands is not None:
        return f"\nTo {stands.aim}: {hint(*stands.command)}" if stands.command else ""
    if letter.status is LetterStatus.REPLAYING:
        return f"\nTo follow it: {hint('runs', 'watch', letter.run_id)}"
    return f"\nTo see how it stands: {hint('dlq', 'show', letter.id)}"


def named(letters: list[DeadLetter]) -> str:
    """The letters as a question names them."""
    if len(letters) > 1:
        return f"{len(letters)} dead letters, {letters[0].id} to {letters[-1].id}"
    (letter,) = letters
    step = f", step {letter.step}" if letter.step else ""
    return f"dead letter {letter.id} ({letter.workflow}{step})"


# -- One decision on all letters that match a filter: say how many, ask, begin a set, wait for it --------


_TYPED = 100  # from here on the number is typed, not agreed to
_REFUSALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """A decision on many letters: its words, how it is begun, and how it is tried where that can be done."""

    verb: str
    begin: Callable[[Redrive], Awaitable[LetterSet]]
    preview: Callable[[Redrive], Awaitable[DryRunOfMany]] | None = None


def decide_on_many(place: Place, where: LetterFilter, many: Many, asked: Asked) -> None:
    """Begin a set, unless it is only tried or nothing matches; `--wait` follows it."""
    begun = ask(place, lambda app: _decide(app, where, many, asked))
    if begun is None:
        return
    if asked.wait:
        follow(place, begun.id, asked.output)
        return
    asked.output.done(begun.id, begun, told(begun))
    if on_terminal():
        say(f"To follow it: {hint('dlq', 'sets', 'show', begun.id)}")


async def _decide(app: Redrive, where: LetterFilter, many: Many, asked: Asked) -> LetterSet | None:
    count = await app.dlq.count(replace(where, status=LetterStatus.OPEN))
    if asked.change.dry_run and many.preview is not None:
        plan = await many.preview(app)
        asked.output.done("", plan, "\n".join([*_plan(plan, many.verb), "Nothing was changed."]))
        return None
    if asked.change.dry_run or count == 0:
        would = (
            f"would {many.verb} {_letters(count)}" if count else "no open letter matches, so nothing was done"
        )
        asked.output.done("", {"total": count}, would)
        return None
    _ask(count, many.verb, asked)
    begun = await many.begin(app)
    if not any(one.workers for one in await app.workflows.list()):
        say(f"No worker is alive: it waits until one is started: {worker_hint()}")
    return begun


def _ask(count: int, verb: str, asked: Asked) -> None:
    """A large number is typed by whoever means it."""
    change, what = asked.change, f"{verb.capitalize()} {_letters(count)}"
    if count < _TYPED or change.yes:
        change.confirm(what)
        return
    change.expect_yes(f"nothing was changed: say --yes to {verb} {_letters(count)} without being asked")
    with asking():
        typed = click.prompt(f"{what}? Type {count} to go on", default="", show_default=False, err=True)
    if typed.replace(",", "") != str(count):
        raise Stopped("nothing was changed", REFUSED)


def _plan(plan: DryRunOfMany, verb: str) -> list[str]:
    lines = [f"would {verb} {_how_many(plan)}"]
    if plan.refused:
        lines.append(f"{len(plan.refused):,} would be refused:")
        lines += (f"  {refusal.letter_id}: {refusal.reason}" for refusal in plan.refused[:_REFUSALS])
    if plan.sample:
        lines += ["one of the others:" if plan.refused else "for example:", *sentences(plan.sample[0])]
    return lines


def _how_many(plan: DryRunOfMany) -> str:
    """The letters that the decision would be made on, as far as it was tried."""
    able = f"{plan.checked - len(plan.refused):,} of"
    if plan.checked < plan.total:
        return f"{able} the first {plan.checked:,} of {_letters(plan.total)}; the others were not tried"
    return f"{able} {_letters(plan.total)}" if plan.refused else _letters(plan.total)


def _letters(count: int) -> str:
    return f"{count:,} dead letter{'s' * (count != 1)}"
