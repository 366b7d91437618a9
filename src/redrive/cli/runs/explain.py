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
from redrive.cli.output import as_json, escape_line, fold_text, format_age, style_text
from redrive.clock import SystemClock
from redrive.core.circuit import CircuitStatus
from redrive.core.failure_reason import LetterCode
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.saga import undone_step_name
from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, EntryKind, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.desk.models import AttemptRecord, Run, StepRecord
from redrive.desk.runs import RunContext
from redrive.duration import format_duration, to_datetime

# -- Why a run is where it is, in plain sentences, and what can be done about it -------------------------


def explain_run(run: Run, around: RunContext) -> list[str]:
    """Where the run stands, why, until when, and the next command to type."""
    match run.status:
        case RunStatus.PENDING | RunStatus.SLEEPING:
            said = [*_explain_waiting(run, around), *_explain_obstacles(run, around)]
        case RunStatus.RUNNING:
            said = _explain_running(run, around)
        case RunStatus.COMPENSATING:
            said = _explain_rollback(run, around)
        case RunStatus.SUCCESS:
            said = [f"It succeeded at {_format_time(run.finished_at)}. There is nothing to do."]
        case RunStatus.CANCELLED:
            said = [f"It was cancelled at {_format_time(run.finished_at)}{_format_error_suffix(run)}."]
        case RunStatus.COMPENSATED:
            said = [
                f"It failed, and what it had done was undone, at {_format_time(run.finished_at)}{_format_error_suffix(run)}.",
                *_explain_uncertain_steps(run),
            ]
        case RunStatus.PARTIAL:
            said = [
                f"One step of it was run again by hand. More would follow. To go on: {hint('runs', 'retry', run.id)}"
            ]
        case RunStatus.FAILED | RunStatus.DLQ_PENDING | RunStatus.TIMED_OUT:
            said = _explain_failed(run)
        case other:
            assert_never(other)
    return said + _explain_crashes(run)


def _explain_waiting(run: Run, around: RunContext) -> list[str]:
    if run.parked_on:
        return _explain_parked(run.parked_on, around)
    due = run.next_at
    if due is None or due <= around.now:
        late = "" if due is None else f", since {format_duration((around.now - due).total_seconds())}"
        return [f"It is due{late}, and waits for a worker to take it."]
    when = f"{_format_time(due)}, in {format_duration((due - around.now).total_seconds())}"
    step = next((step for step in reversed(run.steps) if _is_unfinished(step)), None)
    if step is None:
        return [f"It was started with a delay and begins at {when}."]
    if step.kind is EntryKind.SLEEP:
        return [f"It sleeps until {when}, because the workflow said so."]
    if step.attempts:
        return [f"It waits to try step {step.name!r} again at {when}. {_describe_last_attempt(step)}"]
    return [f"It goes on at {when}."]


def _explain_parked(key: str, around: RunContext) -> list[str]:
    said = [f"It is parked: circuit {key!r} is open, and it goes on when that closes."]
    circuit = around.circuit
    if circuit is None:
        return said
    if circuit.status is not CircuitStatus.OPEN:
        said = [f"It is parked on circuit {key!r}, which lets calls through again: it goes on in its turn."]
    why = f": {circuit.why}" if circuit.why else ""
    said.append(f"The circuit is {circuit.status} since {_format_time(circuit.changed_at)}{why}.")
    if circuit.until is not None:
        said.append(f"It lets a few calls through as a test from {_format_time(circuit.until)} on.")
    elif circuit.status is CircuitStatus.OPEN:
        said.append(f"It stays open until somebody closes it: {circuit_hint('close', key, circuit.tenant)}")
    waiting = _format_count(circuit.parked, "run waits", "runs wait")
    said.append(f"{waiting} for it: {circuit_hint('show', key, circuit.tenant)}")
    return said


def _explain_obstacles(run: Run, around: RunContext) -> list[str]:
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
            f"{_format_count(around.workers, 'worker is', 'workers are')} alive, but none has workflow "
            f"{run.workflow!r} registered. Start one that has: {worker_hint()}"
        )
    if around.diverged:
        said.append(
            f"Its journal does not fit the code of the workers that tried it: it waits for one with version "
            f"{run.version}, and becomes a dead letter if none comes (REDRIVE_CODE_WAIT)."
        )
    if run.deadline is not None:
        said.append(f"It has until {_format_time(run.deadline)} to end.")
    return said


def _explain_running(run: Run, around: RunContext) -> list[str]:
    under_way = [step for step in run.steps if step.status is StepStatus.RUNNING]
    said = [
        f"A worker executes step {step.name!r}, attempt {step.attempt}, begun "
        f"{format_duration(max(0.0, (around.now - step.began_at).total_seconds()))} ago. {_describe_last_attempt(step)}".rstrip()
        for step in under_way
    ]
    waits = [step for step in run.steps if step.status is StepStatus.RETRYING]
    said += [
        f"Step {step.name!r} waits for its next attempt. {_describe_last_attempt(step)}".rstrip() for step in waits
    ]
    if not said:
        said = ["A worker has it and executes the workflow's own code, between two steps."]
    if not around.workers:
        said.append(f"No worker is alive: the one that had it is gone. The next one takes it over: {worker_hint()}")
    return said


def _explain_rollback(run: Run, around: RunContext) -> list[str]:
    """A rollback: how far it is, and whom it waits for."""
    undone = [step for step in run.steps if step.kind is EntryKind.UNDO and not step.superseded]
    over = sum(step.ended_at is not None for step in undone)
    said = [f"What it did is being undone{_format_error_suffix(run)}. {over} of {len(undone)} are done."]
    task = next((step for step in undone if step.status is StepStatus.RUNNING), None)
    waits = [step for step in undone if step.status is StepStatus.RETRYING]
    if task is not None and run.next_at is None and isinstance(task.output, str):
        said.append(f"It waits for a person: {task.output}")
        said.append(f"When that is done: {hint('saga', 'done', run.id, task.key.rpartition('/')[0])}")
    elif task is not None:
        said.append(f"A worker executes {task.name!r}, attempt {task.attempt}. {_describe_last_attempt(task)}".rstrip())
    elif waits:
        said += [f"{step.name!r} waits for its next attempt. {_describe_last_attempt(step)}".rstrip() for step in waits]
    else:
        said += _explain_obstacles(run, around)
    return [*said, f"All of it: {hint('saga', 'show', run.id)}"]


def _explain_uncertain_steps(run: Run) -> list[str]:
    """Steps of which nobody knows whether they happened, and which nobody undid."""
    return [
        f"Nobody knows whether {undone_step_name(step.key)!r} happened, so it was not undone: find out."
        for step in run.steps
        if step.kind is EntryKind.UNDO and step.status is StepStatus.SKIPPED and step.attempt == 0
    ]


def _explain_failed(run: Run) -> list[str]:
    if run.code == LetterCode.COMPENSATION_FAILED:
        return [
            f"It was being rolled back, and that stopped at {_format_time(run.finished_at)}{_format_error_suffix(run)}.",
            f"What is undone and what is not: {hint('saga', 'show', run.id)}",
            f"When the cause is mended, go on: {hint('saga', 'resume', run.id)}",
        ]
    said = [f"It ended at {_format_time(run.finished_at)}{_format_error_suffix(run)}."]
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


def _explain_crashes(run: Run) -> list[str]:
    if not run.crashes:
        return []
    return [f"{_format_count(run.crashes, 'worker', 'workers')} died while holding it."]


def _describe_last_attempt(step: StepRecord) -> str:
    return f"The last attempt: {step.attempts[-1].decision}." if step.attempts else ""


def _is_unfinished(step: StepRecord) -> bool:
    return step.status in {StepStatus.PENDING, StepStatus.RUNNING, StepStatus.RETRYING}


def _format_error_suffix(run: Run) -> str:
    return f": {run.error}" if run.error else ""


def _format_time(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _format_count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# -- A run drawn in the terminal: a bar for each attempt, dashes where it waited, the decisions in w -----


_MAX_NAME_WIDTH = 16
_DURATION_WIDTH = 10  # for the duration on the right
_MIN_BAR_WIDTH = 10
_STATUS_SIGNS = {"SUCCESS": "✓", "FAILED": "✗", "DLQ": "✗", "CANCELLED": "–", "SKIPPED": "–"}
_SIGN_COLOURS = {"✓": "green", "✗": "red", "–": "bright_black", "…": "yellow"}
_WORK, _WAIT, _BLANK = "█", "╌", " "


def render_timeline(steps: tuple[StepRecord, ...], *, now: datetime, width: int, over: bool = False) -> list[str]:
    """The lines of the picture, from the first step's beginning to the last one's end, or to now.

    `over`: the run has ended, so that a step without an end was cut short.
    """
    if not steps:
        return ["  no step has begun"]
    scale = _TimeScale(steps, now, width, over)
    return [line for step in steps for line in _render_step(step, scale)]


class _TimeScale:
    """Moments as columns."""

    def __init__(self, steps: tuple[StepRecord, ...], now: datetime, width: int, over: bool) -> None:
        self.now = now
        self.over = over
        self.name = min(_MAX_NAME_WIDTH, max(len(_display_name(step)) for step in steps))
        self.room = max(_MIN_BAR_WIDTH, width - self.name - _DURATION_WIDTH - 6)
        self.width = width
        self._begin = min(step.began_at for step in steps)
        end = max(step.ended_at or max(now, step.began_at) for step in steps)
        self._span = max((end - self._begin).total_seconds(), 0.001)

    def column(self, moment: datetime) -> int:
        """Where a moment is, from 0 to the last column."""
        share = (moment - self._begin).total_seconds() / self._span
        return min(self.room - 1, max(0, int(share * self.room)))


def _render_step(step: StepRecord, scale: _TimeScale) -> Iterator[str]:
    mark = "✗" if _is_interrupted(step, scale) else _STATUS_SIGNS.get(step.status, "…")
    name = escape_line(_display_name(step))
    name = name if len(name) <= scale.name else f"{name[: scale.name - 1]}…"
    took = (step.ended_at or max(scale.now, step.began_at)) - step.began_at
    colour = "bright_black" if step.superseded else _SIGN_COLOURS[mark]
    bar = style_text(_render_bar(step, scale), fg=colour)
    yield f"  {style_text(mark, fg=colour)} {name:<{scale.name}} {bar} {format_duration(took.total_seconds()):>{_DURATION_WIDTH}}"
    if step.kind is EntryKind.SLEEP and step.status is not StepStatus.SUCCESS and step.next_at:
        yield from _wrap_note(f"waits until {step.next_at:%Y-%m-%d %H:%M:%S} UTC", scale)
    if len(step.attempts) > 1 or step.status is not StepStatus.SUCCESS or step.by_hand:
        yield from _render_attempts(step, scale)
    if step.by_hand:
        yield from _wrap_note("its result was given by hand", scale)
    if _is_interrupted(step, scale):
        yield from _wrap_note(f"attempt {step.attempt} was cut short: it may have happened", scale)
    elif _is_under_way(step):
        yield from _wrap_note(f"attempt {step.attempt} is under way", scale)


def _render_attempts(step: StepRecord, scale: _TimeScale) -> Iterator[str]:
    """Each attempt's decision, and its error unless the one before had the same."""
    before = None
    for attempt in step.attempts:
        yield from _wrap_note(attempt.decision, scale)
        error = f"{(attempt.error_type or '').removeprefix('builtins.')}: {attempt.message}"
        if attempt.message and error != before:
            yield from _wrap_note(error, scale, deeper="  ")
        before = error


def _display_name(step: StepRecord) -> str:
    """The name, with a mark for what goes back and for what confirms."""
    return {EntryKind.UNDO: "↩ ", EntryKind.CONFIRM: "✔ "}.get(step.kind, "") + step.name


def _is_under_way(step: StepRecord) -> bool:
    return step.kind in EXECUTED_KINDS and step.status is StepStatus.RUNNING


def _is_interrupted(step: StepRecord, scale: _TimeScale) -> bool:
    return scale.over and _is_under_way(step)


def _render_bar(step: StepRecord, scale: _TimeScale) -> str:
    """Work where an attempt was under way, a wait between attempts and while sleeping."""
    begin = scale.column(step.began_at)
    end = scale.column(step.ended_at or max(scale.now, step.began_at))
    cells = [_BLANK] * scale.room
    for place in range(begin, end + 1):
        cells[place] = _WAIT
    if step.kind is not EntryKind.SLEEP:
        for first, last in _work_columns(step, scale):
            for place in range(first, last + 1):
                cells[place] = _WORK
    return "".join(cells)


def _work_columns(step: StepRecord, scale: _TimeScale) -> Iterator[tuple[int, int]]:
    for attempt in step.attempts:
        if attempt.status != AttemptEnd.PARKED:
            yield scale.column(attempt.began_at), scale.column(_attempt_end(attempt, scale))
    if _is_under_way(step):
        waited = step.attempts[-1].next_at if step.attempts else None
        yield scale.column(waited or step.began_at), scale.column(scale.now)
    elif not step.attempts:
        yield scale.column(step.began_at), scale.column(step.ended_at or step.began_at)


def _attempt_end(attempt: AttemptRecord, scale: _TimeScale) -> datetime:
    return attempt.ended_at or max(scale.now, attempt.began_at)


def _wrap_note(text: str, scale: _TimeScale, deeper: str = "") -> list[str]:
    indent = " " * (scale.name + 5) + deeper
    return textwrap.wrap(
        escape_line(" ".join(text.split())),
        max(30, scale.width),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=True,
    )


# -- One run as a person reads it: what it is, how it went, what it was given and what it gave -----------


_RUN_COLOURS = {RunStatus.SUCCESS: "green", RunStatus.RUNNING: "cyan", RunStatus.CANCELLED: "bright_black"}
_MAX_PAYLOAD_LINES = 20  # of a payload
_RETRYABLE_STATUSES = frozenset({RunStatus.FAILED, RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT, RunStatus.PARTIAL})


def render_run(run: Run, *, brief: bool = False) -> list[str]:
    """The lines of `runs show`; `brief` leaves out payloads and advice, for the live view."""
    now = to_datetime(SystemClock().now())
    lines = [
        *_render_header(run, now),
        "",
        *render_timeline(run.steps, now=now, width=terminal_width(), over=run.status in FINAL_RUN_STATUSES),
    ]
    if brief:
        return lines
    lines += ["", *render_payload("input", run.input)]
    if run.status is RunStatus.SUCCESS:
        lines += render_payload("result", run.output)
    return [*lines, "", *_list_next_commands(run)]


def terminal_width() -> int:
    """The columns there are."""
    return min(140, shutil.get_terminal_size().columns)


def _render_header(run: Run, now: datetime) -> list[str]:
    colour = _RUN_COLOURS.get(run.status, "red" if run.status in FINAL_RUN_STATUSES else "yellow")
    took = (run.finished_at or now) - run.created_at
    return [
        f"run {run.id}  {escape_line(run.workflow)}  {style_text(run.status, fg=colour, bold=True)}",
        *render_facts(
            created=f"{run.created_at:%Y-%m-%d %H:%M:%S} UTC, {format_age(run.created_at)}",
            took=f"{format_duration(max(0.0, took.total_seconds()))}{'' if run.finished_at else ' so far'}",
            next=f"{run.next_at:%Y-%m-%d %H:%M:%S} UTC, {format_age(run.next_at)}" if run.next_at else None,
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


def render_facts(**values: Any) -> list[str]:
    """Named values, one to a line; those that are None are left out."""
    lines = [
        f"  {name.replace('_', ' '):<12} {escape_line(' '.join(str(value).split()))}"
        for name, value in values.items()
        if value is not None
    ]
    return [fold_text(line, sys.stdout, deeper=" " * 13) for line in lines]


def render_payload(title: str, value: Any) -> list[str]:
    """A payload as indented JSON, cut where it grows long."""
    lines = json.dumps(as_json(value), indent=2, ensure_ascii=False).splitlines()
    if len(lines) > _MAX_PAYLOAD_LINES:
        lines = [*lines[:_MAX_PAYLOAD_LINES], f"… and {len(lines) - _MAX_PAYLOAD_LINES} lines more; --json shows all"]
    return [f"  {title}", *(f"    {escape_line(line)}" for line in lines)]


def _list_next_commands(run: Run) -> list[str]:
    if run.status is RunStatus.SUCCESS:
        return []
    back = any(step.kind is EntryKind.UNDO for step in run.steps)
    ledger = [f"  rollback:    {hint('saga', 'show', run.id)}"] if back else []
    if run.status not in FINAL_RUN_STATUSES:
        return [
            *ledger,
            f"  follow it:   {hint('runs', 'watch', run.id)}",
            f"  understand:  {hint('runs', 'why', run.id)}",
        ]
    again = [f"  run again:   {hint('runs', 'retry', run.id)}"] if run.status in _RETRYABLE_STATUSES else []
    again = [] if back else again
    return [*ledger, *again, f"  understand:  {hint('runs', 'why', run.id)}"]
