"""Random workflows as data: their execution, their expected result, and a generator from a seed.

("act", name, fails, takes)     a step that first fails `fails` times and takes `takes` virtual seconds
("doom", name)                  a step that always fails
("once", name)                  a step that runs at most once
("book", name)                  a transactional step
("sleep", seconds)  ("note",)
("seq", *nodes)  ("all", *nodes)  ("race", *nodes)
("limit", seconds, node)        a durable time limit
("try", node)                   continue if a step failed
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redrive
from redrive import Circuit, Redrive, RetryPolicy, StepFailed, step_info
from redrive.testing import VirtualClock

Node = tuple[Any, ...]

POLICY = RetryPolicy(max_retries=3, base_delay=2, factor=2, max_delay=60, jitter=0.5)
DOOM = RetryPolicy(max_retries=2, base_delay=1, factor=3, max_delay=60, jitter=0.2)
TIME_MATTERS = frozenset({"race", "limit"})


class Sim:
    """An app whose one workflow executes programs, with a record of its calls."""

    def __init__(self, clock: VirtualClock, circuit: Circuit | None = None) -> None:
        self.clock = clock
        self.keys: dict[tuple[str, str], set[str]] = {}
        self.bodies: list[tuple[str, str]] = []
        self.app = app = Redrive("sqlite:///never-opened.db", lease="20s", grace="10s", hold="3s")

        @app.step(retry=POLICY, timeout="5m", circuit=circuit)
        async def act(name: str, fails: int, takes: float) -> str:
            self._seen(name)
            if takes:
                await clock.sleep(takes)
            if step_info().attempt <= fails:
                raise ConnectionError(f"{name}: not yet")
            return f"did {name}"

        @app.step(retry=DOOM)
        async def doom(name: str) -> str:
            self._seen(name)
            raise TimeoutError(f"{name}: never")

        @app.step(at_most_once=True)
        async def once(name: str) -> str:
            self._seen(name)
            return f"once {name}"

        @app.step(transactional=True)
        async def book(tx: Any, run: str, name: str) -> str:
            self._seen(name)
            await tx.execute("CREATE TABLE IF NOT EXISTS bookings (run TEXT, name TEXT)")
            await tx.execute("INSERT INTO bookings VALUES (?, ?)", run, name)
            return f"booked {name}"

        @app.workflow(max_crashes=1000)
        async def play(program: list[Any]) -> Any:
            return await perform(program)

        async def perform(node: Any) -> Any:
            match node:
                case ["act", name, fails, takes]:
                    return await act(name, fails, takes)
                case ["doom", name]:
                    return await doom(name)
                case ["once", name]:
                    return await once(name)
                case ["book", name]:
                    return await book(redrive.run_info().run_id, name)
                case ["sleep", seconds]:
                    await redrive.sleep(seconds)
                    return "slept"
                case ["note"]:
                    return [redrive.random() >= 0, str(redrive.now())[:2]]
                case ["seq", *nodes]:
                    return [await perform(each) for each in nodes]
                case ["all", *nodes]:
                    return list(await asyncio.gather(*(perform(each) for each in nodes)))
                case ["race", name, *nodes]:
                    return await race(name, nodes)
                case ["limit", name, seconds, inner]:
                    return await limited(name, seconds, inner)
                case ["try", inner]:
                    try:
                        return await perform(inner)
                    except StepFailed as failed:
                        return f"{failed.step} failed"
                case _:
                    raise AssertionError(f"no program: {node!r}")

        async def race(name: str, nodes: list[Any]) -> Any:
            tasks = [asyncio.create_task(perform(each)) for each in nodes]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            winner = min(tasks.index(task) for task in done)
            losers = [task for task in tasks if task in pending]
            for task in losers:
                task.cancel()
            await asyncio.gather(*losers, return_exceptions=True)
            # The step records what the run saw: a resumed run must see the same again.
            return [winner, len(done), await act(f"{name} winner {winner} of {len(done)}", 0, 0)]

        async def limited(name: str, seconds: float, inner: Any) -> Any:
            seen = "in time"
            try:
                async with redrive.timeout(seconds):
                    await perform(inner)
            except TimeoutError:
                seen = "too late"
            return [seen, await act(f"{name} was {seen}", 0, 0)]

        self.play = play

    def _seen(self, name: str) -> None:
        info = step_info()
        self.bodies.append((info.run_id, name))
        self.keys.setdefault((info.run_id, name), set()).add(info.idempotency_key)


@dataclass(slots=True)
class Writer:
    """Writes a program and gives each step a unique name."""

    rng: random.Random
    favourites: tuple[str, ...] = ()
    number: int = 0

    def program(self) -> Node:
        return ("seq", *(self._node(depth=2) for _ in range(self.rng.randint(1, 4))))

    def _nodes(self, depth: int) -> list[Node]:
        return [self._node(depth) for _ in range(self.rng.randint(1, 3))]

    def _name(self) -> str:
        self.number += 1
        return f"n{self.number}"

    def _node(self, depth: int) -> Node:
        kinds = ["act"] * 5 + ["sleep", "note", "once", "book", "doom"]
        if depth:
            kinds += ["all", "all", "race", "limit", "try", "try", "seq", *self.favourites * 3]
        match self.rng.choice(kinds):
            case "act":
                return ("act", self._name(), self.rng.choice([0, 0, 0, 1, 2, 3]), self.rng.choice([0, 0, 0, 0.5, 7]))
            case "sleep":
                return ("sleep", self.rng.choice([0, 0.5, 2, 30, 90_000]))
            case "note":
                return ("note",)
            case "doom":
                return ("try", ("doom", self._name())) if self.rng.random() < 0.8 else ("doom", self._name())
            case "try":
                return ("try", self._node(depth - 1))
            case "limit":
                return ("limit", self._name(), self.rng.choice([0.2, 5, 60]), self._node(depth - 1))
            case "race":
                return ("race", self._name(), *self._nodes(depth - 1))
            case "all" | "seq" as kind:
                return (kind, *self._nodes(depth - 1))
            case kind:
                return (kind, self._name())


def leaves(node: Node) -> Iterator[Node]:
    """Yield the parts of a program, including the program."""
    yield node
    for part in node[1:]:
        if isinstance(part, tuple):
            yield from leaves(part)


def time_matters(program: Node) -> bool:
    """Return True if the result of a program depends on how long its steps take."""
    return any(part[0] in TIME_MATTERS for part in leaves(program))


class Failed(Exception):
    """The failure of a program, in this step."""

    @property
    def step(self) -> str:
        return str(self)


def expected(program: Node) -> Any:
    """Return the result of a program when time does not matter, or a Failed if it fails."""
    try:
        return _expected(program)
    except Failed as failed:
        return failed


def _expected(node: Node) -> Any:
    match node:
        case ("act", name, _, _):
            return f"did {name}"
        case ("doom", _):
            raise Failed("doom")
        case ("once", name):
            return f"once {name}"
        case ("book", name):
            return f"booked {name}"
        case ("sleep", _):
            return "slept"
        case ("note",):
            return [True, "20"]
        case ("seq" | "all", *nodes):
            return [_expected(each) for each in nodes]
        case ("try", inner):
            try:
                return _expected(inner)
            except Failed as failed:
                return f"{failed.step} failed"
        case _:
            raise AssertionError(f"what {node!r} comes to is a matter of time")
