"""`app.sinks`: where messages go, of all tenants at once."""

from __future__ import annotations

from datetime import datetime

from redrive.clock import Clock
from redrive.core.events import Event
from redrive.core.transition import AuditWrite
from redrive.desk.checks import a_flag, person, reason_given, short_text
from redrive.duration import moment
from redrive.errors import NotFound
from redrive.frozen import dataclass
from redrive.reasons import Reason, ReasonCode, quote
from redrive.store.outbox_records import SinkRow
from redrive.store.port import Store

__all__ = ["SinkStatus", "Sinks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """A sink and how many messages wait for it or are dead there, each counted up to 1,000.

    `seen_at` is when an app that has the sink was last opened: a sink that no app has any more gathers
    messages until it is removed.
    """

    name: str
    kind: str
    topics: tuple[str, ...]
    seen_at: datetime
    pending: int
    dead: int


class Sinks:
    """Looks at sinks, and removes those that no app has any more."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list(self) -> tuple[SinkStatus, ...]:
        """All sinks that messages go to, by name."""
        return tuple(_shaped(row) for row in await self._store.sinks())

    async def remove(self, name: str, *, by: str, reason: str | None = None, dry_run: bool = False) -> None:
        """Send nothing more to a sink that no app has any more, and skip what waits for it."""
        audit = AuditWrite(
            event=Event.SINK_REMOVED.value,
            tenant="",
            by=person(by),
            subject=short_text("sink", name),
            reason=reason_given(reason),
            token=self._clock.new_id(),
        )
        known = [each.name for each in await self._store.sinks()]
        is_there = name in known if a_flag("dry_run", dry_run) else await self._store.remove_sink(name, audit)
        if not is_there:
            raise NotFound(
                Reason(ReasonCode.SINK_NOT_FOUND, name=quote(name), known=", ".join(known) or "none")
            )


def _shaped(row: SinkRow) -> SinkStatus:
    return SinkStatus(
        name=row.name,
        kind=row.kind,
        topics=tuple(str(each) for each in row.topics),
        seen_at=moment(row.seen_at),
        pending=row.pending,
        dead=row.dead,
    )
