"""`redrive tenants`: the organisations that share a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from redrive.cli.messages import report_errors
from redrive.cli.options import DURATION_TYPE, ChangeOptions, change_options, current_user
from redrive.cli.output import Column, Output, as_json, echo, echo_err, json_text, output_options
from redrive.cli.place import Target, default_tenant, target_options
from redrive.cli.server import require_extras

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.core.roles import Role
    from redrive.server.auth.admin import AccountAdmin
    from redrive.server.contract import IssuedToken, NewToken, NewUser
    from redrive.store.account_records import TenantRow, TokenRow, UserRow

# -- Working on tenants, people and tokens: on the store itself, past all roles, or on a server with -----


T = TypeVar("T")
ROLE_CHOICE = click.Choice(["OWNER", "ADMIN", "STAFF", "VIEWER", "SUPER_ADMIN", "ORG_ADMIN"], case_sensitive=False)


def manage_accounts(place: Target, work: Callable[[LocalAccounts], Awaitable[T]], by: str | None = None) -> T:
    """Open the store, which is made if there is none, and work on it as whoever is at the keyboard.

    Where the place is a server, the work is done there, with what the token allows.
    """
    import asyncio

    async def opened() -> T:
        remote = place.server()
        if remote is not None:
            async with remote.client():
                return await work(cast("LocalAccounts", remote.accounts))
        app = place.app()
        async with app.client():
            return await work(LocalAccounts(app, by or current_user()))

    with report_errors(), require_extras():
        return asyncio.run(opened())


async def ensure_tenant(people: LocalAccounts, tenant: str) -> str:
    """The tenant, registered now if it was not."""
    if tenant not in {row.tenant for row in await people.tenants()}:
        await people.create_tenant(tenant)
        echo_err(f"tenant {tenant!r} is new: registered")
    return tenant


class LocalAccounts:
    """What an operator does about tenants, people and tokens of an open store."""

    def __init__(self, app: Redrive, by: str) -> None:
        from redrive.server.auth.admin import AccountAdmin, make_operator

        self._store = app.runtime.store
        clock, secret = app.runtime.clock, app.settings.secret_key
        self._access: AccountAdmin = AccountAdmin(self._store.accounts, clock, make_operator(by), secret)

    # -- tenants ---------------------------------------------------------------------------------------

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

    # -- people ----------------------------------------------------------------------------------------

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

    # -- tokens ----------------------------------------------------------------------------------------

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return await self._access.tokens(tenant)

    async def token(self, id: str) -> TokenRow:
        return await self._access.token(None, id)

    async def create_token(self, new: NewToken) -> IssuedToken:
        return await self._access.create_token(new)

    async def revoke_token(self, id: str) -> TokenRow:
        return await self._access.revoke_token(None, id)


# -- `redrive tenants`: the organisations that share a store ---------------------------------------------


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
@output_options
@target_options
def create(name: str, place: Target, output: Output) -> None:
    """Register tenant NAME, so that people and tokens can belong to it.

    \b
    Examples:
      redrive tenants create acme
    """
    _print_tenant(manage_accounts(place, lambda people: people.create_tenant(name)), output)


@tenants.command("list")
@output_options
@target_options
def list_(place: Target, output: Output) -> None:
    """List the registered tenants.

    \b
    Examples:
      redrive tenants list
    """
    rows = manage_accounts(place, lambda people: people.tenants())
    columns: list[Column[dict[str, object]]] = [
        Column("NAME", lambda one: one["name"]),
        Column("SINCE", lambda one: one["created_at"]),
        Column("BY", lambda one: one["created_by"]),
        Column("DISABLED", lambda one: "yes" if one["disabled"] else None),
    ]
    output.list(
        [_tenant_fields(row) for row in rows],
        columns,
        id=lambda one: str(one["name"]),
        empty="No tenant is registered.",
    )


@tenants.command()
@click.argument("name")
@output_options
@target_options
def show(name: str, place: Target, output: Output) -> None:
    """Show tenant NAME.

    \b
    Examples:
      redrive tenants show acme
    """
    _print_tenant(manage_accounts(place, lambda people: people.tenant(name)), output)


@tenants.command()
@click.argument("name")
@output_options
@target_options
def disable(name: str, place: Target, output: Output) -> None:
    """Let no credential of tenant NAME hold. Its data stays, and its runs go on.

    \b
    Examples:
      redrive tenants disable acme
    """
    _print_tenant(manage_accounts(place, lambda people: people.disable_tenant(name, disabled=True)), output)


@tenants.command()
@click.argument("name")
@output_options
@target_options
def enable(name: str, place: Target, output: Output) -> None:
    """Let the credentials of tenant NAME hold again.

    \b
    Examples:
      redrive tenants enable acme
    """
    _print_tenant(manage_accounts(place, lambda people: people.disable_tenant(name, disabled=False)), output)


@tenants.command()
@click.argument("name")
@target_options
def export(name: str, place: Target) -> None:
    """Print everything tenant NAME has, one JSON object on each line, with nothing hidden.

    \b
    Examples:
      redrive tenants export acme > acme.jsonl
    """

    async def work(people: LocalAccounts) -> None:
        async for one in people.export_tenant(name):
            echo(json_text(one))
        for account in await people.users(name):
            echo(json_text({"kind": "user", "id": account.id, "email": account.email}))

    manage_accounts(place, work)


@tenants.command()
@click.argument("name")
@change_options
@output_options
@target_options
def erase(name: str, change: ChangeOptions, place: Target, output: Output) -> None:
    """Remove everything tenant NAME has: runs, letters, log, people, tokens. It cannot be undone.

    Asks on a terminal; elsewhere --yes is needed.

    \b
    Examples:
      redrive tenants erase acme --yes
    """
    change.require_yes(f"nothing was erased: say --yes to erase {name!r} without being asked")
    change.confirm(f"Erase everything of tenant {name!r}, for good")

    async def work(people: LocalAccounts) -> int:
        return 0 if change.dry_run else await people.erase_tenant(name)

    rows = manage_accounts(place, work, by=change.by)
    if change.dry_run:
        echo_err(f"would erase tenant {name!r}; nothing was changed")
    else:
        output.done(name, {"name": name, "rows": rows}, f"erased tenant {name!r}: {rows} rows")


def _tenant_fields(row: TenantRow) -> dict[str, object]:
    from redrive.duration import to_datetime

    return {
        "name": row.tenant,
        "created_at": to_datetime(row.created_at),
        "created_by": row.created_by,
        "disabled": row.disabled_at is not None,
    }


def _print_tenant(row: TenantRow, output: Output) -> None:
    state = "disabled" if row.disabled_at is not None else "enabled"
    output.done(row.tenant, _tenant_fields(row), f"{row.tenant}: {state}")


# -- `redrive tokens`: keys and signed tokens for programs -----------------------------------------------


@click.group()
def tokens() -> None:
    """Manage tokens, with which programs use the server.

    \b
    Examples:
      redrive tokens create --tenant acme --role STAFF --workflow fulfil
      redrive tokens list --tenant acme
      redrive tokens revoke 01k9x7y2m4n6p8q0r2s4t6v8w0
    """


@tokens.command("create")
@click.option("--tenant", metavar="NAME", help="The tenant.  [default: default, or the token's]")
@click.option("--role", type=ROLE_CHOICE, required=True, help="What it allows.")
@click.option("--workflow", "workflows", multiple=True, metavar="NAME", help="Only this workflow; may be repeated.")
@click.option(
    "--kind", type=click.Choice(["key", "jwt"]), default="key", show_default=True, help="A key, or a signed token."
)
@click.option("--name", default="unnamed", metavar="TEXT", show_default=True, help="What it is for.")
@click.option("--lasts", type=DURATION_TYPE, metavar="TIME", help="How long it holds.  [default: a jwt 30d]")
@click.option("--payloads", is_flag=True, help="It may see hidden payloads.")
@output_options
@target_options
def create_token(place: Target, output: Output, tenant: str | None, **wanted: Any) -> None:
    """Make a token and print its secret, which is shown now and never again.

    \b
    Examples:
      redrive tokens create --tenant acme --role VIEWER --name grafana
      redrive tokens create --tenant acme --role STAFF --workflow fulfil --kind jwt --lasts 1h
    """

    whose = tenant or default_tenant(place)

    async def work(people: LocalAccounts) -> IssuedToken:
        from redrive.core.roles import parse_role
        from redrive.duration import parse_duration
        from redrive.server.contract import NewToken
        from redrive.store.account_records import TokenKind

        await ensure_tenant(people, whose)
        lasts = wanted["lasts"]
        new = NewToken(
            tenant=whose,
            role=parse_role(wanted["role"]),
            name=wanted["name"],
            kind=TokenKind(wanted["kind"]),
            workflows=wanted["workflows"],
            payloads=wanted["payloads"],
            lasts=None if lasts is None else int(parse_duration(lasts, "--lasts")),
        )
        return await people.create_token(new)

    made = manage_accounts(place, work)
    if output.json:
        output.object({**_token_fields(made.token), "secret": made.secret})
    elif output.quiet:
        click.echo(made.token.id)
    else:
        echo_err(f"token {made.token.id} ({made.token.role} of {made.token.tenant}); its secret, shown once:")
        click.echo(made.secret)


@tokens.command("list")
@click.option("--tenant", metavar="NAME", help="Only tokens of this tenant.  [default: all]")
@output_options
@target_options
def list_tokens(tenant: str | None, place: Target, output: Output) -> None:
    """List tokens, newest first. Their secrets are kept nowhere.

    \b
    Examples:
      redrive tokens list --tenant acme
    """
    rows = manage_accounts(place, lambda people: people.tokens(tenant))
    columns: list[Column[dict[str, Any]]] = [
        Column("ID", lambda one: one["id"]),
        Column("NAME", lambda one: one["name"]),
        Column("TENANT", lambda one: one["tenant"]),
        Column("ROLE", lambda one: one["role"]),
        Column("KIND", lambda one: one["kind"]),
        Column("WORKFLOWS", lambda one: ", ".join(one["workflows"])),
        Column("EXPIRES", lambda one: one["expires_at"]),
        Column("REVOKED", lambda one: one["revoked_at"]),
    ]
    output.list(
        [_token_fields(row) for row in rows], columns, id=lambda one: str(one["id"]), empty="There is no token."
    )


@tokens.command("show")
@click.argument("id", metavar="TOKEN")
@output_options
@target_options
def show_token(id: str, place: Target, output: Output) -> None:
    """Show one token, without its secret.

    \b
    Examples:
      redrive tokens show 01k9x7y2m4n6p8q0r2s4t6v8w0
    """
    _print_token(manage_accounts(place, lambda people: people.token(id)), output)


@tokens.command()
@click.argument("id", metavar="TOKEN")
@output_options
@target_options
def revoke(id: str, place: Target, output: Output) -> None:
    """Let TOKEN hold no longer, from its next use on.

    \b
    Examples:
      redrive tokens revoke 01k9x7y2m4n6p8q0r2s4t6v8w0
    """
    _print_token(manage_accounts(place, lambda people: people.revoke_token(id)), output)


def _token_fields(row: TokenRow) -> dict[str, Any]:
    from redrive.duration import to_datetime

    return {
        "id": row.id,
        "kind": row.kind.value,
        "name": row.name,
        "tenant": row.tenant,
        "role": row.role.value,
        "may_see_payloads": row.payloads,
        "workflows": list(row.workflows),
        "created_at": to_datetime(row.created_at),
        "created_by": row.created_by,
        "expires_at": to_datetime(row.expires_at),
        "revoked_at": to_datetime(row.revoked_at),
    }


def _print_token(row: TokenRow, output: Output) -> None:
    state = "revoked" if row.revoked_at is not None else "in force"
    output.done(row.id, _token_fields(row), f"{row.id} ({row.name}): {row.role} of {row.tenant}, {state}")
