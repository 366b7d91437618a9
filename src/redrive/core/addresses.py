"""Where things are: the addresses of the API and of the pages, below wherever a server is mounted."""

from __future__ import annotations

from urllib.parse import quote

__all__ = ["API", "PAGES", "circuit_page", "letter_page", "run_page"]

API = "/api/v1"
PAGES = "/app"


def run_page(run_id: str) -> str:
    """The page of one run."""
    return f"{PAGES}/runs/{run_id}"


def letter_page(letter_id: str) -> str:
    """The page of one dead letter."""
    return f"{PAGES}/admin/dlq/{letter_id}"


def circuit_page(key: str) -> str:
    """The page of one circuit, whose key may hold anything."""
    return f"{PAGES}/circuits/one?key={quote(key, safe='')}"
