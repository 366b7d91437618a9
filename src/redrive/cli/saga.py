"""`redrive saga`: show the ledger of a rollback, and decide about its compensations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.hints import hint
from redrive.cli.options import REASON_OPTION, ChangeOptions, find_run_id
from redrive.cli.output import Column, Output, echo_err, field_columns, on_terminal
from redrive.cli.target import ChangeResult, Target, change_command, common_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.saga import Ledger, SagaEntry

_RUN_ARGUMENT = click.argument("id", metavar="RUN")
_DECISION_TEXTS = {
    "from_failed": ("Continue the rollback of run {}", "the rollback of run {} continues"),
    "skip_failed": ("Skip this compensation of run {}", "skipped; the rollback of run {} continues"),
    "complete": ("Mark this compensation of run {} as done", "done; the rollback of run {} continues"),
    "rollback": ("Undo the steps of run {}", "run {} is being rolled back"),
}


@click.group()
def saga() -> None:
    """Show the progress of a rollback, and decide about a compensation that failed or waits for a person.

    \b
    Examples:
      redrive saga show 01k9x7
      redrive saga resume 01k9x7
      redrive saga done 01k9x7 ship --reason "called the carrier"
    """


@saga.command()
@_RUN_ARGUMENT
@common_options
def show(id: str, target: Target, output: Output) -> None:
    """Show the compensations of RUN in order, with their status. The rollback may still be running.

    UNCERTAIN: it is unknown whether the step took effect, and nothing was undone. Check the outside system.
    LEFT: a child run that is not undone.

    \b
    Examples:
      redrive saga show 01k9x7
      redrive saga show 01k9x7 --json
    """
    from redrive.core.states import RunStatus, StepStatus

    async def load(app: Redrive) -> Ledger:
        return await app.saga(await find_run_id(app, id))

    ledger = run_on(target, load)
    if output.json:
        fields = {"run_id": ledger.run_id, "workflow": ledger.workflow, "status": ledger.status, "done": ledger.done}
        output.object({**fields, "entries": list(ledger.entries)})
        return
    columns: list[Column[SagaEntry]] = [
        *field_columns(STEP="step", ACTION="action", TYPE="type", STATUS="status"),
        Column("ATTEMPT", lambda one: one.attempt or None),
        *field_columns(SINCE="ts", NEXT="next_at"),
        Column("WHAT", lambda one: one.instructions or one.error, sentence=True),
    ]
    for_people = on_terminal() and not output.quiet
    if for_people and ledger.entries:
        echo_err(f"Run {ledger.run_id} is {ledger.status}: {ledger.undone} of {len(ledger.entries)} undone.")
    empty = f"Run {ledger.run_id} has nothing to undo."
    output.list(ledger.entries, columns, id=lambda one: one.step_key, empty=empty)
    for entry in ledger.entries if for_people else ():
        if entry.waits_for_person:
            echo_err(f"When it is done: {hint('saga', 'done', ledger.run_id, entry.step_key)}")
        elif entry.status == StepStatus.DLQ and ledger.status is not RunStatus.COMPENSATING:
            echo_err(f"When the cause is fixed: {hint('saga', 'resume', ledger.run_id)}")
        elif entry.status == "UNCERTAIN":
            echo_err(f"It is unknown whether {entry.step!r} took effect: check, and undo it by hand if it did.")
        elif entry.status == "LEFT":
            echo_err(f"The effects of run {entry.run} stay. See them: {hint('runs', 'show', entry.run or '')}")
        elif entry.type == "child" and not entry.is_over:
            echo_err(f"Run {entry.run} has to be rolled back first: {hint('runs', 'why', entry.run or '')}")


@change_command(saga, _RUN_ARGUMENT, REASON_OPTION)
async def resume(app: Redrive, **arguments: Any) -> ChangeResult:
    """Continue a rollback that stopped, at the compensation that failed.

    \b
    Examples:
      redrive saga resume 01k9x7 --dry-run
      redrive saga resume 01k9x7
    """
    return await _decide_rollback(app, "from_failed", **arguments)


@change_command(saga, _RUN_ARGUMENT, click.argument("step"), REASON_OPTION)
async def skip(app: Redrive, **arguments: Any) -> ChangeResult:
    """Skip the compensation of the next STEP, and continue.

    \b
    Examples:
      redrive saga skip 01k9x7 charge --reason "the customer keeps the voucher"
    """
    return await _decide_rollback(app, "skip_failed", **arguments)


@change_command(
    saga,
    _RUN_ARGUMENT,
    click.argument("step"),
    click.option("--reason", metavar="TEXT", help="What was done, for the audit log."),
)
async def done(app: Redrive, **arguments: Any) -> ChangeResult:
    """Record that the next STEP was undone by hand, and continue.

    \b
    Examples:
      redrive saga done 01k9x7 ship --reason "called the carrier"
    """
    return await _decide_rollback(app, "complete", **arguments)


def run_rollback_decision(
    target: Target, id: str, mode: str, step: str | None, reason: str | None, change: ChangeOptions, output: Output
) -> None:
    """Preview or make a decision about a rollback, and print the result."""
    result = run_on(target, lambda app: _decide_rollback(app, mode, id=id, step=step, reason=reason, change=change))
    output.done(*result)


async def _decide_rollback(
    app: Redrive, mode: str, *, id: str, reason: str | None, change: ChangeOptions, step: str | None = None
) -> ChangeResult:
    from redrive.cli.replay_decision import render_plan
    from redrive.desk.preview import DryRun

    question, done = _DECISION_TEXTS[mode]
    run_id = await find_run_id(app, id)
    change.confirm(question.format(run_id))
    options: dict[str, Any] = {"undo": step} if step is not None else {}
    result: object = await app.runs.retry(run_id, mode, by=change.by, reason=reason, dry_run=change.dry_run, **options)
    if isinstance(result, DryRun):
        return run_id, result, "\n".join([*render_plan(result), "Nothing was changed."])
    return run_id, result, done.format(run_id)
