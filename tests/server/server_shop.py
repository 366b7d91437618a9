"""A shop for the server's tests: one workflow that succeeds, one that fails, with a secret in its input."""

from __future__ import annotations

from redrive import NonRetryable, Redrive

app = Redrive()


@app.step(effect="charges a card")
async def charge(order: str, amount: int, api_key: str) -> str:
    if amount > 100:
        raise NonRetryable(f"{amount} is too much")
    return f"paid {amount}"


@app.workflow(index=["order"], timeout="1h")
async def fulfil(order: str, amount: int = 1, api_key: str = "") -> str:
    return await charge(order, amount, api_key)


@app.workflow
async def remind(to: str = "") -> None:
    return None
