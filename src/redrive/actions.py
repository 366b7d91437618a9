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
from redrive.core.payload.plain import any_text, any_tree
from redrive.core.redact import JSON
from redrive.core.statement import placeholders, statement_problem
from redrive.duration import Duration, seconds
from redrive.errors import ConfigurationError, PayloadError

__all__ = ["ROOTS", "Action", "ApiCall", "Manual", "Notify", "RenderedCall", "Sql"]

ROOTS = ("input", "result", "step")
"""What the places in an action's templates may begin with."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BODILESS = frozenset({"GET", "HEAD"})
_OUR_HEADERS = frozenset({"connection", "content-length", "host", "te", "transfer-encoding", "upgrade"})
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
        put(self, "url", _url(url))
        put(self, "method", _method(method))
        put(self, "body", _body(body, self.method))
        put(self, "headers", _headers({} if headers is None else headers))
        put(self, "timeout", _some_time(timeout))

    @property
    def origin(self) -> str:
        """Scheme, host and port, for checks before anything is called."""
        return templates.origin(self.url)

    def render(self, data: Mapping[str, JSON]) -> RenderedCall:
        """The call to make for this data; a place that is missing is a `PayloadError` that names it."""
        headers = {name: templates.render_header(value, data) for name, value in self.headers.items()}
        body = None if self.body is None else any_text(templates.render(self.body, data))
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
        put(self, "connection", _connection(connection))
        put(self, "statement", _statement(statement))
        put(self, "params", _params(params, statement))

    def render(self, data: Mapping[str, JSON]) -> tuple[JSON, ...]:
        """The parameters to bind; objects and lists, which no database binds, as JSON text."""
        values = templates.render(list(self.params), data)
        return tuple(any_text(value) if isinstance(value, dict | list) else value for value in values)

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
        object.__setattr__(self, "channel", _channel(channel))
        object.__setattr__(self, "template", _text("template of Notify", template))

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
        object.__setattr__(self, "instructions", _text("instructions of Manual", instructions))

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
    return {"kind": action.kind, **{name: any_tree(value) for name, value in plain.items()}}


# -- the checks ----------------------------------------------------------------------------------------


def _url(url: str) -> str:
    _need_text("url of ApiCall", url)
    templates.check_url("url of ApiCall", url, ROOTS)
    return url


def _method(method: str) -> str:
    if not isinstance(method, str) or method.upper() not in _METHODS:
        raise ConfigurationError(f"method of ApiCall is {method!r}. Give one of {', '.join(_METHODS)}.")
    return method.upper()


def _body(body: Any, method: str) -> JSON:
    if body is not None and method in _BODILESS:
        raise ConfigurationError(f"a {method} has no body. Leave body out, or give another method.")
    tree = _plain("body of ApiCall", body)
    templates.check("body of ApiCall", tree, ROOTS)
    return tree


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers of ApiCall is {headers!r}. Give names and their values.")
    for name, value in headers.items():
        _header(name, value)
    if len({name.lower() for name in headers}) < len(headers):
        raise ConfigurationError("headers of ApiCall has a name twice. Give each once.")
    return dict(headers)


def _header(name: str, value: str) -> None:
    what = f"header {name!a} of ApiCall"
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise ConfigurationError(f"{what} is no header name. Give letters, digits and hyphens.")
    if name.lower() in _OUR_HEADERS:
        raise ConfigurationError(f"{what} is set by the client. Leave it out.")
    # Not the value: it may hold a secret.
    if not isinstance(value, str) or _HEADER_BREAK.search(value):
        raise ConfigurationError(f"{what} must be a text of one line.")
    templates.check(what, value, ROOTS)


def _some_time(timeout: Duration) -> float:
    length = seconds(timeout, "timeout of ApiCall")
    if not length:
        raise ConfigurationError(f"timeout of ApiCall is {timeout!r}. Give a duration longer than nothing.")
    return length


def _connection(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        # Not what was given: a URL holds a password.
        raise ConfigurationError(
            "connection of Sql must be the name under which a connection was registered (letters, digits, "
            "'_', '-' and '.'), not a URL or anything else."
        )
    return name


def _statement(statement: str) -> str:
    _need_text("statement of Sql", statement)
    problem = statement_problem(statement)
    if problem is not None:
        raise ConfigurationError(f"statement of Sql {problem}")
    return statement


def _params(params: Iterable[Any], statement: str) -> tuple[JSON, ...]:
    if isinstance(params, str | bytes | Mapping) or not isinstance(params, Iterable):
        raise ConfigurationError("params of Sql must be a list, in the order of the placeholders.")
    tree = tuple(_plain("params of Sql", list(params)))
    templates.check("params of Sql", tree, ROOTS)
    wanted = placeholders(statement)
    if wanted != len(tree):
        raise ConfigurationError(
            f"statement of Sql has {wanted} placeholders, but params has {len(tree)} values. "
            "Bind each value to a placeholder of its own ($1, $2 or ?, ?)."
        )
    return tree


def _channel(channel: str) -> str:
    _need_text("channel of Notify", channel)
    if templates.names(channel):
        raise ConfigurationError("channel of Notify is a template. Name the channel; the text may vary.")
    return channel


def _text(what: str, text: str) -> str:
    _need_text(what, text)
    templates.check(what, text, ROOTS)
    return text


def _need_text(what: str, text: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(f"{what} must be a text, not {'empty' if text == '' else repr(text)}.")


def _plain(what: str, value: Any) -> JSON:
    try:
        return any_tree(value)
    except (TypeError, ValueError, RecursionError, PayloadError) as error:
        raise ConfigurationError(f"{what} cannot be written as JSON: {error}") from None
