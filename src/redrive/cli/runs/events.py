"""`redrive runs send`, and the events of a run as `runs show` and `runs why` describe them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from redrive.cli.errors import hint
from redrive.cli.ids import find_run_id
from redrive.cli.options import ChangeOptions, parse_json_value
from redrive.cli.output import Output, escape_line, format_age
from redrive.cli.target import Target, decision_options, run_on
from redrive.core.questions import task_id
from redrive.duration import format_duration

if TYPE_CHECKING:
    from datetime import datetime

    from redrive.app import Redrive
    from redrive.desk.models import EventRecord, Run, SentEvent, StepRecord

_MAX_SHOWN = 20


@click.command()
@click.argument("id", metavar="RUN")
@click.argument("name", metavar="EVENT")
@click.option("--data", metavar="JSON", default="null", show_default=True, help="The payload; @FILE reads a file.")
@click.option("--key", metavar="KEY", help="The same key is the same event, however often it is sent.")
@decision_options
def send(id: str, name: str, data: str, key: str | None, change: ChangeOptions, target: Target, output: Output) -> None:
    """Send an event to RUN, which takes it with redrive.wait_for, now or later.

    The payload is checked against the type that the workflow declares for the event. A run that has ended for good
    takes no events; one that failed keeps them for a replay.

    \b
    Examples:
      redrive runs send 01k9x7 approved --data '{"by": "ann"}'
      redrive runs send 01k9x7 approved --data @approval.json --key click-1
    """
    payload = parse_json_value(data, "--data")

    async def send_event(app: Redrive) -> SentEvent | None:
        run_id = await find_run_id(app, id)
        return None if change.dry_run else await app.runs.send(run_id, name, payload, key=key, by=change.by)

    sent = run_on(target, send_event)
    if sent is None:
        output.done(id, {"run": id, "event": name}, f"would send {name!r}; nothing was sent")
        return
    text = f"Event {escape_line(name)} is number {sent.seq} of run {sent.run_id}, which is {sent.status}."
    output.done(str(sent.seq), sent, f"{text}\nFollow it: {hint('runs', 'watch', sent.run_id)}")


def _get_awaited_run(step: StepRecord) -> str | None:
    """Return the id of the run that an open wait is for; None if it is for events."""
    wait = step.input
    return str(wait["names"][0]) if isinstance(wait, dict) and wait.get("mode") == "run" else None


def explain_wait(run: Run, step: StepRecord, now: datetime) -> str:
    """Return what an open wait waits for, since when, and when it gives up."""
    wait = step.input if isinstance(step.input, dict) else {}
    names = wait.get("names", ())
    run_id = _get_awaited_run(step)
    events = " or ".join(repr(name) for name in names) or repr(step.name)
    since = format_duration(max(0.0, (now - step.began_at).total_seconds()))
    until = "" if step.next_at is None else f", and gives up at {step.next_at:%Y-%m-%d %H:%M:%S} UTC"
    if wait.get("mode") == "task":
        task = hint("tasks", "show", task_id(run.id, step.index))
        return f"The run waits for an answer to {str(wait.get('question'))!r} since {since}{until}. See {task}"
    if run_id is not None:
        return f"The run waits for the result of run {run_id} since {since}{until}. See {hint('runs', 'why', run_id)}"
    return f"The run waits for event {events} since {since}{until}."


def explain_events(run: Run, events: Sequence[EventRecord], waits: Sequence[StepRecord]) -> list[str]:
    """Return sentences about events that were set aside or not read, and how to send the one that is missing."""
    aside = [event for event in events if event.status == "SET_ASIDE"]
    sentences = [f"Event {event.name!r} did not fit and was set aside: {event.reason}" for event in aside[-3:]]
    unread = [event.name for event in events if event.status == "UNREAD"]
    if unread:
        sentences.append(f"Unread events: {', '.join(sorted(set(unread)))} ({len(unread)} in all).")
    awaited = [step for step in waits if _get_awaited_run(step) is None]
    names = [name for step in awaited if isinstance(step.input, dict) for name in step.input.get("names", ())]
    if names:
        sentences.append(f"To send it: {hint('runs', 'send', run.id, names[0], '--data', 'JSON')}")
    return sentences


def render_events(events: Sequence[EventRecord]) -> list[str]:
    """Render the latest events of a run, one to a line."""
    if not events:
        return []
    left_out = len(events) - _MAX_SHOWN
    lines = ["", "  events"]
    lines += [f"    … {left_out} earlier ones; --json shows all"] if left_out > 0 else []
    for event in events[-_MAX_SHOWN:]:
        state = event.status.value.lower().replace("_", " ")
        why = f": {event.reason}" if event.reason else ""
        text = f"{event.seq} {event.name}, {state}, sent {format_age(event.at)} by {event.by}{why}"
        lines.append(f"    {escape_line(text)}")
    return lines
