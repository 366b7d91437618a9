"""Dead letters as people name them, and what to say about one that cannot be acted on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from redrive.app import Redrive
from redrive.cli.dlq.standing import standing
from redrive.cli.exits import CONFLICT, NOT_FOUND, Stopped
from redrive.cli.hints import hint, rewritten
from redrive.cli.ids import find_letter
from redrive.core.states import LetterStatus
from redrive.desk.shapes import DeadLetter
from redrive.errors import Conflict, NotFound

__all__ = ["act_on", "found_letter", "must_be_open", "named"]

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
