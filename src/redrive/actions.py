"""Declared actions: an HTTP call, an SQL statement, a message, a task for a person.

    ApiCall("https://bank.example/refunds", body={"charge": "{{result.id}}"})
    Sql("ledger", "UPDATE entries SET void = true WHERE id = $1", ["{{result.entry}}"])
    Notify("ops", "Order {{input.order_id}} was rolled back")
    Manual("Call the carrier and stop parcel {{result.parcel}}")

They are checked once, when they are made, and are plain values afterwards. Their templates name fields (see
`core.template`). The check covers where a template may stand and with which name a field begins; `render` fills
the templates in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from redrive.core import template as templates
from redrive.core.payload.plain_json import dump_json, to_plain_json
from redrive.core.redact import JSON
from redrive.errors import ConfigurationError, PayloadError
from redrive.record_fields import as_dict
from redrive.time_values import Duration, parse_duration

_MAX_STATEMENT_LENGTH = 100_000
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBERED_PLACEHOLDER = re.compile(r"\$(\d{1,5})", re.ASCII)
_QUESTION_MARK = re.compile(r"\?(\d{1,5})?", re.ASCII)
_NAMED_PLACEHOLDER = re.compile(r"(?<![:\w])[:@$][A-Za-z_]\w*|%s|%\(", re.ASCII)


def find_statement_problem(statement: str) -> str | None:
    """Return why a text is not a single statement with bound values, or None if it is one."""
    if "{{" in statement or "}}" in statement:
        return "contains template braces. Put a placeholder ($1 or ?) there and the template into params."
    if "\x00" in statement or len(statement) > _MAX_STATEMENT_LENGTH:
        return f"contains a NUL, or is longer than {_MAX_STATEMENT_LENGTH} characters."
    bare = _strip_quoted(statement)
    body = bare.strip().rstrip(";").strip()
    if not body:
        return "is empty."
    if ";" in body:
        return "contains a ';', so it may be more than one statement. Give one statement per action."
    if _NAMED_PLACEHOLDER.search(bare):
        return "has a named placeholder or '%s'. Number the placeholders ($1, $2) or use '?'."
    return None


def count_placeholders(statement: str) -> int:
    """Return how many values the statement takes: the highest of `$1`, `$2`, or the number of `?`."""
    bare = _strip_quoted(statement)
    numbered = [int(found) for found in _NUMBERED_PLACEHOLDER.findall(bare)]
    if numbered:
        return max(numbered)
    marks = _QUESTION_MARK.findall(bare)
    return max([len([mark for mark in marks if not mark]), *(int(mark) for mark in marks if mark)])


def _strip_quoted(statement: str) -> str:
    """Return the statement without quoted parts and comments."""
    # With backslashes or dollar quotes it depends on the database what is quoted, so nothing is removed.
    if "\\" in statement or "$$" in statement:
        return statement
    return _QUOTED.sub(" ", statement)


TEMPLATE_ROOTS = ("input", "result", "step")
"""The names that fields in the templates of an action may begin with."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_METHODS_WITHOUT_BODY = frozenset({"GET", "HEAD"})
_CLIENT_HEADERS = frozenset({"connection", "content-length", "host", "te", "transfer-encoding", "upgrade"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_BREAK = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedCall:
    """An `ApiCall` with its templates filled in. `body` is JSON text, or None for no body."""

    url: str
    method: str
    headers: dict[str, str]
    body: str | None
    timeout: float


class _Action:
    """Conversion of an action to plain JSON."""

    __slots__ = ()
    kind: ClassVar[str]

    def to_json(self) -> dict[str, JSON]:
        """Return all fields as plain JSON."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in as_dict(self).items()}
        return {"kind": self.kind, **{name: to_plain_json(value) for name, value in values.items()}}


@dataclass(frozen=True, slots=True, init=False)
class ApiCall(_Action):
    """An HTTP call with a JSON body. Any response other than 2xx is a failure; redirects are not followed.

    Templates may stand in the path and query of `url`, in the values of `headers`, and in every text of
    `body`. A text of the body that is a single placeholder keeps the type of the value. Scheme and host are fixed.
    """

    kind: ClassVar[str] = "api_call"

    url: str
    method: str
    body: JSON
    headers: dict[str, str]
    timeout: float

    def __init__(
        self,
        url: str,
        method: str = "POST",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: Duration = "30s",
    ) -> None:
        _require_text("url of ApiCall", url)
        templates.check_url("url of ApiCall", url, TEMPLATE_ROOTS)
        if not isinstance(method, str) or method.upper() not in _METHODS:
            raise ConfigurationError(f"method of ApiCall is {method!r}. Give one of {', '.join(_METHODS)}.")
        if body is not None and method.upper() in _METHODS_WITHOUT_BODY:
            raise ConfigurationError(f"a {method.upper()} has no body. Leave body out, or give another method.")
        plain_body = _to_plain("body of ApiCall", body)
        templates.check_template("body of ApiCall", plain_body, TEMPLATE_ROOTS)
        put = object.__setattr__
        put(self, "url", url)
        put(self, "method", method.upper())
        put(self, "body", plain_body)
        put(self, "headers", _check_headers({} if headers is None else headers))
        put(self, "timeout", parse_duration(timeout, "timeout of ApiCall"))
        if not self.timeout:
            raise ConfigurationError(f"timeout of ApiCall is {timeout!r}. Give a duration longer than 0.")

    @property
    def origin(self) -> str:
        """Scheme, host and port, so that they can be checked before the call."""
        return templates.url_origin(self.url)

    def render(self, data: Mapping[str, JSON]) -> RenderedCall:
        """Return the call for this data. Raises a `PayloadError` that names a missing field."""
        headers = {name: templates.render_header(value, data) for name, value in self.headers.items()}
        body = None if self.body is None else dump_json(templates.render(self.body, data))
        if body is not None and not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = "application/json"
        url = templates.render_url(self.url, data)
        return RenderedCall(url=url, method=self.method, headers=headers, body=body, timeout=self.timeout)


@dataclass(frozen=True, slots=True, init=False)
class Sql(_Action):
    """An SQL statement for a database connection that is registered under a name.

    Values are passed as bound parameters only: `params` fill the placeholders (`$1` on PostgreSQL, `?` on
    SQLite) in order, and may be templates. The statement itself is fixed.
    """

    kind: ClassVar[str] = "sql"

    connection: str
    statement: str
    params: tuple[JSON, ...]

    def __init__(self, connection: str, statement: str, params: Iterable[Any] = ()) -> None:
        if not isinstance(connection, str) or not _NAME.fullmatch(connection):
            # The value is left out, because a URL may contain a password.
            raise ConfigurationError(
                "connection of Sql must be the name under which a connection was registered (letters, digits, "
                "'_', '-' and '.'), not a URL or anything else."
            )
        _require_text("statement of Sql", statement)
        problem = find_statement_problem(statement)
        if problem is not None:
            raise ConfigurationError(f"statement of Sql {problem}")
        if isinstance(params, str | bytes | Mapping) or not isinstance(params, Iterable):
            raise ConfigurationError("params of Sql must be a list, in the order of the placeholders.")
        values = tuple(_to_plain("params of Sql", list(params)))
        templates.check_template("params of Sql", values, TEMPLATE_ROOTS)
        placeholders = count_placeholders(statement)
        if placeholders != len(values):
            raise ConfigurationError(
                f"statement of Sql has {placeholders} placeholders, but params has {len(values)} values. "
                "Bind each value to one placeholder ($1, $2 or ?, ?)."
            )
        put = object.__setattr__
        put(self, "connection", connection)
        put(self, "statement", statement)
        put(self, "params", values)

    def render(self, data: Mapping[str, JSON]) -> tuple[JSON, ...]:
        """Return the parameters to bind. Objects and lists, which no database binds, become JSON text."""
        values = templates.render(list(self.params), data)
        return tuple(dump_json(value) if isinstance(value, dict | list) else value for value in values)


@dataclass(frozen=True, slots=True, init=False)
class Notify(_Action):
    """A message to a channel, whose text is a template."""

    kind: ClassVar[str] = "notify"

    channel: str
    template: str

    def __init__(self, channel: str, template: str) -> None:
        _require_text("channel of Notify", channel)
        if templates.parse_fields(channel):
            raise ConfigurationError(
                "channel of Notify is a template. Give the name of a channel; only the text may vary."
            )
        object.__setattr__(self, "channel", channel)
        object.__setattr__(self, "template", _check_text("template of Notify", template))

    def render(self, data: Mapping[str, JSON]) -> str:
        return templates.render_text(self.template, data)


@dataclass(frozen=True, slots=True, init=False)
class Manual(_Action):
    """A task for a person, who confirms when it is done. `instructions` are a template."""

    kind: ClassVar[str] = "manual"

    instructions: str

    def __init__(self, instructions: str) -> None:
        object.__setattr__(self, "instructions", _check_text("instructions of Manual", instructions))

    def render(self, data: Mapping[str, JSON]) -> str:
        return templates.render_text(self.instructions, data)


Action: TypeAlias = ApiCall | Sql | Notify | Manual


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise ConfigurationError(
            f"headers of ApiCall must be a dict of names and values, not {type(headers).__name__}."
        )
    for name, value in headers.items():
        what = f"header {name!a} of ApiCall"
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ConfigurationError(f"{what} is not a valid header name. Use letters, digits and hyphens.")
        if name.lower() in _CLIENT_HEADERS:
            raise ConfigurationError(f"{what} is set by the client. Leave it out.")
        if not isinstance(value, str) or _HEADER_BREAK.search(value):
            # The value is left out, because it may contain a secret.
            raise ConfigurationError(f"{what} has a line break or is not a text. Give one line of text.")
        templates.check_template(what, value, TEMPLATE_ROOTS)
    if len({name.lower() for name in headers}) < len(headers):
        raise ConfigurationError("headers of ApiCall has a name twice. Give each name once.")
    return dict(headers)


def _check_text(what: str, text: str) -> str:
    _require_text(what, text)
    templates.check_template(what, text, TEMPLATE_ROOTS)
    return text


def _require_text(what: str, text: str) -> None:
    if not isinstance(text, str) or not text.strip():
        # A value of another type is left out, because it may contain a secret.
        given = "empty" if isinstance(text, str) else type(text).__name__
        raise ConfigurationError(f"{what} must be a text, not {given}.")


def _to_plain(what: str, value: Any) -> JSON:
    try:
        return to_plain_json(value)
    except (TypeError, ValueError, RecursionError, PayloadError) as error:
        raise ConfigurationError(f"{what} cannot be written as JSON: {error}") from None
