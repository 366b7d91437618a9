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
from redrive.store.encryption.keyring import Keyring, key_id_of

_BATCH = 500
_TRIES = 3  # how often a page is looked at whose rows others wrote meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
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


TEXT_TABLES = (
    TextTable(name="inputs", key=("run",), start=(-1,), sealed=("input",)),
    TextTable(name="results", key=("run",), start=(-1,), sealed=("output", "failure")),
    TextTable(
        name="entries",
        key=("run", "idx"),
        start=(-1, -1),
        sealed=("input", "output", "failure"),
        unowned=("heartbeat",),
    ),
    TextTable(
        name="attempts", key=("run", "idx", "attempt", "fence"), start=(-1, -1, -1, -1), sealed=("failure", "decision")
    ),
    TextTable(
        name="letters", key=("id",), start=(-1,), sealed=("reason", "failure", "input"), covered=("payload_hash",)
    ),
    TextTable(name="idempotency", key=("tenant", "key"), start=("", ""), covered=("hash",)),
    TextTable(
        name="replays", key=("letter", "number"), start=("", -1), sealed=("request", "changes"), covered=("digest",)
    ),
    TextTable(name="run_index", key=("field", "value", "run"), start=("", "", -1), covered=("value",), owner="''"),
    TextTable(name="sets", key=("id",), start=(-1,), sealed=("request",)),
    TextTable(name="set_items", key=("set_id", "number"), start=(-1, -1), sealed=("error",)),
    TextTable(name="messages", key=("id",), start=(-1,), sealed=("payload",)),
    TextTable(name="deliveries", key=("message", "sink"), start=(-1, ""), sealed=("error",)),
    TextTable(name="notices", key=("id",), start=(-1,), sealed=("notice",)),
    TextTable(name="notifications", key=("id",), start=(-1,), sealed=("content",)),
    TextTable(name="notify_rules", key=("tenant", "workflow"), start=("", ""), sealed=("rule",)),
    TextTable(name="saved_views", key=("tenant", "list", "owner", "name"), start=("", "", "", ""), sealed=("query",)),
    TextTable(name="access_answers", key=("tenant", "key"), start=("", ""), sealed=("body",)),
    TextTable(name="audit", key=("id",), start=(-1,), sealed=("before", "after"), fixed=True),
)
"""Every table with sealed texts, where none is divided."""


@dataclass(frozen=True, slots=True)
class TextRow:
    """The texts of one row."""

    tenant: str
    key: tuple[Any, ...]
    texts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TextSwap:
    """Other texts for a row, to be written if it still has the old ones."""

    row: TextRow
    texts: tuple[str | None, ...]


class TextStore(Protocol):
    """A store as rows of texts, for those who rewrite them."""

    @property
    def tables(self) -> Sequence[TextTable]:
        """Where they are."""

    async def page(self, table: TextTable, after: tuple[Any, ...], most: int) -> list[TextRow]:
        """The next rows behind a place, in order."""

    async def swap(self, table: TextTable, exchanges: Sequence[TextSwap]) -> int:
        """Write, in one commit, what may be written; return for how many rows that was."""

    async def close(self) -> None:
        """Let go of the connection."""


@dataclass(slots=True)
class ReencryptReport:
    """What was done, in rows; texts that could not be opened, and audit lines that stay, by key id."""

    seen: int = 0
    rewritten: int = 0
    busy: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    audit: Counter[str] = field(default_factory=Counter)


ProgressListener = Callable[[TextTable, ReencryptReport], None]


async def reencrypt_store(
    texts: TextStore, keys: Keyring, *, watch: ProgressListener, batch: int = _BATCH
) -> ReencryptReport:
    """Rewrite everything as these keys would write it now. `watch` is told after every batch."""
    work = _Reencryption(texts, keys, batch)
    for table in texts.tables:
        after: tuple[Any, ...] | None = table.start
        while after is not None:
            after = await work.page(table, after)
            watch(table, work.report)
    return work.report


class _Reencryption:
    """Rewrites page by page, and counts."""

    def __init__(self, texts: TextStore, keys: Keyring, batch: int) -> None:
        self._texts = texts
        self._keys = keys
        self._batch = batch
        self.report = ReencryptReport()

    async def page(self, table: TextTable, after: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Rewrite the rows behind a place; returns the place behind them, None if there are none."""
        for _ in range(_TRIES):
            rows = await self._texts.page(table, after, self._batch)
            unreadable: Counter[str] = Counter()
            missed = await self._swap_rows(table, rows, unreadable)
            if not missed:
                break
        self.report.seen += len(rows)
        self.report.busy += missed
        self.report.unreadable += unreadable
        return rows[-1].key if rows else None

    async def _swap_rows(self, table: TextTable, rows: Sequence[TextRow], unreadable: Counter[str]) -> int:
        """Exchange what is not as it should be; returns how many rows others wrote, or hold, meanwhile."""
        wanted = [TextSwap(row, self._reseal_row(table, row, unreadable)) for row in rows]
        wanted = [exchange for exchange in wanted if exchange.texts != exchange.row.texts]
        if table.fixed:
            self.report.audit.update(_key_id_of_row(exchange.row) for exchange in wanted)
            return 0
        done = await self._texts.swap(table, wanted) if wanted else 0
        self.report.rewritten += done
        return len(wanted) - done

    def _reseal_row(self, table: TextTable, row: TextRow, unreadable: Counter[str]) -> tuple[str | None, ...]:
        texts: list[str | None] = []
        for column, text in zip(table.columns, row.texts, strict=True):
            try:
                texts.append(self._reseal_text(table, column, row.tenant, text))
            except ConfigurationError:
                texts.append(text)
                unreadable[key_id_of(text or "")] += 1
        return tuple(texts)

    def _reseal_text(self, table: TextTable, column: str, tenant: str, text: str | None) -> str | None:
        keys = self._keys
        if text is None or keys.is_current(text):
            return text
        if column in table.covered:
            return keys.seal_hash(keys.open_hash(text, tenant), tenant)
        tenant = "" if column in table.unowned else tenant
        return keys.seal(keys.open(text, tenant), tenant)


def _key_id_of_row(row: TextRow) -> str:
    """The key with which a row was written."""
    return next((key_id_of(text) for text in row.texts if text is not None), "")
