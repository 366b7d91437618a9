"""Connection pool: lends connections, drops those that break, and opens new ones when needed.

ADR 0039 says why it is not `asyncpg.Pool`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Protocol, TypeVar

import asyncpg

from redrive.clock import Clock
from redrive.errors import RedriveError, SchemaMismatch, StoreError, StoreUnavailable
from redrive.store import EXPOSED, statements
from redrive.store.postgres.connection import (
    NOTHING_LOST,
    Address,
    Line,
    connect,
    hang_up,
    leaves_usable,
    meaning,
)
from redrive.store.postgres.sql import Statement, load, prepare

__all__ = [
    "APP",
    "AnyLines",
    "ENGINE",
    "Lines",
    "TenantLines",
    "acting_for",
    "create",
    "prove_confined",
]


# -- Connection pool: lends connections, drops those that break, and opens new ones when needed ----------


Result = TypeVar("Result")
TURN = 10.0
"""Seconds a caller waits for a free connection."""


class Lines:
    """Up to `size` connections with the same settings."""

    def __init__(self, address: Address, size: int, settings: Mapping[str, str], clock: Clock) -> None:
        self._clock = clock
        self._broken_at: float | None = None
        self._address = address
        self._size = size
        self._settings = settings
        self._turns = asyncio.Semaphore(size)
        self._idle: list[Line] = []
        self._used: set[Line] = set()
        self._pid = os.getpid()
        self._closed = False

    async def close(self) -> None:
        """Close what is idle in good order and end what is in use."""
        self._closed = True
        for line in self._used:
            line.con.terminate()
        while self._idle:
            await hang_up(self._idle.pop().con)

    @property
    def settings(self) -> Mapping[str, str]:
        """What holds for the connections that are handed out."""
        return self._settings

    def adopt(self, con: asyncpg.Connection) -> None:
        """Hand out, too, a connection on which these settings are in force."""
        self._idle.append(Line(con, self._address, self._settings))

    async def change(self, settings: Mapping[str, str]) -> None:
        """Let other settings hold for every connection handed out from now on."""
        self._settings = settings
        idle, self._idle = self._idle, []
        for line in idle:
            await hang_up(line.con)

    def broke(self) -> None:
        """The server did not answer somebody, or nobody has asked it yet: who knows since when."""
        self._broken_at = self._clock.monotonic()

    def answered_for(self, seconds: float) -> bool:
        """True if the server has answered everybody here for the last so many seconds."""
        return self._broken_at is None or self._clock.monotonic() - self._broken_at >= seconds

    @asynccontextmanager
    async def line(self, *, bare: bool = False) -> AsyncIterator[Line]:
        """A connection for the time of a `with`; errors of the database come out translated.

        A `bare` one is left to its user, who begins and ends transactions on it.
        """
        self._check()
        await self._turn()
        line: Line | None = None
        try:
            line = await self._hand_out()
            async with nullcontext() if bare else line.use():
                yield line
        except BaseException as raised:
            error = self._meaning(line, raised)
            if error is None:
                raise
            raise error from raised
        finally:
            self._take_back(line)

    async def run(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Do one thing on a connection. Every commit takes this way, so it is as short as it can be."""
        if self._address.pooled:
            async with self.line() as line:
                return await work(line)
        self._check()
        await self._turn()
        taken: Line | None = None
        try:
            taken = await self._hand_out()
            return await work(taken)
        except BaseException as raised:
            error = self._meaning(taken, raised)
            if error is None:
                raise
            raise error from raised
        finally:
            self._take_back(taken)

    def _meaning(self, line: Line | None, raised: BaseException) -> RedriveError | None:
        """What an error means. A connection that it broke is not used again."""
        if not leaves_usable(raised):
            self._drop(line, raised)
        return meaning(raised, self._address.where)

    async def picture(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Read several things on a connection as they were at one moment."""
        async with self.line() as line, line.picture():
            return await work(line)

    def _check(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        if os.getpid() != self._pid:
            raise StoreError("the store was opened before this process was forked: open it in the child")

    async def _turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()
            return
        try:
            async with asyncio.timeout(TURN):
                await self._turns.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"all {self._size} connections to {self._address.where} were busy for {TURN:g} s; "
                f"{NOTHING_LOST}. If this happens often, raise pool_size in the URL"
            ) from None

    async def _hand_out(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            if not line.con.is_closed():
                self._used.add(line)
                return line
            self.broke()
        settings = self._settings
        line = Line(await connect(self._address, settings), self._address, settings)
        self._used.add(line)
        return line

    def _drop(self, line: Line | None, why: BaseException) -> None:
        """A connection broke, or could not be made; or its user was cancelled and left it in the middle."""
        if not isinstance(why, asyncio.CancelledError):
            self.broke()
        if line is not None:
            line.con.terminate()

    def _take_back(self, line: Line | None) -> None:
        if line is not None:
            self._used.discard(line)
            if line.settings is not self._settings or self._closed:
                line.con.terminate()
            elif not line.con.is_closed():
                self._idle.append(line)
        self._turns.release()


# -- The roles, and the proof that a tenant's transaction sees no other tenant ---------------------------


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


# -- Connections for one tenant's user: each use is a transaction in which no other tenant exists --------


class AnyLines(Protocol):
    """Connections, whoever they act for."""

    async def run(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Do one thing on a connection."""

    async def picture(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        """Read several things as they were at one moment."""


class TenantLines:
    """The engine's connections, each use one transaction as `redrive_app` for one tenant."""

    def __init__(self, lines: Lines, tenant: str) -> None:
        self._lines = lines
        self._tenant = tenant

    async def run(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        async with self._lines.line() as line, acting_for(line, self._tenant):
            return await work(line)

    async def picture(self, work: Callable[[Line], Awaitable[Result]]) -> Result:
        # The picture comes first: setting the tenant is a query, and after one it would be too late.
        async with self._lines.line() as line, line.picture(), acting_for(line, self._tenant):
            return await work(line)
