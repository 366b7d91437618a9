"""Rewriting everything that is sealed: under the first key after a rotation, or back in clear.

    read a page      without a lock
    seal it anew     what is as it should be is left alone, and so is what cannot be opened
    exchange         each row only if its texts are still the ones that were read

A worker that writes a row in between wins, and the row is looked at again. Stopping at any moment leaves
some rows rewritten and the others as they were, all of them readable; the next time only the others are
left to do. The audit log is append-only and keeps the keys it was written with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redrive.errors import ConfigurationError
from redrive.store.encryption.keyring import Keyring, key_of

__all__ = ["Exchange", "Report", "TABLES", "Table", "TextRow", "Texts", "reseal"]


_BATCH = 500
_TRIES = 3  # how often a page is looked at whose rows others wrote meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Where sealed texts lie: how rows are told apart, which columns are payloads and which hashes.

    `start` is a place before every row. `unowned` columns are sealed for no tenant, and a table whose rows
    name none has another `owner` than its column.
    """

    name: str
    key: tuple[str, ...]
    start: tuple[int | str, ...]
    sealed: tuple[str, ...] = ()
    unowned: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()
    fixed: bool = False
    owner: str = "tenant"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns with texts."""
        return (*self.sealed, *self.unowned, *self.covered)


TABLES = (
    Table(name="inputs", key=("run",), start=(-1,), sealed=("input",)),
    Table(name="results", key=("run",), start=(-1,), sealed=("output", "failure")),
    Table(
        name="entries",
        key=("run", "idx"),
        start=(-1, -1),
        sealed=("input", "output", "failure"),
        unowned=("heartbeat",),
    ),
    Table(
        name="attempts",
        key=("run", "idx", "attempt", "fence"),
        start=(-1, -1, -1, -1),
        sealed=("failure", "decision"),
    ),
    Table(
        name="letters",
        key=("id",),
        start=(-1,),
        sealed=("reason", "failure", "input"),
        covered=("payload_hash",),
    ),
    Table(name="idempotency", key=("tenant", "key"), start=("", ""), covered=("hash",)),
    Table(
        name="replays",
        key=("letter", "number"),
        start=("", -1),
        sealed=("request", "changes"),
        covered=("digest",),
    ),
    Table(
        name="run_index", key=("field", "value", "run"), start=("", "", -1), covered=("value",), owner="''"
    ),
    Table(name="sets", key=("id",), start=(-1,), sealed=("request",)),
    Table(name="set_items", key=("set_id", "number"), start=(-1, -1), sealed=("error",)),
    Table(name="messages", key=("id",), start=(-1,), sealed=("payload",)),
    Table(name="deliveries", key=("message", "sink"), start=(-1, ""), sealed=("error",)),
    Table(name="notices", key=("id",), start=(-1,), sealed=("notice",)),
    Table(name="notifications", key=("id",), start=(-1,), sealed=("content",)),
    Table(name="notify_rules", key=("tenant", "workflow"), start=("", ""), sealed=("rule",)),
    Table(
        name="saved_views",
        key=("tenant", "list", "owner", "name"),
        start=("", "", "", ""),
        sealed=("query",),
    ),
    Table(name="access_answers", key=("tenant", "key"), start=("", ""), sealed=("body",)),
    Table(name="audit", key=("id",), start=(-1,), sealed=("before", "after"), fixed=True),
)
"""Every table with sealed texts, where none is divided."""


@dataclass(frozen=True, slots=True)
class TextRow:
    """The texts of one row."""

    tenant: str
    key: tuple[Any, ...]
    texts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Other texts for a row, to be written if it still has the old ones."""

    row: TextRow
    texts: tuple[str | None, ...]


class Texts(Protocol):
    """A store as rows of texts, for those who rewrite them."""

    @property
    def tables(self) -> Sequence[Table]:
        """Where they are."""

    async def page(self, table: Table, after: tuple[Any, ...], most: int) -> list[TextRow]:
        """The next rows behind a place, in order."""

    async def swap(self, table: Table, exchanges: Sequence[Exchange]) -> int:
        """Write, in one commit, what may be written; return for how many rows that was."""

    async def close(self) -> None:
        """Let go of the connection."""


@dataclass(slots=True)
class Report:
    """What was done, in rows; texts that could not be opened, and audit lines that stay, by key id."""

    seen: int = 0
    rewritten: int = 0
    busy: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    audit: Counter[str] = field(default_factory=Counter)


Watch = Callable[[Table, Report], None]


async def reseal(texts: Texts, keys: Keyring, *, watch: Watch, batch: int = _BATCH) -> Report:
    """Rewrite everything as these keys would write it now. `watch` is told after every batch."""
    work = _Work(texts, keys, batch)
    for table in texts.tables:
        after: tuple[Any, ...] | None = table.start
        while after is not None:
            after = await work.page(table, after)
            watch(table, work.report)
    return work.report


class _Work:
    """Rewrites page by page, and counts."""

    def __init__(self, texts: Texts, keys: Keyring, batch: int) -> None:
        self._texts = texts
        self._keys = keys
        self._batch = batch
        self.report = Report()

    async def page(self, table: Table, after: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Rewrite the rows behind a place; returns the place behind them, None if there are none."""
        for _ in range(_TRIES):
            rows = await self._texts.page(table, after, self._batch)
            unreadable: Counter[str] = Counter()
            missed = await self._exchange(table, rows, unreadable)
            if not missed:
                break
        self.report.seen += len(rows)
        self.report.busy += missed
        self.report.unreadable += unreadable
        return rows[-1].key if rows else None

    async def _exchange(self, table: Table, rows: Sequence[TextRow], unreadable: Counter[str]) -> int:
        """Exchange what is not as it should be; returns how many rows others wrote, or hold, meanwhile."""
        wanted = [Exchange(row, self._anew(table, row, unreadable)) for row in rows]
        wanted = [exchange for exchange in wanted if exchange.texts != exchange.row.texts]
        if table.fixed:
            self.report.audit.update(_key_ids(exchange.row) for exchange in wanted)
            return 0
        done = await self._texts.swap(table, wanted) if wanted else 0
        self.report.rewritten += done
        return len(wanted) - done

    def _anew(self, table: Table, row: TextRow, unreadable: Counter[str]) -> tuple[str | None, ...]:
        texts: list[str | None] = []
        for column, text in zip(table.columns, row.texts, strict=True):
            try:
                texts.append(self._text(table, column, row.tenant, text))
            except ConfigurationError:
                texts.append(text)
                unreadable[key_of(text or "")] += 1
        return tuple(texts)

    def _text(self, table: Table, column: str, tenant: str, text: str | None) -> str | None:
        keys = self._keys
        if text is None or keys.is_current(text):
            return text
        if column in table.covered:
            return keys.cover(keys.uncover(text, tenant), tenant)
        tenant = "" if column in table.unowned else tenant
        return keys.seal(keys.open(text, tenant), tenant)


def _key_ids(row: TextRow) -> str:
    """The key with which a row was written."""
    return next((key_of(text) for text in row.texts if text is not None), "")
