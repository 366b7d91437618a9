"""Dead letters of a server."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from redrive.core.roles import ALL_TENANTS, DEFAULT_TENANT, Role
from redrive.core.states import LetterStatus
from redrive.desk.bulk import DryRunOfMany, LetterSet, SetItem
from redrive.desk.circuits import CircuitRecord
from redrive.desk.decisions import Replay
from redrive.desk.models import AuditRecord, DeadLetter, Run
from redrive.desk.notifications import InboxItem, StoredRule
from redrive.desk.outbox import Blocked, OutboxMessage, SinkStatus
from redrive.desk.presenter import GroupList
from redrive.desk.preview import DryRun
from redrive.desk.runs import StartRequest, Surroundings
from redrive.desk.saga import Saga
from redrive.desk.saved_views import SavedView
from redrive.desk.settings import KnownSchedule, KnownWorkflow, StoredPolicy
from redrive.errors import InputError, NotFound
from redrive.policy import RetryPolicy
from redrive.remote.client import Client, policy_json, query_of, read, said
from redrive.server.contract import IssuedToken, NewToken, NewUser
from redrive.store.accounts import MemberRow, TenantRow, TokenKind, TokenRow, UserRow
from redrive.store.filters import AuditFilter, CircuitFilter, LetterFilter, OutboxFilter, RunFilter
from redrive.store.letters import Facets
from redrive.store.list_query import Page, iterate_pages, parse_states
from redrive.store.runs import StartResult

# -- Circuits of a server --------------------------------------------------------------------------------


class RemoteCircuits:
    """The calls of `desk.circuits.Circuits`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self, filter: CircuitFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[CircuitRecord]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor}
        tenant = filter.tenant if filter else None
        return read(Page[CircuitRecord], await self._client.get("circuits", query=query, tenant=tenant))

    async def get(self, key: str, *, tenant: str = DEFAULT_TENANT) -> CircuitRecord:
        return read(CircuitRecord, await self._client.get("circuits", key, tenant=tenant))

    async def open(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        return await self._turn(key, "open", tenant, reason)

    async def close(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        return await self._turn(key, "close", tenant, reason)

    async def reset(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", reason: str | None = None
    ) -> CircuitRecord:
        return await self._turn(key, "reset", tenant, reason)

    async def set(
        self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown", **settings: Any
    ) -> CircuitRecord:
        return read(CircuitRecord, await self._client.put("circuits", key, body=settings, tenant=tenant))

    async def unset(self, key: str, *, tenant: str = DEFAULT_TENANT, by: str = "unknown") -> CircuitRecord:
        return read(CircuitRecord, await self._client.delete("circuits", key, tenant=tenant))

    async def _turn(self, key: str, way: str, tenant: str, reason: str | None) -> CircuitRecord:
        found = await self._client.post("circuits", key, way, body=said(reason=reason), tenant=tenant)
        return read(CircuitRecord, found)


# -- Dead letters of a server ----------------------------------------------------------------------------


_LETTERS, _SETS = "workflow-dlq", "bulk-replays"


class RemoteDeadLetters:
    """The calls of `desk.dlq.DeadLetters`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- looking ---------------------------------------------------------------------------------------

    async def get(self, id: str, *, tenant: str | None = None, reveal: bool = False, by: str = "unknown") -> DeadLetter:
        if reveal:
            return await self._note(id, "reveal", {}, tenant)
        return read(DeadLetter, await self._client.get(_LETTERS, id, tenant=tenant))

    async def list(
        self, filter: LetterFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[DeadLetter]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor}
        found = await self._client.get(_LETTERS, query=query, tenant=filter.tenant if filter else None)
        return read(Page[DeadLetter], found)

    async def count(self, filter: LetterFilter | None = None) -> int:
        tenant = filter.tenant if filter else None
        found = await self._client.get(_LETTERS, "count", query=query_of(filter), tenant=tenant)
        return int(found["total"])

    async def groups(
        self, tenant: str | None = None, *, status: str | None = "OPEN", limit: int = 50, cursor: str | None = None
    ) -> GroupList:
        query = {"status": status or "ALL", "limit": limit, "cursor": cursor}
        return read(GroupList, await self._client.get(_LETTERS, "groups", query=query, tenant=tenant))

    async def facets(self, filter: LetterFilter | None = None) -> Facets:
        tenant = filter.tenant if filter else None
        found = await self._client.get(_LETTERS, "facets", query=query_of(filter), tenant=tenant)
        return read(Facets, found)

    # -- deciding --------------------------------------------------------------------------------------

    async def replay(
        self,
        id: str,
        mode: str = "FROM_FAILED",
        *,
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        **options: Any,
    ) -> Replay | DryRun:
        completes = mode.upper() == "COMPLETE"
        if completes:
            body = said(reason=reason, **options) | {"output": options.get("output")}
        else:
            body = said(mode=mode.upper(), reason=reason, **_decision(options))
        found = await self._client.post(
            _LETTERS,
            id,
            "complete" if completes else "replay",
            body={**body, "dry_run": dry_run},
            tenant=tenant,
            key=idempotency_key,
        )
        return read(Replay | DryRun, found)  # type: ignore[arg-type]

    async def complete(
        self, id: str, output: Any, *, by: str = "unknown", reason: str | None = None, tenant: str | None = None
    ) -> Replay:
        body = {"output": output, **said(reason=reason)}
        return read(Replay, await self._client.post(_LETTERS, id, "complete", body=body, tenant=tenant))

    async def resolve(
        self, id: str, *, by: str = "unknown", reason: str | None = None, tenant: str | None = None
    ) -> DeadLetter:
        return await self._note(id, "resolve", said(reason=reason), tenant)

    async def ignore(
        self, id: str, *, by: str = "unknown", reason: str | None = None, tenant: str | None = None
    ) -> DeadLetter:
        return await self._note(id, "ignore", said(reason=reason), tenant)

    # -- deciding on many ------------------------------------------------------------------------------

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
    ) -> LetterSet | DryRunOfMany:
        body = said(mode=mode.upper(), rate=rate, **_decision(options)) | {"dry_run": dry_run}
        found = await self._begin("replay", letters, body, reason, tenant)
        return read(DryRunOfMany, found) if dry_run else read(LetterSet, found)

    async def resolve_many(
        self,
        letters: LetterFilter | Iterable[str],
        *,
        by: str = "unknown",
        reason: str | None = None,
        tenant: str | None = None,
        rate: str | None = None,
    ) -> LetterSet:
        return read(LetterSet, await self._begin("resolve", letters, said(rate=rate), reason, tenant))

    async def ignore_many(
        self,
        letters: LetterFilter | Iterable[str],
        *,
        by: str = "unknown",
        reason: str | None = None,
        tenant: str | None = None,
        rate: str | None = None,
    ) -> LetterSet:
        return read(LetterSet, await self._begin("ignore", letters, said(rate=rate), reason, tenant))

    async def set(self, id: str, *, tenant: str | None = None) -> LetterSet:
        return read(LetterSet, await self._client.get(_SETS, id, tenant=tenant))

    async def sets(self, *, limit: int = 50, cursor: str | None = None, tenant: str | None = None) -> Page[LetterSet]:
        query = {"limit": limit, "cursor": cursor}
        return read(Page[LetterSet], await self._client.get(_SETS, query=query, tenant=tenant))

    async def set_items(
        self,
        id: str,
        *,
        status: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        tenant: str | None = None,
    ) -> Page[SetItem]:
        query = {"status": status, "limit": limit, "cursor": cursor}
        return read(Page[SetItem], await self._client.get(_SETS, id, "items", query=query, tenant=tenant))

    async def stop_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> LetterSet:
        return read(LetterSet, await self._client.post(_SETS, id, "stop", tenant=tenant))

    async def pause_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> LetterSet:
        return read(LetterSet, await self._client.post(_SETS, id, "pause", tenant=tenant))

    async def resume_set(self, id: str, *, by: str = "unknown", tenant: str | None = None) -> LetterSet:
        return read(LetterSet, await self._client.post(_SETS, id, "resume", tenant=tenant))

    async def rate_set(self, id: str, rate: str | None, *, by: str = "unknown", tenant: str | None = None) -> LetterSet:
        body = {"rate": rate}
        return read(LetterSet, await self._client.post(_SETS, id, "rate", body=body, tenant=tenant))

    # -- noting ----------------------------------------------------------------------------------------

    async def assign(self, id: str, *, to: str | None, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        return await self._note(id, "assign", {"to": to}, tenant)

    async def comment(self, id: str, text: str, *, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        return await self._note(id, "comment", {"text": text}, tenant)

    async def tag(self, id: str, tags: Iterable[str], *, by: str = "unknown", tenant: str | None = None) -> DeadLetter:
        return await self._note(id, "tag", {"tags": [*tags]}, tenant)

    async def _note(self, id: str, what: str, body: dict[str, Any], tenant: str | None) -> DeadLetter:
        return read(DeadLetter, await self._client.post(_LETTERS, id, what, body=body, tenant=tenant))

    async def _begin(
        self,
        what: str,
        letters: LetterFilter | Iterable[str],
        body: dict[str, Any],
        reason: str | None,
        tenant: str | None,
    ) -> Any:
        meant = _meant(letters) | said(reason=reason) | body
        if isinstance(letters, LetterFilter):
            tenant = tenant or letters.tenant
        return await self._client.post(_LETTERS, what, body=meant, tenant=tenant)


def _decision(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a replay as they are sent."""
    names = {"from_step": "from_step_index", "retry": "override_retry_policy"}
    given = {**options, "retry": policy_json(options.get("retry"))}
    return said(**{names.get(name, name): value for name, value in given.items()})


def _meant(letters: LetterFilter | Iterable[str]) -> dict[str, Any]:
    """The letters that are meant; of those that a filter names, the open ones."""
    if not isinstance(letters, LetterFilter):
        return {"ids": [*letters]}
    wanted = parse_states(letters.status, LetterStatus)
    if wanted is not None and LetterStatus.OPEN.value not in wanted:
        raise InputError(f"only open letters are decided on, and the filter wants {', '.join(wanted)}")
    filter = {name: value for name, value in query_of(letters).items() if name != "status"}
    if "index" in filter:
        filter["index"] = dict(text.split(":", 1) for text in filter["index"])
    return {"filter": filter}


# -- The inbox of a server, and its rules about who is told of what --------------------------------------


class RemoteNotifications:
    """The calls of `desk.notifications.Notifications`. The server knows who asks, and so who reads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self,
        *,
        reader: str = "unknown",
        tenant: str | None = None,
        workflow: str | None = None,
        unread: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[InboxItem]:
        asked = said(workflow=workflow, unread="true" if unread else None, limit=limit, cursor=cursor)
        return read(Page[InboxItem], await self._client.get("notifications", query=asked, tenant=tenant))

    async def get(self, id: str, *, reader: str = "unknown", tenant: str | None = None) -> InboxItem:
        return read(InboxItem, await self._client.get("notifications", id, tenant=tenant))

    async def unread(self, *, reader: str = "unknown", tenant: str | None = None, workflow: str | None = None) -> int:
        asked = said(workflow=workflow, limit=1)
        return int((await self._client.get("notifications", query=asked, tenant=tenant))["unread"])

    async def mark_read(
        self, ids: Sequence[str] | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> int:
        body = {} if ids is None else {"ids": list(ids)}
        return int((await self._client.post("notifications", "read", body=body, tenant=tenant))["marked"])

    async def rules(self) -> Sequence[StoredRule]:
        return [read(StoredRule, one) for one in await self._client.get("notification-rules")]

    async def set_rule(
        self, rule: Mapping[str, Any], *, workflow: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> StoredRule:
        body = {"rule": dict(rule), **said(workflow=workflow)}
        return read(StoredRule, await self._client.put("notification-rules", body=body, tenant=tenant))

    async def delete_rule(self, *, workflow: str | None = None, tenant: str | None = None, by: str = "unknown") -> bool:
        try:
            await self._client.delete("notification-rules", query=said(workflow=workflow), tenant=tenant)
        except NotFound:
            return False
        return True


# -- Messages and sinks of a server ----------------------------------------------------------------------


class RemoteOutbox:
    """The calls of `desk.outbox.Outbox`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self, filter: OutboxFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[OutboxMessage]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor}
        tenant = filter.tenant if filter else None
        return read(Page[OutboxMessage], await self._client.get("outbox", query=query, tenant=tenant))

    async def get(self, id: str, *, tenant: str | None = None) -> OutboxMessage:
        return read(OutboxMessage, await self._client.get("outbox", id, tenant=tenant))

    async def blocked(self, *, tenant: str | None = None, limit: int = 50) -> tuple[Blocked, ...]:
        found = await self._client.get("outbox", "blocked", query={"limit": limit}, tenant=tenant)
        return tuple(read(Blocked, one) for one in found)

    async def retry(
        self,
        id: str,
        *,
        sink: str | None = None,
        by: str,
        reason: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> OutboxMessage:
        body = said(sink=sink, reason=reason, dry_run=dry_run)
        return read(OutboxMessage, await self._client.post("outbox", id, "retry", body=body, tenant=tenant))

    async def skip(
        self,
        id: str,
        *,
        sink: str | None = None,
        by: str,
        reason: str | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> OutboxMessage:
        body = said(sink=sink, reason=reason, dry_run=dry_run)
        return read(OutboxMessage, await self._client.post("outbox", id, "skip", body=body, tenant=tenant))


class RemoteSinks:
    """The calls of `desk.sinks.Sinks`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> tuple[SinkStatus, ...]:
        return tuple(read(SinkStatus, one) for one in await self._client.get("sinks"))

    async def remove(self, name: str, *, by: str, reason: str | None = None, dry_run: bool = False) -> None:
        query = said(reason=reason, dry_run="true" if dry_run else None)
        await self._client.delete("sinks", name, query=query)


# -- Tenants, people and tokens of a server --------------------------------------------------------------


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RemotePeople:
    """What an operator does about tenants, people and tokens, with the rights of the token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- tenants ---------------------------------------------------------------------------------------

    async def tenants(self) -> list[TenantRow]:
        return [_tenant(one) for one in await self._client.get("tenants")]

    async def tenant(self, name: str) -> TenantRow:
        for row in await self.tenants():
            if row.tenant == name:
                return row
        raise NotFound(f"there is no tenant {name!r}")

    async def create_tenant(self, name: str) -> TenantRow:
        return _tenant(await self._client.post("tenants", body={"name": name}))

    async def disable_tenant(self, name: str, *, disabled: bool) -> TenantRow:
        return _tenant(await self._client.post("tenants", name, "disable" if disabled else "enable"))

    async def erase_tenant(self, name: str) -> int:
        return int((await self._client.delete("tenants", name, query={"confirm": name}))["rows"])

    async def export_tenant(self, name: str) -> AsyncIterator[dict[str, Any]]:
        async for one in self._client.lines("tenants", name, "export"):
            yield one

    # -- people ----------------------------------------------------------------------------------------

    async def users(self, tenant: str | None) -> list[UserRow]:
        return [_user(one) for one in await self._client.get("users", tenant=tenant)]

    async def user(self, id: str) -> UserRow:
        return _user(await self._client.get("users", id))

    async def create_user(self, new: NewUser) -> tuple[UserRow, str | None]:
        body = {
            "email": new.email,
            "role": new.role.value,
            "may_see_payloads": new.payloads,
            **said(password=new.password),
        }
        made = await self._client.post("users", body=body, tenant=new.tenant)
        return _user(made), made["code"]

    async def give_role(self, id: str, tenant: str, role: Role, *, payloads: bool | None) -> tuple[UserRow, str | None]:
        body = {"role": role.value, "active": True, **said(may_see_payloads=payloads)}
        made = await self._client.post("users", id, "role", body=body, tenant=tenant)
        return _user(made), made["code"]

    async def disable_user(self, id: str, *, disabled: bool) -> UserRow:
        return _user(await self._client.post("users", id, "disable" if disabled else "enable"))

    async def code(self, id: str) -> str:
        return str((await self._client.post("users", id, "code"))["code"])

    # -- tokens ----------------------------------------------------------------------------------------

    async def tokens(self, tenant: str | None) -> list[TokenRow]:
        return [_token(one) for one in await self._client.get("tokens", tenant=tenant)]

    async def token(self, id: str) -> TokenRow:
        return _token(await self._client.get("tokens", id))

    async def create_token(self, new: NewToken) -> IssuedToken:
        body = {
            "name": new.name,
            "role": new.role.value,
            "kind": new.kind.value,
            "workflows": list(new.workflows),
            "may_see_payloads": new.payloads,
            **said(lasts=new.lasts),
        }
        made = await self._client.post("tokens", body=body, tenant=new.tenant)
        return IssuedToken(_token(made), made["secret"])

    async def revoke_token(self, id: str) -> TokenRow:
        return _token(await self._client.post("tokens", id, "revoke"))


def _tenant(found: Any) -> TenantRow:
    return TenantRow(
        tenant=found["name"],
        created_at=_micros(found["created_at"]),
        created_by=found["created_by"],
        disabled_at=1 if found["disabled"] else None,
    )


def _user(found: Any) -> UserRow:
    return UserRow(
        id=found["id"],
        email=found["email"],
        created_at=_micros(found["created_at"]),
        disabled_at=1 if found["disabled"] else None,
        members=tuple(
            MemberRow(
                user=found["id"],
                tenant=each["tenant"],
                role=Role(each["role"]),
                payloads=each["may_see_payloads"],
                active=each["active"],
            )
            for each in found["memberships"]
        ),
    )


def _token(found: Any) -> TokenRow:
    return TokenRow(
        id=found["id"],
        kind=TokenKind(found["kind"]),
        tenant=found["tenant"],
        role=Role(found["role"]),
        name=found["name"],
        created_by=found["created_by"],
        payloads=found["may_see_payloads"],
        workflows=tuple(found["workflows"]),
        created_at=_micros(found["created_at"]),
        expires_at=None if found["expires_at"] is None else _micros(found["expires_at"]),
        revoked_at=None if found["revoked_at"] is None else _micros(found["revoked_at"]),
    )


def _micros(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


# -- Runs of a server ------------------------------------------------------------------------------------


_UNDO = {"skip_failed": "skip", "skip": "skip", "complete": "mark-done"}


class RemoteRuns:
    """The calls of `desk.runs.Runs`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, run_id: str, *, tenant: str | None = None) -> Run:
        return read(Run, await self._client.get("runs", run_id, tenant=tenant))

    async def around(self, run_id: str, *, tenant: str | None = None) -> Surroundings:
        return read(Surroundings, await self._client.get("runs", run_id, "around", tenant=tenant))

    async def list(self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None) -> Page[Run]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor}
        tenant = filter.tenant if filter else None
        return read(Page[Run], await self._client.get("runs", query=query, tenant=tenant))

    async def cancel(self, run_id: str, *, by: str = "unknown", reason: str = "", tenant: str | None = None) -> Run:
        body = said(reason=reason or None)
        return read(Run, await self._client.post("runs", run_id, "cancel", body=body, tenant=tenant))

    async def retry(
        self,
        run_id: str,
        mode: str = "from_failed",
        *,
        skip_steps: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        **options: Any,
    ) -> Replay | DryRun:
        chosen, undo = mode.lower(), options.pop("undo", None)
        path: tuple[str, ...] = ("retry",)
        if chosen == "rollback":
            return await self.rollback(
                run_id, dry_run=dry_run, reason=reason, idempotency_key=idempotency_key, tenant=tenant
            )
        if undo is not None:
            path, body = ("saga", undo, _UNDO.get(chosen, chosen)), said(reason=reason)
        else:
            retry = policy_json(options.pop("retry", None))
            body = said(mode=chosen, skip_steps=skip_steps, reason=reason, override_retry_policy=retry, **options)
        return await self._decide(run_id, path, {**body, "dry_run": dry_run}, idempotency_key, tenant)

    async def rollback(
        self,
        run_id: str,
        *,
        dry_run: bool = False,
        by: str = "unknown",
        reason: str | None = None,
        idempotency_key: str | None = None,
        tenant: str | None = None,
    ) -> Replay | DryRun:
        body = {**said(reason=reason), "dry_run": dry_run}
        return await self._decide(run_id, ("rollback",), body, idempotency_key, tenant)

    async def _decide(
        self, run_id: str, path: tuple[str, ...], body: Any, key: str | None, tenant: str | None
    ) -> Replay | DryRun:
        found = await self._client.post("runs", run_id, *path, body=body, tenant=tenant, key=key)
        return read(Replay | DryRun, found)  # type: ignore[arg-type]


class RemoteStarter:
    """The calls of `desk.starting.Starter`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start(self, wanted: Sequence[StartRequest]) -> list[StartResult]:
        tenants = {one.options.get("tenant") for one in wanted}
        started: dict[int, StartResult] = {}
        for tenant in tenants:
            numbers = [n for n, one in enumerate(wanted) if one.options.get("tenant") == tenant]
            body = {"runs": [_new_run(wanted[number]) for number in numbers]}
            found = await self._client.post("runs:batch", body=body, tenant=tenant)
            made = (StartResult(public_id=one["id"], new=one["new"]) for one in found["runs"])
            started.update(zip(numbers, made, strict=True))
        return [started[number] for number in range(len(wanted))]


def _new_run(wanted: StartRequest) -> dict[str, Any]:
    options = {name: value for name, value in wanted.options.items() if name != "tenant"}
    if "retry" in options:
        options["retry"] = policy_json(options["retry"])
    event = None if wanted.event is None else dict(zip(("stream", "id"), wanted.event, strict=True))
    return said(workflow=wanted.workflow, input=dict(wanted.input), event=event, **options)


# -- Rollbacks on a server -------------------------------------------------------------------------------


class RemoteLedger:
    """The compensations of one run, with the calls of `desk.saga.Ledger`."""

    def __init__(self, saga: Saga, client: Client, asked: str | None) -> None:
        self.run_id = saga.run_id
        self.workflow = saga.workflow
        self.tenant = saga.tenant
        self.status = saga.status
        self.entries = saga.entries
        self.done = saga.done
        self._client = client
        self._asked = asked

    async def resume(self, *, by: str = "unknown", reason: str | None = None) -> Replay:
        body = {"mode": "from_failed", **said(reason=reason)}
        return read(Replay, await self._client.post("runs", self.run_id, "retry", body=body, tenant=self._asked))

    async def skip(self, step: str, *, by: str = "unknown", reason: str | None = None) -> Replay:
        return await self._decide(step, "skip", reason)

    async def mark_done(self, step: str, *, by: str = "unknown", reason: str | None = None) -> Replay:
        return await self._decide(step, "mark-done", reason)

    async def _decide(self, step: str, way: str, reason: str | None) -> Replay:
        path = ("runs", self.run_id, "saga", step, way)
        return read(Replay, await self._client.post(*path, body=said(reason=reason), tenant=self._asked))


async def ledger(client: Client, run_id: str, tenant: str | None) -> RemoteLedger:
    """The ledger of a run as it stands."""
    found = read(Saga, await client.get("runs", run_id, "saga", tenant=tenant))
    return RemoteLedger(found, client, tenant)


# -- Schedules of a server -------------------------------------------------------------------------------


class RemoteSchedules:
    """The calls of `desk.schedules.Schedules`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, *, tenant: str | None = None) -> tuple[KnownSchedule, ...]:
        found = await self._client.get("schedules", tenant=tenant)
        return tuple(read(KnownSchedule, one) for one in found)

    async def pause(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> bool:
        return await self._decide("pause", workflow, name, tenant, reason, dry_run)

    async def resume(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> bool:
        return await self._decide("resume", workflow, name, tenant, reason, dry_run)

    async def remove(
        self,
        workflow: str,
        name: str = "default",
        *,
        tenant: str = DEFAULT_TENANT,
        by: str = "unknown",
        reason: str | None = None,
        dry_run: bool = False,
    ) -> None:
        query = said(reason=reason, dry_run="true" if dry_run else None)
        await self._client.delete("schedules", workflow, name, query=query, tenant=tenant)

    async def _decide(
        self, verb: str, workflow: str, name: str, tenant: str, reason: str | None, dry_run: bool
    ) -> bool:
        body = said(reason=reason, dry_run=dry_run)
        found = await self._client.post("schedules", workflow, name, verb, body=body, tenant=tenant)
        return bool(found["changed"])


# -- What people set on a server, and what was done there: policies, workflows, the audit log ------------


_BATCH = 500


class RemotePolicies:
    """The calls of `desk.policies.Policies`. `home` tells which tenant is meant where none is named."""

    def __init__(self, client: Client, home: Callable[[], Awaitable[str]]) -> None:
        self._client = client
        self._home = home

    async def set(
        self,
        policy: RetryPolicy,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredPolicy:
        body = {"policy": policy.to_json(), **said(workflow=workflow, step=step)}
        return _stored(await self._client.put("policies", body=body, tenant=tenant))

    async def get(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None
    ) -> StoredPolicy | None:
        whose = tenant or await self._home()
        place = (None if whose == ALL_TENANTS else whose, workflow, step)
        found = [_stored(one) for one in await self._client.get("policies", tenant=tenant)]
        return next((one for one in found if (one.tenant, one.workflow, one.step) == place), None)

    async def list(self) -> list[StoredPolicy]:
        return [_stored(one) for one in await self._client.get("policies")]

    async def delete(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> bool:
        try:
            await self._client.delete("policies", query=said(workflow=workflow, step=step), tenant=tenant)
        except NotFound:
            return False
        return True


def _stored(found: Any) -> StoredPolicy:
    return StoredPolicy(
        policy=RetryPolicy.from_json(found["policy"]),
        workflow=found["workflow"],
        step=found["step"],
        tenant=found["tenant"],
        updated_at=datetime.fromisoformat(found["updated_at"]),
        updated_by=found["updated_by"],
    )


class RemoteWorkflows:
    """The calls of `desk.workflows.Workflows`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self) -> list[KnownWorkflow]:
        return [read(KnownWorkflow, one) for one in await self._client.get("workflows")]

    async def pause(self, name: str, *, by: str = "unknown") -> None:
        await self._client.post("workflows", name, "pause")

    async def resume(self, name: str, *, by: str = "unknown") -> None:
        await self._client.post("workflows", name, "resume")

    async def unclaimable(self) -> dict[str, int]:
        return {one.name: one.unclaimable for one in await self.list() if one.unclaimable}

    async def paused(self) -> dict[str, str]:
        return {one.name: one.paused_by for one in await self.list() if one.paused_by is not None}


class RemoteAudit:
    """The calls of `desk.audit.Audit`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self, filter: AuditFilter | None = None, *, limit: int = 50, cursor: str | None = None, language: str = "en"
    ) -> Page[AuditRecord]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor, "language": language}
        tenant = filter.tenant if filter else None
        return read(Page[AuditRecord], await self._client.get("audit", query=query, tenant=tenant))

    async def export(self, filter: AuditFilter | None = None, *, language: str = "en") -> AsyncIterator[AuditRecord]:
        pages = partial(self.list, filter, limit=_BATCH, language=language)
        async for line in iterate_pages(lambda cursor: pages(cursor=cursor)):
            yield line


# -- Saved views of a server -----------------------------------------------------------------------------


class RemoteViews:
    """The calls of `desk.views.Views`. Whose views they are is told by the token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self, of: str | None = None, *, reader: str = "unknown", tenant: str | None = None
    ) -> builtins.list[SavedView]:
        query = {"list": of}
        found = await self._client.get("views", query=query, tenant=tenant)
        return [read(SavedView, one) for one in found]

    async def save(
        self, of: str, name: str, query: str, *, by: str = "unknown", tenant: str | None = None, shared: bool = False
    ) -> SavedView:
        body = {"query": query}
        found = await self._client.put(_place(shared), of, name, body=body, tenant=tenant)
        return read(SavedView, found)

    async def remove(
        self, of: str, name: str, *, by: str = "unknown", tenant: str | None = None, shared: bool = False
    ) -> None:
        await self._client.delete(_place(shared), of, name, tenant=tenant)


def _place(shared: bool) -> str:
    return "shared-views" if shared else "views"
