"""`redrive tokens`: keys and signed tokens for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import ROLES, Managing, manage, registered
from redrive.cli.moment import SPAN
from redrive.cli.output import Column, Output, say, shown
from redrive.cli.place import Place, at_a_place, home

if TYPE_CHECKING:
    from redrive.server.auth.wanted import Made
    from redrive.store.account_records import TokenRow

__all__ = ["tokens"]


@click.group()
def tokens() -> None:
    """Manage tokens, with which programs use the server.

    \b
    Examples:
      redrive tokens create --tenant acme --role STAFF --workflow fulfil
      redrive tokens list --tenant acme
      redrive tokens revoke 01k9x7y2m4n6p8q0r2s4t6v8w0
    """


@tokens.command()
@click.option("--tenant", metavar="NAME", help="The tenant.  [default: default, or the token's]")
@click.option("--role", type=ROLES, required=True, help="What it allows.")
@click.option(
    "--workflow", "workflows", multiple=True, metavar="NAME", help="Only this workflow; may be repeated."
)
@click.option(
    "--kind",
    type=click.Choice(["key", "jwt"]),
    default="key",
    show_default=True,
    help="A key, or a signed token.",
)
@click.option("--name", default="unnamed", metavar="TEXT", show_default=True, help="What it is for.")
@click.option("--lasts", type=SPAN, metavar="TIME", help="How long it holds.  [default: a jwt 30d]")
@click.option("--payloads", is_flag=True, help="It may see hidden payloads.")
@shown
@at_a_place
def create(place: Place, output: Output, tenant: str | None, **wanted: Any) -> None:
    """Make a token and print its secret, which is shown now and never again.

    \b
    Examples:
      redrive tokens create --tenant acme --role VIEWER --name grafana
      redrive tokens create --tenant acme --role STAFF --workflow fulfil --kind jwt --lasts 1h
    """

    whose = tenant or home(place)

    async def work(people: Managing) -> Made:
        from redrive.core.roles import role_of
        from redrive.duration import seconds
        from redrive.server.auth.wanted import NewToken
        from redrive.store.account_records import TokenKind

        await registered(people, whose)
        lasts = wanted["lasts"]
        new = NewToken(
            tenant=whose,
            role=role_of(wanted["role"]),
            name=wanted["name"],
            kind=TokenKind(wanted["kind"]),
            workflows=wanted["workflows"],
            payloads=wanted["payloads"],
            lasts=None if lasts is None else int(seconds(lasts, "--lasts")),
        )
        return await people.create_token(new)

    made = manage(place, work)
    if output.json:
        output.object({**_shown(made.token), "secret": made.secret})
    elif output.quiet:
        click.echo(made.token.id)
    else:
        say(f"token {made.token.id} ({made.token.role} of {made.token.tenant}); its secret, shown once:")
        click.echo(made.secret)


@tokens.command("list")
@click.option("--tenant", metavar="NAME", help="Only tokens of this tenant.  [default: all]")
@shown
@at_a_place
def list_(tenant: str | None, place: Place, output: Output) -> None:
    """List tokens, newest first. Their secrets are kept nowhere.

    \b
    Examples:
      redrive tokens list --tenant acme
    """
    rows = manage(place, lambda people: people.tokens(tenant))
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
        [_shown(row) for row in rows], columns, id=lambda one: str(one["id"]), empty="There is no token."
    )


@tokens.command()
@click.argument("id", metavar="TOKEN")
@shown
@at_a_place
def show(id: str, place: Place, output: Output) -> None:
    """Show one token, without its secret.

    \b
    Examples:
      redrive tokens show 01k9x7y2m4n6p8q0r2s4t6v8w0
    """
    _print(manage(place, lambda people: people.token(id)), output)


@tokens.command()
@click.argument("id", metavar="TOKEN")
@shown
@at_a_place
def revoke(id: str, place: Place, output: Output) -> None:
    """Let TOKEN hold no longer, from its next use on.

    \b
    Examples:
      redrive tokens revoke 01k9x7y2m4n6p8q0r2s4t6v8w0
    """
    _print(manage(place, lambda people: people.revoke_token(id)), output)


def _shown(row: TokenRow) -> dict[str, Any]:
    from redrive.duration import moment

    return {
        "id": row.id,
        "kind": row.kind.value,
        "name": row.name,
        "tenant": row.tenant,
        "role": row.role.value,
        "may_see_payloads": row.payloads,
        "workflows": list(row.workflows),
        "created_at": moment(row.created_at),
        "created_by": row.created_by,
        "expires_at": moment(row.expires_at),
        "revoked_at": moment(row.revoked_at),
    }


def _print(row: TokenRow, output: Output) -> None:
    state = "revoked" if row.revoked_at is not None else "in force"
    output.done(row.id, _shown(row), f"{row.id} ({row.name}): {row.role} of {row.tenant}, {state}")
