"""Commands that start or change runs: `redrive runs start`, `cancel`, `retry`, `rollback` and `send`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from redrive.cli.dlq.replay import WAIT_OPTION, input_edit_options, replay_options
from redrive.cli.errors import NOT_FOUND, CommandFailed
from redrive.cli.hints import hint, suggest_names
from redrive.cli.options import (
    DURATION_TYPE,
    ChangeOptions,
    current_user,
    decode_arguments,
    exit_if_failed,
    find_run_id,
    for_each_id,
    parse_json_value,
    parse_retry_policy,
    parse_step_outputs,
    read_ids,
    read_input,
    read_input_lines,
)
from redrive.cli.output import Output, echo_err, escape_line, on_terminal
from redrive.cli.target import Target, common_options, decision_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive, Workflow
    from redrive.cli.replay_decision import DecisionSubject
    from redrive.desk.models import Run, SentEvent
    from redrive.desk.preview import DryRun
    from redrive.desk.replays import Replay


T = TypeVar("T")
_BATCH_SIZE = 500


class _StartCommand(click.Command):
    """The command `start`. It explains where a parameter of the workflow belongs that is given as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-")
            raise click.UsageError(
                f"{error.format_message()} Parameters of the workflow belong in --input: '{{\"{name}\": ...}}'", ctx
            ) from error


@click.command(cls=_StartCommand)
@click.argument("name", metavar="WORKFLOW")
@click.option("--input", "text", metavar="JSON", help="An object from parameter to value; @FILE reads a file.")
@click.option(
    "--many",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Start one run for each line, which is its input; - is standard input.",
)
@click.option("--tenant", metavar="NAME", help="The tenant of the run.  [default: default]")
@click.option("--key", "idempotency_key", metavar="KEY", help="Idempotency key: the same key is the same run.")
@click.option("--event", metavar="ID", help="The event that starts it: the same event is the same run.")
@click.option("--stream", metavar="NAME", help="The stream of --event.")
@click.option("--delay", type=DURATION_TYPE, metavar="TIME", help="Start after this time, such as 10m.")
@click.option("--deadline", type=DURATION_TYPE, metavar="TIME", help="End within this time, such as 2h.")
@click.option("--timeout", type=DURATION_TYPE, metavar="TIME", help="Time limit of the whole run.")
@click.option("--step-timeout", type=DURATION_TYPE, metavar="TIME", help="Time limit of each attempt of each step.")
@click.option(
    "--heartbeat-timeout", type=DURATION_TYPE, metavar="TIME", help="Longest time between heartbeats of a step."
)
@click.option("--retry", multiple=True, metavar="FIELD=VALUE", help="Retry policy for all steps; may be repeated.")
@click.option("--on-failure", metavar="WORKFLOW", help="The workflow to start if the run fails.")
@click.option("--failure-queue", metavar="NAME", help="The queue of that workflow.  [default: that of the run]")
@click.option("--priority", type=int, metavar="N", help="Larger is more urgent.  [default: 0]")
@click.option("--queue", metavar="NAME", help="The queue.  [default: default]")
@click.option("--correlation-id", metavar="ID", help="Your own id to find the run by.")
@click.option("--dry-run", is_flag=True, help="Check the input and start nothing.")
@common_options
def start(name: str, text: str | None, many: TextIO | None, target: Target, output: Output, **options: Any) -> None:
    """Start a run of WORKFLOW and print its id.

    The input is checked against the workflow's types: by its code, if --app or $REDRIVE_APP names the app,
    else by what its workers registered. The run waits until a worker is running.

    --retry, --step-timeout and --heartbeat-timeout apply to all steps of the run, before their own options.

    \b
    Examples:
      redrive runs start fulfil --input '{"order": "A-1"}'
      redrive runs start fulfil --input @order.json --key A-1 --app shop:app
      redrive runs start fulfil --input @event.json --stream orders --event e-17 --app shop:app
      redrive runs start fulfil --many orders.jsonl --app shop:app
      redrive runs start fulfil --input @order.json --retry max_retries=9 --step-timeout 1m
    """
    if many is not None and (text is not None or options["idempotency_key"] or options["event"]):
        raise click.UsageError("--many excludes --input, --key and --event")
    if (options["event"] is None) != (options["stream"] is None):
        raise click.UsageError("--event and --stream belong together: give the id of the event and its stream")
    if options["event"] is not None and options["idempotency_key"] is not None:
        raise click.UsageError("--event excludes --key: an event is its own key")
    options["retry"] = parse_retry_policy(options["retry"])
    given = {key: value for key, value in options.items() if value is not None}
    dry_run, event = given.pop("dry_run"), (given.pop("stream", ""), given.pop("event", ""))
    inputs = [read_input(text)] if many is None else list(read_input_lines(many))
    if target.server() is None:  # a server knows the user by the token
        given["started_by"] = current_user()
    begin = _start_by_name if target.app_name is None or target.server() is not None else _start_locally
    ids = run_on(target, lambda app: begin(app, name, inputs, event, given, dry_run))
    for id in ids:
        output.done(id, {"id": id, "workflow": name}, id)
    if dry_run:
        echo_err(f"would start {len(inputs)} run{'s' * (len(inputs) != 1)} of {name!r}; nothing was started")
    elif on_terminal() and not output.json and not output.quiet and len(ids) == 1:
        echo_err(f"Follow it: {hint('runs', 'watch', ids[0])}")


async def _start_by_name(
    app: Redrive, name: str, inputs: list[str], event: tuple[str, str], options: dict[str, Any], dry_run: bool
) -> list[str]:
    """Start a run for each input without the code, after all inputs fitted the schema that workers registered."""
    from redrive.core.json_schema import find_faults
    from redrive.desk.run_starter import StartRequest
    from redrive.desk.validation import make_invalid_reason
    from redrive.errors import InputError
    from redrive.reasons import Reason, ReasonCode

    requests = [
        StartRequest(workflow=name, input=json.loads(text), options=options, event=event if any(event) else None)
        for text in inputs
    ]
    schemas = {each.name: each.input_schema for each in await app.workflows.list() if each.input_schema is not None}
    if name not in schemas:
        raise CommandFailed(
            f"workflow {name!r} is not registered: start a worker that has it once, or name its app with "
            f"--app module:app{suggest_names(name, sorted(schemas))}",
            NOT_FOUND,
        )
    for request in requests:
        if faults := find_faults(request.input, schemas[name]):
            subject = Reason(ReasonCode.WORKFLOW_INPUT, workflow=name)
            raise InputError(make_invalid_reason(subject, [fault.reason for fault in faults]))
    if dry_run:
        return []
    starter = getattr(app, "starter", None) or app.runtime.starter  # only the client of a server has it
    ids: list[str] = []
    for batch in _in_batches("starting", requests):
        ids += (run.public_id for run in await starter.start(batch))
    return ids


async def _start_locally(
    app: Redrive, name: str, inputs: list[str], event: tuple[str, str], options: dict[str, Any], dry_run: bool
) -> list[str]:
    from redrive.app import Start

    workflow = _require_workflow(app, name)
    starts: list[Start] = []
    for texts in _in_batches("checking", inputs):
        starts += (Start(*decode_arguments(workflow, text), options) for text in texts)
    if dry_run:
        return []
    if any(event):
        return [(await workflow.receive(event, *each.args, **each.kwargs, **options)).id for each in starts]
    ids: list[str] = []
    for batch in _in_batches("starting", starts):
        ids += (handle.id for handle in await workflow.start_many(batch))
    return ids


def _in_batches(label: str, items: list[T]) -> Iterator[list[T]]:
    """Yield the items in batches, with a progress bar on a terminal if there are many."""
    hidden = len(items) < 2 * _BATCH_SIZE or not sys.stderr.isatty()
    with click.progressbar(length=len(items), label=label, file=sys.stderr, hidden=hidden) as bar:
        for begin in range(0, len(items), _BATCH_SIZE):
            batch = items[begin : begin + _BATCH_SIZE]
            yield batch
            bar.update(len(batch))


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="RUN...")
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the audit log.")
@decision_options
def cancel(ids: tuple[str, ...], reason: str, change: ChangeOptions, target: Target, output: Output) -> None:
    """Cancel runs for good. `-` reads ids from standard input.

    \b
    Examples:
      redrive runs cancel 01k9x7 --reason "ordered twice"
      redrive runs list -q --workflow remind | redrive runs cancel - --yes
    """
    from redrive.core.states import FINAL_RUN_STATUSES

    async def work(app: Redrive) -> None:
        found: dict[str, Run] = {}

        async def find(id: str) -> None:
            run = await app.runs.get(await find_run_id(app, id))
            found[run.id] = run

        async def cancel_run(id: str) -> None:
            if change.dry_run:
                run = found[id]
                verb = "cannot cancel an ended run:" if run.status in FINAL_RUN_STATUSES else "would cancel"
                output.done(id, run, f"{verb} {id}, which is {run.status}")
                return
            output.done(id, await app.runs.cancel(id, by=change.by, reason=reason), f"cancelled {id}")

        missing = await for_each_id(read_ids(ids), find)
        if found:
            runs = list(found.values())
            name = f"{len(runs)} runs, {runs[0].id} to {runs[-1].id}"
            if len(runs) == 1:
                name = f"run {runs[0].id} ({runs[0].workflow}, {runs[0].status})"
            change.confirm(f"Cancel {name}, for good")
        exit_if_failed(max(missing, await for_each_id(list(found), cancel_run)))

    run_on(target, work)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--mode",
    type=click.Choice(("from_failed", "full", "skip_failed"), case_sensitive=False),
    default="from_failed",
    show_default=True,
    help="Resume from the failed step, start over as a new run, or skip the failed step.",
)
@click.option(
    "--skip-step",
    "skipped",
    multiple=True,
    metavar="NAME=JSON",
    help="Use this result instead of running the step; may be repeated.",
)
@input_edit_options
@click.option("--output", "result", metavar="JSON", help="With skip_failed: the result to use for the failed step.")
@replay_options
@WAIT_OPTION
@decision_options
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
    target: Target,
) -> None:
    """Run failed or partial runs again. `-` reads ids from standard input.

    Works like `dlq replay`, also for runs whose dead letter is closed or that never had one. A run with an
    open dead letter is replayed through it. --dry-run shows the plan and changes nothing.

    \b
    Examples:
      redrive runs retry 01k9x7 --dry-run
      redrive runs retry 01k9x7 --mode full --patch '{"count": 2}'
      redrive runs retry 01k9x7 --skip-step charge='"ch_123"' --wait
    """
    from redrive.cli.replay_decision import DecisionSubject, ReplayDecision, run_decision
    from redrive.core.states import FINAL_RUN_STATUSES, RunStatus

    call = {**options, **edits, "skip_steps": parse_step_outputs(skipped, "--skip-step") or None, "by": change.by}
    if result is not None:
        call["output"] = parse_json_value(result, "--output")

    async def find(app: Redrive, id: str) -> DecisionSubject:
        run = await app.runs.get(await find_run_id(app, id))
        name = f"run {run.id} ({run.workflow}, {run.status})"
        settled = run.status not in FINAL_RUN_STATUSES or run.status is RunStatus.SUCCESS
        return DecisionSubject(id=run.id, name=name, workflow=run.workflow, settled=settled)

    async def make(app: Redrive, subject: DecisionSubject, dry_run: bool) -> Replay | DryRun:
        return await app.runs.retry(subject.id, mode, dry_run=dry_run, **call)

    decision = ReplayDecision(find=find, make=make)
    run_decision(target, ids, decision, change, output, wait=wait)


@click.command()
@click.argument("id", metavar="RUN")
@click.option("--reason", metavar="TEXT", help="The reason, for the audit log.")
@decision_options
def rollback(id: str, reason: str | None, change: ChangeOptions, target: Target, output: Output) -> None:
    """Roll back a failed RUN by the compensations of its steps. `saga show` follows it.

    Works also if the workflow has no automatic rollback. Refused after a pivot step.

    \b
    Examples:
      redrive runs rollback 01k9x7 --dry-run
      redrive runs rollback 01k9x7 --reason "the customer cancelled"
    """
    from redrive.cli.saga import run_rollback_decision

    run_rollback_decision(target, id, "rollback", None, reason, change, output)


def _require_workflow(app: Redrive, name: str) -> Workflow[Any, Any, Any]:
    """Return the workflow with a name, or end the command and suggest similar names."""
    found = app.registered_workflows.get(name)
    if found is None:
        names = sorted(app.registered_workflows)
        raise CommandFailed(
            f"workflow {name!r} is not registered: the app has {', '.join(names)}{suggest_names(name, names)}",
            NOT_FOUND,
        )
    return found


@click.command()
@click.argument("id", metavar="RUN")
@click.argument("name", metavar="EVENT")
@click.option("--data", metavar="JSON", default="null", show_default=True, help="The payload; @FILE reads a file.")
@click.option("--key", metavar="KEY", help="The same key is the same event, however often it is sent.")
@decision_options
def send(id: str, name: str, data: str, key: str | None, change: ChangeOptions, target: Target, output: Output) -> None:
    """Send an event to RUN. It takes the event with redrive.wait_for, now or later.

    The payload is checked against the type that the workflow declares for the event. A run that has ended for good
    takes no events; one that failed keeps them for a replay.

    \b
    Examples:
      redrive runs send 01k9x7 approved --data '{"by": "ann"}'
      redrive runs send 01k9x7 approved --data @approval.json --key click-1
    """
    payload = parse_json_value(data, "--data")

    async def send_event(app: Redrive) -> SentEvent | None:
        run_id = await find_run_id(app, id)
        return None if change.dry_run else await app.runs.send(run_id, name, payload, key=key, by=change.by)

    sent = run_on(target, send_event)
    if sent is None:
        output.done(id, {"run": id, "event": name}, f"would send {name!r}; nothing was sent")
        return
    text = f"Event {escape_line(name)} is number {sent.seq} of run {sent.run_id}, which is {sent.status}."
    output.done(str(sent.seq), sent, f"{text}\nFollow it: {hint('runs', 'watch', sent.run_id)}")


@click.command()
@click.argument("id", metavar="RUN")
@click.option("--to", "version", required=True, metavar="VERSION", help="The version that continues the run.")
@click.option("--reason", default="", metavar="TEXT", help="The reason, for the audit log.")
@decision_options
def move(id: str, version: str, reason: str, change: ChangeOptions, target: Target, output: Output) -> None:
    """Move a pinned RUN to another version of its workflow.

    A live worker must have VERSION. With --app of that version, the record of the run is checked against its code
    first. Otherwise run `redrive code check` before. `workflows versions` lists the versions.

    \b
    Examples:
      redrive runs move 01k9x7 --to 4
      redrive runs move 01k9x7 --to 4 --app shop:app
    """

    async def move_run(app: Redrive) -> None:
        run = await app.runs.get(await find_run_id(app, id))
        change.confirm(f"Move run {run.id} ({run.workflow}, {run.status}) from version {run.version} to {version}")
        if change.dry_run:
            output.done(run.id, run, f"would move {run.id} from version {run.version} to {version}")
            return
        moved = await app.runs.move(run.id, version, by=change.by, reason=reason)
        output.done(run.id, moved, f"moved {run.id} to version {version}; follow it: {hint('runs', 'watch', run.id)}")

    run_on(target, move_run)
