"""Declared actions: calls, statements, messages. They run as the bodies of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from redrive.actions import Action, ApiCall, Manual, Notify, Sql
from redrive.errors import MisusedStep, PayloadError
from redrive.http.client import HttpClient, HttpRequest
from redrive.settings import Allowed
from redrive.store.user_database import execute_elsewhere
from redrive.worker.attempt import Attempt
from redrive.worker.branches import current

__all__ = ["NOTICES", "ActionRunner", "instructions", "run_action"]

_KEY_HEADER = "Idempotency-Key"

NOTICES = "redrive.notify"
"""The topic of messages that `Notify` sends."""


class ActionRunner:
    """Runs declared actions with a guarded HTTP client, and databases by name."""

    def __init__(self, connections: Mapping[str, str], allowed: Sequence[Allowed]) -> None:
        self._connections = connections
        self._allowed = allowed
        self._client: HttpClient | None = None

    async def call(self, action: ApiCall, data: Mapping[str, Any], key: str) -> None:
        """Make the call; anything but a success raises."""
        request = action.render(data)
        headers = dict(request.headers)
        if not any(name.lower() == _KEY_HEADER.lower() for name in headers):
            headers[_KEY_HEADER] = key
        body = b"" if request.body is None else request.body.encode()
        answer = await self._http().send(
            HttpRequest(
                url=request.url, method=request.method, headers=headers, body=body, timeout=request.timeout
            )
        )
        answer.raise_for_status(f"{request.method} {action.origin}")

    def _http(self) -> HttpClient:
        if self._client is None:
            self._client = HttpClient(self._allowed)
        return self._client

    async def execute(self, action: Sql, data: Mapping[str, Any]) -> int:
        """Execute the statement; returns how many rows it changed."""
        return await execute_elsewhere(
            self._connections[action.connection], action.statement, action.render(data)
        )

    async def close(self) -> None:
        """Close connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


async def run_action(action: Action, input: dict[str, Any], result: Any) -> Any:
    """Run an action as the body of a step."""
    here = current.get()
    if not isinstance(here, Attempt):
        raise MisusedStep(f"a declared action ({action.kind}) is carried out by an engine only")
    data = {"input": input, "result": result, "step": _about(here)}
    runner = here.execution.worker.actions
    match action:
        case ApiCall():
            return await runner.call(action, data, here.idempotency_key)
        case Sql():
            return await runner.execute(action, data)
        case Notify():
            return _notify(action, data, here)
        case Manual():
            raise MisusedStep("a task for a person is not carried out by an engine")


def _about(attempt: Attempt) -> dict[str, Any]:
    """Return what templates can name of the step that is undone, and of the step that undoes it."""
    return {
        "name": attempt.place.key.rpartition("/")[0].rpartition("/")[2].rpartition("#")[0],
        "idempotency_key": attempt.idempotency_key,
        "run_id": attempt.run_id,
        "tenant": attempt.tenant,
        "correlation_id": attempt.correlation_id,
    }


def _notify(action: Notify, data: Mapping[str, Any], attempt: Attempt) -> dict[str, str]:
    """Publish the message, which is committed with the step's success; the step's record has it, too."""
    message = {"channel": action.channel, "subject": f"{data['step']['name']} was undone"}
    message["text"] = action.render(data)
    attempt.publish(NOTICES, message)
    return message


def instructions(action: Manual, text: str, step: str) -> str:
    """Return the text for a person; if a field is missing, the text as it was written."""
    given = json.loads(text)
    try:
        return action.render({**given, "step": {"name": step}})
    except PayloadError as error:
        return f"{action.instructions} ({error})"
