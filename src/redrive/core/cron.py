"""Cron expressions: at which moments one fires, in the time zone that it is meant in.

    0 6 * * MON-FRI      minute, hour, day of the month, month, day of the week: six o'clock on working days

Which times of the wall clock an expression names is worked out by cronsim, without any zone. Which moments
those are is decided here, because on days when clocks are changed a time may come twice, or not at all:

    fixed times      minute and hour are numbers (`30 2`, `0 6,18`): each named time fires once. One that
                     comes twice fires at the first, one that does not come when the clock jumps over it.
    every so often   minute or hour begins with a star (`*/15 *`, `0 *`): whenever the clock shows such a
                     time, so that real time goes on evenly.

Inside here moments are whole seconds since 1970, and so are times of the wall clock, as if it showed UTC.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import field
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from redrive.duration import MICROS
from redrive.errors import RegistrationError
from redrive.frozen import dataclass

__all__ = ["Cron"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock shows no zone
_SECOND = timedelta(seconds=1)
_DAY = 86_400
_STRIDE = 12 * 3600  # no zone changes its clocks twice within so many seconds
_FIRST_LOOK = 120
_FIELDS = "minute, hour, day of the month, month, day of the week, as in '0 6 * * MON-FRI'"


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression and its zone. Make one with `parse`; moments are microseconds since 1970."""

    expression: str
    zone: str
    _tz: tzinfo = field(repr=False, compare=False)

    @classmethod
    def parse(cls, expression: str, zone: str) -> Cron:
        """Read an expression; RegistrationError if it is none, never fires, or there is no such zone."""
        cron = cls(_checked(expression), zone, _zone(zone))
        if cron.next(0) is None:
            raise RegistrationError(f"cron expression {expression!r} names no day that ever comes")
        return cron

    def next(self, after: int) -> int | None:
        """The first moment behind `after` at which it fires; None if there is none within fifty years."""
        start = after // MICROS + 1
        found = self._whenever(start) if self._is_frequent else self._each_once(start)
        return None if found is None else found * MICROS

    def latest(self, after: int, until: int) -> int | None:
        """The last moment behind `after`, up to `until`, at which it fires; None if there is none."""
        look = _FIRST_LOOK * MICROS
        while True:
            since = max(after, until - look)
            found = self._last(since, until)
            if found is not None or since == after:
                return found
            look *= 4

    def local(self, at: int) -> datetime:
        """A moment as the clocks of the zone show it."""
        return (_EPOCH + timedelta(microseconds=at)).astimezone(self._tz)

    @property
    def _is_frequent(self) -> bool:
        minute, hour = self.expression.split()[:2]
        return minute.startswith("*") or hour.startswith("*")

    def _last(self, since: int, until: int) -> int | None:
        found, at = None, self.next(since)
        while at is not None and at <= until:
            found, at = at, self.next(at)
        return found

    # -- from the wall clock to moments ---------------------------------------------------------------

    def _whenever(self, start: int) -> int | None:
        """The first moment from `start` on at which the wall clock shows a named time."""
        while True:
            offset = self._offset(start)
            named = next(self._named(start + offset), None)
            if named is None:
                return None
            changed = self._change(start, named - offset)
            if changed is None:
                return named - offset
            start = changed

    def _each_once(self, start: int) -> int | None:
        """The first moment from `start` on that stands for a named time."""
        moments = map(self._moment, self._named(start + self._offset(start) - _DAY))
        return next((at for at in moments if at >= start), None)

    def _moment(self, wall: int) -> int:
        """When the wall clock first shows this time, or has jumped over it."""
        shown = (_WALL_EPOCH + timedelta(seconds=wall)).replace(tzinfo=self._tz)
        at = (shown - _EPOCH) // _SECOND
        if at + self._offset(at) == wall:
            return at
        before = (shown.replace(fold=1) - _EPOCH) // _SECOND
        return self._change(before, at) or at

    def _named(self, wall: int) -> Iterator[int]:
        """The named times from this one on, in order."""
        behind = _WALL_EPOCH + timedelta(seconds=wall - 1)
        return ((each - _WALL_EPOCH) // _SECOND for each in CronSim(self.expression, behind))

    def _offset(self, at: int) -> int:
        """By how much the zone is ahead of UTC."""
        offset = (_EPOCH + timedelta(seconds=at)).astimezone(self._tz).utcoffset()
        return (offset or timedelta()) // _SECOND

    def _change(self, start: int, end: int) -> int | None:
        """The first moment behind `start`, up to `end`, at which clocks are changed."""
        before = self._offset(start)
        while start < end:
            until = min(start + _STRIDE, end)
            if self._offset(until) != before:
                moments = range(start + 1, until + 1)
                return moments[bisect_left(moments, True, key=lambda at: self._offset(at) != before)]
            start = until
        return None


def _checked(expression: str) -> str:
    """The expression with single spaces, if it is one of five fields."""
    if not isinstance(expression, str) or len(expression.split()) != 5:
        raise RegistrationError(f"{expression!r} is no cron expression; give five fields: {_FIELDS}")
    try:
        CronSim(expression, _WALL_EPOCH)
    except CronSimError as error:
        wrong = str(error)[:1].lower() + str(error)[1:]
        raise RegistrationError(f"cron expression {expression!r} has a {wrong}; it has {_FIELDS}") from None
    return " ".join(expression.split())


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # known even where no zones are installed
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise RegistrationError(
            f"there is no time zone {name!r} here; give a name such as 'Europe/Warsaw', and where the system "
            "has no zones of its own, install the package tzdata"
        ) from None
