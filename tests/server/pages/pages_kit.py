"""Helpers for the tests of the pages: a client that keeps cookies, and a parser for rules of every page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import httpx2
from server_kit import World

ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def browser(world: World, token: str | None = None, **more: Any) -> httpx2.Client:
    """Return a client that behaves like a browser: it keeps cookies, and does not follow redirects by itself."""
    headers = {**ORIGIN, "Accept-Language": "en", **more.pop("headers", {})}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return httpx2.Client(base_url=f"{world.address}/app", headers=headers, timeout=30.0, verify=False, **more)


def of_role(world: World, role: str, tenant: str = "acme", **more: Any) -> httpx2.Client:
    """Return a client that signs in with a token of this role."""
    return browser(world, world.tokens[tenant, role], **more)


def once(page: str) -> str:
    """Return the idempotency key of the first form on the page that has one."""
    found = re.search(r'name="once" value="([^"]+)"', page)
    assert found, "no form on this page has an idempotency key"
    return found[1]


class Looked(HTMLParser):
    """Tags, inline code, links and text of a page, for rules that hold on every page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.inline: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self._in_script = tag == "script"
        wrong = [name for name in given if name == "style" or name.startswith("on")]
        self.inline += [f"{tag}[{name}]" for name in wrong] + (["style"] if tag == "style" else [])
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.inline.append("script")
        self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    @property
    def text(self) -> str:
        """Return the visible text."""
        return " ".join(" ".join(self.words).split())
