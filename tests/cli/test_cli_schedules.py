"""`redrive schedules`: the next times, the last run, pausing."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import Result
from console import piped

from redrive import Redrive, Schedule
from redrive.testing import VirtualClock, engine


async def asked(*words: str) -> Result:
    return await asyncio.to_thread(piped, "schedules", *words)


async def test_schedules_are_listed_paused_resumed_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/reports.db"
    monkeypatch.setenv("REDRIVE_URL", url)
    app = Redrive(url)

    @app.workflow(schedule=Schedule("30 6 * * *", timezone="Europe/Warsaw"))
    async def report() -> None: ...

    async with engine(app, store=url, clock=VirtualClock(start=datetime.now(UTC))) as e:
        await e.advance("1d")
        (run,) = (await app.runs.list()).items
        (item,) = json.loads((await asked("list", "--json")).output)["items"]
        assert (item["workflow"], item["cron"], item["timezone"]) == ("report", "30 6 * * *", "Europe/Warsaw")
        assert (item["last_run"], item["last_status"], item["live"]) == (run.id, "SUCCESS", True)
        warsaw = [datetime.fromisoformat(at).astimezone(ZoneInfo("Europe/Warsaw")) for at in item["next"]]
        assert [f"{at:%H:%M}" for at in warsaw] == ["06:30"] * 3
        line = (await asked("list")).output.rstrip("\n").split("\t")
        assert line[:4] == ["report", "default", "30 6 * * *", "Europe/Warsaw"]
        assert line[4].count(" 06:30") == 3
        assert line[5:7] == [run.id, "SUCCESS"]

        assert "would run report/default" in (await asked("run", "report", "--dry-run")).output
        assert "a worker starts report/default" in (await asked("run", "report", "--by", "ann")).output
        assert "was asked for before and starts soon" in (await asked("run", "report")).output
        assert "would pause report/default" in (await asked("pause", "report", "--dry-run")).output
        paused = await asked("pause", "report", "--by", "ann", "--reason", "books are closed")
        assert "paused report/default; to resume it: redrive schedules resume report default" in paused.output
        assert "paused by ann" in (await asked("list")).output
        refused = await asked("forget", "report")
        assert (refused.exit_code, "is in the code of a live worker" in refused.output) == (4, True)
        assert "resumed report/default" in (await asked("resume", "report")).output
        assert "report/default was not paused" in (await asked("resume", "report")).output
        missing = await asked("pause", "report", "nightly")
        assert (missing.exit_code, "its schedules are: report 'default'" in missing.output) == (3, True)
    assert "no live worker has it" in (await asked("list")).output
    assert "forgot report/default" in (await asked("forget", "report")).output
    assert (await asked("list")).output == ""
