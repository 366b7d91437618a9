"""Charts of the dashboard: sparklines, columns of failures, and the waterfall of a run, as numbers to draw."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import msgspec

from redrive.core.states import EXECUTED_KINDS, EntryKind
from redrive.desk.models import AttemptRecord, StepRecord
from redrive.server.pages.texts import N, find_state_label

CHART_WIDTH = 1000.0
_MIN_BAR_WIDTH = 4.0
_GAP_WIDTH, _MAX_GAPS_WIDTH = 90.0, 600.0
_TICK_SIZES = (0.001, 0.01, 0.1, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_592_000)


def plot_sparkline(values: Sequence[float], highest: float = 0, *, width: float = 120, height: float = 28) -> str:
    """Return the points of a line through the values. Lines with the same `highest` can be compared."""
    top = max(highest, *values, 1)
    gap = width / max(1, len(values) - 1)

    def y(value: float) -> float:
        # A value that is not zero is always seen to rise.
        return height - 2 - (max(1.5, (height - 4) * value / top) if value else 0)

    return " ".join(f"{at * gap:.1f},{y(value):.1f}" for at, value in enumerate(values))


class ChartRange(msgspec.Struct, frozen=True, gc=False):
    """A span of time that a chart shows: `slots` of so many `seconds`, several of them in a column."""

    label: str
    seconds: int
    slots: int
    per_column: int = 1


CHART_RANGES = {
    "1h": ChartRange(N("1 h"), 60, 60),
    "24h": ChartRange(N("24 h"), 3600, 24),
    "7d": ChartRange(N("7 d"), 3600, 168, per_column=6),
}
_HEIGHT = 100.0
_AXIS_TIMES = 4
_MIN_COLUMN_HEIGHT = 2.0


class Column(msgspec.Struct, frozen=True, gc=False):
    """A column of a chart: a lower part, and an upper part on top of it, in a span of time."""

    x: float
    width: float
    y: float
    height: float
    upper_y: float
    upper_height: float
    lower: int
    upper: int
    begin: datetime
    end: datetime


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Columns over time. `highest` is the upper end of the scale, `times` are spread evenly under the columns."""

    columns: tuple[Column, ...]
    highest: int
    times: tuple[datetime, ...]
    by_day: bool

    @property
    def total(self) -> int:
        return sum(each.lower + each.upper for each in self.columns)


def plot_failures(counts: Sequence[int], wanted: ChartRange, now: datetime) -> Chart:
    """Return a chart of failures by slot, the present slot last."""
    first = int(now.timestamp()) // wanted.seconds - len(counts) + 1
    return plot_slots([0] * len(counts), counts, wanted, datetime.fromtimestamp(first * wanted.seconds, UTC))


def plot_slots(lower: Sequence[int], upper: Sequence[int], wanted: ChartRange, begin: datetime) -> Chart:
    """Return a chart of two counts by slot, several slots in a column."""
    size = wanted.per_column

    def merge(counts: Sequence[int]) -> list[int]:
        return [sum(counts[at : at + size]) for at in range(0, len(counts), size)]

    return plot_chart(merge(lower), merge(upper), begin, timedelta(seconds=wanted.seconds * size))


def plot_chart(lower: Sequence[int], upper: Sequence[int], begin: datetime, width: timedelta) -> Chart:
    """Return a chart with a column for each pair of values; each is `width` of time."""
    highest = _round_up(max((a + b for a, b in zip(lower, upper, strict=True)), default=0))
    gap = CHART_WIDTH / max(1, len(lower))
    columns = []
    for at, (below, above) in enumerate(zip(lower, upper, strict=True)):
        tall, on_top = (
            max(_MIN_COLUMN_HEIGHT, _HEIGHT * value / highest) if value else 0.0 for value in (below, above)
        )
        y, since = _HEIGHT - tall, begin + at * width
        columns.append(
            Column(
                at * gap + gap * 0.12,
                gap * 0.76,
                y,
                tall,
                upper_y=max(0.0, y - on_top),
                upper_height=on_top,
                lower=below,
                upper=above,
                begin=since,
                end=since + width,
            )
        )
    end = begin + len(lower) * width
    times = tuple(begin + (end - begin) * number / _AXIS_TIMES for number in range(_AXIS_TIMES + 1))
    return Chart(columns=tuple(columns), highest=highest, times=times, by_day=end - begin > timedelta(days=2))


def _round_up(value: int) -> int:
    """Return the next even number that is easy to read: 2, 4, 10, 20, 40, 100 and so on."""
    size = 1
    while True:
        for step in (2, 4, 10):
            if step * size >= value:
                return step * size
        size *= 10


class Bar(msgspec.Struct, frozen=True, gc=False):
    """A period of time; one of waiting is drawn dashed."""

    x: float
    width: float
    tone: str
    waiting: bool
    seconds: float
    attempt: AttemptRecord | None = None


class WaterfallRow(msgspec.Struct, frozen=True):
    """An entry of the journal with the bars of its attempts."""

    step: StepRecord
    bars: tuple[Bar, ...]
    seconds: float | None

    @property
    def calls(self) -> int:
        """The number of times the step was called; a wait for its circuit is not one."""
        return len({attempt.attempt for attempt in self.step.attempts if attempt.attempt})


class Tick(msgspec.Struct, frozen=True, gc=False):
    """A line of the time scale."""

    x: float
    seconds: float


class Gap(msgspec.Struct, frozen=True, gc=False):
    """A period without activity, which is drawn narrower than its length."""

    x: float
    width: float
    seconds: float


class Waterfall(msgspec.Struct, frozen=True):
    """The entries of a journal on one time scale. `queued` is the time before the first of them.

    `idle` is the length of all gaps. A scale with gaps has no ticks.
    """

    rows: tuple[WaterfallRow, ...]
    ticks: tuple[Tick, ...]
    gaps: tuple[Gap, ...]
    queued: Bar | None
    seconds: float
    idle: float


class _Scale:
    """A time scale on which long periods without activity have a fixed width."""

    def __init__(self, begin: datetime, seconds: float, busy: Sequence[tuple[datetime, datetime]]) -> None:
        self._begin, self._seconds = begin, seconds
        idle = _find_idle_periods([(self._since(a), self._since(b)) for a, b in busy], seconds)
        width = min(_GAP_WIDTH, _MAX_GAPS_WIDTH / max(1, len(idle)))
        self.idle = sum(until - since for since, until in idle)
        per_second = (CHART_WIDTH - width * len(idle)) / max(seconds - self.idle, 0.001)
        self._points = [(0.0, 0.0)]  # the time and the position of each end of a gap; the scale is linear in between
        gaps = []
        for since, until in idle:
            last, x = self._points[-1]
            x += (since - last) * per_second
            self._points += [(since, x), (until, x + width)]
            gaps.append(Gap(x, width, until - since))
        self._points.append((seconds, CHART_WIDTH))
        self.gaps = tuple(gaps)

    def bar(
        self, since: datetime, until: datetime, tone: str, *, waiting: bool, attempt: AttemptRecord | None = None
    ) -> Bar:
        x = self.position(self._since(since))
        width = max(_MIN_BAR_WIDTH, self.position(self._since(until)) - x)
        seconds = max(0.0, (until - since).total_seconds())
        return Bar(min(x, CHART_WIDTH - width), width, tone, waiting, seconds, attempt)

    def position(self, seconds: float) -> float:
        """Return the position of a time, given in seconds since the beginning."""
        for (since, x), (until, end) in pairwise(self._points):
            if seconds <= until:
                return x + (end - x) * max(0.0, seconds - since) / max(until - since, 1e-9)
        return CHART_WIDTH

    def _since(self, at: datetime) -> float:
        return min(self._seconds, max(0.0, (at - self._begin).total_seconds()))


def _find_idle_periods(busy: list[tuple[float, float]], seconds: float) -> list[tuple[float, float]]:
    """Return the periods without activity that are longer than all activity together, and not too short to see."""
    if not busy:  # only waiting is shown, at its full length
        return []
    found, last, active = [], 0.0, 0.0
    for since, until in [*sorted(busy), (seconds, seconds)]:
        if since > last:
            found.append((last, since))
        active += max(0.0, until - max(since, last))
        last = max(last, until)
    return [(since, until) for since, until in found if until - since > max(active, seconds / 50, 1.0)]


def plot_waterfall(steps: Sequence[StepRecord], *, begin: datetime | None = None, now: datetime) -> Waterfall:
    """Return the entries of a run on a time scale. Those that have not ended last until now."""
    first = min((step.began_at for step in steps), default=begin or now)
    start = min(begin or first, first)
    ends = [attempt.ended_at or now for step in steps for attempt in step.attempts]
    ends += [step.ended_at or (step.began_at if step.kind in EXECUTED_KINDS else now) for step in steps]
    end = max(ends, default=now)
    seconds = max((end - start).total_seconds(), 0.001)
    busy = [(each.began_at, each.ended_at or now) for step in steps for each in step.attempts if each.attempt]
    scale = _Scale(start, seconds, busy)
    waited = (first - start).total_seconds()
    queued = scale.bar(start, first, "off", waiting=True) if waited > seconds / 100 else None
    gap = next((size for size in _TICK_SIZES if seconds / size <= 6), timedelta(days=365).total_seconds())
    ticks = (Tick(CHART_WIDTH * number * gap / seconds, number * gap) for number in range(1, int(seconds / gap) + 1))
    return Waterfall(
        # The start of another run takes no time: only the wait for that run is shown.
        rows=tuple(
            _plot_row(step, scale, now) for step in steps if (step.kind, step.status) != (EntryKind.START, "SUCCESS")
        ),
        ticks=() if scale.gaps else tuple(islice(ticks, 8)),
        gaps=scale.gaps,
        queued=queued,
        seconds=seconds,
        idle=scale.idle,
    )


def _plot_row(step: StepRecord, scale: _Scale, now: datetime) -> WaterfallRow:
    attempts = sorted(step.attempts, key=lambda attempt: attempt.began_at)
    bars: list[Bar] = []
    last_end: datetime | None = None
    for each in attempts:
        if last_end is not None and each.began_at > last_end:
            bars.append(scale.bar(last_end, each.began_at, "off", waiting=True))
        tone, last_end = find_state_label(each.status).tone, each.ended_at
        bars.append(scale.bar(each.began_at, each.ended_at or now, tone, waiting=False, attempt=each))
    if not attempts and step.kind not in EXECUTED_KINDS:
        bars.append(scale.bar(step.began_at, step.ended_at or now, "off", waiting=True))
    elif not attempts or step.status in ("RUNNING", "RETRYING", "PENDING"):
        since = max((each.ended_at or now for each in attempts), default=step.began_at)
        tone = find_state_label(step.status).tone
        bars.append(scale.bar(since, step.ended_at or now, tone, waiting=step.status != "RUNNING"))
    # Neither the time that a user took to enter a result nor that of a planned compensation in its queue counts.
    began = attempts[0].began_at if attempts else step.began_at
    took = None if step.ended_at is None or step.by_hand else (step.ended_at - began).total_seconds()
    return WaterfallRow(step=step, bars=tuple(bars), seconds=took)
