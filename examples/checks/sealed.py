"""With encryption keys, no byte of the database shows a payload: of events, questions, answers, notes and children."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from urllib.parse import parse_qsl

import kit
import work

from redrive import TaskFilter

SECRET = re.compile(rb"s3cr3t-[a-z]+")


async def dump() -> bytes:
    """Return the content of the whole database."""
    if kit.URL.startswith("sqlite"):
        # A process that closes a SQLite file loses all its locks on it, so another process reads it.
        file = Path(kit.URL.removeprefix("sqlite:///"))
        command = ["cat", *file.parent.glob(f"{file.name}*")]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
        return done.stdout
    import asyncpg

    url, _, options = kit.URL.partition("?")
    schema = dict(parse_qsl(options)).get("schema", "redrive")
    con = await asyncpg.connect(url)
    tables = await con.fetch("SELECT tablename AS name FROM pg_tables WHERE schemaname = $1", schema)
    rows = [row for each in tables for row in await con.fetch(f'SELECT t::text FROM {schema}."{each["name"]}" AS t')]
    assert rows
    await con.close()
    return "\n".join(row["t"] for row in rows).encode()


async def check(workers: kit.Workers) -> str:
    handle = await work.secretive.start("s3cr3t-input")
    await handle.send("told", "s3cr3t-event", key="once", by="ann")

    async def is_asked() -> bool:
        return bool((await work.app.tasks.list(TaskFilter(run_id=handle.id, status="OPEN"))).items)

    await kit.until(is_asked, "a person is asked")
    (task,) = (await work.app.tasks.list(TaskFilter(run_id=handle.id))).items
    assert "s3cr3t-question" in task.question
    await work.app.tasks.comment(task.id, "s3cr3t-comment", by="ann")
    await work.app.tasks.answer(task.id, {"text": "s3cr3t-answer"}, note="s3cr3t-note", by="ann")
    assert await handle.result(timeout=kit.PATIENCE) == "s3cr3t-event s3cr3t-answer s3cr3t-note"
    found = set(SECRET.findall(await dump()))
    assert not found, f"in clear: {found}"
    return "an event, a question, its data, an answer, its note, a status and a child's result are sealed"


if __name__ == "__main__":
    kit.main(check)
