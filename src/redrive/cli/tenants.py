"""`redrive tenants`: the organisations that share a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from redrive.cli.access import Managing, manage
from redrive.cli.change import Change, changing
from redrive.cli.output import Column, Output, echo, json_text, say, shown
from redrive.cli.place import Place, at_a_place

if TYPE_CHECKING:
    from redrive.store.account_records import TenantRow

__all__ = ["tenants"]


@click.group(short_help="Manage the tenants that share a store.")
def tenants() -> None:
    """Manage the tenants that share a store: register, disable, export, erase.

    \b
    Examples:
      redrive tenants create acme
      redrive tenants export acme > acme.jsonl
      redrive tenants erase acme --yes
    """


@tenants.command()
@click.argument("name")
@shown
@at_a_place
def create(name: str, place: Place, output: Output) -> None:
    """Register tenant NAME, so that people and tokens can belong to it.

    \b
    Examples:
      redrive tenants create acme
    """
    _print(manage(place, lambda people: people.create_tenant(name)), output)


@tenants.command("list")
@shown
@at_a_place
def list_(place: Place, output: Output) -> None:
    """List the registered tenants.

    \b
    Examples:
      redrive tenants list
    """
    rows = manage(place, lambda people: people.tenants())
    columns: list[Column[dict[str, object]]] = [
        Column("NAME", lambda one: one["name"]),
        Column("SINCE", lambda one: one["created_at"]),
        Column("BY", lambda one: one["created_by"]),
        Column("DISABLED", lambda one: "yes" if one["disabled"] else None),
    ]
    output.list(
        [_shown(row) for row in rows],
        columns,
        id=lambda one: str(one["name"]),
        empty="No tenant is registered.",
    )


@tenants.command()
@click.argument("name")
@shown
@at_a_place
def show(name: str, place: Place, output: Output) -> None:
    """Show tenant NAME.

    \b
    Examples:
      redrive tenants show acme
    """
    _print(manage(place, lambda people: people.tenant(name)), output)


@tenants.command()
@click.argument("name")
@shown
@at_a_place
def disable(name: str, place: Place, output: Output) -> None:
    """Let no credential of tenant NAME hold. Its data stays, and its runs go on.

    \b
    Examples:
      redrive tenants disable acme
    """
    _print(manage(place, lambda people: people.disable_tenant(name, disabled=True)), output)


@tenants.command()
@click.argument("name")
@shown
@at_a_place
def enable(name: str, place: Place, output: Output) -> None:
    """Let the credentials of tenant NAME hold again.

    \b
    Examples:
      redrive tenants enable acme
    """
    _print(manage(place, lambda people: people.disable_tenant(name, disabled=False)), output)


@tenants.command()
@click.argument("name")
@at_a_place
def export(name: str, place: Place) -> None:
    """Print everything tenant NAME has, one JSON object on each line, with nothing hidden.

    \b
    Examples:
      redrive tenants export acme > acme.jsonl
    """

    async def work(people: Managing) -> None:
        async for one in people.export_tenant(name):
            echo(json_text(one))
        for user in await people.users(name):
            echo(json_text({"kind": "user", "id": user.id, "email": user.email}))

    manage(place, work)


@tenants.command()
@click.argument("name")
@changing
@shown
@at_a_place
def erase(name: str, change: Change, place: Place, output: Output) -> None:
    """Remove everything tenant NAME has: runs, letters, log, people, tokens. It cannot be undone.

    Asks on a terminal; elsewhere --yes is needed.

    \b
    Examples:
      redrive tenants erase acme --yes
    """
    change.expect_yes(f"nothing was erased: say --yes to erase {name!r} without being asked")
    change.confirm(f"Erase everything of tenant {name!r}, for good")

    async def work(people: Managing) -> int:
        return 0 if change.dry_run else await people.erase_tenant(name)

    rows = manage(place, work, by=change.by)
    if change.dry_run:
        say(f"would erase tenant {name!r}; nothing was changed")
    else:
        output.done(name, {"name": name, "rows": rows}, f"erased tenant {name!r}: {rows} rows")


def _shown(row: TenantRow) -> dict[str, object]:
    from redrive.duration import moment

    return {
        "name": row.tenant,
        "created_at": moment(row.created_at),
        "created_by": row.created_by,
        "disabled": row.disabled_at is not None,
    }


def _print(row: TenantRow, output: Output) -> None:
    state = "disabled" if row.disabled_at is not None else "enabled"
    output.done(row.tenant, _shown(row), f"{row.tenant}: {state}")
