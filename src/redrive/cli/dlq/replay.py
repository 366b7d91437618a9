"""`redrive dlq replay` and `complete`, and the options that every replay takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from redrive.cli.dlq.bulk import BulkDecision, run_bulk_decision
from redrive.cli.dlq.letter_selection import act_on_letter, describe_letters, load_letter, selection_options
from redrive.cli.errors import REFUSED, CommandFailed, UsageError
from redrive.cli.options import (
    ChangeOptions,
    parse_json_object,
    parse_json_value,
    parse_retry_policy,
    parse_step_number,
)
from redrive.cli.output import Output
from redrive.cli.target import Target, decision_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.cli.replay_decision import DecisionSubject, ReplayDecision
    from redrive.desk.bulk import DryRunOfMany
    from redrive.desk.models import DeadLetter
    from redrive.desk.preview import DryRun
    from redrive.desk.replays import Replay
    from redrive.store.filters import LetterFilter

WAIT_OPTION = click.option("--wait", is_flag=True, help="Wait for the end of the run; exit code 1 if it fails.")


def replay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that every replay takes; it receives them as `options`."""

    @click.option("--reason", metavar="TEXT", help="The reason, for the audit log.")
    @click.option(
        "--retry",
        multiple=True,
        metavar="FIELD=VALUE",
        help="Replace the retry policy, for example max_retries=5; may be repeated.",
    )
    @click.option(
        "--new-operation",
        is_flag=True,
        help="Use new idempotency keys: outside services act again, even if they did before.",
    )
    @click.option(
        "--ask-again", is_flag=True, help="With a changed input: ask people again who answered for the old one."
    )
    @click.option("--key", metavar="KEY", help="Idempotency key: the same key is the same decision.")
    @functools.wraps(command)
    def with_options(
        *args: Any,
        reason: str | None,
        retry: tuple[str, ...],
        new_operation: bool,
        ask_again: bool,
        key: str | None,
        **others: Any,
    ) -> Any:
        options = {
            "reason": reason,
            "retry": parse_retry_policy(retry),
            "new_operation": new_operation,
            "ask_again": ask_again,
            "idempotency_key": key,
        }
        return command(*args, options=options, **others)

    return with_options


def input_edit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command on `ids` the options that change an input; it receives them as `edits`."""

    @click.option("--input", metavar="JSON", help="Replace the whole input; @FILE reads a file.")
    @click.option("--patch", metavar="JSON", help="Change these fields of the input; null removes a field.")
    @functools.wraps(command)
    def with_edits(*args: Any, ids: tuple[str, ...], input: str | None, patch: str | None, **others: Any) -> Any:
        if input is not None and patch is not None:
            raise UsageError("--input and --patch exclude each other: give the whole input, or the changed fields")
        if input is not None and (len(ids) != 1 or "-" in ids):
            raise UsageError("--input replaces the input of a single letter or run: use --patch for several")
        edits = {"input": parse_json_object(input, "--input"), "patch": parse_json_object(patch, "--patch")}
        return command(*args, ids=ids, edits=edits, **others)

    return with_edits


@click.command()
@selection_options
@click.option(
    "--mode",
    type=click.Choice(("from_failed", "step_only", "from_step", "skip", "full"), case_sensitive=False),
    help="Where to start, as explained above.  [default: from_failed]",
)
@click.option("--from-step", metavar="STEP", help="Start at this step, by number or name; implies --mode from_step.")
@input_edit_options
@click.option("--output", "result", metavar="JSON", help="The result to use for the skipped step; implies --mode skip.")
@replay_options
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the end of the runs; exit code 1 if one fails. With --all: wait until every letter is "
    "processed, but not for the runs; exit code 1 if some were refused or the bulk action was stopped.",
)
@decision_options
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
    target: Target,
) -> None:
    """Run dead letters again. `-` reads ids from standard input, --all takes all that match a filter.

    Finished steps are not repeated: their recorded results are reused. Outside services receive the same
    idempotency keys as before. --dry-run shows the plan and changes nothing.

    \b
    from_failed  resume from the failed step
    step_only    run only the failed step
    from_step    run everything again from a given step
    skip         skip the failed step, with --output as its result
    full         start over, as a new run

    \b
    Examples:
      redrive dlq replay dl-01k9x7 --dry-run
      redrive dlq replay dl-01k9x7 --patch '{"order": {"card": "4242"}}' --wait
      redrive dlq replay dl-01k9x7 --from-step reserve
      redrive dlq list -q --code timeout | redrive dlq replay - --yes
      redrive dlq replay --all --fingerprint daf56cff46003d07 --wait
      redrive dlq replay --all --code dependency_unavailable --rate 50/s
    """
    from redrive.cli.replay_decision import run_decision

    mode = mode or ("from_step" if from_step else "skip" if result is not None else "from_failed")
    call = {**options, **edits, "by": change.by}
    if result is not None:
        call["output"] = parse_json_value(result, "--output")
    if mode == "skip" and result is None:
        raise UsageError("--mode skip needs --output: the result to use for the skipped step, as JSON")
    if mode == "from_step" and from_step is None:
        raise UsageError("--mode from_step needs --from-step: the number or name of the step to start at")
    if where is None:
        decision = make_replay_decision(mode, from_step=from_step, **call)
        run_decision(target, ids, decision, change, output, wait=wait)
        return
    if from_step is not None and not from_step.isdecimal():
        raise UsageError("with --all, --from-step takes a number: a name can mean different steps in different runs")
    if call.pop("idempotency_key"):
        raise UsageError("--key is for letters named by id: a bulk action decides about each letter only once anyway")
    call |= {"mode": mode, "from_step": None if from_step is None else parse_step_number(from_step), "rate": rate}

    async def preview(app: Redrive) -> DryRunOfMany:
        return cast("DryRunOfMany", await app.dlq.replay_many(where, dry_run=True, **call))

    bulk = BulkDecision(verb="run again", begin=lambda app: app.dlq.replay_many(where, **call), preview=preview)
    run_bulk_decision(target, where, bulk, change, output, wait=wait)


@click.command(short_help="Give the result of the failed step by hand.")
@click.argument("id", metavar="LETTER")
@click.option("--output", "result", required=True, metavar="JSON", help="The step's result; @FILE reads a file.")
@click.option("--reason", metavar="TEXT", help="The reason, for the audit log.")
@WAIT_OPTION
@decision_options
def complete(
    id: str, result: str, reason: str | None, wait: bool, change: ChangeOptions, output: Output, target: Target
) -> None:
    """Give the result of the failed step by hand. The run continues with it.

    For work that was done elsewhere: the customer paid by telephone, and this is the payment number. The
    result is checked against the step's type.

    \b
    Examples:
      redrive dlq complete dl-01k9x7 --output '"ch_123"' --reason "paid by telephone"
      redrive dlq complete dl-01k9x7 --output @receipt.json
    """
    from redrive.cli.replay_decision import run_decision

    value = parse_json_value(result, "--output")
    decision = make_replay_decision("complete", output=value, by=change.by, reason=reason)
    run_decision(target, [id], decision, change, output, wait=wait)


def make_replay_decision(mode: str, *, from_step: str | None = None, **options: Any) -> ReplayDecision:
    """Make the decision to replay letters in a mode."""
    from redrive.cli.replay_decision import DecisionSubject, ReplayDecision
    from redrive.core.states import LetterStatus

    letters: dict[str, DeadLetter] = {}

    async def find(app: Redrive, id: str) -> DecisionSubject:
        letter = await load_letter(app, id)
        letters[letter.id] = letter
        return DecisionSubject(
            id=letter.id,
            name=describe_letters([letter]),
            workflow=letter.workflow,
            settled=letter.status is not LetterStatus.OPEN,
            decisions=len(letter.replays),
        )

    async def make(app: Redrive, subject: DecisionSubject, dry_run: bool) -> Replay | DryRun:
        letter = letters[subject.id]
        start = None if from_step is None else _find_step_index(letter, from_step)
        call = functools.partial(app.dlq.replay, letter.id, mode, from_step=start, dry_run=dry_run, **options)
        return await act_on_letter(letter, call)

    return ReplayDecision(find=find, make=make)


def _find_step_index(letter: DeadLetter, step: str) -> int:
    """Return the index of a step, given as its index or its name."""
    from redrive.core.states import EntryKind

    if step.isdecimal():
        return parse_step_number(step)
    steps = [each for each in letter.steps if each.kind is EntryKind.STEP and not each.superseded]
    found = [each.index for each in steps if each.name == step]
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandFailed(f"step {step!r} was called {len(found)} times: give its number, one of {found}", REFUSED)
    known = ", ".join(f"{each.index} {each.name}" for each in steps) or "none"
    raise CommandFailed(f"step {step!r} is not recorded: the recorded steps are {known}", REFUSED)
