"""Pages of a list, newest first, and the opaque cursors between them.

A cursor names a place (an id) and a direction from it, so that rows which arrive or go between two
calls neither repeat nor hide others, and page 1,000 costs no more than page 1.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from redrive.errors import InputError
from redrive.frozen import dataclass
from redrive.store.records import Page

__all__ = ["OLDEST", "Request", "Window", "page_by_page"]

MOST = 500
_CURSOR = re.compile(r"([<>])(\d{1,19})")


class _HasId(Protocol):
    @property
    def id(self) -> int: ...


Item = TypeVar("Item", bound=_HasId)
Each = TypeVar("Each")


async def page_by_page(ask: Callable[[str | None], Awaitable[Page[Each]]]) -> AsyncIterator[Each]:
    """Every item of a list, in constant memory; `ask` gives the page at a cursor."""
    cursor: str | None = None
    while True:
        page = await ask(cursor)
        for item in page.items:
            yield item
        cursor = page.next
        if cursor is None:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which rows a page wants: up to `most` older than `below`, or newer than `above`, nearest first."""

    most: int
    below: int | None = None
    above: int | None = None

    @property
    def down(self) -> bool:
        """Whether rows are read from the newest to older ones."""
        return self.above is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One page that somebody asked for: first the window to fetch, then the page its rows make."""

    size: int
    direction: str
    place: int | None

    @classmethod
    def of(cls, limit: int, cursor: str | None) -> Request:
        """Read what a caller passed; raises InputError if it makes no sense."""
        size = _size(limit)
        direction, place = _decode(cursor) if cursor is not None else ("<", None)
        return cls(size=size, direction=direction, place=place)

    @property
    def window(self) -> Window:
        """The rows to fetch, nearest to the cursor's place first; one more than fit, to see if there are."""
        if self.direction == "<":
            return Window(most=self.size + 1, below=self.place)
        return Window(most=self.size + 1, above=self.place)

    def page(self, rows: list[Item], reached: int | None = None) -> Page[Item]:
        """The page that the window's rows make.

        It may be short, or even empty, and yet not the last: `reached` is how far rows were looked through.
        """
        more = len(rows) > self.size
        if not more and reached is not None:
            return self._unfinished(rows, reached)
        items = rows[: self.size]
        if self.direction == "<":
            more_older, more_newer = more, self.place is not None
        else:
            items.reverse()
            more_older, more_newer = True, more
        if not items:
            return _empty(self.direction, self.place)
        return Page(
            items,
            next=_encode("<", items[-1].id) if more_older else None,
            prev=_encode(">", items[0].id) if more_newer else None,
        )

    def _unfinished(self, rows: list[Item], reached: int) -> Page[Item]:
        if self.direction == "<":
            back = None if self.place is None else _encode(">", rows[0].id if rows else self.place - 1)
            return Page(rows, next=_encode("<", reached), prev=back)
        rows = rows[::-1]
        on = _encode("<", rows[-1].id if rows else (self.place or 0) + 1)
        return Page(rows, next=on, prev=_encode(">", reached))


def _empty(direction: str, place: int | None) -> Page[Item]:
    """Nothing there: the way back is all there is to offer."""
    if place is None:
        return Page([], next=None, prev=None)
    if direction == "<":
        return Page([], next=None, prev=_encode(">", place - 1))
    return Page([], next=_encode("<", place + 1), prev=None)


def _size(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InputError(f"limit is {limit!r}; it must be a whole number from 1 to {MOST}")
    return min(limit, MOST)


def _encode(direction: str, place: int) -> str:
    return base64.urlsafe_b64encode(f"{direction}{place}".encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[str, int]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode(
            "ascii"
        )
    except (binascii.Error, ValueError, TypeError):
        text = ""
    found = _CURSOR.fullmatch(text)
    if found is None or int(found[2]) >= 2**63:
        raise InputError(f"{cursor!r} is no cursor of a list: pass one that a page gave you, or none")
    return found[1], int(found[2])


OLDEST = _encode(">", 0)
"""The cursor of the page with the oldest rows."""
