"""The pictures of the README, taken from the real pages.

REDRIVE_PICTURES=docs/images ./dev test tests/browser/test_browser_pictures.py     takes them anew
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from browser_kit import ACCOUNTANT, Looking
from playwright.sync_api import expect

PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "overview": ("/app/", {}),
    "letter": ("/app/admin/dlq/dl-{wrong}", {}),
    "run": ("/app/runs/{stuck}", {"color_scheme": "dark"}),
    "phone": ("/app/admin/dlq", {"phone": True}),
}
ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "docs/guides/dashboard.md")
LARGEST = 250_000  # bytes


def test_each_picture_of_the_readme_can_be_taken(looking: Looking, tmp_path: Path) -> None:
    folder = Path(os.environ.get("REDRIVE_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    for name, (path, look) in PICTURES.items():
        page = looking.person(ACCOUNTANT, **look)
        page.goto(path.format(**looking.shop.ids))
        expect(page.locator("#live")).to_be_visible()
        page.screenshot(path=folder / f"{name}.png", animations="disabled")
        size = (folder / f"{name}.png").stat().st_size
        assert 10_000 < size < LARGEST, name
        assert any(f"images/{name}.png" in page.read_text(encoding="utf-8") for page in PAGES), name
