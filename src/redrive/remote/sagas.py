"""Rollbacks on a server."""

from __future__ import annotations

from redrive.desk.replaying import Replay
from redrive.desk.saga import Saga
from redrive.remote.client import Client
from redrive.remote.reading import read, said

__all__ = ["RemoteLedger", "ledger"]


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
        return read(
            Replay, await self._client.post("runs", self.run_id, "retry", body=body, tenant=self._asked)
        )

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
