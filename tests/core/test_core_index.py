"""Search index: the values of an input that are stored for searching."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.new_run import extract_index_values, format_index_value
from redrive.errors import InputError

INPUT = json.dumps(
    {
        "order": {"id": 42, "lines": [{"sku": "a"}], "paid": True, "rate": 1.5, "note": None},
        "tags": ["x", 7, None, ["y"]],
        "email": "ann@example.org",
    }
)


@each(
    "field, values",
    [
        ("email", ["ann@example.org"]),
        ("order.id", ["42"]),
        ("order.paid", ["true"]),
        ("order.rate", ["1.5"]),
        ("order.note", []),
        ("order.lines", []),
        ("order.missing.deeper", []),
        ("email.deeper", []),
        ("tags", ["x", "7"]),
        ("missing", []),
    ],
)
def test_a_declared_field_yields_its_texts(field: str, values: list[str]) -> None:
    assert extract_index_values(INPUT, [field]) == tuple((field, value) for value in values)


def test_an_input_without_declared_fields_yields_nothing() -> None:
    assert extract_index_values("no JSON at all", ()) == ()


def test_an_unreadable_input_yields_nothing() -> None:
    assert extract_index_values("enc1:00000000:xyz", ["email"]) == ()


def test_a_value_is_indexed_once_and_a_long_list_is_cut() -> None:
    text = json.dumps({"tags": ["a", "a", *map(str, range(1000))]})
    values = extract_index_values(text, ["tags", "tags"])
    assert values[:2] == (("tags", "a"), ("tags", "0"))
    assert len(values) == 99


@given(st.text())
def test_every_text_is_kept_in_a_form_that_any_database_indexes(text: str) -> None:
    kept = format_index_value(text)
    assert len(kept) <= 200
    assert kept.isprintable()
    assert format_index_value(kept) == kept


@given(st.text(), st.text())
def test_different_texts_stay_different(one: str, other: str) -> None:
    assert (format_index_value(one) == format_index_value(other)) == (one == other)


@pytest.mark.parametrize("value", [None, {}, [], b"x"])
def test_an_unsearchable_value_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match="a text, a number or a boolean"):
        format_index_value(value)
