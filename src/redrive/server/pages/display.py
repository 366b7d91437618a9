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
    "PENDING": StateLabel(N("Waiting"), "wait", "clock"),
    "RUNNING": StateLabel(N("Running"), "work", "play"),
    "SLEEPING": StateLabel(N("Sleeping"), "wait", "moon"),
    "COMPENSATING": StateLabel(N("Rolling back"), "work", "undo"),
    "SUCCESS": StateLabel(N("Succeeded"), "good", "check"),
    "PARTIAL": StateLabel(N("Partly done"), "warn", "half"),
    "FAILED": StateLabel(N("Failed"), "bad", "cross"),
    "DLQ_PENDING": StateLabel(N("Dead letter"), "bad", "letter"),
    "TIMED_OUT": StateLabel(N("Timed out"), "bad", "clock"),
    "CANCELLED": StateLabel(N("Cancelled"), "off", "ban"),
    "COMPENSATED": StateLabel(N("Rolled back"), "off", "undo"),
    "RETRYING": StateLabel(N("Retrying"), "warn", "again"),
    "DLQ": StateLabel(N("Dead letter"), "bad", "letter"),
    "SKIPPED": StateLabel(N("Skipped"), "off", "skip"),
    "OPEN": StateLabel(N("Open"), "bad", "alert"),
    "REPLAYING": StateLabel(N("Being replayed"), "work", "again"),
    "RESOLVED": StateLabel(N("Resolved"), "good", "check"),
    "IGNORED": StateLabel(N("Ignored"), "off", "ban"),
    "EXPIRED": StateLabel(N("Expired"), "off", "clock"),
    "DELIVERED": StateLabel(N("Delivered"), "good", "check"),
    "DEAD": StateLabel(N("Not delivered"), "bad", "cross"),
    "CLOSED": StateLabel(N("Closed"), "good", "check"),
    "HALF_OPEN": StateLabel(N("Letting probes through"), "warn", "half"),
    "DONE": StateLabel(N("Done"), "good", "check"),
    "STOPPED": StateLabel(N("Stopped"), "off", "ban"),
    "PAUSED": StateLabel(N("Paused"), "wait", "pause"),
    "LOST": StateLabel(N("Worker lost"), "warn", "cross"),
    "RELEASED": StateLabel(N("Given back"), "off", "undo"),
    "PARKED": StateLabel(N("Held back"), "wait", "pause"),
}
ROLES = {"OWNER": N("Owner"), "ADMIN": N("Administrator"), "STAFF": N("Staff"), "VIEWER": N("Viewer")}
STAGES = {
    "input": N("reading the input"),
    "fetch": N("loading the code"),
    "exec": N("doing the work"),
    "output": N("keeping the result"),
    "commit": N("writing it down"),
}
CODES = {
    "compensation_failed": N("undoing failed"),
    "infrastructure_failure": N("machine failed"),
    "parse_error": N("unreadable input"),
    "validation_failed": N("wrong data"),
    "policy_violation": N("not allowed"),
    "timeout": N("took too long"),
    "exhausted_retries": N("tried too often"),
    "dependency_unavailable": N("service down"),
    "non_retryable": N("will not mend by itself"),
}
CODE_EXPLANATIONS = {
    "compensation_failed": N("Undoing what was done failed as well."),
    "infrastructure_failure": N("Workers died with it, or the store under it failed."),
    "parse_error": N("Its input cannot be read."),
    "validation_failed": N("Some of its data is not as it must be. Correcting the input may mend it."),
    "policy_violation": N("Its code or its data is not what it may be. A developer must look."),
    "timeout": N("It took longer than it may."),
    "exhausted_retries": N("It was tried as often as it may be, and failed each time."),
    "dependency_unavailable": N("A service that it needs did not answer."),
    "non_retryable": N("The error is of a kind that trying again does not mend."),
}
MODES: dict[str, tuple[str, str]] = {
    "FROM_FAILED": (
        N("Go on at the failed step"),
        N("What succeeded before stays. The failed step is tried again, then the rest follows."),
    ),
    "FROM_STEP": (
        N("Go on from an earlier step"),
        N("Results before that step stay. From there on everything is done again."),
    ),
    "STEP_ONLY": (
        N("Do the failed step alone"),
        N("Only that step is done again. The rest waits for another decision."),
    ),
    "FULL": (N("Begin anew"), N("A new run does everything from the first step. The old one stays as it is.")),
    "SKIP": (
        N("Leave the step out"),
        N("You say what the failed step should have given, and the run goes on without doing it."),
    ),
    "COMPLETE": (
        N("It was done by hand"),
        N("You did the failed step yourself and say what came of it. The run goes on with that."),
    ),
    "ROLLBACK": (N("Undo what was done"), N("What the run did is undone, the last step first.")),
}
FILTERS = {
    "code": N("Reason"),
    "stage": N("Stage"),
    "category": N("Category"),
    "workflow": N("Workflow"),
    "step": N("Step"),
    "fingerprint": N("one cause"),
    "owner": N("Looked after by"),
    "tag": N("Tag"),
    "text": N("Text of the error"),
    "index": N("Field of the input"),
    "since": N("since"),
    "until": N("until"),
}
"""What a list of letters is narrowed by, for people."""

RATES = {"s": N("at most {n} a second"), "m": N("at most {n} a minute"), "h": N("at most {n} an hour")}
"""How many dead letters may be decided on, by the unit of a rate."""

UNITS = {"s": N("a second"), "m": N("a minute"), "h": N("an hour")}
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
