"""`redrive policies`: stored retry policies."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import NOT_FOUND, CommandFailed
from redrive.cli.hints import hint, program_name, suggest_names
from redrive.cli.options import ChangeOptions, parse_field
from redrive.cli.output import Column, Output, echo_err, field_columns
from redrive.cli.target import ChangeResult, Target, change_command, common_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.policies import StoredPolicy

_MAX_RUNS_READ = 50  # newest runs whose workflows and steps count as known


@click.group()
def policies() -> None:
    """Change how steps are retried, without a deploy.

    A stored policy applies to a step, to all steps of a workflow, or to a step of a workflow; for one
    tenant or for all. The default applies to steps without a policy in the code. A policy is in force
    from the next attempt on.

    \b
    Examples:
      redrive policies list
      redrive policies set --step charge max_retries=8 base_delay=2s
      redrive policies set --default max_retries=5 never_retry_on=unknown
      redrive policies delete --step charge
    """


def _scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose the steps of a policy; it receives them as `scope`."""

    @click.option("--workflow", metavar="NAME", help="The workflow whose steps the policy applies to.")
    @click.option("--step", metavar="NAME", help="The step that the policy applies to.")
    @click.option("--default", is_flag=True, help="The default, for steps without a policy in the code.")
    @click.option("--tenant", metavar="NAME", help="The tenant that the policy applies to.  [default: all]")
    @functools.wraps(command)
    def with_scope(
        *args: Any, workflow: str | None, step: str | None, default: bool, tenant: str | None, **others: Any
    ) -> Any:
        if default == bool(workflow or step):
            raise click.UsageError("name what the policy applies to: --workflow, --step, both of them, or --default")
        scope = {"workflow": workflow, "step": step, "tenant": tenant}
        return command(*args, scope=scope, **others)

    return with_scope


@policies.command("list")
@common_options
def list_(target: Target, output: Output) -> None:
    """List all stored policies.

    \b
    Examples:
      redrive policies list
    """
    columns: list[Column[StoredPolicy]] = [
        *field_columns(WORKFLOW="workflow", STEP="step", TENANT="tenant"),
        Column("POLICY", lambda one: one.policy.summarise()),
        *field_columns(SET_BY="updated_by", SET="updated_at"),
    ]
    stored = run_on(target, lambda app: app.policies.list())
    empty = f"No policy is stored: steps use their own. To store one: {program_name()} policies set --help"
    output.list(stored, columns, id=_format_policy_id, empty=empty)


@policies.command()
@_scope_options
@common_options
def get(scope: dict[str, str | None], target: Target, output: Output) -> None:
    """Show the policy stored for exactly this workflow, step and tenant.

    \b
    Examples:
      redrive policies get --step charge
    """
    stored = run_on(target, lambda app: _load_policy(app, scope))
    fields = stored.policy.to_json().items()
    lines = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in fields]
    output.record(_format_policy_id(stored), stored, "\n".join(lines))


def _parse_fields(_: click.Context, __: click.Parameter, fields: tuple[str, ...]) -> dict[str, Any]:
    from redrive.cli.errors import report_usage_errors
    from redrive.policy import RetryPolicy

    with report_usage_errors():
        given = dict(map(parse_field, fields))
        RetryPolicy.from_json(given)
    return given


@change_command(
    policies,
    click.argument("fields", nargs=-1, required=True, metavar="FIELD=VALUE...", callback=_parse_fields),
    _scope_options,
    short_help="Store a policy, or change a stored one.",
)
async def set_(
    app: Redrive, fields: dict[str, Any], scope: dict[str, str | None], change: ChangeOptions
) -> ChangeResult:
    """Store a policy, or change the one that is stored for the same workflow, step and tenant, or the default.

    The fields are those of RetryPolicy: max_retries, base_delay, factor, max_delay, jitter, cap,
    max_elapsed, retry_on, never_retry_on, delays. Fields that are left out keep their stored values, or
    have their defaults in a new policy.

    An unknown step or workflow may be a typing error: you are asked, and a script needs --yes. Names are
    looked up in the code with --app, else in the registered workers and the newest runs.

    \b
    Examples:
      redrive policies set --step charge max_retries=8 base_delay=2s max_delay=5m
      redrive policies set --workflow fulfil delays='["20s", "5m", "30m"]'
      redrive policies set --default never_retry_on=unknown,validation --tenant acme
    """
    from redrive.cli.errors import report_usage_errors
    from redrive.policy import RetryPolicy

    known = await app.policies.get(**scope)
    with report_usage_errors():
        # With the code at hand, a name must be that of a class in it.
        policy = RetryPolicy(**fields) if app.registered_steps else RetryPolicy.from_json(fields)
    if known is not None:
        # Only the given fields were checked again: the stored names may be of code that this process lacks.
        policy = replace(known.policy, **{name: getattr(policy, name) for name in fields})
    warnings = await _find_unknown_names(app, scope)
    for warning in warnings:
        echo_err(f"Warning: {warning}")
    if warnings:
        change.require_yes("nothing was stored: correct the name, or add --yes to use a new one", NOT_FOUND)
    change.confirm(f"Store this policy for {_describe_scope(scope)}{' all the same' if warnings else ''}")
    stored = None if change.dry_run else await app.policies.set(policy, **scope, by=change.by)
    verb = "would store" if change.dry_run else "stored"
    text = f"{verb} a policy for {_describe_scope(scope)}: in force from the next attempt on"
    return _format_scope_id(scope), policy.to_json() if stored is None else stored, text


@change_command(policies, _scope_options)
async def delete(app: Redrive, scope: dict[str, str | None], change: ChangeOptions) -> ChangeResult:
    """Remove a stored policy; steps use their own again.

    \b
    Examples:
      redrive policies delete --step charge
    """
    await _load_policy(app, scope)
    change.confirm(f"Remove the policy for {_describe_scope(scope)}")
    if not change.dry_run:
        await app.policies.delete(**scope, by=change.by)
    verb = "would remove" if change.dry_run else "removed"
    return _format_scope_id(scope), scope, f"{verb} the policy for {_describe_scope(scope)}"


async def _load_policy(app: Redrive, scope: dict[str, str | None]) -> StoredPolicy:
    stored = await app.policies.get(**scope)
    if stored is None:
        advice = f"`{hint('policies', 'list')}` lists all"
        raise CommandFailed(f"no policy is stored for {_describe_scope(scope)}: {advice}", NOT_FOUND)
    return stored


async def _find_unknown_names(app: Redrive, scope: dict[str, str | None]) -> list[str]:
    """Return a warning for each name that neither the code, a worker nor a recent run has."""
    from redrive.store.filters import RunFilter

    workflow, step = scope["workflow"], scope["step"]
    newest = (await app.runs.list(RunFilter(), limit=_MAX_RUNS_READ)).items
    warnings: list[str] = []
    if workflow:
        known = {one.name for one in await app.workflows.list()} | {run.workflow for run in newest}
        if workflow not in known:
            warnings.append(f"workflow {workflow!r} is not registered{suggest_names(workflow, sorted(known))}")
    if step:
        steps, where = set(app.registered_steps), "the app"
        if not steps:
            runs = [await app.runs.get(run.id) for run in newest]
            steps, where = {each.name for run in runs for each in run.steps}, f"the newest {_MAX_RUNS_READ} runs"
        if step not in steps:
            warnings.append(f"step {step!r} was not found in {where}{suggest_names(step, sorted(steps))}")
    return warnings


def _format_policy_id(stored: StoredPolicy) -> str:
    return _format_scope_id({"workflow": stored.workflow, "step": stored.step, "tenant": stored.tenant})


def _format_scope_id(scope: dict[str, str | None]) -> str:
    return "/".join(scope[key] or "*" for key in ("tenant", "workflow", "step"))


def _describe_scope(scope: dict[str, str | None]) -> str:
    target = ", ".join(f"{kind} {name!r}" for kind, name in scope.items() if name)
    return target if scope["workflow"] or scope["step"] else f"{target or 'all tenants'}, as the default"
