"""What tests of the pages share: a browser that keeps cookies, and what may never stand on a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import httpx2
from server_kit import World

ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def browser(world: World, token: str | None = None, **more: Any) -> httpx2.Client:
    """Somebody with a browser: cookies are kept, redirects are looked at one by one."""
    headers = {**ORIGIN, "Accept-Language": "en", **more.pop("headers", {})}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return httpx2.Client(base_url=f"{world.address}/app", headers=headers, timeout=30.0, **more)


def of_role(world: World, role: str, tenant: str = "acme", **more: Any) -> httpx2.Client:
    """Somebody with this role, signed in by a token."""
    return browser(world, world.tokens[tenant, role], **more)


def once(page: str) -> str:
    """The word of the first form that is carried out once."""
    found = re.search(r'name="once" value="([^"]+)"', page)
    assert found, "no form with a word of its own on this page"
    return found[1]


class Looked(HTMLParser):
    """All that a page holds, for rules that hold on every page."""

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
        """All that can be read."""
        return " ".join(" ".join(self.words).split())
