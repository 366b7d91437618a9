"""Why a run is where it is, in plain sentences, and what can be done about it."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from redrive.cli.hints import circuit_hint, hint, worker_hint
from redrive.core.circuit import CircuitStatus
from redrive.core.ending import LetterCode
from redrive.core.saga import undone_step
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.desk.around import Surroundings
from redrive.desk.shapes import Run, StepRecord
from redrive.duration import words

__all__ = ["sentences"]


def sentences(run: Run, around: Surroundings) -> list[str]:
    """Where the run stands, why, until when, and the next command to type."""
    match run.status:
        case RunStatus.PENDING | RunStatus.SLEEPING:
            said = [*_waiting(run, around), *_obstacles(run, around)]
        case RunStatus.RUNNING:
            said = _running(run, around)
        case RunStatus.COMPENSATING:
            said = _going_back(run, around)
        case RunStatus.SUCCESS:
            said = [f"It succeeded at {_clock(run.finished_at)}. There is nothing to do."]
        case RunStatus.CANCELLED:
            said = [f"It was cancelled at {_clock(run.finished_at)}{_because(run)}."]
        case RunStatus.COMPENSATED:
            said = [
                f"It failed, and what it had done was undone, at {_clock(run.finished_at)}{_because(run)}.",
                *_left_open(run),
            ]
        case RunStatus.PARTIAL:
            said = [
                "One step of it was run again by hand. More would follow. "
                f"To go on: {hint('runs', 'retry', run.id)}"
            ]
        case RunStatus.FAILED | RunStatus.DLQ_PENDING | RunStatus.TIMED_OUT:
            said = _failed(run)
        case other:
            assert_never(other)
    return said + _crashes(run)


def _waiting(run: Run, around: Surroundings) -> list[str]:
    if run.parked_on:
        return _parked(run.parked_on, around)
    due = run.next_at
    if due is None or due <= around.now:
        late = "" if due is None else f", since {words((around.now - due).total_seconds())}"
        return [f"It is due{late}, and waits for a worker to take it."]
    when = f"{_clock(due)}, in {words((due - around.now).total_seconds())}"
    step = next((step for step in reversed(run.steps) if _is_open(step)), None)
    if step is None:
        return [f"It was started with a delay and begins at {when}."]
    if step.kind is EntryKind.SLEEP:
        return [f"It sleeps until {when}, because the workflow said so."]
    if step.attempts:
        return [f"It waits to try step {step.name!r} again at {when}. {_last(step)}"]
    return [f"It goes on at {when}."]


def _parked(key: str, around: Surroundings) -> list[str]:
    said = [f"It is parked: circuit {key!r} is open, and it goes on when that closes."]
    circuit = around.circuit
    if circuit is None:
        return said
    if circuit.status is not CircuitStatus.OPEN:
        said = [f"It is parked on circuit {key!r}, which lets calls through again: it goes on in its turn."]
    why = f": {circuit.why}" if circuit.why else ""
    said.append(f"The circuit is {circuit.status} since {_clock(circuit.changed_at)}{why}.")
    if circuit.until is not None:
        said.append(f"It lets a few calls through as a test from {_clock(circuit.until)} on.")
    elif circuit.status is CircuitStatus.OPEN:
        said.append(f"It stays open until somebody closes it: {circuit_hint('close', key, circuit.tenant)}")
    waiting = _count(circuit.parked, "run waits", "runs wait")
    said.append(f"{waiting} for it: {circuit_hint('show', key, circuit.tenant)}")
    return said


def _obstacles(run: Run, around: Surroundings) -> list[str]:
    said: list[str] = []
    if around.paused_by is not None:
        said.append(
            f"Workflow {run.workflow!r} was paused by {around.paused_by}: nobody takes its runs. "
            f"To go on: {hint('workflows', 'resume', run.workflow)}"
        )
    if not around.workers:
        said.append(f"No worker is alive. Start one: {worker_hint()}")
    elif not around.able:
        said.append(
            f"{_count(around.workers, 'worker is', 'workers are')} alive, but none has workflow "
            f"{run.workflow!r} registered. Start one that has: {worker_hint()}"
        )
    if around.diverged:
        said.append(
            f"Its journal does not fit the code of the workers that tried it: it waits for one with version "
            f"{run.version}, and becomes a dead letter if none comes (REDRIVE_CODE_WAIT)."
        )
    if run.deadline is not None:
        said.append(f"It has until {_clock(run.deadline)} to end.")
    return said


def _running(run: Run, around: Surroundings) -> list[str]:
    under_way = [step for step in run.steps if step.status is StepStatus.RUNNING]
    said = [
        f"A worker executes step {step.name!r}, attempt {step.attempt}, begun "
        f"{words(max(0.0, (around.now - step.began_at).total_seconds()))} ago. {_last(step)}".rstrip()
        for step in under_way
    ]
    waits = [step for step in run.steps if step.status is StepStatus.RETRYING]
    said += [f"Step {step.name!r} waits for its next attempt. {_last(step)}".rstrip() for step in waits]
    if not said:
        said = ["A worker has it and executes the workflow's own code, between two steps."]
    if not around.workers:
        said.append(
            f"No worker is alive: the one that had it is gone. The next one takes it over: {worker_hint()}"
        )
    return said


def _going_back(run: Run, around: Surroundings) -> list[str]:
    """A rollback: how far it is, and whom it waits for."""
    undone = [step for step in run.steps if step.kind is EntryKind.UNDO and not step.superseded]
    over = sum(step.ended_at is not None for step in undone)
    said = [f"What it did is being undone{_because(run)}. {over} of {len(undone)} are done."]
    task = next((step for step in undone if step.status is StepStatus.RUNNING), None)
    waits = [step for step in undone if step.status is StepStatus.RETRYING]
    if task is not None and run.next_at is None and isinstance(task.output, str):
        said.append(f"It waits for a person: {task.output}")
        said.append(f"When that is done: {hint('saga', 'done', run.id, task.key.rpartition('/')[0])}")
    elif task is not None:
        said.append(f"A worker executes {task.name!r}, attempt {task.attempt}. {_last(task)}".rstrip())
    elif waits:
        said += [f"{step.name!r} waits for its next attempt. {_last(step)}".rstrip() for step in waits]
    else:
        said += _obstacles(run, around)
    return [*said, f"All of it: {hint('saga', 'show', run.id)}"]


def _left_open(run: Run) -> list[str]:
    """Steps of which nobody knows whether they happened, and which nobody undid."""
    return [
        f"Nobody knows whether {undone_step(step.key)!r} happened, so it was not undone: find out."
        for step in run.steps
        if step.kind is EntryKind.UNDO and step.status is StepStatus.SKIPPED and step.attempt == 0
    ]


def _failed(run: Run) -> list[str]:
    if run.code == LetterCode.COMPENSATION_FAILED:
        return [
            f"It was being rolled back, and that stopped at {_clock(run.finished_at)}{_because(run)}.",
            f"What is undone and what is not: {hint('saga', 'show', run.id)}",
            f"When the cause is mended, go on: {hint('saga', 'resume', run.id)}",
        ]
    said = [f"It ended at {_clock(run.finished_at)}{_because(run)}."]
    failed = next((s for s in reversed(run.steps) if s.status in {StepStatus.FAILED, StepStatus.DLQ}), None)
    if failed is not None and failed.attempts:
        last = failed.attempts[-1]
        said.append(f"The last error of step {failed.name!r} was {last.error_type}: {last.message}")
        said.append(f"The decision: {last.decision}.")
    if run.letter_id:
        said.append(f"Its dead letter has everything: {hint('dlq', 'show', run.letter_id)}")
    if run.letter_id and run.status is not RunStatus.FAILED:
        said.append(f"When the cause is mended, run it again: {hint('dlq', 'replay', run.letter_id)}")
    else:
        said.append(f"When the cause is mended, run it again: {hint('runs', 'retry', run.id)}")
    return said


def _crashes(run: Run) -> list[str]:
    if not run.crashes:
        return []
    return [f"{_count(run.crashes, 'worker', 'workers')} died while holding it."]


def _last(step: StepRecord) -> str:
    return f"The last attempt: {step.attempts[-1].decision}." if step.attempts else ""


def _is_open(step: StepRecord) -> bool:
    return step.status in {StepStatus.PENDING, StepStatus.RUNNING, StepStatus.RETRYING}


def _because(run: Run) -> str:
    return f": {run.error}" if run.error else ""


def _clock(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
