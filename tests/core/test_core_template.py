"""Templates: they read named fields only, and filled-in values stay in their place."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.payload.plain_json import MAX_DEPTH
from redrive.core.template import (
    MAX_RENDERED_LENGTH,
    check_template,
    check_url,
    parse_fields,
    render,
    render_header,
    render_text,
    render_url,
    url_origin,
)
from redrive.errors import ConfigurationError, PayloadError

DATA: dict[str, Any] = {
    "input": {"order_id": "o-7", "lines": [{"sku": "a"}, {"sku": "b"}], "0": "zero", "a-b": 1, "none": None},
    "result": {"id": 42, "sum": 1.5, "ok": True, "who": {"name": "Ann"}, "note": "{{result.id}}"},
    "step": {"name": "charge", "idempotency_key": "idem_flow:acme:1"},
}
ROOTS = ("input", "result", "step")

TEXT = st.text(st.sampled_from("{}.[]_a0 \n\r\x00/\\?#%&=:@é😀") | st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=4) | st.dictionaries(TEXT, each, max_size=4), max_leaves=12
)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# -- syntax of templates -----------------------------------------------------------------------------------


@each(
    "template, value",
    [
        ("{{result.id}}", 42),
        ("{{ result.id }}", 42),
        ("{{result.sum}}", 1.5),
        ("{{result.ok}}", True),
        ("{{input.none}}", None),
        ("{{result.who}}", {"name": "Ann"}),
        ("{{input.lines.1.sku}}", "b"),
        ("{{input.lines[1].sku}}", "b"),
        ("{{input.0}}", "zero"),
        ("{{input.a-b}}", 1),
        ("{{step.idempotency_key}}", "idem_flow:acme:1"),
        (" {{result.id}}", " 42"),
        ("{{result.id}}{{result.ok}}", "42true"),
        ("{{input.order_id}}/{{input.none}}/{{result.who}}", 'o-7/null/{"name":"Ann"}'),
        ("no braces", "no braces"),
        ("}} { } {", "}} { } {"),
        ("", ""),
    ],
)
def test_a_lone_placeholder_keeps_its_type_and_others_become_text(template: str, value: Any) -> None:
    found = render(template, DATA)
    assert (found, type(found)) == (value, type(value))


@each(
    "template",
    [
        "{{result.__class__}}",
        "{{__builtins__}}",
        "{{result.who.__init__.__globals__}}",
        "{{result.id()}}",
        "{{result.id!r}}",
        "{{result.id:>100000000}}",
        "{{result.id|upper}}",
        "{{result['id']}}",
        "{{input.lines[-1]}}",
        "{{input.lines[1:2]}}",
        "{{input.lines[9999999999]}}",
        "{{result..id}}",
        "{{.id}}",
        "{{result.}}",
        "{{0.id}}",
        "{{result.id + 1}}",
        "{{result id}}",
        "{{}}",
        "{{ }}",
        "{{{result.id}}}",
        "{{result.{{input.order_id}}}}",
        "{{result.ïd}}",
        "{{result.\nid}}",
        "{{result.id",
        "{{result.id}",
        "{{" + "a" * 300 + "}}",
        "{{" + "a." * 40 + "a}}",
        "{% if 1 %}{{",
    ],
)
def test_other_syntax_is_refused(template: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_fields(template)
    with pytest.raises(ConfigurationError):
        render(template, DATA)


class Trap(dict[str, Any]):
    """An object with a value for every attribute and every key."""

    secret = "shown"

    def __missing__(self, key: str) -> str:
        return "shown"


@pytest.mark.parametrize(
    ("place", "data"),
    [
        ("result.secret", {"result": Trap()}),
        ("result.secret", {"result": type("Thing", (), {"secret": "shown"})()}),
        ("result.keys", {"result": {}}),
        ("result.append", {"result": []}),
        ("result.0", {"result": "text"}),
        ("result.0", {"result": (1, 2)}),
        ("result.real", {"result": 1}),
    ],
)
def test_only_plain_objects_and_lists_are_looked_into(place: str, data: dict[str, Any]) -> None:
    with pytest.raises(PayloadError, match=re.escape(f"{{{{{place}}}}}")):
        render(f"{{{{{place}}}}}", data)


@pytest.mark.parametrize(
    ("template", "path", "words"),
    [
        ("{{result.nope}}", "result.nope", "field 'nope' does not exist in result"),
        ("{{result.who.nope.deeper}}", "result.who.nope", "field 'nope' does not exist in result.who"),
        (
            "{{input.lines.2.sku}}",
            "input.lines.2",
            "field '2' does not exist in input.lines, which is a list of 2 items",
        ),
        (
            "{{input.lines.sku}}",
            "input.lines.sku",
            "field 'sku' does not exist in input.lines, which is a list of 2 items",
        ),
        ("{{input.none.x}}", "input.none.x", "field 'x' does not exist in input.none, which is null"),
        ("{{result.id.x}}", "result.id.x", "field 'x' does not exist in result.id, which is a whole number"),
        ("{{order.id}}", "order", "field 'order' does not exist"),
    ],
)
def test_a_missing_field_is_an_error_that_names_the_place(template: str, path: str, words: str) -> None:
    for text in (template, f"before {template} after"):
        with pytest.raises(PayloadError, match=re.escape(words)) as caught:
            render({"deep": [text]}, DATA)
        assert caught.value.path == path


@given(VALUES)
def test_filled_in_values_are_never_read_as_templates(value: Any) -> None:
    data = {"input": {"x": value, "secret": "shown"}}
    assert render(["{{input.x}}"], data) == [value]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert render_text("<{{input.x}}>", data) == f"<{text}>"


@given(st.text(st.sampled_from("{}.[]_a0 ")))
def test_every_text_is_a_template_or_refused_with_a_message(text: str) -> None:
    try:
        places = parse_fields(text)
    except ConfigurationError:
        return
    assert all("{" not in place and "}" not in place for place in places)
    assert ("{{" in text) == bool(places)


def test_names_are_found_everywhere_in_a_body() -> None:
    body = {"a": "{{input.x}} {{result.y[0]}}", "b": [{"c": "{{ step.name }}"}, 5, None, True], "d": "none"}
    assert tuple(text for text, _ in parse_fields(body)) == ("input.x", "result.y[0]", "step.name")


def test_unknown_roots_are_refused_early_with_those_there_are() -> None:
    check_template("body", {"a": ["{{input.x}}"]}, ROOTS)
    with pytest.raises(
        ConfigurationError, match=r"body names \{\{reslt\.id\}\}.*'reslt' does not exist.*input, result, step"
    ):
        check_template("body", {"a": ["{{reslt.id}}"]}, ROOTS)
    with pytest.raises(ConfigurationError, match=r"body: .*is not a field"):
        check_template("body", "{{input.x()}}", ROOTS)


def test_field_names_cannot_be_templates() -> None:
    with pytest.raises(ConfigurationError, match="Only values can be"):
        check_template("body", {"{{input.x}}": 1}, ROOTS)


# -- sizes -------------------------------------------------------------------------------------------------


def test_a_rendering_is_bounded_in_size_whether_it_copies_or_refers() -> None:
    data = {"input": {"x": "x" * 1_000, "l": ["x" * 1_000]}}
    assert len(render_text("{{input.x}}" * 1_000, data)) == 1_000_000 < MAX_RENDERED_LENGTH
    for template in ("{{input.x}}" * 1_100, ["{{input.x}}"] * 1_100, ["{{input.l}}"] * 1_100):
        with pytest.raises(PayloadError, match="too large"):
            render(template, data)


def test_a_rendering_is_bounded_in_depth() -> None:
    deep = {"input": {"x": nested(MAX_DEPTH - 1)}}
    assert render(["{{input.x}}"], deep) == [nested(MAX_DEPTH - 1)]
    with pytest.raises(PayloadError, match="levels deep"):
        render([["{{input.x}}"]], deep)
    with pytest.raises(PayloadError, match="not plain JSON"):
        render("{{input.x}}", {"input": {"x": nested(100_000)}})
    with pytest.raises(ConfigurationError, match="levels deep"):
        parse_fields(nested(MAX_DEPTH + 5))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"x", {1, 2}])
def test_values_that_are_not_json_are_refused(value: Any) -> None:
    for template in ("{{input.x}}", "a {{input.x}}"):
        with pytest.raises(PayloadError, match="not plain JSON"):
            render(template, {"input": {"x": value}})


# -- URLs --------------------------------------------------------------------------------------------------

URL = "https://bank.example:8443/v1/orders/{{input.x}}/refunds/r-{{input.y}}?by={{input.x}}&all=1"


@given(SCALARS, SCALARS)
def test_no_value_changes_host_path_structure_or_query_of_a_url(x: Any, y: Any) -> None:
    try:
        url = render_url(URL, {"input": {"x": x, "y": y}})
    except PayloadError:
        return
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc, parts.fragment) == ("https", "bank.example:8443", "")
    segments = parts.path.split("/")
    shown = [x if isinstance(x, str) else json.dumps(x), y if isinstance(y, str) else json.dumps(y)]
    assert [segments[0:3], segments[4]] == [["", "v1", "orders"], "refunds"]
    assert [unquote(segments[3]), unquote(segments[5])] == [shown[0], f"r-{shown[1]}"]
    assert parse_qsl(parts.query, keep_blank_values=True) == [("by", shown[0]), ("all", "1")]
    assert re.fullmatch(r"[!-~]+", url)


@each(
    "value, path",
    [
        ("a/b", "a%2Fb"),
        ("a?b#c", "a%3Fb%23c"),
        ("a\\b", "a%5Cb"),
        ("100%", "100%25"),
        ("%2e%2e", "%252e%252e"),
        ("a b+c", "a%20b%2Bc"),
        ("\r\n", "%0D%0A"),
        ("é", "%C3%A9"),
        ("...", "..."),
        ("a..b", "a..b"),
        (7, "7"),
        (True, "true"),
    ],
)
def test_values_in_a_path_are_percent_encoded(value: Any, path: str) -> None:
    assert render_url("http://h/{{input.x}}/z", {"input": {"x": value}}) == f"http://h/{path}/z"


@each("value", ["", ".", "..", "../admin", "a/../b", "..\\x", "a/.", None, {}, [], ["x"], "\ud800"])
def test_values_that_would_lead_to_another_path_are_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match=re.escape("{{input.x}}")):
        render_url("http://h/a/{{input.x}}/b", {"input": {"x": value}})


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("http://h/{{input.x}}{{input.y}}/b", (".", ".")),
        ("http://h/.{{input.x}}", (".", "")),
        ("http://h/%2e{{input.x}}", (".", "")),
        ("http://h/%2E{{input.x}}/a", ("..", "")),
    ],
)
def test_values_cannot_make_dots_together_either(template: str, values: tuple[str, str]) -> None:
    with pytest.raises(PayloadError):
        render_url(template, {"input": {"x": values[0], "y": values[1]}})


def test_an_empty_value_is_fine_in_a_query() -> None:
    assert render_url("http://h?q={{input.x}}", {"input": {"x": ""}}) == "http://h?q="
    assert render_url("http://h?q={{input.x}}", {"input": {"x": ".."}}) == "http://h?q=.."


@each(
    "url",
    [
        "{{input.url}}",
        "https://{{input.host}}/x",
        "https://api.{{input.host}}/x",
        "https://api.example{{input.tail}}",
        "https://api.example:{{input.port}}/x",
        "{{input.scheme}}://api.example/x",
        "https://{{input.user}}@api.example/x",
        "https://user:secret@api.example/x",
        "https://api.example\\@evil.example/x",
        "ftp://api.example/x",
        "//api.example/x",
        "/x",
        "https:///x",
        "https://api example/x",
    ],
)
def test_scheme_and_host_are_fixed(url: str) -> None:
    for attempt in (lambda: check_url("url", url, ROOTS), lambda: render_url(url, DATA)):
        with pytest.raises(ConfigurationError) as caught:
            attempt()
        assert "secret" not in str(caught.value)


@each(
    "url",
    [
        "https://h/a b",
        "https://h/é",
        "https://h/#x",
        "https://h/{{input.x}}#x",
        "https://h/a\r\nb",
        "https://h/a/../b",
        "https://h/a/./{{input.x}}",
        "https://h/a/%2E%2e/b",
        "https://h/{x}",
        "https://h/{{other.x}}",
        "https://h/{{input.x",
    ],
)
def test_urls_that_cannot_be_sent_are_refused_early(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^url"):
        check_url("url", url, ROOTS)


def test_good_urls_pass_and_have_an_origin() -> None:
    for url in (URL, "http://h", "HTTPS://h?x={{input.x}}", "https://[::1]:80/{{input.x}}"):
        check_url("url", url, ROOTS)
    assert url_origin(URL) == "https://bank.example:8443"
    assert url_origin("http://h?x=1") == "http://h"


# -- headers -----------------------------------------------------------------------------------------------


def test_headers_are_one_line() -> None:
    assert render_header("Bearer {{input.x}}", {"input": {"x": "a\tb é"}}) == "Bearer a\tb é"
    assert render_header("{{input.x}}", {"input": {"x": 5}}) == "5"
    bad: list[Any] = ["a\r\nX: 1", "a\nb", "a\rb", "a\x00", "\x7f", "\ud800", None, {}, []]
    for value in bad:
        with pytest.raises(PayloadError, match=re.escape("{{input.x}}")):
            render_header("a {{input.x}}", {"input": {"x": value}})


@given(TEXT)
def test_no_value_breaks_out_of_a_header(value: str) -> None:
    try:
        line = render_header("k={{input.x}}", {"input": {"x": value}})
    except PayloadError:
        return
    assert line == f"k={value}"
    assert not set(line) & set("\r\n\x00")


@pytest.mark.parametrize(
    "template",
    ["{{" * 500_000, "{{a}} }}" * 100_000 + "{{", "{{" + "a." * 500_000 + "}}", "{{" + " " * 1_000_000 + "}}"],
)
def test_hostile_templates_are_refused_in_one_pass(template: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_fields(template)
