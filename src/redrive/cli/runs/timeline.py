"""The rendering of a run on a terminal, for `runs show` and `runs watch`: its facts, and its steps on a timeline."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime

from redrive.cli.hints import hint
from redrive.cli.output import (
    as_json,
    escape_line,
    format_age,
    format_time,
    render_facts,
    render_payload,
    style_text,
    terminal_width,
)
from redrive.clock import SystemClock
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import EXECUTED_KINDS, FINAL_RUN_STATUSES, EntryKind, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd
from redrive.desk.models import EventRecord, Run, StepRecord
from redrive.time_values import format_duration, to_datetime

_RETRYABLE_STATUSES = frozenset({RunStatus.FAILED, RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT, RunStatus.PARTIAL})
_RUN_COLOURS = {RunStatus.SUCCESS: "green", RunStatus.RUNNING: "cyan", RunStatus.CANCELLED: "bright_black"}
_STATUS_SIGNS = {"SUCCESS": "✓", "FAILED": "✗", "DLQ": "✗", "CANCELLED": "–", "SKIPPED": "–"}
_SIGN_COLOURS = {"✓": "green", "✗": "red", "–": "bright_black", "…": "yellow"}
_KIND_SIGNS = {EntryKind.UNDO: "↩ ", EntryKind.CONFIRM: "✔ "}
_WORK, _WAIT, _BLANK = "█", "╌", " "
_MAX_NAME_WIDTH = 20
_DURATION_WIDTH = 10  # for the duration on the right
_MIN_BAR_WIDTH = 10
_MAX_EVENTS = 20


def render_run(run: Run, *, brief: bool = False, events: Sequence[EventRecord] = ()) -> list[str]:
    """Render the lines of `runs show`; `brief` leaves out payloads and commands, for the live view."""
    now = to_datetime(SystemClock().now())
    over = run.status in FINAL_RUN_STATUSES
    colour = _RUN_COLOURS.get(run.status, "red" if over else "yellow")
    took = max(0.0, ((run.finished_at or now) - run.created_at).total_seconds())
    lines = [
        f"run {run.id}  {escape_line(run.workflow)}  {style_text(run.status, fg=colour, bold=True)}",
        *render_facts(
            created=f"{format_time(run.created_at)}, {format_age(run.created_at)}",
            took=f"{format_duration(took)}{'' if run.finished_at else ' so far'}",
            next=f"{format_time(run.next_at)}, {format_age(run.next_at)}" if run.next_at else None,
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
    # The names of engine calls begin alike, and there is room for their ends only.
    return _KIND_SIGNS.get(step.kind, "") + step.name.removeprefix("redrive.")


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
        yield from _wrap_note(f"waits until {format_time(step.next_at)}", scale)
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


def render_events(events: Sequence[EventRecord]) -> list[str]:
    """Render the latest events of a run, one to a line."""
    if not events:
        return []
    left_out = len(events) - _MAX_EVENTS
    lines = ["", "  events"]
    lines += [f"    … {left_out} earlier ones; --json shows all"] if left_out > 0 else []
    for event in events[-_MAX_EVENTS:]:
        state = event.status.value.lower().replace("_", " ")
        why = f": {event.reason}" if event.reason else ""
        text = f"{event.seq} {event.name}, {state}, sent {format_age(event.at)} by {event.by}{why}"
        lines.append(f"    {escape_line(text)}")
    return lines
