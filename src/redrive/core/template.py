"""Templates: texts that name fields of plain data, as in `{{result.id}}` or `{{input.lines[0].sku}}`.

    {{ root.name.0.name }}     a name, then names and list indexes; nothing else can be written

What stands between the braces is only ever looked up in dictionaries and lists that came from JSON. There
are no attributes, calls, filters or formats, so no template reaches anything that it was not given. A place
that does not exist is an error that names it, never an empty text. What is filled in is not read as a
template again.

How a value is written depends on where it goes:

    render         a body: a text that is one placeholder keeps the value's JSON type
    render_text    a text for people: values as JSON writes them, texts without their quotes
    render_url     percent-encoded, so that it stays one part of the path or query it was put into
    render_header  one line
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec

from redrive.core.payload.plain import MAX_DEPTH, has_lone_surrogates
from redrive.core.redact import JSON
from redrive.errors import ConfigurationError, PayloadError

MAX_RENDERED_LENGTH = 1 << 20
"""What one rendering may come to, in characters; a template could otherwise repeat a payload without end."""

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
    """Where a value is found: `result.lines[0]` as its parts, and as it was written."""

    text: str
    parts: tuple[str, ...]


_Piece: TypeAlias = str | _FieldRef
_ValueWriter: TypeAlias = Callable[[_FieldRef, JSON], str]


# -- reading -------------------------------------------------------------------------------------------


def list_fields(template: JSON) -> tuple[str, ...]:
    """Every place that a template names, in order: a text, or all texts in a JSON value."""
    return tuple(place.text for place in _iter_fields(template))


def parse_fields(template: JSON) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The same, each with the names and indexes it is made of."""
    return tuple((place.text, place.parts) for place in _iter_fields(template))


def check_template(what: str, template: JSON, roots: Collection[str]) -> None:
    """Refuse a template that cannot be read, or names something that will not be there; `what` it is for."""
    try:
        unknown = next((place for place in _iter_fields(template) if place.parts[0] not in roots), None)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    if unknown is not None:
        raise ConfigurationError(
            f"{what} names {{{{{unknown.text}}}}}, but there is no {unknown.parts[0]!r}. "
            f"A place begins with {', '.join(sorted(roots))}."
        )


def check_url(what: str, template: str, roots: Collection[str]) -> None:
    """Refuse a URL whose scheme or host could change, or that cannot be sent as it is written."""
    check_template(what, template, roots)
    try:
        start = len(url_origin(template))
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    fixed = "x".join(piece if isinstance(piece, str) else "" for piece in _split_template(template))
    wrong = _NOT_IN_URL.search(fixed)
    if wrong is not None:
        raise ConfigurationError(f"{what} contains {wrong[0]!a}. Write it percent-encoded, or leave it out.")
    if _has_dot_part(template[start:]):
        raise ConfigurationError(f"{what} contains the path part '.' or '..'. Write the path it leads to.")


def url_origin(template: str) -> str:
    """Scheme and host of a URL, which no placeholder can be part of."""
    found = _ORIGIN.match(template)
    if found is None:
        # Not the URL: it may hold a password.
        raise ConfigurationError(
            "the URL does not begin with http:// or https:// and a host that is written out. "
            "Placeholders belong into path and query; a user name and password into a header."
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
    """The template as fixed texts and places, in turn, with a fixed text at both ends."""
    pieces: list[_Piece] = []
    end = 0
    while (start := template.find("{{", end)) >= 0:
        close = template.find("}}", start)
        if close < 0:
            raise ConfigurationError(f"{template[start : start + 40]!a} has no closing braces.")
        pieces += template[end:start], _parse_field(template[start + 2 : close])
        end = close + 2
    return [*pieces, template[end:]]


def _parse_field(text: str) -> _FieldRef:
    text = text.strip()
    fits = len(text) <= _MAX_FIELD_LENGTH and _FIELD.fullmatch(text)
    parts = tuple(_PART.findall(text)) if fits else ()
    if not parts or len(parts) > _MAX_PARTS or any(part.startswith("__") for part in parts):
        raise ConfigurationError(
            f"{{{{{text[:40]}}}}} names no field. Write names and list indexes joined by dots, such as "
            "{{result.id}} or {{input.lines.0.sku}}."
        )
    return _FieldRef(text, parts)


# -- rendering -----------------------------------------------------------------------------------------


def render(template: JSON, data: Mapping[str, JSON], *, largest: int = MAX_RENDERED_LENGTH) -> JSON:
    """A JSON value with all its templates filled in; a text that is one placeholder becomes its value."""
    return _Renderer(data, largest).value(template, 0)


def render_text(template: str, data: Mapping[str, JSON], *, largest: int = MAX_RENDERED_LENGTH) -> str:
    """A text for people."""
    return _Renderer(data, largest).text(template, _as_text)


def render_header(template: str, data: Mapping[str, JSON]) -> str:
    """The value of a header: a single line, whatever is in the data."""
    return _Renderer(data, MAX_RENDERED_LENGTH).text(template, _as_header)


def render_url(template: str, data: Mapping[str, JSON]) -> str:
    """A URL on the template's own host, with as many path parts and query fields as the template has."""
    host = url_origin(template)
    path, mark, query = template[len(host) :].partition("?")
    renderer = _Renderer(data, MAX_RENDERED_LENGTH)
    return host + renderer.text(path, _as_path) + mark + renderer.text(query, _as_query)


class _Renderer:
    """One rendering: the data, and how many characters it may still come to."""

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
            case ["", _FieldRef() as place, ""]:
                return self._render_value(place, depth)
            case _:
                return self.text(template, _as_text)

    def text(self, template: str, write: _ValueWriter) -> str:
        return "".join(
            self._count_length(piece if isinstance(piece, str) else write(piece, self._look_up(piece)))
            for piece in _split_template(template)
        )

    def _render_value(self, place: _FieldRef, depth: int) -> JSON:
        value = self._look_up(place)
        self._count_length(_dump_json(place, value))
        if _is_deeper(value, MAX_DEPTH - depth):
            raise _field_error(place, f"more than {MAX_DEPTH} levels deep, with what is around it")
        return value

    def _look_up(self, place: _FieldRef) -> JSON:
        value: JSON = self._data
        for number, part in enumerate(place.parts):
            if type(value) is dict and part in value:
                value = value[part]
            elif type(value) is list and _INDEX.fullmatch(part) and int(part) < len(value):
                value = value[int(part)]
            else:
                raise _missing_field_error(place, number, value)
        return value

    def _count_length(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise PayloadError("what the template comes to is too large; name fewer or smaller fields")
        return text


def _missing_field_error(place: _FieldRef, number: int, value: JSON) -> PayloadError:
    parent = ".".join(place.parts[:number])
    if not parent:
        why = f"there is no {place.parts[0]!r}"
    elif type(value) is list:
        why = f"{parent} is a list of {len(value)}"
    else:
        kind = "it is empty" if value is None else "it is no object" if type(value) is not dict else ""
        why = f"{parent} has no field {place.parts[number]!r}" + (f": {kind}" if kind else "")
    return PayloadError(f"{{{{{place.text}}}}}: {why}", path=".".join(place.parts[: number + 1]))


def _field_error(place: _FieldRef, why: str) -> PayloadError:
    return PayloadError(f"{{{{{place.text}}}}}: {why}", path=".".join(place.parts))


def _is_deeper(value: JSON, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [each for outer in level for each in _children(outer)]
        if not level:
            return False
    return True


def _children(value: JSON) -> list[JSON]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


# -- how values are written ----------------------------------------------------------------------------


def _as_text(place: _FieldRef, value: JSON) -> str:
    return value if type(value) is str else _dump_json(place, value)


def _as_header(place: _FieldRef, value: JSON) -> str:
    text = _as_text(place, _require_scalar(place, value, "a header"))
    if _NOT_IN_HEADER.search(text):
        raise _field_error(place, "a header is one line, and cannot hold the control characters in it")
    return text


def _as_query(place: _FieldRef, value: JSON) -> str:
    text = _as_text(place, _require_scalar(place, value, "a URL"))
    if has_lone_surrogates(text):
        raise _field_error(place, "is not valid Unicode")
    return quote(text, safe="")


def _as_path(place: _FieldRef, value: JSON) -> str:
    """One part of a path. Dots are refused, since servers read `%2E%2E` as they read `..`."""
    text = _as_query(place, value)
    if not text or not _DOTS.isdisjoint(_SLASHES.split(_as_text(place, value))):
        raise _field_error(place, "is empty or contains '.' or '..', which would lead to another path")
    return text


def _require_scalar(place: _FieldRef, value: JSON, where: str) -> JSON:
    if value is None or isinstance(value, dict | list):
        kind = "empty" if value is None else "no single value"
        raise _field_error(place, f"is {kind}, and cannot be part of {where}")
    return value


def _dump_json(place: _FieldRef, value: JSON) -> str:
    """Compact JSON, or an error for what is none."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise _field_error(place, "is not plain JSON data") from None


def _has_dot_part(path: str) -> bool:
    path = path.partition("?")[0].lower().replace("%2e", ".")
    return not _DOTS.isdisjoint(path.split("/"))


_SCALAR_TYPES = frozenset({"string", "integer", "number", "boolean", "null"})
_MAX_SCHEMA_DEPTH = 50


def explain_missing_field(schema: Mapping[str, Any], parts: Sequence[str]) -> str | None:
    """What is wrong with the place, in words; None if it may exist. Where a schema says nothing, it may."""
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
        return _explain_missing_in_object(schema, shared, parts, depth)
    if schema.get("type") == "array":
        if not parts[0].isdigit():
            return f"has a list there, with numbers and no {parts[0]!r}"
        return _explain_missing_part(schema.get("items"), shared, parts[1:], depth - 1)
    if schema.get("type") in _SCALAR_TYPES:
        return f"has no field {parts[0]!r} there, but a single value"
    return None


def _explain_missing_in_object(
    schema: Mapping[str, Any], shared: Mapping[str, Any], parts: Sequence[str], depth: int
) -> str | None:
    fields = schema.get("properties", {})
    if parts[0] in fields:
        return _explain_missing_part(fields[parts[0]], shared, parts[1:], depth - 1)
    more = schema.get("additionalProperties", not fields)
    if not more:
        return f"has no field {parts[0]!r}; it has: {', '.join(fields) or 'none'}"
    return _explain_missing_part(more, shared, parts[1:], depth - 1)
