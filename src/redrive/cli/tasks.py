"""`redrive tasks`: list and show the tasks of people, answer, assign and comment on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import UsageError
from redrive.cli.hints import hint
from redrive.cli.options import ChangeOptions, check_assignee, current_user, find_run_id, parse_json_value
from redrive.cli.output import Column, Output, display_tenant, escape_line, field_columns, json_text
from redrive.cli.target import CURSOR_OPTION, LIMIT_OPTION, ChangeResult, Target, change_command, common_options, run_on
from redrive.core.audit import AuditEvent

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.models import AuditRecord, Task
    from redrive.store.result_page import Page

_TASK_ARGUMENT = click.argument("id", metavar="TASK")
_STATES = ("OPEN", "ANSWERED", "EXPIRED", "WITHDRAWN", "CLOSED", "ALL")


@click.group()
def tasks() -> None:
    """List the questions that workflows ask people, and answer them.

    \b
    Examples:
      redrive tasks list
      redrive tasks show tk-01k9x7qk3v8d2m5n6p7r8s9t0a-3
      redrive tasks answer tk-01k9x7qk3v8d2m5n6p7r8s9t0a-3 approve --note "checked"
    """


@tasks.command("list")
@click.option(
    "--status",
    type=click.Choice(_STATES, case_sensitive=False),
    default="OPEN",
    show_default=True,
    help="Only this status; CLOSED means all but the open ones.",
)
@click.option("--mine", is_flag=True, help="Only tasks that are assigned to you, or that name you.")
@click.option("--person", metavar="NAME", help="The same for another user.")
@click.option("--role", metavar="ROLE", help="Only tasks that a user with this role may answer.")
@click.option("--late", is_flag=True, help="Only tasks with a reminder or an escalation.")
@click.option("--workflow", metavar="NAME", help="Only tasks of this workflow.")
@click.option("--run", metavar="RUN", help="Only tasks of this run.")
@click.option("--tenant", metavar="NAME", help="Only tasks of this tenant.  [default: all]")
@LIMIT_OPTION
@CURSOR_OPTION
@common_options
def list_(
    status: str,
    mine: bool,
    run: str | None,
    limit: int,
    cursor: str | None,
    output: Output,
    target: Target,
    **filters: Any,
) -> None:
    """List tasks, newest first.

    \b
    Examples:
      redrive tasks list --mine
      redrive tasks list --status ALL --workflow refund
    """
    from redrive.store.filters import TaskFilter

    if mine and filters["person"] is not None:
        raise UsageError("--mine and --person exclude each other")

    async def fetch(app: Redrive) -> Page[Task]:
        if mine:
            filters["person"] = await _find_own_name(app, current_user())
        run_id = await find_run_id(app, run) if run else None
        where = TaskFilter(status=None if status == "ALL" else status, run_id=run_id, **filters)
        return await app.tasks.list(where, limit=limit, cursor=cursor)

    columns: list[Column[Task]] = [
        *field_columns(ID="id", SINCE="created_at", WORKFLOW="workflow", STATUS="status"),
        Column("FOR", lambda one: one.owner or one.audience),
        *field_columns(EXPIRES="due_at"),
        Column("QUESTION", lambda one: one.question, sentence=True),
        Column("TENANT", lambda one: display_tenant(one.tenant)),
    ]
    page = run_on(target, fetch)
    empty = "No task matches."
    output.list(page.items, columns, id=lambda one: one.id, empty=empty, next=page.next, prev=page.prev)


async def _find_own_name(app: Redrive, name: str) -> str:
    """Return the name of the token on a server, else the given one."""
    return str((await app.me())["who"]) if hasattr(app, "me") else name


@tasks.command()
@_TASK_ARGUMENT
@common_options
def show(id: str, output: Output, target: Target) -> None:
    """Show a task: question, data, who may answer, history.

    \b
    Examples:
      redrive tasks show tk-01k9x7qk3v8d2m5n6p7r8s9t0a-3
    """
    task = run_on(target, lambda app: app.tasks.get(id))
    facts = {
        "status": task.status.value,
        "for": task.audience,
        "apart from": ", ".join(task.apart_from),
        "assigned": task.owner,
        "workflow": task.workflow,
        "run": task.run_id,
        "tenant": task.tenant,
        "asked": task.created_at.isoformat(timespec="seconds"),
        "expires": None if task.due_at is None else task.due_at.isoformat(timespec="seconds"),
        "replaces": task.replaces,
        "answered": None if task.answered_at is None else f"{task.answered_at:%Y-%m-%d %H:%M:%S} by {task.answered_by}",
        "note": task.note,
    }
    lines = [escape_line(task.question), ""]
    lines += [f"{name:10} {escape_line(value)}" for name, value in facts.items() if value]
    if task.shown is not None:
        lines += ["", json_text(task.shown, indent=2)]
    if task.answered_at is not None:
        lines += ["", f"answer     {json_text(task.answer)}"]
    elif task.is_open:
        choice = task.options[0] if task.options else "--data JSON"
        lines += ["", f"options    {', '.join(map(escape_line, task.options)) or json_text(task.schema)}"]
        lines += [f"Answer it: {hint('tasks', 'answer', task.id, choice)}"]
    lines += ["", *map(_describe_record, task.history)] if task.history else []
    output.record(task.id, task, "\n".join(lines))


def _describe_record(record: AuditRecord) -> str:
    """Return a line of the history of a task: when, what, by whom, and the comment or the new assignee."""
    text = f"{record.label} by {record.by}"
    if record.event in (AuditEvent.TASK_COMMENTED, AuditEvent.TASK_ASSIGNED, AuditEvent.TASK_ESCALATED):
        text = f"{text}: {'unassigned' if record.after is None else record.after}"
    elif record.reason:
        text = f"{text}: {record.reason}"
    return f"{record.at:%Y-%m-%d %H:%M:%S} {escape_line(text)}"


@change_command(
    tasks,
    _TASK_ARGUMENT,
    click.argument("choice", metavar="[OPTION]", required=False),
    click.option(
        "--data", metavar="JSON", help="Answer as JSON, for a task without options; @FILE reads it from a file."
    ),
    click.option("--note", metavar="TEXT", help="A note for the run and the audit log."),
)
async def answer(
    app: Redrive, id: str, choice: str | None, data: str | None, note: str | None, change: ChangeOptions
) -> ChangeResult:
    """Answer TASK with one of its options, or with data for its form. The first answer counts.

    \b
    Examples:
      redrive tasks answer tk-01k9x7qk3v8d2m5n6p7r8s9t0a-3 approve --note "checked"
      redrive tasks answer tk-01k9x7qk3v8d2m5n6p7r8s9t0a-3 --data '{"amount": "39.90"}'
    """
    if (choice is None) == (data is None):
        raise UsageError("give one of the options of the task, or --data with JSON")
    value = choice if data is None else parse_json_value(data, "--data")
    task = await app.tasks.get(id)
    if change.dry_run:
        return task.id, task, f"would answer {task.id}: {escape_line(task.question)}\nNothing was changed."
    change.confirm(f"Answer {task.question!r} with {choice or data}")
    done = await app.tasks.answer(task.id, value, note=note, by=change.by)
    return done.id, done, f"answered {done.id}; run {done.run_id} continues"


@change_command(
    tasks,
    _TASK_ARGUMENT,
    click.option("--to", metavar="NAME", help="The new assignee.  [default: you]"),
    click.option("--unassign", is_flag=True, help="Leave the task unassigned."),
)
async def assign(app: Redrive, id: str, to: str | None, unassign: bool, change: ChangeOptions) -> ChangeResult:
    """Assign TASK to a user. Who may answer it does not change.

    \b
    Examples:
      redrive tasks assign tk-01k9x7qk3v8d2m5n6p7r8s9t0a-3 --to ann@example.org
    """
    check_assignee(to, unassign)
    owner = None if unassign else await _find_own_name(app, change.by) if to is None else to
    details = f"assign {id} to {owner}" if owner else f"unassign {id}"
    if change.dry_run:
        task = await app.tasks.get(id)
        return task.id, task, f"would {details}"
    task = await app.tasks.assign(id, to=owner, by=change.by)
    return task.id, task, details.replace("assign ", "assigned ", 1)


@change_command(tasks, _TASK_ARGUMENT, click.argument("text", metavar="TEXT"))
async def comment(app: Redrive, id: str, text: str, change: ChangeOptions) -> ChangeResult:
    """Add a comment to TASK.

    \b
    Examples:
      redrive tasks comment tk-01k9x7qk3v8d2m5n6p7r8s9t0a-3 "asked the bank, they answer tomorrow"
    """
    if change.dry_run:
        task = await app.tasks.get(id)
        return task.id, task, f"would comment on {id}"
    task = await app.tasks.comment(id, text, by=change.by)
    return task.id, task, f"commented on {id}"
