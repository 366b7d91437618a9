"""Who looks at the pages, and into which tenant.

An owner's work in another tenant is noted in its log, as everywhere. A page that keeps itself up to date
asks often, so looking is noted once in a while, and every change by itself.
"""

from __future__ import annotations

from collections import OrderedDict

from fastapi import Request

from redrive.server.asking import Asking, find_out, note_entry

__all__ = ["Entries", "enter"]

_AGAIN = 900.0  # seconds after which looking is noted again
_MOST = 10_000


class Entries:
    """Who was noted lately to look into which tenant."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def note(self, asking: Asking, request: Request) -> None:
        """Note an entry, unless one was noted lately and this one changes nothing."""
        who, now = (asking.by, asking.tenant), asking.clock.monotonic()
        if request.method == "GET" and now - self._noted.get(who, -_AGAIN) < _AGAIN:
            return
        await note_entry(asking, request)
        self._noted[who] = now
        self._noted.move_to_end(who)
        while len(self._noted) > _MOST:
            self._noted.popitem(last=False)


async def enter(request: Request) -> Asking:
    """Find out who looks at a page, before anything else asks."""
    entries: Entries = request.app.state.entries
    return await find_out(request, entries.note)
