"""What `redrive doctor` looks at. Each check gives a finding: in order, worth a note, or wrong."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from redrive.cli.messages import circuit_hint, hint, rewrite_hints, schedule_hint, worker_hint
from redrive.clock import MICROS, SystemClock
from redrive.core.audit import read_reason
from redrive.core.circuit import CircuitStatus
from redrive.core.redact import Redactor
from redrive.core.states import LetterStatus, RunStatus
from redrive.desk.settings import KnownSchedule, load_schedules
from redrive.duration import format_duration, to_datetime
from redrive.errors import RedriveError, SchemaMismatch
from redrive.store import TENANTS_EXPOSED, open_store
from redrive.store.accounts import TokenKind, token_invalid_reason
from redrive.store.filters import CircuitFilter, LetterFilter, RunFilter
from redrive.store.port import Store
from redrive.store.stats import StoreStats
from redrive.store.workers import WorkerRow, live_workers

_LATE_AFTER = 60 * MICROS
_MAX_CLOCK_SKEW = 2 * MICROS
_MIN_FREE_BYTES = 1 << 30
_MAX_ROWS_READ = 500
_MAX_NAMED = 5


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one check found, and what to do about it."""

    check: str
    level: Literal["ok", "note", "wrong"]
    text: str
    advice: str | None = None


async def check_store(url: str) -> list[Finding]:
    """All findings about a store; if it cannot be opened, that is the last one."""
    where = Redactor().text(url)
    if (missing := _check_file_exists(url)) is not None:
        return [missing]
    store = open_store(url, SystemClock())
    try:
        await store.open(migrate=False)
    except SchemaMismatch as error:
        return [_ok("store", f"{where} answers"), _wrong("schema", rewrite_hints(str(error)), hint("migrate"))]
    except RedriveError as error:
        if TENANTS_EXPOSED in str(error):
            advice = "undo what was changed about the roles and tables it names; see the page on PostgreSQL"
            return [_ok("store", f"{where} answers"), _wrong("roles", str(error), advice)]
        return [
            _wrong(
                "store",
                str(error).partition("; nothing is lost")[0],
                "see that it runs and that the URL is right (--url, $REDRIVE_URL)",
            )
        ]
    try:
        found = [_ok("store", f"{where} answers"), _ok("schema", "up to date")]
        return found + [finding async for finding in _run_checks(store, url)]
    finally:
        await store.close()


def _check_file_exists(url: str) -> Finding | None:
    path = _locate_store_file(url)
    if path is None or path.exists():
        return None
    return _wrong(
        "store",
        f"there is no file {path}",
        f"name the store with --url, $REDRIVE_URL or --app; or make it: {hint('migrate')}",
    )


async def _run_checks(store: Store, url: str) -> AsyncIterator[Finding]:
    yield _check_roles(url)
    yield _check_clock(store)
    figures = await store.figures()
    live = live_workers(await store.workers(), store.now())
    yield await _check_workers(store, live)
    async for finding in _check_claims(store):
        yield finding
    yield await _check_stuck_runs(store)
    yield _check_late_runs(figures, live)
    yield _check_suspects(figures)
    for finding in _check_outbox(figures):
        yield finding
    for finding in check_schedules(await load_schedules(store)):
        yield finding
    async for finding in _check_circuits(store):
        yield finding
    yield await _check_letters(store)
    async for finding in _check_tokens(store):
        yield finding
    yield _check_disk(url)


def _check_roles(url: str) -> Finding:
    """PostgreSQL proves it whenever a store is opened, and refuses otherwise."""
    if url.startswith("sqlite:"):
        return _ok("roles", "SQLite has none: whoever reads the file reads all tenants")
    return _ok("roles", "a transaction of one tenant sees no other: proved just now")


def _check_clock(store: Store) -> Finding:
    apart = abs(store.now() - SystemClock().now())
    if apart > _MAX_CLOCK_SKEW:
        return _note(
            "clock",
            f"this machine's clock and the database's are {format_duration(apart / MICROS)} apart",
            "the database's clock decides, so nothing breaks; set up time synchronisation all the same",
        )
    return _ok("clock", "agrees with the store's")


async def _check_workers(store: Store, live: list[WorkerRow]) -> Finding:
    if live:
        names = ", ".join(row.name for row in live[:5])
        return _ok("workers", f"{len(live)} alive: {names}{' …' if len(live) > 5 else ''}")
    unfinished = RunFilter(status=[RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SLEEPING])
    waiting = (await store.runs(unfinished, limit=1, cursor=None)).items
    if not waiting:
        return _note("workers", "none is alive; no run waits for one", worker_hint())
    return _wrong("workers", "none is alive, and runs wait for one", f"start one: {worker_hint()}")


async def _check_claims(store: Store) -> AsyncIterator[Finding]:
    for workflow, count in (await store.unclaimable(())).items():
        yield _wrong(
            "claims",
            f"{count} due run{'s' * (count != 1)} of {workflow!r}: no live worker has it registered",
            f"start a worker whose app has this workflow: {worker_hint()}",
        )
    for workflow, by in (await store.paused()).items():
        yield _note("paused", f"{workflow!r}, by {by}", f"to go on: {hint('workflows', 'resume', workflow)}")


async def _check_stuck_runs(store: Store) -> Finding:
    """Chores end these within seconds wherever a worker lives, so what is left shows that none does."""
    overdue = await store.overdue(_LATE_AFTER, _MAX_ROWS_READ)
    hung = await store.hung(_LATE_AFTER, _MAX_ROWS_READ)
    ids = list(dict.fromkeys(held.run.public_id for held in [*overdue, *hung]))
    if not ids:
        return _ok("stuck", "no run is past its deadline or hangs in a step")
    return _wrong(
        "stuck",
        f"{len(ids)} run{'s' * (len(ids) != 1)} past a deadline or hanging in a step, such as {ids[0]}",
        f"a live worker clears these; look at one: {hint('runs', 'why', ids[0])}",
    )


def _check_late_runs(figures: StoreStats, live: list[WorkerRow]) -> Finding:
    count = sum(figures.overdue.values())
    if not count or figures.due_since is None:
        return _ok("late", "no due run has waited for more than a minute")
    oldest = format_duration((figures.now - figures.due_since) / MICROS)
    advice = "add workers, or raise WORKER_CONCURRENCY" if live else f"start a worker: {worker_hint()}"
    return _wrong("late", f"{count} due run{'s' * (count != 1)} late, the oldest by {oldest}", advice)


def _check_suspects(figures: StoreStats) -> Finding:
    """Each is tried alone from now on; whoever kills workers again and again ends as a letter."""
    count = figures.suspects
    if not count:
        return _ok("suspects", "no unfinished run has seen its worker die")
    return _note(
        "suspects",
        f"{count} unfinished run{'s' * (count != 1)} whose worker died with it",
        "see in the worker's log, or the kernel's, what ended it: memory is the usual cause",
    )


def _check_outbox(figures: StoreStats) -> Iterator[Finding]:
    """Sinks that nothing arrives at. Where there is no sink, there is nothing to say."""
    for each in figures.sinks:
        late = 0 if each.due_since is None else figures.now - each.due_since
        if late > _LATE_AFTER:
            yield _wrong(
                "outbox",
                f"{each.pending:,} messages wait for {each.sink!r}, the first for {format_duration(late / MICROS)}",
                f"run a worker whose app has this sink, and see how it answers: {hint('outbox', 'list')}",
            )
        if each.dead:
            yield _note(
                "outbox", f"{each.dead:,} messages to {each.sink!r} wait for a person", hint("outbox", "blocked")
            )
    if figures.sinks and not any(each.dead or each.due_since is not None for each in figures.sinks):
        yield _ok("outbox", "everything that was due is delivered")


def check_schedules(known: Sequence[KnownSchedule]) -> Iterator[Finding]:
    """Schedules whose time passed and nothing was started. Where there is none, there is nothing to say."""
    late = [one for one in known if one.late_since is not None]
    yield from map(_describe_late_schedule, late[:_MAX_NAMED])
    if len(late) > _MAX_NAMED:
        yield _wrong("schedules", f"{len(late) - _MAX_NAMED} more are late", hint("schedules", "list"))
    if known and not late:
        yield _ok("schedules", f"{len(known)}, none of them late")


def _describe_late_schedule(one: KnownSchedule) -> Finding:
    what = f"{one.name!r} of {one.workflow!r} (tenant {one.tenant!r}) was due {one.late_since:%Y-%m-%d %H:%M %Z}"
    if one.live:
        advice = "see in the log of the workers that have it what keeps them from that"
        return _wrong("schedules", f"{what}, and its worker did not start it", advice)
    forget = schedule_hint("forget", one.workflow, one.name, one.tenant)
    advice = f"start a worker whose app has it: {worker_hint()}; if no code has it any more: {forget}"
    return _wrong("schedules", f"{what}, and no live worker has it", advice)


async def _check_circuits(store: Store) -> AsyncIterator[Finding]:
    """Dependencies that are not called. Most of the time there is none."""
    found = [
        row
        for status in (CircuitStatus.OPEN, CircuitStatus.HALF_OPEN)
        for row in (await store.circuits(CircuitFilter(status=status), limit=_MAX_NAMED, cursor=None)).items
    ]
    for row in found:
        since = format_duration(max(0, store.now() - row.changed_at) / MICROS)
        waiting = f"{row.parked:,} run{'s' * (row.parked != 1)} parked"
        why = None if row.why is None else read_reason(row.changed_by, row.why)
        yield _note(
            "circuits",
            f"{row.key!r} of tenant {row.tenant!r} is {row.status} since {since}, {waiting}: {why}",
            circuit_hint("show", row.key, row.tenant),
        )
    if not found:
        yield _ok("circuits", "all closed")


async def _check_letters(store: Store) -> Finding:
    page = await store.letters(LetterFilter(status=LetterStatus.OPEN), limit=_MAX_ROWS_READ, cursor=None)
    if not page.items:
        return _ok("letters", "no dead letter waits for a person")
    count = f"{len(page.items)}{'+' if page.next else ''}"
    oldest = to_datetime(min(letter.failed_at for letter in page.items))
    text = f"{count} wait{'s' * (count == '1')} for a person, since {oldest:%Y-%m-%d %H:%M} UTC"
    return _note("letters", text, hint("dlq", "list"))


async def _check_tokens(store: Store) -> AsyncIterator[Finding]:
    """Report tokens that stopped working because of their maker; where there is none, nothing."""
    lapsed = [
        (row, reason)
        for row in await store.accounts.tokens(None)
        if row.kind is not TokenKind.CODE
        and not row.is_over(store.now())
        and (reason := await token_invalid_reason(store.accounts, row, store.now())) is not None
    ]
    for row, reason in lapsed[:_MAX_NAMED]:
        yield _note(
            "tokens",
            f"{row.id} ({row.name!r} of tenant {row.tenant!r}) does not work: {reason}",
            f"create a new one, and then: {hint('tokens', 'revoke', row.id)}",
        )
    if len(lapsed) > _MAX_NAMED:
        yield _note("tokens", f"{len(lapsed) - _MAX_NAMED} more do not work", hint("tokens", "list"))


def _check_disk(url: str) -> Finding:
    path = _locate_store_file(url)
    if path is None:
        return _ok("disk", "is the database server's affair")
    free = shutil.disk_usage(path.resolve().parent).free
    text = f"{free / (1 << 30):.1f} GiB free beside {path}"
    return (
        _ok("disk", text) if free > _MIN_FREE_BYTES else _wrong("disk", text, "make room: a full disk stops all runs")
    )


def _locate_store_file(url: str) -> Path | None:
    if not url.startswith("sqlite:"):
        return None
    from redrive.store.sqlite.connection import parse_url

    address = parse_url(url)
    return None if address.in_memory else Path(address.path)


def _ok(check: str, text: str) -> Finding:
    return Finding(check=check, level="ok", text=text)


def _note(check: str, text: str, advice: str) -> Finding:
    return Finding(check=check, level="note", text=text, advice=advice)


def _wrong(check: str, text: str, advice: str) -> Finding:
    return Finding(check=check, level="wrong", text=text, advice=advice)
