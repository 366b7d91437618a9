"""The demo's server, beside its view: the dashboard and the API, for as long as the demo goes on."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType

from redrive.app import Redrive
from redrive.cli.demo.people import PASSWORD, PEOPLE, let_in
from redrive.cli.server import HOST, PORT, needed
from redrive.errors import ConfigurationError

__all__ = ["Dashboard"]


class Dashboard:
    """Serves an open app in this process. Without the extra for it the demo goes on and says so.

    Where the usual port is taken, a free one will do; a port that was asked for is insisted on.
    """

    def __init__(self, app: Redrive, port: int | None) -> None:
        self.lines: list[str] = []
        self._app = app
        self._port = port
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Dashboard:
        try:
            with needed():
                listening = self._bind()
                await let_in(self._app)
        except ConfigurationError as error:
            if self._port is not None:
                raise
            self.lines = [f"the dashboard is not served: {error}"]
            return self
        self._serving = asyncio.create_task(self._serve(listening))
        host, port = listening.getsockname()
        self.lines = [f"http://{host}:{port}  sign in as {PEOPLE[0].email}, password {PASSWORD}"]
        self.lines += [f"    or as {each.email}, {each.role} of {each.tenant}" for each in PEOPLE[1:]]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._serving is not None:
            await self._serving

    def check(self) -> None:
        """Raise what went wrong with the server."""
        if self._serving is not None and self._serving.done():
            self._serving.result()

    async def _serve(self, listening: socket.socket) -> None:
        from redrive.server.process import Server

        with listening:
            await Server(self._app, listening).serve(self._stop, lambda _: None)

    def _bind(self) -> socket.socket:
        from redrive.server.process import bind

        try:
            return bind(HOST, PORT if self._port is None else self._port)
        except ConfigurationError:
            if self._port is not None:
                raise
            return bind(HOST, 0)
