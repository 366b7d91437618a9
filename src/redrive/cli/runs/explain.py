"""The explanation of a run's state, and of the events that it waits for, for `runs why`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import assert_never

from redrive.cli.hints import circuit_hint, hint, worker_hint
from redrive.cli.output import format_time
from redrive.core.circuit import CircuitStatus
from redrive.core.failure_reason import LetterCode
from redrive.core.questions import task_id
from redrive.core.saga import CHILD_UNDO, undone_step_name
from redrive.core.states import EntryKind, RunStatus, StepStatus
from redrive.desk.models import EventRecord, Run, StepRecord
from redrive.desk.runs import RemoteStep, RunContext, find_start_of_lost_child, get_awaited_run
from redrive.time_values import format_duration

_UNFINISHED_STATUSES = frozenset({StepStatus.PENDING, StepStatus.RUNNING, StepStatus.RETRYING})


def explain_run(
    run: Run, around: RunContext, events: Sequence[EventRecord] = (), failed: Mapping[str, Run] | None = None
) -> list[str]:
    """Explain the state of a run, its reason and its end, and give the next command.

    `failed`: runs with an open dead letter that it waits for, by id.
    """
    finished, error = format_time(run.finished_at), f": {run.reason}" if run.reason else ""
    match run.status:
        case RunStatus.PENDING | RunStatus.SLEEPING:
            sentences = [*_explain_waiting(run, around, failed or {}), *_explain_obstacles(run, around)]
        case RunStatus.RUNNING:
            sentences = _explain_running(run, around, failed or {})
        case RunStatus.COMPENSATING:
            sentences = _explain_rollback(run, around)
        case RunStatus.SUCCESS:
            sentences = [f"The run succeeded at {finished}. Nothing is left to do."]
        case RunStatus.CANCELLED:
            sentences = [f"The run was cancelled at {finished}{error}."]
        case RunStatus.COMPENSATED:
            sentences = [f"The run failed and was rolled back at {finished}{error}."]
            sentences += [_explain_not_undone(step) for step in run.steps if _is_listed_only(step)]
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
    sentences += explain_events(run, events, list_open_waits(run))
    if run.crashes:
        sentences.append(f"{_format_count(run.crashes, 'worker', 'workers')} crashed while executing the run.")
    return sentences


def list_open_waits(run: Run) -> list[StepRecord]:
    """Return the waits of a run that have no answer yet."""
    return [s for s in run.steps if s.kind is EntryKind.WAIT and s.status is StepStatus.RUNNING and not s.superseded]


def _explain_waiting(run: Run, around: RunContext, failed: Mapping[str, Run]) -> list[str]:
    if run.parked_on:
        return _explain_parked(run.parked_on, around)
    if around.remote:
        return [_explain_remote(step, around) for step in around.remote]
    waits = list_open_waits(run)
    if waits and (run.next_at is None or run.next_at > around.now):
        return [sentence for step in waits for sentence in _explain_wait(run, step, around.now, failed)]
    due = run.next_at
    if due is None or due <= around.now:
        late = "" if due is None else f" since {format_duration((around.now - due).total_seconds())}"
        return [f"The run is due{late} and waits for a worker."]
    when = f"{format_time(due)}, in {format_duration((due - around.now).total_seconds())}"
    step = next((step for step in reversed(run.steps) if step.status in _UNFINISHED_STATUSES), None)
    if step is None:
        return [f"The run was started with a delay and begins at {when}."]
    if step.kind is EntryKind.SLEEP:
        return [f"The run sleeps until {when}, as its workflow requested."]
    if step.attempts:
        return [f"The run retries step {step.name!r} at {when}. {_describe_last_attempt(step)}"]
    return [f"The run continues at {when}."]


def _explain_remote(step: RemoteStep, around: RunContext) -> str:
    what = f"step {step.step!r}, attempt {step.attempt}"
    age = format_duration(abs((around.now - step.since).total_seconds()))
    if step.taken:
        return f"A worker of queue {step.queue!r} executes {what}, started {age} ago."
    when = f"due in {age}" if step.since > around.now else f"for {age}"
    text = f"The run waits for a worker of queue {step.queue!r} to execute {what}, {when}."
    return text if step.workers else f"{text} No live worker takes steps of this queue: start one that polls it."


def _explain_parked(key: str, around: RunContext) -> list[str]:
    circuit = around.circuit
    if circuit is None or circuit.status is CircuitStatus.OPEN:
        sentences = [f"The run is parked: circuit {key!r} is open. The run continues when the circuit closes."]
    else:
        sentences = [f"The run is parked on circuit {key!r}, which lets calls through again. It continues in turn."]
    if circuit is None:
        return sentences
    why = f": {circuit.why}" if circuit.why else ""
    sentences.append(f"The circuit is {circuit.status} since {format_time(circuit.changed_at)}{why}.")
    if circuit.until is not None:
        sentences.append(f"The circuit lets a few calls through as a test from {format_time(circuit.until)}.")
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
    elif not around.able and run.pinned:
        sentences.append(
            f"The run is pinned to version {run.version!r} of workflow {run.workflow!r}, which no live worker has. "
            f"Start one with it, or move the run: {hint('runs', 'move', run.id, '--to', _choose_version(around))}"
        )
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
        sentences.append(f"The deadline of the run is {format_time(run.deadline)}.")
    return sentences


def _choose_version(around: RunContext) -> str:
    return around.versions[0] if around.versions else "VERSION"


def _explain_running(run: Run, around: RunContext, failed: Mapping[str, Run]) -> list[str]:
    sentences: list[str] = []
    for step in run.steps:
        if step.kind is EntryKind.WAIT and step.status is StepStatus.RUNNING:
            sentences += _explain_wait(run, step, around.now, failed)
        elif step.status is StepStatus.RUNNING and step.name not in {each.step for each in around.remote}:
            age = format_duration(max(0.0, (around.now - step.began_at).total_seconds()))
            text = f"A worker executes step {step.name!r}, attempt {step.attempt}, started {age} ago."
            sentences.append(f"{text} {_describe_last_attempt(step)}".rstrip())
    sentences += [_explain_remote(step, around) for step in around.remote]
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
        sentences.append(f"Its task: {hint('tasks', 'show', task_id(run.id, task.index))}")
    elif task is not None:
        text = f"A worker executes {task.name!r}, attempt {task.attempt}."
        sentences.append(f"{text} {_describe_last_attempt(task)}".rstrip())
    elif retrying:
        sentences += [_describe_retry(repr(step.name), step) for step in retrying]
    elif run.next_at is None and (child := next((step for step in undone if step.ended_at is None), None)) is not None:
        id = child.input["run"] if isinstance(child.input, dict) and child.name == CHILD_UNDO else None
        waits = f"The rollback waits for run {id}, which the run started. See {hint('runs', 'why', str(id))}"
        sentences += _explain_obstacles(run, around) if id is None else [waits]
    else:
        sentences += _explain_obstacles(run, around)
    return [*sentences, f"The whole rollback: {hint('saga', 'show', run.id)}"]


def _is_listed_only(step: StepRecord) -> bool:
    return step.kind is EntryKind.UNDO and step.status is StepStatus.SKIPPED and step.attempt == 0


def _explain_not_undone(step: StepRecord) -> str:
    if isinstance(step.output, dict) and step.name == CHILD_UNDO:
        return f"The effects of run {step.output['run']}, which it started, stay: that run is {step.output['status']}."
    return f"The outcome of {undone_step_name(step.key)!r} is unknown, so it was not undone: check it."


def _explain_failed(run: Run) -> list[str]:
    finished, error = format_time(run.finished_at), f": {run.reason}" if run.reason else ""
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
        error = f"{(last.error_type or '').removeprefix('builtins.')}: {last.message}"
        sentences.append(f"The last error of step {failed.name!r} was {error}")
        sentences.append(f"The decision: {last.decision}.")
    if run.letter_id:
        sentences.append(f"Its dead letter has the details: {hint('dlq', 'show', run.letter_id)}")
    is_open = run.letter_id and run.status is not RunStatus.FAILED
    again = hint("dlq", "replay", run.letter_id or "") if is_open else hint("runs", "retry", run.id)
    if is_open and run.letter_id and (start := find_start_of_lost_child(run)) is not None:
        again = hint("dlq", "replay", run.letter_id, "--from-step", str(start.index), "--new-operation")
        return [*sentences, f"That run cannot be replayed. To start a new one in its place: {again}"]
    return [*sentences, f"When the cause is fixed, run it again: {again}"]


def _describe_last_attempt(step: StepRecord) -> str:
    return f"The last attempt: {step.attempts[-1].decision}." if step.attempts else ""


def _describe_retry(name: str, step: StepRecord) -> str:
    return f"{name} waits for its next attempt. {_describe_last_attempt(step)}".rstrip()


def _format_count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _explain_wait(run: Run, step: StepRecord, now: datetime, failed: Mapping[str, Run]) -> list[str]:
    """Return what an open wait waits for, since when, and when it gives up."""
    wait = step.input if isinstance(step.input, dict) else {}
    names = wait.get("names", ())
    run_id = get_awaited_run(step)
    events = " or ".join(repr(name) for name in names) or repr(step.name)
    since = format_duration(max(0.0, (now - step.began_at).total_seconds()))
    until = "" if step.next_at is None else f", and gives up at {step.next_at:%Y-%m-%d %H:%M:%S} UTC"
    if wait.get("mode") == "task":
        task = hint("tasks", "show", task_id(run.id, step.index))
        return [f"The run waits for an answer to {str(wait.get('question'))!r} since {since}{until}. See {task}"]
    if run_id is None:
        return [f"The run waits for event {events} since {since}{until}."]
    text = f"The run waits for the result of run {run_id} since {since}{until}."
    child = failed.get(run_id)
    if child is None or child.letter_id is None or child.finished_at is None:
        return [f"{text} See {hint('runs', 'why', run_id)}"]
    age = format_duration(max(0.0, (now - child.finished_at).total_seconds()))
    return [
        f"{text} The dead letter of that run is open since {age}: {child.reason}.",
        f"If it is replayed and succeeds, this run continues. See {hint('dlq', 'show', child.letter_id)}",
    ]


def explain_events(run: Run, events: Sequence[EventRecord], waits: Sequence[StepRecord]) -> list[str]:
    """Return sentences about events that were set aside or not read, and how to send the one that is missing."""
    aside = [event for event in events if event.status == "SET_ASIDE"]
    sentences = [f"Event {event.name!r} did not fit and was set aside: {event.reason}" for event in aside[-3:]]
    unread = [event.name for event in events if event.status == "UNREAD"]
    if unread:
        sentences.append(f"Unread events: {', '.join(sorted(set(unread)))} ({len(unread)} in all).")
    awaited = [step for step in waits if get_awaited_run(step) is None]
    names = [name for step in awaited if isinstance(step.input, dict) for name in step.input.get("names", ())]
    if names:
        sentences.append(f"To send it: {hint('runs', 'send', run.id, names[0], '--data', 'JSON')}")
    return sentences
