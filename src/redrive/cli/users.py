"""`redrive users`: who may sign in, and what they are to a tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.accounts import ROLE_CHOICE, LocalAccounts, ensure_tenant, manage_accounts
from redrive.cli.output import Column, Output, output_options
from redrive.cli.place import Target, default_tenant, target_options

if TYPE_CHECKING:
    from redrive.store.accounts import UserRow


@click.group()
def users() -> None:
    """Manage the people who may sign in to the server.

    \b
    Examples:
      redrive users create ann@example.org --tenant acme --role ADMIN
      redrive users list --tenant acme
      redrive users role ann@example.org VIEWER --tenant acme
    """


@users.command()
@click.argument("email")
@click.option("--tenant", metavar="NAME", help="The tenant.  [default: default, or the token's]")
@click.option("--role", type=ROLE_CHOICE, required=True, help="What they are to it.")
@click.option("--password", metavar="TEXT", help="Their password; - asks for it.  [default: a code]")
@click.option("--payloads", is_flag=True, help="They may see hidden payloads.")
@output_options
@target_options
def create(
    email: str, tenant: str | None, role: str, password: str | None, payloads: bool, place: Target, output: Output
) -> None:
    """Let EMAIL sign in. Without a password a code is printed that holds once, for a day.

    \b
    Examples:
      redrive users create ann@example.org --tenant acme --role ADMIN
      redrive users create ann@example.org --tenant acme --role STAFF --password -
    """
    if password == "-":
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)

    whose = tenant or default_tenant(place)

    async def work(people: LocalAccounts) -> None:
        from redrive.core.roles import parse_role
        from redrive.server.contract import NewUser

        await ensure_tenant(people, whose)
        new = NewUser(email=email, tenant=whose, role=parse_role(role), password=password, payloads=payloads)
        row, code = await people.create_user(new)
        about = {"id": row.id, "email": row.email, "tenant": whose, "role": new.role.value, "code": code}
        text = f"{row.email} is {new.role} of {whose}" + (f"; code to sign in once: {code}" if code else "")
        output.done(row.id, about, text)

    manage_accounts(place, work)


@users.command("list")
@click.option("--tenant", metavar="NAME", help="Only the people of this tenant.  [default: all]")
@output_options
@target_options
def list_(tenant: str | None, place: Target, output: Output) -> None:
    """List who may sign in.

    \b
    Examples:
      redrive users list --tenant acme
    """
    rows = manage_accounts(place, lambda people: people.users(tenant))
    roles = {row.id: _format_roles(row) for row in rows}
    columns: list[Column[dict[str, Any]]] = [
        Column("EMAIL", lambda one: one["email"]),
        Column("ROLES", lambda one: roles[one["id"]]),
        Column("DISABLED", lambda one: "yes" if one["disabled"] else None),
        Column("ID", lambda one: one["id"]),
    ]
    output.list([_user_fields(row) for row in rows], columns, id=lambda one: one["id"], empty="Nobody is known.")


@users.command()
@click.argument("email", metavar="USER")
@output_options
@target_options
def show(email: str, place: Target, output: Output) -> None:
    """Show one person, by address or id.

    \b
    Examples:
      redrive users show ann@example.org
    """
    row = manage_accounts(place, lambda people: people.user(email))
    _print_user(row, output)


@users.command()
@click.argument("email", metavar="USER")
@click.argument("role", type=ROLE_CHOICE, metavar="ROLE")
@click.option("--tenant", metavar="NAME", help="The tenant.  [default: default, or the token's]")
@click.option("--payloads/--no-payloads", default=None, help="Whether they may see hidden payloads.")
@output_options
@target_options
def role(email: str, role: str, tenant: str | None, payloads: bool | None, place: Target, output: Output) -> None:
    """Make USER ROLE of a tenant, whether they were anything to it or not.

    \b
    Examples:
      redrive users role ann@example.org STAFF --tenant acme --payloads
    """

    whose = tenant or default_tenant(place)

    async def work(people: LocalAccounts) -> tuple[UserRow, str | None]:
        from redrive.core.roles import parse_role

        return await people.give_role(email, whose, parse_role(role), payloads=payloads)

    row, code = manage_accounts(place, work)
    _print_user(row, output, code)


@users.command()
@click.argument("email", metavar="USER")
@output_options
@target_options
def disable(email: str, place: Target, output: Output) -> None:
    """Let USER sign in nowhere, and end what they are signed in to.

    \b
    Examples:
      redrive users disable ann@example.org
    """
    _print_user(manage_accounts(place, lambda people: people.disable_user(email, disabled=True)), output)


@users.command()
@click.argument("email", metavar="USER")
@output_options
@target_options
def enable(email: str, place: Target, output: Output) -> None:
    """Let USER sign in again.

    \b
    Examples:
      redrive users enable ann@example.org
    """
    _print_user(manage_accounts(place, lambda people: people.disable_user(email, disabled=False)), output)


@users.command()
@click.argument("email", metavar="USER")
@output_options
@target_options
def code(email: str, place: Target, output: Output) -> None:
    """Print a code with which USER can sign in once and choose a new password.

    \b
    Examples:
      redrive users code ann@example.org
    """
    made = manage_accounts(place, lambda people: people.code(email))
    output.done(made, {"code": made}, made)


def _format_roles(row: UserRow) -> str:
    return ", ".join(f"{each.tenant}:{each.role}{'' if each.active else ' (inactive)'}" for each in row.members)


def _user_fields(row: UserRow) -> dict[str, Any]:
    from redrive.duration import to_datetime

    return {
        "id": row.id,
        "email": row.email,
        "created_at": to_datetime(row.created_at),
        "disabled": row.disabled_at is not None,
        "memberships": [
            {"tenant": each.tenant, "role": each.role.value, "may_see_payloads": each.payloads, "active": each.active}
            for each in row.members
        ],
    }


def _print_user(row: UserRow, output: Output, code: str | None = None) -> None:
    state = "; disabled" if row.disabled_at is not None else ""
    text = f"{row.email}: {_format_roles(row)}{state}"
    if code is None:
        output.done(row.id, _user_fields(row), text)
    else:
        told = f"{text}; their password holds no longer, code to sign in once: {code}"
        output.done(row.id, {**_user_fields(row), "code": code}, told)
