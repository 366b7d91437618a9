"""The pages of one run: `runs why` explains its state, `runs show` draws its timeline."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, assert_never

from redrive.cli.messages import circuit_hint, hint, worker_hint
from redrive.cli.output import as_json, escape_line, fold_text, format_age, style_text
from redrive.cli.runs.events import explain_events, explain_wait, render_events
from redrive.clock import SystemClock
from redrive.core.circuit import CircuitStatus
from redrive.core.failure_reason import LetterCode
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.saga import undone_step_name
from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, EntryKind, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.desk.models import EventRecord, Run, StepRecord
from redrive.desk.runs import RunContext
from redrive.duration import format_duration, to_datetime

_UNFINISHED_STATUSES = frozenset({StepStatus.PENDING, StepStatus.RUNNING, StepStatus.RETRYING})
_RETRYABLE_STATUSES = frozenset({RunStatus.FAILED, RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT, RunStatus.PARTIAL})
_RUN_COLOURS = {RunStatus.SUCCESS: "green", RunStatus.RUNNING: "cyan", RunStatus.CANCELLED: "bright_black"}
_STATUS_SIGNS = {"SUCCESS": "✓", "FAILED": "✗", "DLQ": "✗", "CANCELLED": "–", "SKIPPED": "–"}
_SIGN_COLOURS = {"✓": "green", "✗": "red", "–": "bright_black", "…": "yellow"}
_KIND_SIGNS = {EntryKind.UNDO: "↩ ", EntryKind.CONFIRM: "✔ "}
_WORK, _WAIT, _BLANK = "█", "╌", " "
_MAX_NAME_WIDTH = 16
_DURATION_WIDTH = 10  # for the duration on the right
_MIN_BAR_WIDTH = 10
_MAX_PAYLOAD_LINES = 20


def explain_run(run: Run, around: RunContext, events: Sequence[EventRecord] = ()) -> list[str]:
    """Explain the state of a run, its reason and its end, and give the next command."""
    finished, error = _format_time(run.finished_at), f": {run.reason}" if run.reason else ""
    match run.status:
        case RunStatus.PENDING | RunStatus.SLEEPING:
            sentences = [*_explain_waiting(run, around), *_explain_obstacles(run, around)]
        case RunStatus.RUNNING:
            sentences = _explain_running(run, around)
        case RunStatus.COMPENSATING:
            sentences = _explain_rollback(run, around)
        case RunStatus.SUCCESS:
            sentences = [f"The run succeeded at {finished}. Nothing is left to do."]
        case RunStatus.CANCELLED:
            sentences = [f"The run was cancelled at {finished}{error}."]
        case RunStatus.COMPENSATED:
            sentences = [f"The run failed and was rolled back at {finished}{error}."]
            sentences += [
                f"The outcome of {undone_step_name(step.key)!r} is unknown, so it was not undone: check it."
                for step in run.steps
                if step.kind is EntryKind.UNDO and step.status is StepStatus.SKIPPED and step.attempt == 0
            ]
        case RunStatus.PARTIAL:
            retry = hint("runs", "retry", run.id)
            sentences = [f"Only one step was run again. More steps would follow. To continue: {retry}"]
        case RunStatus.FAILED | RunStatus.DLQ_PENDING | RunStatus.TIMED_OUT:
            sentences = _explain_failed(run)
        case other:
            assert_never(other)
    if run.note is not None:
        share = "" if run.note.progress is None else f" ({run.note.progress:.0%})"
        sentences.append(f"Its status: {run.note.text}{share}.")
    sentences += explain_events(run, events, _list_open_waits(run))
    if run.crashes:
        sentences.append(f"{_format_count(run.crashes, 'worker', 'workers')} crashed while executing the run.")
    return sentences


def _list_open_waits(run: Run) -> list[StepRecord]:
    return [s for s in run.steps if s.kind is EntryKind.WAIT and s.status is StepStatus.RUNNING and not s.superseded]


def _explain_waiting(run: Run, around: RunContext) -> list[str]:
    if run.parked_on:
        return _explain_parked(run.parked_on, around)
    waits = _list_open_waits(run)
    if waits and (run.next_at is None or run.next_at > around.now):
        return [explain_wait(step, around.now) for step in waits]
    due = run.next_at
    if due is None or due <= around.now:
        late = "" if due is None else f" since {format_duration((around.now - due).total_seconds())}"
        return [f"The run is due{late} and waits for a worker."]
    when = f"{_format_time(due)}, in {format_duration((due - around.now).total_seconds())}"
    step = next((step for step in reversed(run.steps) if step.status in _UNFINISHED_STATUSES), None)
    if step is None:
        return [f"The run was started with a delay and begins at {when}."]
    if step.kind is EntryKind.SLEEP:
        return [f"The run sleeps until {when}, as its workflow requested."]
    if step.attempts:
        return [f"The run retries step {step.name!r} at {when}. {_describe_last_attempt(step)}"]
    return [f"The run continues at {when}."]


def _explain_parked(key: str, around: RunContext) -> list[str]:
    circuit = around.circuit
    if circuit is None or circuit.status is CircuitStatus.OPEN:
        sentences = [f"The run is parked: circuit {key!r} is open. The run continues when the circuit closes."]
    else:
        sentences = [f"The run is parked on circuit {key!r}, which lets calls through again. It continues in turn."]
    if circuit is None:
        return sentences
    why = f": {circuit.why}" if circuit.why else ""
    sentences.append(f"The circuit is {circuit.status} since {_format_time(circuit.changed_at)}{why}.")
    if circuit.until is not None:
        sentences.append(f"The circuit lets a few calls through as a test from {_format_time(circuit.until)}.")
    elif circuit.status is CircuitStatus.OPEN:
        sentences.append(f"The circuit stays open until you close it: {circuit_hint('close', key, circuit.tenant)}")
    waiting = _format_count(circuit.parked, "run waits", "runs wait")
    return [*sentences, f"{waiting} for it: {circuit_hint('show', key, circuit.tenant)}"]


def _explain_obstacles(run: Run, around: RunContext) -> list[str]:
    sentences: list[str] = []
    if around.paused_by is not None:
        sentences.append(
            f"Workflow {run.workflow!r} was paused by {around.paused_by}, so its runs do not start. "
            f"To resume it: {hint('workflows', 'resume', run.workflow)}"
        )
    if not around.workers:
        sentences.append(f"No worker is running. Start one: {worker_hint()}")
    elif not around.able:
        sentences.append(
            f"{_format_count(around.workers, 'worker is', 'workers are')} running, but none has workflow "
            f"{run.workflow!r} registered. Start one that has: {worker_hint()}"
        )
    elif not around.serving:
        sentences.append(
            f"{_format_count(around.able, 'worker has', 'workers have')} workflow {run.workflow!r}, but none takes "
            f"runs from queue {run.queue!r}. Start one that does: {worker_hint('--queue', run.queue)}"
        )
    if around.diverged:
        sentences.append(
            "The journal of the run does not match the code of the workers that tried it. The run waits for a worker "
            f"with version {run.version}, and becomes a dead letter if none comes (REDRIVE_CODE_WAIT)."
        )
    if run.deadline is not None:
        sentences.append(f"The deadline of the run is {_format_time(run.deadline)}.")
    return sentences


def _explain_running(run: Run, around: RunContext) -> list[str]:
    sentences = []
    for step in run.steps:
        if step.kind is EntryKind.WAIT and step.status is StepStatus.RUNNING:
            sentences.append(explain_wait(step, around.now))
        elif step.status is StepStatus.RUNNING:
            age = format_duration(max(0.0, (around.now - step.began_at).total_seconds()))
            text = f"A worker executes step {step.name!r}, attempt {step.attempt}, started {age} ago."
            sentences.append(f"{text} {_describe_last_attempt(step)}".rstrip())
    retrying = [step for step in run.steps if step.status is StepStatus.RETRYING]
    sentences += [_describe_retry(f"Step {step.name!r}", step) for step in retrying]
    if not sentences:
        sentences.append("A worker executes the code of the workflow, between two steps.")
    if not around.workers:
        sentences.append(f"The worker of the run is gone, and no other is running. Start one: {worker_hint()}")
    return sentences


def _explain_rollback(run: Run, around: RunContext) -> list[str]:
    undone = [step for step in run.steps if step.kind is EntryKind.UNDO and not step.superseded]
    done = sum(step.ended_at is not None for step in undone)
    error = f": {run.reason}" if run.reason else ""
    sentences = [f"The run is being rolled back{error}. {done} of {len(undone)} compensations are done."]
    task = next((step for step in undone if step.status is StepStatus.RUNNING), None)
    retrying = [step for step in undone if step.status is StepStatus.RETRYING]
    if task is not None and run.next_at is None and isinstance(task.output, str):
        sentences.append(f"The rollback needs a manual step: {task.output}")
        sentences.append(f"When it is done: {hint('saga', 'done', run.id, task.key.rpartition('/')[0])}")
    elif task is not None:
        text = f"A worker executes {task.name!r}, attempt {task.attempt}."
        sentences.append(f"{text} {_describe_last_attempt(task)}".rstrip())
    elif retrying:
        sentences += [_describe_retry(repr(step.name), step) for step in retrying]
    else:
        sentences += _explain_obstacles(run, around)
    return [*sentences, f"The whole rollback: {hint('saga', 'show', run.id)}"]


def _explain_failed(run: Run) -> list[str]:
    finished, error = _format_time(run.finished_at), f": {run.reason}" if run.reason else ""
    if run.code == LetterCode.COMPENSATION_FAILED:
        return [
            f"The rollback of the run failed at {finished}{error}.",
            f"To see which steps are undone: {hint('saga', 'show', run.id)}",
            f"When the cause is fixed, resume it: {hint('saga', 'resume', run.id)}",
        ]
    sentences = [f"The run ended at {finished}{error}."]
    failed = next((step for step in reversed(run.steps) if step.status in {StepStatus.FAILED, StepStatus.DLQ}), None)
    if failed is not None and failed.attempts:
        last = failed.attempts[-1]
        sentences.append(f"The last error of step {failed.name!r} was {last.error_type}: {last.message}")
        sentences.append(f"The decision: {last.decision}.")
    if run.letter_id:
        sentences.append(f"Its dead letter has the details: {hint('dlq', 'show', run.letter_id)}")
    is_open = run.letter_id and run.status is not RunStatus.FAILED
    again = hint("dlq", "replay", run.letter_id or "") if is_open else hint("runs", "retry", run.id)
    return [*sentences, f"When the cause is fixed, run it again: {again}"]


def _describe_last_attempt(step: StepRecord) -> str:
    return f"The last attempt: {step.attempts[-1].decision}." if step.attempts else ""


def _describe_retry(name: str, step: StepRecord) -> str:
    return f"{name} waits for its next attempt. {_describe_last_attempt(step)}".rstrip()


def _format_time(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _format_count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def render_timeline(steps: tuple[StepRecord, ...], *, now: datetime, width: int, over: bool = False) -> list[str]:
    """Draw each step from the start of the first to the end of the last, or to now, with its decisions.

    `over`: the run has ended, so that a step without an end was cut short.
    """
    if not steps:
        return ["  no steps yet"]
    scale = _TimeScale(steps, now, width, over)
    return [line for step in steps for line in _render_step(step, scale)]


class _TimeScale:
    """A scale from times to columns of the terminal."""

    def __init__(self, steps: tuple[StepRecord, ...], now: datetime, width: int, over: bool) -> None:
        self.now = now
        self.over = over
        self.name_width = min(_MAX_NAME_WIDTH, max(len(_display_name(step)) for step in steps))
        self.bar_width = max(_MIN_BAR_WIDTH, width - self.name_width - _DURATION_WIDTH - 6)
        self.width = width
        self._begin = min(step.began_at for step in steps)
        end = max(step.ended_at or max(now, step.began_at) for step in steps)
        self._span = max((end - self._begin).total_seconds(), 0.001)

    def column(self, moment: datetime) -> int:
        """Return the column of a time, from 0 to the last one."""
        share = (moment - self._begin).total_seconds() / self._span
        return min(self.bar_width - 1, max(0, int(share * self.bar_width)))


def _display_name(step: StepRecord) -> str:
    return _KIND_SIGNS.get(step.kind, "") + step.name


def _render_step(step: StepRecord, scale: _TimeScale) -> Iterator[str]:
    in_progress = step.kind in EXECUTED_KINDS and step.status is StepStatus.RUNNING
    interrupted = in_progress and scale.over
    sign = "✗" if interrupted else _STATUS_SIGNS.get(step.status, "…")
    name = escape_line(_display_name(step))
    name = name if len(name) <= scale.name_width else f"{name[: scale.name_width - 1]}…"
    took = format_duration(((step.ended_at or max(scale.now, step.began_at)) - step.began_at).total_seconds())
    colour = "bright_black" if step.superseded else _SIGN_COLOURS[sign]
    bar = style_text(_render_bar(step, scale, in_progress), fg=colour)
    yield f"  {style_text(sign, fg=colour)} {name:<{scale.name_width}} {bar} {took:>{_DURATION_WIDTH}}"
    if step.kind is EntryKind.SLEEP and step.status is not StepStatus.SUCCESS and step.next_at:
        yield from _wrap_note(f"waits until {_format_time(step.next_at)}", scale)
    if len(step.attempts) > 1 or step.status is not StepStatus.SUCCESS or step.by_hand:
        previous = None
        for attempt in step.attempts:
            yield from _wrap_note(attempt.decision, scale)
            error = f"{(attempt.error_type or '').removeprefix('builtins.')}: {attempt.message}"
            if attempt.message and error != previous:
                yield from _wrap_note(error, scale, deeper="  ")
            previous = error
    if step.by_hand:
        yield from _wrap_note("its result was given by hand", scale)
    if interrupted:
        yield from _wrap_note(f"attempt {step.attempt} was cut short: it may have happened", scale)
    elif in_progress:
        yield from _wrap_note(f"attempt {step.attempt} is in progress", scale)


def _render_bar(step: StepRecord, scale: _TimeScale, in_progress: bool) -> str:
    """Draw blocks for attempts, and dashes between them and for a sleep."""
    end = step.ended_at or max(scale.now, step.began_at)
    spans: list[tuple[datetime, datetime]] = []
    if step.kind not in (EntryKind.SLEEP, EntryKind.WAIT):
        spans += (
            (attempt.began_at, attempt.ended_at or max(scale.now, attempt.began_at))
            for attempt in step.attempts
            if attempt.status != AttemptEnd.PARKED
        )
        if in_progress:
            spans.append(((step.attempts[-1].next_at if step.attempts else None) or step.began_at, scale.now))
        elif not step.attempts:
            spans.append((step.began_at, step.ended_at or step.began_at))
    cells = [_BLANK] * scale.bar_width
    for first, last, sign in [(step.began_at, end, _WAIT), *((first, last, _WORK) for first, last in spans)]:
        for column in range(scale.column(first), scale.column(last) + 1):
            cells[column] = sign
    return "".join(cells)


def _wrap_note(text: str, scale: _TimeScale, deeper: str = "") -> list[str]:
    indent = " " * (scale.name_width + 5) + deeper
    return textwrap.wrap(
        escape_line(" ".join(text.split())),
        max(30, scale.width),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=True,
    )


def render_run(run: Run, *, brief: bool = False, events: Sequence[EventRecord] = ()) -> list[str]:
    """Render the lines of `runs show`; `brief` leaves out payloads and commands, for the live view."""
    now = to_datetime(SystemClock().now())
    over = run.status in FINAL_RUN_STATUSES
    colour = _RUN_COLOURS.get(run.status, "red" if over else "yellow")
    took = max(0.0, ((run.finished_at or now) - run.created_at).total_seconds())
    lines = [
        f"run {run.id}  {escape_line(run.workflow)}  {style_text(run.status, fg=colour, bold=True)}",
        *render_facts(
            created=f"{_format_time(run.created_at)}, {format_age(run.created_at)}",
            took=f"{format_duration(took)}{'' if run.finished_at else ' so far'}",
            next=f"{_format_time(run.next_at)}, {format_age(run.next_at)}" if run.next_at else None,
            parked_on=run.parked_on and f"circuit {run.parked_on!r}",
            status=_format_note(run),
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
        "",
        *render_timeline(run.steps, now=now, width=terminal_width(), over=over),
    ]
    if brief:
        return lines
    lines += [*render_events(events), "", *render_payload("input", run.input)]
    if run.status is RunStatus.SUCCESS:
        return [*lines, *render_payload("result", run.output), ""]
    lines.append("")
    if any(step.kind is EntryKind.UNDO for step in run.steps):
        lines.append(f"  rollback:    {hint('saga', 'show', run.id)}")
    elif run.status in _RETRYABLE_STATUSES:
        lines.append(f"  run again:   {hint('runs', 'retry', run.id)}")
    if not over:
        lines.append(f"  follow it:   {hint('runs', 'watch', run.id)}")
    return [*lines, f"  explain it:  {hint('runs', 'why', run.id)}"]


def _format_note(run: Run) -> str | None:
    """Return the status that the code of a run set."""
    if run.note is None:
        return None
    share = "" if run.note.progress is None else f", {run.note.progress:.0%}"
    data = "" if run.note.data is None else f", {json.dumps(as_json(run.note.data), ensure_ascii=False)}"
    return f"{run.note.text}{share}{data}, {format_age(run.note.at)}"


def terminal_width() -> int:
    """Return the columns of the terminal, at most 140."""
    return min(140, shutil.get_terminal_size().columns)


def render_facts(**values: Any) -> list[str]:
    """Render named values, one to a line; leave out those that are None."""
    lines = [
        f"  {name.replace('_', ' '):<12} {escape_line(' '.join(str(value).split()))}"
        for name, value in values.items()
        if value is not None
    ]
    return [fold_text(line, sys.stdout, deeper=" " * 13) for line in lines]


def render_payload(title: str, value: Any) -> list[str]:
    """Render a payload as indented JSON, shortened if it is long."""
    lines = json.dumps(as_json(value), indent=2, ensure_ascii=False).splitlines()
    if len(lines) > _MAX_PAYLOAD_LINES:
        lines = [*lines[:_MAX_PAYLOAD_LINES], f"… and {len(lines) - _MAX_PAYLOAD_LINES} more lines; --json shows all"]
    return [f"  {title}", *(f"    {escape_line(line)}" for line in lines)]
