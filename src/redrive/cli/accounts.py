"""`redrive tenants` and `redrive tokens`, and the accounts of a store or a server that they manage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from redrive.cli.errors import report_errors
from redrive.cli.options import DURATION_TYPE, ChangeOptions, current_user
from redrive.cli.output import Column, Output, as_json, echo, echo_err, field_columns, json_text
from redrive.cli.server import require_extras
from redrive.cli.target import Target, common_options, decision_options, default_tenant, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.roles import Role
    from redrive.server.auth.admin import AccountAdmin
    from redrive.store.accounts import IssuedToken, NewToken, NewUser, TenantRow, TokenRow, UserRow

T = TypeVar("T")
_USER_ROLES = ["OWNER", "ADMIN", "STAFF", "VIEWER", "SUPER_ADMIN", "ORG_ADMIN"]
ROLE_CHOICE = click.Choice(_USER_ROLES, case_sensitive=False)
TOKEN_ROLE_CHOICE = click.Choice([*_USER_ROLES, "WORKER"], case_sensitive=False)


TENANT_OPTION = click.option("--tenant", metavar="NAME", help="The tenant.  [default: default, or the token's]")


def manage_accounts(target: Target, work: Callable[[LocalAccounts], Awaitable[T]], by: str | None = None) -> T:
    """Do the work on the accounts of a store or a server. A store that does not exist is created.

    On a store every change is allowed; on a server the rights of the token apply.
    """
    import asyncio

    async def open_and_work() -> T:
        remote = target.server()
        if remote is not None:
            async with remote.client():
                return await work(cast("LocalAccounts", remote.accounts))
        app = target.app()
        async with app.client():
            return await work(LocalAccounts(app, by or current_user()))

    with report_errors(), require_extras():
        return asyncio.run(open_and_work())


def add_account_command(
    group: click.Group,
    usage: str,
    help: str,
    call: Callable[[LocalAccounts, str], Awaitable[T]],
    show: Callable[[T, Output], None],
) -> None:
    """Add a command about one tenant, user or token.

    `usage` is its name, its argument and an example of the argument. `show` prints the result of `call`.
    """
    name, metavar, example = usage.split()

    @group.command(name, help=f"{help}\n\n\b\nExamples:\n  redrive {group.name} {name} {example}")
    @click.argument("id", metavar=metavar)
    @common_options
    def command(id: str, target: Target, output: Output) -> None:
        show(manage_accounts(target, lambda accounts: call(accounts, id)), output)


async def ensure_tenant(accounts: LocalAccounts, tenant: str) -> None:
    """Register the tenant if it is new."""
    if tenant not in {row.tenant for row in await accounts.tenants()}:
        await accounts.create_tenant(tenant)
        echo_err(f"tenant {tenant!r} is new: registered")


class LocalAccounts:
    """Tenants, users and tokens of an open store, as an operator changes them."""

    def __init__(self, app: Redrive, by: str) -> None:
        from redrive.server.auth.admin import AccountAdmin, make_operator

        self._store = app.runtime.store
        clock, secret = app.runtime.clock, app.settings.secret_key
        self._access: AccountAdmin = AccountAdmin(self._store.accounts, clock, make_operator(by), secret)

    async def tenants(self) -> list[TenantRow]:
        return await self._access.tenants()

    async def tenant(self, name: str) -> TenantRow:
        return await self._access.tenant(name)

    async def create_tenant(self, name: str) -> TenantRow:
        return await self._access.create_tenant(name)

    async def disable_tenant(self, name: str, *, disabled: bool) -> TenantRow:
        return await self._access.disable_tenant(name, disabled=disabled)

    async def erase_tenant(self, name: str) -> int:
        from redrive.server.auth.admin import erase_tenant_data

        return await erase_tenant_data(self._store, self._access, name)

    async def export_tenant(self, name: str) -> AsyncIterator[dict[str, Any]]:
        from redrive.server.auth.admin import export_tenant_data

        async for kind, value in await export_tenant_data(self._store, self._access, name):
            yield {"kind": kind, **as_json(value)}

    async def users(self, tenant: str | None) -> list[UserRow]:
        return await self._access.users(tenant)

    async def user(self, id: str) -> UserRow:
        return await self._access.user(None, id)

    async def create_user(self, new: NewUser) -> tuple[UserRow, str | None]:
        return await self._access.create_user(new)

    async def give_role(self, id: str, tenant: str, role: Role, *, payloads: bool | None) -> tuple[UserRow, str | None]:
        from redrive.server.auth.admin import MembershipChange, change_membership

        user = await self._access.user(None, id, near=tenant)
        if tenant not in {each.tenant for each in user.members}:
            await ensure_tenant(self, tenant)
        part = MembershipChange(role=role, payloads=payloads, active=True)
        return await change_membership(self._access, user, tenant, part)

    async def disable_user(self, id: str, *, disabled: bool) -> UserRow:
        return await self._access.disable_user(id, disabled=disabled)

    async def code(self, id: str) -> str:
        from redrive.server.auth.admin import create_sign_in_code

        return (await create_sign_in_code(self._access, id))[1]

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return await self._access.tokens(tenant)

    async def token(self, id: str) -> TokenRow:
        return await self._access.token(None, id)

    async def create_token(self, new: NewToken) -> IssuedToken:
        return await self._access.create_token(new)

    async def revoke_token(self, id: str) -> TokenRow:
        return await self._access.revoke_token(None, id)


@click.group()
def tenants() -> None:
    """Manage the tenants that share a store: register, disable, export, erase.

    \b
    Examples:
      redrive tenants create acme
      redrive tenants export acme > acme.jsonl
      redrive tenants erase acme --yes
    """


def _tenant_fields(row: TenantRow) -> dict[str, object]:
    from redrive.time_values import to_datetime

    return {
        "name": row.tenant,
        "created_at": to_datetime(row.created_at),
        "created_by": row.created_by,
        "disabled": row.disabled_at is not None,
    }


def _print_tenant(row: TenantRow, output: Output) -> None:
    state = "disabled" if row.disabled_at is not None else "enabled"
    output.done(row.tenant, _tenant_fields(row), f"{row.tenant}: {state}")


add_account_command(
    tenants,
    "create NAME acme",
    "Register tenant NAME, so that it can have users and tokens.",
    lambda accounts, name: accounts.create_tenant(name),
    _print_tenant,
)


@tenants.command("list")
@common_options
def list_(target: Target, output: Output) -> None:
    """List the registered tenants.

    \b
    Examples:
      redrive tenants list
    """
    rows = manage_accounts(target, lambda accounts: accounts.tenants())
    columns: list[Column[dict[str, object]]] = [
        *field_columns(NAME="name", SINCE="created_at", BY="created_by"),
        Column("DISABLED", lambda one: "yes" if one["disabled"] else None),
    ]
    empty = "No tenant is registered."
    output.list([_tenant_fields(row) for row in rows], columns, id=lambda one: str(one["name"]), empty=empty)


add_account_command(
    tenants, "show NAME acme", "Show tenant NAME.", lambda accounts, name: accounts.tenant(name), _print_tenant
)
add_account_command(
    tenants,
    "disable NAME acme",
    "Refuse all users and tokens of tenant NAME. Its data stays, and its runs continue.",
    lambda accounts, name: accounts.disable_tenant(name, disabled=True),
    _print_tenant,
)
add_account_command(
    tenants,
    "enable NAME acme",
    "Accept the users and tokens of tenant NAME again.",
    lambda accounts, name: accounts.disable_tenant(name, disabled=False),
    _print_tenant,
)


@tenants.command()
@click.argument("name")
@target_options
def export(name: str, target: Target) -> None:
    """Print all data of tenant NAME, one JSON object on each line. Nothing is redacted.

    \b
    Examples:
      redrive tenants export acme > acme.jsonl
    """

    async def print_data(accounts: LocalAccounts) -> None:
        async for record in accounts.export_tenant(name):
            echo(json_text(record))
        for user in await accounts.users(name):
            echo(json_text({"kind": "user", "id": user.id, "email": user.email}))

    manage_accounts(target, print_data)


@tenants.command()
@click.argument("name")
@decision_options
def erase(name: str, change: ChangeOptions, target: Target, output: Output) -> None:
    """Remove all data of tenant NAME. Runs, dead letters, audit log, members and tokens are lost. It cannot be undone.

    Asks on a terminal; a script needs --yes.

    \b
    Examples:
      redrive tenants erase acme --yes
    """
    change.require_yes(f"nothing was erased: add --yes to erase {name!r} without a question")
    change.confirm(f"Erase all data of tenant {name!r} permanently")

    async def erase_data(accounts: LocalAccounts) -> int:
        return 0 if change.dry_run else await accounts.erase_tenant(name)

    rows = manage_accounts(target, erase_data, by=change.by)
    if change.dry_run:
        echo_err(f"would erase tenant {name!r}; nothing was changed")
    else:
        output.done(name, {"name": name, "rows": rows}, f"erased tenant {name!r}: {rows} rows")


@click.group()
def tokens() -> None:
    """Manage the tokens with which programs use the server.

    \b
    Examples:
      redrive tokens create --tenant acme --role STAFF --workflow fulfil
      redrive tokens list --tenant acme
      redrive tokens revoke 01k9x7y2m4n6p8q0r2s4t6v8w0
    """


@tokens.command("create")
@TENANT_OPTION
@click.option("--role", type=TOKEN_ROLE_CHOICE, required=True, help="Role of the token.")
@click.option("--workflow", "workflows", multiple=True, metavar="NAME", help="Only this workflow; may be repeated.")
@click.option("--step", "steps", multiple=True, metavar="NAME", help="For a WORKER: only this step; may be repeated.")
@click.option(
    "--kind", type=click.Choice(["key", "jwt"]), default="key", show_default=True, help="A key, or a signed token."
)
@click.option(
    "--name",
    default="unnamed",
    metavar="TEXT",
    show_default=True,
    help="Name of the token, shown in lists and in the audit log.",
)
@click.option("--lasts", type=DURATION_TYPE, metavar="TIME", help="How long it is valid.  [default: a jwt 30d]")
@click.option("--payloads", is_flag=True, help="The token may see payloads without redaction.")
@click.option("--all-tenants", is_flag=True, help="For a WORKER: it executes runs of all tenants.")
@common_options
def create_token(target: Target, output: Output, tenant: str | None, all_tenants: bool, **options: Any) -> None:
    """Create a token and print its secret, which is not shown again.

    \b
    Examples:
      redrive tokens create --tenant acme --role VIEWER --name grafana
      redrive tokens create --tenant acme --role STAFF --workflow fulfil --kind jwt --lasts 1h
      redrive tokens create --tenant acme --role WORKER --workflow fulfil
    """
    from redrive.core.roles import ALL_TENANTS

    if all_tenants and (tenant is not None or options["role"].upper() != "WORKER"):
        raise click.UsageError("--all-tenants needs --role WORKER and excludes --tenant")
    tenant_name = ALL_TENANTS if all_tenants else tenant or default_tenant(target)

    async def create(accounts: LocalAccounts) -> IssuedToken:
        from redrive.core.roles import parse_role
        from redrive.store.accounts import NewToken, TokenKind
        from redrive.time_values import parse_duration

        if not all_tenants:
            await ensure_tenant(accounts, tenant_name)
        lasts = options["lasts"]
        new = NewToken(
            tenant=tenant_name,
            role=parse_role(options["role"]),
            name=options["name"],
            kind=TokenKind(options["kind"]),
            workflows=options["workflows"],
            steps=options["steps"],
            payloads=options["payloads"],
            lasts=None if lasts is None else int(parse_duration(lasts, "--lasts")),
        )
        return await accounts.create_token(new)

    issued = manage_accounts(target, create)
    if output.json:
        output.object({**_token_fields(issued.token), "secret": issued.secret})
    elif output.quiet:
        click.echo(issued.token.id)
    else:
        echo_err(f"token {issued.token.id} ({issued.token.role} of {issued.token.tenant}); its secret, shown once:")
        click.echo(issued.secret)


@tokens.command("list")
@click.option("--tenant", metavar="NAME", help="Only tokens of this tenant.  [default: all]")
@common_options
def list_tokens(tenant: str | None, target: Target, output: Output) -> None:
    """List tokens, newest first. Their secrets are not stored.

    \b
    Examples:
      redrive tokens list --tenant acme
    """
    rows = manage_accounts(target, lambda accounts: accounts.tokens(tenant))
    columns: list[Column[dict[str, Any]]] = [
        *field_columns(ID="id", NAME="name", TENANT="tenant", ROLE="role", KIND="kind"),
        Column("WORKFLOWS", lambda one: ", ".join(one["workflows"])),
        *field_columns(EXPIRES="expires_at", REVOKED="revoked_at"),
    ]
    output.list([_token_fields(row) for row in rows], columns, id=lambda one: one["id"], empty="There are no tokens.")


def _token_fields(row: TokenRow) -> dict[str, Any]:
    from redrive.time_values import to_datetime

    return {
        "id": row.id,
        "kind": row.kind.value,
        "name": row.name,
        "tenant": row.tenant,
        "role": row.role.value,
        "may_see_payloads": row.payloads,
        "workflows": list(row.workflows),
        "steps": list(row.steps),
        "created_at": to_datetime(row.created_at),
        "created_by": row.created_by,
        "expires_at": to_datetime(row.expires_at),
        "revoked_at": to_datetime(row.revoked_at),
    }


def _print_token(row: TokenRow, output: Output) -> None:
    state = "revoked" if row.revoked_at is not None else "in force"
    output.done(row.id, _token_fields(row), f"{row.id} ({row.name}): {row.role} of {row.tenant}, {state}")


add_account_command(
    tokens,
    "show TOKEN 01k9x7y2m4n6p8q0r2s4t6v8w0",
    "Show one token, without its secret.",
    lambda accounts, id: accounts.token(id),
    _print_token,
)
add_account_command(
    tokens,
    "revoke TOKEN 01k9x7y2m4n6p8q0r2s4t6v8w0",
    "Revoke TOKEN: it is refused from its next use on.",
    lambda accounts, id: accounts.revoke_token(id),
    _print_token,
)
