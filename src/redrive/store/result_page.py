"""Pages of a list: a page of rows, its cursors, and the request for one."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode
from redrive.store.session import Session
from redrive.store.sql_files import Statements

MAX_PAGE_SIZE = 500
"""Rows of one page at most: one answer of the API, or one screen, that a browser shows without delay."""


_CURSOR = re.compile(r"([<>])(\d{1,19})")


class _HasId(Protocol):
    @property
    def id(self) -> int: ...


Item = TypeVar("Item", bound=_HasId)


Each = TypeVar("Each")


@dataclass(frozen=True, slots=True)
class Page(Generic[Each]):
    """A page of a list, newest first, with cursors to its neighbours."""

    items: list[Each]
    next: str | None
    prev: str | None


async def iterate_pages(ask: Callable[[str | None], Awaitable[Page[Each]]]) -> AsyncIterator[Each]:
    """Yield every item of a list, in constant memory. `ask` returns the page at a cursor."""
    cursor: str | None = None
    while True:
        page = await ask(cursor)
        for item in page.items:
            yield item
        cursor = page.next
        if cursor is None:
            return


class Window(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A range of rows: up to `most` older than `below`, or newer than `above`, nearest first."""

    most: int
    below: int | None = None
    above: int | None = None

    @property
    def down(self) -> bool:
        """True if rows are read from the newest to older ones."""
        return self.above is None


class PageRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A requested page: the window to fetch, and the page that its rows make."""

    size: int
    direction: str
    position: int | None

    @classmethod
    def of(cls, limit: int, cursor: str | None) -> PageRequest:
        """Parse the arguments of a caller; raise InputError if they are not valid."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InputError(Reason(ReasonCode.PAGE_LIMIT_INVALID, largest=MAX_PAGE_SIZE, given=f"{limit!r:.60}"))
        size = min(limit, MAX_PAGE_SIZE)
        if cursor is None:
            return cls(size=size, direction="<", position=None)
        try:
            text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        except (binascii.Error, ValueError, TypeError):
            text = ""
        found = _CURSOR.fullmatch(text)
        if found is None or int(found[2]) >= 2**63:
            raise InputError(Reason(ReasonCode.CURSOR_INVALID, given=repr(cursor)))
        return cls(size=size, direction=found[1], position=int(found[2]))

    @property
    def window(self) -> Window:
        """The rows to fetch, nearest to the cursor first; one more than fit, to see if there are more."""
        bound = "below" if self.direction == "<" else "above"
        return Window(most=self.size + 1, **{bound: self.position})

    def page(self, rows: list[Item], reached: int | None = None) -> Page[Item]:
        """Return the page that the window's rows make.

        It may be short, or even empty, and yet not the last: `reached` is the last row that was scanned.
        """
        more = len(rows) > self.size
        if not more and reached is not None:
            return self._unfinished_page(rows, reached)
        items = rows[: self.size]
        if self.direction == "<":
            more_older, more_newer = more, self.position is not None
        else:
            items.reverse()
            more_older, more_newer = True, more
        if not items:  # only the way back is left
            if self.position is None:
                return Page([], next=None, prev=None)
            if self.direction == "<":
                return Page([], next=None, prev=_encode_cursor(">", self.position - 1))
            return Page([], next=_encode_cursor("<", self.position + 1), prev=None)
        return Page(
            items,
            next=_encode_cursor("<", items[-1].id) if more_older else None,
            prev=_encode_cursor(">", items[0].id) if more_newer else None,
        )

    def numbered_page(self, rows: list[Item]) -> Page[Item]:
        """Return a page of a list in another order than that of ids. A cursor is the number of rows before a page."""
        before = self.position or 0
        return Page(
            rows[: self.size],
            next=_encode_cursor("<", before + self.size) if len(rows) > self.size else None,
            prev=_encode_cursor("<", max(0, before - self.size)) if before else None,
        )

    def _unfinished_page(self, rows: list[Item], reached: int) -> Page[Item]:
        if self.direction == "<":
            back = None if self.position is None else _encode_cursor(">", rows[0].id if rows else self.position - 1)
            return Page(rows, next=_encode_cursor("<", reached), prev=back)
        rows = rows[::-1]
        on = _encode_cursor("<", rows[-1].id if rows else (self.position or 0) + 1)
        return Page(rows, next=on, prev=_encode_cursor(">", reached))


async def read_page(
    session: Session,
    sql: Statements,
    table: str,
    request: PageRequest,
    values: Mapping[str, Any],
    record: Callable[[Any], Item],
    **params: Any,
) -> Page[Item]:
    """Read a page with the conditions `table.name` of these values; None means no condition."""
    window = request.window
    bounds = {**values, "below": window.below, "above": window.above}
    given = {name: value for name, value in bounds.items() if value is not None}
    texts = sql.texts(session.dialect)
    conditions = " AND ".join(texts[f"{table}.{name}"] for name in given) or "true"
    statement = texts[table].format(conditions=conditions, order="DESC" if window.down else "ASC")
    rows = await session.rows(statement, **given, **params, most=window.most)
    return request.page([record(row) for row in rows])


def _encode_cursor(direction: str, position: int) -> str:
    return base64.urlsafe_b64encode(f"{direction}{position}".encode()).decode().rstrip("=")


OLDEST_CURSOR = _encode_cursor(">", 0)
"""The cursor of the page with the oldest rows."""
