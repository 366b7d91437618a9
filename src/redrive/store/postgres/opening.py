"""Opening a database: wait for it, see to its schema, and prove that tenants are kept apart in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redrive.clock import SystemClock
from redrive.errors import SchemaMismatch
from redrive.store.postgres import schema
from redrive.store.postgres.address import Address, locate
from redrive.store.postgres.database_clock import DatabaseClock
from redrive.store.postgres.line import Line, connect
from redrive.store.postgres.lines import until_it_answers
from redrive.store.postgres.refusals import meaning
from redrive.store.postgres.roles import prove_confined

__all__ = ["migrate", "prepare"]


async def prepare(address: Address, clock: DatabaseClock, *, migrate: bool) -> None:
    """Make sure that this code may use the schema; set an empty database up, if that is wanted."""
    await until_it_answers(address, lambda: _prepare(address, clock, migrate=migrate))


async def _prepare(address: Address, clock: DatabaseClock, *, migrate: bool) -> None:
    async with _plain_line(address) as line:
        if not await schema.check(line, address):
            if not migrate:
                raise SchemaMismatch(
                    f"{address.where} has no schema {address.schema!r} yet: run `redrive migrate`"
                )
            await schema.bring_up_to_date(line, address, clock)
        await prove_confined(line, address)
        clock.heard(await line.value(schema.SQL["moment"], now=clock.given()))


async def migrate(url: str, *, plan: bool = False) -> list[str]:
    """Bring a database's schema up to date; returns the migrations applied, or those a `plan` would apply."""
    address = locate(url)
    clock = DatabaseClock(SystemClock())
    async with _plain_line(address) as line:
        try:
            if plan:
                return schema.names(await schema.pending(line, address))
            return schema.names(await schema.bring_up_to_date(line, address, clock))
        except Exception as raised:
            error = meaning(raised, address.where)
            if error is None:
                raise
            raise error from raised


@asynccontextmanager
async def _plain_line(address: Address) -> AsyncIterator[Line]:
    """A connection as the user whom the URL names, with nothing set."""
    try:
        con = await connect(address, {})
    except Exception as raised:
        error = meaning(raised, address.where)
        if error is None:
            raise
        raise error from raised
    try:
        yield Line(con, address, {})
    finally:
        con.terminate()
