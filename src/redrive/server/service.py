"""What all requests of one server share."""

from __future__ import annotations

from collections.abc import Collection

from redrive.app import Redrive
from redrive.clock import SystemClock
from redrive.core.redact import Redactor
from redrive.core.roles import ALL_TENANTS
from redrive.desk.aside import aside
from redrive.reasons import Reason
from redrive.server.auth.credentials import Credentials
from redrive.server.auth.sessions import Sessions
from redrive.server.events import Hub
from redrive.server.limits import AnswerQuota, Limits, Rates, Tries
from redrive.store.port import People
from redrive.trusted import read_trusted

__all__ = ["Service"]


class Service:
    """One server: its app, who may come in, how often, and the streams that are open."""

    def __init__(self, app: Redrive, limits: Limits, poll: float) -> None:
        clock = SystemClock()
        self.app = app
        self.limits = limits
        self.rates = Rates(clock, limits.rate, limits.burst)
        self.anonymous = Rates(clock, limits.anonymous_rate, limits.anonymous_burst)
        self.logins = Tries(clock, limits)
        self.answers = AnswerQuota(clock, limits)
        self.hub = Hub(
            lambda tenant, workflows: _view(app, tenant, workflows),
            every=poll,
            most=limits.streams,
            each=limits.streams_each,
        )
        self.redactor = Redactor.parse(app.settings.redact)
        self.proxies = read_trusted(app.settings.trusted_proxies)

    @property
    def credentials(self) -> Credentials:
        """Finding out who is asking."""
        return Credentials(self.app.runtime.store, self.app.settings.secret_key)

    @property
    def sessions(self) -> Sessions:
        """Signing in and out."""
        return Sessions(self.app.runtime.store, self.app.runtime.clock)

    async def redact(self, reason: Reason) -> Reason:
        """Return a reason as it may be shown: without secrets, and without what UTF-8 cannot hold.

        A thread redacts a large one.
        """

        def shown(text: str) -> str:
            return self.redactor.text(text).encode("utf-8", "replace").decode()

        return await aside(lambda: reason.map_text(shown), len(str(reason)))

    def stop(self) -> None:
        """End what would not end by itself: the open streams."""
        self.hub.close()


def _view(app: Redrive, tenant: str, workflows: Collection[str] | None) -> People:
    store = app.runtime.store
    return store if tenant == ALL_TENANTS else store.confined(tenant, workflows)
