"""Dead letters: their records and calls, and what a decision about a letter needs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from redrive.core.journal import EntryRow
from redrive.core.keys_and_ids import letter_id
from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite, MessageWrite, Transition
from redrive.errors import DataRefused
from redrive.record_fields import replace
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter
from redrive.store.list_query import (
    MAX_SCANNED,
    ListQuery,
    ListTotal,
    detect_popular,
    filter_values,
    parse_states,
    spell_text,
)
from redrive.store.result_page import Page, PageRequest, Window
from redrive.store.runs import RunRow, read_journals, read_runs
from redrive.store.session import Database, Session, build_record, read_call, write_call
from redrive.store.sql_files import Statements

if TYPE_CHECKING:
    from redrive.store.encryption.codec import Codec

SQL = Statements("letters.sql")

FACETS = ("code", "stage", "workflow", "step", "owner")
"""Columns that letters are counted by, in the order of the statement `letters.facets`."""

_STATUSES = {status.value: status for status in LetterStatus}


class LetterRow(msgspec.Struct, frozen=True, gc=False):
    """A stored dead letter."""

    id: int
    public_id: str
    tenant: str
    run: int
    run_id: str
    workflow: str
    status: LetterStatus
    code: str
    stage: str
    category: str
    reason: str
    failure: str
    fingerprint: str
    payload_hash: str
    input: str
    options: str
    step: str | None
    step_index: int | None
    attempts: int
    replay_count: int
    failed_replays: int
    owner: str | None
    correlation_id: str | None
    version: str
    created_at: int
    failed_at: int
    closed_at: int | None
    closed_by: str | None
    resolution: str | None
    expires_at: int
    escalated_to: str | None = None
    escalated_at: int | None = None
    tags: tuple[str, ...] = ()


class LetterTexts(msgspec.Struct, frozen=True, gc=False):
    """The texts of a letter that a search reads."""

    tenant: str
    reason: str
    message: str
    correlation_id: str | None


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored replay of a letter. `outcome` is the status in which its run ended, None until then."""

    letter: str
    number: int
    mode: str
    digest: str
    request: str
    run_id: str
    by: str
    reason: str | None
    key: str | None
    changes: str | None
    at: int
    ended_at: int | None
    outcome: str | None


class LetterState(msgspec.Struct, frozen=True, gc=False):
    """The columns of a letter that a decision depends on."""

    public_id: str
    run_id: str
    tenant: str
    status: LetterStatus
    closed_by: str | None
    closed_at: int | None
    resolution: str | None


class DecisionCase(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An ended run with everything that a decision about a replay depends on.

    `replays` are the earlier ones, in order of time.
    """

    run: RunRow
    letter: LetterState | None
    journal: tuple[EntryRow, ...]
    replays: tuple[ReplayRow, ...]

    @property
    def subject(self) -> str:
        """The id of the run's letter, even if that letter was never written."""
        return self.run.letter or letter_id(self.run.public_id) if self.letter is None else self.letter.public_id


class Triage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A user's note on a letter that decides nothing about its run. None leaves a field unchanged.

    A comment is a line of the audit log and nothing else. `escalate` is a role, a user or a channel; an empty text
    takes the escalation back. `messages` are published with the note.
    """

    letter: str
    audit: AuditWrite
    owner: str | None = None
    tags: tuple[str, ...] | None = None
    escalate: str | None = None
    messages: tuple[MessageWrite, ...] = ()


@dataclass(frozen=True, slots=True)
class Facets:
    """Numbers of letters by value. `counted` letters were read; `by` maps each column to its values' counts."""

    counted: int
    by: Mapping[str, Mapping[str, int]]


class _FacetRow(msgspec.Struct, frozen=True, gc=False):
    id: int
    values: tuple[str | None, ...]


class LetterDesk(Protocol):
    """Calls about letters and the audit log. A tenant view answers them too."""

    async def letter(self, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        """Return a dead letter."""

    async def letter_of(self, run: int) -> LetterRow | None:
        """Return the dead letter of a run."""

    async def letters(self, where: LetterFilter, *, limit: int, cursor: str | None) -> Page[LetterRow]:
        """Return a page of dead letters, newest first."""

    async def total(self, where: RunFilter | LetterFilter | AuditFilter) -> ListTotal:
        """Count the rows of a list, as far as that is cheap."""

    async def references(self, prefix: str, *, tenant: str | None, most: int) -> list[str]:
        """Return correlation ids of runs that begin like this, up to `most`."""

    async def facets(self, where: LetterFilter, *, most: int) -> Facets:
        """Count the newest matching letters, up to `most`, by code, workflow and so on."""

    async def cases(self, ids: Sequence[str]) -> list[DecisionCase]:
        """Return the cases that exist, each named by the id of its letter or of its run.

        All are read at one moment: an open letter belongs to a run with the fence it was opened under.
        """

    async def triage(self, triage: Triage) -> bool:
        """Write a note on a letter; return False if the letter does not exist."""


class LetterCalls:
    """Implements `LetterDesk`."""

    database: Database

    @read_call()
    async def letter(self, session: Session, public_id: str, *, tenant: str | None = None) -> LetterRow | None:
        row = await session.row(SQL["letter"], public_id=public_id, tenant=tenant)
        return None if row is None else letter_row(row)

    @read_call()
    async def letter_of(self, session: Session, run: int) -> LetterRow | None:
        row = await session.row(SQL["letter_of"], run=run)
        return None if row is None else letter_row(row)

    @read_call()
    async def letters(
        self, session: Session, where: LetterFilter, *, limit: int, cursor: str | None
    ) -> Page[LetterRow]:
        request = PageRequest.of(limit, cursor)
        where, matches = self._prepare_search(where)
        values = await detect_popular(session, filter_values(where))
        query = ListQuery(session, "letters", values, letter_row, matches=matches)
        found = await query.fetch(request.window, parse_states(where.status, LetterStatus))
        return request.page(found.rows, found.reached)

    @read_call()
    async def total(self, session: Session, where: RunFilter | LetterFilter | AuditFilter) -> ListTotal:
        states, table, matches = None, "audit", None
        if isinstance(where, LetterFilter):
            where, matches = self._prepare_search(where)
            states, table = parse_states(where.status, LetterStatus), "letters"
        elif isinstance(where, RunFilter):
            states, table = parse_states(where.status, RunStatus), "runs"
        values = await detect_popular(session, filter_values(where))
        return await ListQuery(session, table, values, tuple, matches=matches).count(states)

    def _prepare_search(self, where: LetterFilter) -> tuple[LetterFilter, Callable[[Sequence[Any]], bool] | None]:
        """Return the filter for the database, and a check of the texts that only this process can read."""
        codec = self.database.codec
        if where.text is None or codec.keys is None:
            return where, None
        return replace(where, text=None), partial(_match_texts, codec, _compile_search(where.text))

    @read_call()
    async def references(self, session: Session, prefix: str, *, tenant: str | None, most: int) -> list[str]:
        # A bound on the rows: one reference may have a million runs, and other tenants may have all of them.
        rows = await session.rows(
            SQL["references"], prefix=prefix, end=f"{prefix}\U0010ffff", tenant=tenant, scanned=MAX_SCANNED, most=most
        )
        return [row[0] for row in rows]

    @read_call()
    async def facets(self, session: Session, where: LetterFilter, *, most: int) -> Facets:
        self.database.codec.refuse_text(where)
        values = await detect_popular(session, filter_values(where))
        query = ListQuery(
            session, "letters", values, lambda row: _FacetRow(row[0], tuple(row[1:])), columns="letters.facets"
        )
        found = await query.fetch(Window(most=most), parse_states(where.status, LetterStatus))
        return count_facets(found.rows)

    @read_call(snapshot=True)
    async def cases(self, session: Session, ids: Sequence[str]) -> list[DecisionCase]:
        by_letter = await _read_letter_states(session, "letters_by_id", ids)
        known = {letter.public_id for letter in by_letter}
        run_ids = [id for id in ids if id not in known]
        by_run = await _read_letter_states(session, "letters_of_runs", run_ids) if run_ids else []
        letters = {letter.run_id: letter for letter in by_letter + by_run}
        runs = await read_runs(session, [*letters, *run_ids])
        entries = await read_journals(session, [run.id for run in runs])
        cases = [
            DecisionCase(run=run, letter=letters.get(run.public_id), journal=entries.get(run.id, ()), replays=())
            for run in runs
        ]
        rows = await session.rows(SQL["replays"], letters=[case.subject for case in cases])
        if not rows:
            return cases
        replays = {letter: list(group) for letter, group in groupby(rows, key=lambda row: row[0])}
        return [
            replace(case, replays=tuple(build_record(ReplayRow, row) for row in replays.get(case.subject, ())))
            for case in cases
        ]

    @write_call()
    async def triage(self, session: Session, triage: Triage) -> bool:
        # Users search for owners and tags. SQLite ends a text in JSON at a NUL, and PostgreSQL then fails to read
        # any array of tags with one, whatever tag a search is for. So these names must not contain a NUL.
        for name in (triage.owner or "", triage.escalate or "", *(triage.tags or ())):
            if "\0" in name:
                raise DataRefused(f"the store refused a note: {name!r} contains a NUL character")
        # Not escaped: a lone surrogate must be refused, as everywhere else, not stored as \\ud800.
        tags = None if triage.tags is None else json.dumps(triage.tags, ensure_ascii=False)
        values = {"letter": triage.letter, "owner": triage.owner, "tags": tags, "escalate": triage.escalate}
        async with session.transaction():
            now = await session.now()
            changed = await session.change(SQL["triage"], triage.audit, **values, now=now)
            if changed and triage.messages:
                carrier = Transition(run=0, tenant=triage.audit.tenant, fence=0, messages=triage.messages)
                await session.publish([carrier], now)
        return changed


def letter_row(row: Sequence[Any]) -> LetterRow:
    """Return a row of `letters` as a record."""
    tags = () if row[-1] == "[]" else tuple(json.loads(row[-1]))
    return LetterRow(*row[:6], _STATUSES[row[6]], *row[7:-1], tags)  # type: ignore[call-arg]  # mypy lets the first star take all


def _compile_search(text: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for a text in a reason and elsewhere, which match what the database would find."""
    in_reason, plain = (
        re.compile(re.escape(each).replace(r"\ ", "."), re.IGNORECASE | re.DOTALL) for each in spell_text(text)
    )
    return in_reason, plain


def _match_texts(codec: Codec, wanted: tuple[re.Pattern[str], re.Pattern[str]], row: Sequence[Any]) -> bool:
    """Return True if the opened texts of a letter contain the text of a search."""
    texts, (in_reason, plain) = codec.open(LetterTexts(*row[1:])), wanted
    elsewhere = (texts.message, texts.correlation_id or "")
    return bool(in_reason.search(texts.reason)) or any(map(plain.search, elsewhere))


def count_facets(rows: Sequence[_FacetRow]) -> Facets:
    """Count letters by each of their values, the most frequent first."""
    by: dict[str, Mapping[str, int]] = {}
    for column, name in enumerate(FACETS):
        counts = Counter(row.values[column] for row in rows)
        by[name] = {value: count for value, count in counts.most_common() if value is not None}
    return Facets(len(rows), by)


async def _read_letter_states(session: Session, statement: str, ids: Sequence[str]) -> list[LetterState]:
    rows = await session.rows(SQL[statement], ids=list(ids))
    return [build_record(LetterState, row, status=LetterStatus) for row in rows]
