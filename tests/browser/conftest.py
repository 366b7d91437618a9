"""A browser and a server for each module; every page is checked for errors."""

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
    """Fill a store with data for all pages; return its folder, which tests copy."""
    folder = tmp_path_factory.mktemp("shop")
    command = [sys.executable, str(HERE / "browser_shop.py"), f"sqlite:///{folder}/shop.db"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "ids.json").write_text(done.stdout.splitlines()[-1])
    return folder


@pytest.fixture(scope="module")
def shop(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Start a server on a copy of the filled store."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copytree(filled, folder, dirs_exist_ok=True)
    server = Dev(folder)
    try:
        yield Shop(server.address(), folder, json.loads((folder / "ids.json").read_text()))
    finally:
        server.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a Chromium for one module only: while it runs, this thread cannot run another event loop."""
    with sync_playwright() as playwright:
        program = chromium.program(playwright)
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def looking(browser: Browser, shop: Shop) -> Iterator[Looking]:
    """Return a factory of pages; fail at the end of the test if a page recorded an error."""
    eyes = Looking(browser, shop)
    yield eyes
    eyes.end()
