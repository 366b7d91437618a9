"""Opening a database: wait for it, see to its schema, and prove that tenants are kept apart in it."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import asyncpg

from redrive.clock import SystemClock
from redrive.errors import SchemaMismatch
from redrive.store.postgres import schema
from redrive.store.postgres.address import Address, locate
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line, connect, hang_up, put_in_force
from redrive.store.postgres.refusals import NOTHING_LOST, ONCE, meaning
from redrive.store.postgres.roles import ENGINE, prove_confined
from redrive.store.postgres.session import PostgresSession
from redrive.store.session import until_answered

__all__ = ["migrate", "prepare"]

log = logging.getLogger("redrive.store")


async def prepare(
    address: Address, clock: DatabaseClock, settings: Mapping[str, str], *, migrate: bool
) -> asyncpg.Connection:
    """Make sure that this code may use the schema; returns a connection to use it by, as if by `connect`.

    Who only wants to look (`migrate=False`) is told at once that a server does not answer or that a
    database is empty; for everybody else the one is waited for and the other is set up.
    """
    if not migrate:
        return await _prepare(address, clock, settings, migrate=False)
    return await until_answered(
        lambda: _prepare(address, clock, settings, migrate=True), SystemClock(), patience=math.inf
    )


async def _prepare(
    address: Address, clock: DatabaseClock, settings: Mapping[str, str], *, migrate: bool
) -> asyncpg.Connection:
    async with _plain_line(address, NOTHING_LOST if migrate else ONCE, stays=True) as line:
        if not await schema.check(line, address):
            if not migrate:
                raise SchemaMismatch(
                    f"{address.where} has no schema {address.schema!r} yet: run `redrive migrate`"
                )
            await schema.bring_up_to_date(line, address, clock)
        await prove_confined(line, address)
        await _mention_pooler(line, address)
        await _mention_inheritance(line, address)
        async with line.transaction(role=ENGINE):
            await PostgresSession(line, clock).now()  # which the clock learns from
        await put_in_force(line.con, address, settings)
        return line.con


async def _mention_pooler(line: Line, address: Address) -> None:
    """A pooler in transaction mode that the URL does not mention would mix up connections: say so."""
    if not address.pooled and await line.value(schema.SQL["backend"]) != line.con.get_server_pid():
        log.warning(
            "%s seems to stand behind a pooler; if that works in transaction mode, the URL needs "
            "statement_cache_size=0",
            address.where,
        )


async def _mention_inheritance(line: Line, address: Address) -> None:
    """Warn about a login whose own statements see the rows of all tenants."""
    if await line.value(schema.SQL["inherits_engine"]):
        log.warning(
            "the user of %s inherits redrive_engine, so that its own statements see all tenants: as an "
            "administrator, REVOKE redrive_engine, redrive_app from it and GRANT redrive_login to it",
            address.where,
        )


async def migrate(url: str, *, plan: bool = False) -> list[str]:
    """Bring a database's schema up to date; returns the migrations applied, or those a `plan` would apply."""
    address = locate(url)
    async with _plain_line(address, ONCE) as line:
        if plan:
            return schema.names(await schema.pending(line, address))
        return schema.names(await schema.bring_up_to_date(line, address, DatabaseClock(SystemClock())))


@asynccontextmanager
async def _plain_line(address: Address, then: str, *, stays: bool = False) -> AsyncIterator[Line]:
    """A connection as the user whom the URL names, with nothing set; errors come out translated.

    `then` says what follows for the caller if the server does not answer. A line that `stays` is closed
    only if something went wrong.
    """
    con = None
    try:
        con = await connect(address, {})
        yield Line(con, address, {})
        if stays:
            con = None
    except Exception as raised:
        error = meaning(raised, address.where, then)
        if error is None:
            raise
        raise error from raised
    finally:
        if con is not None:
            await hang_up(con)
