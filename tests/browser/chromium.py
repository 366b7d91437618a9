"""A real Chromium for the tests, on any machine.

REDRIVE_TEST_CHROMIUM names the program to use. If it is not set, the headless shell is preferred: it is Chromium
without windows and menus, and needs little more than half the processor time. For root it is installed from Debian's
package. Otherwise an installed Chromium is used, or Playwright's build, which needs the network. If there is none, the
tests fail with instructions; none is skipped.
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
    "install it (Debian: apt install chromium-headless-shell); `.venv/bin/playwright install --with-deps chromium`; "
    "or set REDRIVE_TEST_CHROMIUM to the path of one"
)
_SHELL = "chromium-headless-shell"
_NAMES = (_SHELL, "chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_ELSEWHERE = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_PATIENCE = 300


def program(playwright: Playwright) -> Path:
    """Return the Chromium to use. One of the waiting processes installs what is missing."""
    if named := os.environ.get("REDRIVE_TEST_CHROMIUM"):
        return Path(named)
    lock = os.open(Path(tempfile.gettempdir()) / "redrive-chromium.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shutil.which(_SHELL) and os.geteuid() == 0 and shutil.which("apt-get"):
            _run("sh", "-c", f"apt-get update -qq; apt-get install -y -qq --no-install-recommends {_SHELL}")
        if _find(playwright) is None:
            _run(sys.executable, "-m", "playwright", "install", "chromium")
        found = _find(playwright)
    finally:
        os.close(lock)
    if found is None:
        pytest.fail(NONE_FOUND, pytrace=False)
    return found


def _find(playwright: Playwright) -> Path | None:
    known = [*map(shutil.which, _NAMES), *_ELSEWHERE, playwright.chromium.executable_path]
    return next((Path(each) for each in known if each and os.access(each, os.X_OK)), None)


def _run(*command: str) -> None:
    """Run an installer. Its failure shows in what is found afterwards."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with suppress(subprocess.TimeoutExpired, OSError):
        subprocess.run(command, env=quiet, capture_output=True, check=False, timeout=_PATIENCE)
