"""`redrive doctor`: check a store or a server, with advice for each problem. `doctor_security` has more checks.

The checks here are those of store, workers, runs, a server, mail and webhooks.
"""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from redrive.cli.errors import FAILED, report_errors
from redrive.cli.hints import circuit_hint, hint, rewrite_hints, schedule_hint, worker_hint
from redrive.cli.output import Output, echo, escape_line, fold_text, style_text
from redrive.cli.target import Target, common_options
from redrive.clock import MICROS, SystemClock
from redrive.core.audit import read_reason
from redrive.core.circuit import CircuitStatus
from redrive.core.notification_rules import NotifyRule, NotifyTarget
from redrive.core.redact import Redactor
from redrive.core.states import LetterStatus, RunStatus
from redrive.desk.schedules import KnownSchedule, load_schedules
from redrive.errors import NotAllowed, NotSignedIn, RedriveError, SchemaMismatch, StoreError, StoreUnavailable
from redrive.store import TenantsExposed, open_store
from redrive.store.accounts import TokenKind, token_invalid_reason
from redrive.store.encryption.keyring import Unreadable
from redrive.store.filters import CircuitFilter, LetterFilter, RunFilter
from redrive.store.port import Store
from redrive.store.stats import StoreStats
from redrive.store.workers import CRASH_LOOP, WorkerRow, live_workers, recent_crashes
from redrive.time_values import format_duration, to_datetime

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.remote.desk import Remote

_LATE_AFTER = 60 * MICROS
_MAX_CLOCK_SKEW = 2 * MICROS
_MIN_FREE_BYTES = 1 << 30
_MAX_ROWS_READ = 500
_MAX_NAMED = 5
_CONNECT_TIMEOUT = 10.0
_MAX_HOSTS = 20  # webhook hosts that are tried
_OPEN_CIRCUITS = (CircuitStatus.OPEN, CircuitStatus.HALF_OPEN)
_OPEN_LETTERS = LetterFilter(status=LetterStatus.OPEN)
_LEVEL_SIGNS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command()
@functools.partial(common_options, quiet_help="Print only what is wrong.")
def doctor(target: Target, output: Output) -> None:
    """Check store, schema, clock, workers, overdue runs, schedules, messages, mail, webhooks, and security.

    Each problem is printed with advice. Exit code 1 if something is wrong.
    For a server it checks that it answers, the rights of the token, and the waiting runs and dead letters.

    \b
    Examples:
      redrive doctor
      redrive doctor --json --url postgresql://shop@db/shop
    """
    with report_errors():
        server = target.server()
        if server is not None:
            findings = asyncio.run(check_server(server))
        else:
            app = target.app()
            findings = asyncio.run(check_store(app.settings.url))
            if not any(each.level == "wrong" and each.check in ("store", "schema") for each in findings):
                from redrive.cli.doctor_security import check_hardening

                # These checks open the store themselves: an app with an invalid setting cannot be opened.
                findings += asyncio.run(check_hardening(app))
                findings += asyncio.run(check_notifications(app))
    failed = any(finding.level == "wrong" for finding in findings)
    if output.json:
        output.object({"ok": not failed, "findings": findings})
    else:
        for finding in findings:
            if output.quiet and finding.level != "wrong":
                continue
            sign, colour = _LEVEL_SIGNS[finding.level]
            line = f"{sign} {finding.check + ':':<10} {escape_line(finding.text)}"
            echo(style_text(sign, fg=colour) + fold_text(line, sys.stdout, deeper=" " * 13).removeprefix(sign))
            if finding.advice:
                echo(fold_text(f"    {escape_line(finding.advice)}", sys.stdout))
    if failed:
        raise click.exceptions.Exit(FAILED)


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Result of one check, and advice if it is not ok."""

    check: str
    level: Literal["ok", "note", "wrong"]
    text: str
    advice: str | None = None


def ok(check: str, text: str) -> Finding:
    """Return a finding that everything is in order."""
    return Finding(check=check, level="ok", text=text)


def note(check: str, text: str, advice: str) -> Finding:
    """Return a finding that may be intended."""
    return Finding(check=check, level="note", text=text, advice=advice)


def wrong(check: str, text: str, advice: str) -> Finding:
    """Return a finding that makes the doctor fail."""
    return Finding(check=check, level="wrong", text=text, advice=advice)


async def check_store(url: str) -> list[Finding]:
    """Return all findings about a store. If it cannot be opened, that is the last one."""
    where, path = Redactor().text(url), None
    if url.startswith("sqlite:"):
        from redrive.store.sqlite.connection import parse_url

        address = parse_url(url)
        path = None if address.in_memory else Path(address.path)
    if path is not None and not path.exists():
        advice = f"name the store with --url, $REDRIVE_URL or --app, or create it: {hint('migrate')}"
        return [wrong("store", f"file {path} does not exist", advice)]
    store = open_store(url, SystemClock())
    try:
        await store.open(migrate=False)
    except SchemaMismatch as error:
        return [ok("store", f"{where} answers"), wrong("schema", rewrite_hints(str(error)), hint("migrate"))]
    except TenantsExposed as error:
        advice = "undo the change of the roles and tables that it names; see the page on PostgreSQL"
        return [ok("store", f"{where} answers"), wrong("roles", str(error), advice)]
    except RedriveError as error:
        advice = "check that it runs and that the URL is right (--url, $REDRIVE_URL)"
        return [wrong("store", error.problem if isinstance(error, StoreUnavailable) else str(error), advice)]
    try:
        found = [ok("store", f"{where} answers"), ok("schema", "up to date")]
        return found + [finding async for finding in _check_open_store(store, url, path)]
    finally:
        await store.close()


async def _check_open_store(store: Store, url: str, path: Path | None) -> AsyncIterator[Finding]:
    if url.startswith("sqlite:"):
        yield ok("roles", "SQLite has none: every user who can read the file can read all tenants")
    else:
        # Opening a PostgreSQL store fails unless this holds.
        yield ok("roles", "a transaction of one tenant sees no other: proved just now")
    skew = abs(store.now() - SystemClock().now())
    if skew > _MAX_CLOCK_SKEW:
        text = f"this machine's clock and the database's differ by {format_duration(skew / MICROS)}"
        advice = "Redrive uses the database's clock, so nothing breaks; set up time synchronisation all the same"
        yield note("clock", text, advice)
    else:
        yield ok("clock", "agrees with the store's")
    stats = await store.stats()
    workers = await store.workers()
    live = live_workers(workers, store.now())
    async for finding in _check_workers(store, live):
        yield finding
    for finding in _check_crashes([row.name for row in recent_crashes(workers, store.now())]):
        yield finding
    stalled = (await store.count_held_by_worker()).stalled
    for row in workers:
        if row.id in stalled:
            yield _stalled(row.id, row.name, stalled[row.id])
    async for finding in _check_runs(store, stats, live):
        yield finding
    for finding in (*_check_outbox(stats), *check_schedules(await load_schedules(store))):
        yield finding
    async for finding in _check_circuits(store):
        yield finding
    page = await store.letters(_OPEN_LETTERS, limit=_MAX_ROWS_READ, cursor=None)
    if page.items:
        count = f"{len(page.items)}{'+' if page.next else ''}"
        oldest = to_datetime(min(letter.failed_at for letter in page.items))
        text = f"{count} wait{'s' * (count == '1')} for a person, since {oldest:%Y-%m-%d %H:%M} UTC"
        yield note("letters", text, hint("dlq", "list"))
    else:
        yield ok("letters", "no dead letter waits for a person")
    async for finding in _check_tokens(store):
        yield finding
    yield _check_disk(path)


def _check_disk(path: Path | None) -> Finding:
    if path is None:
        return ok("disk", "not checked: it belongs to the database server")
    free = shutil.disk_usage(path.resolve().parent).free
    text = f"{free / (1 << 30):.1f} GiB free beside {path}"
    if free > _MIN_FREE_BYTES:
        return ok("disk", text)
    return wrong("disk", text, "free some space: a full disk stops all runs")


async def _check_workers(store: Store, live: list[WorkerRow]) -> AsyncIterator[Finding]:
    if live:
        names = ", ".join(row.name for row in live[:_MAX_NAMED])
        yield ok("workers", f"{len(live)} alive: {names}{' …' if len(live) > _MAX_NAMED else ''}")
    else:
        unfinished = RunFilter(status=[RunStatus.PENDING, RunStatus.RUNNING, RunStatus.SLEEPING])
        if (await store.runs(unfinished, limit=1, cursor=None)).items:
            yield wrong("workers", "none is alive, and runs wait for one", f"start one: {worker_hint()}")
        else:
            yield note("workers", "none is alive; no run waits for one", worker_hint())
    for each in await store.unclaimable(()):
        if each.version is not None and not each.registered:
            yield _report_pinned(each.workflow, each.version)
        else:
            yield _report_unclaimable(each.workflow, each.runs, each.queue if each.registered else None)
    for queue in await store.task_queues():
        if queue.due and not any(row.takes_steps(queue.queue) for row in live):
            yield _report_unserved(queue.queue, queue.due)
    for workflow, by in (await store.paused()).items():
        yield _report_paused(workflow, by)


def _check_crashes(names: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding about the workers that crashed within the last hour; nothing if none did."""
    if names:
        text = f"{len(names)} crashed in the last hour, the last one was {names[0]}"
        advice = "look for the cause in the logs of the worker and of the kernel: memory is the usual one"
        yield (wrong if len(names) >= CRASH_LOOP else note)("crashes", text, advice)


def _report_unclaimable(workflow: str, count: int, queue: str | None) -> Finding:
    text = f"{count} due run{'s' * (count != 1)} of {workflow!r}"
    if queue is not None:
        text += f" in queue {queue!r}: no live worker that has the workflow takes this queue"
        return wrong("queues", text, f"start a worker for it: {worker_hint('--queue', queue)}")
    text += ": no live worker has it registered"
    return wrong("claims", text, f"start a worker whose app has this workflow: {worker_hint()}")


def _report_pinned(workflow: str, version: str) -> Finding:
    text = f"due runs of {workflow!r} are pinned to version {version!r}, which no live worker has"
    move = hint("runs", "move", "RUN", "--to", "VERSION")
    return wrong("versions", text, f"start a worker with it, or move them: {move}")


def _report_unserved(queue: str, count: int) -> Finding:
    text = f"{count} remote step{'s' * (count != 1)} in queue {queue!r}: no live worker takes steps of this queue"
    return wrong("steps", text, "start a worker that polls this queue")


def _report_paused(workflow: str, by: str) -> Finding:
    return note("paused", f"{workflow!r}, by {by}", f"to resume it: {hint('workflows', 'resume', workflow)}")


async def _check_runs(store: Store, stats: StoreStats, live: list[WorkerRow]) -> AsyncIterator[Finding]:
    overdue = await store.overdue(_LATE_AFTER, _MAX_ROWS_READ)
    hung = await store.hung(_LATE_AFTER, _MAX_ROWS_READ)
    ids = list(dict.fromkeys(held.run.public_id for held in [*overdue, *hung]))
    if ids:
        # A live worker ends such runs within seconds, so they show that there is none.
        text = f"{len(ids)} run{'s' * (len(ids) != 1)} past a deadline or hanging in a step, such as {ids[0]}"
        advice = f"a live worker ends these; look at one: {hint('runs', 'why', ids[0])}"
        yield wrong("stuck", text, advice)
    else:
        yield ok("stuck", "no run is past its deadline or hangs in a step")
    late = sum(stats.overdue.values())
    if late and stats.due_since is not None:
        oldest = format_duration((stats.now - stats.due_since) / MICROS)
        advice = "add workers, or raise WORKER_CONCURRENCY" if live else f"start a worker: {worker_hint()}"
        yield wrong("late", f"{late} due run{'s' * (late != 1)} late, the oldest by {oldest}", advice)
    else:
        yield ok("late", "no due run has waited for more than a minute")
    if stats.suspects:
        runs = "run whose worker died while executing it"
        if stats.suspects > 1:
            runs = "runs whose worker died while executing them"
        advice = "find the cause in the log of the worker or of the kernel: memory is the usual one"
        yield note("suspects", f"{stats.suspects} unfinished {runs}", advice)
    else:
        yield ok("suspects", "no unfinished run has lost its worker")


def _check_outbox(stats: StoreStats) -> Iterator[Finding]:
    """Yield findings about sinks that get no messages; nothing if there are no sinks."""
    for each in stats.sinks:
        late = 0 if each.due_since is None else stats.now - each.due_since
        if late > _LATE_AFTER:
            text = f"{each.pending:,} messages wait for {each.sink!r}, the first for {format_duration(late / MICROS)}"
            advice = f"run a worker whose app has this sink, and look at its errors: {hint('outbox', 'list')}"
            yield wrong("outbox", text, advice)
        if each.dead:
            text = f"{each.dead:,} messages to {each.sink!r} wait for a person"
            yield note("outbox", text, hint("outbox", "blocked"))
    if stats.sinks and not any(each.dead or each.due_since is not None for each in stats.sinks):
        yield ok("outbox", "all due messages are delivered")


def check_schedules(known: Sequence[KnownSchedule]) -> Iterator[Finding]:
    """Yield findings about schedules that missed their time; nothing if there are no schedules."""
    late = [one for one in known if one.late_since is not None]
    for one in late[:_MAX_NAMED]:
        what = f"{one.name!r} of {one.workflow!r} (tenant {one.tenant!r}) was due {one.late_since:%Y-%m-%d %H:%M %Z}"
        if one.live:
            advice = "look for its error in the log of the workers that have it"
            yield wrong("schedules", f"{what}, and its worker did not start it", advice)
        else:
            forget = schedule_hint("forget", one.workflow, one.name, one.tenant)
            advice = f"start a worker whose app has it: {worker_hint()}; if no code has it any more: {forget}"
            yield wrong("schedules", f"{what}, and no live worker has it", advice)
    if len(late) > _MAX_NAMED:
        yield wrong("schedules", f"{len(late) - _MAX_NAMED} more are late", hint("schedules", "list"))
    if known and not late:
        yield ok("schedules", f"{len(known)}, none of them late")


async def _check_circuits(store: Store) -> AsyncIterator[Finding]:
    found = [
        row
        for status in _OPEN_CIRCUITS
        for row in (await store.circuits(CircuitFilter(status=status), limit=_MAX_NAMED, cursor=None)).items
    ]
    for row in found:
        since = format_duration(max(0, store.now() - row.changed_at) / MICROS)
        waiting = f"{row.parked:,} run{'s' * (row.parked != 1)} parked"
        why = None if row.why is None else read_reason(row.changed_by, row.why)
        text = f"{row.key!r} of tenant {row.tenant!r} is {row.status} since {since}, {waiting}: {why}"
        yield note("circuits", text, circuit_hint("show", row.key, row.tenant))
    if not found:
        yield ok("circuits", "all closed")


async def _check_tokens(store: Store) -> AsyncIterator[Finding]:
    """Yield tokens that stopped working because of the user who created them."""
    lapsed = [
        (row, reason)
        for row in await store.accounts.tokens(None)
        if row.kind is not TokenKind.CODE
        and not row.is_over(store.now())
        and (reason := await token_invalid_reason(store.accounts, row, store.now())) is not None
    ]
    for row, reason in lapsed[:_MAX_NAMED]:
        advice = f"create a new one, and then: {hint('tokens', 'revoke', row.id)}"
        yield note("tokens", f"{row.id} ({row.name!r} of tenant {row.tenant!r}) does not work: {reason}", advice)
    if len(lapsed) > _MAX_NAMED:
        yield note("tokens", f"{len(lapsed) - _MAX_NAMED} more do not work", hint("tokens", "list"))


async def check_server(server: Remote) -> list[Finding]:
    """Return all findings about a server. If it cannot be used, that is the last one."""
    found: list[Finding] = []
    async with server.client():
        try:
            found += [finding async for finding in _check_reachable_server(server)]
        except NotSignedIn as error:
            found.append(wrong("token", str(error), "put a valid token into REDRIVE_TOKEN"))
        except StoreError as error:
            advice = "check that it runs, that its database runs, and that the URL is right"
            found.append(wrong("server", str(error), advice))
    return found


async def _check_reachable_server(server: Remote) -> AsyncIterator[Finding]:
    from redrive.cli.doctor_security import check_address

    me = await server.me()
    yield ok("server", f"{server.address} answers")
    yield check_address(server.address)
    yield ok("token", f"{me['who']}, {me['role']} of {me['tenant']}")
    workflows = await server.workflows.list()
    if served := [one.name for one in workflows if one.workers]:
        yield ok("workers", f"live ones have {', '.join(served)}")
    else:
        yield note("workers", "none is alive", f"start one: {worker_hint()}")
    workers = await server.workflows.workers()
    for finding in _check_crashes([each.name for each in workers if each.recent]):
        yield finding
    for worker in workers:
        if worker.stalled:
            yield _stalled(worker.id, worker.name, worker.stalled)
    for depth in await server.runs.queues():
        if not depth.workflow and not depth.workers:
            yield _report_unserved(depth.queue, depth.due)
    for one in workflows:
        for version in one.idle_versions:
            yield _report_pinned(one.name, version)
        if one.unclaimable and not one.idle_versions:
            yield _report_unclaimable(one.name, one.unclaimable, ", ".join(one.idle_queues) or None)
        if one.paused_by is not None:
            yield _report_paused(one.name, one.paused_by)
    for finding in check_schedules(await server.schedules.list()):
        yield finding
    try:
        pages = [
            await server.circuits.list(CircuitFilter(status=status), limit=_MAX_NAMED) for status in _OPEN_CIRCUITS
        ]
    except NotAllowed:
        pass  # a token for single workflows may not see circuits
    else:
        circuits = [one for page in pages for one in page.items]
        for each in circuits:
            text = f"{each.key!r} of tenant {each.tenant!r} is {each.status}, {each.parked:,} parked: {each.why}"
            yield note("circuits", text, circuit_hint("show", each.key, each.tenant))
        if not circuits:
            yield ok("circuits", "all closed")
    count = await server.dlq.count(_OPEN_LETTERS)
    if count:
        yield note("letters", f"{count:,} wait{'s' * (count == 1)} for a person", hint("dlq", "list"))
    else:
        yield ok("letters", "no dead letter waits for a person")


def _stalled(id: int, name: str, runs: int) -> Finding:
    text = f"worker {id} ({name}) has held {runs:,} run{'s' * (runs != 1)} for ten leases without reporting anything"
    return wrong("workers", text, f"look into its log, or take the runs: {hint('workers', 'retire', str(id))}")


async def check_notifications(app: Redrive) -> list[Finding]:
    """Try the mail server and the webhooks of an app and of its stored rules, without sending anything."""
    from redrive.app.runtime import make_store

    rules = [each.own_options.notify for each in app.registered_workflows.values()]
    in_code = [target for rule in rules if rule is not None for target in rule.targets]
    targets = [*(target for target in in_code if target.kind == "email"), *app.channels.all()]
    store = make_store(app.settings, SystemClock())
    await store.open(migrate=False)
    try:
        for row in await store.notifications.rules():
            if not isinstance(row.rule, Unreadable):
                targets += NotifyRule.from_json(json.loads(row.rule)).targets
        return [*await _check_mail(app, targets), *await _check_webhooks(app, targets)]
    finally:
        await store.close()


async def _check_mail(app: Redrive, targets: Sequence[NotifyTarget]) -> list[Finding]:
    from redrive.notify.channels import MailServer

    recipients = sorted({target.to for target in targets if target.kind == "email"})
    if not app.settings.smtp_url and not recipients:
        return []
    try:
        server = MailServer.read(app.settings.smtp_url, app.settings.smtp_from)
        await server.check_connection(_CONNECT_TIMEOUT)
    except (RedriveError, OSError, TimeoutError) as error:
        effect = f", so {recipients[0]} gets no mail" if recipients else ""
        advice = "check $REDRIVE_SMTP_URL where the workers run; waiting mails are sent when it is right"
        return [wrong("mail", f"{str(error) or type(error).__name__}{effect}", advice)]
    return [ok("mail", f"{server.host}:{server.port} takes mails")]


async def _check_webhooks(app: Redrive, targets: Sequence[NotifyTarget]) -> list[Finding]:
    """Connect once to each host that notifications and sinks call."""
    from redrive.http.ssrf import check_url, resolve_url

    urls = [target.to for target in targets if target.kind in ("slack", "teams", "webhook")]
    urls += [url for each in app.registered_sinks.values() if (url := getattr(each.sink, "url", None))]
    by_origin: dict[str, str] = {}
    for url in urls:
        by_origin.setdefault(check_url(url, app.channels.allowed).origin, url)

    async def try_connect(origin: str, url: str) -> Finding | None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                target = await resolve_url(url, app.channels.allowed)
                _, writer = await asyncio.open_connection(target.addresses[0], target.url.port)
                writer.close()
        except (RedriveError, OSError, TimeoutError) as error:
            text = f"{origin} cannot be reached: {str(error) or type(error).__name__}"
            return wrong("webhooks", text, "check the URL; waiting messages are retried automatically")
        return None

    tried = list(by_origin.items())[:_MAX_HOSTS]
    found = [each for each in await asyncio.gather(*(try_connect(*one) for one in tried)) if each is not None]
    return found or ([ok("webhooks", f"{len(tried)} can be reached")] if tried else [])
