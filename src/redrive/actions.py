"""Actions that are declared instead of programmed: a call, a statement, a message, a task for a person.

    ApiCall("https://bank.example/refunds", body={"charge": "{{result.id}}"})
    Sql("ledger", "UPDATE entries SET void = true WHERE id = $1", ["{{result.entry}}"])
    Notify("ops", "Order {{input.order_id}} was rolled back")
    Manual("Call the carrier and stop parcel {{result.parcel}}")

Like policies they are checked once, when they are made, and are plain values afterwards. Templates name
fields (see `core.template`); where one may stand is part of the check, and so is the first word of each
place. `render` fills them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from redrive.core import template as templates
from redrive.core.payload.plain import dump_json, to_plain_json
from redrive.core.redact import JSON
from redrive.duration import Duration, parse_duration
from redrive.errors import ConfigurationError, PayloadError

_MAX_STATEMENT_LENGTH = 100_000
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBERED_PLACEHOLDER = re.compile(r"\$(\d{1,5})", re.ASCII)
_QUESTION_MARK = re.compile(r"\?(\d{1,5})?", re.ASCII)
_NAMED_PLACEHOLDER = re.compile(r"(?<![:\w])[:@$][A-Za-z_]\w*|%s|%\(", re.ASCII)


def find_statement_problem(statement: str) -> str | None:
    """What keeps a text from being one statement with bound values, or None."""
    if "{{" in statement or "}}" in statement:
        return "contains template braces. Put a placeholder ($1 or ?) there and the template into params."
    if "\x00" in statement or len(statement) > _MAX_STATEMENT_LENGTH:
        return f"contains a NUL, or is longer than {_MAX_STATEMENT_LENGTH} characters."
    bare = _strip_quoted(statement)
    body = bare.strip().rstrip(";").strip()
    if not body:
        return "is empty."
    if ";" in body:
        return "is more than one statement, or holds a ';' that could begin another. Give one for each action."
    if _NAMED_PLACEHOLDER.search(bare):
        return "has a placeholder with a name or '%s'. Number them ($1, $2) or use '?'."
    return None


def count_placeholders(statement: str) -> int:
    """How many values the statement takes: the highest of `$1`, `$2`, or the number of `?`."""
    bare = _strip_quoted(statement)
    numbered = [int(found) for found in _NUMBERED_PLACEHOLDER.findall(bare)]
    if numbered:
        return max(numbered)
    marks = _QUESTION_MARK.findall(bare)
    return max([len([mark for mark in marks if not mark]), *(int(mark) for mark in marks if mark)])


def _strip_quoted(statement: str) -> str:
    """The statement without what is quoted or a comment; all of it where quoting cannot be told for sure."""
    if "\\" in statement or "$$" in statement:
        return statement
    return _QUOTED.sub(" ", statement)


TEMPLATE_ROOTS = ("input", "result", "step")
"""What the places in an action's templates may begin with."""

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


@dataclass(frozen=True, slots=True, init=False)
class ApiCall:
    """An HTTP call with a JSON body. Any answer but a 2xx is a failure; redirects are not followed.

    Templates may stand in the path and query of `url`, in the values of `headers`, and in every text of
    `body`, where one that is a single placeholder keeps the value's type. Scheme and host are fixed.
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
        put = object.__setattr__
        put(self, "url", _check_url(url))
        put(self, "method", _check_method(method))
        put(self, "body", _check_body(body, self.method))
        put(self, "headers", _check_headers({} if headers is None else headers))
        put(self, "timeout", _check_timeout(timeout))

    @property
    def origin(self) -> str:
        """Scheme, host and port, for checks before anything is called."""
        return templates.url_origin(self.url)

    def render(self, data: Mapping[str, JSON]) -> RenderedCall:
        """The call to make for this data; a place that is missing is a `PayloadError` that names it."""
        headers = {name: templates.render_header(value, data) for name, value in self.headers.items()}
        body = None if self.body is None else dump_json(templates.render(self.body, data))
        if body is not None and not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = "application/json"
        url = templates.render_url(self.url, data)
        return RenderedCall(url=url, method=self.method, headers=headers, body=body, timeout=self.timeout)

    def to_json(self) -> dict[str, JSON]:
        """The action as plain JSON, every field given."""
        return _to_json(self)


@dataclass(frozen=True, slots=True, init=False)
class Sql:
    """One SQL statement on a connection that was registered by name.

    Values reach it as bound parameters only: `params` fill the placeholders of the database at hand (`$1`
    on PostgreSQL, `?` on SQLite) in order, and may be templates. The statement itself is fixed.
    """

    kind: ClassVar[str] = "sql"

    connection: str
    statement: str
    params: tuple[JSON, ...]

    def __init__(self, connection: str, statement: str, params: Iterable[Any] = ()) -> None:
        put = object.__setattr__
        put(self, "connection", _check_connection(connection))
        put(self, "statement", _check_statement(statement))
        put(self, "params", _check_params(params, statement))

    def render(self, data: Mapping[str, JSON]) -> tuple[JSON, ...]:
        """The parameters to bind; objects and lists, which no database binds, as JSON text."""
        values = templates.render(list(self.params), data)
        return tuple(dump_json(value) if isinstance(value, dict | list) else value for value in values)

    def to_json(self) -> dict[str, JSON]:
        """The action as plain JSON, every field given."""
        return _to_json(self)


@dataclass(frozen=True, slots=True, init=False)
class Notify:
    """A message to a channel, whose text is a template."""

    kind: ClassVar[str] = "notify"

    channel: str
    template: str

    def __init__(self, channel: str, template: str) -> None:
        object.__setattr__(self, "channel", _check_channel(channel))
        object.__setattr__(self, "template", _check_text("template of Notify", template))

    def render(self, data: Mapping[str, JSON]) -> str:
        """The message."""
        return templates.render_text(self.template, data)

    def to_json(self) -> dict[str, JSON]:
        """The action as plain JSON, every field given."""
        return _to_json(self)


@dataclass(frozen=True, slots=True, init=False)
class Manual:
    """Something a person has to do, and says when it is done. `instructions` are a template."""

    kind: ClassVar[str] = "manual"

    instructions: str

    def __init__(self, instructions: str) -> None:
        object.__setattr__(self, "instructions", _check_text("instructions of Manual", instructions))

    def render(self, data: Mapping[str, JSON]) -> str:
        """What the person reads."""
        return templates.render_text(self.instructions, data)

    def to_json(self) -> dict[str, JSON]:
        """The action as plain JSON, every field given."""
        return _to_json(self)


Action: TypeAlias = ApiCall | Sql | Notify | Manual


def _to_json(action: Action) -> dict[str, JSON]:
    values = {one.name: getattr(action, one.name) for one in fields(action)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"kind": action.kind, **{name: to_plain_json(value) for name, value in plain.items()}}


# -- the checks ----------------------------------------------------------------------------------------


def _check_url(url: str) -> str:
    _require_text("url of ApiCall", url)
    templates.check_url("url of ApiCall", url, TEMPLATE_ROOTS)
    return url


def _check_method(method: str) -> str:
    if not isinstance(method, str) or method.upper() not in _METHODS:
        raise ConfigurationError(f"method of ApiCall is {method!r}. Give one of {', '.join(_METHODS)}.")
    return method.upper()


def _check_body(body: Any, method: str) -> JSON:
    if body is not None and method in _METHODS_WITHOUT_BODY:
        raise ConfigurationError(f"a {method} has no body. Leave body out, or give another method.")
    tree = _to_plain("body of ApiCall", body)
    templates.check_template("body of ApiCall", tree, TEMPLATE_ROOTS)
    return tree


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers of ApiCall is {headers!r}. Give names and their values.")
    for name, value in headers.items():
        _check_header(name, value)
    if len({name.lower() for name in headers}) < len(headers):
        raise ConfigurationError("headers of ApiCall has a name twice. Give each once.")
    return dict(headers)


def _check_header(name: str, value: str) -> None:
    what = f"header {name!a} of ApiCall"
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise ConfigurationError(f"{what} is no header name. Give letters, digits and hyphens.")
    if name.lower() in _CLIENT_HEADERS:
        raise ConfigurationError(f"{what} is set by the client. Leave it out.")
    # Not the value: it may hold a secret.
    if not isinstance(value, str) or _HEADER_BREAK.search(value):
        raise ConfigurationError(f"{what} must be a text of one line.")
    templates.check_template(what, value, TEMPLATE_ROOTS)


def _check_timeout(timeout: Duration) -> float:
    length = parse_duration(timeout, "timeout of ApiCall")
    if not length:
        raise ConfigurationError(f"timeout of ApiCall is {timeout!r}. Give a duration longer than nothing.")
    return length


def _check_connection(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        # Not what was given: a URL holds a password.
        raise ConfigurationError(
            "connection of Sql must be the name under which a connection was registered (letters, digits, "
            "'_', '-' and '.'), not a URL or anything else."
        )
    return name


def _check_statement(statement: str) -> str:
    _require_text("statement of Sql", statement)
    problem = find_statement_problem(statement)
    if problem is not None:
        raise ConfigurationError(f"statement of Sql {problem}")
    return statement


def _check_params(params: Iterable[Any], statement: str) -> tuple[JSON, ...]:
    if isinstance(params, str | bytes | Mapping) or not isinstance(params, Iterable):
        raise ConfigurationError("params of Sql must be a list, in the order of the placeholders.")
    tree = tuple(_to_plain("params of Sql", list(params)))
    templates.check_template("params of Sql", tree, TEMPLATE_ROOTS)
    wanted = count_placeholders(statement)
    if wanted != len(tree):
        raise ConfigurationError(
            f"statement of Sql has {wanted} placeholders, but params has {len(tree)} values. "
            "Bind each value to a placeholder of its own ($1, $2 or ?, ?)."
        )
    return tree


def _check_channel(channel: str) -> str:
    _require_text("channel of Notify", channel)
    if templates.list_fields(channel):
        raise ConfigurationError("channel of Notify is a template. Name the channel; the text may vary.")
    return channel


def _check_text(what: str, text: str) -> str:
    _require_text(what, text)
    templates.check_template(what, text, TEMPLATE_ROOTS)
    return text


def _require_text(what: str, text: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{what} must be a text, not {'empty' if text == '' else repr(text)}.")


def _to_plain(what: str, value: Any) -> JSON:
    try:
        return to_plain_json(value)
    except (TypeError, ValueError, RecursionError, PayloadError) as error:
        raise ConfigurationError(f"{what} cannot be written as JSON: {error}") from None
