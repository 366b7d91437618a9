"""Declared actions: checked once, exact as JSON, with templates only in safe places."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.actions import ApiCall, Manual, Notify, RenderedCall, Sql
from redrive.core.classify import Category, classify
from redrive.errors import ConfigurationError, PayloadError

URL = "https://bank.example/refunds/{{result.id}}?by={{step.name}}"
DATA: dict[str, Any] = {
    "input": {"order_id": "o-7", "lines": [{"sku": "a"}]},
    "result": {"id": 42, "ok": True},
    "step": {"name": "charge", "idempotency_key": "k-1"},
}
EACH: list[Any] = [
    ApiCall(URL, "put", {"a": ["{{result.id}}", 1, None]}, {"X-Key": "{{step.idempotency_key}}"}, "5s"),
    ApiCall("http://bank.example"),
    Sql("ledger", "UPDATE t SET a = $1 WHERE id = $2", ["{{result.id}}", 5]),
    Sql("ledger", "DELETE FROM t"),
    Notify("ops", "Order {{input.order_id}} was rolled back"),
    Manual("Stop parcel {{result.id}}"),
]
BODIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="{")),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(st.characters(exclude_characters="{")), each, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("action", EACH, ids=lambda action: action.kind)
def test_an_action_as_json_is_complete(action: Any) -> None:
    written = json.loads(json.dumps(action.to_json()))
    assert list(written) == ["kind", *(field.name for field in dataclasses.fields(action))]
    assert written.pop("kind") == action.kind
    assert type(action)(**written) == action


@given(BODIES)
def test_every_body_is_kept_as_it_was_given(body: Any) -> None:
    call = ApiCall(URL, body=body)
    assert call.body == json.loads(json.dumps(call.to_json()))["body"] == body


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert ApiCall("https://h").to_json() == {
        "kind": "api_call",
        "url": "https://h",
        "method": "POST",
        "body": None,
        "headers": {},
        "timeout": 30.0,
    }
    assert Sql("db", "SELECT 1").params == ()


def test_an_action_does_not_change_with_the_objects_it_was_made_from() -> None:
    body: dict[str, Any] = {"a": [1]}
    headers = {"X-A": "1"}
    call = ApiCall("https://h", body=body, headers=headers)
    body["a"].append(2)
    headers["X-B"] = "2"
    call.to_json()["body"]["a"].append(3)
    assert (call.body, call.headers) == ({"a": [1]}, {"X-A": "1"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        call.url = "https://evil.example"  # type: ignore[misc]


def test_bodies_may_hold_the_same_values_as_payloads() -> None:
    assert ApiCall("https://h", body={"sum": Decimal("1.50"), "ids": (1, 2)}).body == {"sum": "1.50", "ids": [1, 2]}
    assert ApiCall("https://h", timeout=timedelta(minutes=1)).timeout == 60.0


# -- rendering ---------------------------------------------------------------------------------------------


def test_a_call_is_rendered_with_types_kept_in_its_body() -> None:
    call = ApiCall(
        URL,
        body={"charge": "{{result.id}}", "text": "Order {{input.order_id}}", "all": "{{input.lines}}"},
        headers={"Idempotency-Key": "undo-{{step.idempotency_key}}"},
        timeout="5s",
    )
    rendered = call.render(DATA)
    assert isinstance(rendered.body, str)
    assert json.loads(rendered.body) == {"charge": 42, "text": "Order o-7", "all": [{"sku": "a"}]}
    assert dataclasses.replace(rendered, body=None) == RenderedCall(
        url="https://bank.example/refunds/42?by=charge",
        method="POST",
        headers={"Idempotency-Key": "undo-k-1", "Content-Type": "application/json"},
        body=None,
        timeout=5.0,
    )
    assert call.origin == "https://bank.example"


def test_a_call_without_a_body_has_no_content_type() -> None:
    assert ApiCall("https://h", "DELETE").render(DATA).headers == {}
    assert ApiCall("https://h", "DELETE").render(DATA).body is None


def test_a_custom_content_type_is_kept() -> None:
    call = ApiCall("https://h", body={}, headers={"content-type": "application/merge-patch+json"})
    assert call.render(DATA).headers == {"content-type": "application/merge-patch+json"}


def test_parameters_keep_their_types_and_structures_are_bound_as_json() -> None:
    sql = Sql("db", "INSERT INTO t VALUES (?, ?, ?, ?)", ["{{result.id}}", "{{result.ok}}", "{{input.lines}}", None])
    assert sql.render(DATA) == (42, True, '[{"sku":"a"}]', None)


@pytest.mark.parametrize("evil", ["x'; DROP TABLE t; --", '"', "{{input.secret}}", "$1", "?"])
def test_bound_values_never_become_part_of_the_statement(evil: str) -> None:
    sql = Sql("db", "DELETE FROM t WHERE id = ?", ["{{result.id}}"])
    assert sql.render({"result": {"id": evil}}) == (evil,)
    assert sql.statement == "DELETE FROM t WHERE id = ?"


def test_texts_of_notifications_and_manual_actions_are_rendered() -> None:
    assert Notify("ops", "Order {{input.order_id}}: {{result.id}}").render(DATA) == "Order o-7: 42"
    assert Manual("Stop {{result.id}}").render(DATA) == "Stop 42"


@pytest.mark.parametrize("action", [each for each in EACH if each.kind != "sql" or each.params], ids=str)
def test_a_missing_field_is_a_failure_that_is_not_retried(action: Any) -> None:
    if action == ApiCall("http://bank.example"):
        assert action.render({}).url == "http://bank.example"
        return
    with pytest.raises(PayloadError) as caught:
        action.render({"input": {}, "result": None, "step": {}})
    assert classify(caught.value).category == Category.VALIDATION


# -- refusals ----------------------------------------------------------------------------------------------

WRONG: list[tuple[Any, str]] = [
    (lambda: ApiCall(""), "url of ApiCall must be a text"),
    (lambda: ApiCall(5), "url of ApiCall must be a text"),  # type: ignore[arg-type]
    (lambda: ApiCall("ftp://h/x"), "does not begin with http"),
    (lambda: ApiCall("https://{{input.host}}/x"), "does not begin with http"),
    (lambda: ApiCall("https://u:hush@h/x"), "does not begin with http"),
    (lambda: ApiCall("https://h/{{order.id}}"), "'order' does not exist"),
    (lambda: ApiCall("https://h/{{input.id()}}"), "is not a field"),
    (lambda: ApiCall("https://h/a b"), "percent-encoded"),
    (lambda: ApiCall("https://h", "STEAL"), "method of ApiCall is 'STEAL'"),
    (lambda: ApiCall("https://h", None), "method of ApiCall is None"),  # type: ignore[arg-type]
    (lambda: ApiCall("https://h", "GET", {"a": 1}), "a GET has no body"),
    (lambda: ApiCall("https://h", body=object()), "body of ApiCall cannot be written as JSON"),
    (lambda: ApiCall("https://h", body={"a": "{{order.id}}"}), "body of ApiCall names {{order.id}}"),
    (lambda: ApiCall("https://h", body={"{{input.a}}": 1}), "Only values can be"),
    (lambda: ApiCall("https://h", headers=["a"]), "headers of ApiCall must be a dict"),  # type: ignore[arg-type]
    (lambda: ApiCall("https://h", headers={"X A": "1"}), "not a valid header name"),
    (lambda: ApiCall("https://h", headers={"X\r\nA": "1"}), "not a valid header name"),
    (lambda: ApiCall("https://h", headers={"{{input.a}}": "1"}), "not a valid header name"),
    (lambda: ApiCall("https://h", headers={"Host": "evil"}), "set by the client"),
    (lambda: ApiCall("https://h", headers={"content-length": "5"}), "set by the client"),
    (lambda: ApiCall("https://h", headers={"X": "hush\r\nY: 1"}), "Give one line of text"),
    (lambda: ApiCall("https://h", headers=[("Authorization", "hush")]), "headers of ApiCall must be a dict"),  # type: ignore[arg-type]
    (lambda: Manual({"password": "hush"}), "instructions of Manual must be a text, not dict"),  # type: ignore[arg-type]
    (lambda: ApiCall("https://h", headers={"X": 5}), "Give one line of text"),  # type: ignore[dict-item]
    (lambda: ApiCall("https://h", headers={"X": "{{order.id}}"}), "'order' does not exist"),
    (lambda: ApiCall("https://h", headers={"x": "1", "X": "2"}), "a name twice"),
    (lambda: ApiCall("https://h", timeout=0), "timeout of ApiCall is 0"),
    (lambda: ApiCall("https://h", timeout="soon"), "timeout of ApiCall is 'soon'"),
    (lambda: Sql("postgresql://u:hush@h/db", "SELECT 1"), "not a URL"),
    (lambda: Sql("", "SELECT 1"), "must be the name"),
    (lambda: Sql("{{input.db}}", "SELECT 1"), "must be the name"),
    (lambda: Sql("db", ""), "statement of Sql must be a text"),
    (lambda: Sql("db", "-- nothing"), "statement of Sql is empty"),
    (lambda: Sql("db", ";"), "statement of Sql is empty"),
    (lambda: Sql("db", "DELETE FROM a; DELETE FROM b"), "more than one statement"),
    (lambda: Sql("db", "DELETE FROM a;DELETE FROM b;"), "more than one statement"),
    (lambda: Sql("db", "DELETE FROM a /* ; */ ; -- x\nDELETE FROM b"), "more than one statement"),
    (lambda: Sql("db", "SELECT ';' ; SELECT 2"), "more than one statement"),
    (lambda: Sql("db", r"SELECT E'\'' ; SELECT 'x'"), "more than one statement"),
    (lambda: Sql("db", "SELECT $$'$$ ; SELECT $$'$$"), "more than one statement"),
    (lambda: Sql("db", "SELECT $a$'$a$ ; SELECT $a$'$a$"), "a named placeholder"),
    (lambda: Sql("db", "SELECT '/*' ; SELECT '*/'"), "more than one statement"),
    (lambda: Sql("db", "SELECT 'a''; b' ; SELECT 2"), "more than one statement"),
    (lambda: Sql("db", "DELETE FROM t WHERE id = '{{result.id}}'"), "template braces"),
    (lambda: Sql("db", "DELETE FROM {{result.table}}"), "template braces"),
    (lambda: Sql("db", "SELECT 1 }}"), "template braces"),
    (lambda: Sql("db", "SELECT 1\x00"), "contains a NUL"),
    (lambda: Sql("db", "UPDATE t SET a = ?"), "has 1 placeholders, but params has 0"),
    (lambda: Sql("db", "UPDATE t SET a = $1", [1, 2]), "has 1 placeholders, but params has 2"),
    (lambda: Sql("db", "UPDATE t SET a = '$1'", [1]), "has 0 placeholders, but params has 1"),
    (lambda: Sql("db", "UPDATE t SET a = :a", [1]), "a named placeholder"),
    (lambda: Sql("db", "UPDATE t SET a = %s", [1]), "a named placeholder"),
    (lambda: Sql("db", "UPDATE t SET a = ?", "x"), "params of Sql must be a list"),
    (lambda: Sql("db", "UPDATE t SET a = ?", {"a": 1}), "params of Sql must be a list"),
    (lambda: Sql("db", "UPDATE t SET a = ?", [object()]), "params of Sql cannot be written as JSON"),
    (lambda: Sql("db", "UPDATE t SET a = ?", ["{{order.id}}"]), "'order' does not exist"),
    (lambda: Notify("", "x"), "channel of Notify must be a text"),
    (lambda: Notify("{{input.who}}", "x"), "channel of Notify is a template"),
    (lambda: Notify("ops", " "), "template of Notify must be a text"),
    (lambda: Notify("ops", "{{order.id}}"), "'order' does not exist"),
    (lambda: Manual(None), "instructions of Manual must be a text"),  # type: ignore[arg-type]
    (lambda: Manual("{{input.a"), "no closing braces"),
]


@each("make, words", WRONG)
def test_an_invalid_action_is_refused_when_it_is_made(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert words in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("DELETE FROM t;", 0),
        ("DELETE FROM t ; -- done; really", 0),
        ("SELECT ';' || \"a;b\" FROM t /* ; ? */ WHERE x = ?", 1),
        ("SELECT 'it''s; fine' WHERE x = $1 AND y = $2 AND z = $1", 2),
        ("SELECT a::text, b[1:2] FROM t WHERE c = $1", 1),
        ("UPDATE t SET a = ?2 WHERE b = ?1", 2),
        ("UPDATE t SET a = '100%'", 0),
    ],
)
def test_one_statement_with_bound_values_is_accepted_unchanged(statement: str, count: int) -> None:
    assert Sql("ledger-2.main", statement, [1] * count).statement == statement
