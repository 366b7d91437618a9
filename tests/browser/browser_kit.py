"""Helpers for the browser tests: a server with data, signed-in pages, and checks that hold on every page."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import axe_playwright_python
from playwright.sync_api import Browser, BrowserContext, Page, Request, ViewportSize

from redrive.cli.demo.shop import PASSWORD

HERE = Path(__file__).parent
PATIENCE = 60.0
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
OWNER, ACCOUNTANT, CLERK = "owner@shop.example", "accounts@shop.example", "counter@shop.example"
VISITOR = "visitor@market.example"
_AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@dataclass
class Shop:
    """A server with a worker on a separate store: its address, folder and ids."""

    address: str
    folder: Path
    ids: dict[str, str]
    cookies: dict[str, list[Any]] = field(default_factory=dict)

    def letter(self, name: str) -> str:
        """Return the id of the letter of the run with this name in `browser_shop`."""
        return f"dl-{self.ids[name]}"


class Dev:
    """A `redrive dev browser_shop:app` process in a folder. Its user must call `end`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "redrive", "dev", "browser_shop:app", "--port", "0"]
        self._process = subprocess.Popen(
            [*command, "--url", f"sqlite:///{folder}/shop.db"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(HERE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._queue: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def address(self) -> str:
        """Wait until the server listens; return its address."""
        while True:
            line = self._queue.get(timeout=PATIENCE)
            assert line, f"the server ended:\n{''.join(self._lines)}"
            if "http://" in line:
                place = urlsplit(line[line.index("http://") :].split()[0])
                return f"http://{place.netloc}"

    def end(self) -> None:
        """Stop the server with SIGINT; kill it if it does not stop."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            self._queue.put(line)
        self._queue.put("")


@dataclass
class Looking:
    """Pages for users. Script errors, console errors and requests to other hosts on any page are recorded."""

    browser: Browser
    shop: Shop
    wrong: list[str] = field(default_factory=list)
    _contexts: list[BrowserContext] = field(default_factory=list)

    def stranger(self, *, phone: bool = False, axe: bool = False, **options: Any) -> Page:
        """Open a page for a user who has not signed in. `options` are those of a browser context."""
        view: dict[str, Any] = {"viewport": PHONE if phone else DESKTOP, "has_touch": phone, "locale": "en-GB"}
        context = self.browser.new_context(base_url=self.shop.address, **{**view, **options})
        if axe:
            context.add_init_script(_AXE)
        context.set_default_timeout(PATIENCE * 1000)
        self._contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.wrong.append(f"{page.url}: {error}"))
        page.on("console", lambda said: self._heard(page, said))
        page.on("request", self._asked)
        return page

    def person(self, email: str, **options: Any) -> Page:
        """Open a page for a user who has signed in."""
        page = self.stranger(**options)
        if email not in self.shop.cookies:  # Password hashing is slow on purpose.
            login = {"email": email, "password": PASSWORD}
            answer = page.context.request.post("/api/v1/login", data=login)
            assert answer.ok, answer.text()
            self.shop.cookies[email] = page.context.cookies()
        page.context.add_cookies(self.shop.cookies[email])
        return page

    def end(self) -> None:
        """Close every page; fail if a page recorded an error."""
        for context in self._contexts:
            context.close()
        assert self.wrong == []

    def _heard(self, page: Page, said: Any) -> None:
        refused = "Failed to load resource" in said.text  # Tests cause error responses on purpose.
        if said.type == "error" and not refused:
            self.wrong.append(f"{page.url}: {said.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.shop.address, "data:", "blob:")):
            self.wrong.append(f"a request to {request.url}")


BY_LOOKS = ("color-contrast", "scrollable-region-focusable", "target-size")
"""The rules of axe that depend on colours and on the size of the window; the others do not."""


def complaints(page: Page, rules: tuple[str, ...] = ()) -> list[str]:
    """Return the violations that axe finds on a page with its script, one line for each element.

    Without `rules`, all rules check the whole page. With `rules`, only those check the main part of the page, because
    the rest is the same on every page.
    """
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = list(rules)
    found = page.evaluate(
        "options => axe.run(options.runOnly ? document.querySelector('main') : document, options)", options
    )
    return [
        f"{urlsplit(page.url).path}: {each['id']}: {node['target']}: {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def overflow(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    wide: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wide
