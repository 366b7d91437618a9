"""One browser and one server for each module; every page is checked for what it must not do."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from browser_kit import HERE, PATIENCE, Dev, Looking, Shop
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store in which something of everything happened; to be copied."""
    folder = tmp_path_factory.mktemp("shop")
    command = [sys.executable, str(HERE / "browser_shop.py"), f"sqlite:///{folder}/shop.db"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "ids.json").write_text(done.stdout.splitlines()[-1])
    return folder


@pytest.fixture(scope="module")
def shop(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A server on a copy of that store."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(filled, folder, dirs_exist_ok=True)
    server = Dev(folder)
    try:
        yield Shop(server.address(), folder, json.loads((folder / "ids.json").read_text()))
    finally:
        server.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium. Not for longer than a module: while it runs, this thread can run no other event loop."""
    with sync_playwright() as playwright:
        program = chromium.program(playwright)
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def looking(browser: Browser, shop: Shop) -> Iterator[Looking]:
    """Opens pages; at the end of the test none of them may have misbehaved."""
    eyes = Looking(browser, shop)
    yield eyes
    eyes.end()
