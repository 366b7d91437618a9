"""LISTEN and NOTIFY: the bell between processes. A hint only; polling finds everything a ring missed.

The listener has a direct connection of its own, comes back by itself when it is lost, and rings once
then, for whatever it did not hear. The ringer sends after the commit it announces, never in it, and
one at a time: what is announced while a ring is under way shares the next.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import asyncpg

from redrive.store.postgres.address import Address
from redrive.store.postgres.line import connect
from redrive.store.postgres.lines import Lines

__all__ = ["Bell"]

log = logging.getLogger("redrive.store")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_BETWEEN_RINGS = 0.002  # whoever rings all the time wakes nobody sooner by ringing more often


class Bell:
    """Hears others ring; rings for them."""

    def __init__(self, address: Address, lines: Lines) -> None:
        self._address = address
        self._lines = lines
        self._channel = f"redrive_{address.schema}"
        self._name = uuid.uuid4().hex
        self._heard = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._again = False
        self._lost = asyncio.Event()

    async def changed(self) -> None:
        """Return when somebody rang since the last time; never, where there is nothing to listen on."""
        await self._heard.wait()
        self._heard.clear()

    def open(self) -> None:
        """Begin to listen, if there is a direct connection to listen on."""
        if self._address.bell is not None:
            self._listening = asyncio.create_task(self._listen(), name="redrive listener")

    async def close(self) -> None:
        """Listen and ring no longer."""
        tasks = [task for task in (self._listening, self._ringing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def ring(self) -> None:
        """Tell other processes, some time soon, that there may be work."""
        if not self._address.rings:
            return
        if self._ringing is not None and not self._ringing.done():
            self._again = True
            return
        self._ringing = asyncio.create_task(self._ring(), name="redrive bell")

    async def _ring(self) -> None:
        while True:
            self._again = False
            try:
                async with self._lines.line() as line:
                    await line.con.execute("SELECT pg_notify($1, $2)", self._channel, self._name)
            except Exception as error:
                log.debug("the bell was not rung, polling will do: %s", error)
            if not self._again:
                return
            await asyncio.sleep(_BETWEEN_RINGS)

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            con: asyncpg.Connection | None = None
            try:
                con = await self._subscribed()
                pause = _FIRST_PAUSE
                self._heard.set()
                await self._lost.wait()
                log.info("the bell's connection was lost; listening again")
            except Exception as error:
                log.info("the bell cannot listen, polling will do: %s", error)
            finally:
                if con is not None:
                    con.terminate()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _subscribed(self) -> asyncpg.Connection:
        con = await connect(self._address, {}, url=self._address.bell)
        try:
            self._lost.clear()
            con.add_termination_listener(lambda _: self._lost.set())
            await con.add_listener(self._channel, self._hear)
        except BaseException:
            con.terminate()
            raise
        return con

    def _hear(self, _con: Any, _pid: int, _channel: str, ringer: object) -> None:
        if ringer != self._name:  # within this process everybody knows already
            self._heard.set()
