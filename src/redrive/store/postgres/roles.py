"""The roles, and the proof that a tenant's transaction sees no other tenant.

redrive_engine   workers and chores: sees all tenants, owns nothing, bypasses nothing
redrive_app      whatever is done for a tenant's user: sees the tenant its transaction names
redrive_login    what a login is a member of: may act as the two by SET ROLE, and inherits nothing from them
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from redrive.errors import SchemaMismatch, StoreError
from redrive.store import EXPOSED, statements
from redrive.store.postgres.address import Address
from redrive.store.postgres.line import Line
from redrive.store.postgres.sql import Statement, load, prepare

__all__ = ["APP", "ENGINE", "acting_for", "create", "prove_confined"]

SQL = load("schema.sql")
_FOREIGN = statements.load(__package__, "schema.sql")["foreign_rows"]

ENGINE, APP, LOGIN = "redrive_engine", "redrive_app", "redrive_login"
_PROBE, _OTHER = "redrive probe", "redrive probe's neighbour"

# Two databases of one server may be set up at the same time; roles belong to both.
_CREATE = """
DO $body$ BEGIN
    CREATE ROLE {name} NOLOGIN NOSUPERUSER NOBYPASSRLS NOINHERIT;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END $body$;
"""


async def create(line: Line, address: Address) -> None:
    """Make sure that this user can act as both roles, or say what is to be done.

    The user is made a member of `redrive_login`, which inherits nothing: statements of the user's own, in a
    transactional step for example, then have no right to the rows of any tenant.
    """
    me = await line.row(SQL["me"])
    cannot_act = await line.rows(SQL["not_member_of"])
    # A plain login that can act already needs nothing, and might not have the right to arrange more.
    wanted = cannot_act or me["is_super"]
    missing = [row["name"] for row in await line.rows(SQL["missing_roles"])] if wanted else []
    if missing and not me["may_create_roles"]:
        raise SchemaMismatch(_advice(address, me["name"]))
    if not me["may_create_schemas"]:
        raise SchemaMismatch(
            f"{address.where} has no Redrive schema yet, and user {me['name']!r} may not create one: run "
            f"`redrive migrate` as the database's owner, or as an administrator: "
            f"GRANT CREATE ON DATABASE ... TO {me['name']};"
        )
    for name in missing:
        await line.script(_CREATE.format(name=name))
    try:
        if missing:
            await line.script(f"GRANT {ENGINE}, {APP} TO {LOGIN}")
        if await line.rows(SQL["not_member_of"]):
            await line.script(f'GRANT {LOGIN} TO "{me["name"]}"')
    except asyncpg.PostgresError as error:
        raise SchemaMismatch(_advice(address, me["name"])) from error


def _advice(address: Address, name: str) -> str:
    return (
        f"{address.where} needs roles that user {name!r} may not create or use. As an administrator: "
        f"CREATE ROLE {ENGINE} NOLOGIN; CREATE ROLE {APP} NOLOGIN; CREATE ROLE {LOGIN} NOLOGIN NOINHERIT; "
        f"GRANT {ENGINE}, {APP} TO {LOGIN}; GRANT {LOGIN} TO {name}; "
        "then run `redrive migrate` again"
    )


@asynccontextmanager
async def acting_for(line: Line, tenant: str) -> AsyncIterator[None]:
    """A transaction in which only one tenant's rows exist."""
    async with line.transaction(role=APP):
        await line.con.execute("SELECT set_config('redrive.tenant', $1, true)", tenant)
        yield


async def prove_confined(line: Line, address: Address) -> None:
    """Refuse to work on a database in which one tenant could see another."""
    faults = [
        f"role {row['name']} {row['reason']}"
        for row in await line.rows(SQL["strong_roles"], schema=address.schema)
    ]
    tables = await line.rows(SQL["tenant_tables"], schema=address.schema)
    faults += [f"table {row['name']} lacks forced row level security" for row in tables if not row["guarded"]]
    if not faults and not await _cannot_act(line):
        faults += await _leaks(line, [row["name"] for row in tables])
    if faults:
        raise StoreError(
            f"{address.where} {EXPOSED}: {'; '.join(faults)}. Nothing was started; undo "
            "what was changed there"
        )


async def _cannot_act(line: Line) -> bool:
    """True for a user that cannot act as `redrive_app` at all, which is as confined as can be."""
    return any(row["name"] == APP for row in await line.rows(SQL["not_member_of"]))


async def _leaks(line: Line, tables: list[str]) -> list[str]:
    """Write a row for one tenant, look at every table as another one, and undo it all."""
    try:
        async with line.transaction(role=ENGINE):
            await line.rows(SQL["probe"], tenant=_OTHER)
            async with acting_for(line, _PROBE):
                seen = await line.rows(_look_into(tables), tenant=_PROBE)
            raise _Undo
    except _Undo:
        return [f"a transaction of one tenant sees another's rows in {row['name']}" for row in seen]


def _look_into(tables: list[str]) -> Statement:
    """One question for all tables: the server is asked at every start, and may be far away."""
    return prepare(" UNION ALL ".join(_FOREIGN.format(table=name) for name in tables))


class _Undo(Exception):
    """Rolls the probe back."""
