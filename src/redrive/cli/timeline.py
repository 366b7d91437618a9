"""A run drawn in the terminal: a bar for each attempt, dashes where it waited, the decisions in words.

reserve  ██                                          50 ms
charge     █╌╌╌╌█╌╌╌╌╌╌╌╌╌█                          12 s
           attempt 1 of 3, HTTP 503, server error, waiting 4 s, next at 14:02:11
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import datetime

from redrive.cli.output import clean, styled
from redrive.core.states import EXECUTED, EntryKind, StepStatus
from redrive.core.transition import AttemptEnd
from redrive.desk.shapes import AttemptRecord, StepRecord
from redrive.duration import words

__all__ = ["timeline"]

_NAME = 16
_SIDE = 10  # for the duration on the right
_LEAST = 10
_MARKS = {"SUCCESS": "✓", "FAILED": "✗", "DLQ": "✗", "CANCELLED": "–", "SKIPPED": "–"}
_COLOURS = {"✓": "green", "✗": "red", "–": "bright_black", "…": "yellow"}
_WORK, _WAIT, _BLANK = "█", "╌", " "


def timeline(steps: tuple[StepRecord, ...], *, now: datetime, width: int, over: bool = False) -> list[str]:
    """The lines of the picture, from the first step's beginning to the last one's end, or to now.

    `over`: the run has ended, so that a step without an end was cut short.
    """
    if not steps:
        return ["  no step has begun"]
    scale = _Scale(steps, now, width, over)
    return [line for step in steps for line in _step(step, scale)]


class _Scale:
    """Moments as columns."""

    def __init__(self, steps: tuple[StepRecord, ...], now: datetime, width: int, over: bool) -> None:
        self.now = now
        self.over = over
        self.name = min(_NAME, max(len(_called(step)) for step in steps))
        self.room = max(_LEAST, width - self.name - _SIDE - 6)
        self.width = width
        self._begin = min(step.began_at for step in steps)
        end = max(step.ended_at or max(now, step.began_at) for step in steps)
        self._span = max((end - self._begin).total_seconds(), 0.001)

    def column(self, moment: datetime) -> int:
        """Where a moment is, from 0 to the last column."""
        share = (moment - self._begin).total_seconds() / self._span
        return min(self.room - 1, max(0, int(share * self.room)))


def _step(step: StepRecord, scale: _Scale) -> Iterator[str]:
    mark = "✗" if _cut_short(step, scale) else _MARKS.get(step.status, "…")
    name = clean(_called(step))
    name = name if len(name) <= scale.name else f"{name[: scale.name - 1]}…"
    took = (step.ended_at or max(scale.now, step.began_at)) - step.began_at
    colour = "bright_black" if step.superseded else _COLOURS[mark]
    bar = styled(_bar(step, scale), fg=colour)
    yield f"  {styled(mark, fg=colour)} {name:<{scale.name}} {bar} {words(took.total_seconds()):>{_SIDE}}"
    if step.kind is EntryKind.SLEEP and step.status is not StepStatus.SUCCESS and step.next_at:
        yield from _said(f"waits until {step.next_at:%Y-%m-%d %H:%M:%S} UTC", scale)
    if len(step.attempts) > 1 or step.status is not StepStatus.SUCCESS or step.by_hand:
        yield from _attempts(step, scale)
    if step.by_hand:
        yield from _said("its result was given by hand", scale)
    if _cut_short(step, scale):
        yield from _said(f"attempt {step.attempt} was cut short: it may have happened", scale)
    elif _under_way(step):
        yield from _said(f"attempt {step.attempt} is under way", scale)


def _attempts(step: StepRecord, scale: _Scale) -> Iterator[str]:
    """Each attempt's decision, and its error unless the one before had the same."""
    before = None
    for attempt in step.attempts:
        yield from _said(attempt.decision, scale)
        error = f"{(attempt.error_type or '').removeprefix('builtins.')}: {attempt.message}"
        if attempt.message and error != before:
            yield from _said(error, scale, deeper="  ")
        before = error


def _called(step: StepRecord) -> str:
    """The name, with a mark for what goes back and for what confirms."""
    return {EntryKind.UNDO: "↩ ", EntryKind.CONFIRM: "✔ "}.get(step.kind, "") + step.name


def _under_way(step: StepRecord) -> bool:
    return step.kind in EXECUTED and step.status is StepStatus.RUNNING


def _cut_short(step: StepRecord, scale: _Scale) -> bool:
    return scale.over and _under_way(step)


def _bar(step: StepRecord, scale: _Scale) -> str:
    """Work where an attempt was under way, a wait between attempts and while sleeping."""
    begin = scale.column(step.began_at)
    end = scale.column(step.ended_at or max(scale.now, step.began_at))
    cells = [_BLANK] * scale.room
    for place in range(begin, end + 1):
        cells[place] = _WAIT
    if step.kind is not EntryKind.SLEEP:
        for first, last in _work(step, scale):
            for place in range(first, last + 1):
                cells[place] = _WORK
    return "".join(cells)


def _work(step: StepRecord, scale: _Scale) -> Iterator[tuple[int, int]]:
    for attempt in step.attempts:
        if attempt.status != AttemptEnd.PARKED:
            yield scale.column(attempt.began_at), scale.column(_end(attempt, scale))
    if _under_way(step):
        waited = step.attempts[-1].next_at if step.attempts else None
        yield scale.column(waited or step.began_at), scale.column(scale.now)
    elif not step.attempts:
        yield scale.column(step.began_at), scale.column(step.ended_at or step.began_at)


def _end(attempt: AttemptRecord, scale: _Scale) -> datetime:
    return attempt.ended_at or max(scale.now, attempt.began_at)


def _said(text: str, scale: _Scale, deeper: str = "") -> list[str]:
    indent = " " * (scale.name + 5) + deeper
    return textwrap.wrap(
        clean(" ".join(text.split())),
        max(30, scale.width),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=True,
    )
