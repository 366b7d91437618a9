"""The sinks of an app's notifications: the teller, and one for each way out."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.allowed import Allowed
from redrive.clock import MICROS, Clock
from redrive.core.notice import SAID
from redrive.core.notify import KINDS
from redrive.core.saying import Saying
from redrive.core.topics import patterns
from redrive.notify.email import Email
from redrive.notify.parcel import Opener
from redrive.notify.posting import Posting, Request, in_slack, in_teams, signed
from redrive.notify.teller import TOPICS, Teller
from redrive.settings import Settings
from redrive.sinks import Sink, SinkDefinition

__all__ = ["TELLER", "WAYS", "notify_sinks"]

TELLER = "redrive.notices"
"""The sink that hears of failures."""

WAYS = frozenset(f"redrive.{kind}" for kind in KINDS)
"""The sinks that the teller feeds, and nobody else."""

_TIMEOUT = 30.0
_CONCURRENCY = 4  # receivers are people's mailboxes and chats, which limit how fast they are written to


def notify_sinks(
    teller: Teller,
    opener: Opener,
    words: Saying,
    settings: Settings,
    allowed: Sequence[Allowed],
    clock: Clock,
) -> list[SinkDefinition]:
    """All of them, as relays take them."""

    def posting(request: Request) -> Posting:
        return Posting(request, opener, words, allowed, _TIMEOUT)

    ways: dict[str, Sink] = {
        "email": Email(settings.smtp_url, settings.smtp_from, opener, words, _TIMEOUT),
        "slack": posting(in_slack),
        "teams": posting(in_teams),
        "webhook": posting(signed(lambda: clock.now() // MICROS)),
    }
    first = SinkDefinition(name=TELLER, kind="notify", topics=patterns(TOPICS), sink=teller)
    return [first, *(_way(kind, ways[kind]) for kind in KINDS)]


def _way(kind: str, sink: Sink) -> SinkDefinition:
    return SinkDefinition(
        name=f"redrive.{kind}",
        kind="notify",
        topics=patterns(f"{SAID}.{kind}"),
        sink=sink,
        timeout=_TIMEOUT,
        concurrency=_CONCURRENCY,
    )
