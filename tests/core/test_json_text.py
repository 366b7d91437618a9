"""JSON that users type: parsed strictly, with the line of every place."""

from __future__ import annotations

import json

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.json_edit import parse_typed_json
from redrive.errors import InputError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([None, 0, 2]))
def test_json_written_by_programs_is_read_unchanged(value: object, indent: int | None) -> None:
    assert parse_typed_json(json.dumps(value, indent=indent, ensure_ascii=False)).value == value


def test_every_place_has_its_line() -> None:
    text = '{\n  "order": {"id": 7,\n    "lines": [\n      {"price": 1},\n      {"price": 2}]}}'
    assert parse_typed_json(text).lines == {
        "": 1,
        "order": 2,
        "order.id": 2,
        "order.lines": 3,
        "order.lines[0]": 4,
        "order.lines[0].price": 4,
        "order.lines[1]": 5,
        "order.lines[1].price": 5,
    }
    assert parse_typed_json(text, below=3).lines["order.lines[1].price"] == 8


@each(
    "text, said",
    [
        ('{"a": 1,\n "b": 2,\n "a": 3}', 'line 3: "a" is given twice, first in line 1'),
        ('{"x": [{"a": 1, "a": 1}]}', 'line 1: "a" is given twice'),
        ('{"\\u0061": 1, "a": 2}', '"a" is given twice'),
        ('{"a": 1,\nb}', "line 2, column 1: a name in double quotes is missing here"),
        ("", "line 1, column 1: a value is missing here"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -1e999}', "-1e999 is larger than any number that can be stored"),
        ("[" * 100_000, "nested too deep"),
        ("9" * 5_000, "too many digits"),
    ],
)
def test_unusable_json_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        parse_typed_json(text)


def test_the_same_name_in_two_objects_is_not_a_duplicate() -> None:
    assert parse_typed_json('{"a": {"a": [{"a": 1}, {"a": 2}]}, "b": "{\\"a\\": 1, \\"a\\": 2}"}').value["b"]


def test_lines_above_the_text_are_counted() -> None:
    with pytest.raises(InputError, match='line 6: "a" is given twice, first in line 5'):
        parse_typed_json('{"a": 1,\n"a": 2}', below=4)
