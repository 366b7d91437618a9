"""What the desk's tests share: steps whose every call is written down, and ways to look at all rows."""

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
    """What the outside world answers when it will not."""


@dataclass
class Ledger:
    """The outside world: who was called, with which idempotency key; and what it refuses to do."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def called(self, name: str) -> None:
        """A step reached the outside world."""
        self.calls.append((name, step_info().idempotency_key))
        if name in self.broken:
            raise Declined(f"{name} is down")

    @property
    def names(self) -> list[str]:
        """Who was called, in order."""
        return [name for name, _ in self.calls]

    @property
    def counts(self) -> Counter[str]:
        """How often each was called."""
        return Counter(self.names)

    def keys(self, name: str) -> list[str]:
        """The idempotency keys that calls of a step carried, each once, in order."""
        return list(dict.fromkeys(key for called, key in self.calls if called == name))

    def since(self) -> list[str]:
        """Who was called since this was asked last."""
        names = self.names[getattr(self, "_seen", 0) :]
        self._seen = len(self.calls)
        return names


def new_app(**settings: Any) -> Redrive:
    """An app on a store in memory."""
    return Redrive("sqlite:///:memory:", **settings)


@dataclass
class Shop:
    """An order that is reserved, charged and shipped; the ledger says which of these goes wrong."""

    app: Redrive
    ledger: Ledger
    order: Workflow[..., Any, Any]


def shop(app: Redrive | None = None, *, broken: str = "charge", **options: Any) -> Shop:
    """A shop on an app of its own. `options` are those of the workflow."""
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
    """Run a workflow into its dead letter."""
    report = await e.run(workflow, *args, **options)
    assert report.status in ("DLQ_PENDING", "TIMED_OUT"), report
    assert report.letter is not None
    return report.letter


async def ended(e: Engine, run_id: str) -> RunReport:
    """How a run came to its end."""
    workflow = (await e.app.runs.get(run_id)).workflow
    return await e.finish(e.app.handle(run_id, workflow))


async def statuses(e: Engine, letter: DeadLetter) -> tuple[str, str]:
    """How the letter and the run it is about stand."""
    now = await e.app.dlq.get(letter.id)
    return str(now.status), str((await e.app.runs.get(now.run_id)).status)


async def events(e: Engine, letter: DeadLetter) -> list[tuple[str, str]]:
    """The letter's history: what happened, by whom."""
    return [(line.event, line.by) for line in (await e.app.dlq.get(letter.id)).history]


async def dump(e: Engine) -> dict[str, list[dict[str, Any]]]:
    """Every row that a decision could touch."""
    return {table: await e.fetch(f"SELECT * FROM {table}") for table in TABLES}
