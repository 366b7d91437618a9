"""One dead letter as a person reads it, who need not be a programmer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime

from redrive.cli.dlq.decision import describe_mode, render_changes
from redrive.cli.dlq.lookup import advise_on_outcome
from redrive.cli.messages import hint
from redrive.cli.output import as_json, escape_line, fold_text, format_age, style_text
from redrive.cli.runs.explain import render_facts, render_payload, render_timeline, terminal_width
from redrive.core.audit import REPLAY_EVENTS, AuditEvent
from redrive.core.failure_reason import FIXABLE_BY_EDIT, LetterCode
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import CLOSED_LETTER_STATUSES, EXECUTED_KINDS, LetterStatus, StepStatus
from redrive.desk.models import AuditRecord, DeadLetter, ReplayRecord, StepRecord
from redrive.policy import RetryPolicy

_CODE_TEXTS = {
    LetterCode.COMPENSATION_FAILED: "undoing what was done failed as well",
    LetterCode.INFRASTRUCTURE_FAILURE: "workers died with it, or the store under it failed",
    LetterCode.PARSE_ERROR: "its input cannot be read",
    LetterCode.VALIDATION_FAILED: "some of its data is not as it must be; correcting the input may mend it",
    LetterCode.POLICY_VIOLATION: "its code or its data is not what it may be; a developer must look",
    LetterCode.TIMEOUT: "it took longer than it may",
    LetterCode.EXHAUSTED_RETRIES: "it was tried as often as it may be, and failed each time",
    LetterCode.DEPENDENCY_UNAVAILABLE: "a service that it needs did not answer",
    LetterCode.NON_RETRYABLE: "the error is of a kind that trying again does not mend",
}
_STATUS_TEXTS = {StepStatus.DLQ: "failed", StepStatus.RETRYING: "to be tried again"}
_OUTCOME_TEXTS = {
    None: "it is under way",
    "SUCCESS": "it succeeded",
    "PARTIAL": "that step succeeded, more would follow",
    "COMPENSATED": "everything was undone",
    "CANCELLED": "it was cancelled before it ended",
}
_MAX_RESULT_LENGTH = 200  # of a step's result
_MAX_STACK_LINES = 8


def render_letter(letter: DeadLetter) -> list[str]:
    """The lines of `dlq show`."""
    return [
        *_render_header(letter),
        *_render_section("what was tried", _render_attempts(letter)),
        *_render_section("the input", render_payload("input", letter.input)[1:]),
        *_render_section("what the steps gave", list(_render_results(letter))),
        *_render_section("what was done about it", _render_history(letter)),
        *_render_section("for a developer", _render_technical(letter)),
        *_render_section("what you can do now", list(_list_next_commands(letter))),
    ]


def _render_header(letter: DeadLetter) -> list[str]:
    status = style_text(letter.status, fg="green" if letter.status in CLOSED_LETTER_STATUSES else "red", bold=True)
    what = [fold_text(f"  {line}", sys.stdout) for line in _explain_letter(letter)]
    return [
        f"dead letter {letter.id}  {escape_line(letter.workflow)}  {status}",
        "",
        *what,
        "",
        *render_facts(
            owner=letter.owner or (None if letter.status in CLOSED_LETTER_STATUSES else "nobody yet"),
            tags=" ".join(letter.tags) or None,
            correlation=letter.correlation_id,
            trace=letter.trace_id,
            handler_for=letter.handler_for,
            handled_by=" ".join(letter.handled_by) or None,
            tenant=None if letter.tenant == DEFAULT_TENANT else letter.tenant,
            kept_until=f"{letter.expires_at:%Y-%m-%d} UTC",
        ),
    ]


def _explain_letter(letter: DeadLetter) -> Iterator[str]:
    """What happened, why it is here, and how it stands, each in a sentence."""
    what = f"step {letter.step!r} of {letter.workflow!r}" if letter.step else f"workflow {letter.workflow!r}"
    times = f", after {letter.attempts} attempts" if letter.attempts > 1 else ""
    said = escape_line(" ".join(letter.message.split()))
    when = f"{_format_time(letter.failed_at)} ({format_age(letter.failed_at)})"
    yield f"{when} {what} failed{times}: {said or letter.error_type}"
    yield f"It is here because {_CODE_TEXTS[LetterCode(letter.code)]}."
    match letter.status:
        case LetterStatus.OPEN if letter.replay_count:
            times = _format_times(letter.replay_count)
            yield f"It was run again {times} since, and failed again. It waits for a person."
        case LetterStatus.OPEN:
            yield "It waits for a person."
        case LetterStatus.REPLAYING:
            yield f"It is running again, as run {letter.run_id}."
        case LetterStatus.RESOLVED | LetterStatus.IGNORED | LetterStatus.EXPIRED:
            stands = advise_on_outcome(letter)
            assert stands is not None
            yield stands.sentence


def _render_attempts(letter: DeadLetter) -> list[str]:
    over = letter.status is not LetterStatus.REPLAYING
    return render_timeline(letter.steps, now=letter.failed_at, width=terminal_width(), over=over)


def _render_results(letter: DeadLetter) -> Iterator[str]:
    for step in letter.steps:
        if step.kind not in EXECUTED_KINDS:
            continue
        cut_short = step in _find_interrupted_steps(letter)
        gave = "cut short, nobody knows whether it happened" if cut_short else _describe_step_result(step)
        before = ", set aside by a replay" if step.superseded else ""
        yield fold_text(f"  {step.index} {escape_line(step.name)}{before}: {gave}", sys.stdout, deeper="    ")


def _find_interrupted_steps(letter: DeadLetter) -> list[StepRecord]:
    """Steps that were under way when the run ended."""
    if letter.status is LetterStatus.REPLAYING:
        return []
    steps = (step for step in letter.steps if step.kind in EXECUTED_KINDS and not step.superseded)
    return [step for step in steps if step.status is StepStatus.RUNNING]


def _describe_step_result(step: StepRecord) -> str:
    if step.status in (StepStatus.SUCCESS, StepStatus.SKIPPED):
        return ("given by hand: " if step.by_hand else "") + _format_value(step.output)
    return f"{_STATUS_TEXTS.get(step.status, step.status.lower())}, no result"


def _render_history(letter: DeadLetter) -> list[str]:
    """Replays with how they ended, and all else that the audit log knows of the letter, in order of time."""
    told = [(replay.at, _render_replay(replay)) for replay in letter.replays]
    told += [(line.at, _render_audit_entry(line)) for line in letter.history if line.event not in REPLAY_EVENTS]
    return [line for _, lines in sorted(told, key=lambda pair: pair[0]) for line in lines]


def _render_replay(replay: ReplayRecord) -> list[str]:
    ended = _OUTCOME_TEXTS.get(replay.outcome, "failed again")
    return [
        _format_entry(replay.at, replay.by, f"ran it again, {describe_mode(replay.mode)}: {ended}", replay.reason),
        *(f"      {line}" for line in render_changes(replay.changes)),
    ]


def _render_audit_entry(line: AuditRecord) -> list[str]:
    return [_format_entry(line.at, line.by, _describe_audit_entry(line), line.reason)]


def _describe_audit_entry(line: AuditRecord) -> str:
    if line.event == AuditEvent.LETTER_COMMENTED:
        return f"said: {escape_line(str(line.after))}"
    if line.event == AuditEvent.LETTER_ASSIGNED:
        return f"assigned it to {escape_line(str(line.after)) if line.after else 'nobody'}"
    if line.event == AuditEvent.LETTER_TAGGED:
        return f"tagged it: {escape_line(str(line.after)) or 'no tags'}"
    return line.label


def _format_entry(at: datetime, by: str, text: str, reason: str | None) -> str:
    why = f" ({escape_line(reason)})" if reason else ""
    return fold_text(f"  {at:%Y-%m-%d %H:%M} {escape_line(by)}: {text}{why}", sys.stdout, deeper="    ")


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


def _list_next_commands(letter: DeadLetter) -> Iterator[str]:
    """The commands that lead on, the most likely one first."""
    if letter.status is LetterStatus.REPLAYING:
        yield _format_command("follow it", "runs", "watch", letter.run_id)
        return
    stands = advise_on_outcome(letter)
    if stands is not None:
        if stands.command:
            yield _format_command(stands.title, *stands.command)
        return
    if letter.code == LetterCode.COMPENSATION_FAILED:
        yield _format_command("what is undone", "saga", "show", letter.run_id)
        yield _format_command("go on with it", "saga", "resume", letter.run_id)
        yield _format_command("leave it out", "saga", "skip", letter.run_id, "STEP")
        yield _format_command("done by hand", "saga", "done", letter.run_id, "STEP")
        yield _format_command("settled", "dlq", "resolve", letter.id, "--reason", "TEXT")
        return
    again, edit = (
        _format_command("run it again", "dlq", "replay", letter.id),
        _format_command("correct it", "dlq", "edit", letter.id),
    )
    yield from (edit, again) if letter.code in FIXABLE_BY_EDIT else (again, edit)
    yield _format_command("look first", "dlq", "replay", letter.id, "--dry-run")
    if letter.step or _find_interrupted_steps(letter):
        yield _format_command("done by hand", "dlq", "complete", letter.id, "--output", "JSON")
    yield _format_command("take it", "dlq", "assign", letter.id)
    yield _format_command("comment", "dlq", "comment", letter.id, "TEXT")
    yield _format_command("settled", "dlq", "resolve", letter.id, "--reason", "TEXT")
    yield _format_command("not needed", "dlq", "ignore", letter.id, "--reason", "TEXT")


def _format_command(title: str, *words: str) -> str:
    return f"  {title + ':':<13} {hint(*words)}"


def _render_section(title: str, lines: list[str]) -> list[str]:
    return ["", style_text(title, bold=True), *lines] if lines else []


def _format_value(value: object) -> str:
    text = escape_line(json.dumps(as_json(value), ensure_ascii=False))
    return text if len(text) <= _MAX_RESULT_LENGTH else f"{text[: _MAX_RESULT_LENGTH - 1]}… (--json shows all)"


def _format_times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
