"""`redrive dlq replay` and `complete`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from redrive.cli.dlq.arguments import json_object, json_value, retry_policy, step_number
from redrive.cli.dlq.list import ids_or_filter
from redrive.cli.messages import Misused
from redrive.cli.options import Change, changing
from redrive.cli.output import Output, shown
from redrive.cli.place import Place, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.cli.dlq.decision import Act, Asked, Subject
    from redrive.desk.bulk import DryRunOfMany
    from redrive.desk.decisions import Replay
    from redrive.desk.models import DeadLetter
    from redrive.desk.preview import DryRun
    from redrive.store.filters import LetterFilter

__all__ = ["WAIT", "act_of", "complete", "corrected", "replay", "reworked"]


WAIT = click.option(
    "--wait", is_flag=True, help="Wait until it has ended; exit code 1 if it did not end well."
)
_MODES = ("from_failed", "step_only", "from_step", "skip", "full")


def reworked(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that every replay takes; it receives them as `options`."""

    @click.option("--reason", metavar="TEXT", help="Why, for the record.")
    @click.option(
        "--retry",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Retry by this policy instead, such as max_retries=5; may be repeated.",
    )
    @click.option(
        "--new-operation",
        is_flag=True,
        help="Give outside services new idempotency keys: they act again, even if they did before.",
    )
    @click.option("--key", metavar="KEY", help="The same key is the same decision, whatever happened since.")
    @functools.wraps(command)
    def with_options(
        *args: Any,
        reason: str | None,
        retry: tuple[str, ...],
        new_operation: bool,
        key: str | None,
        **others: Any,
    ) -> Any:
        options = {
            "reason": reason,
            "retry": retry_policy(retry),
            "new_operation": new_operation,
            "idempotency_key": key,
        }
        return command(*args, options=options, **others)

    return with_options


def corrected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command on `ids` the options that change an input; it receives them as `edits`."""

    @click.option("--input", metavar="JSON", help="Run with this whole input; @FILE reads a file.")
    @click.option("--patch", metavar="JSON", help="Change these fields of the input; null removes one.")
    @functools.wraps(command)
    def with_edits(
        *args: Any, ids: tuple[str, ...], input: str | None, patch: str | None, **others: Any
    ) -> Any:
        if input is not None and patch is not None:
            raise Misused(
                "--input and --patch exclude each other: the whole input, or the fields that change"
            )
        if input is not None and (len(ids) != 1 or "-" in ids):
            raise Misused("--input replaces the whole input of one; --patch changes fields of many")
        edits = {"input": json_object(input, "--input"), "patch": json_object(patch, "--patch")}
        return command(*args, ids=ids, edits=edits, **others)

    return with_edits


@click.command()
@ids_or_filter
@click.option(
    "--mode",
    type=click.Choice(_MODES, case_sensitive=False),
    help="Where to begin; each is explained above.  [default: from_failed]",
)
@click.option("--from-step", metavar="STEP", help="Begin at this step, by number or name; implies its mode.")
@corrected
@click.option(
    "--output", "result", metavar="JSON", help="What the skipped step shall have given; implies skip."
)
@reworked
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the runs of the named letters have ended; exit code 1 if one did not end well. With "
    "--all: wait until every letter was decided on, however its run ends; exit code 1 if some were refused "
    "or the set was stopped.",
)
@changing
@shown
@at_a_place
def replay(
    ids: tuple[str, ...],
    where: LetterFilter | None,
    rate: str | None,
    mode: str | None,
    from_step: str | None,
    edits: dict[str, Any],
    result: str | None,
    wait: bool,
    options: dict[str, Any],
    change: Change,
    output: Output,
    place: Place,
) -> None:
    """Run dead letters again. `-` reads ids from standard input, --all takes all that match a filter.

    What succeeded before is not done twice: recorded results are reused, and outside services see the
    same idempotency keys. --dry-run says exactly what would happen.

    \b
    from_failed  go on at the failed step
    step_only    do the failed step and nothing else
    from_step    do everything again from a step on
    skip         take --output for the failed step's result, and go on
    full         begin anew, as a new run

    \b
    Examples:
      redrive dlq replay dl-01k9x7 --dry-run
      redrive dlq replay dl-01k9x7 --patch '{"order": {"card": "4242"}}' --wait
      redrive dlq replay dl-01k9x7 --from-step reserve
      redrive dlq list -q --code timeout | redrive dlq replay - --yes
      redrive dlq replay --all --fingerprint daf56cff46003d07 --wait
      redrive dlq replay --all --code dependency_unavailable --rate 50/s
    """
    from redrive.cli.dlq.decision import Asked, decide

    chosen = mode or ("from_step" if from_step else "skip" if result is not None else "from_failed")
    options |= edits
    if result is not None:
        options["output"] = json_value(result, "--output")
    if chosen == "skip" and result is None:
        raise Misused("--mode skip takes --output: what the step shall have given, as JSON")
    if chosen == "from_step" and from_step is None:
        raise Misused("--mode from_step takes --from-step: the step to begin at, by number or name")
    asked = Asked(change=change, output=output, wait=wait)
    if where is not None:
        _replay_many(place, where, chosen, from_step, {**options, "rate": rate}, asked)
        return
    act = act_of(chosen, from_step=from_step, by=change.by, **options)
    decide(place, ids, act, asked)


def _replay_many(
    place: Place,
    where: LetterFilter,
    mode: str,
    from_step: str | None,
    options: dict[str, Any],
    asked: Asked,
) -> None:
    from redrive.cli.dlq.lookup import Many, decide_on_many

    if from_step is not None and not from_step.isdecimal():
        raise Misused("with --all, --from-step takes a step's number: a name may mean another step in each")
    if options.pop("idempotency_key"):
        raise Misused("--key is for letters that are named: a set decides on each letter once anyway")
    begin = None if from_step is None else step_number(from_step)
    call = {"mode": mode, "from_step": begin, "by": asked.change.by, **options}

    async def preview(app: Redrive) -> DryRunOfMany:
        return cast("DryRunOfMany", await app.dlq.replay_many(where, dry_run=True, **call))

    many = Many(verb="run again", begin=lambda app: app.dlq.replay_many(where, **call), preview=preview)
    decide_on_many(place, where, many, asked)


@click.command()
@click.argument("id", metavar="LETTER")
@click.option(
    "--output", "result", required=True, metavar="JSON", help="The step's result; @FILE reads a file."
)
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@WAIT
@changing
@shown
@at_a_place
def complete(
    id: str, result: str, reason: str | None, wait: bool, change: Change, output: Output, place: Place
) -> None:
    """Give the failed step's result by hand, and let the run go on with it.

    For work that was done outside: the payment was made by telephone, and this is its number. The result
    is checked against the step's type.

    \b
    Examples:
      redrive dlq complete dl-01k9x7 --output '"ch_123"' --reason "paid by telephone"
      redrive dlq complete dl-01k9x7 --output @receipt.json
    """
    from redrive.cli.dlq.decision import Asked, decide

    act = act_of("complete", output=json_value(result, "--output"), by=change.by, reason=reason)
    decide(place, [id], act, Asked(change=change, output=output, wait=wait))


def act_of(mode: str, *, from_step: str | None = None, **options: Any) -> Act:
    """The decision to replay letters in this way."""
    from redrive.cli.dlq.decision import Act, Subject
    from redrive.cli.dlq.lookup import act_on, found_letter, named
    from redrive.core.states import LetterStatus

    letters: dict[str, DeadLetter] = {}

    async def find(app: Redrive, id: str) -> Subject:
        letter = await found_letter(app, id)
        letters[letter.id] = letter
        settled = letter.status is not LetterStatus.OPEN
        return Subject(
            id=letter.id,
            name=named([letter]),
            workflow=letter.workflow,
            settled=settled,
            decisions=len(letter.replays),
        )

    async def make(app: Redrive, subject: Subject, dry_run: bool) -> Replay | DryRun:
        letter = letters[subject.id]
        begin = None if from_step is None else _index(letter, from_step)
        call = functools.partial(app.dlq.replay, letter.id, mode, from_step=begin, dry_run=dry_run, **options)
        return await act_on(letter, call)

    return Act(find=find, make=make)


def _index(letter: DeadLetter, step: str) -> int:
    """The index of a step that was named by it or by its name."""
    from redrive.core.states import EntryKind
    from redrive.errors import InputError

    if step.isdecimal():
        return step_number(step)
    steps = [one for one in letter.steps if one.kind is EntryKind.STEP and not one.superseded]
    found = [one.index for one in steps if one.name == step]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"step {step!r} was called {len(found)} times: give its number, one of {found}")
    known = ", ".join(f"{one.index} {one.name}" for one in steps) or "none"
    raise InputError(f"no step {step!r} is recorded; the recorded steps are {known}")
