"""A server in the place of an app: all that commands ask of one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from redrive.errors import ConfigurationError
from redrive.remote.client import Address, Client
from redrive.remote.desk import (
    RemoteAudit,
    RemoteCircuits,
    RemoteDeadLetters,
    RemoteLedger,
    RemoteNotifications,
    RemoteOutbox,
    RemotePeople,
    RemotePolicies,
    RemoteRuns,
    RemoteSchedules,
    RemoteSinks,
    RemoteStarter,
    RemoteViews,
    RemoteWorkflows,
    ledger,
)

TOKEN = "REDRIVE_TOKEN"
"""The variable that holds the credential; never an option, which other users of the machine could see."""


class Remote:
    """A server, with the calls of an app that is open without a worker.

    `steps` are those of an app whose code is at hand, if one was named.
    """

    def __init__(self, url: str, token: str | None = None, steps: Mapping[str, Any] | None = None) -> None:
        address = Address.read(url)
        client = Client(address, os.environ.get(TOKEN, "") if token is None else token)
        self._client = client
        self._home: str | None = None
        self.registered_steps = steps or {}
        self.runs = RemoteRuns(client)
        self.starter = RemoteStarter(client)
        self.dlq = RemoteDeadLetters(client)
        self.circuits = RemoteCircuits(client)
        self.outbox = RemoteOutbox(client)
        self.sinks = RemoteSinks(client)
        self.policies = RemotePolicies(client, self.home)
        self.workflows = RemoteWorkflows(client)
        self.schedules = RemoteSchedules(client)
        self.views = RemoteViews(client)
        self.audit = RemoteAudit(client)
        self.notifications = RemoteNotifications(client)
        self.people = RemotePeople(client)

    async def saga(self, run_id: str, *, tenant: str | None = None) -> RemoteLedger:
        """The ledger of a run."""
        return await ledger(self._client, run_id, tenant)

    @property
    def address(self) -> str:
        """Where the server is."""
        return str(self._client.address)

    async def me(self) -> dict[str, Any]:
        """Whoever the token belongs to, and what that allows."""
        found: dict[str, Any] = await self._client.get("me")
        return found

    async def home(self) -> str:
        """The tenant that is meant where none is named."""
        if self._home is None:
            self._home = str((await self.me())["tenant"])
        return self._home

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Remote]:
        """The server for as long as a command takes."""
        try:
            yield self
        finally:
            self._client.close()

    @property
    def settings(self) -> NoReturn:
        """What an app has and a server shows to nobody."""
        self._refuse()

    @property
    def runtime(self) -> NoReturn:
        """The same."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            f"this works on a database itself, and {self._client.address} is a server: name the database with --url"
        )
