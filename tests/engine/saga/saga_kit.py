"""Helpers for the saga tests: external services with actions that can be undone, and a record of all calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engines import OnStore as OnStore

from redrive import NonRetryable, Redrive, RetryPolicy, step_info
from redrive.app import Workflow
from redrive.testing import Engine
from redrive.worker.definitions import Step

ONCE = RetryPolicy(max_retries=0)


class Refused(NonRetryable):
    """Error that an external service raises when it refuses a call."""


@dataclass
class Outside:
    """External services: the calls they received, in order, with results and keys, and the calls that fail."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    keys: dict[str, set[str]] = field(default_factory=dict)
    broken: dict[str, type[Exception]] = field(default_factory=dict)

    def called(self, name: str, about: Any = None) -> None:
        """Record the call of a step or a compensation, and raise if it is broken."""
        self.calls.append((name, about))
        self.keys.setdefault(name, set()).add(step_info().idempotency_key)
        if name in self.broken:
            raise self.broken[name](f"{name} does not work")

    @property
    def names(self) -> list[str]:
        """Names of the steps and compensations that were called, in order."""
        return [name for name, _ in self.calls]

    @property
    def undone(self) -> list[str]:
        """Names of the compensations that were called, in order."""
        return [name for name in self.names if name.startswith(("undo", "cancel"))]


def new_app(**settings: Any) -> Redrive:
    """Return an app on a store in memory."""
    return Redrive("sqlite:///:memory:", **settings)


def deed(
    app: Redrive, outside: Outside, name: str, *, uncertain: bool = False, undo: bool = True, **options: Any
) -> Step[Any, Any]:
    """Register a step `name` that returns `<name> done`, with the compensation `undo_<name>`."""

    async def do(number: int) -> str:
        outside.called(name, number)
        return f"{name} {number} done"

    async def back(number: int, result: str | None) -> None:
        outside.called(f"undo_{name}", result)

    step: Step[Any, Any] = app.step(name=name, **{"retry": ONCE, **options})(do)
    if undo:
        step.compensate(name=f"undo_{name}", uncertain=uncertain, retry=ONCE)(back)
    return step


@dataclass
class Trip:
    """An app with a trip of four steps that can be undone; `outside` says which of them fails."""

    app: Redrive
    outside: Outside
    trip: Workflow[..., Any, Any]
    steps: dict[str, Step[Any, Any]]


def trip(app: Redrive | None = None, *, broken: str = "visa", uncertain: bool = False, **options: Any) -> Trip:
    """Return a trip with rollback on `app`, or on a new app; `options` are options of the workflow."""
    app = app or new_app()
    outside = Outside(broken={broken: Refused} if broken else {})
    steps = {name: deed(app, outside, name, uncertain=uncertain) for name in ("flight", "hotel", "car", "visa")}

    @app.workflow(**{"rollback": True, **options})
    async def travel(number: int) -> list[str]:
        return [await steps[name](number) for name in ("flight", "hotel", "car", "visa")]

    return Trip(app, outside, travel, steps)


async def ledger_of(e: Engine, run_id: str) -> list[tuple[str, str, str]]:
    """Return the ledger of a run as tuples of step, action and status."""
    return [(row.step, row.action, row.status) for row in (await e.app.saga(run_id)).entries]
