"""`app.runs` in workflow and step code: an event that the code of a run sends is sent once."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from redrive.core.events import check_event_name
from redrive.core.states import EntryKind, RunStatus
from redrive.desk.models import SentEvent
from redrive.desk.runs import Runs, find_run
from redrive.worker.attempt import Attempt
from redrive.worker.branches import Branch, current_scope


async def send_once(name: str, key: str | None, send: Callable[[str | None], Awaitable[SentEvent]]) -> SentEvent:
    """Send an event with a key. In workflow code it is recorded; in a step its key is made from the step.

    Outside of runs the key is that of the caller.
    """
    here = current_scope.get()
    if isinstance(here, Attempt):
        return await send(f"{here.idempotency_key}:{here.next_event()}" if key is None else key)
    if not isinstance(here, Branch):
        return await send(key)

    async def send_and_encode(engine_key: str) -> str:
        sent = await send(engine_key if key is None else key)
        return json.dumps({"seq": sent.seq, "run_id": sent.run_id, "status": sent.status.value})

    request = here.execution.requests.call_once
    found = json.loads(await request(here, EntryKind.SEND, f"redrive.send {check_event_name(name)}", send_and_encode))
    return SentEvent(seq=found["seq"], run_id=found["run_id"], status=RunStatus(found["status"]))


class AppRuns(Runs):
    """Runs, for code of the same process."""

    async def send(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        key: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> SentEvent:
        here = current_scope.get()
        if not isinstance(here, Branch | Attempt):
            return await super().send(run_id, name, payload, key=key, tenant=tenant, by=by)
        claimed = here.execution.claimed

        async def send(with_key: str | None) -> SentEvent:
            """Send the event to a run of the same tenant, in the name of the run that sends it."""
            row = await find_run(self._store, run_id, claimed.tenant)
            sender = f"run:{claimed.public_id}"
            return await self._sender.send(row, name, payload, key=with_key, by=sender, audited=False)

        return await send_once(name, key, send)
