"""Where Prometheus finds the metrics of a worker: a port of its own, answered by a thread of its own.

The thread asks the event loop for what the store knows. A loop that does not answer, because a step blocks
it, costs the scrape those figures; what was counted is told all the same.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
from collections.abc import Awaitable, Callable
from typing import Any

from redrive.clock import Clock
from redrive.errors import ConfigurationError, RedriveError
from redrive.settings import OFF
from redrive.signals.tally import Tally
from redrive.store.stats import Figures

__all__ = ["Endpoint", "Recent", "can_measure"]

_PATIENCE = 3.0
_FRESH = 2.0


def can_measure(setting: str) -> bool:
    """True if metrics are to be counted: the extra is installed, and the setting does not say no."""
    return setting != OFF and importlib.util.find_spec("prometheus_client") is not None


class Recent:
    """The store's figures, asked for again when they are a moment old: scrapers may be many."""

    def __init__(self, ask: Callable[[], Awaitable[Figures]], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._found: Figures | None = None
        self._at = 0.0

    async def get(self) -> Figures | None:
        """How the store stands; None if it does not answer."""
        if self._found is not None and self._clock.monotonic() - self._at < _FRESH:
            return self._found
        try:
            self._found = await self._ask()
        except RedriveError:
            self._found = None
        self._at = self._clock.monotonic()
        return self._found


class Endpoint:
    """Answers scrapers while it is open."""

    def __init__(self, host: str, port: int, tally: Tally | None, recent: Recent) -> None:
        from redrive.signals.metrics import registry_of

        self._loop = asyncio.get_running_loop()
        self._recent = recent
        self._server, self._thread = _listen(host, port, registry_of(tally, self._figures))

    @property
    def address(self) -> str:
        """The URL to be scraped."""
        host, port = self._server.server_address[:2]
        return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"

    def _figures(self) -> Figures | None:
        asked = asyncio.run_coroutine_threadsafe(self._recent.get(), self._loop)
        try:
            return asked.result(_PATIENCE)
        except (TimeoutError, concurrent.futures.CancelledError):
            asked.cancel()
            return None

    async def close(self) -> None:
        """Answer nobody any more."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        await asyncio.to_thread(self._thread.join)


def _listen(host: str, port: int, registry: Any) -> tuple[Any, Any]:
    from prometheus_client import start_http_server

    try:
        return start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot be told on {host}:{port} ({error.strerror or error}): give another port with "
            "--metrics or REDRIVE_METRICS; port 0 takes a free one"
        ) from None
