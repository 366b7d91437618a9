"""`redrive dlq replay` and `complete`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from redrive.cli.dlq.arguments import parse_json_object, parse_json_value, parse_retry_policy, parse_step_number
from redrive.cli.dlq.list import selection_options
from redrive.cli.messages import UsageError
from redrive.cli.options import ChangeOptions, change_options
from redrive.cli.output import Output, output_options
from redrive.cli.target import Target, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.cli.dlq.decision import DecisionOptions, DecisionSubject, ReplayDecision
    from redrive.desk.bulk import DryRunOfMany
    from redrive.desk.decisions import Replay
    from redrive.desk.models import DeadLetter
    from redrive.desk.preview import DryRun
    from redrive.store.filters import LetterFilter

WAIT_OPTION = click.option("--wait", is_flag=True, help="Wait until it has ended; exit code 1 if it did not end well.")
_MODES = ("from_failed", "step_only", "from_step", "skip", "full")


def replay_options(command: Callable[..., Any]) -> Callable[..., Any]:
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
        *args: Any, reason: str | None, retry: tuple[str, ...], new_operation: bool, key: str | None, **others: Any
    ) -> Any:
        options = {
            "reason": reason,
            "retry": parse_retry_policy(retry),
            "new_operation": new_operation,
            "idempotency_key": key,
        }
        return command(*args, options=options, **others)

    return with_options


def input_edit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command on `ids` the options that change an input; it receives them as `edits`."""

    @click.option("--input", metavar="JSON", help="Run with this whole input; @FILE reads a file.")
    @click.option("--patch", metavar="JSON", help="Change these fields of the input; null removes one.")
    @functools.wraps(command)
    def with_edits(*args: Any, ids: tuple[str, ...], input: str | None, patch: str | None, **others: Any) -> Any:
        if input is not None and patch is not None:
            raise UsageError("--input and --patch exclude each other: the whole input, or the fields that change")
        if input is not None and (len(ids) != 1 or "-" in ids):
            raise UsageError("--input replaces the whole input of one; --patch changes fields of many")
        edits = {"input": parse_json_object(input, "--input"), "patch": parse_json_object(patch, "--patch")}
        return command(*args, ids=ids, edits=edits, **others)

    return with_edits


@click.command()
@selection_options
@click.option(
    "--mode",
    type=click.Choice(_MODES, case_sensitive=False),
    help="Where to begin; each is explained above.  [default: from_failed]",
)
@click.option("--from-step", metavar="STEP", help="Begin at this step, by number or name; implies its mode.")
@input_edit_options
@click.option("--output", "result", metavar="JSON", help="What the skipped step shall have given; implies skip.")
@replay_options
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until the runs of the named letters have ended; exit code 1 if one did not end well. With "
    "--all: wait until every letter was decided on, however its run ends; exit code 1 if some were refused "
    "or the set was stopped.",
)
@change_options
@output_options
@target_options
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
    change: ChangeOptions,
    output: Output,
    place: Target,
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
    from redrive.cli.dlq.decision import DecisionOptions, run_decision

    chosen = mode or ("from_step" if from_step else "skip" if result is not None else "from_failed")
    options |= edits
    if result is not None:
        options["output"] = parse_json_value(result, "--output")
    if chosen == "skip" and result is None:
        raise UsageError("--mode skip takes --output: what the step shall have given, as JSON")
    if chosen == "from_step" and from_step is None:
        raise UsageError("--mode from_step takes --from-step: the step to begin at, by number or name")
    asked = DecisionOptions(change=change, output=output, wait=wait)
    if where is not None:
        _replay_bulk(place, where, chosen, from_step, {**options, "rate": rate}, asked)
        return
    act = make_replay_decision(chosen, from_step=from_step, by=change.by, **options)
    run_decision(place, ids, act, asked)


def _replay_bulk(
    place: Target,
    where: LetterFilter,
    mode: str,
    from_step: str | None,
    options: dict[str, Any],
    asked: DecisionOptions,
) -> None:
    from redrive.cli.dlq.lookup import BulkDecision, run_bulk_decision

    if from_step is not None and not from_step.isdecimal():
        raise UsageError("with --all, --from-step takes a step's number: a name may mean another step in each")
    if options.pop("idempotency_key"):
        raise UsageError("--key is for letters that are named: a set decides on each letter once anyway")
    begin = None if from_step is None else parse_step_number(from_step)
    call = {"mode": mode, "from_step": begin, "by": asked.change.by, **options}

    async def preview(app: Redrive) -> DryRunOfMany:
        return cast("DryRunOfMany", await app.dlq.replay_many(where, dry_run=True, **call))

    many = BulkDecision(verb="run again", begin=lambda app: app.dlq.replay_many(where, **call), preview=preview)
    run_bulk_decision(place, where, many, asked)


@click.command()
@click.argument("id", metavar="LETTER")
@click.option("--output", "result", required=True, metavar="JSON", help="The step's result; @FILE reads a file.")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@WAIT_OPTION
@change_options
@output_options
@target_options
def complete(
    id: str, result: str, reason: str | None, wait: bool, change: ChangeOptions, output: Output, place: Target
) -> None:
    """Give the failed step's result by hand, and let the run go on with it.

    For work that was done outside: the payment was made by telephone, and this is its number. The result
    is checked against the step's type.

    \b
    Examples:
      redrive dlq complete dl-01k9x7 --output '"ch_123"' --reason "paid by telephone"
      redrive dlq complete dl-01k9x7 --output @receipt.json
    """
    from redrive.cli.dlq.decision import DecisionOptions, run_decision

    act = make_replay_decision("complete", output=parse_json_value(result, "--output"), by=change.by, reason=reason)
    run_decision(place, [id], act, DecisionOptions(change=change, output=output, wait=wait))


def make_replay_decision(mode: str, *, from_step: str | None = None, **options: Any) -> ReplayDecision:
    """The decision to replay letters in this way."""
    from redrive.cli.dlq.decision import DecisionSubject, ReplayDecision
    from redrive.cli.dlq.lookup import act_on_letter, describe_letters, load_letter
    from redrive.core.states import LetterStatus

    letters: dict[str, DeadLetter] = {}

    async def find(app: Redrive, id: str) -> DecisionSubject:
        letter = await load_letter(app, id)
        letters[letter.id] = letter
        settled = letter.status is not LetterStatus.OPEN
        return DecisionSubject(
            id=letter.id,
            name=describe_letters([letter]),
            workflow=letter.workflow,
            settled=settled,
            decisions=len(letter.replays),
        )

    async def make(app: Redrive, subject: DecisionSubject, dry_run: bool) -> Replay | DryRun:
        letter = letters[subject.id]
        begin = None if from_step is None else _find_step_index(letter, from_step)
        call = functools.partial(app.dlq.replay, letter.id, mode, from_step=begin, dry_run=dry_run, **options)
        return await act_on_letter(letter, call)

    return ReplayDecision(find=find, make=make)


def _find_step_index(letter: DeadLetter, step: str) -> int:
    """The index of a step that was named by it or by its name."""
    from redrive.core.states import EntryKind
    from redrive.errors import InputError

    if step.isdecimal():
        return parse_step_number(step)
    steps = [one for one in letter.steps if one.kind is EntryKind.STEP and not one.superseded]
    found = [one.index for one in steps if one.name == step]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"step {step!r} was called {len(found)} times: give its number, one of {found}")
    known = ", ".join(f"{one.index} {one.name}" for one in steps) or "none"
    raise InputError(f"no step {step!r} is recorded; the recorded steps are {known}")
