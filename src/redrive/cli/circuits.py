"""`redrive circuits`: dependencies that are not called at the moment, and a person's say in that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.messages import NOT_FOUND, CommandFailed, circuit_hint
from redrive.cli.options import ChangeOptions, change_options
from redrive.cli.output import Column, Output, echo, echo_err, escape_line, output_options
from redrive.cli.place import Target, default_tenant, run_on, target_options
from redrive.core.roles import DEFAULT_TENANT

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.circuits import CircuitRecord

_STATUS_CHOICE = click.Choice(["CLOSED", "OPEN", "HALF_OPEN"], case_sensitive=False)


@click.group(short_help="See which dependencies are not called; open, close.")
def circuits() -> None:
    """See which dependencies are not called at the moment; open and close their circuits.

    A circuit is named by its name, or by WORKFLOW/STEP if it has none. Each tenant has its own.

    \b
    Examples:
      redrive circuits list
      redrive circuits open payments --reason "the bank asked us to stop"
      redrive circuits close payments
    """


def _tenant_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command on a place the option that says whose circuit is meant."""

    @click.option("--tenant", metavar="NAME", help="Whose circuit is meant.  [default: default, or the token's]")
    @functools.wraps(command)
    def with_tenant(*args: Any, tenant: str | None, place: Target, **others: Any) -> Any:
        return command(*args, tenant=tenant or default_tenant(place), place=place, **others)

    return with_tenant


def _state_change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What opening, closing and resetting have in common."""

    @click.argument("key", metavar="CIRCUIT")
    @target_options
    @_tenant_option
    @click.option("--reason", metavar="TEXT", help="Why, for the record.")
    @change_options
    @output_options
    @functools.wraps(command)
    def turning(*args: Any, **others: Any) -> Any:
        return command(*args, **others)

    return turning


@circuits.command("list")
@click.option("--tenant", metavar="NAME", help="Circuits of one tenant.  [default: all]")
@click.option("--status", type=_STATUS_CHOICE, help="Circuits that stand at one thing.")
@click.option("--limit", default=50, show_default=True, metavar="N", help="The most to show.")
@click.option("--cursor", metavar="CURSOR", help="Where to go on, as the page before said.")
@output_options
@target_options
def list_(
    tenant: str | None, status: str | None, limit: int, cursor: str | None, place: Target, output: Output
) -> None:
    """List circuits that something ever happened to, and how many runs wait for each.

    \b
    Examples:
      redrive circuits list
      redrive circuits list --status OPEN --json
    """
    from redrive.store.filters import CircuitFilter

    where = CircuitFilter(tenant=tenant, status=status.upper() if status else None)
    page = run_on(place, lambda app: app.circuits.list(where, limit=limit, cursor=cursor))
    columns: list[Column[CircuitRecord]] = [
        Column("CIRCUIT", lambda one: one.key),
        Column("TENANT", lambda one: one.tenant),
        Column("STATUS", lambda one: one.status),
        Column("UNTIL", lambda one: one.until),
        Column("PARKED", lambda one: one.parked or None),
        Column("CHANGED", lambda one: one.changed_at),
        Column("WHY", lambda one: one.why, sentence=True),
    ]
    output.list(
        page.items,
        columns,
        id=lambda one: one.key,
        empty="No call behind a circuit has failed yet: all of them are closed.",
        next=page.next,
        prev=page.prev,
    )


@circuits.command()
@click.argument("key", metavar="CIRCUIT")
@target_options
@_tenant_option
@output_options
def show(key: str, tenant: str, place: Target, output: Output) -> None:
    """Show one circuit: how it stands and since when, who waits, and its settings.

    \b
    Examples:
      redrive circuits show payments
    """
    found = run_on(place, lambda app: app.circuits.get(key, tenant=tenant))
    if output.json:
        output.object(found)
    elif output.quiet:
        echo(escape_line(found.key))
    else:
        for line in _render_circuit(found):
            echo(escape_line(line))


@circuits.command(name="open")
@_state_change_options
def open_(key: str, tenant: str, reason: str | None, change: ChangeOptions, place: Target, output: Output) -> None:
    """Let no call through until somebody closes it. Runs wait, or fail if the circuit says so.

    \b
    Examples:
      redrive circuits open payments --reason "the bank asked us to stop"
    """

    async def work(app: Redrive) -> CircuitRecord | None:
        await _warn_if_unknown(app, key, tenant, change)
        change.confirm(f"Open circuit {key!r} of tenant {tenant!r}: nothing calls it until it is closed")
        if change.dry_run:
            return None
        return await app.circuits.open(key, tenant=tenant, by=change.by, reason=reason)

    way = f"to go on: {circuit_hint('close', key, tenant)}"
    _print_result("open", "opened", _describe_circuit(key, tenant), run_on(place, work), output, way)


@circuits.command()
@_state_change_options
def close(key: str, tenant: str, reason: str | None, change: ChangeOptions, place: Target, output: Output) -> None:
    """Let calls through at once. Runs that wait go on in growing waves: 10, 100, then 1,000 a second.

    \b
    Examples:
      redrive circuits close payments
    """

    async def work(app: Redrive) -> CircuitRecord | None:
        found = await app.circuits.get(key, tenant=tenant)
        change.confirm(f"Close circuit {key!r} of tenant {tenant!r}: {_describe_waiting_runs(found)}")
        if change.dry_run:
            return None
        return await app.circuits.close(key, tenant=tenant, by=change.by, reason=reason)

    _print_result("close", "closed", _describe_circuit(key, tenant), run_on(place, work), output)


@circuits.command()
@_state_change_options
def reset(key: str, tenant: str, reason: str | None, change: ChangeOptions, place: Target, output: Output) -> None:
    """Close it, forget its failures, and go back to the settings that the code has.

    \b
    Examples:
      redrive circuits reset payments
    """

    async def work(app: Redrive) -> CircuitRecord | None:
        found = await app.circuits.get(key, tenant=tenant)
        change.confirm(f"Reset circuit {key!r} of tenant {tenant!r}: {_describe_waiting_runs(found)}")
        if change.dry_run:
            return None
        return await app.circuits.reset(key, tenant=tenant, by=change.by, reason=reason)

    _print_result("reset", "reset", _describe_circuit(key, tenant), run_on(place, work), output)


@circuits.command("set", short_help="Set some of a circuit's settings, without a deploy.")
@click.argument("key", metavar="CIRCUIT")
@click.argument("fields", nargs=-1, metavar="FIELD=VALUE...")
@click.option("--unset", is_flag=True, help="Go back to the settings that the code has.")
@target_options
@_tenant_option
@change_options
@output_options
def set_(
    key: str, fields: tuple[str, ...], unset: bool, tenant: str, change: ChangeOptions, place: Target, output: Output
) -> None:
    """Set some of a circuit's settings, without a deploy. Those not named stay as they are.

    The fields are failures, window, open_for, probes and on_open.

    \b
    Examples:
      redrive circuits set payments failures=20 window=2m
      redrive circuits set payments --unset
    """
    from redrive.cli.options import parse_field
    from redrive.policy import Circuit

    if bool(fields) == unset:
        raise click.UsageError("say what to set, as in failures=20; or --unset, and nothing else")
    settings = dict(map(parse_field, fields))
    if fields:
        from redrive.cli.messages import report_usage_errors

        with report_usage_errors():
            Circuit.from_json(settings)

    async def work(app: Redrive) -> CircuitRecord | None:
        await _warn_if_unknown(app, key, tenant, change)
        if change.dry_run:
            return None
        if unset:
            return await app.circuits.unset(key, tenant=tenant, by=change.by)
        return await app.circuits.set(key, tenant=tenant, by=change.by, **settings)

    more = "in force from the next call or failure on"
    _print_result("set", "set", _describe_circuit(key, tenant), run_on(place, work), output, more)


def _describe_circuit(key: str, tenant: str) -> tuple[str, str]:
    """A circuit's key, and how it is called: with its tenant, if there is more than one."""
    return key, f"circuit {key!r}{'' if tenant == DEFAULT_TENANT else f' of tenant {tenant!r}'}"


def _print_result(
    verb: str, done: str, named: tuple[str, str], found: CircuitRecord | None, output: Output, more: str = ""
) -> None:
    key, name = named
    if found is None:
        output.done(key, {"key": key, "dry_run": True}, f"would {verb} {name}")
    else:
        text = f"{done} {name}: it is {found.status}, {_describe_waiting_runs(found)}"
        output.done(key, found, f"{text}; {more}" if more else text)


async def _warn_if_unknown(app: Redrive, key: str, tenant: str, change: ChangeOptions) -> None:
    """Ask a person about a key that nobody has heard of; a script must have said that it means it."""
    doubt = await _describe_unknown_circuit(app, key, tenant)
    if doubt is None:
        return
    echo_err(f"Warning: {doubt}")
    if not (change.yes or change.dry_run or change.is_interactive):
        raise CommandFailed("nothing was changed: correct the name, or add --yes if it is yet to come", NOT_FOUND)


async def _describe_unknown_circuit(app: Redrive, key: str, tenant: str) -> str | None:
    from redrive.app.compensation import circuit_names
    from redrive.cli.options import suggest_names
    from redrive.store.filters import CircuitFilter

    page = await app.circuits.list(CircuitFilter(tenant=tenant), limit=500)
    known = {one.key for one in page.items} | set(circuit_names(app.registered_steps))
    if key in known:
        return None
    return f"nobody has heard of a circuit {key!r} of tenant {tenant!r}{suggest_names(key, sorted(known))}"


def _describe_waiting_runs(found: CircuitRecord) -> str:
    match found.parked:
        case 0:
            return "no run waits for it"
        case 1:
            return "1 run waits for it"
        case many:
            return f"{many:,} runs wait for it"


def _render_circuit(found: CircuitRecord) -> list[str]:
    by = f" by {found.changed_by}" if found.changed_by and found.changed_by != "redrive" else ""
    said = [
        f"Circuit {found.key} of tenant {found.tenant} is {found.status}, {_describe_waiting_runs(found)}.",
        f"Changed {found.changed_at:%Y-%m-%d %H:%M:%S} UTC{by}{f': {found.why}' if found.why else ''}.",
    ]
    if found.until is not None:
        said.append(f"It lets probes through at {found.until:%Y-%m-%d %H:%M:%S} UTC.")
    elif found.status == "OPEN":
        said.append(f"It stays open until somebody closes it: {circuit_hint('close', found.key, found.tenant)}")
    if found.settings is not None:
        said += [
            f"  {name}={value}{'  (set by hand)' if name in (found.override or {}) else ''}"
            for name, value in found.settings.to_json().items()
            if name != "name"
        ]
    return said
