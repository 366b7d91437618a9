"""`redrive runs list`, `show`, `why` and `watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.options import TIME_TYPE
from redrive.cli.output import Column, Output, display_tenant, echo, output_options
from redrive.cli.pager import Listing, PageOptions, page_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import Run
    from redrive.store.records import Page

STATUS_NAMES = (
    "PENDING", "RUNNING", "SLEEPING", "COMPENSATING", "SUCCESS", "PARTIAL", "FAILED", "DLQ_PENDING",
    "TIMED_OUT", "CANCELLED", "COMPENSATED",
)  # fmt: skip


@click.command("list")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option(
    "--status",
    multiple=True,
    type=click.Choice(STATUS_NAMES, case_sensitive=False),
    help="Only runs that stand here; may be repeated.",
)
@click.option("--tenant", metavar="NAME", help="Only runs of this tenant.  [default: all]")
@click.option("--queue", metavar="NAME", help="Only runs of this queue.")
@click.option("--correlation-id", metavar="ID", help="Only runs with this correlation id.")
@click.option(
    "--index",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only runs with this value in a field that their workflow declared with index=[...]; may be repeated.",
)
@click.option("--handler-for", metavar="RUN", help="Only runs that handle the failure of this run.")
@click.option("--since", type=TIME_TYPE, metavar="TIME", help="Created at or after: 2h (ago), or an ISO time.")
@click.option("--until", type=TIME_TYPE, metavar="TIME", help="Created before.")
@page_options
@output_options
@target_options
def list_(place: Target, output: Output, pages: PageOptions, **filters: Any) -> None:
    """List runs, newest first.

    \b
    Examples:
      redrive runs list
      redrive runs list --status DLQ_PENDING --since 2h
      redrive runs list --index customer.email=ann@example.org
      redrive runs list -q --workflow fulfil | redrive runs cancel -
    """
    from redrive.cli.dlq.arguments import parse_index_values
    from redrive.cli.options import find_run_id
    from redrive.store.filters import RunFilter

    filters["index"] = parse_index_values(filters["index"], "--index")
    filters["status"] = list(filters["status"]) or None

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[Run]:
        if filters["handler_for"] is not None:
            filters["handler_for"] = await find_run_id(app, filters["handler_for"])
        return await app.runs.list(RunFilter(**filters), limit=limit, cursor=cursor)

    columns: list[Column[Run]] = [
        Column("ID", lambda run: run.id),
        Column("WORKFLOW", lambda run: run.workflow),
        Column("STATUS", lambda run: run.status.value),
        Column("CREATED", lambda run: run.created_at),
        Column("CORRELATION", lambda run: run.correlation_id),
        Column("TENANT", lambda run: display_tenant(run.tenant)),
    ]
    listing: Listing[Run] = Listing(
        fetch=fetch, columns=columns, id=lambda run: run.id, empty=f"No such run. Start one: {_start_hint()}"
    )
    pages.show(place, listing, output)


@click.command()
@click.argument("id", metavar="RUN")
@output_options
@target_options
def show(id: str, place: Target, output: Output) -> None:
    """Show one run: its steps and attempts as a timeline, its input, its result.

    RUN is an id, or a beginning of one that fits no other.

    \b
    Examples:
      redrive runs show 01k9x7
      redrive runs show 01k9x7 --json
    """
    run = run_on(place, lambda app: _load_run(app, id))
    if output.json:
        output.object(run)
    elif output.quiet:
        echo(run.id)
    else:
        from redrive.cli.runs.explain import render_run

        echo("\n".join(render_run(run)))


@click.command()
@click.argument("id", metavar="RUN")
@output_options
@target_options
def why(id: str, place: Target, output: Output) -> None:
    """Say in plain words why a run is where it is, and what to do next.

    \b
    Examples:
      redrive runs why 01k9x7
    """
    import sys

    from redrive.cli.output import escape_line, fold_text
    from redrive.cli.runs.explain import explain_run

    async def explain(app: Redrive) -> tuple[Run, list[str]]:
        run = await _load_run(app, id)
        return run, explain_run(run, await app.runs.context(run.id))

    run, said = run_on(place, explain)
    if output.json:
        output.object({"id": run.id, "status": run.status, "why": said})
    elif output.quiet:
        echo(run.id)
    else:
        echo(f"Run {run.id} of {escape_line(run.workflow)} is {run.status}.")
        for sentence in said:
            echo(fold_text(escape_line(sentence), sys.stdout))


@click.command()
@click.argument("id", metavar="RUN")
@click.option("--json", "json_", is_flag=True, help="Print JSON, in a shape that stays, when the run has ended.")
@target_options
def watch(id: str, place: Target, json_: bool) -> None:
    """Follow a run until it ends. Ctrl-C leaves the run going.

    Exit code 0 if it succeeds, 1 if it ends otherwise, 130 if you stop watching.

    \b
    Examples:
      redrive runs watch 01k9x7
      redrive runs start fulfil -q --app shop:app | xargs redrive runs watch
    """
    from redrive.cli.runs.follow import follow_run

    follow_run(place, id, Output(json=json_))


def _start_hint() -> str:
    from redrive.cli.messages import app_name, hint

    words = hint("runs", "start", "NAME", "--input", "'{...}'")
    return words if "--app" in words else f"{words} --app {app_name()}"


async def _load_run(app: Redrive, id: str) -> Run:
    from redrive.cli.options import find_run_id

    return await app.runs.get(await find_run_id(app, id))
