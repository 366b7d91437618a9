"""A PostgreSQL server to measure on: one of our own, as the tests make it, or one that is there already."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

__all__ = ["Server", "running", "throw_away"]

_PLACES = ("/var/tmp", None)  # /tmp may be a disk in memory, /var/tmp survives a restart and so is none
_SETTINGS = {"fsync": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}
_DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
_number = count(1)


@dataclass(frozen=True, slots=True)
class Server:
    """A server, by a superuser's URL. `process` is its first one, if it runs on this machine."""

    url: str
    version: str
    process: int | None

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database on a server that has nothing left to write; yield its URL."""
        name = f"redrive_bench_{os.getpid()}_{next(_number)}"
        asyncio.run(_do(self.url, f"CREATE DATABASE {name} TEMPLATE template0", "CHECKPOINT"))
        try:
            yield urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))
        finally:
            asyncio.run(_do(self.url, f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def throw_away() -> Iterator[Server]:
    """Run the newest installed PostgreSQL, or that of the wheel, with fsync."""
    from tests.cluster import NONE_FOUND, Cluster, startable

    if not startable():
        raise SystemExit(NONE_FOUND)
    programs = startable()[0].programs
    assert programs is not None
    place = next(place for place in _PLACES if place is None or os.access(place, os.W_OK))
    folder = Path(tempfile.mkdtemp(prefix="redrive-bench-", dir=place))
    folder.chmod(0o755)  # the server runs as another user if we are root
    cluster = Cluster(programs, folder, settings=_SETTINGS)
    try:
        cluster.create()
        cluster.start()
        yield running(cluster.url())
    finally:
        cluster.stop("fast")
        shutil.rmtree(folder, ignore_errors=True)


def running(url: str) -> Server:
    """Use a server that is running; refuse it unless its commits wait for the disk."""
    return asyncio.run(_look_at(url))


async def _look_at(url: str) -> Server:
    con = await asyncpg.connect(url)
    try:
        settings = {name: await con.fetchval(f"SHOW {name}") for name in ("server_version", *_DURABLE)}
        lax = [f"{name}={settings[name]}" for name in _DURABLE if settings[name] != "on"]
        if lax:
            raise SystemExit(f"not durable: {', '.join(lax)}")
        return Server(url, settings["server_version"], _parent(con.get_server_pid()))
    finally:
        await con.close()


async def _do(url: str, *statements: str) -> None:
    con = await asyncpg.connect(url)
    try:
        for statement in statements:
            await con.execute(statement)
    finally:
        await con.close()


def _parent(backend: int) -> int | None:
    """Return the server's first process, if the server runs on this machine."""
    try:
        name, _, rest = Path(f"/proc/{backend}/stat").read_text().rpartition(")")
    except OSError:
        return None
    return int(rest.split()[1]) if "postgres" in name else None
