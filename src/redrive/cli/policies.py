"""`redrive policies`: stored retry policies, in force from the next attempt on."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import NOT_FOUND, CommandFailed, hint, program_name, worker_hint
from redrive.cli.options import ChangeOptions, change_options, parse_field
from redrive.cli.output import Column, Output, echo, echo_err, output_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.settings import KnownWorkflow, StoredPolicy

__all__ = ["parse_field", "policies", "workflows"]


# -- `redrive policies`: stored retry policies, in force from the next attempt on ------------------------


@click.group()
def policies() -> None:
    """Change how steps are retried, without a deploy.

    A stored policy is for a step, for all steps of a workflow, or for a step of a workflow; for one
    tenant or for all. It is in force from the next attempt on.

    \b
    Examples:
      redrive policies list
      redrive policies set --step charge max_retries=8 base_delay=2s
      redrive policies delete --step charge
    """


def _scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What the policy is for; the command receives it as `scope`."""

    @click.option("--workflow", metavar="NAME", help="The workflow whose steps are meant.")
    @click.option("--step", metavar="NAME", help="The step that is meant.")
    @click.option("--tenant", metavar="NAME", help="The tenant whose runs are meant.  [default: all]")
    @functools.wraps(command)
    def with_scope(*args: Any, workflow: str | None, step: str | None, tenant: str | None, **others: Any) -> Any:
        if not workflow and not step:
            raise click.UsageError("say what the policy is for: --workflow, --step, or both")
        scope = {"workflow": workflow, "step": step, "tenant": tenant}
        return command(*args, scope=scope, **others)

    return with_scope


@policies.command("list")
@output_options
@target_options
def list_(place: Target, output: Output) -> None:
    """List all stored policies.

    \b
    Examples:
      redrive policies list
    """
    stored = run_on(place, lambda app: app.policies.list())
    columns: list[Column[StoredPolicy]] = [
        Column("WORKFLOW", lambda one: one.workflow),
        Column("STEP", lambda one: one.step),
        Column("TENANT", lambda one: one.tenant),
        Column("POLICY", lambda one: one.policy.summarise()),
        Column("SET BY", lambda one: one.updated_by),
        Column("SET", lambda one: one.updated_at),
    ]
    output.list(
        stored,
        columns,
        id=_format_policy_id,
        empty=f"No policy is stored: steps follow their own. To store one: {program_name()} policies set --help",
    )


@policies.command()
@_scope_options
@output_options
@target_options
def get(scope: dict[str, str | None], place: Target, output: Output) -> None:
    """Show the policy that is stored for exactly this.

    \b
    Examples:
      redrive policies get --step charge
    """
    stored = run_on(place, lambda app: app.policies.get(**scope))
    if stored is None:
        raise _missing_policy_error(scope)
    if output.json:
        output.object(stored)
    elif output.quiet:
        echo(_format_policy_id(stored))
    else:
        for name, value in stored.policy.to_json().items():
            echo(f"{name}={value if isinstance(value, str) else json.dumps(value)}")


@policies.command("set", short_help="Store a policy, replacing the one for the same.")
@click.argument("fields", nargs=-1, required=True, metavar="FIELD=VALUE...")
@_scope_options
@change_options
@output_options
@target_options
def set_(
    fields: tuple[str, ...], scope: dict[str, str | None], change: ChangeOptions, place: Target, output: Output
) -> None:
    """Store a policy, replacing the one for the same. Fields left out have their defaults.

    The fields are those of RetryPolicy: max_retries, base_delay, factor, max_delay, jitter, cap,
    max_elapsed, retry_on, never_retry_on, delays.

    A step or a workflow that nobody has heard of may be a typing error: you are asked, and a script
    says --yes. With --app the code is asked, else the workers and the newest runs.

    \b
    Examples:
      redrive policies set --step charge max_retries=8 base_delay=2s max_delay=5m
      redrive policies set --workflow fulfil delays='["20s", "5m", "30m"]'
    """
    from redrive.cli.messages import report_usage_errors
    from redrive.policy import RetryPolicy

    with report_usage_errors():
        policy = RetryPolicy.from_json(dict(map(parse_field, fields)))

    async def work(app: Redrive) -> StoredPolicy | None:
        from redrive.cli.scope import unknown_names

        _confirm_unknown_names(await unknown_names(app, scope), scope, change)
        return None if change.dry_run else await app.policies.set(policy, **scope, by=change.by)

    stored = run_on(place, work)
    value = policy.to_json() if stored is None else stored
    verb = "would store" if change.dry_run else "stored"
    output.done(
        _format_scope_id(scope),
        value,
        f"{verb} a policy for {_describe_scope(scope)}: in force from the next attempt on",
    )


@policies.command()
@_scope_options
@change_options
@output_options
@target_options
def delete(scope: dict[str, str | None], change: ChangeOptions, place: Target, output: Output) -> None:
    """Remove a stored policy; steps follow their own again.

    \b
    Examples:
      redrive policies delete --step charge
    """

    async def work(app: Redrive) -> None:
        if await app.policies.get(**scope) is None:
            raise _missing_policy_error(scope)
        change.confirm(f"Remove the policy for {_describe_scope(scope)}")
        if not change.dry_run:
            await app.policies.delete(**scope, by=change.by)

    run_on(place, work)
    verb = "would remove" if change.dry_run else "removed"
    output.done(_format_scope_id(scope), scope, f"{verb} the policy for {_describe_scope(scope)}")


def _confirm_unknown_names(doubts: list[str], scope: dict[str, str | None], change: ChangeOptions) -> None:
    """Ask a person; a script must have said that it means a name that nobody knows."""
    for doubt in doubts:
        echo_err(f"Warning: {doubt}")
    if doubts:
        change.require_yes("nothing was stored: correct the name, or add --yes if it will come", NOT_FOUND)
    change.confirm(f"Store this policy for {_describe_scope(scope)}{' all the same' if doubts else ''}")


def _missing_policy_error(scope: dict[str, str | None]) -> CommandFailed:
    return CommandFailed(
        f"no policy is stored for {_describe_scope(scope)}; `{hint('policies', 'list')}` shows all", NOT_FOUND
    )


def _format_policy_id(stored: StoredPolicy) -> str:
    return _format_scope_id({"workflow": stored.workflow, "step": stored.step, "tenant": stored.tenant})


def _format_scope_id(scope: dict[str, str | None]) -> str:
    return "/".join(scope[key] or "*" for key in ("tenant", "workflow", "step"))


def _describe_scope(scope: dict[str, str | None]) -> str:
    return ", ".join(f"{kind} {name!r}" for kind, name in scope.items() if name)


# -- `redrive workflows`: which there are, and pausing them ----------------------------------------------


@click.group(short_help="List workflows; pause and resume them.")
def workflows() -> None:
    """List workflows; pause one to stop the bleeding, resume it later.

    \b
    Examples:
      redrive workflows list
      redrive workflows pause fulfil
      redrive workflows resume fulfil
    """


@workflows.command("list")
@output_options
@target_options
def list_workflows(place: Target, output: Output) -> None:
    """List the workflows that workers have registered.

    \b
    Examples:
      redrive workflows list
    """
    columns: list[Column[KnownWorkflow]] = [
        Column("WORKFLOW", lambda one: one.name),
        Column("WORKERS", lambda one: one.workers),
        Column("PAUSED BY", lambda one: one.paused_by),
        Column("UNCLAIMABLE", lambda one: one.unclaimable or None),
    ]
    output.list(
        run_on(place, lambda app: app.workflows.list()),
        columns,
        id=lambda one: one.name,
        empty=f"No worker has registered a workflow yet. Start one: {worker_hint()}",
    )


@workflows.command()
@click.argument("name", metavar="WORKFLOW")
@change_options
@output_options
@target_options
def pause(name: str, change: ChangeOptions, place: Target, output: Output) -> None:
    """Let nobody take runs of WORKFLOW. Those under way go on until they wait; new ones are accepted.

    \b
    Examples:
      redrive workflows pause fulfil
    """

    async def work(app: Redrive) -> None:
        await _require_known_workflow(app, name)
        change.confirm(f"Pause workflow {name!r}: its runs wait until it is resumed")
        if not change.dry_run:
            await app.workflows.pause(name, by=change.by)

    run_on(place, work)
    verb = "would pause" if change.dry_run else "paused"
    output.done(
        name,
        {"name": name, "paused": not change.dry_run},
        f"{verb} {name}; to go on: {hint('workflows', 'resume', name)}",
    )


@workflows.command()
@click.argument("name", metavar="WORKFLOW")
@change_options
@output_options
@target_options
def resume(name: str, change: ChangeOptions, place: Target, output: Output) -> None:
    """Let runs of WORKFLOW be taken again.

    \b
    Examples:
      redrive workflows resume fulfil
    """

    async def work(app: Redrive) -> bool:
        await _require_known_workflow(app, name)
        was_paused = name in await app.workflows.paused()
        if not change.dry_run:
            await app.workflows.resume(name, by=change.by)
        return was_paused

    was_paused = run_on(place, work)
    verb = "would resume" if change.dry_run else "resumed"
    text = f"{verb} {name}" if was_paused else f"{name} was not paused"
    output.done(name, {"name": name, "paused": was_paused and change.dry_run}, text)


async def _require_known_workflow(app: Redrive, name: str) -> None:
    from redrive.cli.options import suggest_names
    from redrive.errors import UnknownWorkflow
    from redrive.store.filters import RunFilter

    known = [one.name for one in await app.workflows.list()]
    if name in known or (await app.runs.list(RunFilter(workflow=name), limit=1)).items:
        return
    raise UnknownWorkflow(
        f"no worker has registered a workflow {name!r}, and there is no run of it "
        f"(`redrive workflows list` shows all){suggest_names(name, known)}"
    )
