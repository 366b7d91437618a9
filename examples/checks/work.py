"""The workflows that the checks use. Workers execute them; calls are noted in the folder `CHECK_FOLDER`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redrive
from redrive import ChildFailed, NonRetryable, Redrive, RetryPolicy

FOLDER = Path(os.environ.get("CHECK_FOLDER", "."))
ONCE = RetryPolicy(max_retries=0)

app = Redrive(lease="2s", chores="200ms", hold="200ms", grace="5s")


def note(call: str) -> None:
    """Add a line to the list of calls. All processes append to one file."""
    with (FOLDER / "calls").open("a") as calls:
        calls.write(f"{call}\n")


def list_calls(of: str) -> list[str]:
    """Return the calls about one order, without its name."""
    path = FOLDER / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [call.removesuffix(f" {of}") for call in lines if call.endswith(f" {of}")]


@app.workflow(events={"approved": str})
async def approve(order: str) -> str:
    return await redrive.wait_for("approved", timeout="3d")


@app.step(retry=ONCE)
async def book(order: str) -> str:
    note(f"book {order}")
    if (FOLDER / "broken").exists():
        raise ValueError("the carrier is closed")
    return f"label of {order}"


@app.step
async def pay(order: str) -> str:
    note(f"pay {order}")
    return "paid"


@app.workflow
async def ship(order: str) -> str:
    return await book(order)


@app.workflow
async def fulfil(order: str) -> str:
    await pay(order)
    return await ship.run(order)


@app.workflow
async def careful(order: str) -> str:
    try:
        return await ship.run(order)
    except ChildFailed as error:
        return f"{error.status} {error.category}"


RELEASE = os.environ.get("CHECK_RELEASE", "old")
"""The release of `parcel` that a process has: `old`, `hasty` without a patch, or `patched`."""


@app.step
async def send_by_post(order: str) -> str:
    return f"{order} by post"


@app.step
async def send_by_courier(order: str) -> str:
    return f"{order} by courier"


@app.workflow
async def parcel(order: str) -> str:
    if RELEASE == "hasty" or (RELEASE == "patched" and redrive.patched("courier")):
        sent = await send_by_courier(order)
    else:
        sent = await send_by_post(order)
    await redrive.wait_for("paid", timeout="3d")
    return sent


def reversible(name: str) -> Any:
    """Register a step with a compensation; both note their calls."""

    async def do(order: str) -> str:
        note(f"{name} {order}")
        return name

    async def undo(order: str, result: str) -> None:
        note(f"undo {name} {order}")

    step = app.step(name=name)(do)
    step.compensate(name=f"undo {name}")(undo)
    return step


flight, room, car = reversible("flight"), reversible("room"), reversible("car")


@app.step
async def visa(order: str) -> None:
    note(f"visa {order}")
    raise NonRetryable("refused")


@app.workflow(rollback=True)
async def stay(order: str) -> str:
    return f"{await room(order)} and {await car(order)}"


@app.workflow(rollback=True)
async def travel(order: str) -> None:
    await flight(order)
    await stay.run(order)
    await visa(order)


def note_worker() -> None:
    """Leave a file that says that this process has called a step."""
    (FOLDER / f"worker-{os.getpid()}").touch()


@app.step
async def double(number: int) -> int:
    note_worker()
    return 2 * number


@app.step
async def begin() -> None:
    note_worker()


# `kills` kills so many workers that a run may be executing at three of the deaths, and would be taken for their cause.
KILLED_AT_RANDOM = 1000


@app.workflow(max_crashes=KILLED_AT_RANDOM)
async def compute(number: int) -> int:
    await redrive.sleep(0.1)
    return await double(number)


@app.workflow(max_crashes=KILLED_AT_RANDOM)
async def expect(number: int) -> list[Any]:
    """Wait for an event, for a child, for a person, and for another event."""
    first = await redrive.wait_for("first", type=int)
    await begin()
    doubled = await compute.run(number, queue="children")
    answer = await redrive.ask("Continue?", options=["yes", "no"])
    return [first, doubled, answer.value, await redrive.wait_for("second", type=int)]


@app.step
async def record_answer(order: str) -> None:
    note(f"answered {order} refund")


@app.workflow
async def refund(order: str) -> str:
    answer = await redrive.ask(f"Refund {order}?", options=["approve", "reject"], to="ADMIN", timeout="3d")
    await record_answer(order)
    return str(answer.value)


@dataclass
class Words:
    text: str


@app.step
async def repeat(text: str) -> str:
    redrive.set_status("s3cr3t-status", box="s3cr3t-data")
    return text


@app.workflow
async def echo(text: str) -> str:
    return await repeat(text)


@app.workflow(events={"told": str})
async def secretive(text: str) -> str:
    """Meet a secret in every way in which a run gets one."""
    told = await redrive.wait_for("told", timeout="3d")
    await echo.run(text)
    answer = await redrive.ask("s3cr3t-question", form=Words, show={"data": "s3cr3t-shown"})
    return f"{told} {answer.value.text} {answer.note}"
