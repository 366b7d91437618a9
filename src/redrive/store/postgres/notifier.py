"""The notifier between processes: LISTEN and NOTIFY, on a connection apart from the pool."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import asyncpg

from redrive.store.postgres.connection import Address, connect
from redrive.store.postgres.pool import ConnectionPool

log = logging.getLogger("redrive.store")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds between two attempts to listen
_NOTIFY_INTERVAL = 0.002  # seconds between two notifications: more of them would wake no process sooner


class ChangeNotifier:
    """Notifies other processes of changes, and listens to them, by LISTEN and NOTIFY.

    This is a hint only: polling finds what a notification missed.
    """

    def __init__(self, address: Address, pool: ConnectionPool) -> None:
        self._address = address
        self._pool = pool
        self._channel = f"redrive_{address.schema}"
        self._name = uuid.uuid4().hex
        self._heard = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._notifying: asyncio.Task[None] | None = None
        self._again = False
        self._lost = asyncio.Event()

    async def changed(self) -> None:
        """Return when another process has notified since the last return; never, if this process cannot listen."""
        await self._heard.wait()
        self._heard.clear()

    def open(self) -> None:
        """Start listening, if there is a direct connection to listen on."""
        if self._address.listen_url is not None:
            self._listening = asyncio.create_task(self._listen(), name="redrive listener")

    async def close(self) -> None:
        """Stop listening and notifying."""
        tasks = [task for task in (self._listening, self._notifying) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def notify(self) -> None:
        """Notify other processes soon that there may be work."""
        if not self._address.notifies:
            return
        if self._notifying is not None and not self._notifying.done():
            self._again = True
            return
        self._notifying = asyncio.create_task(self._send_notify(), name="redrive notifier")

    async def _send_notify(self) -> None:
        while True:
            self._again = False
            try:
                async with self._pool.connection() as connection:
                    await connection.con.execute("SELECT pg_notify($1, $2)", self._channel, self._name)
            except Exception as error:
                log.debug("could not notify other processes; they find the work by polling: %s", error)
            if not self._again:
                return
            await asyncio.sleep(_NOTIFY_INTERVAL)

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            con: asyncpg.Connection | None = None
            try:
                con = await connect(self._address, {}, url=self._address.listen_url)
                self._lost.clear()
                con.add_termination_listener(lambda _: self._lost.set())
                await con.add_listener(self._channel, self._on_notify)
                pause = _FIRST_PAUSE
                self._heard.set()
                await self._lost.wait()
                log.info("lost the connection that listens for notifications; connecting again")
            except Exception as error:
                log.info("could not listen for notifications; polling continues: %s", error)
            finally:
                if con is not None:
                    con.terminate()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _on_notify(self, _con: Any, _pid: int, _channel: str, sender: object) -> None:
        if sender != self._name:  # this process knows about its own changes
            self._heard.set()
