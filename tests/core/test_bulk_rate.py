"""Rates: accepted forms, and portions that never exceed the rate."""

from __future__ import annotations

import pytest
from cases import each

from redrive.core.bulk_rate import Rate, parse_rate
from redrive.errors import InputError


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50/s", Rate(50, "s")),
        (" 600 / min ", Rate(600, "m")),
        ("100 per hour", Rate(100, "h")),
        ("1,500/Second", Rate(1500, "s")),
        ("100000/m", Rate(100_000, "m")),
    ],
)
def test_rates_are_read_in_many_forms_and_back_from_their_text(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate
    assert parse_rate(str(rate)) == rate


@each(
    "text, says",
    [
        ("fast", "not a rate"),
        ("50", "such as 50/s"),
        ("50/d", "not a rate"),
        ("1.5/s", "whole number"),
        ("1,5/s", "whole number"),
        ("0,050/s", "not a rate"),
        ("10,,0/s", "not a rate"),
        ("-1/s", "not a rate"),
        ("٣/s", "not a rate"),
        ("", "not a rate"),
        (50, "not a rate"),
        (None, "not a rate"),
        ("9" * 5000 + "/s", "not a rate"),
        ("0/s", "pause the bulk action"),
        ("100001/s", "give 1 to 100,000"),
    ],
)
def test_an_invalid_rate_is_refused_with_advice(text: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_rate(text)


@pytest.mark.parametrize("unit", ["s", "m", "h"])
@pytest.mark.parametrize("most", [1, 7, 300])
def test_no_interval_of_a_unit_exceeds_the_rate_and_little_is_wasted(unit: str, most: int) -> None:
    for count in (*range(1, 400), 999, 1000, 12_345, 100_000):
        rate = Rate(count, unit)
        portion = rate.portion(most)
        assert 1 <= portion.count <= most
        portions = -(-rate.unit_micros // portion.gap)  # as many as can begin within a unit
        assert portions * portion.count <= count
        assert portions * portion.count > 0.7 * count


def test_portions_are_small_and_frequent() -> None:
    assert (parse_rate("50/s").portion(300).count, parse_rate("50/s").gap) == (10, 200_000)
    assert (parse_rate("30/m").portion(300).count, parse_rate("30/m").gap) == (1, 2_000_000)
    assert parse_rate("1/h").estimate_seconds(3) == 3 * 3600
