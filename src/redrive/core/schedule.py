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

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from redrive.core.new_run import check_name
from redrive.core.roles import DEFAULT_TENANT, check_tenant_name
from redrive.duration import MICROS, Duration, parse_duration
from redrive.errors import InputError, RegistrationError
from redrive.reasons import Reason, ReasonCode, quote

# -- Cron expressions: at which moments one fires, in the time zone that it is meant in ------------------


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock shows no zone
_SECOND = timedelta(seconds=1)
_DAY = 86_400
_OFFSET_SEARCH_STEP = 12 * 3600  # no zone changes its clocks twice within so many seconds
_FIRST_LOOKBACK = 120
_FIELD_NAMES = "minute, hour, day of the month, month, day of the week, as in '0 6 * * MON-FRI'"


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression and its zone. Make one with `parse`; moments are microseconds since 1970."""

    expression: str
    zone: str
    _tz: tzinfo = field(repr=False, compare=False)

    @classmethod
    def parse(cls, expression: str, zone: str) -> Cron:
        """Read an expression; RegistrationError if it is none, never fires, or there is no such zone."""
        cron = cls(_check_expression(expression), zone, _load_zone(zone))
        if cron.next(0) is None:
            raise RegistrationError(f"cron expression {expression!r} names no day that ever comes")
        return cron

    def next(self, after: int) -> int | None:
        """The first moment behind `after` at which it fires; None if there is none within fifty years."""
        start = after // MICROS + 1
        found = self._next_frequent(start) if self._is_frequent else self._next_fixed(start)
        return None if found is None else found * MICROS

    def latest(self, after: int, until: int) -> int | None:
        """The last moment behind `after`, up to `until`, at which it fires; None if there is none."""
        look = _FIRST_LOOKBACK * MICROS
        while True:
            since = max(after, until - look)
            found = self._last_between(since, until)
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

    def _last_between(self, since: int, until: int) -> int | None:
        found, at = None, self.next(since)
        while at is not None and at <= until:
            found, at = at, self.next(at)
        return found

    # -- from the wall clock to moments ---------------------------------------------------------------

    def _next_frequent(self, start: int) -> int | None:
        """The first moment from `start` on at which the wall clock shows a named time."""
        while True:
            offset = self._utc_offset(start)
            named = next(self._iter_wall_times(start + offset), None)
            if named is None:
                return None
            changed = self._find_clock_change(start, named - offset)
            if changed is None:
                return named - offset
            start = changed

    def _next_fixed(self, start: int) -> int | None:
        """The first moment from `start` on that stands for a named time."""
        moments = map(self._to_moment, self._iter_wall_times(start + self._utc_offset(start) - _DAY))
        return next((at for at in moments if at >= start), None)

    def _to_moment(self, wall: int) -> int:
        """When the wall clock first shows this time, or has jumped over it."""
        shown = (_WALL_EPOCH + timedelta(seconds=wall)).replace(tzinfo=self._tz)
        at = (shown - _EPOCH) // _SECOND
        if at + self._utc_offset(at) == wall:
            return at
        before = (shown.replace(fold=1) - _EPOCH) // _SECOND
        return self._find_clock_change(before, at) or at

    def _iter_wall_times(self, wall: int) -> Iterator[int]:
        """The named times from this one on, in order."""
        behind = _WALL_EPOCH + timedelta(seconds=wall - 1)
        return ((each - _WALL_EPOCH) // _SECOND for each in CronSim(self.expression, behind))

    def _utc_offset(self, at: int) -> int:
        """By how much the zone is ahead of UTC."""
        offset = (_EPOCH + timedelta(seconds=at)).astimezone(self._tz).utcoffset()
        return (offset or timedelta()) // _SECOND

    def _find_clock_change(self, start: int, end: int) -> int | None:
        """The first moment behind `start`, up to `end`, at which clocks are changed."""
        before = self._utc_offset(start)
        while start < end:
            until = min(start + _OFFSET_SEARCH_STEP, end)
            if self._utc_offset(until) != before:
                moments = range(start + 1, until + 1)
                return moments[bisect_left(moments, True, key=lambda at: self._utc_offset(at) != before)]
            start = until
        return None


def _check_expression(expression: str) -> str:
    """The expression with single spaces, if it is one of five fields."""
    if not isinstance(expression, str) or len(expression.split()) != 5:
        raise RegistrationError(f"{expression!r} is no cron expression; give five fields: {_FIELD_NAMES}")
    try:
        CronSim(expression, _WALL_EPOCH)
    except CronSimError as error:
        wrong = str(error)[:1].lower() + str(error)[1:]
        raise RegistrationError(f"cron expression {expression!r} has a {wrong}; it has {_FIELD_NAMES}") from None
    return " ".join(expression.split())


def _load_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # known even where no zones are installed
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise RegistrationError(
            f"there is no time zone {name!r} here; give a name such as 'Europe/Warsaw', and where the system "
            "has no zones of its own, install the package tzdata"
        ) from None


# -- Schedules: what a workflow is started with by itself, and which of its times are due ----------------


ScheduleInput: TypeAlias = Mapping[str, Any] | Callable[[datetime], Mapping[str, Any]] | None
"""What a schedule starts its workflow with, or a function that tells so for a fire time."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Schedule:
    """When a workflow is started by itself, for which tenant, and with what.

    `cron` has five fields: minute, hour, day of the month, month, day of the week. Its times are those of
    `timezone`. `input` goes from parameter names to values; a function gets the fire time, in that zone, and
    returns them. `name` tells several schedules of a workflow apart. `catch_up` is how late a time may still
    be started that nobody was there for; of several such times only the latest is.
    """

    cron: Cron
    input: ScheduleInput
    tenant: str
    name: str
    catch_up: int

    def __init__(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        input: ScheduleInput = None,
        tenant: str = DEFAULT_TENANT,
        name: str = "default",
        catch_up: Duration = "1h",
    ) -> None:
        put = object.__setattr__
        put(self, "cron", Cron.parse(cron, timezone))
        put(self, "input", _check_input(input))
        put(self, "tenant", _check_text("tenant", tenant, check_tenant_name))
        put(self, "name", _check_name(name))
        put(self, "catch_up", int(parse_duration(catch_up, "catch_up of a schedule") * MICROS))

    def input_at(self, at: int) -> dict[str, Any]:
        """What it starts its workflow with at this fire time."""
        given = self.input(self.cron.local(at)) if callable(self.input) else self.input or {}
        if not isinstance(given, Mapping):
            raise InputError(f"its input is {given!r:.60}; return a dict from parameters to values")
        return dict(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTimes:
    """Times that have come: from `first` to `latest`, which is started unless it is too late for that."""

    first: int
    latest: int
    starts: bool


def find_due_times(cron: Cron, *, passed: int, now: int, latest_by: int) -> DueTimes | None:
    """What is due of a schedule; None if nothing is. `latest_by` is how late a time may be started."""
    first = cron.next(passed)
    if first is None or first > now:
        return None
    latest = cron.latest(passed, now) or first
    return DueTimes(first=first, latest=latest, starts=now - latest <= latest_by)


def _check_input(given: Any) -> ScheduleInput:
    if given is None or isinstance(given, Mapping):
        return given
    if callable(given):
        inputs: ScheduleInput = given
        return inputs
    raise RegistrationError(
        f"input of a schedule is {given!r:.60}; give a dict from parameters to values, "
        "or a function of the fire time that returns one"
    )


def _check_text(what: str, value: Any, allowed: Callable[[str], str] = str) -> str:
    try:
        return allowed(check_name(what, value, ""))
    except InputError as error:
        raise RegistrationError(f"of a schedule, {error}") from None


def _check_name(value: Any) -> str:
    """A name that can stand in an address and in one line of a log."""
    name = _check_text("name", value)
    if not name.isprintable() or set(name) & {"/", "#"}:
        raise RegistrationError(f"name of a schedule is {name!r:.60}; use what can be printed, but not / or #")
    return name


# -- Rates: how many letters a set may decide on in a second, a minute or an hour ------------------------


MAX_RATE = 100_000
"""The highest rate, in letters per unit."""

_SECOND_MICROS = 1_000_000
_UNIT_MICROS = {"s": _SECOND_MICROS, "m": 60 * _SECOND_MICROS, "h": 3600 * _SECOND_MICROS}
_BATCH_INTERVAL = _SECOND_MICROS // 5  # a portion is what may be let go in this time
_COUNT_PATTERN = r"[1-9]\d{0,2}(?:,\d{3}){1,4}|\d{1,16}"  # any other comma may mean a fraction
_RATE_PATTERN = re.compile(
    rf"({_COUNT_PATTERN}) ?(?:/|per) ?(s|sec|second|m|min|minute|h|hour)", re.ASCII | re.IGNORECASE
)


class RateBatch(msgspec.Struct, frozen=True, gc=False):
    """So many letters at once, and how long, in microseconds, until the next ones."""

    count: int
    gap: int


class Rate(msgspec.Struct, frozen=True, gc=False):
    """At most `count` letters per unit, which is `s`, `m` or `h`."""

    count: int
    unit: str

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"

    @property
    def unit_micros(self) -> int:
        """The unit in microseconds."""
        return _UNIT_MICROS[self.unit]

    @property
    def gap(self) -> int:
        """How long, in microseconds, the usual portion keeps the next one waiting."""
        return self.portion(self.count).gap

    def portion(self, most: int) -> RateBatch:
        """How many to let go at once, never more than `most`, and how long to wait after them."""
        count = min(max(1, self.count * _BATCH_INTERVAL // self.unit_micros), most)
        return RateBatch(count, -(-self.unit_micros // (self.count // count)))

    def estimate_seconds(self, letters: int) -> float:
        """How long so many letters take at the least."""
        return letters * self.unit_micros / self.count / _SECOND_MICROS


def parse_rate(text: object) -> Rate:
    """Read a rate as people write it: `50/s`, `600/min`, `100 per hour`."""
    found = _RATE_PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise InputError(Reason(ReasonCode.RATE_INVALID, given=quote(text)))
    count = int(found[1].replace(",", ""))
    if not 1 <= count <= MAX_RATE:
        raise InputError(Reason(ReasonCode.RATE_OUT_OF_RANGE, most=MAX_RATE, given=count))
    return Rate(count, found[2][0].lower())
