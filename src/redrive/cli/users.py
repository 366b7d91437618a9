"""`redrive users`: the users who may sign in, and their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.accounts import (
    ROLE_CHOICE,
    TENANT_OPTION,
    LocalAccounts,
    add_account_command,
    ensure_tenant,
    manage_accounts,
)
from redrive.cli.output import Column, Output
from redrive.cli.target import Target, common_options, default_tenant

if TYPE_CHECKING:
    from redrive.store.accounts import UserRow


@click.group()
def users() -> None:
    """Manage the users who may sign in to the server.

    \b
    Examples:
      redrive users create ann@example.org --tenant acme --role ADMIN
      redrive users list --tenant acme
      redrive users role ann@example.org VIEWER --tenant acme
    """


@users.command()
@click.argument("email")
@TENANT_OPTION
@click.option("--role", type=ROLE_CHOICE, required=True, help="Role in the tenant.")
@click.option("--password", metavar="TEXT", help="Password of the user; - prompts for it.  [default: a sign-in code]")
@click.option("--payloads", is_flag=True, help="The user may see payloads without redaction.")
@common_options
def create(
    email: str, tenant: str | None, role: str, password: str | None, payloads: bool, target: Target, output: Output
) -> None:
    """Create a user who may sign in as EMAIL. Without a password, a code is printed that works once, for a day.

    \b
    Examples:
      redrive users create ann@example.org --tenant acme --role ADMIN
      redrive users create ann@example.org --tenant acme --role STAFF --password -
    """
    if password == "-":
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    tenant_name = tenant or default_tenant(target)

    async def create_user(accounts: LocalAccounts) -> None:
        from redrive.core.roles import parse_role
        from redrive.store.accounts import NewUser

        await ensure_tenant(accounts, tenant_name)
        new = NewUser(email=email, tenant=tenant_name, role=parse_role(role), password=password, payloads=payloads)
        row, code = await accounts.create_user(new)
        fields = {"id": row.id, "email": row.email, "tenant": tenant_name, "role": new.role.value, "code": code}
        text = f"{row.email} is {new.role} of {tenant_name}" + (f"; code to sign in once: {code}" if code else "")
        output.done(row.id, fields, text)

    manage_accounts(target, create_user)


@users.command("list")
@click.option("--tenant", metavar="NAME", help="Only users of this tenant.  [default: all]")
@common_options
def list_(tenant: str | None, target: Target, output: Output) -> None:
    """List the users who may sign in.

    \b
    Examples:
      redrive users list --tenant acme
    """
    rows = manage_accounts(target, lambda accounts: accounts.users(tenant))
    roles = {row.id: _format_roles(row) for row in rows}
    columns: list[Column[dict[str, Any]]] = [
        Column("EMAIL", lambda one: one["email"]),
        Column("ROLES", lambda one: roles[one["id"]]),
        Column("DISABLED", lambda one: "yes" if one["disabled"] else None),
        Column("ID", lambda one: one["id"]),
    ]
    output.list([_user_fields(row) for row in rows], columns, id=lambda one: one["id"], empty="There are no users.")


def _print_user(row: UserRow, output: Output, code: str | None = None) -> None:
    fields, text = _user_fields(row), f"{row.email}: {_format_roles(row)}"
    text += "; disabled" if row.disabled_at is not None else ""
    if code is not None:
        fields["code"] = code
        text += f"; the old password no longer works, code to sign in once: {code}"
    output.done(row.id, fields, text)


add_account_command(
    users,
    "show USER ann@example.org",
    "Show one user, by email address or id.",
    lambda accounts, id: accounts.user(id),
    _print_user,
)


@users.command()
@click.argument("email", metavar="USER")
@click.argument("role", type=ROLE_CHOICE, metavar="ROLE")
@TENANT_OPTION
@click.option("--payloads/--no-payloads", default=None, help="Whether the user may see payloads without redaction.")
@common_options
def role(email: str, role: str, tenant: str | None, payloads: bool | None, target: Target, output: Output) -> None:
    """Give USER a ROLE in a tenant. A user who is not a member becomes one.

    \b
    Examples:
      redrive users role ann@example.org STAFF --tenant acme --payloads
    """
    from redrive.core.roles import parse_role

    tenant_name = tenant or default_tenant(target)
    row, code = manage_accounts(
        target, lambda accounts: accounts.give_role(email, tenant_name, parse_role(role), payloads=payloads)
    )
    _print_user(row, output, code)


add_account_command(
    users,
    "disable USER ann@example.org",
    "Stop USER from signing in, and end the sessions of USER.",
    lambda accounts, id: accounts.disable_user(id, disabled=True),
    _print_user,
)
add_account_command(
    users,
    "enable USER ann@example.org",
    "Let USER sign in again.",
    lambda accounts, id: accounts.disable_user(id, disabled=False),
    _print_user,
)
add_account_command(
    users,
    "code USER ann@example.org",
    "Print a code with which USER can sign in once. It lets USER choose a new password.",
    lambda accounts, id: accounts.code(id),
    lambda code, output: output.done(code, {"code": code}, code),
)


def _format_roles(row: UserRow) -> str:
    return ", ".join(f"{each.tenant}:{each.role}{'' if each.active else ' (inactive)'}" for each in row.members)


def _user_fields(row: UserRow) -> dict[str, Any]:
    from redrive.time_values import to_datetime

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
