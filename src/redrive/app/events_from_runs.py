"""Events from the code of a run: each is sent once, although the code may be executed again."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from redrive.core.states import EntryKind, RunStatus
from redrive.core.waits_and_events import check_event_name
from redrive.desk.actor import UNKNOWN_ACTOR
from redrive.desk.event_sender import EventRequest
from redrive.desk.models import SentEvent
from redrive.desk.runs import Runs
from redrive.errors import ConfigurationError, InputError
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.worker.attempt import Attempt
from redrive.worker.branches import Branch, current_scope


async def send_once(request: EventRequest, send: Callable[[EventRequest], Awaitable[SentEvent]]) -> SentEvent:
    """Send an event. In workflow code it is recorded; in a step its key is made from the step.

    The code of a run sends to runs of the same tenant, in the name of the run unless it names another sender.
    """
    here = current_scope.get()
    if not isinstance(here, Attempt | Branch):
        return await send(request)
    claimed = here.execution.claimed
    if request.tenant not in (None, claimed.tenant):
        raise InputError(Reason(ReasonCode.TENANT_OF_CODE, tenant=claimed.tenant))
    by = f"run:{claimed.public_id}" if request.by == UNKNOWN_ACTOR else request.by
    request = replace(request, tenant=claimed.tenant, by=by, audited=False)
    if isinstance(here, Attempt):
        key = f"{here.idempotency_key}:{here.next_event()}" if request.key is None else request.key
        return await send(replace(request, key=key))

    async def send_and_encode(engine_key: str) -> str:
        sent = await send(replace(request, key=engine_key if request.key is None else request.key))
        return json.dumps({"seq": sent.seq, "run_id": sent.run_id, "status": sent.status.value})

    name = f"redrive.send {check_event_name(request.name)}"
    found = json.loads(await here.execution.calls.call_once(here, EntryKind.SEND, name, send_and_encode))
    return SentEvent(seq=found["seq"], run_id=found["run_id"], status=RunStatus(found["status"]))


class AppRuns(Runs):
    """Runs, for code of the same process."""

    async def _send(self, request: EventRequest) -> SentEvent:
        return await send_once(request, super()._send)


class CheckedRuns:
    """Runs, for code that is walked through a history while its app is not open."""

    async def send(self, run_id: str, name: str, payload: Any = None, **options: Any) -> SentEvent:
        """Return the answer to an event as it is recorded; nothing is sent."""

        async def refuse(request: EventRequest) -> SentEvent:
            raise ConfigurationError("the app is not open: no event is sent")

        return await send_once(EventRequest(run_id=run_id, name=name, payload=payload, **options), refuse)

    def __getattr__(self, name: str) -> Any:
        raise ConfigurationError(f"the app is not open: app.runs.{name} cannot be called")
