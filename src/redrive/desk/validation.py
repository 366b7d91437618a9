"""Validation of plain arguments: ids, names, texts, flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.port import DeskStore

_MAX_SHORT_TEXT = 255  # a name is part of the keys of indexes, and of lines of the log
_MAX_LONG_TEXT = 10_000  # a letter is always loaded together with all of its comments and reasons


def is_id(value: object) -> bool:
    """Return True for a value that can be an id; no store is asked for any other."""
    return isinstance(value, str) and len(value) <= _MAX_SHORT_TEXT and value.isascii() and value.isprintable()


def require_text(what: str, value: Any) -> str:
    """Return a short text, such as a name."""
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_SHORT_TEXT or not value.isprintable():
        given = quote(value)
        raise InputError(Reason(ReasonCode.SHORT_TEXT_NEEDED, field=what, longest=_MAX_SHORT_TEXT, given=given))
    return value


def require_long_text(what: str, value: Any) -> str:
    """Return a long text that every database can store."""
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_LONG_TEXT:
        given = quote(value)
        raise InputError(Reason(ReasonCode.LONG_TEXT_NEEDED, field=what, longest=_MAX_LONG_TEXT, given=given))
    if "\x00" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise InputError(Reason(ReasonCode.TEXT_UNSTORABLE, field=what))
    return value


def require_bool(what: str, value: Any) -> bool:
    """Return a flag; a value that is only truthy is refused."""
    if not isinstance(value, bool):
        raise InputError(Reason(ReasonCode.FLAG_NEEDED, field=what, given=quote(value)))
    return value


async def require_channel(store: DeskStore, name: str, is_here: Callable[[str], bool]) -> None:
    """Refuse the name of a channel that neither this process nor a worker has registered."""
    if not is_here(name) and not any(item.kind == "channel" for item in await store.known([name])):
        raise InputError(Reason(ReasonCode.CHANNEL_UNKNOWN, channel=name))
