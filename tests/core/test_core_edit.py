"""Editing an input: patches, differences, and masks that must never be saved over the real value."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.json_edit import Change, diff_json, merge_patch, unmask
from redrive.core.redact import MASK, Redactor, find_masked_paths
from redrive.errors import InputError

REDACTOR = Redactor()
CARD, OTHER_CARD = "4111111111111111", "5555555555554444"

KEYS = st.sampled_from(["name", "token", "lines", "a", f"card {CARD}", "x y"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
SECRETS = st.sampled_from([f"pay with {CARD}", "password=hunter2", MASK, f"so {MASK} it says", int(CARD)])
JSON = st.recursive(
    LEAVES | SECRETS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


# ---------------------------------------------------------------------------------------- patches


@each(
    "original, patch, expected",
    [  # the cases of RFC 7396 whose top level is an object
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": [1]}, {"a": {"b": 1, "c": None}}, {"a": {"b": 1}}),
    ],
)
def test_a_patch_does_what_the_standard_says(original: Any, patch: Any, expected: Any) -> None:
    before = copy.deepcopy(original)
    assert merge_patch(original, patch) == expected
    assert original == before


@pytest.mark.parametrize("patch", [None, 1, "x", [], [{"a": 1}]])
def test_a_patch_must_be_an_object(patch: Any) -> None:
    with pytest.raises(InputError, match="a patch must be a JSON object"):
        merge_patch({"a": 1}, patch)


def test_only_an_object_input_can_be_patched() -> None:
    with pytest.raises(InputError, match="send the whole input"):
        merge_patch(["a"], {"a": 1})


@given(OBJECTS, OBJECTS)
def test_applying_a_patch_twice_equals_applying_it_once(original: Any, patch: Any) -> None:
    once = merge_patch(original, patch)
    assert merge_patch(once, patch) == once
    assert merge_patch(original, {}) == original


def test_extreme_nesting_is_refused_without_a_crash() -> None:
    with pytest.raises(InputError, match="a: nested more than 200 levels deep"):
        merge_patch({}, nested(20_000))
    with pytest.raises(InputError, match="nested more than 200 levels deep"):
        unmask(nested(20_000), {}, REDACTOR)
    assert merge_patch({}, nested(150)) == nested(150)


# ------------------------------------------------------------------------------------ differences


def test_changes_name_the_place_and_both_sides() -> None:
    before = {"order": {"lines": [{"price": 1}, {"price": 2}], "note": None, "x y": 1}, "gone": [1]}
    after = {"order": {"lines": [{"price": 3}], "note": None, "x y": 2}, "new": None}
    assert diff_json(before, after) == (
        Change(path="order.lines[0].price", kind="changed", before=1, after=3),
        Change(path="order.lines[1]", kind="removed", before={"price": 2}),
        Change(path="order['x y']", kind="changed", before=1, after=2),
        Change(path="gone", kind="removed", before=[1]),
        Change(path="new", kind="added", after=None),
    )


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0), ("1", 1), ({}, []), (None, {})])
def test_values_that_python_considers_equal_are_distinguished(before: Any, after: Any) -> None:
    assert [change.kind for change in diff_json({"a": [before]}, {"a": [after]})] == ["changed"]


@given(JSON, JSON)
def test_no_changes_means_the_same_text(before: Any, after: Any) -> None:
    assert diff_json(before, copy.deepcopy(before)) == ()
    same = json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)
    assert (diff_json(before, after) == ()) is same


@given(JSON, JSON)
def test_changes_survive_the_trip_through_json(before: Any, after: Any) -> None:
    found = diff_json(before, after)
    assert tuple(Change.from_json(json.loads(json.dumps(each.to_json()))) for each in found) == found


def test_a_side_that_does_not_exist_is_not_written() -> None:
    assert Change(path="a", kind="added", after=None).to_json() == {"path": "a", "kind": "added", "after": None}
    assert Change(path="a", kind="removed", before=1).to_json().keys() == {"path", "kind", "before"}


def test_deep_values_can_be_compared() -> None:
    assert len(diff_json(nested(20_000), {})) == 1
    deep = nested(2_000)
    assert diff_json(deep, nested(2_001))[0].kind == "added"


def test_hidden_values_stay_hidden_in_the_changes() -> None:
    before = {"password": "old", "note": f"card {CARD}", "credentials": {"user": "a"}, CARD: 1, "n": 1}
    after = {"password": "new", "note": "none", "credentials": {"user": "b"}, CARD: 2, "n": 2}
    found = diff_json(before, after, REDACTOR)
    assert [(each.path, each.before, each.after) for each in found] == [
        ("password", MASK, MASK),
        ("note", f"card {MASK}", "none"),
        ("credentials", MASK, MASK),
        (MASK, 1, 2),
        ("n", 1, 2),
    ]
    assert diff_json(before, copy.deepcopy(before), REDACTOR) == ()


@pytest.mark.parametrize("guess", ["hunter2", "hunter3", ["hunter2"]])
def test_a_guessed_hidden_value_is_neither_confirmed_nor_denied(guess: Any) -> None:
    original = {"user": {"password": "hunter2"}, "note": f"card {CARD}", "lines": [{"token": 1}], "n": 1}
    patch = {"user": {"password": guess}, "note": f"card {CARD}", "n": 1}
    after, sent = merge_patch(original, patch), merge_patch(REDACTOR.redact(original), patch)
    found = diff_json(original, after, REDACTOR, sent=sent)
    assert [(each.path, each.kind, each.before, each.after) for each in found] == [
        ("user.password", "changed", MASK, MASK),
        ("note", "changed", f"card {MASK}", f"card {MASK}"),
    ]


@given(JSON)
def test_untouched_masks_are_not_changes(original: Any) -> None:
    sent = REDACTOR.redact(original)
    assert diff_json(original, unmask(sent, original, REDACTOR), REDACTOR, sent=sent) == ()


@given(JSON, JSON)
def test_redacting_never_loses_or_invents_a_change(before: Any, after: Any) -> None:
    assert bool(diff_json(before, after)) is bool(diff_json(before, after, REDACTOR))


# --------------------------------------------------------------------------------- hidden values


@given(JSON)
def test_untouched_masks_become_the_original_values(original: Any) -> None:
    assert diff_json(original, unmask(REDACTOR.redact(original), original, REDACTOR)) == ()


@given(OBJECTS, OBJECTS)
def test_a_mask_is_restored_or_refused_but_never_saved(original: Any, edited: Any) -> None:
    try:
        meant = unmask(edited, original, REDACTOR)
    except InputError:
        assert find_masked_paths(edited)
    else:
        if not find_masked_paths(original):
            assert not find_masked_paths(meant)


ORIGINAL = {
    "order": 7,
    "api_key": "sk-real",
    "note": f"paid with {CARD} today",
    "credentials": {"user": "ann", "pin": 1234},
    "lines": [{"sku": "a", "token": "t1"}, {"sku": "b", "token": "t2"}, {"sku": "c", "token": "t3"}],
    "cards": [CARD, OTHER_CARD],
    CARD: "by number",
}


def shown() -> Any:
    return REDACTOR.redact(ORIGINAL)


def test_fields_beside_hidden_ones_can_be_edited() -> None:
    edited = shown()
    assert (edited["api_key"], edited["credentials"]) == (MASK, MASK)
    edited["order"] = 8
    edited["lines"][1]["sku"] = "B"
    edited["extra"] = True
    meant = unmask(edited, ORIGINAL, REDACTOR)
    assert [(each.path, each.after) for each in diff_json(ORIGINAL, meant)] == [
        ("order", 8),
        ("lines[1].sku", "B"),
        ("extra", True),
    ]


def test_a_hidden_value_can_be_replaced_or_removed() -> None:
    edited = shown() | {"api_key": "sk-new", "credentials": {"user": "bob", "pin": 1}}
    del edited["note"]
    meant = unmask(edited, ORIGINAL, REDACTOR)
    assert meant == {key: value for key, value in ORIGINAL.items() if key != "note"} | {
        "api_key": "sk-new",
        "credentials": {"user": "bob", "pin": 1},
    }


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        ({"note": f"paid with {MASK} yesterday"}, "note"),
        ({"api_key": MASK + "x"}, "api_key"),
        ({"order": MASK}, "order"),
        ({"renamed": MASK}, "renamed"),
        ({"credentials": {"user": "bob", "pin": MASK}}, "credentials.pin"),
        ({"lines": {"first": {"token": MASK}}}, "lines.first.token"),
        ({"fresh": {f"a {MASK}": 1}}, "fresh"),
    ],
)
def test_a_mask_in_another_place_is_refused_by_name(edit: dict[str, Any], path: str) -> None:
    for given_ in (shown() | edit, edit):  # as whole input and as patch
        with pytest.raises(InputError) as caught:
            unmask(given_, ORIGINAL, REDACTOR)
        assert str(caught.value).startswith(path)
        assert "Enter the real value, or leave the field out of the patch" in str(caught.value)


def test_all_places_are_named_up_to_a_readable_number() -> None:
    with pytest.raises(InputError, match=r"^a, b: "):
        unmask({"a": MASK, "b": MASK}, {}, REDACTOR)
    with pytest.raises(InputError, match=r"^f0, f1, f2, f3, f4 and 3 more: "):
        unmask({f"f{n}": MASK for n in range(8)}, {}, REDACTOR)


def test_text_that_really_is_the_mask_is_left_alone() -> None:
    original = {"sign": MASK, "text": f"a {MASK} b", "order": 1}
    edited = REDACTOR.redact(original) | {"order": 2}
    assert unmask(edited, original, REDACTOR) == original | {"order": 2}


def test_a_hidden_name_becomes_the_real_name() -> None:
    assert unmask({MASK: "edited"}, ORIGINAL, REDACTOR) == {CARD: "edited"}
    assert unmask({MASK: None}, ORIGINAL, REDACTOR) == {CARD: None}
    with pytest.raises(InputError):  # both would be the same field
        unmask({MASK: "edited", CARD: "typed"}, ORIGINAL, REDACTOR)


def test_a_patch_may_leave_out_hidden_fields() -> None:
    patch = unmask({"lines": [*shown()["lines"][:1], {"sku": "z"}], "order": None}, ORIGINAL, REDACTOR)
    assert patch == {"lines": [{"sku": "a", "token": "t1"}, {"sku": "z"}], "order": None}
    assert merge_patch(ORIGINAL, patch)["api_key"] == "sk-real"


# Lists: hidden values stay with their item, wherever it was moved.


def lines(*items: str) -> list[dict[str, str]]:
    return [dict(zip(("sku", "token"), item.split(":"), strict=True)) for item in items]


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        (lines(f"b:{MASK}", f"c:{MASK}"), lines("b:t2", "c:t3")),
        (lines(f"c:{MASK}", f"a:{MASK}", f"b:{MASK}"), lines("c:t3", "a:t1", "b:t2")),
        (lines(f"b:{MASK}", f"c:{MASK}", "d:new"), lines("b:t2", "c:t3", "d:new")),
        (lines(f"a:{MASK}", f"b:{MASK}", f"c:{MASK}", "d:new"), lines("a:t1", "b:t2", "c:t3", "d:new")),
        (lines(f"A:{MASK}", f"b:{MASK}", f"C:{MASK}"), lines("A:t1", "b:t2", "C:t3")),
        (lines("A:x", f"b:{MASK}"), lines("A:x", "b:t2")),
    ],
)
def test_an_item_keeps_its_hidden_values(edited: Any, expected: Any) -> None:
    assert unmask({"lines": edited}, ORIGINAL, REDACTOR) == {"lines": expected}


@pytest.mark.parametrize(
    "edited",
    [
        lines(f"B:{MASK}", f"c:{MASK}"),  # one item removed, this one edited: it could be a or b
        lines(f"b:{MASK}", f"A:{MASK}", f"c:{MASK}"),  # the others were moved
        lines(f"a:{MASK}", f"b:{MASK}", f"c:{MASK}", f"d:{MASK}"),
    ],
)
def test_an_item_whose_origin_is_uncertain_is_refused(edited: Any) -> None:
    with pytest.raises(InputError, match=r"^lines\[\d\]\.token: "):
        unmask({"lines": edited}, ORIGINAL, REDACTOR)


@pytest.mark.parametrize(
    ("edited", "expected"),
    [
        ([MASK, MASK, "new"], [CARD, OTHER_CARD, "new"]),
        (["new", MASK, MASK], ["new", CARD, OTHER_CARD]),
        (["new", MASK], ["new", OTHER_CARD]),
        ([], []),
    ],
)
def test_items_that_all_look_alike_keep_their_places(edited: Any, expected: Any) -> None:
    assert unmask({"cards": edited}, ORIGINAL, REDACTOR) == {"cards": expected}


def test_a_deletion_among_equal_looking_items_is_refused() -> None:
    with pytest.raises(InputError, match=r"^cards\[0\]: "):
        unmask({"cards": [MASK]}, ORIGINAL, REDACTOR)
    assert unmask({"cards": [MASK]}, {"cards": [CARD, CARD]}, REDACTOR) == {"cards": [CARD]}
