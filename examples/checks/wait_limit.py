"""A limit of three days passes at exactly three days. An event a microsecond earlier wins, a later one stays unread."""

from __future__ import annotations

import os
from datetime import timedelta

import kit

import redrive
from redrive import Redrive
from redrive.errors import WaitExpired
from redrive.store import open_store
from redrive.store.encryption.keyring import Keyring
from redrive.testing import VirtualClock, engine

LIMIT, MICROSECOND = timedelta(days=3), timedelta(microseconds=1)


async def check(workers: kit.Workers) -> str:
    workers.stop()
    app = Redrive("sqlite:///:memory:")

    @app.workflow
    async def approve() -> str:
        try:
            return str(await redrive.wait_for("approved", timeout=LIMIT))
        except WaitExpired:
            await redrive.sleep("1h")
            return "expired"

    clock = VirtualClock(seed=os.getpid())  # other ids than those of an earlier check of this database
    # The other checks share the database, and their notifications are encrypted.
    keys = Keyring.parse(os.environ["REDRIVE_ENCRYPTION_KEYS"], None)
    store = open_store(kit.URL if kit.URL.startswith("postgres") else "sqlite:///:memory:", clock, keys)
    async with engine(app, store=store, clock=clock) as e:
        in_time, late = await approve.start(), await approve.start()
        await e.settle()
        await e.advance(LIMIT - MICROSECOND)
        await app.runs.send(in_time.id, "approved", "ann")
        assert (await e.finish(in_time)).result == "ann"
        await e.advance(2 * MICROSECOND)
        await app.runs.send(late.id, "approved", "ann")
        assert (await e.finish(late)).result == "expired"
        (unread,) = await app.runs.events(late.id)
        assert unread.status == "UNREAD"
    return "an event before the limit wins; the limit fires at exactly three days"


if __name__ == "__main__":
    kit.main(check)
