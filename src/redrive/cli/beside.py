"""The API beside a worker, in one process, for as long as the worker works."""

from __future__ import annotations

import asyncio

import click

from redrive.app import Redrive
from redrive.cli.serve import Stop
from redrive.cli.server import OWNER, needed, welcome
from redrive.errors import RedriveError

__all__ = ["Beside"]

_LOOK = 0.03


class Beside:
    """Serves the API until the worker stops. What keeps it from that is said, and the worker goes on."""

    def __init__(self, app: Redrive, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._task: asyncio.Task[None] | None = None

    def begin(self, stop: Stop) -> None:
        """Serve from when the worker works; called on its loop."""
        self._task = asyncio.create_task(self._serve(stop))

    async def _serve(self, stop: Stop) -> None:
        while stop.worker is None:  # noqa: ASYNC110 - the worker sets it, and knows of no listeners
            await asyncio.sleep(_LOOK)
        try:
            with needed():
                from redrive.server.process import Server, bind

                with bind(self._host, self._port) as socket:
                    await welcome(self._app, OWNER)
                    await Server(self._app, socket).serve(stop.asked, _announce)
        except RedriveError as error:
            click.echo(f"the API is not served: {error}")


def _announce(address: str) -> None:
    click.echo(f"the dashboard: {address}/")
    click.echo(f"the API: {address}/api/docs")
