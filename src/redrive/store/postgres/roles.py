"""Roles of a PostgreSQL database: their creation, the transactions of one tenant, and rights that expose tenants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from redrive.errors import SchemaMismatch
from redrive.store import TenantsExposed, sql_files
from redrive.store.postgres.connection import TRY_AGAIN, Address, Connection, parse_url, plain_connection
from redrive.store.sql_files import load_numbered_statements, number_parameters

SQL = load_numbered_statements(__package__, "schema.sql")
_FOREIGN_ROWS = sql_files.load_statements(__package__, "schema.sql")["foreign_rows"]
ENGINE_ROLE, APP_ROLE, LOGIN_ROLE = "redrive_engine", "redrive_app", "redrive_login"
_PROBE_TENANT, _OTHER_TENANT = "redrive probe", "redrive probe's neighbour"
# Two databases of one server may be set up at the same time; roles belong to both.
_CREATE_ROLE = """
DO $body$ BEGIN
    CREATE ROLE {name} NOLOGIN NOSUPERUSER NOBYPASSRLS NOINHERIT;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;
END $body$;
"""


async def create_roles(connection: Connection, address: Address) -> None:
    """Make sure that the login can act in both roles, or raise an error that says what to do.

    The login becomes a member of `redrive_login`, which inherits nothing: statements of the user, in a transactional
    step for example, then have no right to the rows of any tenant.
    """
    me = await connection.row(SQL["current_user"])
    cannot_act = await connection.rows(SQL["roles_not_granted"])
    # A plain login that has both roles needs nothing more, and may not have the right to arrange it.
    wanted = cannot_act or me["is_super"]
    missing = [row["name"] for row in await connection.rows(SQL["missing_roles"])] if wanted else []
    if missing and not me["may_create_roles"]:
        raise SchemaMismatch(_role_advice(address, me["name"]))
    if not me["may_create_schemas"]:
        raise SchemaMismatch(
            f"{address.where} has no Redrive schema yet, and user {me['name']!r} may not create one: run "
            f"`redrive migrate` as the database's owner, or as an administrator: "
            f"GRANT CREATE ON DATABASE ... TO {me['name']};"
        )
    for name in missing:
        await connection.script(_CREATE_ROLE.format(name=name))
    try:
        if missing:
            await connection.script(f"GRANT {ENGINE_ROLE}, {APP_ROLE} TO {LOGIN_ROLE}")
        if await connection.rows(SQL["roles_not_granted"]):
            await connection.script(f'GRANT {LOGIN_ROLE} TO "{me["name"]}"')
    except asyncpg.PostgresError as error:
        raise SchemaMismatch(_role_advice(address, me["name"])) from error


def _role_advice(address: Address, name: str) -> str:
    return (
        f"{address.where} needs roles that user {name!r} may not create or use. As an administrator: "
        f"CREATE ROLE {ENGINE_ROLE} NOLOGIN; CREATE ROLE {APP_ROLE} NOLOGIN; "
        f"CREATE ROLE {LOGIN_ROLE} NOLOGIN NOINHERIT; "
        f"GRANT {ENGINE_ROLE}, {APP_ROLE} TO {LOGIN_ROLE}; GRANT {LOGIN_ROLE} TO {name}; "
        "then run `redrive migrate` again"
    )


@asynccontextmanager
async def tenant_transaction(connection: Connection, tenant: str) -> AsyncIterator[None]:
    """Begin a transaction in which only one tenant's rows exist."""
    async with connection.transaction(role=APP_ROLE):
        await connection.con.execute("SELECT set_config('redrive.tenant', $1, true)", tenant)
        yield


async def check_tenant_isolation(connection: Connection, address: Address) -> None:
    """Refuse to work on a database in which one tenant could see another."""
    faults = [
        f"role {row['name']} {row['reason']}"
        for row in await connection.rows(SQL["excess_role_rights"], schema=address.schema)
    ]
    tables = await connection.rows(SQL["tenant_tables"], schema=address.schema)
    faults += [f"table {row['name']} lacks forced row level security" for row in tables if not row["guarded"]]
    # A login that cannot act as `redrive_app` cannot leak through it.
    can_act = all(row["name"] != APP_ROLE for row in await connection.rows(SQL["roles_not_granted"]))
    if not faults and can_act:
        faults += await _find_leaks(connection, [row["name"] for row in tables])
    if faults:
        raise TenantsExposed(
            f"{address.where} does not keep tenants apart: {'; '.join(faults)}. Nothing was started: "
            "undo these changes there"
        )


async def _find_leaks(connection: Connection, tables: list[str]) -> list[str]:
    """Write a row for one tenant, read every table as another tenant, and roll back. Return what was visible."""
    # One query for all tables: the server is asked at every start, and may be far away.
    query = number_parameters(" UNION ALL ".join(_FOREIGN_ROWS.format(table=name) for name in tables))
    try:
        async with connection.transaction(role=ENGINE_ROLE):
            await connection.rows(SQL["insert_probe_run"], tenant=_OTHER_TENANT)
            async with tenant_transaction(connection, _PROBE_TENANT):
                seen = await connection.rows(query, tenant=_PROBE_TENANT)
            raise _ProbeRollback
    except _ProbeRollback:
        return [f"a transaction of one tenant sees another's rows in {row['name']}" for row in seen]


class _ProbeRollback(Exception):
    """Rolls the probe back."""


async def find_excess_login_rights(url: str) -> list[str]:
    """Return the rights of a URL's login that a server or a worker does not need."""
    address = parse_url(url)
    async with plain_connection(address, TRY_AGAIN) as connection:
        return [row["reason"] for row in await connection.rows(SQL["excess_login_rights"], schema=address.schema)]
