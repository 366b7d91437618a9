"""`redrive saga`: the ledger of a rollback, and what a person decides about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.options import ChangeOptions, change_options
from redrive.cli.output import Column, Output, output_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.saga import Ledger, SagaEntry


@click.group(short_help="See what a rollback undoes; resume, skip, mark as done.")
def saga() -> None:
    """See how far a rollback is, and decide about a compensation that failed or waits for a person.

    \b
    Examples:
      redrive saga show 01k9x7
      redrive saga resume 01k9x7
      redrive saga done 01k9x7 ship --reason "called the carrier"
    """


@saga.command()
@click.argument("id", metavar="RUN")
@output_options
@target_options
def show(id: str, place: Target, output: Output) -> None:
    """Show the ledger of RUN: each compensation in order, and how far it is. It may be under way.

    UNCERTAIN: nobody knows whether the step happened, and nothing was done about it. Find out.

    \b
    Examples:
      redrive saga show 01k9x7
      redrive saga show 01k9x7 --json
    """
    from redrive.cli.options import find_run_id

    async def look(app: Redrive) -> Ledger:
        return await app.saga(await find_run_id(app, id))

    ledger = run_on(place, look)
    columns: list[Column[SagaEntry]] = [
        Column("STEP", lambda one: one.step),
        Column("ACTION", lambda one: one.action),
        Column("TYPE", lambda one: one.type),
        Column("STATUS", lambda one: one.status),
        Column("ATTEMPT", lambda one: one.attempt or None),
        Column("SINCE", lambda one: one.ts),
        Column("NEXT", lambda one: one.next_at),
        Column("WHAT", lambda one: one.instructions or one.error, sentence=True),
    ]
    if output.json:
        output.object(
            {
                "run_id": ledger.run_id,
                "workflow": ledger.workflow,
                "status": ledger.status,
                "done": ledger.done,
                "entries": list(ledger.entries),
            }
        )
        return
    _print_progress(ledger, output)
    empty = f"Nothing of run {ledger.run_id} is undone, nor is it to be."
    output.list(ledger.entries, columns, id=lambda one: one.step_key, empty=empty)
    _print_next_commands(ledger, output)


def _print_progress(ledger: Ledger, output: Output) -> None:
    from redrive.cli.output import echo_err, on_terminal

    if on_terminal() and not output.quiet and ledger.entries:
        echo_err(f"Run {ledger.run_id} is {ledger.status}: {ledger.done} of {len(ledger.entries)} undone.")


def _print_next_commands(ledger: Ledger, output: Output) -> None:
    from redrive.cli.messages import hint
    from redrive.cli.output import echo_err, on_terminal
    from redrive.core.states import RunStatus, StepStatus

    if output.quiet or not on_terminal():
        return
    for entry in ledger.entries:
        if entry.waits_for_person:
            echo_err(f"When it is done: {hint('saga', 'done', ledger.run_id, entry.step_key)}")
        elif entry.status == StepStatus.DLQ and ledger.status is not RunStatus.COMPENSATING:
            echo_err(f"When the cause is mended: {hint('saga', 'resume', ledger.run_id)}")
        elif entry.status == "UNCERTAIN":
            echo_err(f"Nobody knows whether {entry.step!r} happened: find out, and undo it by hand if it did.")


@saga.command()
@click.argument("id", metavar="RUN")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@change_options
@output_options
@target_options
def resume(id: str, reason: str | None, change: ChangeOptions, place: Target, output: Output) -> None:
    """Go on with a rollback that stopped, at the compensation that failed.

    \b
    Examples:
      redrive saga resume 01k9x7 --dry-run
      redrive saga resume 01k9x7
    """
    run_rollback_decision(place, id, "from_failed", None, reason, change, output)


@saga.command()
@click.argument("id", metavar="RUN")
@click.argument("step")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@change_options
@output_options
@target_options
def skip(id: str, step: str, reason: str | None, change: ChangeOptions, place: Target, output: Output) -> None:
    """Leave out the compensation of STEP, which is next, and go on with the others.

    \b
    Examples:
      redrive saga skip 01k9x7 charge --reason "the customer keeps the voucher"
    """
    run_rollback_decision(place, id, "skip_failed", step, reason, change, output)


@saga.command()
@click.argument("id", metavar="RUN")
@click.argument("step")
@click.option("--reason", metavar="TEXT", help="What was done, for the record.")
@change_options
@output_options
@target_options
def done(id: str, step: str, reason: str | None, change: ChangeOptions, place: Target, output: Output) -> None:
    """Say that STEP, which is next, was undone by hand, and go on with the others.

    \b
    Examples:
      redrive saga done 01k9x7 ship --reason "called the carrier"
    """
    run_rollback_decision(place, id, "complete", step, reason, change, output)


_DECISION_TEXTS = {
    "from_failed": ("Go on with the rollback of run {}", "the rollback of run {} goes on"),
    "skip_failed": ("Skip this compensation of run {}", "skipped; the rollback of run {} goes on"),
    "complete": ("Mark this compensation of run {} as done", "done; the rollback of run {} goes on"),
    "rollback": ("Undo what run {} did", "run {} is being rolled back"),
}


def run_rollback_decision(
    place: Target, id: str, mode: str, step: str | None, reason: str | None, change: ChangeOptions, output: Output
) -> None:
    """Try or make a decision about a rollback."""
    from redrive.cli.dlq.decision import render_plan
    from redrive.cli.options import find_run_id
    from redrive.desk.preview import DryRun

    asks, told = _DECISION_TEXTS[mode]

    async def work(app: Redrive) -> None:
        run_id = await find_run_id(app, id)
        options: dict[str, Any] = {"undo": step} if step is not None else {}

        async def decide(dry_run: bool) -> object:
            return await app.runs.retry(run_id, mode, by=change.by, reason=reason, dry_run=dry_run, **options)

        if change.dry_run:
            plan = await decide(True)
            assert isinstance(plan, DryRun)
            output.done(run_id, plan, "\n".join([*render_plan(plan), "Nothing was changed."]))
            return
        change.confirm(asks.format(run_id))
        output.done(run_id, await decide(False), told.format(run_id))

    run_on(place, work)
