"""What a transactional step is given as `tx`."""

from __future__ import annotations

from typing import Any

from redrive.store.port import Transaction

__all__ = ["Tx"]


class Tx:
    """SQL in the transaction that records the step: it commits with the step's result, or not at all.

    Placeholders are the store's own: `?` on SQLite, `$1` on PostgreSQL.
    """

    __slots__ = ("_transaction",)

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def execute(self, statement: str, *params: Any) -> int:
        """Run a statement; return the number of rows it changed."""
        return await self._transaction.execute(statement, *params)

    async def fetch(self, statement: str, *params: Any) -> list[dict[str, Any]]:
        """Run a query; return all its rows."""
        return await self._transaction.fetch(statement, *params)

    async def fetchrow(self, statement: str, *params: Any) -> dict[str, Any] | None:
        """Run a query; return its first row, or None."""
        return await self._transaction.fetchrow(statement, *params)
