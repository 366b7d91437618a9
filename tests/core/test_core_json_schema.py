"""Values checked against the schemas that the codec writes: every problem has a place and a message."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field, WrapValidator
from test_payload import EXACT, JSON, TYPED, Cat, Dog, Level, Order, Tree, returning, taking

from redrive.core.json_schema import SchemaFault, _fits_fast, _SchemaCheck, find_faults, find_json_fault
from redrive.core.payload import Signature
from redrive.reasons import Reason, ReasonCode


def found(value: Any, schema: Any) -> list[tuple[str, str]]:
    return [(each.path, str(each.why)) for each in find_faults(value, schema)]


def paths(value: Any, schema: Any) -> list[str]:
    return [each.path for each in find_faults(value, schema)]


# ---------------------------------------------------------------------------- output of the codec


@pytest.mark.filterwarnings("ignore::pydantic.json_schema.PydanticJsonSchemaWarning")  # defaults left out
@pytest.mark.parametrize(("hint", "value"), EXACT, ids=[f"{n}-{ascii(h)[:50]}" for n, (h, _) in enumerate(EXACT)])
def test_output_of_the_codec_has_no_problems(hint: Any, value: Any) -> None:
    inputs, results = taking(hint), returning(hint)
    assert find_faults(json.loads(inputs.encode((value,), {})), inputs.build_input_schema()) == []
    assert find_faults(json.loads(results.encode_result(value)), results.build_output_schema()) == []


@given(st.sampled_from(list(TYPED)).flatmap(lambda hint: st.tuples(st.just(hint), TYPED[hint])))
def test_no_leaf_the_codec_writes_has_a_problem(case: tuple[Any, Any]) -> None:
    hint, value = case
    signature = taking(dict[str, list[hint | None]])
    text = signature.encode(({"a": [None, value]},), {})
    assert find_faults(json.loads(text), signature.build_input_schema()) == []


@dataclass
class Parcel:
    name: str
    weight: float
    size: tuple[int, int, int]
    tags: list[str]
    owner: Cat | None
    levels: dict[str, Level]
    rating: Annotated[int, Field(ge=1, le=5)] | None


PARCELS = st.builds(
    Parcel,
    name=st.text(max_size=5),
    weight=st.floats(),
    size=st.tuples(st.integers(), st.integers(), st.integers()),
    tags=st.lists(st.text(max_size=3), max_size=3),
    owner=st.none() | st.builds(Cat, name=st.text(max_size=3)),
    levels=st.dictionaries(st.text(max_size=3), st.sampled_from(Level), max_size=3),
    rating=st.none() | st.integers(1, 5),
)
SHIPPING = taking(list[Parcel])


@given(st.lists(PARCELS, min_size=1, max_size=3), st.data())
def test_one_field_taken_out_is_one_problem_at_its_place(parcels: list[Parcel], data: st.DataObject) -> None:
    stored = json.loads(SHIPPING.encode((parcels,), {}))
    assert find_faults(stored, SHIPPING.build_input_schema()) == []
    index = data.draw(st.integers(0, len(parcels) - 1))
    name = data.draw(st.sampled_from(list(stored["value"][index])))
    del stored["value"][index][name]
    assert paths(stored, SHIPPING.build_input_schema()) == [f"value[{index}].{name}"]


@given(st.lists(PARCELS, min_size=1, max_size=3), st.data())
def test_one_value_of_the_wrong_kind_is_one_problem_at_its_place(parcels: list[Parcel], data: st.DataObject) -> None:
    stored = json.loads(SHIPPING.encode((parcels,), {}))
    index = data.draw(st.integers(0, len(parcels) - 1))
    name = data.draw(st.sampled_from(list(stored["value"][index])))
    stored["value"][index][name] = True  # no field here is a truth value
    assert paths(stored, SHIPPING.build_input_schema()) == [f"value[{index}].{name}"]


@given(JSON)
def test_any_value_is_checked_without_a_crash(value: Any) -> None:
    assert find_faults({"value": value}, taking(Any).build_input_schema()) == []
    for hint in (Order, Tree, dict[str, Cat | Dog], tuple[int, Literal["a"]]):
        for fault in find_faults({"value": value}, taking(hint).build_input_schema()):
            assert fault.path.startswith("value")
            assert str(fault.why).startswith(("expected", "unknown field"))


def test_a_place_inside_lists_and_objects_is_named_in_full() -> None:
    def ship(order: Order, express: bool = False) -> None: ...

    schema = Signature.of(ship).build_input_schema()
    lines = [{"sku": "a", "price": "1"}, {"sku": 5, "price": True}, {"price": 1}]
    value = {"order": {"id": "x", "lines": lines, "placed": 1}, "expres": True}
    assert found(value, schema) == [
        ("expres", "unknown field; expected: order, express"),
        ("order.id", "expected a value such as 00000000-0000-4000-8000-000000000000, found other text"),
        ("order.lines[1].sku", "expected text, found a whole number"),
        ("order.lines[1].price", "expected a number or text, found true or false"),
        ("order.lines[2].sku", "expected text, but the field is missing"),
        ("order.placed", "expected text, found a whole number"),
    ]
    assert str(find_faults(value, schema)[2]) == "order.lines[1].sku: expected text, found a whole number"
    assert str(SchemaFault("", Reason(ReasonCode.KIND_NULL))) == "null"


def test_a_text_that_a_validator_may_read_is_left_to_the_validator() -> None:
    def read_polish(value: Any) -> Any:
        day, month, year = value.split(".")
        return f"{year}-{month}-{day}"

    polish = Annotated[date, BeforeValidator(read_polish)]
    share = Annotated[Decimal, WrapValidator(lambda value, read: read(str(value).replace(",", ".")))]
    for hint, text in ((polish, "31.01.2026"), (share, "12,50")):
        schema = taking(hint).build_input_schema()
        assert find_faults({"value": text}, schema) == []
        assert find_faults({"value": []}, schema) != []
    assert find_faults({"value": "31.01.2026"}, taking(date).build_input_schema()) != []


# -------------------------------------------------------------------------------------- keywords

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}

JUDGED: list[tuple[Any, list[Any], list[Any]]] = [
    ({}, [None, 1, "x", [], {}], []),
    ({"type": "integer"}, [1, -1, 1.0, 10**400], [1.5, True, "1", None, [], float("inf")]),
    ({"type": "number"}, [1, 1.5, "Infinity", "-Infinity", "NaN"], [True, "1", None, "nan"]),
    ({"type": "string"}, ["", "x"], [1, None, [], {}]),
    ({"type": "boolean"}, [True, False], [0, 1, "true", None]),
    ({"type": "null"}, [None], [0, False, "", [], {}]),
    ({"type": "array"}, [[], [1]], [{}, "x", None]),
    ({"type": "object"}, [{}, {"a": 1}], [[], "x", None]),
    ({"type": ["integer", "null"]}, [1, None], ["x", 1.5]),
    ({"type": "imaginary"}, [1, "x"], []),
    ({"type": ["imaginary"]}, [1, "x"], []),
    ({"type": 7}, [1, "x"], []),
    ({"enum": ["a", 1, None]}, ["a", 1, 1.0, None], ["b", True, 0, [], "1"]),
    ({"enum": [[1], {"a": 1}, False]}, [[1], [1.0], {"a": 1}, False], [[True], {"a": True}, 0, []]),
    ({"enum": "abc"}, ["a"], []),
    ({"const": 1}, [1, 1.0], [True, 2, "1"]),
    ({"const": None}, [None], [0, ""]),
    ({"minimum": 1}, [1, 2, "x", None, True], [0, 0.5]),
    ({"maximum": 1}, [1, 0, "x"], [2, 1.5]),
    ({"exclusiveMinimum": 1}, [2, 1.1], [1, 0]),
    ({"exclusiveMaximum": 1}, [0, 0.9], [1, 2]),
    ({"minimum": "x", "maximum": None}, [1], []),
    ({"multipleOf": 2}, [4, 0, -2, 4.0, "x", float("inf")], [3, 1.5]),
    ({"multipleOf": 0.1}, [0.3, 1, 0.7], [0.35]),
    ({"multipleOf": 0}, [1], []),
    ({"minLength": 2}, ["ab", "żó", 1, []], ["a", ""]),
    ({"maxLength": 2}, ["ab", "żó", 1, [1, 2, 3]], ["abc"]),
    ({"format": "base64url", "maxLength": 3}, ["AAAA"], []),
    ({"format": "date"}, ["2026-01-31", 1], ["31.01.2026", "", "2026-02-30"]),
    ({"format": "date-time"}, ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+01:00"], ["noon"]),
    ({"format": "time"}, ["12:00:00"], ["25:00"]),
    ({"format": "duration"}, ["PT1H", "P3D"], ["an hour"]),
    ({"format": "uuid"}, ["00000000-0000-4000-8000-000000000000"], ["7"]),
    ({"format": "decimal"}, ["12.50", "-7", "NaN", "1E+3"], ["12,50", "half"]),
    ({"format": "unheard of"}, ["x"], []),
    ({"format": ["date"]}, ["x"], []),
    ({"pattern": "^a+$"}, ["aa", 1], ["b", ""]),
    ({"pattern": "b"}, ["abc"], ["a"]),
    ({"pattern": r"\p{L}("}, ["", "x"], []),
    ({"pattern": 1}, ["x"], []),
    ({"minItems": 1}, [[1], {}, ""], [[]]),
    ({"maxItems": 1}, [[], [1], "abc"], [[1, 2]]),
    ({"uniqueItems": True}, [[], [1, True, "1", [1], {"a": 1}]], [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
    ({"uniqueItems": False}, [[1, 1]], []),
    ({"items": {"type": "integer"}}, [[], [1, 2], "x"], [[1, "x"]]),
    ({"items": False}, [[]], [[1]]),
    (
        {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}},
        [[], [1], [1, "a"], [1, "a", None]],
        [["a"], [1, 2], [1, "a", 3]],
    ),
    ({"prefixItems": [{"type": "integer"}]}, [[1, "x"]], [["x"]]),
    ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}, []], [{}, {"a": 1, "b": 1}]),
    (OBJECT, [{}, {"a": 1}, {"b": "x"}], [{"a": "x"}, []]),
    ({**OBJECT, "required": ["a"]}, [{"a": 1}], [{}]),
    ({"required": ["b"]}, [{"b": None}, []], [{"a": 1}]),
    ({"required": "b"}, [{}], []),
    ({"properties": {"a": {"readOnly": True}}, "required": ["a"]}, [{}], []),
    ({**OBJECT, "additionalProperties": True}, [{"b": 1}], []),
    ({**OBJECT, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
    ({**OBJECT, "additionalProperties": {"type": "string"}}, [{"a": 1, "b": "x"}], [{"b": 1}]),
    ({"patternProperties": {"^a": {"type": "integer"}}}, [{"a1": 1, "b": "x"}], [{"a1": "x"}]),
    ({"patternProperties": {"^a": {}}, "additionalProperties": False}, [{"a1": 1}], [{"b": 1}]),
    ({"propertyNames": {"enum": ["red"]}}, [{"red": 1}, {}], [{"blue": 1}]),
    ({"propertyNames": {"type": "integer", "enum": [1, -2]}}, [{"1": 0, "-2": 0}], [{"3": 0}, {"x": 0}]),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None], ["x"]),
    ({"anyOf": []}, [1], []),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [1, 1.5], ["x"]),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [1, 3], [0, 4]),
    ({"anyOf": [True, False]}, [1], []),
    ({"$ref": "#/$defs/N", "minimum": 3, "$defs": {"N": {"type": "integer"}}}, [3], [2, "x"]),
    ({"$ref": "#/$defs/a~1b~0c", "$defs": {"a/b~c": {"type": "integer"}}}, [3], ["x"]),
    ({"$ref": "#/$defs/Missing"}, [1, "x"], []),
    ({"$ref": "#/a/b/c", "a": 1}, [1, "x"], []),
    ({"$ref": "https://example.org/schema"}, [1, "x"], []),
    ({"$ref": 7}, [1, "x"], []),
    ({"$ref": "#"}, [1, "x"], []),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}, [1], []),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}}}, [None], []),
    ({"allOf": [{"$ref": "#"}], "type": "integer"}, [1], ["x"]),
    ({"discriminator": {"propertyName": "kind"}, "title": "T", "x-ours": 1, "not": {}}, [1, {}], []),
    ({"anyOf": 1, "allOf": {}, "properties": [], "items": 3, "prefixItems": {}}, [1, {"a": 1}, [1]], []),
]


@each("schema, good, bad", JUDGED)
def test_a_keyword_accepts_valid_values(schema: Any, good: list[Any], bad: list[Any]) -> None:
    kept = copy.deepcopy(schema)
    assert [value for value in good if find_faults(value, schema)] == []
    assert [value for value in bad if not find_faults(value, schema)] == []
    assert schema == kept


@each(
    "schema, value, expected",
    [
        ({"type": ["integer", "null"]}, "x", ("", "expected a whole number or null, found text")),
        ({"enum": ["red", "blue"]}, "x", ("", 'expected "red" or "blue", found a different value')),
        ({"enum": ["red", "blue"]}, 1, ("", 'expected "red" or "blue", found a whole number')),
        (
            {"enum": list(range(12))},
            99,
            ("", f"expected {' or '.join('0123456789')} or one of 2 more, found a different value"),
        ),
        ({"minimum": 3}, 1, ("", "expected a number of at least 3, found a smaller one")),
        ({"multipleOf": 3}, 1, ("", "expected a multiple of 3, found another number")),
        ({"minLength": 1}, "", ("", "expected at least 1 character, found 0")),
        ({"maxItems": 2}, [1, 2, 3], ("", "expected at most 2 items, found 3")),
        ({"pattern": "^a$"}, "b", ("", "expected text that matches /^a$/, found other text")),
        ({"propertyNames": {"enum": ["a"]}}, {"b": 1}, ("b", 'expected the field\'s name to be "a"')),
        ({"items": {"type": "integer"}}, [1, 2.5], ("[1]", "expected a whole number, found a number with a fraction")),
        ({"properties": {"x y": {"type": "null"}}}, {"x y": {}}, ("x y", "expected null, found an object")),
        ({"items": False}, [None], ("[0]", "expected nothing here, found null")),
    ],
)
def test_the_message_says_what_was_expected_and_what_was_found(
    schema: Any, value: Any, expected: tuple[str, str]
) -> None:
    assert found(value, schema) == [expected]


def test_messages_never_quote_the_value() -> None:
    schema = {"properties": {"pin": {"type": "integer", "maximum": 9}, "key": {"enum": ["a"], "maxLength": 1}}}
    told = str([str(each) for each in find_faults({"pin": 123456, "key": "hunter2"}, schema)])
    assert len(find_faults({"pin": 123456, "key": "hunter2"}, schema)) == 3
    assert "123456" not in told
    assert "hunter2" not in told


# ---------------------------------------------------------------------------------------- unions


class ByCard(BaseModel):
    kind: Literal["card"]
    number: str
    month: int
    year: int


class InCash(BaseModel):
    kind: Literal["cash"]


def test_a_union_reports_the_member_that_was_meant() -> None:
    paying = taking(ByCard | InCash | None).build_input_schema()
    card = {"kind": "card", "number": 1, "month": "x", "year": "x"}
    assert paths({"value": card}, paying) == ["value.number", "value.month", "value.year"]
    assert paths({"value": {"kind": "cash", "number": 1}}, paying) == []
    assert found({"value": 1}, paying) == [("value", "expected an object or null, found a whole number")]


def test_an_optional_value_reports_what_is_wrong_with_the_value() -> None:
    assert paths({"value": {"name": 1}}, taking(Cat | None).build_input_schema()) == ["value.name"]
    assert found({"value": 7}, taking(Annotated[int, Field(le=5)] | None).build_input_schema()) == [
        ("value", "expected a number of at most 5, found a larger one")
    ]


# --------------------------------------------------------------------------------- hostile input


def tree(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"value": "wrong", "children": []}
    for _ in range(levels):
        value = {"value": 1, "children": [value]}
    return value


def test_values_as_deep_as_the_codec_reads_are_checked_completely() -> None:
    (problem,) = find_faults({"value": tree(98)}, taking(Tree).build_input_schema())
    assert problem.path == "value" + ".children[0]" * 98 + ".value"


@pytest.mark.parametrize("levels", [150, 50_000])
def test_values_too_deep_to_read_are_a_problem_and_not_a_crash(levels: int) -> None:
    (problem,) = find_faults({"value": tree(levels)}, taking(Tree).build_input_schema())
    assert problem.path == "value"
    assert "nested more than 200 levels deep" in str(problem.why)


def test_deep_values_can_be_compared() -> None:
    def deep() -> Any:
        value: Any = 1
        for _ in range(195):
            value = {"a": value}
        return value

    assert paths([deep(), deep()], {"uniqueItems": True}) == [""]
    assert paths(deep(), {"enum": [deep()]}) == []


def test_unions_within_unions_are_compared_once_per_place() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": {"anyOf": [node, dict(node), {"type": "null"}]}}}
    value: Any = 5
    for _ in range(90):  # would take 2 ** 90 comparisons
        value = {"next": value}
    assert found(value, schema) == [(".".join(["next"] * 90), "expected an object or null, found a whole number")]


def test_a_schema_may_be_deeper_than_the_stack() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(20_000):
        schema = {"allOf": [schema]}
    assert found("x", schema) == [("", "expected a whole number, found text")]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.text() | st.integers() | st.booleans() | st.none()),
    st.dictionaries(
        st.sampled_from("abc"),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["string", "integer", "boolean", "number", ["string", "null"]])},
            optional={"title": st.just("T"), "minimum": st.just(1), "const": st.just(1)},
        ),
    ),
    st.lists(st.sampled_from("abcd")),
    st.sampled_from([True, False, None]),
)
def test_the_fast_path_agrees_with_the_full_check(value: Any, parts: Any, needed: Any, more: Any) -> None:
    asked = {"type": "object", "properties": parts, "required": needed}
    asked |= {} if more is None else {"additionalProperties": more}
    if _fits_fast(value, asked):
        assert _SchemaCheck(asked).run(value, asked, ()) == []


@each(
    "text, fault",
    [
        (r'{"a": "\ud800", "\uDFFF": ["\ud83d\ude00", "\\ud800", "\""]}', None),
        (r'"\ud80"', "is not JSON"),
        (r'"\ud800', "is not JSON"),
        (r'["\ud800", 1e999]', "is not JSON"),
        (r'["\\\ud800\x"]', "is not JSON"),
        ('"\ud800"', "is not JSON"),  # UTF-8 has no such character
        (f'["\\ud800", {"[" * 300}{"]" * 300}]', "is nested deeper than 200 levels"),
    ],
)
def test_half_a_character_is_json_only_if_it_is_escaped(text: str, fault: str | None) -> None:
    assert find_json_fault(text) == fault
