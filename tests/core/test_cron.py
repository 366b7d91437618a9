"""Cron expressions: the times at which they fire, above all on days when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cases import each
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.schedule import Cron, DueTimes, Schedule, find_due_times
from redrive.errors import ConfigurationError, RegistrationError

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND


def micros(moment: datetime) -> int:
    return int(moment.timestamp()) * SECOND


def local(text: str, zone: str) -> int:
    return micros(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))


def fires(expression: str, zone: str, day: str, days: int = 1) -> list[str]:
    """Return the times at which an expression fires within some days, with their offsets from UTC."""
    cron = Cron.parse(expression, zone)
    last = datetime.fromisoformat(day) + timedelta(days=days)
    at, end, found = cron.next(local(day, zone) - 1), local(last.isoformat(), zone), []
    while at is not None and at < end:
        found.append(f"{cron.local(at):%H:%M%z}")
        at = cron.next(at)
    return found


# Clocks are changed at 2:00 in Warsaw (to 3:00) and at 3:00 (to 2:00), at 2:00 both ways in New York, and by
# half an hour on Lord Howe: at 2:00 to 2:30, and at 2:00 to 1:30.
DAYS = {
    "warsaw, spring, in the gap": ("30 2 * * *", "Europe/Warsaw", "2026-03-29", ["03:00+0200"]),
    "warsaw, spring, before": ("59 1 * * *", "Europe/Warsaw", "2026-03-29", ["01:59+0100"]),
    "warsaw, spring, at its end": ("0 2,3 * * *", "Europe/Warsaw", "2026-03-29", ["03:00+0200"]),
    "warsaw, autumn, twice there": ("30 2 * * *", "Europe/Warsaw", "2026-10-25", ["02:30+0200"]),
    "warsaw, autumn, midnight": ("0 0 * * *", "Europe/Warsaw", "2026-10-25", ["00:00+0200"]),
    "new york, spring": ("15 2 * * *", "America/New_York", "2026-03-08", ["03:00-0400"]),
    "new york, autumn": ("15 1 * * *", "America/New_York", "2026-11-01", ["01:15-0400"]),
    "lord howe, spring": ("15 2 * * *", "Australia/Lord_Howe", "2026-10-04", ["02:30+1100"]),
    "lord howe, autumn": ("45 1 * * *", "Australia/Lord_Howe", "2026-04-05", ["01:45+1100"]),
    "lord howe, often": (
        "*/20 1-2 * * *",
        "Australia/Lord_Howe",
        "2026-10-04",
        ["01:00+1030", "01:20+1030", "01:40+1030", "02:40+1100"],
    ),
    "lord howe, often again": (
        "*/15 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-05",
        ["01:00+1100", "01:15+1100", "01:30+1100", "01:45+1100", "01:30+1030", "01:45+1030"],
    ),
}


@each("expression, zone, day, expected", DAYS.values())
def test_times_on_days_when_clocks_are_changed(expression: str, zone: str, day: str, expected: list[str]) -> None:
    assert fires(expression, zone, day) == expected


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Warsaw", "2026-03-29", 23),
        ("Europe/Warsaw", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
    ],
)
def test_frequent_schedules_fire_at_even_intervals_of_real_time(zone: str, day: str, hours: float) -> None:
    assert len(fires("* * * * *", zone, day)) == 60 * hours
    assert len(fires("*/10 * * * *", zone, day)) == 6 * hours
    if hours % 1 == 0:
        assert len(fires("0 * * * *", zone, day)) == hours


@pytest.mark.parametrize("zone", ["Europe/Warsaw", "America/New_York", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize("time", ["0 0", "30 1", "0 2", "15 2", "30 2", "59 2", "0 3"])
def test_a_daily_time_fires_once_a_day_all_the_year(zone: str, time: str) -> None:
    assert len(fires(f"{time} * * *", zone, "2026-01-01", 365)) == 365


FIELDS = st.tuples(
    st.sampled_from(["*", "*/15", "0", "30", "5,35", "59", "10-20/5"]),
    st.sampled_from(["*", "*/2", "2", "1-4", "0", "23", "2,14"]),
    st.sampled_from(["*", "*", "1", "L", "28-31"]),
    st.sampled_from(["*", "*", "3,10,11"]),
    st.sampled_from(["*", "*", "MON-FRI", "SUN", "0#2"]),
)
STARTS = st.integers(1_770_000_000, 1_830_000_000).map(lambda at: datetime.fromtimestamp(at, UTC))


# On Lord Howe cronsim itself is wrong, which is why redrive computes the times itself.
@given(FIELDS, STARTS, st.sampled_from(["Europe/Warsaw", "America/New_York", "Asia/Kolkata", "UTC"]))
def test_next_times_agree_with_cronsim_where_clocks_change_by_an_hour(
    fields: tuple[str, ...], start: datetime, zone: str
) -> None:
    expression, at = " ".join(fields), micros(start)
    cron, other = Cron.parse(expression, zone), CronSim(expression, start.astimezone(ZoneInfo(zone)))
    for _ in range(5):
        # cronsim looks back into a repeated hour, and returns the end of a gap for each time in the gap.
        theirs = next(found for each in other if (found := micros(each)) > at)
        at = cron.next(at) or 0
        assert at == theirs


@given(FIELDS, STARTS, st.integers(0, 3 * 1440))
def test_the_latest_time_is_the_last_one_of_the_interval(
    fields: tuple[str, ...], start: datetime, minutes: int
) -> None:
    cron, begin = Cron.parse(" ".join(fields), "Europe/Warsaw"), micros(start)
    all_of_them, at = [], cron.next(begin)
    while at is not None and at <= begin + minutes * MINUTE:
        all_of_them.append(at)
        at = cron.next(at)
    assert cron.latest(begin, begin + minutes * MINUTE) == (all_of_them[-1] if all_of_them else None)


def test_a_moment_is_not_its_own_next_one() -> None:
    cron, six = Cron.parse("0 6 * * *", "UTC"), local("2026-05-01T06:00", "UTC")
    assert cron.next(six - 1) == six
    assert cron.next(six) == six + DAY


@each(
    "given, says",
    [
        (("61 * * * *", "UTC"), "bad minute"),
        (("0 6 * *", "UTC"), "five fields"),
        (("*/5 0 6 * * *", "UTC"), "five fields"),
        (("@daily", "UTC"), "five fields"),
        ((None, "UTC"), "five fields"),
        (("0 0 31 2 *", "UTC"), "bad day-of-month"),
        (("* * */20 * 1L", "UTC"), "never|no day"),
        (("0 6 * * *", "Europe/Nowhere"), "time zone 'Europe/Nowhere' is unknown"),
        (("0 6 * * *", "Europe"), "is unknown"),
        (("0 6 * * *", "/etc/passwd"), "is unknown"),
        (("0 6 * * *", ""), "is unknown"),
        (("0 6 * * *", None), "is unknown"),
    ],
)
def test_an_invalid_schedule_is_refused_with_a_message(given: tuple[str, str], says: str) -> None:
    with pytest.raises(RegistrationError, match=says):
        Schedule(given[0], timezone=given[1])


@pytest.mark.parametrize("wrong", [{"input": 5}, {"name": ""}, {"name": "a/b"}, {"tenant": None}, {"catch_up": "soon"}])
def test_other_invalid_fields_of_a_schedule_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"input|name|tenant|catch_up"):
        Schedule("0 6 * * *", **wrong)  # type: ignore[arg-type]


def test_of_several_missed_times_the_latest_is_due_and_only_if_it_is_not_too_late() -> None:
    hourly, six = Cron.parse("0 * * * *", "UTC"), local("2026-05-01T06:00", "UTC")
    assert find_due_times(hourly, passed=six, now=six + HOUR - 1, latest_by=HOUR) is None
    at_seven = DueTimes(first=six + HOUR, latest=six + HOUR, starts=True)
    assert find_due_times(hourly, passed=six, now=six + HOUR, latest_by=0) == at_seven
    late = find_due_times(hourly, passed=six, now=six + 4 * HOUR + 2 * MINUTE, latest_by=2 * MINUTE)
    assert late == DueTimes(first=six + HOUR, latest=six + 4 * HOUR, starts=True)
    too_late = find_due_times(hourly, passed=six, now=six + 4 * HOUR + 2 * MINUTE + 1, latest_by=2 * MINUTE)
    assert too_late == DueTimes(first=six + HOUR, latest=six + 4 * HOUR, starts=False)
