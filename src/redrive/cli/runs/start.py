"""`redrive runs start` and `cancel`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from redrive.cli.dlq.arguments import parse_json_value, parse_step_outputs
from redrive.cli.dlq.replay import WAIT_OPTION, input_edit_options, replay_options
from redrive.cli.messages import hint
from redrive.cli.options import DURATION_TYPE, ChangeOptions, change_options, exit_if_failed, for_each_id
from redrive.cli.output import Output, echo_err, on_terminal, output_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.cli.dlq.decision import DecisionSubject, ReplayDecision
    from redrive.desk.decisions import Replay
    from redrive.desk.models import Run
    from redrive.desk.preview import DryRun
    from redrive.remote.desk import Remote

# -- Starting runs on a server, which checks their inputs itself -----------------------------------------


_BATCH_SIZE = 500


async def start_on_server(
    app: Redrive, name: str, inputs: list[str], *, dry_run: bool, options: dict[str, Any]
) -> list[str]:
    """Start a run for each input; a dry run looks what the server knows of the workflow."""
    from redrive.desk.runs import StartRequest

    given = {key: value for key, value in options.items() if value is not None}
    event = (given.pop("stream", ""), given.pop("event", ""))
    wanted = [
        StartRequest(workflow=name, input=json.loads(text), options=given, event=event if any(event) else None)
        for text in inputs
    ]
    if dry_run:
        await _check_inputs(app, name, wanted)
        return []
    ids: list[str] = []
    with progress_bar("starting", len(wanted)) as bar:
        for begin in range(0, len(wanted), _BATCH_SIZE):
            started = await cast("Remote", app).starter.start(wanted[begin : begin + _BATCH_SIZE])
            ids += (one.public_id for one in started)
            bar.update(len(started))
    return ids


async def _check_inputs(app: Redrive, name: str, wanted: list[Any]) -> None:
    from redrive.cli.options import suggest_names
    from redrive.core.json_schema import find_faults
    from redrive.desk.validation import make_invalid_reason
    from redrive.errors import InputError, UnknownWorkflow
    from redrive.reasons import Reason, ReasonCode

    known = {one.name: one for one in await app.workflows.list()}
    if name not in known:
        raise UnknownWorkflow(f"no code registered a workflow called {name!r}{suggest_names(name, sorted(known))}")
    for each in wanted:
        if found := find_faults(each.input, known[name].input_schema or {}):
            what = Reason(ReasonCode.WORKFLOW_INPUT, workflow=name)
            raise InputError(make_invalid_reason(what, [each.reason for each in found]))


def progress_bar(label: str, length: int) -> Any:
    """A bar for whoever watches a large number of inputs; nothing for the rest."""
    unseen = length < 2 * _BATCH_SIZE or not sys.stderr.isatty()
    return click.progressbar(length=length, label=label, file=sys.stderr, hidden=unseen)


# -- `redrive runs start` and `cancel` -------------------------------------------------------------------


class _StartCommand(click.Command):
    """Says where a workflow's own parameters belong when one is given as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-")
            raise click.UsageError(
                f"{error.format_message()} Parameters of the workflow go into --input: '{{\"{name}\": ...}}'", ctx
            ) from error


@click.command(cls=_StartCommand)
@click.argument("name", metavar="WORKFLOW")
@click.option("--input", "text", metavar="JSON", help="An object from parameter to value; @FILE reads a file.")
@click.option(
    "--many",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Start one run for each line, each the input of one; - is standard input.",
)
@click.option("--tenant", metavar="NAME", help="Whose run it is.  [default: default]")
@click.option("--key", "idempotency_key", metavar="KEY", help="Idempotency key: the same key is the same run.")
@click.option("--event", metavar="ID", help="The event that starts it: the same event is the same run.")
@click.option("--stream", metavar="NAME", help="The stream that --event is of.")
@click.option("--delay", type=DURATION_TYPE, metavar="TIME", help="Begin so much later, such as 10m.")
@click.option("--deadline", type=DURATION_TYPE, metavar="TIME", help="End within this time, such as 2h.")
@click.option("--priority", type=int, metavar="N", help="Larger is more urgent.  [default: 0]")
@click.option("--queue", metavar="NAME", help="The queue.  [default: default]")
@click.option("--correlation-id", metavar="ID", help="An id of yours to find it by.")
@click.option("--dry-run", is_flag=True, help="Check the input, and start nothing.")
@output_options
@target_options
def start(name: str, text: str | None, many: TextIO | None, place: Target, output: Output, **options: Any) -> None:
    """Start a run of WORKFLOW and print its id.

    The input is checked against the workflow's types, so its code is needed: name the app with --app
    or in $REDRIVE_APP. A server checks it itself. A worker executes the run; none needs to be alive now.

    \b
    Examples:
      redrive runs start fulfil --input '{"order": "A-1"}' --app shop:app
      redrive runs start fulfil --input @order.json --key A-1 --app shop:app
      redrive runs start fulfil --input @event.json --stream orders --event e-17 --app shop:app
      redrive runs start fulfil --many orders.jsonl --app shop:app
    """
    from redrive.cli.options import read_input, read_input_lines

    elsewhere = place.server() is not None
    if place.target is None and not elsewhere:
        raise click.UsageError(
            f"starting {name!r} needs its code, to check the input: name the app with --app module:app or $REDRIVE_APP"
        )
    if many is not None and (text is not None or options["idempotency_key"] or options["event"]):
        raise click.UsageError("--many excludes --input, --key and --event")
    if (options["event"] is None) != (options["stream"] is None):
        raise click.UsageError("--event and --stream belong together: the id of an event, and of which stream")
    if options["event"] is not None and options["idempotency_key"] is not None:
        raise click.UsageError("--event excludes --key: an event is its own key")
    dry_run = options.pop("dry_run")
    inputs = [read_input(text)] if many is None else list(read_input_lines(many))
    begin = start_on_server if elsewhere else _start_locally
    ids = run_on(place, lambda app: begin(app, name, inputs, dry_run=dry_run, options=options))
    for id in ids:
        output.done(id, {"id": id, "workflow": name}, id)
    if dry_run:
        echo_err(f"would start {len(inputs)} run{'s' * (len(inputs) != 1)} of {name!r}; nothing was started")
    elif on_terminal() and not output.json and not output.quiet and len(ids) == 1:
        echo_err(f"Follow it: {hint('runs', 'watch', ids[0])}")


async def _start_locally(
    app: Redrive, name: str, inputs: list[str], *, dry_run: bool, options: dict[str, Any]
) -> list[str]:
    from redrive.app import Start
    from redrive.cli.options import decode_arguments, require_workflow

    workflow = require_workflow(app, name)
    given = {key: value for key, value in options.items() if value is not None}
    event = (given.pop("stream", ""), given.pop("event", ""))
    with progress_bar("checking", len(inputs)) as bar:
        starts = [Start(*decode_arguments(workflow, text), given) for text in _with_progress(inputs, bar)]
    if dry_run:
        return []
    if any(event):
        return [(await workflow.receive(event, *each.args, **each.kwargs, **given)).id for each in starts]
    ids: list[str] = []
    with progress_bar("starting", len(starts)) as bar:
        for begin in range(0, len(starts), _BATCH_SIZE):
            handles = await workflow.start_many(starts[begin : begin + _BATCH_SIZE])
            ids += (handle.id for handle in handles)
            bar.update(len(handles))
    return ids


def _with_progress(inputs: list[str], bar: Any) -> Iterator[str]:
    """The inputs one by one, counted in batches: a bar that moves at each would cost more than the work."""
    for number, text in enumerate(inputs, 1):
        yield text
        if number % _BATCH_SIZE == 0 or number == len(inputs):
            bar.update((number - 1) % _BATCH_SIZE + 1)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="RUN...")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@change_options
@output_options
@target_options
def cancel(ids: tuple[str, ...], reason: str, change: ChangeOptions, place: Target, output: Output) -> None:
    """Cancel runs for good. `-` reads ids from standard input.

    \b
    Examples:
      redrive runs cancel 01k9x7 --reason "ordered twice"
      redrive runs list -q --workflow remind | redrive runs cancel - --yes
    """
    from redrive.cli.options import find_run_id, read_ids

    async def work(app: Redrive) -> None:
        found: dict[str, Run] = {}

        async def find(id: str) -> None:
            run = await app.runs.get(await find_run_id(app, id))
            found[run.id] = run

        async def one(id: str) -> None:
            if change.dry_run:
                run = found[id]
                output.done(id, run, f"would cancel {id}, which is {run.status}{_note_if_ended(run)}")
                return
            output.done(id, await app.runs.cancel(id, by=change.by, reason=reason), f"cancelled {id}")

        missing = await for_each_id(read_ids(ids), find)
        if found:
            change.confirm(f"Cancel {_describe_runs(list(found.values()))}, for good")
        exit_if_failed(max(missing, await for_each_id(list(found), one)))

    run_on(place, work)


def _describe_runs(runs: list[Run]) -> str:
    if len(runs) == 1:
        return f"run {runs[0].id} ({runs[0].workflow}, {runs[0].status})"
    return f"{len(runs)} runs, {runs[0].id} to {runs[-1].id}"


def _note_if_ended(run: Run) -> str:
    from redrive.core.states import FINAL_RUN_STATUSES

    return ": too late, it has ended" if run.status in FINAL_RUN_STATUSES else ""


# -- `redrive runs retry`: run again what failed, whatever became of its dead letter ---------------------


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--mode",
    type=click.Choice(("from_failed", "full", "skip_failed"), case_sensitive=False),
    default="from_failed",
    show_default=True,
    help="Go on at the failed step, begin anew as a new run, or go on behind the failed step.",
)
@click.option(
    "--skip-step",
    "skipped",
    multiple=True,
    metavar="NAME=JSON",
    help="Take this for the step's result instead of calling it; may be repeated.",
)
@input_edit_options
@click.option("--output", "result", metavar="JSON", help="With skip_failed: what the failed step shall have given.")
@replay_options
@WAIT_OPTION
@change_options
@output_options
@target_options
def retry(
    ids: tuple[str, ...],
    mode: str,
    skipped: tuple[str, ...],
    edits: dict[str, Any],
    result: str | None,
    wait: bool,
    options: dict[str, Any],
    change: ChangeOptions,
    output: Output,
    place: Target,
) -> None:
    """Run failed or partial runs again. `-` reads ids from standard input.

    The same as `dlq replay`, by run: it works for runs whose dead letter is closed, or that never had
    one, as well. A run with an open dead letter is replayed through it. --dry-run says what would happen.

    \b
    Examples:
      redrive runs retry 01k9x7 --dry-run
      redrive runs retry 01k9x7 --mode full --patch '{"count": 2}'
      redrive runs retry 01k9x7 --skip-step charge='"ch_123"' --wait
    """
    from redrive.cli.dlq.decision import DecisionOptions, run_decision

    options |= {**edits, "skip_steps": parse_step_outputs(skipped, "--skip-step") or None}
    if result is not None:
        options["output"] = parse_json_value(result, "--output")
    act = _make_retry_decision(mode, by=change.by, **options)
    run_decision(place, ids, act, DecisionOptions(change=change, output=output, wait=wait))


def _make_retry_decision(mode: str, **options: Any) -> ReplayDecision:
    from redrive.cli.dlq.decision import DecisionSubject, ReplayDecision
    from redrive.cli.options import find_run_id
    from redrive.core.states import FINAL_RUN_STATUSES, RunStatus

    async def find(app: Redrive, id: str) -> DecisionSubject:
        run = await app.runs.get(await find_run_id(app, id))
        name = f"run {run.id} ({run.workflow}, {run.status})"
        settled = run.status not in FINAL_RUN_STATUSES or run.status is RunStatus.SUCCESS
        return DecisionSubject(id=run.id, name=name, workflow=run.workflow, settled=settled)

    async def make(app: Redrive, subject: DecisionSubject, dry_run: bool) -> Replay | DryRun:
        return await app.runs.retry(subject.id, mode, dry_run=dry_run, **options)

    return ReplayDecision(find=find, make=make)


# -- `redrive runs rollback`: undo what a failed run did -------------------------------------------------


@click.command()
@click.argument("id", metavar="RUN")
@click.option("--reason", metavar="TEXT", help="Why, for the record.")
@change_options
@output_options
@target_options
def rollback(id: str, reason: str | None, change: ChangeOptions, place: Target, output: Output) -> None:
    """Undo what a failed RUN did, by the compensations of its steps. `saga show` follows it.

    It works whether or not the workflow is rolled back by itself, and is refused behind a pivot.

    \b
    Examples:
      redrive runs rollback 01k9x7 --dry-run
      redrive runs rollback 01k9x7 --reason "the customer cancelled"
    """
    from redrive.cli.saga import run_rollback_decision

    run_rollback_decision(place, id, "rollback", None, reason, change, output)
