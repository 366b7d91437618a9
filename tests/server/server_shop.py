"""A shop for the server's tests: workflows that succeed, fail, roll back or publish, with secret inputs."""

from __future__ import annotations

import redrive
from redrive import Message, NonRetryable, Redrive, Schedule

app = Redrive()


@app.step(effect="charges a card")
async def charge(order: str, amount: int, api_key: str) -> str:
    if amount > 100:
        raise NonRetryable(f"{amount} is too much")
    return f"paid {amount}"


@app.workflow(index=["order", "api_key"], timeout="1h")
async def fulfil(order: str, amount: int = 1, api_key: str = "") -> str:
    return await charge(order, amount, api_key)


@app.workflow(schedule=Schedule("0 0 29 2 *", tenant="acme", name="daily"))
async def remind(to: str = "") -> None:
    return None


@app.workflow
async def refund(name: str = "jo", cents: int = 40, apart: bool = False) -> str:
    shown = {"name": name, "api_key": "k3y-s3cr3t"}
    question, by = f"Refund {cents} to {name}?", redrive.run_info().started_by if apart else None
    asked = redrive.ask(question, options=["approve", "reject"], show=shown, to="ADMIN", apart_from=by)
    return str((await asked).value)


@app.step
async def reserve(order: str) -> str:
    return f"reserved {order}"


@reserve.compensate
async def release(order: str, result: str) -> None:
    raise NonRetryable("the warehouse is closed")


@app.workflow(rollback=True)
async def book(order: str) -> str:
    await redrive.publish("orders.booked", {"order": order, "api_key": "k3y-s3cr3t"}, key=order)
    await reserve(order)
    return await charge(order, 1000, "")


@app.subscribe("orders.*", name="till")
async def tell(message: Message) -> None:
    raise NonRetryable("the till is shut")
