"""The desk's commands on PostgreSQL, with the same options and output as on SQLite."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from console import piped
from dlq_kit import SHOP, Shop, play, working


async def test_the_desk_works_on_postgresql_as_on_sqlite(
    a_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", a_postgres_url)
    monkeypatch.setenv("EDITOR", f"{sys.executable} {tmp_path / 'correct.py'}")
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    (tmp_path / "correct.py").write_text(
        "import pathlib, sys\nfile = pathlib.Path(sys.argv[1])\n"
        "file.write_text(file.read_text('utf-8').replace('PO', 'PL'), 'utf-8')\n",
        encoding="utf-8",
    )
    shop = await play(Shop(tmp_path, a_postgres_url, "", "").app(), tmp_path)
    shop.calls()

    async def call(*arguments: str) -> Any:
        # A command starts its own event loop, so it runs in a thread.
        result = await asyncio.to_thread(piped, *arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    plan = await call("dlq", "replay", shop.down, "--dry-run")
    assert "charge (step 1), which charges the card" in plan.stdout
    assert (await call("dlq", "assign", shop.wrong, "--to", "kim", "--by", "kim")).exit_code == 0
    assert (await call("dlq", "comment", shop.wrong, "a typing error", "--by", "kim")).exit_code == 0
    assert (await call("dlq", "tag", shop.wrong, "vat")).exit_code == 0
    with working(shop):
        assert (await call("dlq", "replay", shop.down, "--wait")).exit_code == 0
        edited = await call("dlq", "edit", shop.wrong, "--yes", "--wait")
    assert edited.exit_code == 0, edited.output
    assert shop.calls() == ["charge tok-7", "book", "book"]
    page = (await call("dlq", "show", shop.wrong)).stdout
    assert "kim: commented: a typing error" in page
    assert '~ order.country: "PO" becomes "PL"' in page
    assert (await call("dlq", "list", "-q", "--status", "resolved", "--tag", "vat")).stdout.split() == [
        f"dl-{shop.wrong}"
    ]
    said = json.loads((await call("audit", "list", "--by", "kim", "--json")).stdout)["items"]
    assert [line["event"] for line in said] == ["dlq.commented", "dlq.assigned"]
    assert len((await call("audit", "export", "--event", "dlq.")).stdout.splitlines()) > 5
    assert (await call("runs", "retry", shop.down, "--mode", "full")).exit_code == 4
