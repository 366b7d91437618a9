"""Reencryption of all sealed texts: under the first key after a rotation, or back in clear.

    read a page      without a lock
    seal it again    except texts that are current, and texts that cannot be opened
    swap             each row only if its texts are still the ones that were read

A worker that writes a row in between wins, and the row is read again. Stopping at any moment leaves some rows
rewritten and the others unchanged, all of them readable; the next time only the others are rewritten. The audit
log is append-only and keeps the keys it was written with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redrive.core.secret_and_sealed_text import key_id_of
from redrive.errors import ConfigurationError
from redrive.store.encryption.keyring import Keyring

_BATCH = 500
_TRIES = 3  # reads of a page whose rows other processes write meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table with sealed texts: its key, its payload columns (`sealed`) and its hash columns (`covered`).

    `start` is a key before every row. `unowned` columns are sealed for no tenant. `owner` is the SQL expression of
    the row's tenant. The rows of a `fixed` table cannot be rewritten.
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
        """All columns with texts."""
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
        name="letters",
        key=("id",),
        start=(-1,),
        sealed=("reason", "message", "failure", "input"),
        covered=("payload_hash",),
    ),
    TextTable(name="idempotency", key=("tenant", "key"), start=("", ""), covered=("hash",)),
    TextTable(
        name="replays", key=("letter", "number"), start=("", -1), sealed=("request", "changes"), covered=("digest",)
    ),
    TextTable(name="run_index", key=("field", "value", "run"), start=("", "", -1), covered=("value",), owner="''"),
    TextTable(name="run_events", key=("run", "seq"), start=(-1, -1), sealed=("payload", "refused")),
    TextTable(name="questions", key=("id",), start=(-1,), sealed=("question", "shown", "schema", "answer", "note")),
    TextTable(
        name="step_tasks", key=("run", "idx"), start=(-1, -1), sealed=("heartbeat", "output", "failure", "reply")
    ),
    TextTable(name="run_notes", key=("run",), start=(-1,), sealed=("text", "data")),
    TextTable(name="bulk_actions", key=("id",), start=(-1,), sealed=("request",)),
    TextTable(name="bulk_items", key=("bulk", "number"), start=(-1, -1), sealed=("error",)),
    TextTable(name="messages", key=("id",), start=(-1,), sealed=("payload",)),
    TextTable(name="deliveries", key=("message", "sink"), start=(-1, ""), sealed=("error",)),
    TextTable(name="notices", key=("id",), start=(-1,), sealed=("notice",)),
    TextTable(name="notifications", key=("id",), start=(-1,), sealed=("content",)),
    TextTable(name="notify_rules", key=("tenant", "workflow"), start=("", ""), sealed=("rule",)),
    TextTable(name="saved_views", key=("tenant", "list", "owner", "name"), start=("", "", "", ""), sealed=("query",)),
    TextTable(name="remote_workers", key=("worker",), start=(-1,), sealed=("answer",), covered=("digest",)),
    TextTable(name="access_answers", key=("tenant", "key"), start=("", ""), sealed=("body",)),
    TextTable(name="audit", key=("id",), start=(-1,), sealed=("before", "after"), fixed=True),
)
"""Every table with sealed texts. SQLite splits the table of letters."""


@dataclass(frozen=True, slots=True)
class TextRow:
    """The texts of one row."""

    tenant: str
    key: tuple[Any, ...]
    texts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class TextSwap:
    """New texts for a row, written only if it still has the old ones."""

    row: TextRow
    texts: tuple[str | None, ...]


class TextStore(Protocol):
    """The sealed texts of a store, as rows."""

    @property
    def tables(self) -> Sequence[TextTable]:
        """The tables with sealed texts."""

    async def page(self, table: TextTable, after: tuple[Any, ...], most: int) -> list[TextRow]:
        """Return the next rows behind a key, in order."""

    async def swap(self, table: TextTable, exchanges: Sequence[TextSwap]) -> int:
        """Write the rows that still have their old texts, in one commit; return how many."""

    async def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class ReencryptReport:
    """Numbers of rows; `unreadable` texts and `audit` lines that stay, by key id."""

    seen: int = 0
    rewritten: int = 0
    busy: int = 0
    unreadable: Counter[str] = field(default_factory=Counter)
    audit: Counter[str] = field(default_factory=Counter)


ProgressListener = Callable[[TextTable, ReencryptReport], None]


async def reencrypt_store(
    texts: TextStore, keys: Keyring, *, watch: ProgressListener, batch: int = _BATCH
) -> ReencryptReport:
    """Rewrite all texts in the form in which these keys write them. `watch` is called after every batch."""
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
        """Rewrite the rows behind a key; return the last row's key, None if there are none."""
        for _ in range(_TRIES):
            rows = await self._texts.page(table, after, self._batch)
            unreadable: Counter[str] = Counter()
            swaps = [TextSwap(row, self._reseal_row(table, row, unreadable)) for row in rows]
            swaps = [swap for swap in swaps if swap.texts != swap.row.texts]
            if table.fixed:
                texts = [next((text for text in swap.row.texts if text is not None), None) for swap in swaps]
                self.report.audit.update("" if text is None else key_id_of(text) for text in texts)
                missed = 0
                break
            done = await self._texts.swap(table, swaps) if swaps else 0
            self.report.rewritten += done
            missed = len(swaps) - done  # other processes wrote or locked these meanwhile
            if not missed:
                break
        self.report.seen += len(rows)
        self.report.busy += missed
        self.report.unreadable += unreadable
        return rows[-1].key if rows else None

    def _reseal_row(self, table: TextTable, row: TextRow, unreadable: Counter[str]) -> tuple[str | None, ...]:
        keys = self._keys
        texts = list(row.texts)
        for number, (column, text) in enumerate(zip(table.columns, row.texts, strict=True)):
            if text is None or keys.is_current(text):
                continue
            try:
                if column in table.covered:
                    texts[number] = keys.seal_hash(keys.open_hash(text, row.tenant), row.tenant)
                else:
                    tenant = "" if column in table.unowned else row.tenant
                    texts[number] = keys.seal(keys.open(text, tenant), tenant)
            except ConfigurationError:
                unreadable[key_id_of(text)] += 1
        return tuple(texts)
