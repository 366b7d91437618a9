"""Bulk actions: one decision on many letters, executed by any node, with progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Unpack, overload

import msgspec

from redrive.clock import Clock
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.bulk_rate import parse_rate
from redrive.core.keys_and_ids import letter_id
from redrive.core.replay_plan import ReplayRequest
from redrive.core.roles import Permission
from redrive.core.states import FINAL_RUN_STATUSES, LetterStatus
from redrive.desk.actor import Acting, Actor
from redrive.desk.api_operations import operation
from redrive.desk.bulk_execution import REPLAY, explain_refusal
from redrive.desk.presenter import Presenter, make_reason_fields, present_page, present_row
from redrive.desk.preview import DryRun, Previewer
from redrive.desk.replays import SUCCESSFUL_STATUSES, ReplayOrder, make_replay_request
from redrive.desk.validation import is_id, require_bool, require_text
from redrive.errors import Conflict, InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.record_fields import as_dict, replace
from redrive.store.bulk import BulkChange, BulkItemRow, BulkItemStatus, BulkRow, BulkStatus, BulkVerb, NewBulk
from redrive.store.encryption.keyring import Unreadable
from redrive.store.filters import AuditFilter, LetterFilter
from redrive.store.list_query import parse_states
from redrive.store.port import DeskStore
from redrive.store.result_page import Page
from redrive.time_values import to_datetime

MAX_IDS = 100_000
PREVIEW_LIMIT = 500
SAMPLE_SIZE = 5
_FILTER_FIELDS = frozenset(
    {"workflow", "step", "code", "stage", "category", "fingerprint", "owner", "tag", "escalated"}
)
_AUDIT_EVENTS = {
    BulkVerb.STOP: AuditEvent.BULK_STOPPED,
    BulkVerb.PAUSE: AuditEvent.BULK_PAUSED,
    BulkVerb.RESUME: AuditEvent.BULK_RESUMED,
    BulkVerb.RATE: AuditEvent.BULK_RATE_CHANGED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """A bulk action and its progress.

    `total` grows until all letters are `listed`. `done` letters were decided on: their replay runs or has ended.
    `failed` letters were refused; `set_items` lists them with the reasons. `rate` limits the decisions, such as
    `50/s`; None means no limit. `filter` selects its letters by their kind; None if they were given by id.
    `stopped_because` is why the engine itself stopped the action: the English sentence
    for `stopped_code` and `stopped_params`. The states of its replayed runs (`succeeded`, `failed_again`,
    `still_going`) are counted by `dlq.set` only, and None elsewhere.
    """

    id: str
    action: str
    mode: str | None
    status: BulkStatus
    total: int
    done: int
    failed: int
    listed: bool
    tenant: str | None
    by: str
    reason: str | None
    created_at: datetime
    ended_at: datetime | None
    stopped_by: str | None
    stopped_because: str | None = None
    stopped_code: str | None = None
    stopped_params: dict[str, Any] = field(default_factory=dict)
    succeeded: int | None = None
    failed_again: int | None = None
    still_going: int | None = None
    rate: str | None = None
    paused_by: str | None = None
    paused_at: datetime | None = None
    filter: dict[str, str] | None = None

    @property
    def pending(self) -> int:
        """Letters that are listed and not decided on yet."""
        return self.total - self.done - self.failed

    @property
    def seconds_left(self) -> float | None:
        """The least time that the listed letters need at this rate; None if unknown."""
        return None if self.rate is None or self.ended_at else parse_rate(self.rate).estimate_seconds(self.pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkItem:
    """A letter of a bulk action: the run that its replay continues, or the `error` why the decision was refused."""

    letter_id: str
    status: BulkItemStatus
    run_id: str | None
    error: str | None
    at: datetime | None
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A letter on which a decision would be refused."""

    letter_id: str
    reason: str
    reason_code: str | None = None
    reason_params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunOfMany:
    """A preview of a bulk replay.

    `total` letters match. The first `checked` of them were examined: `refused` lists those that would be
    refused, `sample` a few of the others.
    """

    total: int
    checked: int
    refused: tuple[Refusal, ...]
    sample: tuple[DryRun, ...]


class _LetterSelection(msgspec.Struct, frozen=True):
    """The letters of a bulk action, by a filter or by ids; tenant "" is all tenants."""

    tenant: str
    where: LetterFilter | None
    letters: tuple[str, ...]


class BulkActions:
    """The calls of `app.dlq` for many letters. `on_bulk` wakes the bulk worker of this process."""

    def __init__(
        self, store: DeskStore, clock: Clock, previewer: Previewer, presenter: Presenter, on_bulk: Callable[[], None]
    ) -> None:
        self._on_bulk = on_bulk
        self._store = store
        self._clock = clock
        self._previewer = previewer
        self._presenter = presenter

    @overload
    async def replay_many(
        self, letters: LetterFilter | Iterable[str], *, dry_run: Literal[False] = ..., **options: Any
    ) -> BulkAction: ...
    @overload
    async def replay_many(
        self, letters: LetterFilter | Iterable[str], *, dry_run: bool, **options: Any
    ) -> BulkAction | DryRunOfMany: ...
    @operation(
        "POST /workflow-dlq/replay",
        Permission.DECIDE,
        status=202,
        from_step="from_step_index",
        retry="override_retry_policy",
    )
    async def replay_many(
        self,
        letters: LetterFilter | Iterable[str],
        *,
        mode: str = "FROM_FAILED",
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        tenant: str | None = None,
        rate: str | None = None,
        **options: Any,
    ) -> BulkAction | DryRunOfMany:
        """Replay all open letters that match a filter, or those with these ids, each at most once.

        Takes the options of `replay`, and returns a bulk action at once: nodes with a worker execute it, a batch at
        a time. A letter whose replay is refused is marked with the reason; the others continue.
        `rate` protects a dependency that recovers: "50/s" replays at most 50 letters a second on all nodes
        together; `rate_set` changes it on the way, `pause_set` and `resume_set` interrupt it.
        `dry_run` returns how many match, and for the first 500 which would be refused; it changes nothing.
        """
        request, actor = await make_replay_request(mode, **options), Actor(by, reason)
        if require_bool("dry_run", dry_run):
            return await self._preview_many(letters, ReplayOrder(request=request, actor=actor), tenant)
        return await self._begin("REPLAY", letters, actor, request, tenant=tenant, rate=rate)

    @operation("POST /workflow-dlq/resolve", Permission.DECIDE, status=202)
    async def resolve_many(
        self,
        letters: LetterFilter | Iterable[str],
        *,
        tenant: str | None = None,
        rate: str | None = None,
        **acting: Unpack[Acting],
    ) -> BulkAction:
        """Resolve all open letters that match a filter, or those with these ids."""
        return await self._begin("RESOLVE", letters, Actor(**acting), tenant=tenant, rate=rate)

    @operation("POST /workflow-dlq/ignore", Permission.DECIDE, status=202)
    async def ignore_many(
        self,
        letters: LetterFilter | Iterable[str],
        *,
        tenant: str | None = None,
        rate: str | None = None,
        **acting: Unpack[Acting],
    ) -> BulkAction:
        """Ignore all open letters that match a filter, or those with these ids."""
        return await self._begin("IGNORE", letters, Actor(**acting), tenant=tenant, rate=rate)

    @operation("GET /bulk-replays/{id}", Permission.LOOK, id="show_bulk_action")
    async def set(self, id: str, *, tenant: str | None = None) -> BulkAction:
        """Return a bulk action with its progress and the states of its runs."""
        row = await self._find_bulk(id, tenant)
        endings = await self._store.bulk_run_counts(row) if row.action == REPLAY and row.done else {}
        why = None
        if row.closed_by == ENGINE_ACTOR:  # a user need not give a reason
            stops = AuditFilter(subject=row.public_id, event=AuditEvent.BULK_STOPPED.value)
            lines = (await self._store.audit(stops, limit=1, cursor=None)).items
            reasons = (self._presenter.reason(Reason.from_text(line.reason)) for line in lines if line.reason)
            why = next(reasons, None)
        return replace(
            self._present_bulk(row),
            **make_reason_fields(why, "stopped_because", "stopped"),
            succeeded=sum(endings.get(status, 0) for status in SUCCESSFUL_STATUSES),
            failed_again=sum(endings.get(status, 0) for status in FINAL_RUN_STATUSES - SUCCESSFUL_STATUSES),
            still_going=sum(count for status, count in endings.items() if status not in FINAL_RUN_STATUSES),
        )

    @operation("GET /bulk-replays", Permission.LOOK, id="list_bulk_actions")
    async def sets(self, *, limit: int = 50, cursor: str | None = None, tenant: str | None = None) -> Page[BulkAction]:
        """Return a page of bulk actions, the newest first."""
        if tenant is not None:
            require_text("tenant", tenant)
        return await present_page(
            await self._store.bulk_actions(tenant, limit=limit, cursor=cursor), self._present_bulk
        )

    @operation("GET /bulk-replays/{id}/items", Permission.LOOK, id="list_bulk_items")
    async def set_items(
        self,
        id: str,
        *,
        status: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> Page[BulkItem]:
        """Return a page of the letters of a bulk action; `status="FAILED"` lists those that were refused."""
        row = await self._find_bulk(id, tenant)
        try:
            chosen = None if status is None else BulkItemStatus(status)
        except ValueError:
            known = tuple(BulkItemStatus)
            reason = Reason(ReasonCode.BULK_ITEM_STATUS_UNKNOWN, known=known, given=quote(status))
            raise InputError(reason) from None

        def present(item: BulkItemRow) -> BulkItem:
            why = None if item.error is None else self._presenter.reason(Reason.from_text(item.error))
            return present_row(BulkItem, item, letter_id=item.letter, **make_reason_fields(why, "error"))

        return await present_page(await self._store.bulk_items(row, chosen, limit=limit, cursor=cursor), present)

    @operation("POST /bulk-replays/{id}/stop", Permission.DECIDE, id="stop_bulk_action")
    async def stop_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> BulkAction:
        """Stop a bulk action before its next letter. Decisions that were made stay."""
        return await self._change(id, BulkChange(BulkVerb.STOP), Actor(by), tenant)

    @operation("POST /bulk-replays/{id}/pause", Permission.DECIDE, id="pause_bulk_action")
    async def pause_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> BulkAction:
        """Pause a bulk action until it is resumed. The batch that a node has begun is completed."""
        return await self._change(id, BulkChange(BulkVerb.PAUSE), Actor(by), tenant)

    @operation("POST /bulk-replays/{id}/resume", Permission.DECIDE, id="resume_bulk_action")
    async def resume_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> BulkAction:
        """Continue a paused or stopped bulk action at its next letter."""
        return await self._change(id, BulkChange(BulkVerb.RESUME), Actor(by), tenant)

    @operation("POST /bulk-replays/{id}/rate", Permission.DECIDE, id="change_bulk_rate")
    async def rate_set(
        self, id: str, rate: str | None, *, by: str = "unknown", tenant: str | None = None
    ) -> BulkAction:
        """Limit the letters that a bulk action decides on from now on, such as "50/s"; None removes the limit."""
        change = BulkChange(BulkVerb.RATE, None if rate is None else parse_rate(rate))
        return await self._change(id, change, Actor(by), tenant)

    async def _begin(
        self,
        action: str,
        letters: LetterFilter | Iterable[str],
        actor: Actor,
        request: ReplayRequest | None = None,
        *,
        tenant: str | None,
        rate: str | None = None,
    ) -> BulkAction:
        """Accept a decision on many letters; nodes with a worker execute it from now on."""
        selection = _select_letters(letters, tenant)
        new = NewBulk(
            public_id=self._clock.new_id(),
            tenant=selection.tenant,
            action=action,
            by=actor.by,
            reason=actor.reason,
            request=None if request is None else request.text,
            where=selection.where,
            letters=await self._deduplicate_ids(selection),
            rate=None if rate is None else parse_rate(rate),
        )
        about: dict[str, object] = {"action": new.action}
        if request is not None:
            about["mode"] = request.mode.value
        if new.rate is not None:
            about["rate"] = str(new.rate)
        if new.where is None:
            about["letters"] = len(new.letters)
        else:
            about["filter"] = {name: value for name, value in as_dict(new.where).items() if value is not None}
        after = json.dumps(about, ensure_ascii=False)
        line = actor.make_audit(self._clock, AuditEvent.BULK_STARTED, new.tenant, new.public_id, after=after)
        await self._store.create_bulk(new, line)
        self._on_bulk()
        return await self.set(new.public_id)

    async def _change(self, id: str, change: BulkChange, actor: Actor, tenant: str | None) -> BulkAction:
        """Stop, pause or resume a bulk action, or change its rate. A repeat changes nothing.

        The states of its runs are not counted: that may take seconds, and the user waits for the answer.
        """
        row = await self._find_bulk(id, tenant)
        line = actor.make_audit(self._clock, _AUDIT_EVENTS[change.verb], row.tenant, row.public_id)
        if change.verb is BulkVerb.RATE:
            rates = [json.dumps({"rate": None if rate is None else str(rate)}) for rate in (row.rate, change.rate)]
            line = replace(line, before=rates[0], after=rates[1])
        elif change.verb is not BulkVerb.STOP:  # for a stop the event says enough
            status = BulkStatus.PAUSED if change.verb is BulkVerb.PAUSE else BulkStatus.RUNNING
            line = replace(line, before=json.dumps({"status": row.status}), after=json.dumps({"status": status}))
        # A change has no reason: its line repeats the reason of the bulk action.
        if not await self._store.change_bulk(id, change, replace(line, reason=row.reason)):
            row = await self._find_bulk(id, tenant)
            if row.status is BulkStatus.DONE:
                raise Conflict(Reason(ReasonCode.BULK_DONE, id=row.public_id))
            # A bulk action that was stopped can be stopped again.
            if row.status is BulkStatus.STOPPED and change.verb is not BulkVerb.STOP:
                raise Conflict(Reason(ReasonCode.BULK_STOPPED, id=row.public_id, by=row.closed_by))
        self._on_bulk()
        return self._present_bulk(await self._find_bulk(id, tenant))

    async def _preview_many(
        self, letters: LetterFilter | Iterable[str], order: ReplayOrder, tenant: str | None
    ) -> DryRunOfMany:
        """Return what a bulk replay would do, and change nothing."""
        selection = _select_letters(letters, tenant)
        ids = await self._deduplicate_ids(selection)
        total = len(ids)
        if selection.where is not None:
            total = await self._store.count_letters(selection.where)
            where = replace(selection.where, status=LetterStatus.OPEN)
            page = await self._store.letters(where, limit=PREVIEW_LIMIT, cursor=None)
            ids = tuple(letter.public_id for letter in page.items)
        ids = ids[:PREVIEW_LIMIT]
        refused: list[Refusal] = []
        sample: list[DryRun] = []
        for id in ids:
            try:
                shown = await self._previewer.preview(id, order, tenant=selection.tenant or None)
            except Exception as error:
                why = self._presenter.reason(explain_refusal(error, id))
                refused.append(Refusal(id, str(why), **make_reason_fields(why)))
            else:
                sample += [shown] if isinstance(shown, DryRun) and len(sample) < SAMPLE_SIZE else []
        return DryRunOfMany(total=total, checked=len(ids), refused=tuple(refused), sample=tuple(sample))

    async def _deduplicate_ids(self, selection: _LetterSelection) -> tuple[str, ...]:
        """Return the ids without those that name a letter a second time, by its run."""
        ids = selection.letters
        runs = [id for id in ids if not id.startswith(letter_id(""))]
        named = {id: letter_id(id) for id in runs}
        for begin in range(0, len(runs), PREVIEW_LIMIT):
            for case in await self._store.cases(runs[begin : begin + PREVIEW_LIMIT]):
                if selection.tenant in ("", case.run.tenant):
                    named[case.run.public_id] = case.subject
        first: dict[str, str] = {}
        for id in ids:
            first.setdefault(named.get(id, id), id)
        return tuple(first.values())

    async def _find_bulk(self, id: str, tenant: str | None) -> BulkRow:
        row = await self._store.bulk_by_id(id) if is_id(id) and tenant != "" else None
        if row is None or tenant not in (None, row.tenant):
            raise NotFound(Reason(ReasonCode.BULK_NOT_FOUND, id=quote(id)))
        return row

    def _present_bulk(self, row: BulkRow) -> BulkAction:
        readable = row.request is not None and not isinstance(row.request, Unreadable)
        mode = json.loads(row.request or "{}")["mode"] if row.action == REPLAY and readable else None
        return present_row(
            BulkAction,
            row,
            id=row.public_id,
            mode=mode,
            tenant=row.tenant or None,
            reason=self._presenter.text(row.reason),
            stopped_by=row.closed_by,
            rate=None if row.rate is None else str(row.rate),
            filter=None if row.wanted is None else _read_filter(row.wanted),
        )


def _read_filter(wanted: str) -> dict[str, str]:
    """Return the fields of a stored filter. Those that may contain data of the input have `…` as their value."""
    if isinstance(wanted, Unreadable):
        return {}
    fields = {name: value for name, value in json.loads(wanted).items() if name not in ("tenant", "status")}
    times = {name: _format_time(fields.pop(name)) for name in ("since", "until") if name in fields}
    return {name: value if name in _FILTER_FIELDS else "…" for name, value in fields.items()} | times


def _format_time(micros: int) -> str:
    try:
        return to_datetime(micros).isoformat()
    except OverflowError:  # a filter that was stored unchecked; its bulk action stops and says so
        return str(micros)


def _select_letters(letters: LetterFilter | Iterable[str], tenant: str | None) -> _LetterSelection:
    if tenant is not None:
        require_text("tenant", tenant)
    if isinstance(letters, LetterFilter):
        require_open_letters(letters)
        if None not in (tenant, letters.tenant) and tenant != letters.tenant:
            raise InputError(Reason(ReasonCode.TENANTS_DIFFER, filter=letters.tenant, call=tenant))
        where = replace(letters, tenant=tenant if letters.tenant is None else letters.tenant)
        return _LetterSelection(where.tenant or "", where, ())
    if isinstance(letters, str) or not isinstance(letters, Iterable):
        raise InputError(Reason(ReasonCode.LETTER_IDS_NEEDED, given=quote(letters)))
    ids = tuple(dict.fromkeys(letters))
    for id in ids:
        if not is_id(id):
            raise InputError(Reason(ReasonCode.LETTER_ID_INVALID, id=quote(id)))
    if not ids or len(ids) > MAX_IDS:
        raise InputError(Reason(ReasonCode.LETTER_IDS_TOO_MANY, most=MAX_IDS, count=len(ids)))
    return _LetterSelection(tenant or "", None, ids)


def require_open_letters(where: LetterFilter) -> None:
    """Refuse a filter that excludes open letters: no others can be decided on."""
    statuses = parse_states(where.status, LetterStatus)
    if statuses is not None and LetterStatus.OPEN.value not in statuses:
        raise InputError(Reason(ReasonCode.ONLY_OPEN_LETTERS, statuses=tuple(statuses)))
