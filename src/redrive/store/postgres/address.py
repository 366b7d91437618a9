"""Where the database is and how to use it: everything that a `postgresql://` URL says."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from redrive.errors import ConfigurationError
from redrive.frozen import dataclass

__all__ = ["Address", "locate"]

_SCHEMES = ("postgresql", "postgres")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_OURS = ("schema", "pool_size", "statement_cache_size", "bell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A database, the schema in it, and how many connections to keep.

    `pooled` says that a pooler in transaction mode stands before the database: a connection then
    remembers nothing from one transaction to the next. `bell` is the URL of a direct connection for
    LISTEN, or None; `rings` says whether others are told of new work, which a pooler does not hinder.
    """

    url: str
    where: str
    schema: str = "redrive"
    pool_size: int = 10
    pooled: bool = False
    bell: str | None = None
    rings: bool = True


def locate(url: str) -> Address:
    """Read a URL; what it says beyond Redrive's own parameters goes to the driver."""
    parts = urlsplit(url)
    if parts.scheme.partition("+")[0] not in _SCHEMES:
        raise ConfigurationError(
            f"{_shown(url)} is not a PostgreSQL store: write postgresql://user@host/database"
        )
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _OURS}
    rest = [(name, value) for name, value in given if name not in _OURS]
    plain = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), ""))
    pooled = _number(ours, "statement_cache_size", 1, least=0) == 0
    return Address(
        url=plain,
        where=_shown(url),
        schema=_schema(ours.get("schema", "redrive")),
        pool_size=_number(ours, "pool_size", 10, least=2),
        pooled=pooled,
        bell=_bell(ours.get("bell"), plain, pooled),
        rings=ours.get("bell") != "off",
    )


def _schema(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"schema={name!r}: a schema's name begins with a small letter and goes on with small letters, "
            "digits and underscores, 51 of them at most"
        )
    return name


def _number(given: dict[str, str], name: str, default: int, *, least: int) -> int:
    text = given.get(name, str(default))
    if not text.isdigit() or int(text) < least:
        raise ConfigurationError(f"{name}={text!r} in the URL must be a whole number from {least} on")
    return int(text)


def _bell(wish: str | None, url: str, pooled: bool) -> str | None:
    """`bell=off`, `bell=on`, or the `host:port` to listen at when the URL leads to a pooler."""
    if wish == "off" or (wish is None and pooled):
        return None
    if wish in (None, "on"):
        return url
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{login}{at}{wish}", parts.path, parts.query, ""))


def _shown(url: str) -> str:
    """The URL as it may appear in a log: host and database, no password."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "localhost")
    return f"PostgreSQL at {unquote(hosts)}{unquote(parts.path)}"
