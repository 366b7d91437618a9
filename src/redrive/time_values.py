"""Durations and points in time: parsed from the forms that users write, converted, and formatted for display.

Users write durations as `"1h30m"`, `90` or `timedelta(...)`. Stores and transitions count time in microseconds; a point
in time is the number of them since 1970.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, overload

from redrive.errors import ConfigurationError

Duration: TypeAlias = timedelta | float | int | str
"""A span of time: a `timedelta`, a number of seconds, or text such as `"30s"` or `"1h30m"`."""

MAX_DURATION = 36_500 * 86_400.0
"""A hundred years. A longer duration is refused as a mistake, since its end may be beyond the calendar."""

MICROS = 1_000_000
"""Microseconds in a second."""

FOREVER = 7_000 * 365 * 86_400.0
"""The duration that stands for `forever`, in seconds: longer than any that users can write, but inside the calendar."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ACCEPTED_FORMS = 'a timedelta, a number of seconds, or text such as "250ms" "30s" "5m" "1h30m" "2d"'
_NUMBER = r"(\d+(?:\.\d+)?)"
_PARTS = re.compile(
    rf"(?:{_NUMBER} ?d)? ?(?:{_NUMBER} ?h)? ?(?:{_NUMBER} ?m)? ?(?:{_NUMBER} ?s)? ?(?:{_NUMBER} ?ms)?", re.ASCII
)
_PLAIN_NUMBER = re.compile(_NUMBER, re.ASCII)
_UNIT_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0)


def to_micros(length: float) -> int:
    """Convert seconds to whole microseconds, rounded up so that nothing becomes due too early."""
    whole = int(length * MICROS)
    return whole if whole >= length * MICROS else whole + 1


@overload
def to_datetime(micros: int) -> datetime: ...


@overload
def to_datetime(micros: int | None) -> datetime | None: ...


def to_datetime(micros: int | None) -> datetime | None:
    """Convert microseconds since 1970 to a datetime in UTC; None stays None."""
    if micros is None:
        return None
    return _EPOCH + timedelta(microseconds=micros)  # exact for every year, unlike fromtimestamp


def parse_duration(value: Duration, what: str = "duration", *, forms: str = _ACCEPTED_FORMS) -> float:
    """Parse a duration in any accepted form into seconds; `what` names the value in errors, `forms` what it may be."""
    match value:
        case bool():
            number = None
        case timedelta():
            number = value.total_seconds()
        case int() | float():
            try:
                number = float(value)
            except OverflowError:  # an int that no float can hold
                number = math.inf if value > 0 else -math.inf
        case str():
            number = _parse_text(value.strip())
        case _:
            number = None
    if number is None or math.isnan(number):
        raise ConfigurationError(f"{what} is {value!r}, which is not a duration. Give {forms}.")
    if number < 0:
        raise ConfigurationError(f"{what} is {value!r}, but cannot be negative. Give {_ACCEPTED_FORMS}.")
    if number > MAX_DURATION:
        raise ConfigurationError(f"{what} is longer than a hundred years. Give {_ACCEPTED_FORMS}.")
    return number + 0.0  # -0.0 becomes 0.0


def parse_retention(value: Duration, what: str) -> float:
    """Parse a duration, or the word `forever`, into seconds."""
    if isinstance(value, str) and value.strip().lower() == "forever":
        return FOREVER
    return parse_duration(value, what, forms=f'{_ACCEPTED_FORMS}, or "forever"')


def parse_past_time(text: str, now: datetime) -> datetime | None:
    """Parse a time in the past: a duration before now (`2h`), a date or a datetime. Return None for other text."""
    try:
        return now - timedelta(seconds=parse_duration(text))
    except (ConfigurationError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def format_duration(seconds: float) -> str:
    """Format seconds for display, in at most two units: `250 ms`, `4.5 s`, `1 m 30 s`, `2 d 3 h`."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.001:
        return "under 1 ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{round(seconds, 1):g} s"
    # Round to the smaller of the two units before splitting, so that 59.9 s becomes `1 m` and not `60 s`.
    whole = round(seconds)
    if whole < 3_600:
        return _join_units(whole, 60, "m", "s")
    minutes = round(seconds / 60)
    if minutes < 1_440:
        return _join_units(minutes, 60, "h", "m")
    return _join_units(round(seconds / 3_600), 24, "d", "h")


def _join_units(amount: int, size: int, large: str, small: str) -> str:
    many, rest = divmod(amount, size)
    parts = [f"{many} {large}"] if many else []
    if rest:
        parts.append(f"{rest} {small}")
    return " ".join(parts)


def _parse_text(text: str) -> float | None:
    if _PLAIN_NUMBER.fullmatch(text):
        return float(text)
    found = _PARTS.fullmatch(text)
    if not text or found is None:
        return None
    *large, milliseconds = (float(part or 0) for part in found.groups())
    # Divide, because multiplying by 0.001 would make 250 ms differ from 0.25 s.
    return sum(size * part for size, part in zip(_UNIT_SECONDS, large, strict=True)) + milliseconds / 1_000
