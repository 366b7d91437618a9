"""Sets: one decision on many letters, carried out by whichever node has time, with progress to look at."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from redrive.clock import Clock
from redrive.core.audit import ENGINE_ACTOR, AuditEvent
from redrive.core.idempotency import letter_id
from redrive.core.replay import ReplayRequest
from redrive.core.schedule import Rate, parse_rate
from redrive.core.states import FINAL_RUN_STATUSES, LetterStatus
from redrive.core.transitions import AuditWrite
from redrive.desk.bulk_execution import REPLAY, explain_refusal
from redrive.desk.decisions import SUCCESSFUL_STATUSES, ReplayOrder
from redrive.desk.models import make_reason_fields
from redrive.desk.presenter import Presenter, in_thread_if_large, measure_size
from redrive.desk.preview import DryRun, Previewer
from redrive.desk.validation import check_reason, is_id, require_actor, require_text
from redrive.duration import to_datetime
from redrive.errors import Conflict, InputError, NotFound
from redrive.reasons import Reason, ReasonCode, quote
from redrive.records import as_dict, replace
from redrive.store.bulk import BulkChange, BulkItemRow, BulkRow, BulkVerb, NewBulk, SetItemStatus, SetStatus
from redrive.store.encryption.keyring import Unreadable
from redrive.store.filters import AuditFilter, LetterFilter
from redrive.store.list_query import Page, parse_states
from redrive.store.port import DeskStore

MAX_IDS = 100_000
PREVIEW_LIMIT = 500
SAMPLE_SIZE = 5
_AUDIT_EVENTS = {
    BulkVerb.STOP: AuditEvent.SET_STOPPED,
    BulkVerb.PAUSE: AuditEvent.SET_PAUSED,
    BulkVerb.RESUME: AuditEvent.SET_RESUMED,
    BulkVerb.RATE: AuditEvent.SET_RATED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSet:
    """A decision on many letters and how far it is.

    `total` grows until all letters are `listed`. `done` were decided on: a replay goes on, or is over;
    `failed` are letters on which the decision was refused, which `set_items` lists with the reasons.
    `rate` is how many it decides on at the most, such as `50/s`; None is as many as it can.
    `stopped_because` says why the engine itself stopped a set that it could not carry out: it is the English
    sentence for `stopped_code` and `stopped_params`. How the runs stand
    that it let go on (`succeeded`, `failed_again`, `still_going`) is counted where one set is looked at, and
    None where many are listed or one is changed.
    """

    id: str
    action: str
    mode: str | None
    status: SetStatus
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

    @property
    def pending(self) -> int:
        """Letters that are listed and not decided on."""
        return self.total - self.done - self.failed

    @property
    def seconds_left(self) -> float | None:
        """How long the letters that are listed take at the least, by the rate; None if nothing is known."""
        return None if self.rate is None or self.ended_at else parse_rate(self.rate).estimate_seconds(self.pending)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetItem:
    """One letter of a set: the run that its replay lets go on, or why the decision was refused.

    `error` is the English sentence for `reason_code` and `reason_params`.
    """

    letter_id: str
    status: SetItemStatus
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
    """What a replay of many letters would do.

    `total` letters match. The first `checked` of them were looked at: `refused` says which of those would be
    refused, `sample` shows a few of the others.
    """

    total: int
    checked: int
    refused: tuple[Refusal, ...]
    sample: tuple[DryRun, ...]


class _LetterSelection(msgspec.Struct, frozen=True):
    """Which letters somebody means, and whose."""

    tenant: str
    where: LetterFilter | None
    letters: tuple[str, ...]


class BulkOperations:
    """Begins sets, shows them, changes them. `on_begun` lets whoever carries them out here know."""

    def __init__(
        self, store: DeskStore, clock: Clock, previewer: Previewer, shaper: Presenter, on_begun: Callable[[], None]
    ) -> None:
        self._on_begun = on_begun
        self._store = store
        self._clock = clock
        self._previewer = previewer
        self._shaper = shaper

    async def begin(
        self,
        action: str,
        what: LetterFilter | Iterable[str],
        order: ReplayOrder | None = None,
        *,
        by: str,
        reason: str | None,
        tenant: str | None,
        rate: str | None = None,
    ) -> LetterSet:
        """Accept a decision on many letters; nodes with a worker carry it out from now on."""
        meant = _select_letters(what, tenant)
        request = None if order is None else order.request
        letters = await self._deduplicate_ids(meant)
        new = NewBulk(
            public_id=self._clock.new_id(),
            tenant=meant.tenant,
            action=action,
            by=require_actor(by),
            reason=check_reason(reason),
            request=None if request is None else request.text,
            where=meant.where,
            letters=letters,
            rate=None if rate is None else parse_rate(rate),
        )
        await self._store.create_bulk(
            new, self._make_audit(AuditEvent.SET_STARTED, new, after=_describe_bulk(new, request))
        )
        self._on_begun()
        return await self.get(new.public_id)

    async def get(self, id: str, *, tenant: str | None = None) -> LetterSet:
        """A set and how far it is."""
        row = await self._find_bulk(id, tenant)
        endings = await self._store.bulk_run_counts(row) if row.action == REPLAY and row.done else {}
        why = await self._find_stop_reason(row)
        return replace(
            self._present(row),
            stopped_because=None if why is None else str(why),
            **make_reason_fields(why, "stopped"),
            succeeded=sum(endings.get(status, 0) for status in SUCCESSFUL_STATUSES),
            failed_again=sum(endings.get(status, 0) for status in FINAL_RUN_STATUSES - SUCCESSFUL_STATUSES),
            still_going=sum(count for status, count in endings.items() if status not in FINAL_RUN_STATUSES),
        )

    async def _find_stop_reason(self, row: BulkRow) -> Reason | None:
        """What the engine noted when it stopped a set; a person who stops one need not say why."""
        if row.closed_by != ENGINE_ACTOR:
            return None
        stops = AuditFilter(subject=row.public_id, event=AuditEvent.SET_STOPPED.value)
        found = await self._store.audit(stops, limit=1, cursor=None)
        told = (line.reason for line in found.items if line.reason is not None)
        return next((self._shaper.reason(Reason.from_text(text)) for text in told), None)

    async def list(self, limit: int, cursor: str | None, tenant: str | None) -> Page[LetterSet]:
        """A page of sets, the newest first."""
        if tenant is not None:
            require_text("tenant", tenant)
        page = await self._store.sets(tenant, limit=limit, cursor=cursor)
        sets = await in_thread_if_large(lambda: [self._present(row) for row in page.items], measure_size(page.items))
        return Page(sets, page.next, page.prev)

    async def items(
        self, id: str, status: str | None, limit: int, cursor: str | None, tenant: str | None
    ) -> Page[SetItem]:
        """A page of a set's letters."""
        row = await self._find_bulk(id, tenant)
        try:
            wanted = None if status is None else SetItemStatus(status)
        except ValueError:
            known = tuple(SetItemStatus)
            reason = Reason(ReasonCode.SET_ITEM_STATUS_UNKNOWN, known=known, given=quote(status))
            raise InputError(reason) from None
        page = await self._store.set_items(row, wanted, limit=limit, cursor=cursor)
        items = await in_thread_if_large(
            lambda: [self._present_item(item) for item in page.items], measure_size(page.items)
        )
        return Page(items, page.next, page.prev)

    async def change(self, id: str, change: BulkChange, *, by: str, tenant: str | None = None) -> LetterSet:
        """Stop a set, pause it, let it go on or change its rate. One that stands like that stays so.

        How its runs stand is not counted: nobody who presses a button shall wait for that.
        """
        row = await self._find_bulk(id, tenant)
        before, after = _describe_change(row, change)
        line = self._make_audit(_AUDIT_EVENTS[change.verb], row, by=require_actor(by), before=before, after=after)
        if not await self._store.change_bulk(id, change, line):
            _refuse_if_ended(await self._find_bulk(id, tenant), change.verb)
        self._on_begun()
        return self._present(await self._find_bulk(id, tenant))

    async def preview(self, what: LetterFilter | Iterable[str], order: ReplayOrder, tenant: str | None) -> DryRunOfMany:
        """What a replay of many would do; nothing is changed."""
        meant = _select_letters(what, tenant)
        letters = await self._deduplicate_ids(meant)
        ids, total = letters[:PREVIEW_LIMIT], len(letters)
        if meant.where is not None:
            total = await self._store.count_letters(meant.where)
            page = await self._store.letters(
                replace(meant.where, status=LetterStatus.OPEN), limit=PREVIEW_LIMIT, cursor=None
            )
            ids = tuple(letter.public_id for letter in page.items)
        refused: list[Refusal] = []
        sample: list[DryRun] = []
        for id in ids:
            try:
                shown = await self._previewer.preview(id, order, tenant=meant.tenant or None)
            except Exception as error:
                why = self._shaper.reason(explain_refusal(error, id))
                refused.append(Refusal(id, str(why), **make_reason_fields(why)))
            else:
                sample += [shown] if isinstance(shown, DryRun) and len(sample) < SAMPLE_SIZE else []
        return DryRunOfMany(total=total, checked=len(ids), refused=tuple(refused), sample=tuple(sample))

    async def _deduplicate_ids(self, meant: _LetterSelection) -> tuple[str, ...]:
        """The ids without those that name a letter a second time, by its run."""
        ids = meant.letters
        runs = [id for id in ids if not id.startswith(letter_id(""))]
        named = {id: letter_id(id) for id in runs}
        for begin in range(0, len(runs), PREVIEW_LIMIT):
            for case in await self._store.cases(runs[begin : begin + PREVIEW_LIMIT]):
                if meant.tenant in ("", case.run.tenant):
                    named[case.run.public_id] = case.subject
        first: dict[str, str] = {}
        for id in ids:
            first.setdefault(named.get(id, id), id)
        return tuple(first.values())

    async def _find_bulk(self, id: str, tenant: str | None) -> BulkRow:
        row = await self._store.bulk_by_id(id) if is_id(id) and tenant != "" else None
        if row is None or tenant not in (None, row.tenant):
            raise NotFound(Reason(ReasonCode.SET_NOT_FOUND, id=quote(id)))
        return row

    def _make_audit(
        self,
        event: AuditEvent,
        about: NewBulk | BulkRow,
        *,
        by: str | None = None,
        before: str | None = None,
        after: str | None = None,
    ) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=about.tenant,
            by=by or about.by,
            subject=about.public_id,
            before=before,
            after=after,
            reason=about.reason,
            token=self._clock.new_id(),
        )

    def _present(self, row: BulkRow) -> LetterSet:
        return _make_letter_set(row, self._shaper.text(row.reason))

    def _present_item(self, item: BulkItemRow) -> SetItem:
        why = None if item.error is None else self._shaper.reason(Reason.from_text(item.error))
        return SetItem(
            letter_id=item.letter,
            status=item.status,
            run_id=item.run_id,
            error=None if why is None else str(why),
            at=None if item.at is None else to_datetime(item.at),
            **make_reason_fields(why),
        )


def _select_letters(what: LetterFilter | Iterable[str], tenant: str | None) -> _LetterSelection:
    if tenant is not None:
        require_text("tenant", tenant)
    if isinstance(what, LetterFilter):
        return _select_by_filter(what, tenant)
    if isinstance(what, str) or not isinstance(what, Iterable):
        raise InputError(Reason(ReasonCode.LETTER_IDS_NEEDED, given=quote(what)))
    ids = tuple(dict.fromkeys(what))
    for id in ids:
        if not is_id(id):
            raise InputError(Reason(ReasonCode.LETTER_ID_INVALID, id=quote(id)))
    if not ids or len(ids) > MAX_IDS:
        raise InputError(Reason(ReasonCode.LETTER_IDS_TOO_MANY, most=MAX_IDS, count=len(ids)))
    return _LetterSelection(tenant or "", None, ids)


def _select_by_filter(where: LetterFilter, tenant: str | None) -> _LetterSelection:
    wanted = parse_states(where.status, LetterStatus)
    if wanted is not None and LetterStatus.OPEN.value not in wanted:
        raise InputError(Reason(ReasonCode.ONLY_OPEN_LETTERS, statuses=tuple(wanted)))
    if None not in (tenant, where.tenant) and tenant != where.tenant:
        raise InputError(Reason(ReasonCode.TENANTS_DIFFER, filter=where.tenant, call=tenant))
    chosen = replace(where, tenant=tenant if where.tenant is None else where.tenant)
    return _LetterSelection(chosen.tenant or "", chosen, ())


def _describe_bulk(new: NewBulk, request: ReplayRequest | None) -> str:
    about: dict[str, object] = {"action": new.action}
    if request is not None:
        about["mode"] = request.mode.value
    if new.rate is not None:
        about["rate"] = str(new.rate)
    if new.where is None:
        about["letters"] = len(new.letters)
    else:
        about["filter"] = {name: value for name, value in as_dict(new.where).items() if value is not None}
    return json.dumps(about, ensure_ascii=False)


def _make_letter_set(row: BulkRow, reason: str | None) -> LetterSet:
    readable = row.request is not None and not isinstance(row.request, Unreadable)
    mode = json.loads(row.request or "{}")["mode"] if row.action == REPLAY and readable else None
    return LetterSet(
        id=row.public_id,
        action=row.action,
        mode=mode,
        status=row.status,
        total=row.total,
        done=row.done,
        failed=row.failed,
        listed=row.listed,
        tenant=row.tenant or None,
        by=row.by,
        reason=reason,
        created_at=to_datetime(row.created_at),
        ended_at=None if row.ended_at is None else to_datetime(row.ended_at),
        stopped_by=row.closed_by,
        rate=None if row.rate is None else str(row.rate),
        paused_by=row.paused_by,
        paused_at=None if row.paused_at is None else to_datetime(row.paused_at),
    )


def _describe_change(row: BulkRow, change: BulkChange) -> tuple[str | None, str | None]:
    """How a set stands before and after a change, for the audit log; an end says enough."""
    if change.verb is BulkVerb.STOP:
        return None, None
    if change.verb is BulkVerb.RATE:
        return _describe_rate(row.rate), _describe_rate(change.rate)
    after = SetStatus.PAUSED if change.verb is BulkVerb.PAUSE else SetStatus.RUNNING
    return json.dumps({"status": row.status.value}), json.dumps({"status": after.value})


def _describe_rate(rate: Rate | None) -> str:
    return json.dumps({"rate": None if rate is None else str(rate)})


def _refuse_if_ended(row: BulkRow, verb: BulkVerb) -> None:
    """A set that is over is neither paused nor let go on; one that was stopped can be stopped again."""
    if row.status is SetStatus.DONE:
        raise Conflict(Reason(ReasonCode.SET_DONE, id=row.public_id))
    if row.status is SetStatus.STOPPED and verb is not BulkVerb.STOP:
        raise Conflict(Reason(ReasonCode.SET_STOPPED, id=row.public_id, by=row.closed_by))
