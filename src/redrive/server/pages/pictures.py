"""Charts as figures: where each line and bar goes. The templates draw them as SVG, in attributes only.

Widths are thousandths of the picture, which stretches with the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from redrive.core.states import EXECUTED
from redrive.desk.shapes import AttemptRecord, StepRecord
from redrive.frozen import dataclass
from redrive.server.pages.labels import state

__all__ = ["Bar", "Column", "Row", "Tick", "Waterfall", "columns", "sparkline", "waterfall"]

WIDE = 1000.0
_THINNEST = 4.0
_STEPS = (0.001, 0.01, 0.1, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_592_000)


# -- small charts --------------------------------------------------------------------------------------


def sparkline(values: Sequence[float], *, width: float = 120, height: float = 28) -> str:
    """The points of a line through these values."""
    highest = max(values, default=0) or 1
    gap = width / max(1, len(values) - 1)
    pairs = enumerate(values)
    return " ".join(
        f"{at * gap:.1f},{height - 2 - (height - 4) * value / highest:.1f}" for at, value in pairs
    )


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a chart in two parts, the second standing on the first."""

    x: float
    width: float
    y: float
    height: float
    upper_y: float
    upper_height: float
    lower: int
    upper: int


def columns(lower: Sequence[int], upper: Sequence[int], *, height: float = 100) -> list[Column]:
    """Columns of two parts each, side by side."""
    highest = max((a + b for a, b in zip(lower, upper, strict=True)), default=0) or 1
    gap = WIDE / max(1, len(lower))
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


# -- waterfalls ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of time. `waiting` is drawn dashed."""

    x: float
    width: float
    tone: str
    waiting: bool
    seconds: float
    text: str
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of the journal with all its tries."""

    step: StepRecord
    bars: tuple[Bar, ...]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the scale."""

    x: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """All entries against one scale. `queued`: the time before the first of them."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    queued: Bar | None
    seconds: float


@dataclass(frozen=True, slots=True)
class _Scale:
    begin: datetime
    seconds: float

    def bar(self, since: datetime, until: datetime, tone: str, text: str, **more: object) -> Bar:
        x = self._x(since)
        width = max(_THINNEST, self._x(until) - x)
        waiting = bool(more.get("waiting"))
        attempt = more.get("attempt")
        return Bar(
            x=min(x, WIDE - width),
            width=width,
            tone=tone,
            waiting=waiting,
            seconds=max(0.0, (until - since).total_seconds()),
            text=text,
            attempt=attempt if isinstance(attempt, int) else None,
        )

    def _x(self, at: datetime) -> float:
        share = (at - self.begin).total_seconds() / self.seconds
        return WIDE * min(1.0, max(0.0, share))


def waterfall(steps: Sequence[StepRecord], *, begin: datetime | None = None, now: datetime) -> Waterfall:
    """The entries of a run against time. What has not ended goes on until now."""
    first = min((step.began_at for step in steps), default=begin or now)
    start = min(begin or first, first)
    end = max([_end(step, now) for step in steps], default=now)
    scale = _Scale(start, max((end - start).total_seconds(), 0.001))
    rows = tuple(_row(step, scale, now) for step in steps)
    waited = (first - start).total_seconds()
    queued = scale.bar(start, first, "off", "", waiting=True) if waited > scale.seconds / 100 else None
    return Waterfall(rows=rows, ticks=_ticks(scale.seconds), queued=queued, seconds=scale.seconds)


def _end(step: StepRecord, now: datetime) -> datetime:
    last = max((each.ended_at or now for each in step.attempts), default=step.began_at)
    return max(step.ended_at or (last if step.kind in EXECUTED else now), last)


def _row(step: StepRecord, scale: _Scale, now: datetime) -> Row:
    tries = sorted(step.attempts, key=lambda each: each.began_at)
    bars: list[Bar] = []
    for before, each in zip([None, *tries], tries, strict=False):
        if before is not None and before.ended_at is not None and each.began_at > before.ended_at:
            bars.append(scale.bar(before.ended_at, each.began_at, "off", "", waiting=True))
        bars.append(_try(each, scale, now))
    if not tries and step.kind not in EXECUTED:
        bars.append(scale.bar(step.began_at, step.ended_at or now, "off", step.name, waiting=True))
    elif not tries or step.status in ("RUNNING", "RETRYING", "PENDING"):
        since = max((each.ended_at or now for each in tries), default=step.began_at)
        tone = state(step.status).tone
        waiting = step.status != "RUNNING"
        bars.append(scale.bar(since, step.ended_at or now, tone, "", waiting=waiting))
    took = None if step.ended_at is None else (step.ended_at - step.began_at).total_seconds()
    return Row(step=step, bars=tuple(bars), seconds=took)


def _try(each: AttemptRecord, scale: _Scale, now: datetime) -> Bar:
    tone = state(each.status).tone
    return scale.bar(each.began_at, each.ended_at or now, tone, each.decision, attempt=each.attempt)


def _ticks(seconds: float) -> tuple[Tick, ...]:
    size = next((each for each in _STEPS if seconds / each <= 6), timedelta(days=365).total_seconds())
    count = int(seconds / size)
    return tuple(
        Tick(WIDE * number * size / seconds, number * size) for number in range(1, min(count, 8) + 1)
    )
