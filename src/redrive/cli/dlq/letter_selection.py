"""The letters that a command is called on: by their ids, or by the options of a filter."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.cli.errors import CONFLICT, NOT_FOUND, CommandFailed, UsageError
from redrive.cli.hints import hint, rewrite_hints
from redrive.cli.options import TIME_TYPE, find_letter_id, parse_index_values

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import DeadLetter
    from redrive.store.filters import LetterFilter

T = TypeVar("T")
_FILTER_OPTIONS: dict[str, dict[str, Any]] = {
    "workflow": {"metavar": "NAME", "help": "Only letters of this workflow."},
    "step": {"metavar": "NAME", "help": "Only failures of this step."},
    "code": {"metavar": "CODE", "help": "Only this code, such as timeout or exhausted_retries."},
    "category": {"metavar": "NAME", "help": "Only this category of error, such as network."},
    "stage": {"metavar": "NAME", "help": "Only failures at this stage, such as exec."},
    "fingerprint": {"metavar": "TEXT", "help": "Only failures with this cause; `dlq groups` lists them."},
    "owner": {"metavar": "NAME", "help": "Only letters assigned to this person."},
    "escalated": {"metavar": "NAME", "help": "Only letters escalated to this role, user or #channel; * for any."},
    "tag": {"metavar": "WORD", "help": "Only letters with this tag."},
    "text": {
        "metavar": "TEXT",
        "help": "Only letters whose error message, reason, reference or search field contains this.",
    },
    "index": {
        "metavar": "FIELD=VALUE",
        "help": "Only letters with this value in a field declared with index=[...]; may be repeated.",
        "multiple": True,
    },
    "tenant": {"metavar": "NAME", "help": "Only letters of this tenant.  [default: all]"},
    "since": {"metavar": "TIME", "help": "Created at or after: 2h (ago), or an ISO time.", "type": TIME_TYPE},
    "until": {"metavar": "TIME", "help": "Created before.", "type": TIME_TYPE},
}


def parse_rate_option(text: str) -> str:
    """Parse the number of letters per second, minute or hour."""
    from redrive.core.bulk_rate import parse_rate
    from redrive.errors import InputError

    try:
        return str(parse_rate(text))
    except InputError as error:
        raise UsageError(str(error)) from error


async def load_letter(app: Redrive, text: str) -> DeadLetter:
    """Load a letter by its id, by the id of its run, or by a prefix of either."""
    from redrive.errors import NotFound

    id = await find_letter_id(app, text)
    try:
        return await app.dlq.get(id)
    except NotFound as error:
        raise CommandFailed(f"{error}; `{hint('dlq', 'list')}` shows those that are open", NOT_FOUND) from error


async def act_on_letter(letter: DeadLetter, act: Callable[[], Awaitable[T]]) -> T:
    """Call `act`; add the next useful command to the message of a conflict."""
    from redrive.cli.dlq.letter_page import advise_on_outcome
    from redrive.core.states import LetterStatus
    from redrive.errors import Conflict

    try:
        return await act()
    except Conflict as error:
        outcome = advise_on_outcome(letter)
        if outcome is not None:
            advice = f"\nTo {outcome.purpose}: {hint(*outcome.command)}" if outcome.command else ""
        elif letter.status is LetterStatus.REPLAYING:
            advice = f"\nTo follow it: {hint('runs', 'watch', letter.run_id)}"
        else:
            advice = f"\nTo see its state: {hint('dlq', 'show', letter.id)}"
        raise CommandFailed(f"{rewrite_hints(str(error))}{advice}", CONFLICT) from error


def describe_letters(letters: list[DeadLetter]) -> str:
    """Describe letters for a question: one by its workflow and step, several by their number."""
    if len(letters) > 1:
        return f"{len(letters)} dead letters, {letters[0].id} to {letters[-1].id}"
    (letter,) = letters
    step = f", step {letter.step}" if letter.step else ""
    return f"dead letter {letter.id} ({letter.workflow}{step})"


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that filter letters; it receives them as `filters`."""

    @functools.wraps(command)
    def with_filters(*args: Any, **options: Any) -> Any:
        filters = {name: options.pop(name) for name in _FILTER_OPTIONS}
        filters["index"] = parse_index_values(filters["index"], "--index")
        return command(*args, filters=filters, **options)

    for name, settings in reversed(_FILTER_OPTIONS.items()):
        with_filters = click.option(f"--{name}", **settings)(with_filters)
    return with_filters


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ids, or a filter in their place; it receives `ids`, and `where` if there are none.

    A filter starts a bulk action, which can have a `rate`.
    """

    @click.argument("ids", nargs=-1, metavar="[LETTER]...")
    @click.option("--all", "everything", is_flag=True, help="All open letters that match the filter, as a bulk action.")
    @click.option("--rate", metavar="RATE", help="With --all: at most this many letters, such as 50/s, 600/m or 100/h.")
    @filter_options
    @functools.wraps(command)
    def with_selection(
        *args: Any, ids: tuple[str, ...], everything: bool, rate: str | None, filters: dict[str, Any], **others: Any
    ) -> Any:
        given = {name: value for name, value in filters.items() if value is not None}
        if ids and (everything or given):
            raise UsageError("name letters, or choose them with --all and a filter, but not both")
        # A filter without --all is more likely a slip than a decision on many letters.
        if not ids and not everything:
            raise UsageError(
                "no dead letters selected: give ids (- reads them from standard input), or --all and a filter"
            )
        if rate is not None and not everything:
            raise UsageError("--rate is for many letters: give --all and a filter with it")
        where = build_filter(given) if everything else None
        return command(*args, ids=ids, where=where, rate=None if rate is None else parse_rate_option(rate), **others)

    return with_selection


def build_filter(fields: dict[str, Any]) -> LetterFilter:
    """Build the filter that the options describe."""
    from redrive.errors import InputError
    from redrive.store.filters import LetterFilter

    try:
        return LetterFilter(**fields)
    except InputError as error:
        raise UsageError(str(error)) from error
