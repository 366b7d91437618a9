"""Faults at every store call of a run, one at a time and of every kind, in virtual time.

The kinds: the worker dies after the call, the store does not answer, or its answer is lost. A point is
the number of a call, counted from the start of its worker.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from redrive import Redrive
from redrive.app import Workflow
from redrive.testing import Crash, Hang, RunReport, engine, faults
from redrive.testing.faulty_store import FAIL, LOSE, Call, Fault, Plan, crash_after, crash_before

__all__ = ["Outcome", "everywhere"]

_OURS = frozenset({"claim", "apply"})  # calls that a worker makes for a run; the others are for the worker itself
Build = Callable[[], tuple[Redrive, Workflow[..., Any, Any]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run that ended; `where` names its fault, or is "" for the run without a fault."""

    where: str
    report: RunReport
    deaths: int


async def everywhere(build: Build, *, hangs: str = "") -> AsyncIterator[Outcome]:
    """Run the workflow of `build` without a fault, then once for each point and kind of fault.

    `hangs` names a step that never returns by itself.
    """
    seen: list[str] = []

    def watch(call: Call) -> Fault | None:
        if call.name in _OURS:
            seen.append(f"{call.name} #{call.of_name}")
        return None

    clean = await _run(build, hangs, watch, "")
    points = list(seen)
    yield clean
    assert clean.report.status == "SUCCESS", clean.report.error
    assert len(points) > 2
    # A death before a call equals a death after the previous one. `./dev prove` tries both.
    before: dict[str, Callable[[], Fault]] = {"death before": lambda: crash_before(Crash())}
    manners: dict[str, Callable[[], Fault]] = {
        **(before if os.environ.get("REDRIVE_CRASHES") == "all" else {}),
        "death after": lambda: crash_after(Crash()),
        "no answer to": lambda: FAIL,
        "lost answer to": lambda: LOSE,
    }
    for point in points:
        for name, manner in manners.items():
            went = await _run(build, hangs, _once(point, manner()), f"{name} {point}")
            assert went.deaths == ("death" in name), went.where
            yield went


async def _run(build: Build, hangs: str, plan: Plan, where: str) -> Outcome:
    app, workflow = build()
    async with engine(app, plan=plan) as e:
        with faults(step=hangs, fail=[Hang] * 9, strict=False):
            report = await e.run(workflow)
        return Outcome(where, report, e.crashes)


def _once(point: str, fault: Fault) -> Plan:
    left = [fault]

    def plan(call: Call) -> Fault | None:
        return left.pop() if left and f"{call.name} #{call.of_name}" == point else None

    return plan
