"""One run as a person reads it: what it is, how it went, what it was given and what it gave."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import datetime
from typing import Any

from redrive.cli.folding import folded
from redrive.cli.hints import hint
from redrive.cli.output import ago, as_json, clean, styled
from redrive.cli.timeline import timeline
from redrive.clock import SystemClock
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import FINAL, EntryKind, RunStatus
from redrive.desk.shapes import Run
from redrive.duration import moment, words

__all__ = ["facts", "payload", "story"]

_COLOURS = {RunStatus.SUCCESS: "green", RunStatus.RUNNING: "cyan", RunStatus.CANCELLED: "bright_black"}
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
    colour = _COLOURS.get(run.status, "red" if run.status in FINAL else "yellow")
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
