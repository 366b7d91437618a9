"""Failure handlers: the event that tells of a failure, and the runs that hear of it.

A handler is an ordinary workflow. What starting it takes travels with every run whose failure it handles, so
that the failure and the handler's run are one transition, whoever decides on it: a worker, the reaper, or a
process that has none of the code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redrive.core.failure_reason import FailureReason
from redrive.core.idempotency import handler_run_id
from redrive.core.new_run import extract_index_values
from redrive.core.outcomes import RunView
from redrive.core.run_options import FailureHandler, OnFailure, RunOptions, add_trace
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun, Transition
from redrive.duration import to_datetime
from redrive.records import replace
from redrive.settings import run_page_path

INPUT_NOTE_KEY = "redrive.note"
"""Under this name an event says why it does not carry the input; no parameter can be called so."""

_FAILED_STATUSES = frozenset({RunStatus.FAILED, RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT, RunStatus.COMPENSATED})
_MAX_DEPTH = 190  # levels of an input: inside an event it must still be readable


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """What a failure handler is told.

    `step` is the step that failed, if it was one; `attempts` how often that was tried. `error` is the error
    in words; `category` and `code` are those of the dead letter. `input` is the failed run's, an object from
    parameter to value; one too large to be passed on is replaced by a note. `started_at` is None if no worker
    ever took the run up. `url` leads to the run where `REDRIVE_BASE_URL` is set.
    """

    run_id: str
    workflow: str
    tenant: str
    step: str | None
    error: str
    category: str
    code: str
    input: Any
    attempts: int
    started_at: datetime | None
    failed_at: datetime
    url: str = ""


def add_handler_runs(decided: Transition, run: RunView, now: int) -> Transition:
    """The transition with a new run for each handler, if it ends the run in failure.

    Nothing that was itself started to handle a failure gets one: a handler that fails has its letter.
    """
    rules, change = run.options.on_failure, decided.change
    if rules is None or run.handler_for is not None or change is None or change.status not in _FAILED_STATUSES:
        return decided
    # Where a rollback got stuck, only its letter says how: the run keeps what it is rolled back for.
    failure = change.failure or (None if decided.letter is None else decided.letter.failure)
    if failure is None:
        return decided
    event = encode_event(run, FailureReason.from_json(failure), rules, now)
    started = tuple(_build_handler_run(run, handler, event, now) for handler in rules.handlers)
    return replace(decided, starts=(*decided.starts, *started))


def _build_handler_run(run: RunView, handler: FailureHandler, event: str, now: int) -> NewRun:
    text = f"{{{json.dumps(handler.parameter)}:{event}}}"
    return NewRun(
        public_id=handler_run_id(run.public_id, run.fence, handler.workflow, now),
        tenant=run.tenant,
        workflow=handler.workflow,
        input=text,
        options=add_trace(handler.options, run.options.trace),
        timeout=handler.timeout,
        correlation_id=run.correlation_id or run.public_id,
        parent=run.public_id,
        handler_for=run.public_id,
        index=extract_index_values(text, RunOptions.from_json(handler.options).index),
    )


def encode_event(run: RunView, ending: FailureReason, rules: OnFailure, now: int) -> str:
    """The event as JSON text, with the input as it was stored, as far as that can be passed on."""
    failure = ending.failure
    facts = {
        "run_id": run.public_id,
        "workflow": run.workflow,
        "tenant": run.tenant,
        "step": ending.step,
        "error": f"{failure.short_type}: {failure.message}",
        "category": failure.category.value,
        "code": ending.code.value,
        "attempts": ending.attempts,
        "started_at": None if run.started_at is None else to_datetime(run.started_at).isoformat(),
        "failed_at": to_datetime(now).isoformat(),
        "url": rules.base_url + run_page_path(run.public_id) if rules.base_url else "",
    }
    text = json.dumps(facts)[:-1]
    size = len(text) + len(run.input.encode("utf-8", "surrogatepass"))
    return f'{text},"input":{_choose_event_input(run, size <= rules.limit - _PARAMETER_ALLOWANCE)}}}'


_PARAMETER_ALLOWANCE = 300  # for the name of the handler's parameter


def _choose_event_input(run: RunView, fits: bool) -> str:
    """The run's input, or a note that says where it is."""
    why = None if fits else "is too large for an event"
    if why is None:
        try:
            why = "is nested too deeply for an event" if _is_too_deep(json.loads(run.input)) else None
        except (ValueError, RecursionError):
            why = "could not be read where the failure was noticed"
    if why is None:
        return run.input
    return json.dumps({INPUT_NOTE_KEY: f"the input {why}: see run {run.public_id}, `redrive runs show` prints it"})


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return False
    return True


def _children(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
