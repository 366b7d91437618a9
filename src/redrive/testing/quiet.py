"""What still goes on in a worker: how a test that moves time knows that everything waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator

from redrive.frozen import dataclass
from redrive.testing.clock import VirtualClock
from redrive.worker.attempt import Attempt
from redrive.worker.execution import Execution
from redrive.worker.worker import Worker

__all__ = ["Doing", "doings"]


@dataclass(frozen=True, slots=True)
class Doing:
    """Something that goes on. `perhaps`: it may as well be waiting for something that waits for time."""

    what: str
    perhaps: bool = False


def doings(worker: Worker, clock: VirtualClock, executing: Collection[Attempt]) -> Iterator[Doing]:
    """All that goes on in a worker without time being moved; `executing` are the attempts under way."""
    committer, claiming = worker.services[0], worker.services[-1]
    for service in worker.services:
        if service.done() or clock.waits(service):
            continue
        if service is committer:
            if not worker.committer.idle:
                yield Doing("outcomes are being recorded")
        elif service is claiming:
            if worker.is_claiming:
                yield Doing("runs are being claimed")
        elif not clock.waits(committer):  # for which it waits, if that waits for the store
            yield Doing("the worker is putting things in order")
    if any(not task.done() and not clock.waits(task) for task in worker.circuits.tasks):
        yield Doing("a circuit is being weighed")
    if worker.circuits.asking:
        yield Doing("the store is asked for a permit", perhaps=True)  # or does not answer for a while
    for execution in worker.executions:
        if not (execution.settling and clock.waits(committer)):
            yield from _in_run(execution, clock)
    for attempt in executing:
        yield Doing(
            f"step {attempt.step!r} (attempt {attempt.attempt}) of {_name(attempt.execution)} executes"
        )


def _name(execution: Execution) -> str:
    return f"run {execution.claimed.public_id} of workflow {execution.claimed.workflow!r}"


def _in_run(execution: Execution, clock: VirtualClock) -> Iterator[Doing]:
    if execution.order.is_checking:
        yield Doing(f"{_name(execution)} executes")
    if execution.waits.asleep or execution.ending or execution.dead:
        return
    if execution.requests.is_starting:
        yield Doing(f"{_name(execution)} starts another run")
    for task, branch in execution.order.branches.items():
        if task.done() or branch.busy or clock.waits(task):
            continue
        if _is_runnable(task) and not branch.threaded:
            yield Doing(f"{_name(execution)} executes")
        elif not branch.live_children:
            # It may wait for another branch (a lock, a queue) that waits for time, or for the real world.
            waits_for_time = bool(execution.open_steps())
            yield Doing(f"{_name(execution)} waits for something that is no step", perhaps=waits_for_time)


def _is_runnable(task: asyncio.Future[object]) -> bool:
    waits_for: asyncio.Future[object] | None = getattr(task, "_fut_waiter", None)
    return waits_for is None or waits_for.done()
