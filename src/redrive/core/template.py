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
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias
from urllib.parse import quote

import msgspec

from redrive.core.payload.plain import MAX_DEPTH, lone_surrogates
from redrive.core.redact import JSON
from redrive.errors import ConfigurationError, PayloadError

__all__ = [
    "LARGEST",
    "check",
    "check_url",
    "names",
    "origin",
    "places",
    "render",
    "render_header",
    "render_text",
    "render_url",
]

LARGEST = 1 << 20
"""What one rendering may come to, in characters; a template could otherwise repeat a payload without end."""

_LONGEST_PLACE = 200
_MOST_PARTS = 32
_PLACE = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d{1,9}\])*", re.ASCII)
_PART = re.compile(r"[\w-]+", re.ASCII)
_INDEX = re.compile(r"\d{1,9}", re.ASCII)
_ORIGIN = re.compile(r"https?://[^/?#@\\{}\s]+(?=[/?]|\Z)", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[^!-~]|[\"#<>\\^`{|}]")
_NOT_IN_HEADER = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_SLASHES = re.compile(r"[/\\]")
_DOTS = frozenset({".", ".."})


class _Place(msgspec.Struct, frozen=True, gc=False):
    """Where a value is found: `result.lines[0]` as its parts, and as it was written."""

    text: str
    parts: tuple[str, ...]


_Piece: TypeAlias = str | _Place
_Write: TypeAlias = Callable[[_Place, JSON], str]


# -- reading -------------------------------------------------------------------------------------------


def names(template: JSON) -> tuple[str, ...]:
    """Every place that a template names, in order: a text, or all texts in a JSON value."""
    return tuple(place.text for place in _places(template))


def places(template: JSON) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The same, each with the names and indexes it is made of."""
    return tuple((place.text, place.parts) for place in _places(template))


def check(what: str, template: JSON, roots: Collection[str]) -> None:
    """Refuse a template that cannot be read, or names something that will not be there; `what` it is for."""
    try:
        unknown = next((place for place in _places(template) if place.parts[0] not in roots), None)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    if unknown is not None:
        raise ConfigurationError(
            f"{what} names {{{{{unknown.text}}}}}, but there is no {unknown.parts[0]!r}. "
            f"A place begins with {', '.join(sorted(roots))}."
        )


def check_url(what: str, template: str, roots: Collection[str]) -> None:
    """Refuse a URL whose scheme or host could change, or that cannot be sent as it is written."""
    check(what, template, roots)
    try:
        start = len(origin(template))
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}") from None
    fixed = "x".join(piece if isinstance(piece, str) else "" for piece in _split(template))
    wrong = _NOT_IN_URL.search(fixed)
    if wrong is not None:
        raise ConfigurationError(f"{what} contains {wrong[0]!a}. Write it percent-encoded, or leave it out.")
    if _dots_in(template[start:]):
        raise ConfigurationError(f"{what} contains the path part '.' or '..'. Write the path it leads to.")


def origin(template: str) -> str:
    """Scheme and host of a URL, which no placeholder can be part of."""
    found = _ORIGIN.match(template)
    if found is None:
        # Not the URL: it may hold a password.
        raise ConfigurationError(
            "the URL does not begin with http:// or https:// and a host that is written out. "
            "Placeholders belong into path and query; a user name and password into a header."
        )
    return found[0]


def _places(template: JSON, depth: int = 0) -> Iterator[_Place]:
    if depth > MAX_DEPTH:
        raise ConfigurationError(f"a template is nested more than {MAX_DEPTH} levels deep.")
    if isinstance(template, str):
        yield from (piece for piece in _split(template) if isinstance(piece, _Place))
    elif isinstance(template, dict):
        for key, value in template.items():
            if _split(key) != [key]:
                raise ConfigurationError(f"the field name {key!a} is a template. Only values can be.")
            yield from _places(value, depth + 1)
    elif isinstance(template, list | tuple):
        for value in template:
            yield from _places(value, depth + 1)


def _split(template: str) -> list[_Piece]:
    """The template as fixed texts and places, in turn, with a fixed text at both ends."""
    pieces: list[_Piece] = []
    end = 0
    while (start := template.find("{{", end)) >= 0:
        close = template.find("}}", start)
        if close < 0:
            raise ConfigurationError(f"{template[start : start + 40]!a} has no closing braces.")
        pieces += template[end:start], _place(template[start + 2 : close])
        end = close + 2
    return [*pieces, template[end:]]


def _place(text: str) -> _Place:
    text = text.strip()
    fits = len(text) <= _LONGEST_PLACE and _PLACE.fullmatch(text)
    parts = tuple(_PART.findall(text)) if fits else ()
    if not parts or len(parts) > _MOST_PARTS or any(part.startswith("__") for part in parts):
        raise ConfigurationError(
            f"{{{{{text[:40]}}}}} names no field. Write names and list indexes joined by dots, such as "
            "{{result.id}} or {{input.lines.0.sku}}."
        )
    return _Place(text, parts)


# -- rendering -----------------------------------------------------------------------------------------


def render(template: JSON, data: Mapping[str, JSON], *, largest: int = LARGEST) -> JSON:
    """A JSON value with all its templates filled in; a text that is one placeholder becomes its value."""
    return _Renderer(data, largest).value(template, 0)


def render_text(template: str, data: Mapping[str, JSON], *, largest: int = LARGEST) -> str:
    """A text for people."""
    return _Renderer(data, largest).text(template, _as_text)


def render_header(template: str, data: Mapping[str, JSON]) -> str:
    """The value of a header: a single line, whatever is in the data."""
    return _Renderer(data, LARGEST).text(template, _as_header)


def render_url(template: str, data: Mapping[str, JSON]) -> str:
    """A URL on the template's own host, with as many path parts and query fields as the template has."""
    host = origin(template)
    path, mark, query = template[len(host) :].partition("?")
    renderer = _Renderer(data, LARGEST)
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
        match _split(template):
            case ["", _Place() as place, ""]:
                return self._whole(place, depth)
            case _:
                return self.text(template, _as_text)

    def text(self, template: str, write: _Write) -> str:
        return "".join(
            self._spent(piece if isinstance(piece, str) else write(piece, self._found(piece)))
            for piece in _split(template)
        )

    def _whole(self, place: _Place, depth: int) -> JSON:
        value = self._found(place)
        self._spent(_written(place, value))
        if _deeper(value, MAX_DEPTH - depth):
            raise _refused(place, f"more than {MAX_DEPTH} levels deep, with what is around it")
        return value

    def _found(self, place: _Place) -> JSON:
        value: JSON = self._data
        for number, part in enumerate(place.parts):
            if type(value) is dict and part in value:
                value = value[part]
            elif type(value) is list and _INDEX.fullmatch(part) and int(part) < len(value):
                value = value[int(part)]
            else:
                raise _missing(place, number, value)
        return value

    def _spent(self, text: str) -> str:
        self._left -= len(text)
        if self._left < 0:
            raise PayloadError("what the template comes to is too large; name fewer or smaller fields")
        return text


def _missing(place: _Place, number: int, value: JSON) -> PayloadError:
    parent = ".".join(place.parts[:number])
    if not parent:
        why = f"there is no {place.parts[0]!r}"
    elif type(value) is list:
        why = f"{parent} is a list of {len(value)}"
    else:
        kind = "it is empty" if value is None else "it is no object" if type(value) is not dict else ""
        why = f"{parent} has no field {place.parts[number]!r}" + (f": {kind}" if kind else "")
    return PayloadError(f"{{{{{place.text}}}}}: {why}", path=".".join(place.parts[: number + 1]))


def _refused(place: _Place, why: str) -> PayloadError:
    return PayloadError(f"{{{{{place.text}}}}}: {why}", path=".".join(place.parts))


def _deeper(value: JSON, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [each for outer in level for each in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: JSON) -> list[JSON]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


# -- how values are written ----------------------------------------------------------------------------


def _as_text(place: _Place, value: JSON) -> str:
    return value if type(value) is str else _written(place, value)


def _as_header(place: _Place, value: JSON) -> str:
    text = _as_text(place, _single(place, value, "a header"))
    if _NOT_IN_HEADER.search(text):
        raise _refused(place, "a header is one line, and cannot hold the control characters in it")
    return text


def _as_query(place: _Place, value: JSON) -> str:
    text = _as_text(place, _single(place, value, "a URL"))
    if lone_surrogates(text):
        raise _refused(place, "is not valid Unicode")
    return quote(text, safe="")


def _as_path(place: _Place, value: JSON) -> str:
    """One part of a path. Dots are refused, since servers read `%2E%2E` as they read `..`."""
    text = _as_query(place, value)
    if not text or not _DOTS.isdisjoint(_SLASHES.split(_as_text(place, value))):
        raise _refused(place, "is empty or contains '.' or '..', which would lead to another path")
    return text


def _single(place: _Place, value: JSON, where: str) -> JSON:
    if value is None or isinstance(value, dict | list):
        kind = "empty" if value is None else "no single value"
        raise _refused(place, f"is {kind}, and cannot be part of {where}")
    return value


def _written(place: _Place, value: JSON) -> str:
    """Compact JSON, or an error for what is none."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise _refused(place, "is not plain JSON data") from None


def _dots_in(path: str) -> bool:
    path = path.partition("?")[0].lower().replace("%2e", ".")
    return not _DOTS.isdisjoint(path.split("/"))
