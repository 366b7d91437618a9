"""Orders in two processes: one starts runs, as a web application would; the other executes them.

In this folder, in two terminals:

    redrive worker orders:app
    python orders.py A-1042 19.90

Stop the worker in the middle and start it again: the order goes on where it was. Start the same order
twice: there is one run.
"""

# ruff: noqa: T201 - a script for the terminal

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from decimal import Decimal

import redrive
from redrive import Redrive, RetryPolicy, step_info

app = Redrive("sqlite:///orders.db")


@dataclass
class Order:
    id: str
    price: Decimal


@app.step(retry=RetryPolicy(max_retries=5, base_delay="1s"), timeout="10s", effect="charges the card")
async def charge(order: Order) -> str:
    if step_info().attempt == 1:
        raise ConnectionError("the bank did not answer")
    return f"payment for {order.price}, key {step_info().idempotency_key}"


@app.step(effect="sends a parcel")
def ship(order: Order) -> str:  # a plain function runs in a thread
    return f"parcel {order.id}"


@app.workflow
async def fulfil(order: Order) -> str:
    await charge(order)
    await redrive.sleep("2s")
    parcel: str = await ship(order)
    return parcel


async def main(id: str, price: str) -> None:
    async with app.client():
        handle = await fulfil.start(Order(id, Decimal(price)), idempotency_key=id)
        print(f"run {handle.id}, waiting for its end")
        print(await handle.result(timeout="1m"))
        for step in (await handle.describe()).steps:
            for attempt in step.attempts:
                print(f"  {step.name}: {attempt.decision}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
