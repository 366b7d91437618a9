"""Durable workflows for Python whose speciality is failure.

app = Redrive("sqlite:///orders.db")

@app.step(retry=RetryPolicy(max_retries=5))
async def charge(order: Order) -> Receipt: ...

@app.workflow
async def fulfil(order: Order) -> Receipt:
    return await charge(order)

async with app:
    handle = await fulfil.start(order)
    receipt = await handle.result()
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from redrive.actions import ApiCall, Manual, Notify, Sql
    from redrive.app import Redrive, RunHandle, Start
    from redrive.core.classify import Category, Rule
    from redrive.core.failure_handlers import FailureEvent
    from redrive.core.notification_text import Notification
    from redrive.core.schedule import Schedule
    from redrive.errors import ChildFailed, NonRetryable, RedriveError, RetryAfter, RunFailed, StepFailed, WaitExpired
    from redrive.policy import Circuit, RetryPolicy
    from redrive.sinks import Message, Sink
    from redrive.store.filters import AuditFilter, CircuitFilter, LetterFilter, OutboxFilter, RunFilter, TaskFilter
    from redrive.worker.context import (
        ask,
        now,
        patched,
        publish,
        random,
        receive,
        run_info,
        set_status,
        sleep,
        step_info,
        timeout,
        uuid,
        wait_for,
        wait_for_any,
    )
    from redrive.worker.waits import Answer, Event

__all__ = [
    "Answer", "ApiCall", "AuditFilter", "Category", "ChildFailed", "Circuit", "CircuitFilter", "Event",
    "FailureEvent", "LetterFilter", "Manual", "Message", "NonRetryable", "Notification", "Notify", "OutboxFilter",
    "Redrive", "RedriveError", "RetryAfter", "RetryPolicy", "Rule", "RunFailed", "RunFilter", "RunHandle", "Schedule",
    "Sink", "Sql", "Start", "StepFailed", "TaskFilter", "WaitExpired", "ask", "now", "patched", "publish", "random",
    "receive", "run_info", "set_status", "sleep", "step_info", "timeout", "uuid", "wait_for", "wait_for_any",
]  # fmt: skip

# Each name is imported at its first use. The command line needs few of them, and starts in a tenth of the time.
_HOMES = {
    "redrive.actions": ("ApiCall", "Manual", "Notify", "Sql"),
    "redrive.app": ("Redrive", "RunHandle", "Start"),
    "redrive.core.classify": ("Category", "Rule"),
    "redrive.core.failure_handlers": ("FailureEvent",),
    "redrive.core.notification_text": ("Notification",),
    "redrive.core.schedule": ("Schedule",),
    "redrive.errors": (
        "ChildFailed",
        "NonRetryable",
        "RedriveError",
        "RetryAfter",
        "RunFailed",
        "StepFailed",
        "WaitExpired",
    ),
    "redrive.policy": ("Circuit", "RetryPolicy"),
    "redrive.sinks": ("Message", "Sink"),
    "redrive.store.filters": (
        "AuditFilter",
        "CircuitFilter",
        "LetterFilter",
        "OutboxFilter",
        "RunFilter",
        "TaskFilter",
    ),
    "redrive.worker.context": (
        *(
            "ask",
            "now",
            "patched",
            "publish",
            "random",
            "receive",
            "run_info",
            "set_status",
            "sleep",
            "step_info",
            "timeout",
            "uuid",
        ),
        *("wait_for", "wait_for_any"),
    ),
    "redrive.worker.waits": ("Answer", "Event"),
}


def __getattr__(name: str) -> typing.Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
