"""A real Chromium for the tests, on any machine.

REDRIVE_TEST_CHROMIUM names the program to use. If it is not set, an installed Chromium is used, or one that
Playwright has downloaded before. If there is none, one is installed: Debian's package for root, otherwise
Playwright's build, which needs the network. If that fails, the tests fail with instructions; none is skipped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Playwright

NONE_FOUND = (
    "Chromium was not found and could not be installed, but the tests of the pages need it. Choose one: "
    "install it (Debian: apt install chromium); `.venv/bin/playwright install --with-deps chromium`; or set "
    "REDRIVE_TEST_CHROMIUM to the path of one"
)
_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_ELSEWHERE = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_PATIENCE = 600


def program(playwright: Playwright) -> Path:
    """Return the Chromium to use. If there is none, one of the waiting processes installs it first."""
    if found := _found(playwright):
        return found
    lock = os.open(Path(tempfile.gettempdir()) / "redrive-chromium.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _found(playwright) or _got(playwright)
    finally:
        os.close(lock)
    if found is None:
        pytest.fail(NONE_FOUND, pytrace=False)
    return found


def _found(playwright: Playwright) -> Path | None:
    named = os.environ.get("REDRIVE_TEST_CHROMIUM")
    own = playwright.chromium.executable_path
    known = [named] if named else [*map(shutil.which, _NAMES), *_ELSEWHERE, own]
    return next((Path(each) for each in known if each and os.access(each, os.X_OK)), None)


def _got(playwright: Playwright) -> Path | None:
    """Install a Chromium, with the preferred method first."""
    ways = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install = "apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium"
        ways.insert(0, ["sh", "-c", install])
    for way in ways:
        with suppress(subprocess.TimeoutExpired, OSError):
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(way, env=quiet, capture_output=True, check=False, timeout=_PATIENCE)
        if found := _found(playwright):
            return found
    return None
