"""Schedules of an app, fired by the testing kit."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from engines import OnStore

from redrive import Redrive, Schedule
from redrive.errors import Conflict, NotFound, RegistrationError
from redrive.store.filters import AuditFilter, RunFilter
from redrive.testing import VirtualClock, engine


def reporting(app: Redrive, *schedules: Schedule) -> list[str]:
    """Register a workflow that reports a day, and return the list of its reports."""
    reported: list[str] = []

    @app.step
    async def send(text: str) -> None:
        reported.append(text)

    @app.workflow(schedule=schedules)
    async def report(day: date, region: str = "eu") -> None:
        await send(f"{day} {region}")

    return reported


def at_six(**more: Any) -> Schedule:
    return Schedule("0 6 * * *", timezone="Europe/Warsaw", input=lambda at: {"day": at.date()}, **more)


async def test_runs_are_started_at_their_times_and_receive_them(on_store: OnStore) -> None:
    app = Redrive()
    us = Schedule("30 5 2 * *", input={"day": date(2030, 1, 1), "region": "us"}, name="us", tenant="acme")
    reported = reporting(app, at_six(), us)
    async with on_store(app) as e:
        await e.advance("4h59m59s")
        assert reported == []
        await e.advance("2d")
        assert reported == ["2030-01-01 eu", "2030-01-02 eu", "2030-01-01 us"]
        assert len((await app.runs.list(RunFilter(tenant="acme"))).items) == 1
        found = await app.runs.list(RunFilter(idempotency_key="2030-01-02T05:00:00Z"))
        acme, daily = await app.schedules.list()
        assert (acme.name, acme.tenant, acme.live) == ("us", "acme", True)
        assert (daily.last_run, daily.last_status) == (found.items[0].id, "SUCCESS")
        assert [f"{each:%d %H:%M%z}" for each in daily.next] == ["03 06:00+0100", "04 06:00+0100", "05 06:00+0100"]


async def test_a_crash_or_a_deploy_loses_no_scheduled_run_and_starts_none_twice(on_store: OnStore) -> None:
    app = Redrive()
    reported = reporting(app, at_six())
    async with on_store(app) as e:
        await e.advance("4h59m59s")
        await e.crash()
        await e.advance("1d")
        await e.restart()
        await e.advance("1d")
        assert reported == ["2030-01-01 eu", "2030-01-02 eu", "2030-01-03 eu"]


async def test_a_daily_report_comes_once_on_the_days_when_clocks_are_changed() -> None:
    for start, days in ((datetime(2026, 3, 28, tzinfo=UTC), 3), (datetime(2026, 10, 24, tzinfo=UTC), 3)):
        app = Redrive()
        night = Schedule("30 2 * * *", timezone="Europe/Warsaw", input=lambda at: {"day": at.date()})
        reported = reporting(app, night)
        clock = VirtualClock(start=start)
        async with engine(app, clock=clock) as e:
            await e.advance(f"{days}d")
        first = start.day
        assert reported == [f"{start:%Y-%m}-{first + day} eu" for day in range(days)]


async def test_a_manually_requested_run_is_started_once_beside_the_scheduled_times(on_store: OnStore) -> None:
    app = Redrive()
    reported = reporting(app, at_six())
    async with on_store(app) as e:
        await e.advance("2s")
        assert await app.schedules.run("report", dry_run=True)
        assert await app.schedules.run("report", by="ann")
        assert not await app.schedules.run("report"), "the requested run has not started yet"
        await e.advance("3s")
        assert reported == ["2030-01-01 eu"]
        (daily,) = await app.schedules.list()
        assert (daily.requested_at, daily.last_status) == (None, "SUCCESS")
        await app.schedules.pause("report")
        assert await app.schedules.run("report")
        await e.advance("3s")
        assert len(reported) == 2
        await app.schedules.resume("report")
        await e.advance("1d")
        assert reported[2:] == ["2030-01-01 eu"], "the scheduled times are started as before"
        (line,) = (await app.audit.list(AuditFilter(event="schedule.requested", by="ann"))).items
        assert line.subject == "report/default"
        with pytest.raises(NotFound):
            await app.schedules.run("report", "nightly")


async def test_a_request_whose_input_function_fails_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    app, broken = Redrive(), False

    def make_input(at: datetime) -> dict[str, Any]:
        if broken:
            raise RuntimeError("no calendar")
        return {"day": at.date()}

    reported = reporting(app, Schedule("0 6 * * *", input=make_input))
    async with engine(app) as e:
        await e.advance("2s")
        broken = True
        await app.schedules.run("report")
        await e.advance("3s")
        assert "could not be started by hand: no calendar" in caplog.text
        (daily,) = await app.schedules.list()
        assert (daily.requested_at, daily.last_run) == (None, None)
        broken = False
        await app.schedules.run("report")
        await e.advance("3s")
        assert len(reported) == 1


async def test_a_paused_schedule_starts_nothing_and_a_paused_workflow_claims_nothing(on_store: OnStore) -> None:
    app = Redrive()
    reported = reporting(app, at_six())
    async with on_store(app) as e:
        await e.advance("1d")
        assert await app.schedules.pause("report", by="ann", reason="month end")
        assert not await app.schedules.pause("report", by="bob")
        await e.advance("2d")
        (paused,) = await app.schedules.list()
        assert (paused.paused_by, paused.next, len(reported)) == ("ann", (), 1)
        assert await app.schedules.resume("report", by="ann")
        assert not await app.schedules.resume("report", by="ann")
        await app.workflows.pause("report", by="ann")
        await e.advance("1d")
        assert reported == ["2030-01-01 eu"]
        await app.workflows.resume("report", by="ann")
        await e.settle()
        assert reported == ["2030-01-01 eu", "2030-01-04 eu"]
        with pytest.raises(NotFound, match=r"no schedule 'nightly' .* its schedules are: report 'default'"):
            await app.schedules.pause("report", "nightly", by="ann")
        with pytest.raises(Conflict, match="schedule 'default' of workflow 'report' is in the code of a live worker"):
            await app.schedules.remove("report", by="ann")
        lines = await app.audit.list(AuditFilter(subject="report/default"))
        assert [(line.event, line.by, line.reason) for line in lines.items] == [
            ("schedule.resumed", "ann", None),
            ("schedule.paused", "ann", "month end"),
        ]


def wrong_day(at: datetime) -> dict[str, Any]:
    return {"day": at.hour}


def no_input(at: datetime) -> Any:
    return at


def failing_input(at: datetime) -> dict[str, Any]:
    raise LookupError("no such table")


@pytest.mark.parametrize(
    ("schedules", "says"),
    [
        (["0 6 * * *"], "schedule of workflow 'report' .* give a Schedule"),
        (5, "schedule of workflow 'report' is 5"),
        ([at_six(), at_six()], "two schedules called 'default' for tenant 'default'"),
        (Schedule("0 6 * * *"), "schedule 'default' of workflow 'report'.*day"),
        (Schedule("0 6 * * *", input={"day": "soon"}), "day"),
        (Schedule("0 6 * * *", input={"day": date(2030, 1, 1), "colour": 1}), "colour"),
        (Schedule("0 6 * * *", input=wrong_day), "day"),
        (Schedule("0 6 * * *", input=no_input), "must be an object from name to value"),
        (Schedule("0 6 * * *", input=failing_input), "raised LookupError"),
    ],
)
async def test_an_invalid_schedule_is_refused_when_the_app_opens(schedules: Any, says: str) -> None:
    with pytest.raises(RegistrationError, match=says):
        await opened_with(schedules)


@pytest.mark.parametrize("tenant", ["*", "", None])
def test_a_schedule_with_an_invalid_tenant_is_refused(tenant: Any) -> None:
    with pytest.raises(RegistrationError, match=r"schedule: .*tenant"):
        Schedule("0 6 * * *", tenant=tenant)


async def opened_with(schedules: Any) -> None:
    app = Redrive()

    @app.workflow(schedule=schedules)
    async def report(day: date) -> None: ...

    async with engine(app):
        pass
