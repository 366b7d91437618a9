"""Words for states, codes, modes and lengths of time: what a person reads in place of a constant.

A state has a tone (for its colour) and an icon, so that it is told by three things and not by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from redrive.core.states import EXECUTED_KINDS, EntryKind
from redrive.desk.models import AttemptRecord, StepRecord
from redrive.server.pages.translations import N, Translator

# -- Words for states, codes, modes and lengths of time: what a person reads in place of a constant ------


class StateLabel(msgspec.Struct, frozen=True, gc=False):
    """A state in words, its tone and its icon."""

    text: str
    tone: str
    icon: str


STATES = {
    "PENDING": StateLabel(N("Queued"), "wait", "clock"),
    "RUNNING": StateLabel(N("Running"), "work", "play"),
    "SLEEPING": StateLabel(N("Waiting"), "wait", "moon"),
    "COMPENSATING": StateLabel(N("Rolling back"), "work", "undo"),
    "SUCCESS": StateLabel(N("Succeeded"), "good", "check"),
    "PARTIAL": StateLabel(N("Partly done"), "warn", "half"),
    "FAILED": StateLabel(N("Failed"), "bad", "cross"),
    "DLQ_PENDING": StateLabel(N("Needs attention"), "bad", "letter"),
    "TIMED_OUT": StateLabel(N("Timed out"), "bad", "clock"),
    "CANCELLED": StateLabel(N("Cancelled"), "off", "ban"),
    "COMPENSATED": StateLabel(N("Rolled back"), "off", "undo"),
    "RETRYING": StateLabel(N("Retrying"), "warn", "again"),
    "DLQ": StateLabel(N("Failed"), "bad", "letter"),
    "SKIPPED": StateLabel(N("Skipped"), "off", "skip"),
    "OPEN": StateLabel(N("Unresolved"), "bad", "alert"),
    "REPLAYING": StateLabel(N("Retrying"), "work", "again"),
    "RESOLVED": StateLabel(N("Resolved"), "good", "check"),
    "IGNORED": StateLabel(N("Ignored"), "off", "ban"),
    "EXPIRED": StateLabel(N("Expired"), "off", "clock"),
    "DELIVERED": StateLabel(N("Delivered"), "good", "check"),
    "DEAD": StateLabel(N("Not delivered"), "bad", "cross"),
    "CLOSED": StateLabel(N("Closed"), "good", "check"),
    "HALF_OPEN": StateLabel(N("Testing"), "warn", "half"),
    "DONE": StateLabel(N("Done"), "good", "check"),
    "STOPPED": StateLabel(N("Stopped"), "off", "ban"),
    "PAUSED": StateLabel(N("Paused"), "wait", "pause"),
    "LOST": StateLabel(N("Worker crashed"), "warn", "cross"),
    "RELEASED": StateLabel(N("Returned to queue"), "off", "undo"),
    "PARKED": StateLabel(N("On hold"), "wait", "pause"),
}
CIRCUIT_STATES = {"CLOSED": N("Closed"), "OPEN": N("Open"), "HALF_OPEN": N("Testing")}
ROLES = {"OWNER": N("Owner"), "ADMIN": N("Administrator"), "STAFF": N("Staff"), "VIEWER": N("Viewer")}
STAGES = {
    "input": N("Reading the input"),
    "fetch": N("Loading the code"),
    "exec": N("Running the step"),
    "output": N("Saving the result"),
    "commit": N("Committing"),
}
CODES = {
    "compensation_failed": N("Rollback failed"),
    "infrastructure_failure": N("Worker crashed"),
    "parse_error": N("Unreadable input"),
    "validation_failed": N("Invalid data"),
    "policy_violation": N("Rule violated"),
    "timeout": N("Timed out"),
    "exhausted_retries": N("Retries exhausted"),
    "dependency_unavailable": N("Service down"),
    "non_retryable": N("Not retryable"),
}
CODE_EXPLANATIONS = {
    "compensation_failed": N("The rollback failed as well."),
    "infrastructure_failure": N("The worker crashed, or the database failed."),
    "parse_error": N("The input cannot be read."),
    "validation_failed": N("Some of the data is invalid. Correct it and retry."),
    "policy_violation": N("The code or the data broke a rule. Ask a developer."),
    "timeout": N("It exceeded its time limit."),
    "exhausted_retries": N("The only attempt failed.|All {n} attempts failed."),
    "dependency_unavailable": N("A service it depends on did not respond."),
    "non_retryable": N("Retrying will not help with this error."),
}
MODES: dict[str, tuple[str, str]] = {
    "FROM_FAILED": (
        N("Resume from the failed step"),
        N("Completed steps are kept. The failed step runs again, then the remaining steps."),
    ),
    "FROM_STEP": (
        N("Resume from an earlier step"),
        N("Results before that step are kept. All steps from there on run again."),
    ),
    "STEP_ONLY": (
        N("Run only the failed step"),
        N("Only the failed step runs. The remaining steps need another decision."),
    ),
    "FULL": (N("Start over as a new run"), N("A new run executes all steps. This run stays as it is.")),
    "SKIP": (
        N("Skip this step"),
        N("Enter the result this step should have returned. The run continues without running it."),
    ),
    "COMPLETE": (
        N("Mark as done manually"),
        N("Enter the result of the work you did manually. The run continues with it."),
    ),
    "ROLLBACK": (N("Roll back"), N("Completed steps are rolled back in reverse order.")),
}
FILTERS = {
    "code": N("Reason"),
    "stage": N("Stage"),
    "category": N("Category"),
    "workflow": N("Workflow"),
    "step": N("Step"),
    "fingerprint": N("Cause"),
    "owner": N("Assignee"),
    "tag": N("Tag"),
    "text": N("Error message"),
    "index": N("Input field"),
    "since": N("Since"),
    "until": N("Until"),
}
"""What a list of letters is narrowed by, for people."""

RATES = {"s": N("at most {n} per second"), "m": N("at most {n} per minute"), "h": N("at most {n} per hour")}
"""How many dead letters may be decided on, by the unit of a rate."""

UNITS = {"s": N("second"), "m": N("minute"), "h": N("hour")}
KINDS = {
    EntryKind.SLEEP: N("pause"),
    EntryKind.TIMER: N("time limit"),
    EntryKind.NOTE: N("note"),
    EntryKind.START: N("start of a run"),
    EntryKind.PUBLISH: N("message"),
}
"""What a run keeps beside the steps of its author."""

_TIME_UNITS = ((86_400, N("{n} d")), (3_600, N("{n} h")), (60, N("{n} min")), (1, N("{n} s")))


def find_state_label(name: str) -> StateLabel:
    """What a state is called; one that nobody thought of keeps its name."""
    return STATES.get(str(name), StateLabel(str(name), "off", "dot"))


def format_span(t: Translator, seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return t("{n} ms", n=max(0, round(seconds * 1000)))
    if seconds < 10:
        return t("{n} s", n=f"{seconds:.1f}".rstrip("0").rstrip("."))
    left, parts = round(seconds), []
    for size, text in _TIME_UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(t(text, n=count))
        elif parts:
            break
    return " ".join(parts[:2])


def format_relative_time(t: Translator, seconds: float) -> str:
    """How long ago something was, roughly; negative is yet to come."""
    size = abs(seconds)
    if size < 5:
        return t("now")
    amount = next(t(text, n=int(size // unit)) for unit, text in _TIME_UNITS if size >= unit)
    return t("{span} ago", span=amount) if seconds > 0 else t("in {span}", span=amount)


# -- Charts as figures: where each line and bar goes. The templates draw them as SVG, in attributes  -----


CHART_WIDTH = 1000.0
_MIN_BAR_WIDTH = 4.0
_TICK_SIZES = (0.001, 0.01, 0.1, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_592_000)


def plot_sparkline(values: Sequence[float], *, width: float = 120, height: float = 28) -> str:
    """The points of a line through these values."""
    highest = max(values, default=0) or 1
    gap = width / max(1, len(values) - 1)
    pairs = enumerate(values)
    return " ".join(f"{at * gap:.1f},{height - 2 - (height - 4) * value / highest:.1f}" for at, value in pairs)


class Column(msgspec.Struct, frozen=True, gc=False):
    """One column of a chart in two parts, the second standing on the first."""

    x: float
    width: float
    y: float
    height: float
    upper_y: float
    upper_height: float
    lower: int
    upper: int


def plot_columns(lower: Sequence[int], upper: Sequence[int], *, height: float = 100) -> list[Column]:
    """Columns of two parts each, side by side."""
    highest = max((a + b for a, b in zip(lower, upper, strict=True)), default=0) or 1
    gap = CHART_WIDTH / max(1, len(lower))
    found = []
    for at, (below, above) in enumerate(zip(lower, upper, strict=True)):
        tall, on_top = height * below / highest, height * above / highest
        found.append(
            Column(
                x=at * gap + gap * 0.12,
                width=gap * 0.76,
                y=height - tall,
                height=tall,
                upper_y=height - tall - on_top,
                upper_height=on_top,
                lower=below,
                upper=above,
            )
        )
    return found


class Bar(msgspec.Struct, frozen=True, gc=False):
    """One stretch of time. `waiting` is drawn dashed."""

    x: float
    width: float
    tone: str
    waiting: bool
    seconds: float
    text: str
    attempt: int | None = None


class WaterfallRow(msgspec.Struct, frozen=True):
    """One entry of the journal with all its tries."""

    step: StepRecord
    bars: tuple[Bar, ...]
    seconds: float | None


class Tick(msgspec.Struct, frozen=True, gc=False):
    """A line of the scale."""

    x: float
    seconds: float


class Waterfall(msgspec.Struct, frozen=True):
    """All entries against one scale. `queued`: the time before the first of them."""

    rows: tuple[WaterfallRow, ...]
    ticks: tuple[Tick, ...]
    queued: Bar | None
    seconds: float


class _Scale(msgspec.Struct, frozen=True):
    begin: datetime
    seconds: float

    def bar(self, since: datetime, until: datetime, tone: str, text: str, **more: object) -> Bar:
        x = self._x(since)
        width = max(_MIN_BAR_WIDTH, self._x(until) - x)
        waiting = bool(more.get("waiting"))
        attempt = more.get("attempt")
        return Bar(
            x=min(x, CHART_WIDTH - width),
            width=width,
            tone=tone,
            waiting=waiting,
            seconds=max(0.0, (until - since).total_seconds()),
            text=text,
            attempt=attempt if isinstance(attempt, int) else None,
        )

    def _x(self, at: datetime) -> float:
        share = (at - self.begin).total_seconds() / self.seconds
        return CHART_WIDTH * min(1.0, max(0.0, share))


def plot_waterfall(steps: Sequence[StepRecord], *, begin: datetime | None = None, now: datetime) -> Waterfall:
    """The entries of a run against time. What has not ended goes on until now."""
    first = min((step.began_at for step in steps), default=begin or now)
    start = min(begin or first, first)
    end = max([_find_end(step, now) for step in steps], default=now)
    scale = _Scale(start, max((end - start).total_seconds(), 0.001))
    rows = tuple(_plot_row(step, scale, now) for step in steps)
    waited = (first - start).total_seconds()
    queued = scale.bar(start, first, "off", "", waiting=True) if waited > scale.seconds / 100 else None
    return Waterfall(rows=rows, ticks=_plot_ticks(scale.seconds), queued=queued, seconds=scale.seconds)


def _find_end(step: StepRecord, now: datetime) -> datetime:
    last = max((each.ended_at or now for each in step.attempts), default=step.began_at)
    return max(step.ended_at or (last if step.kind in EXECUTED_KINDS else now), last)


def _plot_row(step: StepRecord, scale: _Scale, now: datetime) -> WaterfallRow:
    tries = sorted(step.attempts, key=lambda each: each.began_at)
    bars: list[Bar] = []
    for before, each in zip([None, *tries], tries, strict=False):
        if before is not None and before.ended_at is not None and each.began_at > before.ended_at:
            bars.append(scale.bar(before.ended_at, each.began_at, "off", "", waiting=True))
        bars.append(_plot_attempt(each, scale, now))
    if not tries and step.kind not in EXECUTED_KINDS:
        bars.append(scale.bar(step.began_at, step.ended_at or now, "off", step.name, waiting=True))
    elif not tries or step.status in ("RUNNING", "RETRYING", "PENDING"):
        since = max((each.ended_at or now for each in tries), default=step.began_at)
        tone = find_state_label(step.status).tone
        waiting = step.status != "RUNNING"
        bars.append(scale.bar(since, step.ended_at or now, tone, "", waiting=waiting))
    took = None if step.ended_at is None else (step.ended_at - step.began_at).total_seconds()
    return WaterfallRow(step=step, bars=tuple(bars), seconds=took)


def _plot_attempt(each: AttemptRecord, scale: _Scale, now: datetime) -> Bar:
    tone = find_state_label(each.status).tone
    return scale.bar(each.began_at, each.ended_at or now, tone, each.decision, attempt=each.attempt)


def _plot_ticks(seconds: float) -> tuple[Tick, ...]:
    size = next((each for each in _TICK_SIZES if seconds / each <= 6), timedelta(days=365).total_seconds())
    count = int(seconds / size)
    return tuple(Tick(CHART_WIDTH * number * size / seconds, number * size) for number in range(1, min(count, 8) + 1))
