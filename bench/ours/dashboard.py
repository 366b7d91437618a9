"""The dashboard while a thousand changes a second arrive: pages, a click in a browser; and the first load."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from bench.ours.http import served
from bench.ours.job import Job

__all__ = ["dashboard"]

RUNS = 500  # a second; each comes and ends
PAGES = ("/runs", "/runs?kind=good", "/admin/dlq", "/")
CLICKS = 10
_LOADED = re.compile(r'(?:href|src)="([^"]*/static/[^"]+)"')
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")


async def dashboard(job: Job) -> dict[str, float]:
    """Measure the pages under load, in ms, and the size of the first page."""
    async with served(job.url) as there:
        site = str(there.client.base_url).partition("/api/")[0]
        figures: dict[str, float] = {}
        with _changing(job.url) as made:
            taken = [ms for page in PAGES for ms in await _looks(there.client, f"{site}/app{page}", job.size)]
            figures |= {"busy": statistics.median(taken), "busy_slow": statistics.quantiles(taken, n=100)[-1]}
            figures |= await _clicks(site, there.client.headers["Authorization"])
            figures["first_load"] = await _first_load(there.client, site)
        return {**figures, "changes": 2 * made[0]}


@contextmanager
def _changing(url: str) -> Iterator[list[float]]:
    """Run a process that changes runs all the time; afterwards, give its rate per second."""
    command = [sys.executable, "-m", "bench.ours.changes", url, str(RUNS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        made: list[float] = []
        try:
            yield made
        finally:
            process.stdin.close()
            made.append(float(process.stdout.readline()))


async def _looks(client: httpx2.AsyncClient, url: str, times: int) -> list[float]:
    taken: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        (await client.get(url)).raise_for_status()
        taken.append((time.perf_counter() - begun) * 1000)
    print(f"{url}: median {statistics.median(taken):.1f} ms, slowest {max(taken):.1f} ms", file=sys.stderr)
    return taken


async def _first_load(client: httpx2.AsyncClient, site: str) -> float:
    """Return the size of everything that a browser fetches for the first page, in kB."""
    page = await client.get(f"{site}/app/")
    sizes = [page.num_bytes_downloaded]
    for path in dict.fromkeys(_LOADED.findall(page.raise_for_status().text)):
        sizes.append((await client.get(site + path)).raise_for_status().num_bytes_downloaded)
    return sum(sizes) / 1000


async def _clicks(site: str, authorization: str) -> dict[str, float]:
    """From a click on a row of a list that changes to the run's page, in a Chromium, if there is one."""
    program = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if program is None:
        print("no Chromium is installed, so no click was measured", file=sys.stderr)
        return {}
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = await browser.new_page(extra_http_headers={"Authorization": authorization})
        taken: list[float] = []
        for _ in range(CLICKS):
            await page.goto(f"{site}/app/runs")
            await page.locator(".pill:visible").wait_for()  # so it hears of changes, and moves no row
            row = page.locator("#runs tbody a").first
            key = await page.locator("#runs tbody tr").first.get_attribute("data-key")
            begun = time.perf_counter()
            await row.click()
            await page.wait_for_url(f"**/runs/{key}")
            await page.locator("#steps").wait_for()
            taken.append((time.perf_counter() - begun) * 1000)
        await browser.close()
    print(f"clicks: {', '.join(f'{ms:.0f}' for ms in taken)} ms", file=sys.stderr)
    return {"click": statistics.median(taken), "click_slow": max(taken)}
