"""Schedules: cron expressions in a time zone, and the schedules of a workflow.

    0 6 * * MON-FRI      minute, hour, day of the month, month, day of the week: six o'clock on working days

cronsim computes the wall-clock times of an expression, without a zone. This module converts them to points in time,
because a wall-clock time may occur twice, or not at all, on a day when the clocks change:

    fixed times      minute and hour are numbers (`30 2`, `0 6,18`): each time fires once. A time that occurs
                     twice fires at the first, a time that is skipped fires when the clock jumps over it.
    intervals        minute or hour begins with a star (`*/15 *`, `0 *`): fires whenever the clock shows such
                     a time, so that the interval in real time stays the same.

Inside `Cron`, points in time are whole seconds since 1970. Wall-clock times are counted the same way, as if the clock
showed UTC.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from redrive.core.new_run import check_name, check_tenant_name
from redrive.core.roles import DEFAULT_TENANT
from redrive.errors import InputError, RegistrationError
from redrive.reasons import Reason, ReasonCode, quote
from redrive.time_values import MICROS, Duration, parse_duration, to_datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock has no zone
_SECOND = timedelta(seconds=1)
_DAY = 86_400
_OFFSET_SEARCH_STEP = 12 * 3600  # no zone changes its clocks twice within this many seconds
_FIRST_LOOKBACK = 120
_FIELD_NAMES = "minute, hour, day of the month, month, day of the week, as in '0 6 * * MON-FRI'"


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression and its time zone. Make one with `parse`. Times are microseconds since 1970."""

    expression: str
    zone: str
    _tz: tzinfo = field(repr=False, compare=False)

    @classmethod
    def parse(cls, expression: str, zone: str) -> Cron:
        """Parse an expression. Raises RegistrationError if it is invalid or never fires, or the zone is unknown."""
        if not isinstance(expression, str) or len(expression.split()) != 5:
            raise RegistrationError(f"{expression!r} is not a cron expression; give five fields: {_FIELD_NAMES}")
        try:
            CronSim(expression, _WALL_EPOCH)
        except CronSimError as error:
            wrong = str(error)[:1].lower() + str(error)[1:]
            raise RegistrationError(f"cron expression {expression!r} has a {wrong}; it has {_FIELD_NAMES}") from None
        cron = cls(" ".join(expression.split()), zone, _load_zone(zone))
        if cron.next(0) is None:
            raise RegistrationError(f"cron expression {expression!r} never fires")
        return cron

    def next(self, after: int) -> int | None:
        """Return the first fire time after `after`; None if there is none within fifty years."""
        start = after // MICROS + 1
        if self._is_frequent:
            found = self._next_frequent(start)
        else:
            times = map(self._from_wall_time, self._iter_wall_times(start + self._utc_offset(start) - _DAY))
            found = next((at for at in times if at >= start), None)
        return None if found is None else found * MICROS

    def latest(self, after: int, until: int) -> int | None:
        """Return the last fire time after `after`, up to `until`; None if there is none."""
        # cronsim only searches forwards, so search a growing part of the time before `until`.
        look = _FIRST_LOOKBACK * MICROS
        while True:
            since = max(after, until - look)
            found, at = None, self.next(since)
            while at is not None and at <= until:
                found, at = at, self.next(at)
            if found is not None or since == after:
                return found
            look *= 4

    def local(self, at: int) -> datetime:
        """Convert a time to the local time of the zone."""
        return to_datetime(at).astimezone(self._tz)

    @property
    def _is_frequent(self) -> bool:
        minute, hour = self.expression.split()[:2]
        return minute.startswith("*") or hour.startswith("*")

    def _next_frequent(self, start: int) -> int | None:
        """Return the first time from `start` on at which the wall clock shows a time of the expression."""
        while True:
            offset = self._utc_offset(start)
            wall = next(self._iter_wall_times(start + offset), None)
            if wall is None:
                return None
            changed = self._find_clock_change(start, wall - offset)
            if changed is None:
                return wall - offset
            start = changed

    def _from_wall_time(self, wall: int) -> int:
        """Return when the wall clock first shows this time, or jumps over it."""
        shown = (_WALL_EPOCH + timedelta(seconds=wall)).replace(tzinfo=self._tz)
        at = (shown - _EPOCH) // _SECOND
        if at + self._utc_offset(at) == wall:
            return at
        before = (shown.replace(fold=1) - _EPOCH) // _SECOND
        return self._find_clock_change(before, at) or at

    def _iter_wall_times(self, wall: int) -> Iterator[int]:
        """Yield the wall-clock times of the expression from this one on."""
        before = _WALL_EPOCH + timedelta(seconds=wall - 1)
        return ((each - _WALL_EPOCH) // _SECOND for each in CronSim(self.expression, before))

    def _utc_offset(self, at: int) -> int:
        """Return by how many seconds the zone is ahead of UTC."""
        offset = (_EPOCH + timedelta(seconds=at)).astimezone(self._tz).utcoffset()
        return (offset or timedelta()) // _SECOND

    def _find_clock_change(self, start: int, end: int) -> int | None:
        """Return the first time after `start`, up to `end`, at which the clocks change."""
        before = self._utc_offset(start)
        while start < end:
            until = min(start + _OFFSET_SEARCH_STEP, end)
            if self._utc_offset(until) != before:
                times = range(start + 1, until + 1)
                return times[bisect_left(times, True, key=lambda at: self._utc_offset(at) != before)]
            start = until
        return None


def _load_zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # works even if no time zones are installed
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise RegistrationError(
            f"time zone {name!r} is unknown: give a name such as 'Europe/Warsaw'; if the system has no time zones, "
            "install the package tzdata"
        ) from None


ScheduleInput: TypeAlias = Mapping[str, Any] | Callable[[datetime], Mapping[str, Any]] | None
"""The input that a schedule starts its workflow with, or a function that returns it for a fire time."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Schedule:
    """A schedule that starts a workflow: its times, its tenant and its input.

    `cron` has five fields: minute, hour, day of the month, month, day of the week, in `timezone`. `input` maps
    parameter names to values; a function gets the fire time, in that zone, and returns such a mapping. `name`
    distinguishes several schedules of a workflow. If no scheduler was running at a fire time, the workflow is
    started up to `catch_up` late; of several such times only the latest is started.
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
        if not (input is None or isinstance(input, Mapping) or callable(input)):
            raise RegistrationError(
                f"input of a schedule is {input!r:.60}: give a dict from parameters to values, "
                "or a function of the fire time that returns one"
            )
        put(self, "input", input)
        put(self, "tenant", _check_text("tenant", tenant, check_tenant_name))
        put(self, "name", _check_text("name", name))
        # The name is part of URLs and of log lines.
        if not self.name.isprintable() or set(self.name) & {"/", "#"}:
            raise RegistrationError(f"name of a schedule is {name!r:.60}: use printable characters, but not / or #")
        put(self, "catch_up", int(parse_duration(catch_up, "catch_up of a schedule") * MICROS))

    def input_at(self, at: int) -> dict[str, Any]:
        """Return the input for a fire time."""
        given = self.input(self.cron.local(at)) if callable(self.input) else self.input or {}
        if not isinstance(given, Mapping):
            raise InputError(Reason(ReasonCode.OBJECT_NEEDED, field="input of a schedule", given=quote(given)))
        return dict(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueTimes:
    """Fire times that are due, from `first` to `latest`. `starts` is False if it is too late to start the latest."""

    first: int
    latest: int
    starts: bool


def find_due_times(cron: Cron, *, passed: int, now: int, latest_by: int) -> DueTimes | None:
    """Return the due times of a schedule, or None. `latest_by` is how late a time may still be started."""
    first = cron.next(passed)
    if first is None or first > now:
        return None
    latest = cron.latest(passed, now) or first
    return DueTimes(first=first, latest=latest, starts=now - latest <= latest_by)


def _check_text(what: str, value: Any, allowed: Callable[[str], str] = str) -> str:
    try:
        return allowed(check_name(what, value, ""))
    except InputError as error:
        raise RegistrationError(f"schedule: {error}") from None
