"""Dead letters of a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redrive.core.states import LetterStatus
from redrive.desk.groups import GroupList
from redrive.desk.preview import DryRun
from redrive.desk.replaying import Replay
from redrive.desk.sets import DryRunOfMany, LetterSet, SetItem
from redrive.desk.shapes import DeadLetter
from redrive.errors import InputError
from redrive.remote.client import Client
from redrive.remote.reading import policy_json, query_of, read, said
from redrive.store.glances import Facets
from redrive.store.list_query import states_of
from redrive.store.records import Page
from redrive.store.selection import LetterFilter

__all__ = ["RemoteDeadLetters"]

_LETTERS, _SETS = "workflow-dlq", "bulk-replays"


class RemoteDeadLetters:
    """The calls of `desk.dlq.DeadLetters`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- looking ---------------------------------------------------------------------------------------

    async def get(
        self, id: str, *, tenant: str | None = None, reveal: bool = False, by: str = "unknown"
    ) -> DeadLetter:
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
        self,
        tenant: str | None = None,
        *,
        status: str | None = "OPEN",
        limit: int = 50,
        cursor: str | None = None,
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
        self,
        id: str,
        output: Any,
        *,
        by: str = "unknown",
        reason: str | None = None,
        tenant: str | None = None,
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

    async def sets(
        self, *, limit: int = 50, cursor: str | None = None, tenant: str | None = None
    ) -> Page[LetterSet]:
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

    async def rate_set(
        self, id: str, rate: str | None, *, by: str = "unknown", tenant: str | None = None
    ) -> LetterSet:
        body = {"rate": rate}
        return read(LetterSet, await self._client.post(_SETS, id, "rate", body=body, tenant=tenant))

    # -- noting ----------------------------------------------------------------------------------------

    async def assign(
        self, id: str, *, to: str | None, by: str = "unknown", tenant: str | None = None
    ) -> DeadLetter:
        return await self._note(id, "assign", {"to": to}, tenant)

    async def comment(
        self, id: str, text: str, *, by: str = "unknown", tenant: str | None = None
    ) -> DeadLetter:
        return await self._note(id, "comment", {"text": text}, tenant)

    async def tag(
        self, id: str, tags: Iterable[str], *, by: str = "unknown", tenant: str | None = None
    ) -> DeadLetter:
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
    wanted = states_of(letters.status, LetterStatus)
    if wanted is not None and LetterStatus.OPEN.value not in wanted:
        raise InputError(f"only open letters are decided on, and the filter wants {', '.join(wanted)}")
    filter = {name: value for name, value in query_of(letters).items() if name != "status"}
    if "index" in filter:
        filter["index"] = dict(text.split(":", 1) for text in filter["index"])
    return {"filter": filter}
