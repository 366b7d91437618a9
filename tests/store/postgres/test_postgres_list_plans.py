"""Plans of lists: no list scans its table under any filter, even if the planner's statistics suggest it.

Tenants' transactions are included: row level policies add a condition there, and functions that they do not
trust cannot use an index.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from list_cases import ASKED, FILL, PLACES, ROWS, TEXTS, allowed, cursor
from postgres_kit import Bench
from session_kit import postgres_calls
from test_postgres_plans import plan, scans

from redrive.store.bulk import NewBulk, filter_json, letter_scan_sql, next_letter_conditions
from redrive.store.filters import AuditFilter, LetterFilter, OutboxFilter, RunFilter
from redrive.store.list_query import choose_scan
from redrive.store.postgres.connection import Connection
from redrive.store.postgres.pool import PostgresSession
from redrive.store.postgres.roles import tenant_transaction
from redrive.store.sql_files import NumberedStatement, number_parameters
from redrive.store.sql_store import SqlStore

LISTS: dict[type[Any], Callable[..., Any]] = {
    RunFilter: SqlStore.runs,
    LetterFilter: SqlStore.letters,
    AuditFilter: SqlStore.audit,
    OutboxFilter: SqlStore.messages,
}
LISTED = re.compile(r"FROM redrive\.(runs|letters|audit|messages) AS [rlam] ")
NUMBERS = f"generate_series(1, {ROWS}) AS s (n)"
NAMES = {"messages_public_id": "messages_public_id_key: ", "run_index": "run_index_pkey: field = "}
AS_THEY_ARE = {"pkey", "runs_succeeded", "letters_tagged", "audit_people"}
FEW = {"runs_held", "idempotency_given", "run_index", "messages_public_id", "deliveries_dead"}


class Explaining(Connection):
    """A connection that records the plan of every statement that reads a list."""

    __slots__ = ("plans",)

    async def rows(self, statement: NumberedStatement, **values: Any) -> list[Any]:
        await self._keep(statement)
        return await super().rows(statement, **values)

    async def row(self, statement: NumberedStatement, **values: Any) -> Any:
        await self._keep(statement)
        return await super().row(statement, **values)

    async def _keep(self, statement: NumberedStatement) -> None:
        if LISTED.search(statement.text):
            self.plans.append(await plan(self, statement))


async def fill(bench: Bench) -> None:
    """Insert equal rows of one tenant, and update the planner's statistics."""
    for statement in FILL:
        await bench.sql(statement.format(numbers=NUMBERS, **TEXTS))
    await bench.sql("ANALYZE")


@asynccontextmanager
async def explaining(bench: Bench, tenant: str | None) -> AsyncIterator[Explaining]:
    async with bench.line() as plain:
        line = Explaining(plain.con, bench.address, plain.settings)
        line.plans = []
        if tenant is None:
            yield line
        else:
            async with tenant_transaction(line, tenant):
                yield line


@pytest.mark.parametrize("known", [False, True])
async def test_each_filter_is_read_along_an_index_in_order(bench: Bench, known: bool) -> None:
    """Tables without statistics, and tables whose statistics mislead the planner."""
    if known:
        await fill(bench)
    for tenant in (None, "a"):
        async with explaining(bench, tenant) as line:
            for kind, cases in ASKED.items():
                for asked, index in cases:
                    for place in PLACES:
                        line.plans.clear()
                        calls = postgres_calls(line, bench.time)
                        where = kind(tenant=tenant, **asked)
                        await LISTS[kind](calls, where, limit=10, cursor=cursor(place))
                        assert line.plans
                        for lines in line.plans:
                            good = belongs(lines) or is_good(lines, allowed(kind, index, tenant), place)
                            assert good, (asked, place, lines)
    if known:
        await _pages_begin_at_their_cursor(bench)
        await _sets_are_listed_in_order(bench)


def belongs(lines: list[str]) -> bool:
    """Return True if the few deliveries of a page are read by the numbers of their messages."""
    by_number = [each for each in lines if "message = ANY" in each or "id = ANY" in each]
    return len(by_number) == 2 and not any("Seq Scan" in each for each in lines)


def is_good(lines: list[str], indexes: set[str], place: str | None) -> bool:
    """Return True if rows come from one of these indexes, by its conditions, and in order unless they are few."""
    found = scans(lines)
    named = any(NAMES.get(name, name) in each for name in indexes for each in found)
    as_they_are = bool(indexes & AS_THEY_ARE) and place is None
    aimless = [each for each in found if each.endswith(": ") and not each.startswith(tuple(FEW))]
    in_order = not any("Sort" in each for each in lines) or bool(indexes & FEW)
    return named and (not aimless or as_they_are) and in_order and not any("Seq Scan" in each for each in lines)


async def _pages_begin_at_their_cursor(bench: Bench) -> None:
    """Check that a tenant's letters in all states are read by state, though the planner would prefer the ids."""
    async with explaining(bench, "a") as line:
        calls = postgres_calls(line, bench.time)
        await calls.letters(LetterFilter(tenant="a"), limit=10, cursor=cursor("<200"))
    assert len(line.plans) == 5
    for lines in line.plans:
        (met,) = scans(lines)
        assert met.startswith("letters_of_tenant_by_status: "), lines
        assert all(part in met for part in ("tenant = ", "status = ", "AND id < ")), lines


async def _sets_are_listed_in_order(bench: Bench) -> None:
    for where, index in (
        (LetterFilter(), "letters_by_status"),
        (LetterFilter(tenant="a"), "letters_of_tenant_by_status"),
        (LetterFilter(tenant="b", fingerprint="f"), "letters_of_tenant_by_status"),
    ):
        new = NewBulk(public_id="s", tenant="a", action="REPLAY", by="ann", where=where, request="{}")
        values = next_letter_conditions(filter_json(new.where), above=0, upto=ROWS)
        async with bench.line() as line:
            session = PostgresSession(line, bench.time)
            async with session.index_order():
                scan = await choose_scan(session, "letters", values, newest_first=False)
                text = letter_scan_sql(session, "list_next_letters", scan.path, values, newest_first=False)
                lines = await plan(line, number_parameters(text))
        assert [each.partition(":")[0] for each in scans(lines)] == [index], lines
        assert not [each for each in lines if "Sort" in each or "Seq Scan" in each], lines
