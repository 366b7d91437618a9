"""The commands on PostgreSQL, with the same options and output as on SQLite."""

import asyncio
import json
from typing import Any

from console import piped
from toy_store import Toys


async def test_the_commands_work_on_postgresql_as_on_sqlite(toys: Toys, a_postgres_url: str) -> None:
    async def call(*arguments: str) -> Any:
        # A command starts its own event loop, so it runs in a thread.
        result = await asyncio.to_thread(piped, *arguments, "--url", a_postgres_url)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    assert (await call("doctor")).exit_code == 1
    empty = await call("runs", "list")
    assert empty.exit_code == 1
    assert "yet: run `redrive migrate --url 'postgresql://" in empty.stderr
    plan = (await call("migrate", "--plan", "-q")).stdout.split()
    assert plan == ["0001_schema"]
    assert (await call("migrate", "-q")).stdout.split() == plan
    assert (await call("migrate")).stdout == "the schema is up to date\n"
    assert (await call("doctor")).exit_code == 0
    started = await call("runs", "start", "make", "--input", '{"toy": "boat"}', "--app", "toys:app")
    run_id = started.stdout.strip()
    assert (await call("runs", "list", "-q")).stdout == f"{run_id}\n"
    assert (await call("runs", "show", "-q", run_id[:12])).stdout == f"{run_id}\n"
    assert "No worker is running" in (await call("runs", "why", run_id)).stdout
    assert "1 due run of 'make'" in (await call("doctor")).stdout
    assert (await call("workflows", "pause", "make")).exit_code == 0
    assert (await call("policies", "set", "--step", "paint", "max_retries=1", "--app", "toys:app")).exit_code == 0
    assert len(json.loads((await call("policies", "list", "--json")).stdout)["items"]) == 1
    assert (await call("runs", "cancel", run_id)).exit_code == 0
    assert json.loads((await call("runs", "show", run_id, "--json")).stdout)["status"] == "CANCELLED"
    assert (await call("dlq", "list")).stdout == ""
