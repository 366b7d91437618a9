"""Inputs as forms: a typed value is stored at the place of its field, with the type it had before."""

from __future__ import annotations

import pytest

from redrive.reasons import Reason, ReasonCode
from redrive.server.pages.replay_form import fill_fields, list_form_fields, split_faults
from redrive.server.pages.texts import (
    MAX_SHOWN,
    JsonExcerpt,
    excerpt_json,
    format_json,
    list_labelled_texts,
    name_word_class,
)

ORDER = {"order": {"id": 7, "paid": True, "lines": [1, 2], "note": None, "to": {"street": "Main"}}, "copies": 1.5}


def test_every_scalar_value_has_a_field_at_any_depth() -> None:
    found = list_form_fields(ORDER)
    assert found is not None
    assert [(leaf.name, leaf.kind, leaf.text) for leaf in found] == [
        ("order.id", "number", "7"),
        ("order.paid", "flag", "true"),
        ("order.lines", "json", "[1, 2]"),
        ("order.note", "text", ""),
        ("order.to.street", "text", "Main"),
        ("copies", "number", "1.5"),
    ]
    assert fill_fields(ORDER, found, {leaf.name: leaf.text for leaf in found}) == ORDER


def test_a_typed_value_keeps_its_type_or_stays_text_for_validation() -> None:
    found = list_form_fields(ORDER)
    assert found is not None
    typed = {"order.id": "x", "order.lines": "[3]", "order.note": "5", "order.to.street": "12", "order.paid": "false"}
    assert fill_fields(ORDER, found, typed) == {
        "order": {"id": "x", "paid": False, "lines": [3], "note": 5, "to": {"street": "12"}},
        "copies": 1.5,
    }
    assert fill_fields(ORDER, found, {"order.lines": "3", "copies": "[1]"})["order"]["lines"] == "3"
    assert ORDER["copies"] == 1.5


@pytest.mark.parametrize(
    "value",
    [
        {},
        [1],
        "text",
        None,
        {f"f{n}": n for n in range(41)},
        {"a.b": 1, "a": {"b": 2}},
        {"a": {"b": {"c": {"d": {"e": 1}}}}},
        {"a": "x" * 20_001},
    ],
)
def test_unsuitable_input_has_no_form_fields(value: object) -> None:
    assert list_form_fields(value) is None


def test_faults_are_grouped_by_path() -> None:
    codes = (ReasonCode.KIND_NUMBER, ReasonCode.KIND_TEXT, ReasonCode.KIND_NULL)
    number, text, other = map(Reason, codes)
    faults = (
        Reason(ReasonCode.FAULT, path="order.id", why=number),
        Reason(ReasonCode.FAULT, path="order.to", why=text),
        Reason(ReasonCode.FAULT, path=None, why=other),
    )
    refusal = Reason(ReasonCode.FAULTS, faults=faults, more=None)
    assert split_faults(refusal) == ({"order.id": number, "order.to": text}, [other])
    assert split_faults(number) == ({}, [number])


class Unwritten:
    """A value that must not be converted to text."""

    def __str__(self) -> str:
        raise AssertionError("a value outside the shown part was converted to text")


def test_only_the_beginning_of_a_large_payload_is_formatted() -> None:
    small = {"name": "Zo\u00eb", "tags": [1, None, True]}
    assert excerpt_json(small) == JsonExcerpt(format_json(small), cut=False)
    large = {"papers": "x" * MAX_SHOWN, "rest": "y"}
    assert excerpt_json({**large, "more": Unwritten()}) == JsonExcerpt(format_json(large)[:MAX_SHOWN], cut=True)
    assert list_labelled_texts({"items": [Unwritten()] * MAX_SHOWN}) is None


def test_only_short_words_stay_whole_in_a_cell() -> None:
    found = {text: name_word_class(text) for text in ("accounts@shop.example", "paid by hand", "x" * 25, "", None)}
    assert list(found.values()) == ["word", "words", "", "words", "words"]
