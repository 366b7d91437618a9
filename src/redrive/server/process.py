"""A server in this process: bound, announced, and stopped in good order with streams open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn

from redrive.app import Redrive
from redrive.errors import ConfigurationError
from redrive.server.app import build
from redrive.server.limits import Limits

__all__ = ["Server", "allow_many_connections", "bind"]

_FILES = 65_536
_BACKLOG = 2048

GRACE = 10
"""Seconds that requests under way have to end once the server is told to stop."""


def bind(host: str, port: int) -> socket.socket:
    """A socket to listen on; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: asyncio sends without delay only on sockets that say they are TCP, and an answer
    # in two parts would wait 40 ms for its second one.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        return listening
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port} ({getattr(error, 'strerror', None) or error}): name another "
            "place with --host and --port; port 0 takes a free one"
        ) from None


def allow_many_connections() -> None:
    """Let this process have as many open files as the system lets it: each stream is one."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Server:
    """The API of an open app on a socket."""

    def __init__(self, app: Redrive, at: socket.socket, limits: Limits | None = None) -> None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what it does in good order is said here
        api = build(app, limits=limits)
        self._service = api.state.service
        self._socket = at
        self._uvicorn = _Quiet(
            uvicorn.Config(
                api,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=65,
                timeout_graceful_shutdown=GRACE,
                limit_concurrency=None,
                h11_max_incomplete_event_size=32 * 1024,
                proxy_headers=False,
            )
        )

    @property
    def address(self) -> str:
        """Where it listens, as a URL."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def serve(self, until: asyncio.Event, announce: Callable[[str], None]) -> None:
        """Answer requests until told to stop; then end the streams and let requests under way end."""
        serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._socket]))
        stopping = asyncio.create_task(until.wait())
        try:
            while not self._uvicorn.started and not serving.done():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
            announce(self.address)
            await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            self._service.stop()
            self._uvicorn.should_exit = True
            await serving


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
