"""Tenant exports: all rows of the tenant, and no row of another tenant."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engines import OnStore

from redrive import Redrive, RetryPolicy, RunFilter, Schedule
from redrive.desk.audit import export_records

ONCE = RetryPolicy(max_retries=0)


async def test_an_export_contains_all_rows_of_its_tenant_and_none_of_others(on_store: OnStore) -> None:
    app = Redrive("sqlite:///:memory:")

    @app.workflow(
        retry=ONCE, schedule=[Schedule("0 * * * *", tenant=tenant, name=tenant) for tenant in ("acme", "globex")]
    )
    async def report() -> None:
        raise ValueError("no")

    async with on_store(app) as e:
        await e.settle()
        await e.advance("1h")
        for tenant in ("acme", "globex"):
            await app.policies.set(RetryPolicy(max_retries=1), workflow="report", tenant=tenant, by="ann")
            await app.views.save("letters", "late", "code=timeout", by="ann", tenant=tenant)
            await app.views.save("letters", "late", "stage=exec", by="bob", tenant=tenant)
            await app.views.save("runs", "ours", "kind=late", by="bob", tenant=tenant, shared=True)
            (failed,) = (await app.runs.list(RunFilter(tenant=tenant))).items
            await app.runs.send(failed.id, "late", {"of": tenant}, tenant=tenant, by="bob")
        found: list[tuple[str, Any]] = [each async for each in export_records(e.store.tenant_view("acme"), "acme")]
    kinds = Counter(kind for kind, _ in found)
    assert kinds.keys() == {"run", "event", "letter", "policy", "schedule", "view", "audit"}
    assert (kinds["run"], kinds["letter"], kinds["policy"], kinds["schedule"]) == (1, 1, 1, 1)
    (schedule,) = [thing for kind, thing in found if kind == "schedule"]
    (event,) = [thing for kind, thing in found if kind == "event"]
    (run,) = [thing for kind, thing in found if kind == "run"]
    assert (schedule.tenant, schedule.cron, schedule.last_run) == ("acme", "0 * * * *", run.id)
    assert (event.run_id, event.event.payload) == (run.id, {"of": "acme"})
    views = [(view.list, view.by, view.query, view.shared) for kind, view in found if kind == "view"]
    assert views == [
        ("letters", "ann", "code=timeout", False),
        ("letters", "bob", "stage=exec", False),
        ("runs", "bob", "kind=late", True),
    ]
