"""Durations: every accepted form, and their readable text."""

from __future__ import annotations

import contextlib
import math
from datetime import timedelta

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigurationError
from redrive.time_values import MAX_DURATION, format_duration, parse_duration


@each(
    "written, meant",
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5_400),
        ("1h 30m", 5_400),
        ("2d", 172_800),
        ("1d2h3m4s5ms", 93_784.005),
        ("250ms", 0.25),
        ("1.5h", 5_400),
        (" 4 s ", 4),
        ("0s", 0),
        ("30", 30),
        ("0.5", 0.5),
        (90, 90),
        (0.25, 0.25),
        (0, 0),
        (-0.0, 0),
        (timedelta(minutes=2, milliseconds=500), 120.5),
    ],
)
def test_every_form_is_read_as_seconds(written: object, meant: float) -> None:
    read = parse_duration(written)  # type: ignore[arg-type]
    assert read == meant
    assert type(read) is float
    assert math.copysign(1, read) == 1


@each(
    "written",
    [
        *("", " ", "s", "5x", "abc", "-5s", "+5s", "1h-30m", "30m1h", "1s1s", "5M", "1e3s", "1,5s", ".5s", "5.s"),
        *("٣s", "nan", "inf", "1h\x00", "5 minutes", "9" * 400, "9" * 400 + "s"),
        *(True, False, None, [], b"5s", 1j, -1, -0.001, math.nan, math.inf, -math.inf, 10**400, -(10**400)),
        *(timedelta(seconds=-1), timedelta.max, MAX_DURATION * 1.01),
    ],
)
def test_anything_else_is_refused_with_the_accepted_forms(written: object) -> None:
    with pytest.raises(ConfigurationError, match=r'max_delay is .*"250ms" "30s" "5m" "1h30m" "2d"'):
        parse_duration(written, "max_delay")  # type: ignore[arg-type]


@given(st.text())
def test_text_is_either_a_duration_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert 0 <= parse_duration(text) <= MAX_DURATION


@given(st.integers(0, 1_000), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_units_add_up(d: int, h: int, m: int, s: int, ms: int) -> None:
    meant = timedelta(days=d, hours=h, minutes=m, seconds=s, milliseconds=ms).total_seconds()
    assert parse_duration(f"{d}d{h}h{m}m{s}s{ms}ms") == pytest.approx(meant)


@each(
    "length, read",
    [
        (0, "0 s"),
        (0.0001, "under 1 ms"),
        (0.001, "1 ms"),
        (0.25, "250 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (4, "4 s"),
        (4.32, "4.3 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.9, "1 m"),
        (90, "1 m 30 s"),
        (3_599.4, "59 m 59 s"),
        (3_599.6, "1 h"),
        (3_660, "1 h 1 m"),
        (86_399, "1 d"),
        (183_600, "2 d 3 h"),
        (86_400 * 400, "400 d"),
        (-4.5, "-4.5 s"),
        (1e300, f"{int(1e300 / 3_600) // 24} d"),
    ],
)
def test_words_use_at_most_two_units_and_round_up_into_the_next(length: float, read: str) -> None:
    assert format_duration(length).startswith(read) if length == 1e300 else format_duration(length) == read


@given(st.floats(0.001, MAX_DURATION))
def test_words_can_be_read_back_to_within_a_few_percent(length: float) -> None:
    assert parse_duration(format_duration(length)) == pytest.approx(length, rel=0.51 if length < 0.01 else 0.06)
