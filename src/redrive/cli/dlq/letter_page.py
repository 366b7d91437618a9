"""The page of one dead letter, readable for users who are not programmers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

import msgspec

from redrive.cli.hints import hint
from redrive.cli.output import (
    as_json,
    escape_line,
    fold_text,
    format_age,
    render_facts,
    render_payload,
    style_text,
    terminal_width,
)
from redrive.cli.replay_decision import describe_mode, render_changes
from redrive.cli.runs.timeline import render_timeline
from redrive.core.audit import REPLAY_EVENTS, AuditEvent
from redrive.core.failure_reason import FIXABLE_BY_EDIT, LetterCode
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import CLOSED_LETTER_STATUSES, EXECUTED_KINDS, LetterStatus, StepStatus
from redrive.desk.models import AuditRecord, DeadLetter, LetterOutcome, Run, StepRecord, find_letter_outcome
from redrive.desk.runs import find_start_of_lost_child
from redrive.policy import RetryPolicy

_CODE_TEXTS = {
    LetterCode.COMPENSATION_FAILED: "The rollback failed.",
    LetterCode.INFRASTRUCTURE_FAILURE: "The worker crashed, or the database failed.",
    LetterCode.PARSE_ERROR: "The input cannot be read.",
    LetterCode.VALIDATION_FAILED: "Some of the data is invalid. Correct it and run it again.",
    LetterCode.POLICY_VIOLATION: "The code or the data broke a rule. Ask a developer.",
    LetterCode.TIMEOUT: "It exceeded its time limit.",
    LetterCode.EXHAUSTED_RETRIES: "All attempts failed.",
    LetterCode.DEPENDENCY_UNAVAILABLE: "A service that it needs did not answer.",
    LetterCode.NON_RETRYABLE: "Retrying does not help with this error.",
}
_STATUS_TEXTS = {StepStatus.DLQ: "failed", StepStatus.RETRYING: "retry scheduled"}
_REPLAY_TEXTS = {
    None: "in progress",
    "SUCCESS": "it succeeded",
    "PARTIAL": "the step succeeded, more steps would follow",
    "COMPENSATED": "it was rolled back",
    "CANCELLED": "it was cancelled",
}
_OUTCOME_TEXTS = {
    LetterOutcome.SUCCEEDED: "It was run again and succeeded. Nothing is left to do.",
    LetterOutcome.PARTLY_SUCCEEDED: "Its failed step alone was run again and succeeded. The run is not finished.",
    LetterOutcome.UNDONE: "Its run was rolled back. Nothing is left to do.",
    LetterOutcome.CANCELLED: (
        "It was run again and cancelled before it ended. Its work was not done, and a cancelled run cannot "
        "continue: start a new run if the work is still needed."
    ),
    LetterOutcome.REPLAY_RUNNING: "It was run again as run {run}, which is in progress.",
    LetterOutcome.FAILED_AGAIN: "It was run again and failed again.",
    LetterOutcome.EXPIRED: "It expired without a decision. Its work was not done.",
    LetterOutcome.CLOSED: "It was closed as {status}{by}{why}. Nothing is left to do.",
}
_RERUN_PURPOSES = {
    LetterOutcome.PARTLY_SUCCEEDED: "continue it",
    LetterOutcome.FAILED_AGAIN: "run it again",
    LetterOutcome.EXPIRED: "run it again",
    LetterOutcome.CLOSED: "run it anyway",
}
_MAX_RESULT_LENGTH = 200  # of a step's result
_MAX_STACK_LINES = 8


class OutcomeAdvice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The outcome of a closed letter as a sentence, and the next command with its purpose, if there is one."""

    sentence: str
    purpose: str = ""
    command: tuple[str, ...] = ()


def advise_on_outcome(letter: DeadLetter) -> OutcomeAdvice | None:
    """Return the outcome of a closed letter and the next command; None while the letter is not closed."""
    outcome = find_letter_outcome(letter)
    if outcome is None:
        return None
    run = letter.replays[-1].run_id if letter.replays else letter.run_id
    by = f" by {letter.closed_by}" if letter.closed_by else ""
    why = f": {escape_line(letter.resolution)}" if letter.resolution else ""
    sentence = _OUTCOME_TEXTS[outcome].format(run=run, status=letter.status, by=by, why=why)
    purpose = _RERUN_PURPOSES.get(outcome)
    if purpose is None:
        return OutcomeAdvice(sentence=sentence, purpose="see how it ended", command=("runs", "show", run))
    if letter.purged:
        return OutcomeAdvice(sentence=f"{sentence} Its run was purged, so it cannot run again.")
    return OutcomeAdvice(sentence=sentence, purpose=purpose, command=("runs", "retry", letter.run_id))


def render_letter(letter: DeadLetter, waiting: Sequence[Run] = ()) -> list[str]:
    """Render the lines of `dlq show`. `waiting`: runs that wait for the run of the letter."""
    over = letter.status is not LetterStatus.REPLAYING
    timeline = render_timeline(letter.steps, now=letter.failed_at, width=terminal_width(), over=over)
    commands = _list_next_commands(letter)
    width = max((len(title) + 1 for title, _ in commands), default=0)
    sections = {
        "attempts": timeline,
        "input": render_payload("input", letter.input)[1:],
        "step results": _render_results(letter),
        "activity": _render_history(letter),
        "for developers": _render_technical(letter),
        "next commands": [f"  {title + ':':<{width}} {hint(*words)}" for title, words in commands],
    }
    is_closed = letter.status in CLOSED_LETTER_STATUSES
    status = style_text(letter.status, fg="green" if is_closed else "red", bold=True)
    lines = [
        f"dead letter {letter.id}  {escape_line(letter.workflow)}  {status}",
        "",
        *(fold_text(f"  {line}", sys.stdout) for line in (*_explain_letter(letter), *_explain_waiting(waiting))),
        "",
        *render_facts(
            owner=letter.owner or (None if is_closed else "unassigned"),
            tags=" ".join(letter.tags) or None,
            escalated=letter.escalated_to and f"to {letter.escalated_to}",
            correlation=letter.correlation_id,
            trace=letter.trace_id,
            handler_for=letter.handler_for,
            handled_by=" ".join(letter.handled_by) or None,
            tenant=None if letter.tenant == DEFAULT_TENANT else letter.tenant,
            kept_until="forever" if letter.expires_at is None else f"{letter.expires_at:%Y-%m-%d %H:%M} UTC",
        ),
    ]
    for title, content in sections.items():
        lines += ["", style_text(title, bold=True), *content] if content else []
    return lines


def _explain_letter(letter: DeadLetter) -> Iterator[str]:
    """Yield what happened, the kind of failure, and the state of the letter."""
    subject = f"step {letter.step!r} of {letter.workflow!r}" if letter.step else f"workflow {letter.workflow!r}"
    times = f", after {letter.attempts} attempts" if letter.attempts > 1 else ""
    message = escape_line(" ".join(letter.message.split())) or letter.error_type
    when = f"{letter.failed_at:%Y-%m-%d %H:%M:%S} UTC ({format_age(letter.failed_at)})"
    yield f"{when} {subject} failed{times}: {message}"
    yield _CODE_TEXTS[LetterCode(letter.code)]
    outcome = advise_on_outcome(letter)
    if outcome is not None:
        yield outcome.sentence
    elif letter.status is LetterStatus.REPLAYING:
        yield f"It is running again, as run {letter.run_id}."
    elif letter.failed_replays:
        times = "once" if letter.failed_replays == 1 else f"{letter.failed_replays} times"
        yield f"It was run again {times} and failed again. It needs a decision."
    else:
        yield "It needs a decision."


def _explain_waiting(waiting: Sequence[Run]) -> Iterator[str]:
    if waiting:
        names = ", ".join(f"{run.id} ({escape_line(run.workflow)})" for run in waiting)
        yield f"These runs wait for it: {names}. They continue when it succeeds."
        yield "If the letter is closed without a replay, they get the error ChildFailed."


def _render_results(letter: DeadLetter) -> list[str]:
    interrupted = _find_interrupted_steps(letter)
    lines = []
    for step in letter.steps:
        if step.kind not in EXECUTED_KINDS:
            continue
        if step in interrupted:
            result = "cut short, outcome unknown"
        elif step.status in (StepStatus.SUCCESS, StepStatus.SKIPPED):
            value = escape_line(json.dumps(as_json(step.output), ensure_ascii=False))
            if len(value) > _MAX_RESULT_LENGTH:
                value = f"{value[: _MAX_RESULT_LENGTH - 1]}… (--json shows all)"
            result = ("given by hand: " if step.by_hand else "") + value
        else:
            result = f"{_STATUS_TEXTS.get(step.status, step.status.lower())}, no result"
        replaced = ", replaced by a replay" if step.superseded else ""
        line = f"  {step.index} {escape_line(step.name)}{replaced}: {result}"
        lines.append(fold_text(line, sys.stdout, deeper="    "))
    return lines


def _find_interrupted_steps(letter: DeadLetter) -> list[StepRecord]:
    """Return the steps that were in progress when the run ended."""
    if letter.status is LetterStatus.REPLAYING:
        return []
    steps = (step for step in letter.steps if step.kind in EXECUTED_KINDS and not step.superseded)
    return [step for step in steps if step.status is StepStatus.RUNNING]


def _render_history(letter: DeadLetter) -> list[str]:
    """Render the replays with their results, and the other audit records of the letter, in order of time."""
    entries = []
    for replay in letter.replays:
        result = _REPLAY_TEXTS.get(replay.outcome, "failed again")
        text = f"ran it again, {describe_mode(replay.mode)}: {result}"
        entries.append((replay.at, replay.by, text, replay.reason, render_changes(replay.changes)))
    for record in letter.history:
        if record.event not in REPLAY_EVENTS:
            entries.append((record.at, record.by, _describe_record(record), record.reason, []))
    lines = []
    for at, by, text, reason, changes in sorted(entries, key=lambda entry: entry[0]):
        why = f" ({escape_line(reason)})" if reason else ""
        line = f"  {at:%Y-%m-%d %H:%M} {escape_line(by)}: {text}{why}"
        lines += [fold_text(line, sys.stdout, deeper="    "), *(f"      {change}" for change in changes)]
    return lines


def _describe_record(record: AuditRecord) -> str:
    value = escape_line(str(record.after)) if record.after else ""
    if record.event == AuditEvent.LETTER_COMMENTED:
        return f"commented: {value}"
    if record.event == AuditEvent.LETTER_ASSIGNED:
        return f"assigned it to {value}" if value else "unassigned it"
    if record.event == AuditEvent.LETTER_TAGGED:
        return f"tagged it: {value or 'no tags'}"
    return record.label


def _render_technical(letter: DeadLetter) -> list[str]:
    return [
        *render_facts(
            error=f"{letter.error_type}: {letter.message}",
            reason=letter.reason,
            code=f"{letter.code}, at stage {letter.stage}",
            category=letter.category,
            policy=None if letter.policy is None else RetryPolicy.from_stored(letter.policy).summarise(),
            fingerprint=letter.fingerprint,
            version=letter.version,
        ),
        *(f"    {escape_line(line)}" for line in letter.stack.splitlines()[-_MAX_STACK_LINES:]),
        f"  the whole run:  {hint('runs', 'show', letter.run_id)}",
    ]


def _list_next_commands(letter: DeadLetter) -> list[tuple[str, tuple[str, ...]]]:
    """List the next commands with their titles, the most likely one first."""
    id, run = letter.id, letter.run_id
    if letter.status is LetterStatus.REPLAYING:
        return [("follow it", ("runs", "watch", run))]
    outcome = advise_on_outcome(letter)
    if outcome is not None:
        return [(outcome.purpose, outcome.command)] if outcome.command else []
    resolve = ("resolve", ("dlq", "resolve", id, "--reason", "TEXT"))
    if letter.code == LetterCode.COMPENSATION_FAILED:
        return [
            ("see rollback", ("saga", "show", run)),
            ("resume", ("saga", "resume", run)),
            ("skip a step", ("saga", "skip", run, "STEP")),
            ("mark as done", ("saga", "done", run, "STEP")),
            resolve,
        ]
    again: tuple[str, ...] = ("dlq", "replay", id)
    if (start := find_start_of_lost_child(letter)) is not None:
        again = (*again, "--from-step", str(start.index), "--new-operation")
        replays = [("start a new child", again)]
    else:
        replays = [("run it again", again), ("correct it", ("dlq", "edit", id))]
    if letter.code in FIXABLE_BY_EDIT:
        replays.reverse()
    complete = ("enter result", ("dlq", "complete", id, "--output", "JSON"))
    return [
        *replays,
        ("preview", (*again, "--dry-run")),
        *([complete] if letter.step or _find_interrupted_steps(letter) else []),
        ("assign to me", ("dlq", "assign", id)),
        ("comment", ("dlq", "comment", id, "TEXT")),
        resolve,
        ("ignore", ("dlq", "ignore", id, "--reason", "TEXT")),
    ]
