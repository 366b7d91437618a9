"""Helpers for the desk's tests: a workflow whose calls are recorded, and functions that read all rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from redrive import Redrive, RetryPolicy, step_info
from redrive.app import Workflow
from redrive.desk.models import DeadLetter
from redrive.testing import Engine, RunReport

ONCE = RetryPolicy(max_retries=0)
TABLES = ("runs", "inputs", "results", "entries", "attempts", "letters", "replays", "audit")


class Declined(Exception):
    """Error that an external service raises when it refuses a call."""


@dataclass
class Ledger:
    """External services: the calls they received, with idempotency keys, and the calls that they refuse."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def called(self, name: str) -> None:
        """Record the call of a step, and raise if that step is broken."""
        self.calls.append((name, step_info().idempotency_key))
        if name in self.broken:
            raise Declined(f"{name} is down")

    @property
    def names(self) -> list[str]:
        """Names of the steps that were called, in order."""
        return [name for name, _ in self.calls]

    @property
    def counts(self) -> Counter[str]:
        """Number of calls of each step."""
        return Counter(self.names)

    def keys(self, name: str) -> list[str]:
        """Return the idempotency keys of a step's calls, each once, in order."""
        return list(dict.fromkeys(key for called, key in self.calls if called == name))

    def since(self) -> list[str]:
        """Return the names of the steps that were called since the last call of this method."""
        names = self.names[getattr(self, "_seen", 0) :]
        self._seen = len(self.calls)
        return names


def new_app(**settings: Any) -> Redrive:
    """Return an app on a store in memory."""
    return Redrive("sqlite:///:memory:", **settings)


@dataclass
class Shop:
    """An app with an order that is reserved, charged and shipped; the ledger says which step fails."""

    app: Redrive
    ledger: Ledger
    order: Workflow[..., Any, Any]


def shop(app: Redrive | None = None, *, broken: str = "charge", **options: Any) -> Shop:
    """Return a shop on `app`, or on a new app. `options` are options of the workflow."""
    app = app or new_app()
    ledger = Ledger(broken={broken} if broken else set())

    @app.step(retry=ONCE)
    async def reserve(item: str) -> str:
        ledger.called("reserve")
        return f"{item} reserved"

    @app.step(retry=ONCE, effect="charges the card")
    async def charge(amount: int) -> str:
        ledger.called("charge")
        return f"{amount} charged"

    @app.step(retry=ONCE)
    async def ship(item: str) -> str:
        ledger.called("ship")
        return f"{item} shipped"

    @app.workflow(**options)
    async def order(item: str, amount: int) -> list[str]:
        return [await reserve(item), await charge(amount), await ship(item)]

    return Shop(app, ledger, order)


async def failed(e: Engine, workflow: Workflow[..., Any, Any], *args: Any, **options: Any) -> DeadLetter:
    """Run a workflow that fails, and return its dead letter."""
    report = await e.run(workflow, *args, **options)
    assert report.status in ("DLQ_PENDING", "TIMED_OUT"), report
    assert report.letter is not None
    return report.letter


async def ended(e: Engine, run_id: str) -> RunReport:
    """Wait for the end of a run and return its report."""
    workflow = (await e.app.runs.get(run_id)).workflow
    return await e.finish(e.app.handle(run_id, workflow))


async def statuses(e: Engine, letter: DeadLetter) -> tuple[str, str]:
    """Return the status of a letter and the status of its run."""
    now = await e.app.dlq.get(letter.id)
    return str(now.status), str((await e.app.runs.get(now.run_id)).status)


async def events(e: Engine, letter: DeadLetter) -> list[tuple[str, str]]:
    """Return the letter's history as pairs of event and user."""
    return [(line.event, line.by) for line in (await e.app.dlq.get(letter.id)).history]


async def dump(e: Engine) -> dict[str, list[dict[str, Any]]]:
    """Return every row that a decision could change."""
    return {table: await e.fetch(f"SELECT * FROM {table}") for table in TABLES}
