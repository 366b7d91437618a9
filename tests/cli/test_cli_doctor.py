"""Findings of the doctor: an unreachable store, exposed tenants, late runs, sinks without deliveries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
from console import piped

from redrive import Redrive, Schedule
from redrive.cli.doctor import Finding, _check_outbox, check_schedules, check_store
from redrive.clock import MICROS
from redrive.core.decide_run import ROLLBACK_HEAD_START
from redrive.core.roles import Principal, Role
from redrive.core.states import RunStatus
from redrive.core.transitions import RunWrite, Transition
from redrive.record_fields import replace
from redrive.server.auth.admin import AccountAdmin, make_operator
from redrive.store.accounts import NewToken, NewUser
from redrive.store.claims import ClaimRequest
from redrive.store.postgres.connection import parse_url
from redrive.store.stats import SinkLag, StoreStats
from redrive.store.workers import NewWorker
from redrive.testing import VirtualClock, engine

MINUTE = 60 * MICROS


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    """Return the last finding of each check."""
    return {finding.check: finding for finding in findings}


async def test_the_doctor_finds_a_table_without_row_level_security(postgres_url: str) -> None:
    async with Redrive(postgres_url).client():
        pass
    found = by_check(await check_store(postgres_url))
    assert found["roles"].level == "ok"
    assert "proved" in found["roles"].text
    address = parse_url(postgres_url)
    con = await asyncpg.connect(address.url)
    await con.execute(f'ALTER TABLE "{address.schema}".letters NO FORCE ROW LEVEL SECURITY')
    await con.close()
    found = by_check(await check_store(postgres_url))
    assert (found["store"].level, found["roles"].level) == ("ok", "wrong")
    assert "table letters lacks forced row level security" in found["roles"].text


async def test_the_doctor_finds_late_runs_and_suspects_but_not_prioritised_rollbacks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    app = Redrive(url)

    @app.workflow
    async def order() -> None: ...

    async with app.client():
        store = app.runtime.store
        await order.start_many([(), (), ()])
        worker = await store.enlist(
            NewWorker(name="n", version="v", workflows=("order",), lease=60 * MINUTE), app.catalogue()
        )
        claims = await store.claim(ClaimRequest(worker=worker, workflows=("order",), capacity=3, suspect=True))
        changes = (
            RunWrite(status=RunStatus.PENDING, wake_in=-5 * MINUTE, take=True),
            RunWrite(status=RunStatus.COMPENSATING, wake_in=-ROLLBACK_HEAD_START, take=True),
            RunWrite(status=RunStatus.PENDING, wake_in=0, take=True, deaths=1),
        )
        written = [
            Transition(run=run.id, tenant=run.tenant, fence=run.fence, change=change)
            for run, change in zip(claims.runs, changes, strict=True)
        ]
        assert all(answer.kept for answer in await store.apply(written, worker=worker))
    found = by_check(await check_store(url))
    assert found["late"].text.startswith("1 due run late, the oldest by 5 m")
    assert found["suspects"].text == "1 unfinished run whose worker died while executing it"
    assert found["roles"].level == "ok"


async def test_the_doctor_distinguishes_a_crash_loop_from_a_crash_and_a_stop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    app = Redrive(url)
    async with app.client():
        store = app.runtime.store

        async def enlist(name: str, lease: int) -> int:
            return await store.enlist(NewWorker(name=name, version="v", workflows=(), lease=lease), app.catalogue())

        await store.retire(await enlist("stopped", 60 * MINUTE))
        assert "crashes" not in by_check(await check_store(url))
        await enlist("first", 1)
        found = by_check(await check_store(url))["crashes"]
        assert (found.level, found.text) == ("note", "1 crashed in the last hour, the last one was first")
        for _ in range(4):
            await enlist("again", 1)
        found = by_check(await check_store(url))["crashes"]
        assert (found.level, found.text) == ("wrong", "5 crashed in the last hour, the last one was again")


async def test_the_doctor_names_a_remote_worker_that_sits_on_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    app = Redrive(url)

    @app.workflow
    async def make(toy: str) -> None: ...

    async with app.client():
        store = app.runtime.store
        new = NewWorker(name="far", version="v", workflows=("make",), lease=1, token="t")
        worker = await store.enlist(new, app.catalogue())
        await make.start("bear")
        claim = ClaimRequest(worker=worker, workflows=("make",), capacity=1, suspect=False)
        assert len((await store.claim(claim)).runs) == 1
        (found,) = [each for each in await check_store(url) if "ten leases" in each.text]
    assert found.text == f"worker {worker} (far) has held 1 run for ten leases without reporting anything"
    assert (found.level, f"workers retire {worker}" in (found.advice or "")) == ("wrong", True)


def test_the_doctor_finds_sinks_without_deliveries() -> None:
    now = 100 * MINUTE
    found = list(
        _check_outbox(StoreStats(now=now, sinks=(SinkLag("erp", 7, 0, now - 5 * MINUTE), SinkLag("crm", 0, 2, None))))
    )
    assert [(each.level, each.text) for each in found] == [
        ("wrong", "7 messages wait for 'erp', the first for 5 m"),
        ("note", "2 messages to 'crm' wait for a person"),
    ]
    (calm,) = _check_outbox(StoreStats(now=now, sinks=(SinkLag("erp", 3, 0, None),)))
    assert calm.level == "ok"


async def test_the_doctor_names_schedules_that_missed_their_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/reports.db"
    app = Redrive(url)

    @app.workflow(schedule=Schedule("0 * * * *", tenant="acme", name="each hour"))
    async def report() -> None: ...

    assert "schedules" not in by_check(await check_store("sqlite:///:memory:"))
    now = datetime.now(UTC)
    async with engine(app, store=url, clock=VirtualClock(start=now - timedelta(hours=3))) as e:
        await e.settle()
        (known,) = await app.schedules.list()
        assert (known.late_since, known.live) == (None, True)
        assert [each.level for each in check_schedules([known])] == ["ok"]
    found = by_check(await check_store(url))["schedules"]
    due = (now - timedelta(hours=2)).replace(minute=0)
    assert found.level == "wrong"
    assert found.text == (
        f"'each hour' of 'report' (tenant 'acme') was due {due:%Y-%m-%d %H:%M} UTC, and no live worker has it"
    )
    assert "redrive schedules forget report 'each hour' --tenant acme" in (found.advice or "")
    (stuck,) = check_schedules([replace(known, late_since=due)])
    assert "its worker did not start it" in stuck.text
    several = list(check_schedules([replace(known, late_since=due)] * 7))
    assert (len(several), several[-1].text) == (6, "2 more are late")


async def test_the_doctor_lists_tokens_that_ended_with_their_creator(ready_url: str) -> None:
    app = Redrive(ready_url)
    async with app.client():
        store, clock = app.runtime.store, app.runtime.clock
        access = AccountAdmin(store.accounts, clock, make_operator("test"))
        await access.create_tenant("acme")
        ann, _ = await access.create_user(NewUser(email="ann@example.org", tenant="acme", role=Role.ADMIN))
        who = Principal(who=ann.email, tenant="acme", role=Role.ADMIN, user=ann.id)
        new = NewToken(tenant="acme", role=Role.STAFF, name="nightly")
        made = await AccountAdmin(store.accounts, clock, who).create_token(new)
        await access.create_token(new)
        assert "tokens" not in by_check(await check_store(ready_url))
        await access.disable_user(ann.id, disabled=True)
        (found,) = [each for each in await check_store(ready_url) if each.check == "tokens"]
        assert (found.level, made.token.id in found.text, made.token.id in (found.advice or "")) == ("note", True, True)
        assert "ann@example.org, who created it, is disabled" in found.text
        await access.revoke_token("acme", made.token.id)
        assert "tokens" not in by_check(await check_store(ready_url))


def test_an_unreachable_store_is_reported_without_advice_for_workers() -> None:
    url = "postgresql://127.0.0.1:1/shop?connect_timeout=1"
    for command in (["doctor"], ["runs", "list"]):
        ended = piped(*command, "--url", url)
        assert ended.exit_code == 1
        said = " ".join(ended.output.split())
        assert "does not answer" in said
        assert "check that it runs and that the URL is right" in said
        assert "half done" not in said
