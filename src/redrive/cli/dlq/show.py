"""One dead letter as a person reads it, who need not be a programmer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime

from redrive.cli.dlq.decision import differences, way
from redrive.cli.dlq.lookup import standing
from redrive.cli.messages import hint
from redrive.cli.output import ago, as_json, clean, folded, styled
from redrive.cli.runs.explain import facts, payload, timeline, width
from redrive.core.audit import OF_REPLAYS, Event
from redrive.core.failure_reason import MENDED_BY_EDIT, LetterCode
from redrive.core.roles import DEFAULT_TENANT
from redrive.core.states import CLOSED, EXECUTED, LetterStatus, StepStatus
from redrive.desk.models import AuditRecord, DeadLetter, ReplayRecord, StepRecord
from redrive.policy import RetryPolicy

__all__ = ["story"]


_WHY = {
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
_WORDS = {StepStatus.DLQ: "failed", StepStatus.RETRYING: "to be tried again"}
_ENDED = {
    None: "it is under way",
    "SUCCESS": "it succeeded",
    "PARTIAL": "that step succeeded, more would follow",
    "COMPENSATED": "everything was undone",
    "CANCELLED": "it was cancelled before it ended",
}
_LENGTH = 200  # of a step's result
_STACK = 8


def story(letter: DeadLetter) -> list[str]:
    """The lines of `dlq show`."""
    return [
        *_head(letter),
        *_section("what was tried", _tried(letter)),
        *_section("the input", payload("input", letter.input)[1:]),
        *_section("what the steps gave", list(_results(letter))),
        *_section("what was done about it", _done(letter)),
        *_section("for a developer", _technical(letter)),
        *_section("what you can do now", list(_next(letter))),
    ]


def _head(letter: DeadLetter) -> list[str]:
    status = styled(letter.status, fg="green" if letter.status in CLOSED else "red", bold=True)
    what = [folded(f"  {line}", sys.stdout) for line in _sentences(letter)]
    return [
        f"dead letter {letter.id}  {clean(letter.workflow)}  {status}",
        "",
        *what,
        "",
        *facts(
            owner=letter.owner or (None if letter.status in CLOSED else "nobody yet"),
            tags=" ".join(letter.tags) or None,
            correlation=letter.correlation_id,
            trace=letter.trace_id,
            handler_for=letter.handler_for,
            handled_by=" ".join(letter.handled_by) or None,
            tenant=None if letter.tenant == DEFAULT_TENANT else letter.tenant,
            kept_until=f"{letter.expires_at:%Y-%m-%d} UTC",
        ),
    ]


def _sentences(letter: DeadLetter) -> Iterator[str]:
    """What happened, why it is here, and how it stands, each in a sentence."""
    what = f"step {letter.step!r} of {letter.workflow!r}" if letter.step else f"workflow {letter.workflow!r}"
    times = f", after {letter.attempts} attempts" if letter.attempts > 1 else ""
    said = clean(" ".join(letter.message.split()))
    when = f"{_clock(letter.failed_at)} ({ago(letter.failed_at)})"
    yield f"{when} {what} failed{times}: {said or letter.error_type}"
    yield f"It is here because {_WHY[LetterCode(letter.code)]}."
    match letter.status:
        case LetterStatus.OPEN if letter.replay_count:
            times = _times(letter.replay_count)
            yield f"It was run again {times} since, and failed again. It waits for a person."
        case LetterStatus.OPEN:
            yield "It waits for a person."
        case LetterStatus.REPLAYING:
            yield f"It is running again, as run {letter.run_id}."
        case LetterStatus.RESOLVED | LetterStatus.IGNORED | LetterStatus.EXPIRED:
            stands = standing(letter)
            assert stands is not None
            yield stands.sentence


def _tried(letter: DeadLetter) -> list[str]:
    over = letter.status is not LetterStatus.REPLAYING
    return timeline(letter.steps, now=letter.failed_at, width=width(), over=over)


def _results(letter: DeadLetter) -> Iterator[str]:
    for step in letter.steps:
        if step.kind not in EXECUTED:
            continue
        cut_short = step in _cut_short(letter)
        gave = "cut short, nobody knows whether it happened" if cut_short else _gave(step)
        before = ", set aside by a replay" if step.superseded else ""
        yield folded(f"  {step.index} {clean(step.name)}{before}: {gave}", sys.stdout, deeper="    ")


def _cut_short(letter: DeadLetter) -> list[StepRecord]:
    """Steps that were under way when the run ended."""
    if letter.status is LetterStatus.REPLAYING:
        return []
    steps = (step for step in letter.steps if step.kind in EXECUTED and not step.superseded)
    return [step for step in steps if step.status is StepStatus.RUNNING]


def _gave(step: StepRecord) -> str:
    if step.status in (StepStatus.SUCCESS, StepStatus.SKIPPED):
        return ("given by hand: " if step.by_hand else "") + _short(step.output)
    return f"{_WORDS.get(step.status, step.status.lower())}, no result"


def _done(letter: DeadLetter) -> list[str]:
    """Replays with how they ended, and all else that the audit log knows of the letter, in order of time."""
    told = [(replay.at, _replayed(replay)) for replay in letter.replays]
    told += [(line.at, _noted(line)) for line in letter.history if line.event not in OF_REPLAYS]
    return [line for _, lines in sorted(told, key=lambda pair: pair[0]) for line in lines]


def _replayed(replay: ReplayRecord) -> list[str]:
    ended = _ENDED.get(replay.outcome, "failed again")
    return [
        _line(replay.at, replay.by, f"ran it again, {way(replay.mode)}: {ended}", replay.reason),
        *(f"      {line}" for line in differences(replay.changes)),
    ]


def _noted(line: AuditRecord) -> list[str]:
    return [_line(line.at, line.by, _said(line), line.reason)]


def _said(line: AuditRecord) -> str:
    if line.event == Event.LETTER_COMMENTED:
        return f"said: {clean(str(line.after))}"
    if line.event == Event.LETTER_ASSIGNED:
        return f"assigned it to {clean(str(line.after)) if line.after else 'nobody'}"
    if line.event == Event.LETTER_TAGGED:
        return f"tagged it: {clean(str(line.after)) or 'no tags'}"
    return line.label


def _line(at: datetime, by: str, text: str, reason: str | None) -> str:
    why = f" ({clean(reason)})" if reason else ""
    return folded(f"  {at:%Y-%m-%d %H:%M} {clean(by)}: {text}{why}", sys.stdout, deeper="    ")


def _technical(letter: DeadLetter) -> list[str]:
    return [
        *facts(
            error=f"{letter.error_type}: {letter.message}",
            reason=letter.reason,
            code=f"{letter.code}, at stage {letter.stage}",
            category=letter.category,
            policy=None if letter.policy is None else RetryPolicy.from_stored(letter.policy).in_short(),
            fingerprint=letter.fingerprint,
            version=letter.version,
        ),
        *(f"    {clean(line)}" for line in letter.stack.splitlines()[-_STACK:]),
        f"  the whole run:  {hint('runs', 'show', letter.run_id)}",
    ]


def _next(letter: DeadLetter) -> Iterator[str]:
    """The commands that lead on, the most likely one first."""
    if letter.status is LetterStatus.REPLAYING:
        yield _way("follow it", "runs", "watch", letter.run_id)
        return
    stands = standing(letter)
    if stands is not None:
        if stands.command:
            yield _way(stands.title, *stands.command)
        return
    if letter.code == LetterCode.COMPENSATION_FAILED:
        yield _way("what is undone", "saga", "show", letter.run_id)
        yield _way("go on with it", "saga", "resume", letter.run_id)
        yield _way("leave it out", "saga", "skip", letter.run_id, "STEP")
        yield _way("done by hand", "saga", "done", letter.run_id, "STEP")
        yield _way("settled", "dlq", "resolve", letter.id, "--reason", "TEXT")
        return
    again, edit = (
        _way("run it again", "dlq", "replay", letter.id),
        _way("correct it", "dlq", "edit", letter.id),
    )
    yield from (edit, again) if letter.code in MENDED_BY_EDIT else (again, edit)
    yield _way("look first", "dlq", "replay", letter.id, "--dry-run")
    if letter.step or _cut_short(letter):
        yield _way("done by hand", "dlq", "complete", letter.id, "--output", "JSON")
    yield _way("take it", "dlq", "assign", letter.id)
    yield _way("comment", "dlq", "comment", letter.id, "TEXT")
    yield _way("settled", "dlq", "resolve", letter.id, "--reason", "TEXT")
    yield _way("not needed", "dlq", "ignore", letter.id, "--reason", "TEXT")


def _way(title: str, *words: str) -> str:
    return f"  {title + ':':<13} {hint(*words)}"


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", styled(title, bold=True), *lines] if lines else []


def _short(value: object) -> str:
    text = clean(json.dumps(as_json(value), ensure_ascii=False))
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 1]}… (--json shows all)"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
