"""Why a run is where it is, in plain sentences, and what can be done about it."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Any, assert_never

from redrive.cli.messages import circuit_hint, hint, worker_hint
from redrive.cli.output import ago, as_json, clean, folded, styled
from redrive.clock import SystemClock
from redrive.core.circuit import CircuitStatus
from redrive.core.failure_reason import LetterCode
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.saga import undone_step
from redrive.core.states import EXECUTED, FINAL, EntryKind, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.desk.models import AttemptRecord, Run, StepRecord
from redrive.desk.runs import Surroundings
from redrive.duration import moment, words

__all__ = ["facts", "payload", "sentences", "story", "timeline"]


# -- Why a run is where it is, in plain sentences, and what can be done about it -------------------------


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


# -- A run drawn in the terminal: a bar for each attempt, dashes where it waited, the decisions in w -----


_NAME = 16
_SIDE = 10  # for the duration on the right
_LEAST = 10
_MARKS = {"SUCCESS": "✓", "FAILED": "✗", "DLQ": "✗", "CANCELLED": "–", "SKIPPED": "–"}
_COLOURS = {"✓": "green", "✗": "red", "–": "bright_black", "…": "yellow"}
_WORK, _WAIT, _BLANK = "█", "╌", " "


def timeline(steps: tuple[StepRecord, ...], *, now: datetime, width: int, over: bool = False) -> list[str]:
    """The lines of the picture, from the first step's beginning to the last one's end, or to now.

    `over`: the run has ended, so that a step without an end was cut short.
    """
    if not steps:
        return ["  no step has begun"]
    scale = _Scale(steps, now, width, over)
    return [line for step in steps for line in _step(step, scale)]


class _Scale:
    """Moments as columns."""

    def __init__(self, steps: tuple[StepRecord, ...], now: datetime, width: int, over: bool) -> None:
        self.now = now
        self.over = over
        self.name = min(_NAME, max(len(_called(step)) for step in steps))
        self.room = max(_LEAST, width - self.name - _SIDE - 6)
        self.width = width
        self._begin = min(step.began_at for step in steps)
        end = max(step.ended_at or max(now, step.began_at) for step in steps)
        self._span = max((end - self._begin).total_seconds(), 0.001)

    def column(self, moment: datetime) -> int:
        """Where a moment is, from 0 to the last column."""
        share = (moment - self._begin).total_seconds() / self._span
        return min(self.room - 1, max(0, int(share * self.room)))


def _step(step: StepRecord, scale: _Scale) -> Iterator[str]:
    mark = "✗" if _cut_short(step, scale) else _MARKS.get(step.status, "…")
    name = clean(_called(step))
    name = name if len(name) <= scale.name else f"{name[: scale.name - 1]}…"
    took = (step.ended_at or max(scale.now, step.began_at)) - step.began_at
    colour = "bright_black" if step.superseded else _COLOURS[mark]
    bar = styled(_bar(step, scale), fg=colour)
    yield f"  {styled(mark, fg=colour)} {name:<{scale.name}} {bar} {words(took.total_seconds()):>{_SIDE}}"
    if step.kind is EntryKind.SLEEP and step.status is not StepStatus.SUCCESS and step.next_at:
        yield from _said(f"waits until {step.next_at:%Y-%m-%d %H:%M:%S} UTC", scale)
    if len(step.attempts) > 1 or step.status is not StepStatus.SUCCESS or step.by_hand:
        yield from _attempts(step, scale)
    if step.by_hand:
        yield from _said("its result was given by hand", scale)
    if _cut_short(step, scale):
        yield from _said(f"attempt {step.attempt} was cut short: it may have happened", scale)
    elif _under_way(step):
        yield from _said(f"attempt {step.attempt} is under way", scale)


def _attempts(step: StepRecord, scale: _Scale) -> Iterator[str]:
    """Each attempt's decision, and its error unless the one before had the same."""
    before = None
    for attempt in step.attempts:
        yield from _said(attempt.decision, scale)
        error = f"{(attempt.error_type or '').removeprefix('builtins.')}: {attempt.message}"
        if attempt.message and error != before:
            yield from _said(error, scale, deeper="  ")
        before = error


def _called(step: StepRecord) -> str:
    """The name, with a mark for what goes back and for what confirms."""
    return {EntryKind.UNDO: "↩ ", EntryKind.CONFIRM: "✔ "}.get(step.kind, "") + step.name


def _under_way(step: StepRecord) -> bool:
    return step.kind in EXECUTED and step.status is StepStatus.RUNNING


def _cut_short(step: StepRecord, scale: _Scale) -> bool:
    return scale.over and _under_way(step)


def _bar(step: StepRecord, scale: _Scale) -> str:
    """Work where an attempt was under way, a wait between attempts and while sleeping."""
    begin = scale.column(step.began_at)
    end = scale.column(step.ended_at or max(scale.now, step.began_at))
    cells = [_BLANK] * scale.room
    for place in range(begin, end + 1):
        cells[place] = _WAIT
    if step.kind is not EntryKind.SLEEP:
        for first, last in _work(step, scale):
            for place in range(first, last + 1):
                cells[place] = _WORK
    return "".join(cells)


def _work(step: StepRecord, scale: _Scale) -> Iterator[tuple[int, int]]:
    for attempt in step.attempts:
        if attempt.status != AttemptEnd.PARKED:
            yield scale.column(attempt.began_at), scale.column(_end(attempt, scale))
    if _under_way(step):
        waited = step.attempts[-1].next_at if step.attempts else None
        yield scale.column(waited or step.began_at), scale.column(scale.now)
    elif not step.attempts:
        yield scale.column(step.began_at), scale.column(step.ended_at or step.began_at)


def _end(attempt: AttemptRecord, scale: _Scale) -> datetime:
    return attempt.ended_at or max(scale.now, attempt.began_at)


def _said(text: str, scale: _Scale, deeper: str = "") -> list[str]:
    indent = " " * (scale.name + 5) + deeper
    return textwrap.wrap(
        clean(" ".join(text.split())),
        max(30, scale.width),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=True,
    )


# -- One run as a person reads it: what it is, how it went, what it was given and what it gave -----------


_COLOURS_STORY = {RunStatus.SUCCESS: "green", RunStatus.RUNNING: "cyan", RunStatus.CANCELLED: "bright_black"}
_LINES = 20  # of a payload
_RETRIED = frozenset({RunStatus.FAILED, RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT, RunStatus.PARTIAL})


def story(run: Run, *, brief: bool = False) -> list[str]:
    """The lines of `runs show`; `brief` leaves out payloads and advice, for the live view."""
    now = moment(SystemClock().now())
    lines = [*_head(run, now), "", *timeline(run.steps, now=now, width=width(), over=run.status in FINAL)]
    if brief:
        return lines
    lines += ["", *payload("input", run.input)]
    if run.status is RunStatus.SUCCESS:
        lines += payload("result", run.output)
    return [*lines, "", *_next(run)]


def width() -> int:
    """The columns there are."""
    return min(140, shutil.get_terminal_size().columns)


def _head(run: Run, now: datetime) -> list[str]:
    colour = _COLOURS_STORY.get(run.status, "red" if run.status in FINAL else "yellow")
    took = (run.finished_at or now) - run.created_at
    return [
        f"run {run.id}  {clean(run.workflow)}  {styled(run.status, fg=colour, bold=True)}",
        *facts(
            created=f"{run.created_at:%Y-%m-%d %H:%M:%S} UTC, {ago(run.created_at)}",
            took=f"{words(max(0.0, took.total_seconds()))}{'' if run.finished_at else ' so far'}",
            next=f"{run.next_at:%Y-%m-%d %H:%M:%S} UTC, {ago(run.next_at)}" if run.next_at else None,
            parked_on=run.parked_on and f"circuit {run.parked_on!r}",
            correlation=run.correlation_id,
            trace=run.trace_id,
            tenant=None if run.tenant == DEFAULT_TENANT else run.tenant,
            parent=run.parent,
            replay_of=run.replay_of,
            handler_for=run.handler_for,
            handled_by=" ".join(run.handled_by) or None,
            crashes=run.crashes or None,
            error=run.error and f"{run.error} ({run.code})",
        ),
    ]


def facts(**values: Any) -> list[str]:
    """Named values, one to a line; those that are None are left out."""
    lines = [
        f"  {name.replace('_', ' '):<12} {clean(' '.join(str(value).split()))}"
        for name, value in values.items()
        if value is not None
    ]
    return [folded(line, sys.stdout, deeper=" " * 13) for line in lines]


def payload(title: str, value: Any) -> list[str]:
    """A payload as indented JSON, cut where it grows long."""
    lines = json.dumps(as_json(value), indent=2, ensure_ascii=False).splitlines()
    if len(lines) > _LINES:
        lines = [*lines[:_LINES], f"… and {len(lines) - _LINES} lines more; --json shows all"]
    return [f"  {title}", *(f"    {clean(line)}" for line in lines)]


def _next(run: Run) -> list[str]:
    if run.status is RunStatus.SUCCESS:
        return []
    back = any(step.kind is EntryKind.UNDO for step in run.steps)
    ledger = [f"  rollback:    {hint('saga', 'show', run.id)}"] if back else []
    if run.status not in FINAL:
        return [
            *ledger,
            f"  follow it:   {hint('runs', 'watch', run.id)}",
            f"  understand:  {hint('runs', 'why', run.id)}",
        ]
    again = [f"  run again:   {hint('runs', 'retry', run.id)}"] if run.status in _RETRIED else []
    again = [] if back else again
    return [*ledger, *again, f"  understand:  {hint('runs', 'why', run.id)}"]
