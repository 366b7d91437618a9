"""`redrive circuits`: list the circuits of dependencies, open and close them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import NOT_FOUND
from redrive.cli.hints import circuit_hint, suggest_names
from redrive.cli.options import REASON_OPTION, ChangeOptions, parse_field
from redrive.cli.output import Column, Output, echo_err, escape_line, field_columns
from redrive.cli.target import CURSOR_OPTION, ChangeResult, Target, change_command, common_options, home_tenant, run_on
from redrive.core.roles import DEFAULT_TENANT

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.circuits import CircuitRecord
    from redrive.store.result_page import Page

_STATUS_CHOICE = click.Choice(["CLOSED", "OPEN", "HALF_OPEN"], case_sensitive=False)
_KEY_ARGUMENT = click.argument("key", metavar="CIRCUIT")
_TENANT_OPTION = click.option("--tenant", metavar="NAME", help="The tenant.  [default: default, or the token's]")


@click.group()
def circuits() -> None:
    """List circuits; open one to stop the calls to a dependency, close it to allow them again.

    A circuit is named by its name, or by WORKFLOW/STEP if it has none. Each tenant has its own.

    \b
    Examples:
      redrive circuits list
      redrive circuits open payments --reason "the bank asked us to stop"
      redrive circuits close payments
    """


@circuits.command("list")
@click.option("--tenant", metavar="NAME", help="Only circuits of this tenant.  [default: all]")
@click.option("--status", type=_STATUS_CHOICE, help="Only circuits with this status.")
@click.option("--limit", default=50, show_default=True, metavar="N", help="How many.")
@CURSOR_OPTION
@common_options
def list_(
    tenant: str | None, status: str | None, limit: int, cursor: str | None, target: Target, output: Output
) -> None:
    """List circuits with their status, waiting runs, and recent calls.

    \b
    Examples:
      redrive circuits list
      redrive circuits list --status OPEN --json
    """
    from redrive.store.filters import CircuitFilter

    async def load(app: Redrive) -> Page[CircuitRecord]:
        where = CircuitFilter(tenant=tenant, status=status.upper() if status else None)
        return await app.circuits.list(where, limit=limit, cursor=cursor)

    page = run_on(target, load)
    columns: list[Column[CircuitRecord]] = [
        *field_columns(CIRCUIT="key", TENANT="tenant", STATUS="status", UNTIL="until"),
        Column("PARKED", lambda one: one.parked or None),
        Column("CHANGED", lambda one: one.changed_at),
        Column("WHY", lambda one: one.why, sentence=True),
        *field_columns(
            FAILURES="failures", SUCCESSES="successes", LAST_FAILURE="failed_at", LAST_SUCCESS="succeeded_at"
        ),
    ]
    empty = "All circuits are closed: no call behind a circuit has failed yet."
    output.list(page.items, columns, id=lambda one: one.key, empty=empty, next=page.next, prev=page.prev)


@circuits.command()
@_KEY_ARGUMENT
@_TENANT_OPTION
@common_options
def show(key: str, tenant: str | None, target: Target, output: Output) -> None:
    """Show one circuit: status, last change, waiting runs, settings.

    \b
    Examples:
      redrive circuits show payments
    """

    async def load(app: Redrive) -> CircuitRecord:
        return await app.circuits.get(key, tenant=tenant or await home_tenant(app))

    found = run_on(target, load)
    by = f" by {found.changed_by}" if found.changed_by and found.changed_by != "redrive" else ""
    lines = [
        f"Circuit {found.key} of tenant {found.tenant} is {found.status}, {_describe_waiting_runs(found)}.",
        f"Changed {found.changed_at:%Y-%m-%d %H:%M:%S} UTC{by}{f': {found.why}' if found.why else ''}.",
    ]
    last = {"failure": found.failed_at, "success": found.succeeded_at}
    times = [f"last {name} {at:%Y-%m-%d %H:%M:%S} UTC" for name, at in last.items() if at is not None]
    lines.append(", ".join([f"In its window: failures {found.failures}, successes {found.successes}", *times]) + ".")
    if found.until is not None:
        lines.append(f"It lets probes through at {found.until:%Y-%m-%d %H:%M:%S} UTC.")
    elif found.status == "OPEN":
        lines.append(f"It stays open until a user closes it: {circuit_hint('close', found.key, found.tenant)}")
    if found.settings is not None:
        lines += [
            f"  {name}={value}{'  (set by hand)' if name in (found.override or {}) else ''}"
            for name, value in found.settings.to_json().items()
            if name != "name"
        ]
    output.record(found.key, found, "\n".join(map(escape_line, lines)))


_status_command = change_command(circuits, _KEY_ARGUMENT, _TENANT_OPTION, REASON_OPTION)


@_status_command
async def open_(app: Redrive, **arguments: Any) -> ChangeResult:
    """Stop all calls behind the circuit until a user closes it. Runs wait, or fail if its settings say so.

    \b
    Examples:
      redrive circuits open payments --reason "the bank asked us to stop"
    """
    return await _change_status(app, "open", "opened", **arguments)


@_status_command
async def close(app: Redrive, **arguments: Any) -> ChangeResult:
    """Allow calls at once. Waiting runs continue in growing waves: 10, 100, then 1,000 a second.

    \b
    Examples:
      redrive circuits close payments
    """
    return await _change_status(app, "close", "closed", **arguments)


@_status_command
async def reset(app: Redrive, **arguments: Any) -> ChangeResult:
    """Close the circuit, with no failures and the settings of the code.

    \b
    Examples:
      redrive circuits reset payments
    """
    return await _change_status(app, "reset", "reset", **arguments)


async def _change_status(
    app: Redrive, verb: str, done: str, *, key: str, tenant: str | None, reason: str | None, change: ChangeOptions
) -> ChangeResult:
    tenant = tenant or await home_tenant(app)
    if verb == "open":
        await _warn_if_unknown(app, key, tenant, change)
        effect, advice = "no step calls it until it is closed", f"to close it: {circuit_hint('close', key, tenant)}"
    else:
        effect, advice = _describe_waiting_runs(await app.circuits.get(key, tenant=tenant)), ""
    change.confirm(f"{verb.capitalize()} circuit {key!r} of tenant {tenant!r}: {effect}")
    if change.dry_run:
        return _describe_result(verb, done, key, tenant, None)
    found = await getattr(app.circuits, verb)(key, tenant=tenant, by=change.by, reason=reason)
    return _describe_result(verb, done, key, tenant, found, advice)


def _parse_settings(context: click.Context, _: click.Parameter, fields: tuple[str, ...]) -> dict[str, Any]:
    from redrive.cli.errors import report_usage_errors
    from redrive.policy import Circuit

    if bool(fields) == context.params["unset"]:
        raise click.UsageError("no setting given: add one, such as failures=20, or use --unset alone")
    settings = dict(parse_field(text, example="failures=20") for text in fields)
    with report_usage_errors():
        Circuit.from_json(settings)
    return settings


@change_command(
    circuits,
    _KEY_ARGUMENT,
    click.argument("settings", nargs=-1, metavar="[FIELD=VALUE]...", callback=_parse_settings),
    click.option("--unset", is_flag=True, is_eager=True, help="Use the settings of the code again."),
    _TENANT_OPTION,
    short_help="Change settings of a circuit, without a deploy.",
)
async def set_(
    app: Redrive, key: str, settings: dict[str, Any], unset: bool, tenant: str | None, change: ChangeOptions
) -> ChangeResult:
    """Change settings of a circuit, without a deploy. Fields that are not named stay as they are.

    The fields are failures, window, open_for, probes and on_open.

    \b
    Examples:
      redrive circuits set payments failures=20 window=2m
      redrive circuits set payments --unset
    """
    tenant = tenant or await home_tenant(app)
    await _warn_if_unknown(app, key, tenant, change)
    store = app.circuits.unset if unset else app.circuits.set
    found = None if change.dry_run else await store(key, tenant=tenant, by=change.by, **settings)
    return _describe_result("set", "set", key, tenant, found, "in force from the next call or failure on")


def _describe_result(
    verb: str, done: str, key: str, tenant: str, found: CircuitRecord | None, more: str = ""
) -> ChangeResult:
    name = f"circuit {key!r}{'' if tenant == DEFAULT_TENANT else f' of tenant {tenant!r}'}"
    if found is None:
        return key, {"key": key, "dry_run": True}, f"would {verb} {name}"
    text = f"{done} {name}: it is {found.status}, {_describe_waiting_runs(found)}"
    return key, found, f"{text}; {more}" if more else text


async def _warn_if_unknown(app: Redrive, key: str, tenant: str, change: ChangeOptions) -> None:
    """Warn of a circuit that neither the store nor the code has; a script must have given `--yes`."""
    from redrive.app.declarations import circuit_names
    from redrive.store.filters import CircuitFilter

    page = await app.circuits.list(CircuitFilter(tenant=tenant), limit=500)
    known = {one.key for one in page.items} | set(circuit_names(app.registered_steps))
    if key not in known:
        echo_err(f"Warning: circuit {key!r} of tenant {tenant!r} is unknown{suggest_names(key, sorted(known))}")
        change.require_yes("nothing was changed: correct the name, or add --yes to use a new one", NOT_FOUND)


def _describe_waiting_runs(found: CircuitRecord) -> str:
    if found.parked == 1:
        return "1 run waits for it"
    return f"{found.parked:,} runs wait for it" if found.parked else "no run waits for it"
