"""Apps whose steps call a dependency that can be down."""

from __future__ import annotations

from typing import Any

from redrive import Circuit, Redrive, RetryPolicy

__all__ = ["ONCE", "Bank", "bank_app"]

ONCE = RetryPolicy(max_retries=0)


class Bank:
    """A dependency that raises `error` while it is `down`. `calls` counts the calls that reached it."""

    def __init__(self) -> None:
        self.down = False
        self.error: type[Exception] = ConnectionError
        self.calls = 0

    def charge(self, amount: int) -> int:
        """Count the call, and raise if the bank is down."""
        self.calls += 1
        if self.down:
            raise self.error("the bank does not answer")
        return amount


def bank_app(circuit: Circuit | None = None, **options: Any) -> tuple[Redrive, Any, Bank]:
    """Return an app with one step behind a circuit, in one workflow."""
    app, bank = Redrive("sqlite:///:memory:"), Bank()

    @app.step(circuit=circuit or Circuit("payments"), **{"retry": ONCE, **options})
    async def charge(amount: int) -> int:
        return bank.charge(amount)

    @app.workflow
    async def pay(amount: int) -> int:
        return await charge(amount)

    return app, pay, bank
