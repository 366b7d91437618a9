"""Runs of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redrive.desk.around import Surroundings
from redrive.desk.preview import DryRun
from redrive.desk.replaying import Replay
from redrive.desk.shapes import Run
from redrive.desk.starting import Wanted
from redrive.remote.client import Client
from redrive.remote.reading import policy_json, query_of, read, said
from redrive.store.records import Page, Started
from redrive.store.selection import RunFilter

__all__ = ["RemoteRuns", "RemoteStarter"]

_UNDO = {"skip_failed": "skip", "skip": "skip", "complete": "mark-done"}


class RemoteRuns:
    """The calls of `desk.runs.Runs`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, run_id: str, *, tenant: str | None = None) -> Run:
        return read(Run, await self._client.get("runs", run_id, tenant=tenant))

    async def around(self, run_id: str, *, tenant: str | None = None) -> Surroundings:
        return read(Surroundings, await self._client.get("runs", run_id, "around", tenant=tenant))

    async def list(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page[Run]:
        query = {**query_of(filter), "limit": limit, "cursor": cursor}
        tenant = filter.tenant if filter else None
        return read(Page[Run], await self._client.get("runs", query=query, tenant=tenant))

    async def cancel(
        self, run_id: str, *, by: str = "unknown", reason: str = "", tenant: str | None = None
    ) -> Run:
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
                run_id,
                dry_run=dry_run,
                reason=reason,
                idempotency_key=idempotency_key,
                tenant=tenant,
            )
        if undo is not None:
            path, body = ("saga", undo, _UNDO.get(chosen, chosen)), said(reason=reason)
        else:
            retry = policy_json(options.pop("retry", None))
            body = said(
                mode=chosen, skip_steps=skip_steps, reason=reason, override_retry_policy=retry, **options
            )
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

    async def start(self, wanted: Sequence[Wanted]) -> list[Started]:
        tenants = {one.options.get("tenant") for one in wanted}
        started: dict[int, Started] = {}
        for tenant in tenants:
            numbers = [n for n, one in enumerate(wanted) if one.options.get("tenant") == tenant]
            body = {"runs": [_new_run(wanted[number]) for number in numbers]}
            found = await self._client.post("runs:batch", body=body, tenant=tenant)
            made = (Started(public_id=one["id"], new=one["new"]) for one in found["runs"])
            started.update(zip(numbers, made, strict=True))
        return [started[number] for number in range(len(wanted))]


def _new_run(wanted: Wanted) -> dict[str, Any]:
    options = {name: value for name, value in wanted.options.items() if name != "tenant"}
    if "retry" in options:
        options["retry"] = policy_json(options["retry"])
    event = None if wanted.event is None else dict(zip(("stream", "id"), wanted.event, strict=True))
    return said(workflow=wanted.workflow, input=dict(wanted.input), event=event, **options)
