"""The dashboard: every page with many failures; pages and clicks while changes arrive; and the first load."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx2

from bench.ours.copies import copy_letters, copy_rows, vacuum
from bench.ours.http import TENANT, served, shop
from bench.ours.job import Job
from redrive import RunFailed

__all__ = ["dashboard", "pages"]

RUNS = 500  # a second; each comes and ends
BUSY_PAGES = ("/runs", "/runs?kind=good", "/admin/dlq", "/")
CLICKS = 10
ALL_PAGES = (
    "/", "/?range=7d", "/admin/dlq", "/admin/dlq?sort=newest", "/admin/dlq/causes/cause-7",
    "/admin/dlq?view=items", "/admin/dlq?view=items&limit=100", "/admin/dlq?view=items&order=oldest",
    "/admin/dlq?view=items&workflow=fulfil", "/admin/dlq?view=items&code=non_retryable", "/admin/dlq?status=ALL",
    "/admin/dlq?fingerprint=cause-7", "/admin/dlq?view=items&since=24h", "/admin/dlq?text=refused",
    "/admin/dlq?text=nowhere", "/admin/dlq/{letter}", "/admin/dlq/{letter}/replay", "/admin/bulk-replays",
    "/admin/bulk-replays/new?all=yes", "/runs", "/runs?kind=person", "/runs?kind=good", "/runs?workflow=fulfil",
    "/runs?since=24h", "/runs/{run}", "/search?q=c-77", "/search?q=refused", "/search/suggestions?q=ref",
    "/queues", "/circuits", "/outbox", "/workers", "/notifications", "/workflows", "/workflows/one?name=fulfil",
    "/schedules", "/policies", "/members", "/audit", "/audit?engine=yes", "/health",
)  # fmt: skip
CAUSES = 30
LOOKS = 20
WEEK = 7 * 24 * 3600 * 1_000_000
_LOADED = re.compile(r'(?:href|src)="([^"]*/static/[^"]+)"')
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")


async def dashboard(job: Job) -> dict[str, float]:
    """Measure the pages under load, in ms, and the size of the first page."""
    async with served(job.url) as there:
        site = str(there.client.base_url).partition("/api/")[0]
        figures: dict[str, float] = {}
        with _changing(job.url) as made:
            taken = [ms for page in BUSY_PAGES for ms in await _looks(there.client, f"{site}/app{page}", job.size)]
            figures |= {"busy": statistics.median(taken), "busy_slow": statistics.quantiles(taken, n=100)[-1]}
            figures |= await _clicks(site, there.client.headers["Authorization"])
            figures["first_load"] = await _first_load(there.client, site)
        return {**figures, "changes": 2 * made[0]}


async def pages(job: Job) -> dict[str, float]:
    """Measure every page with so many failures of one week, in ms; and the first page after the server has started."""
    run, letter = await _fail_often(job.url, job.size)
    async with served(job.url) as there:
        site = str(there.client.base_url).partition("/api/")[0]
        first, slow = 0.0, list[float]()
        for page in ALL_PAGES:
            taken = await _looks(there.client, f"{site}/app{page.format(run=run, letter=letter)}", LOOKS)
            first, slow = first or taken[0], [*slow, statistics.median(taken[1:])]
        return {"first": first, "dashboard": max(slow), "first_load": await _first_load(there.client, site)}


async def _fail_often(url: str, times: int) -> tuple[str, str]:
    """Copy a failed run with its letter; return the ids of the real ones. Half as many runs have succeeded."""
    app = shop(url)
    async with app:
        workflow = app.find("fulfil")
        good = await workflow.start("A-1", 1, tenant=TENANT)
        bad = await workflow.start("A-2", -1, tenant=TENANT)
        for handle in (good, bad):
            with suppress(RunFailed):
                await handle.result()
    for run, first, copies in ((bad.id, 1_000_000, times), (good.id, 1_000_000 + times, times // 2)):
        source, own = f"(SELECT id FROM runs WHERE public_id = '{run}')", {"run": f"{first} + n"}
        row = {"id": f"{first} + n", "public_id": f"'copy' || ({first} + n)", "correlation_id": "'c-' || (n % 1000)"}
        row["created_at"] = f"t.created_at - {WEEK} + n * ({WEEK} / {copies})"
        for table in ("inputs", "results"):
            await copy_rows(url, table, f"t.run = {source}", own, copies)
        await copy_rows(url, "runs", f"t.public_id = '{run}'", row, copies)
    letter = {
        "id": "n + 1",
        "public_id": "'dl-copy' || (1000000 + n)",
        "run": "1000000 + n",
        "run_id": "'copy' || (1000000 + n)",
        "fingerprint": f"'cause-' || (n % {CAUSES})",
        "correlation_id": "'c-' || (n % 1000)",
        **dict.fromkeys(("created_at", "failed_at"), f"t.created_at - {WEEK} + n * ({WEEK} / {times})"),
    }
    await copy_letters(url, letter, times)
    async with app.client():
        while await app.runtime.group_aggregator.run_once():
            pass
    await vacuum(url)
    return bad.id, f"dl-{bad.id}"


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
