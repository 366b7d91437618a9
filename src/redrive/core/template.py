"""Templates: texts that name fields of plain data, as in `{{result.id}}` or `{{input.lines[0].sku}}`.

    {{ root.name.0.name }}     a name, then names and list indexes; nothing else can be written

A field is looked up in dictionaries and lists that came from JSON. There are no attributes, calls, filters or
formats, so a template cannot read anything else. A missing field is an error that names it, never an empty text.
Values that are filled in are not read as templates again.

The target decides how a value is written:

    render         a body: a text that is one placeholder keeps the JSON type of the value
    render_text    a text for users: values as JSON, texts without their quotes
    render_url     percent-encoded, so that the value stays one part of the path or query
    render_header  one line
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from redrive.core.json_schema import describe_value, is_deeper
from redrive.core.payload.plain_json import MAX_DEPTH, has_lone_surrogates
from redrive.core.redact import JSON
from redrive.errors import ConfigurationError, PayloadError
from redrive.reasons import Reason, ReasonCode

MAX_RENDERED_LENGTH = 1 << 20
"""Limit of the rendered text, in characters. Without it a template could repeat a payload any number of times."""

_MAX_FIELD_LENGTH = 200
_MAX_PARTS = 32
_FIELD = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d{1,9}\])*", re.ASCII)
_PART = re.compile(r"[\w-]+", re.ASCII)
_INDEX = re.compile(r"\d{1,9}", re.ASCII)
_ORIGIN = re.compile(r"https?://[^/?#@\\{}\s]+(?=[/?]|\Z)", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[^!-~]|[\"#<>\\^`{|}]")
_NOT_IN_HEADER = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_SLASHES = re.compile(r"[/\\]")
_DOTS = frozenset({".", ".."})


class _FieldRef(msgspec.Struct, frozen=True, gc=False):
    """A reference to a field such as `result.lines[0]`: as it was written, and as its parts."""

    text: str
    parts: tuple[str, ...]


_Piece: TypeAlias = str | _FieldRef
_ValueWriter: TypeAlias = Callable[[_FieldRef, JSON], str]


def parse_fields(template: JSON) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the fields that a text, or all texts in a JSON value, name: as written, and as names and indexes."""
    return tuple((field.text, field.parts) for field in _iter_fields(template))


def check_template(what: str, template: JSON, roots: Collection[str]) -> None:
    """Refuse a template that is malformed or names an unknown root. `what` names the template in errors."""
    try:
        unknown = next((field for field in _iter_fields(template) if field.parts[0] not in roots), None)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    if unknown is not None:
        raise ConfigurationError(
            f"{what} names {{{{{unknown.text}}}}}, but {unknown.parts[0]!r} does not exist. "
            f"Begin a field with {', '.join(sorted(roots))}."
        )


def check_url(what: str, template: str, roots: Collection[str]) -> None:
    """Refuse a URL whose scheme or host contains a placeholder, or that cannot be sent as written."""
    check_template(what, template, roots)
    try:
        start = len(url_origin(template))
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    fixed = "x".join(piece if isinstance(piece, str) else "" for piece in _split_template(template))
    wrong = _NOT_IN_URL.search(fixed)
    if wrong is not None:
        raise ConfigurationError(f"{what} contains {wrong[0]!a}. Write it percent-encoded, or leave it out.")
    path = template[start:].partition("?")[0].lower().replace("%2e", ".")
    if not _DOTS.isdisjoint(path.split("/")):
        raise ConfigurationError(f"{what} contains the path part '.' or '..'. Write the resulting path instead.")


def url_origin(template: str) -> str:
    """Return scheme and host of a URL. They cannot contain placeholders."""
    found = _ORIGIN.match(template)
    if found is None:
        # The URL is left out, because it may contain a password.
        raise ConfigurationError(
            "the URL does not begin with http:// or https:// and a fixed host. "
            "Put placeholders into path and query, and a user name and password into a header."
        )
    return found[0]


def _iter_fields(template: JSON, depth: int = 0) -> Iterator[_FieldRef]:
    if depth > MAX_DEPTH:
        raise ConfigurationError(f"a template is nested more than {MAX_DEPTH} levels deep.")
    if isinstance(template, str):
        yield from (piece for piece in _split_template(template) if isinstance(piece, _FieldRef))
    elif isinstance(template, dict):
        for key, value in template.items():
            if _split_template(key) != [key]:
                raise ConfigurationError(f"the field name {key!a} is a template. Only values can be.")
            yield from _iter_fields(value, depth + 1)
    elif isinstance(template, list | tuple):
        for value in template:
            yield from _iter_fields(value, depth + 1)


def _split_template(template: str) -> list[_Piece]:
    """Split a template into fixed texts and fields, alternating, with a fixed text at both ends."""
    pieces: list[_Piece] = []
    end = 0
    while (start := template.find("{{", end)) >= 0:
        close = template.find("}}", start)
        if close < 0:
            raise ConfigurationError(f"{template[start : start + 40]!a} has no closing braces.")
        text = template[start + 2 : close].strip()
        fits = len(text) <= _MAX_FIELD_LENGTH and _FIELD.fullmatch(text)
        parts = tuple(_PART.findall(text)) if fits else ()
        if not parts or len(parts) > _MAX_PARTS or any(part.startswith("__") for part in parts):
            raise ConfigurationError(
                f"{{{{{text[:40]}}}}} is not a field. Write names and list indexes joined by dots, such as "
                "{{result.id}} or {{input.lines.0.sku}}."
            )
        pieces += template[end:start], _FieldRef(text, parts)
        end = close + 2
    return [*pieces, template[end:]]


def render(template: JSON, data: Mapping[str, JSON], *, largest: int = MAX_RENDERED_LENGTH) -> JSON:
    """Return a JSON value with its templates filled in; a text that is one placeholder becomes its value."""
    return _Renderer(data, largest).value(template, 0)


def render_text(template: str, data: Mapping[str, JSON], *, largest: int = MAX_RENDERED_LENGTH) -> str:
    """Return a text for users with its placeholders filled in."""
    return _Renderer(data, largest).text(template, _as_text)


def render_header(template: str, data: Mapping[str, JSON]) -> str:
    """Return the value of a header, which is always a single line."""
    return _Renderer(data, MAX_RENDERED_LENGTH).text(template, _as_header)


def render_url(template: str, data: Mapping[str, JSON]) -> str:
    """Return a URL with the host, the number of path parts and the query fields of the template."""
    host = url_origin(template)
    path, mark, query = template[len(host) :].partition("?")
    renderer = _Renderer(data, MAX_RENDERED_LENGTH)
    return host + renderer.text(path, _as_path) + mark + renderer.text(query, _as_query)


class _Renderer:
    """A rendering: the data, and the number of characters that are left."""

    def __init__(self, data: Mapping[str, JSON], largest: int) -> None:
        self._data = dict(data)
        self._left = largest

    def value(self, template: JSON, depth: int) -> JSON:
        if isinstance(template, dict):
            return {key: self.value(each, depth + 1) for key, each in template.items()}
        if isinstance(template, list | tuple):
            return [self.value(each, depth + 1) for each in template]
        if not isinstance(template, str):
            return template
        match _split_template(template):
            case ["", _FieldRef() as field, ""]:
                value = self._look_up(field)
                self._count_length(_dump_json(field, value))
                if is_deeper(value, MAX_DEPTH - depth):
                    raise _field_error(field, Reason(ReasonCode.NESTED_TOO_DEEP, most=MAX_DEPTH))
                return value
            case _:
                return self.text(template, _as_text)

    def text(self, template: str, write: _ValueWriter) -> str:
        return "".join(
            self._count_length(piece if isinstance(piece, str) else write(piece, self._look_up(piece)))
            for piece in _split_template(template)
        )

    def _look_up(self, field: _FieldRef) -> JSON:
        value: JSON = self._data
        for number, part in enumerate(field.parts):
            if type(value) is dict and part in value:
                value = value[part]
            elif type(value) is list and _INDEX.fullmatch(part) and int(part) < len(value):
                value = value[int(part)]
            else:
                parent = ".".join(field.parts[:number])
                found = None if type(value) is dict else describe_value(value)
                if type(value) is list:
                    found = Reason(ReasonCode.KIND_LIST_OF, n=len(value))
                why = Reason(ReasonCode.TEMPLATE_FIELD_MISSING, name=part, parent=parent or None, found=found)
                raise _field_error(field, why, field.parts[: number + 1])
        return value

    def _count_length(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise PayloadError(Reason(ReasonCode.TEMPLATE_TOO_LARGE))
        return text


def _field_error(field: _FieldRef, why: Reason, parts: tuple[str, ...] = ()) -> PayloadError:
    reason = Reason(ReasonCode.FAULT, path=f"{{{{{field.text}}}}}", why=why)
    return PayloadError(reason, path=".".join(parts or field.parts))


def _as_text(field: _FieldRef, value: JSON) -> str:
    return value if type(value) is str else _dump_json(field, value)


def _as_header(field: _FieldRef, value: JSON) -> str:
    text = _as_text(field, _require_scalar(field, value))
    if _NOT_IN_HEADER.search(text):
        raise _field_error(field, Reason(ReasonCode.HEADER_VALUE_INVALID))
    return text


def _as_query(field: _FieldRef, value: JSON) -> str:
    text = _as_text(field, _require_scalar(field, value))
    if has_lone_surrogates(text):
        raise _field_error(field, Reason(ReasonCode.NOT_UNICODE))
    return quote(text, safe="")


def _as_path(field: _FieldRef, value: JSON) -> str:
    text = _as_query(field, value)
    # Dots are refused, because servers read `%2E%2E` like `..`.
    if not text or not _DOTS.isdisjoint(_SLASHES.split(_as_text(field, value))):
        raise _field_error(field, Reason(ReasonCode.PATH_VALUE_INVALID))
    return text


def _require_scalar(field: _FieldRef, value: JSON) -> JSON:
    if value is None or isinstance(value, dict | list):
        expected = Reason(ReasonCode.KIND_SCALAR)
        raise _field_error(field, Reason(ReasonCode.EXPECTED, expected=expected, found=describe_value(value)))
    return value


def _dump_json(field: _FieldRef, value: JSON) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise _field_error(field, Reason(ReasonCode.NOT_PLAIN_JSON)) from None


_SCALAR_TYPES = frozenset({"string", "integer", "number", "boolean", "null"})
_MAX_SCHEMA_DEPTH = 50


def explain_missing_field(schema: Mapping[str, Any], parts: Sequence[str]) -> str | None:
    """Explain why a field cannot exist in values of a schema; return None if it may exist."""
    return _explain_missing_part(schema, schema.get("$defs", {}), parts, _MAX_SCHEMA_DEPTH)


def _explain_missing_part(schema: Any, shared: Mapping[str, Any], parts: Sequence[str], depth: int) -> str | None:
    if not parts or not depth or not isinstance(schema, Mapping) or not schema:
        return None
    if "$ref" in schema:
        return _explain_missing_part(shared.get(schema["$ref"].rpartition("/")[2]), shared, parts, depth - 1)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            found = [
                _explain_missing_part(one, shared, parts, depth - 1)
                for one in schema[several]
                if one.get("type") != "null"
            ]
            return None if None in found or not found else found[0]
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        if parts[0] in fields:
            return _explain_missing_part(fields[parts[0]], shared, parts[1:], depth - 1)
        more = schema.get("additionalProperties", not fields)
        if not more:
            return f"has no field {parts[0]!r}; it has: {', '.join(fields) or 'none'}"
        return _explain_missing_part(more, shared, parts[1:], depth - 1)
    if schema.get("type") == "array":
        if not parts[0].isdigit():
            return f"has a list there, with indexes and no field {parts[0]!r}"
        return _explain_missing_part(schema.get("items"), shared, parts[1:], depth - 1)
    if schema.get("type") in _SCALAR_TYPES:
        return f"has no field {parts[0]!r} there, but a single value"
    return None
