"""Arguments of the commands on dead letters: JSON, `@FILE`, FIELD=VALUE, and letters by their id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.cli.errors import CONFLICT, NOT_FOUND, USAGE, CommandFailed, UsageError, hint, rewrite_hints
from redrive.cli.options import find_letter_id, parse_field, parse_json_text, read_text_or_file

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import DeadLetter
    from redrive.policy import RetryPolicy

T = TypeVar("T")
_MAX_DIGITS = 9


def parse_json_value(text: str, option: str) -> Any:
    """Parse any JSON value; `@file` reads a file."""
    # The quotes of the shell are easily taken for those of the JSON string.
    is_bare = text[:1].isalpha() and text not in ("true", "false", "null")
    advice = f". A JSON string needs its own quotes: '\"{text}\"'" if is_bare else ""
    return parse_json_text(read_text_or_file(text, option), option, advice)


def parse_json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """Parse a JSON object; return None if the option was not given."""
    if text is None:
        return None
    value = parse_json_value(text, option)
    if not isinstance(value, dict):
        raise UsageError(f'{option} must be a JSON object from name to value, such as \'{{"order": "A-1"}}\'')
    return value


def _split_pairs(pairs: Sequence[str], option: str, form: str, example: str) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {pair!r} is not {form}: write {option} {example}")
        yield name, value


def parse_step_outputs(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Parse NAME=JSON options into a mapping from step to result."""
    split = _split_pairs(pairs, option, "NAME=JSON", "charge='\"paid by hand\"'")
    return {name: parse_json_value(text, f"{option} {name}") for name, text in split}


def parse_index_values(pairs: Sequence[str], option: str) -> dict[str, str] | None:
    """Parse FIELD=VALUE options into a mapping from field to value; return None if there are none.

    A value stays a text, as the store compares texts. As JSON, the customer id 1E5 would become a number.
    """
    found: dict[str, str] = {}
    for name, value in _split_pairs(pairs, option, "FIELD=VALUE", "customer.email=ann@example.org"):
        if name in found:
            raise UsageError(f"{option} gives {name!r} twice: give one value for each field")
        found[name] = value
    return found or None


def parse_retry_policy(fields: Sequence[str]) -> RetryPolicy | None:
    """Parse FIELD=VALUE options into a policy; fields that are not given have their defaults."""
    if not fields:
        return None
    from redrive.errors import ConfigurationError
    from redrive.policy import RetryPolicy

    try:
        return RetryPolicy.from_json(dict(parse_field(text, "--retry ") for text in fields))
    except ConfigurationError as error:
        raise CommandFailed(f"--retry: {error}", USAGE) from error


def parse_rate_option(text: str) -> str:
    """Parse the number of letters per second, minute or hour."""
    from redrive.core.rate import parse_rate
    from redrive.errors import InputError

    try:
        return str(parse_rate(text))
    except InputError as error:
        raise UsageError(str(error)) from error


def parse_step_number(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise UsageError(f"--from-step {text[:_MAX_DIGITS]}… has {len(text):,} digits: `dlq show` lists the steps")
    return int(text)


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
    from redrive.cli.dlq.show import advise_on_outcome
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
