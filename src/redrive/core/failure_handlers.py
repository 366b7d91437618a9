"""Failure handlers: the runs that a failed run starts, and the event that they get.

A handler is an ordinary workflow. Every run carries a snapshot of its handlers. So the failure and the handler's run
are one transition, also where a process without the code decides on it: another worker, the reaper or the server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redrive.core.classify import Category
from redrive.core.failure import Failure
from redrive.core.failure_reason import FailureReason, LetterCode
from redrive.core.json_schema import is_deeper
from redrive.core.keys_and_ids import handler_run_id
from redrive.core.new_run import extract_index_values
from redrive.core.outcomes import RunView
from redrive.core.run_options import OnFailure, RunOptions, add_option, add_trace
from redrive.core.secret_and_sealed_text import is_sealed, make_sealed_value
from redrive.core.states import RunStatus
from redrive.core.transitions import NewRun, Transition
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.settings import run_page_path
from redrive.time_values import to_datetime

INPUT_NOTE_KEY = "redrive.note"
"""The key of the note that replaces an input in an event. No parameter can have this name."""

_FAILED_STATUSES = frozenset({RunStatus.FAILED, RunStatus.DLQ_PENDING, RunStatus.TIMED_OUT, RunStatus.COMPENSATED})
_MAX_DEPTH = 189  # levels of an input: inside an event it must still be readable
_PARAMETER_ALLOWANCE = 300  # bytes for the name of the handler's parameter


@dataclass(frozen=True, slots=True)
class FailureEvent:
    """The argument of a failure handler.

    `step` is the step that failed, if one did, and `attempts` the number of its attempts. `error` is the type and
    message of the error; `category` and `code` are those of the dead letter. `input` is the input of the failed run, an
    object from parameter to value; a note replaces one that is too large. `started_at` is None if no worker executed
    the run. `url` is the page of the run where `REDRIVE_BASE_URL` is set. `queue` is the queue of the failed run. The
    handler's run is in it, too, unless `failure_queue` names another.
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
    queue: str = "default"


def add_handler_runs(decided: Transition, run: RunView, now: int) -> Transition:
    """Add a new run for each handler to a transition that ends its run in failure.

    A handler that fails itself has a dead letter, but starts no handlers.
    """
    rules, change = run.options.on_failure, decided.change
    if rules is None or run.handler_for is not None or change is None or change.status not in _FAILED_STATUSES:
        return decided
    # If a rollback stopped, only the letter holds its failure: the run keeps the one that it is rolled back for.
    failure = change.failure or (None if decided.letter is None else decided.letter.failure)
    if failure is None:
        return decided
    event = encode_event(run, FailureReason.from_json(failure), rules, now)
    started, trace = [], run.options.trace
    for handler in rules.handlers:
        text = f"{{{json.dumps(handler.parameter)}:{event}}}"
        options = handler.options if trace is None else add_trace(handler.options, trace)
        new = NewRun(
            public_id=handler_run_id(run.public_id, run.fence, handler.workflow, now),
            tenant=run.tenant,
            workflow=handler.workflow,
            input=text,
            options=add_option(options, "started_by", run.options.started_by or f"run:{run.public_id}"),
            queue=rules.queue or run.queue,
            timeout=handler.timeout,
            correlation_id=run.correlation_id or run.public_id,
            parent=run.public_id,
            handler_for=run.public_id,
            index=extract_index_values(text, RunOptions.from_json(handler.options).index),
        )
        started.append(new)
    return replace(decided, starts=(*decided.starts, *started))


def make_sample_event() -> str:
    """Return an event as JSON text whose optional fields are all missing, to try handlers with."""
    failure = Failure.of(Category.UNKNOWN, "a sample")
    ending = FailureReason(
        failure=failure, code=LetterCode.NON_RETRYABLE, reason=Reason(ReasonCode.TEXT, text="a sample")
    )
    run = RunView(id=0, public_id="0", tenant="t", workflow="w", fence=0, input="{}", options=RunOptions())
    return encode_event(run, ending, OnFailure(handlers=(), limit=1 << 20), 0)


def encode_event(run: RunView, ending: FailureReason, rules: OnFailure, now: int) -> str:
    """Return the event as JSON text, with the input as it was stored or a note instead."""
    failure = ending.failure
    facts = {
        "run_id": run.public_id,
        "workflow": run.workflow,
        "tenant": run.tenant,
        "step": ending.step,
        "error": f"{failure.short_type}: {failure.message}",  # a worker decrypts a message that is encrypted
        "category": failure.category.value,
        "code": ending.code.value,
        "attempts": ending.attempts,
        "started_at": None if run.started_at is None else to_datetime(run.started_at).isoformat(),
        "failed_at": to_datetime(now).isoformat(),
        "url": rules.base_url + run_page_path(run.public_id) if rules.base_url else "",
        "queue": run.queue,
    }
    text = json.dumps(facts)[:-1]
    input = json.dumps(make_sealed_value(run.input)) if is_sealed(run.input) else run.input
    size = len(text) + len(input.encode("utf-8", "surrogatepass"))
    problem = None
    try:
        if size > rules.limit - _PARAMETER_ALLOWANCE:
            problem = "is too large for an event"
        elif is_deeper(json.loads(input), _MAX_DEPTH):
            problem = "is nested too deeply for an event"
    except (ValueError, RecursionError):
        problem = "could not be read when the failure was recorded"
    if problem is not None:
        note = f"the input {problem}: see run {run.public_id}, `redrive runs show` prints it"
        input = json.dumps({INPUT_NOTE_KEY: note})
    return f'{text},"input":{input}}}'
