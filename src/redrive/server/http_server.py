"""The HTTP server of a process: its socket, its uvicorn server, and the time limit of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from redrive.app import Redrive
from redrive.errors import ConfigurationError
from redrive.server.app import build_api
from redrive.server.limits import Limits

log = logging.getLogger("redrive.server")

_MAX_OPEN_FILES = 65_536
_BACKLOG = 2048

GRACE_SECONDS = 10
"""Seconds that running requests have to end after the server is told to stop."""


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only for a socket with this protocol. With it, the second part of a
    # response would wait 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port} ({getattr(error, 'strerror', None) or error}): choose another address "
            "with --host and --port; port 0 takes a free port"
        ) from None


def raise_open_file_limit() -> None:
    """Raise the limit of open files of this process as far as the system allows: each stream needs one."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Server:
    """The API of an open app on a socket."""

    def __init__(self, app: Redrive, at: socket.socket, limits: Limits | None = None) -> None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # start and stop are logged by the caller
        limits = limits or Limits()
        api = build_api(app, limits=limits)
        self._base_url = app.settings.base_url
        protocol: Any = partial(TimedProtocol, header_seconds=limits.header_seconds)
        self._service = api.state.service
        self._socket = at
        self._uvicorn = _ServerWithoutSignals(
            uvicorn.Config(
                api,
                http=protocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=65,
                timeout_graceful_shutdown=GRACE_SECONDS,
                limit_concurrency=None,
                h11_max_incomplete_event_size=32 * 1024,
                proxy_headers=False,
            )
        )

    @property
    def address(self) -> str:
        """The URL that the server listens on."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def serve(self, until: asyncio.Event, announce: Callable[[str], None]) -> None:
        """Answer requests until told to stop; then end the streams and wait for running requests."""
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._socket]))
        stopping = asyncio.create_task(until.wait())
        try:
            while not self._uvicorn.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            host = self._socket.getsockname()[0].partition("%")[0]
            if not ipaddress.ip_address(host).is_loopback and not self._base_url.startswith("https:"):
                log.warning(
                    "listening beyond this machine without https: passwords and tokens can be read on the "
                    "network; put a proxy with TLS in front and set REDRIVE_BASE_URL to its https address"
                )
            announce(self.address)
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            self._service.stop()
            self._uvicorn.should_exit = True
            await serving


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, which is closed if a request does not arrive in time.

    uvicorn limits only the idle time of a connection, so a client that sends a byte now and then keeps it open.
    This class runs a timer while bytes arrive that no response waits for: headers, or a body that was refused
    unread. `RequestGuard` limits the time of other bodies.
    """

    def __init__(self, *arguments: Any, header_seconds: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._header_seconds = header_seconds
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        else:
            self._start_timer()

    def on_response_complete(self) -> None:
        unread = self.cycle.more_body
        super().on_response_complete()
        if unread:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        if self._timer is None:  # further bytes do not extend the time
            self._timer = self.loop.call_later(self._header_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _ServerWithoutSignals(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
