"""`redrive runs list`, `show`, `why`, `tree` and `watch`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import INTERRUPTED
from redrive.cli.hints import app_name, hint
from redrive.cli.options import TIME_TYPE, find_run_id, parse_index_values
from redrive.cli.output import Column, Output, display_tenant, echo, echo_err, escape_line, field_columns, on_terminal
from redrive.cli.target import Listing, PageOptions, Target, common_options, page_options, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import EventRecord, Run
    from redrive.store.result_page import Page

_POLL_INTERVAL = 0.3
_MAX_FAMILY = 200  # runs that `tree` shows
_STATUS_NAMES = (
    "PENDING", "RUNNING", "SLEEPING", "COMPENSATING", "SUCCESS", "PARTIAL", "FAILED", "DLQ_PENDING",
    "TIMED_OUT", "CANCELLED", "COMPENSATED",
)  # fmt: skip


@click.command("list")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(_STATUS_NAMES, case_sensitive=False),
    help="Only runs in this state; may be repeated.",
)
@click.option("--tenant", metavar="NAME", help="Only runs of this tenant.  [default: all]")
@click.option("--queue", metavar="NAME", help="Only runs of this queue.")
@click.option("--correlation-id", metavar="ID", help="Only runs with this correlation id.")
@click.option("--idempotency-key", metavar="KEY", help="Only runs started with this idempotency key.")
@click.option(
    "--index",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only runs with this value in a field declared with index=[...]; may be repeated.",
)
@click.option("--handler-for", metavar="RUN", help="Only runs that handle the failure of this run.")
@click.option("--parent", metavar="RUN", help="Only runs that this run started.")
@click.option("--waits-for", metavar="EVENT", help="Only runs that wait for this event now.")
@click.option("--since", type=TIME_TYPE, metavar="TIME", help="Created at or after: 2h (ago), or an ISO time.")
@click.option("--until", type=TIME_TYPE, metavar="TIME", help="Created before.")
@page_options
@common_options
def list_(target: Target, output: Output, pages: PageOptions, **filters: Any) -> None:
    """List runs, newest first.

    \b
    Examples:
      redrive runs list
      redrive runs list --status DLQ_PENDING --since 2h
      redrive runs list --index customer.email=ann@example.org
      redrive runs list -q --workflow fulfil | redrive runs cancel -
    """
    from redrive.store.filters import RunFilter

    filters["index"] = parse_index_values(filters["index"], "--index")
    filters["status"] = list(filters["status"]) or None

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[Run]:
        for name in ("handler_for", "parent"):
            if filters[name] is not None:
                filters[name] = await find_run_id(app, filters[name])
        return await app.runs.list(RunFilter(**filters), limit=limit, cursor=cursor)

    columns: list[Column[Run]] = [
        *field_columns(ID="id", WORKFLOW="workflow"),
        Column("STATUS", lambda run: run.status.value),
        *field_columns(CREATED="created_at", CORRELATION="correlation_id"),
        Column("TENANT", lambda run: display_tenant(run.tenant)),
    ]
    start = hint("runs", "start", "NAME", "--input", "'{...}'")
    if "--app" not in start:
        start = f"{start} --app {app_name()}"
    listing: Listing[Run] = Listing(
        fetch=fetch, columns=columns, id=lambda run: run.id, empty=f"No run matches. To start one: {start}"
    )
    pages.show(target, listing, output)


@click.command(short_help="Show one run: its timeline, input and result.")
@click.argument("id", metavar="RUN")
@common_options
def show(id: str, target: Target, output: Output) -> None:
    """Show one run: its steps and attempts as a timeline, its input, its result.

    RUN is an id or the start of one, if no other id starts like it.

    \b
    Examples:
      redrive runs show 01k9x7
      redrive runs show 01k9x7 --json
    """
    from redrive.cli.runs.timeline import render_run

    async def load(app: Redrive) -> tuple[Run, tuple[EventRecord, ...]]:
        run = await _load_run(app, id)
        return run, await app.runs.events(run.id)

    run, events = run_on(target, load)
    output.record(run.id, run, "\n".join(render_run(run, events=events)))


@click.command(short_help="Show a run with its parents and its children.")
@click.argument("id", metavar="RUN")
@common_options
def tree(id: str, target: Target, output: Output) -> None:
    """Show the family of a run: from the first run that was started, all runs that it started in turn.

    \b
    Examples:
      redrive runs tree 01k9x7
      redrive runs tree 01k9x7 --json
    """

    async def load(app: Redrive) -> tuple[str, list[tuple[int, Run]]]:
        run = await _load_run(app, id)
        return run.id, await _load_family(app, run)

    run_id, family = run_on(target, load)
    lines = [
        f"{'  ' * level}{run.id}  {escape_line(run.workflow)}  {run.status.value}{'  ←' if run.id == run_id else ''}"
        for level, run in family
    ]
    if len(family) > _MAX_FAMILY:  # one more was read, to know that there are more
        lines[_MAX_FAMILY:] = [f"… and more: {hint('runs', 'list', '--parent', 'RUN')}"]
    runs = [
        {"id": run.id, "workflow": run.workflow, "status": run.status.value, "parent": run.parent, "level": level}
        for level, run in family[:_MAX_FAMILY]
    ]
    output.record(run_id, {"run": run_id, "runs": runs}, "\n".join(lines))


async def _load_family(app: Redrive, run: Run) -> list[tuple[int, Run]]:
    """Return the runs of a family with their levels, each followed by its children. A purged parent ends the way up."""
    from redrive.desk.runs import load_family
    from redrive.errors import NotFound

    first = run
    for _ in range(_MAX_FAMILY):
        if first.parent is None:
            break
        try:
            first = await app.runs.get(first.parent)
        except NotFound:
            break
    return await load_family(app.runs, first, _MAX_FAMILY + 1)


@click.command()
@click.argument("id", metavar="RUN")
@functools.partial(common_options, quiet_help="Print the status of the run and nothing else.")
def why(id: str, target: Target, output: Output) -> None:
    """Explain the state of a run, and name the next command.

    \b
    Examples:
      redrive runs why 01k9x7
      redrive runs why 01k9x7 --quiet
    """
    from redrive.cli.output import fold_text
    from redrive.cli.runs.explain import explain_run, list_open_waits
    from redrive.desk.runs import load_failed_children

    async def explain(app: Redrive) -> tuple[Run, list[str]]:
        run = await _load_run(app, id)
        failed = await load_failed_children(app.runs, list_open_waits(run))
        return run, explain_run(run, await app.runs.context(run.id), await app.runs.events(run.id), failed)

    run, sentences = run_on(target, explain)
    lines = [f"Run {run.id} of {escape_line(run.workflow)} is {run.status}."]
    lines += (fold_text(escape_line(sentence), sys.stdout) for sentence in sentences)
    output.record(run.status, {"id": run.id, "status": run.status, "why": sentences}, "\n".join(lines))


@click.command()
@click.argument("id", metavar="RUN")
@click.option("--json", "json_", is_flag=True, help="Print the run as JSON, in a stable shape, when it has ended.")
@target_options
def watch(id: str, target: Target, json_: bool) -> None:
    """Follow a run until it ends. Ctrl-C does not stop the run.

    Exit code 0 if it succeeds, 1 if it ends otherwise, 130 if you stop watching.

    \b
    Examples:
      redrive runs watch 01k9x7
      redrive runs start fulfil -q --app shop:app | xargs redrive runs watch
    """
    import asyncio

    from redrive.core.states import FINAL_RUN_STATUSES, RunStatus

    output, run_id = Output(json=json_), id

    async def follow(app: Redrive) -> Run:
        nonlocal run_id
        run_id = await find_run_id(app, id)
        with _open_display(output) as display:
            while True:
                run = await app.runs.get(run_id)
                display(run)
                if run.status in FINAL_RUN_STATUSES:
                    return run
                await asyncio.sleep(_POLL_INTERVAL)

    try:
        run = run_on(target, follow)
    except KeyboardInterrupt:
        echo_err(f"\nThe run continues. To watch it again: {hint('runs', 'watch', run_id)}")
        raise click.exceptions.Exit(INTERRUPTED) from None
    if output.json:
        output.object(run)
    if run.status is not RunStatus.SUCCESS:
        echo_err(f"Run {run.id} ended as {run.status}. To see why: {hint('runs', 'why', run.id)}")
        raise click.exceptions.Exit(1)


@contextmanager
def _open_display(output: Output) -> Iterator[Callable[[Run], None]]:
    """Open a display of a run: redrawn on a terminal that has rich, otherwise a line for each event."""
    if output.json:
        yield lambda run: None
        return
    if not on_terminal():
        yield _make_line_display()
        return
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ModuleNotFoundError:
        yield _make_line_display()
        return
    from redrive.cli.output import make_printable, use_colour
    from redrive.cli.runs.timeline import render_run

    console = Console(no_color=not use_colour(), highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def draw(run: Run) -> None:
            live.update(Text.from_ansi(make_printable("\n".join(render_run(run, brief=True)))), refresh=True)

        yield draw


def _make_line_display() -> Callable[[Run], None]:
    """Make a display that prints each event of a run once."""
    printed: set[str] = set()

    def print_once(event: str, text: str) -> None:
        if event not in printed:
            printed.add(event)
            echo(escape_line(text))

    def display(run: Run) -> None:
        for step in run.steps:
            for number, attempt in enumerate(step.attempts):
                print_once(f"{step.index}.{number}.{attempt.status}", f"{step.name}: {attempt.decision}")
            if not step.attempts:
                print_once(f"{step.index}.{step.status}", f"{step.name}: {step.status.lower()}")
        print_once(run.status, f"run {run.id} is {run.status}" + (f": {run.error}" if run.error else ""))

    return display


async def _load_run(app: Redrive, id: str) -> Run:
    return await app.runs.get(await find_run_id(app, id))
