"""The activities of a simulated worker: what is under way in it without time being moved."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from redrive.testing.virtual_clock import VirtualClock
from redrive.worker.attempt import Attempt
from redrive.worker.execution import Execution
from redrive.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Activity:
    """Something under way. `may_be_waiting`: it may depend on something that waits for time to pass."""

    what: str
    may_be_waiting: bool = False


def list_activities(worker: Worker, clock: VirtualClock, executing: Collection[Attempt]) -> Iterator[Activity]:
    """Yield everything under way in a worker without time being moved; `executing` are the running attempts."""
    committer, claimer = worker.services[0], worker.services[-1]
    for service in worker.services:
        if service.done() or clock.waits(service):
            continue
        if service is committer:
            if not worker.committer.idle:
                yield Activity("outcomes are being recorded")
        elif service is claimer:
            if worker.is_claiming:
                yield Activity("runs are being claimed")
        elif not clock.waits(committer):  # other services wait for the committer while it waits for the store
            yield Activity("a service of the worker is busy")
    if any(not task.done() and not clock.waits(task) for task in worker.circuits.tasks):
        yield Activity("a circuit is being evaluated")
    if worker.circuits.asking:
        # The store may also be unavailable, and the request may wait for its next try.
        yield Activity("the store is asked for a permit", may_be_waiting=True)
    for execution in worker.executions:
        if not (execution.is_settling and clock.waits(committer)):
            yield from _list_run_activities(execution, clock)
    for attempt in executing:
        run = _describe_run(attempt.execution)
        yield Activity(f"step {attempt.step!r} (attempt {attempt.attempt}) of {run} executes")


def _describe_run(execution: Execution) -> str:
    return f"run {execution.claimed.public_id} of workflow {execution.claimed.workflow!r}"


def _list_run_activities(execution: Execution, clock: VirtualClock) -> Iterator[Activity]:
    run = _describe_run(execution)
    if execution.order.is_checking:
        yield Activity(f"{run} executes")
    # A store that does not answer is asked again after a pause, for which time has to move.
    if execution.calls.is_asking and not any(clock.waits(task) for task in execution.order.branches):
        yield Activity(f"the store is asked for something by {run}", may_be_waiting=bool(execution.suspension))
    if execution.suspension.asleep or execution.ending or execution.dead:
        return
    for task, branch in execution.order.branches.items():
        if task.done() or branch.busy or clock.waits(task):
            continue
        awaited: asyncio.Future[object] | None = getattr(task, "_fut_waiter", None)
        is_runnable = awaited is None or awaited.done()
        if is_runnable and not branch.threaded:
            yield Activity(f"{run} executes")
        elif not branch.live_children:
            # It may wait for another branch (a lock, a queue) that waits for time, or for the real world.
            waits_for_time = bool(execution.open_steps())
            yield Activity(f"{run} waits for something outside of its steps", may_be_waiting=waits_for_time)
