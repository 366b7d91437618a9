"""What the browser tests share: a server to look at, somebody who looks, and what they must not see."""

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
    """A server with a worker, on a store of its own: where it is, and what is in it."""

    address: str
    folder: Path
    ids: dict[str, str]
    cookies: dict[str, list[Any]] = field(default_factory=dict)

    def letter(self, name: str) -> str:
        """The id of the letter of a run that `browser_shop` names so."""
        return f"dl-{self.ids[name]}"


class Dev:
    """`redrive dev browser_shop:app` in a folder; always ended."""

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
        """Where it listens, once it does."""
        while True:
            line = self._queue.get(timeout=PATIENCE)
            assert line, f"it ended:\n{''.join(self._lines)}"
            if "http://" in line:
                place = urlsplit(line[line.index("http://") :].split()[0])
                return f"http://{place.netloc}"

    def end(self) -> None:
        """Stop it as Ctrl-C does, or by force."""
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
    """Opens pages for people, and remembers what no page may do: fail, complain, or call anybody else."""

    browser: Browser
    shop: Shop
    wrong: list[str] = field(default_factory=list)
    _contexts: list[BrowserContext] = field(default_factory=list)

    def stranger(self, *, phone: bool = False, axe: bool = False, **options: Any) -> Page:
        """A page of somebody who has not signed in. `options` are those of a browser context."""
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
        """A page of somebody who has signed in."""
        page = self.stranger(**options)
        if email not in self.shop.cookies:  # checking a password takes a while, on purpose
            login = {"email": email, "password": PASSWORD}
            answer = page.context.request.post("/api/v1/login", data=login)
            assert answer.ok, answer.text()
            self.shop.cookies[email] = page.context.cookies()
        page.context.add_cookies(self.shop.cookies[email])
        return page

    def end(self) -> None:
        """Close every page; fail if one of them misbehaved."""
        for context in self._contexts:
            context.close()
        assert self.wrong == []

    def _heard(self, page: Page, said: Any) -> None:
        refused = "Failed to load resource" in said.text  # an answer that is no success, which tests provoke
        if said.type == "error" and not refused:
            self.wrong.append(f"{page.url}: {said.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.shop.address, "data:", "blob:")):
            self.wrong.append(f"a request to {request.url}")


BY_LOOKS = ("color-contrast", "scrollable-region-focusable", "target-size")
"""The rules of axe that depend on colours and on the size of the window; the others do not."""


def complaints(page: Page, rules: tuple[str, ...] = ()) -> list[str]:
    """What axe finds wrong with a page that has it, one line for each element.

    By all of its rules; or by these, and in what is the page's own, as the frame is that of every page.
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
    """By how many pixels a page is wider than its window."""
    wide: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wide
