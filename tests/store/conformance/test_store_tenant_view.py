"""Conformance tests of tenant views: a view shows and changes the rows of one tenant and no others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from letter_kit import reopens
from outbox_kit import Outbox, say, sink
from store_kit import DAY, Kit, becomes, entry, failed_try, letter, noted, writes

from redrive.core.bulk_rate import Rate
from redrive.core.circuit import CircuitState, CircuitStatus
from redrive.core.outbox import SinkLease
from redrive.core.states import RunStatus
from redrive.core.transitions import Transition
from redrive.errors import InputError, NotAllowed
from redrive.record_fields import replace
from redrive.store.bulk import BulkChange, BulkVerb, NewBulk
from redrive.store.circuits import CircuitUpdate
from redrive.store.filters import AuditFilter, CircuitFilter, GroupFilter, LetterFilter, OutboxFilter, RunFilter
from redrive.store.letters import Triage
from redrive.store.outbox import DeliveryAction, DeliveryDecision
from redrive.store.port import DeskStore
from redrive.store.runs import RunRow
from redrive.store.settings import PolicyRow

HALF_OPEN = CircuitState(status=CircuitStatus.HALF_OPEN, generation=2)
CLOSED = CircuitState(status=CircuitStatus.CLOSED, generation=3)

STOP, FASTER = BulkChange(BulkVerb.STOP), BulkChange(BulkVerb.RATE, Rate(9, "s"))


def turned(state: CircuitState, *, tenant: str, version: int = 0, **more: Any) -> CircuitUpdate:
    given: dict[str, Any] = {"key": "payments", "next_wave_at": 0, "settings": "{}", "override": None}
    given |= {"why": "because", "by": "ann", "changed": True}
    return CircuitUpdate(tenant=tenant, version=version, state=state, **{**given, **more})


async def two_tenants(kit: Kit) -> tuple[RunRow, RunRow]:
    """Create a run with all kinds of rows for tenant `a`, and one for tenant `b`."""
    runs = []
    for tenant in ("a", "b"):
        worker, run = await kit.held(tenant=tenant, key="k", key_hash="h", key_keeps=DAY)
        step = writes(run, entry(0, output=tenant), attempts=(failed_try(0),))
        assert (await kit.store.apply([step], worker=worker))[0].kept
        await kit.fail(worker, run)
        policy = PolicyRow(tenant=tenant, workflow="", step="s", policy="{}", updated_at=0, updated_by="x")
        await kit.store.set_policy(policy, noted("policy.set", tenant=tenant))
        new = NewBulk(public_id=f"set-{tenant}", tenant=tenant, action="RESOLVE", by="ann", letters=("dl-x",))
        await kit.store.create_bulk(new, noted("dlq.bulk_started", tenant=tenant))
        await kit.store.retire(worker)
        runs.append(await kit.look(run))
    await kit.store.fold(100)
    everywhere = PolicyRow(tenant="", workflow="", step="s", policy="{}", updated_at=0, updated_by="x")
    await kit.store.set_policy(everywhere, noted("policy.set", tenant=""))
    return runs[0], runs[1]


async def test_a_view_shows_its_tenant_s_rows_unchanged(kit: Kit) -> None:
    mine, _ = await two_tenants(kit)
    seen, store = kit.store.tenant_view("a"), kit.store
    assert await seen.run(mine.public_id) == await store.run(mine.public_id)
    assert await seen.runs_by_id([mine.public_id]) == await store.runs_by_id([mine.public_id])
    assert await seen.journal(mine.id) == await store.journal(mine.id) != []
    assert await seen.attempts(mine.id) == await store.attempts(mine.id) != []
    letter = await seen.letter_of(mine.id)
    assert letter is not None
    assert letter == await store.letter_of(mine.id) == await seen.letter(letter.public_id)
    assert await seen.cases([letter.public_id]) == await store.cases([letter.public_id]) != []
    assert [row.tenant for row in await seen.policies()] == ["", "a"]
    assert (await seen.bulk_by_id("set-a")) == await store.bulk_by_id("set-a") is not None
    assert await seen.count_letters(LetterFilter()) == 1
    assert await seen.known(["w"]) == await store.known(["w"]) != []
    assert [item.name for item in await seen.workflows()] == ["w"]


async def test_every_list_of_a_view_holds_only_rows_of_its_tenant(kit: Kit) -> None:
    await two_tenants(kit)
    seen = kit.store.tenant_view("a")
    pages: list[Any] = [
        await seen.runs(RunFilter(), limit=10, cursor=None),
        await seen.letters(LetterFilter(), limit=10, cursor=None),
        await seen.audit(AuditFilter(), limit=10, cursor=None),
        await seen.groups(GroupFilter(), limit=10, cursor=None),
    ]
    assert [{row.tenant for row in page.items} for page in pages] == [{"a"}] * 4


async def test_rows_of_another_tenant_are_not_found(kit: Kit) -> None:
    _, theirs = await two_tenants(kit)
    seen = kit.store.tenant_view("a")
    name = theirs.public_id
    assert await seen.run(name) is await seen.run(name, tenant="b") is None
    assert await seen.runs_by_id([name]) == []
    assert await seen.journal(theirs.id) == await seen.attempts(theirs.id) == []
    assert await seen.letter(f"dl-{name}") is await seen.letter(f"dl-{name}", tenant="b") is None
    assert await seen.letter_of(theirs.id) is None
    assert await seen.cases([name, f"dl-{name}"]) == []
    assert await seen.bulk_by_id("set-b") is None
    foreign = await kit.store.bulk_by_id("set-b")
    assert foreign is not None
    assert (await seen.bulk_items(foreign, None, limit=9, cursor=None)).items == []
    assert (await seen.runs(RunFilter(tenant="b"), limit=10, cursor=None)).items == []
    assert (await seen.letters(LetterFilter(tenant="b"), limit=10, cursor=None)).items == []
    assert (await seen.audit(AuditFilter(tenant="b"), limit=10, cursor=None)).items == []
    assert (await seen.audit(AuditFilter(tenant=""), limit=10, cursor=None)).items == []
    assert (await seen.groups(GroupFilter(tenant="b"), limit=10, cursor=None)).items == []
    assert await seen.count_letters(LetterFilter(tenant="b")) == 0


Change = Callable[[DeskStore, RunRow], Awaitable[object]]

FOREIGN: dict[str, Change] = {
    "start": lambda seen, run: seen.start([_new(run)]),
    "apply": lambda seen, run: seen.apply([becomes(run, RunStatus.FAILED)]),
    "apply as one's own": lambda seen, run: seen.apply([_claimed(run)]),
    "note": lambda seen, run: seen.note([noted(tenant="b")]),
    "set_policy": lambda seen, run: seen.set_policy(_policy("b"), noted(tenant="a")),
    "set_policy of all": lambda seen, run: seen.set_policy(_policy(""), noted(tenant="a")),
    "delete_policy": lambda seen, run: seen.delete_policy("b", "", "s", noted(tenant="a")),
    "create_bulk": lambda seen, run: seen.create_bulk(_set("b"), noted(tenant="b")),
    "begin_set for all": lambda seen, run: seen.create_bulk(_set(""), noted(tenant="a")),
    "triage": lambda seen, run: seen.triage(Triage(letter=f"dl-{run.public_id}", audit=noted(tenant="b"))),
}


def _new(run: RunRow) -> Any:
    from redrive.core.transitions import NewRun

    return NewRun(public_id="new", tenant="b", workflow="w", input="{}", options="{}")


def _claimed(run: RunRow) -> Transition:
    return Transition(run=run.id, tenant="a", fence=run.fence, letter=letter(run))


def _policy(tenant: str) -> PolicyRow:
    return PolicyRow(tenant=tenant, workflow="", step="t", policy="{}", updated_at=0, updated_by="x")


def _set(tenant: str) -> NewBulk:
    return NewBulk(public_id="set-x", tenant=tenant, action="RESOLVE", by="ann", letters=("dl-x",))


async def test_a_view_writes_nothing_for_another_tenant(kit: Kit, subtests: pytest.Subtests) -> None:
    _, theirs = await two_tenants(kit)
    before = await kit.everything(theirs), await kit.store.policies()
    for name, change in FOREIGN.items():
        with subtests.test(name):
            with pytest.raises(NotAllowed):
                await change(kit.store.tenant_view("a"), theirs)
            assert (await kit.everything(theirs), await kit.store.policies()) == before


async def test_letters_and_bulk_actions_of_another_tenant_cannot_be_changed(kit: Kit) -> None:
    _, theirs = await two_tenants(kit)
    seen = kit.store.tenant_view("a")
    note = Triage(letter=f"dl-{theirs.public_id}", owner="eve", audit=noted(tenant="a"))
    assert not await seen.triage(note)
    assert not await seen.change_bulk("set-b", STOP, noted(tenant="a"))
    assert (await kit.letter(theirs)).owner is None
    found = await kit.store.bulk_by_id("set-b")
    assert found is not None
    assert found.status == "RUNNING"


async def test_a_view_does_for_its_tenant_what_the_store_does(kit: Kit) -> None:
    mine, _ = await two_tenants(kit)
    seen = kit.store.tenant_view("a")
    (case,) = await seen.cases([mine.public_id])
    (answer,) = await seen.apply([reopens(case.run)])
    assert answer.kept
    started = await seen.start([kit.new(tenant="a", index=(("f", "v"),), key="x", key_hash="h", key_keeps=DAY)])
    assert started[0].new
    assert await seen.triage(Triage(letter=f"dl-{mine.public_id}", owner="ann", audit=noted(tenant="a")))
    await seen.note([noted("dlq.revealed", tenant="a")])
    await seen.set_policy(_policy("a"), noted("policy.set", tenant="a"))
    assert await seen.delete_policy("a", "", "t", noted("policy.deleted", tenant="a"))
    new = NewBulk(public_id="set-n", tenant="a", action="RESOLVE", by="ann", where=LetterFilter())
    await seen.create_bulk(new, noted("dlq.bulk_started", tenant="a"))
    for change in (BulkChange(BulkVerb.PAUSE), BulkChange(BulkVerb.RESUME), FASTER, STOP):
        assert await seen.change_bulk("set-n", change, noted("dlq.bulk_changed", tenant="a"))
    row = await kit.look(mine)
    assert (row.status, (await kit.letter(mine)).owner) == (RunStatus.PENDING, "ann")
    found = (await kit.store.runs(RunFilter(index={"f": "v"}), limit=9, cursor=None)).items
    assert [run.public_id for run in found] == [started[0].public_id]
    set_row = await kit.store.bulk_by_id("set-n")
    assert set_row is not None
    assert '"tenant": "a"' in (set_row.wanted or "")


async def test_a_view_can_write_only_about_runs_that_it_has_shown(kit: Kit) -> None:
    mine, _ = await two_tenants(kit)
    with pytest.raises(NotAllowed):
        await kit.store.tenant_view("a").apply([reopens(mine)])
    seen = kit.store.tenant_view("a")
    assert await seen.run(mine.public_id) is not None
    assert (await seen.apply([reopens(mine)]))[0].kept


async def test_circuits_are_seen_and_changed_by_their_own_tenant_only(kit: Kit) -> None:
    for tenant in ("a", "b"):
        turn = turned(CLOSED, tenant=tenant, audit=(noted("circuit.closed", tenant=tenant),))
        assert (await kit.store.tenant_view(tenant).update_circuit(turn)).kept
    seen = kit.store.tenant_view("a")
    assert [row.tenant for row in (await seen.circuits(CircuitFilter(), limit=9, cursor=None)).items] == ["a"]
    assert (await seen.circuits(CircuitFilter(tenant="b"), limit=9, cursor=None)).items == []
    assert (await seen.circuit("a", "payments")).row.generation == 3
    with pytest.raises(NotAllowed):
        await seen.circuit("b", "payments")
    with pytest.raises(NotAllowed):
        await seen.update_circuit(turned(HALF_OPEN, tenant="b", version=1))
    with pytest.raises(NotAllowed):
        await kit.store.tenant_view("a", ["w"]).update_circuit(turned(HALF_OPEN, tenant="a", version=1))
    assert (await kit.store.circuit("b", "payments")).row.generation == 3


async def test_messages_are_seen_and_decided_on_by_their_own_tenant(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("all", "*"))
    assert await outbox.publish(say("m1", "orders.paid", key="k"))
    (tenant,) = {row.tenant for row in (await kit.store.messages(OutboxFilter(), limit=9, cursor=None)).items}
    line = noted("outbox.skipped", tenant=tenant)
    skip = DeliveryDecision(message="m1", choice=DeliveryAction.SKIP, sink=None, audit=line)
    other = kit.store.tenant_view("another")
    assert await other.message("m1") is await other.message("m1", tenant=tenant) is None
    assert (await other.messages(OutboxFilter(), limit=9, cursor=None)).items == []
    assert await other.blocked_keys(limit=9) == []
    foreign = replace(skip, audit=noted("outbox.skipped", tenant="another"))
    assert await other.decide_deliveries(foreign) == 0
    with pytest.raises(NotAllowed):
        await other.decide_deliveries(skip)
    own = kit.store.tenant_view(tenant)
    assert await own.message("m1") == await kit.store.message("m1")
    assert await own.decide_deliveries(skip) == 1


async def test_a_message_of_a_bundle_is_decided_on_by_its_own_tenant(kit: Kit) -> None:
    outbox = await Outbox.open(kit, sink("s", "*"))
    wrote = writes(outbox.run, entry(0, done=0), messages=(say("m1", "orders.paid"), say("m2", "orders.paid")))
    (answer,) = await kit.store.apply([wrote], worker=outbox.worker, carriers=[SinkLease("s", DAY)])
    assert answer.bundled
    tenant = outbox.run.tenant
    skip = DeliveryDecision(
        message="m1", choice=DeliveryAction.SKIP, sink=None, audit=noted("outbox.skipped", tenant=tenant)
    )
    assert await kit.store.tenant_view(tenant).decide_deliveries(skip) == 1


# -- workflows -----------------------------------------------------------------------------------------


async def test_a_view_of_one_workflow_shows_no_other(kit: Kit) -> None:
    (mine,) = await kit.start(1, tenant="a", workflow="w")
    (other,) = await kit.start(1, tenant="a", workflow="x")
    await kit.worker("w", "x")
    seen = kit.store.tenant_view("a", ["w"])
    assert await seen.run(mine) is not None
    assert await seen.run(other) is None
    assert await seen.runs_by_id([other]) == await seen.cases([other]) == []
    page = await seen.runs(RunFilter(), limit=9, cursor=None)
    assert [run.public_id for run in page.items] == [mine]
    assert [item.name for item in await seen.workflows()] == ["w"]
    with pytest.raises(NotAllowed, match="these workflows only: w"):
        await seen.runs(RunFilter(workflow="x"), limit=9, cursor=None)
    with pytest.raises(NotAllowed):
        await seen.start([kit.new(tenant="a", workflow="x")])
    with pytest.raises(NotAllowed):
        await seen.set_policy(_policy("a"), noted(tenant="a"))
    with pytest.raises(NotAllowed):
        await seen.create_bulk(_set("a"), noted(tenant="a"))


async def test_a_view_of_one_workflow_shows_the_bulk_actions_begun_for_it(kit: Kit) -> None:
    await two_tenants(kit)
    whole, seen = kit.store.tenant_view("a"), kit.store.tenant_view("a", ["w"])
    for name, workflow in (("set-w", "w"), ("set-x", "x"), ("set-all", None)):
        where = LetterFilter(workflow=workflow)
        new = NewBulk(public_id=name, tenant="a", action="RESOLVE", by="ann", where=where)
        await whole.create_bulk(new, noted("dlq.bulk_started", tenant="a"))
    for name in ("set-a", "set-x", "set-all"):
        row = await whole.bulk_by_id(name)
        assert row is not None
        assert await seen.bulk_by_id(name) is None, name
        assert (await seen.bulk_items(row, None, limit=9, cursor=None)).items == []
        assert await seen.bulk_run_counts(row) == {}
        assert not await seen.change_bulk(name, STOP, noted(tenant="a"))
        assert await whole.bulk_by_id(name) == row
    assert await seen.change_bulk("set-w", STOP, noted("dlq.bulk_stopped", tenant="a"))


async def test_a_view_of_several_workflows_lists_those_and_no_others(kit: Kit) -> None:
    made = {
        workflow: await kit.start(2, tenant=tenant, workflow=workflow)
        for tenant, workflow in (("a", "w"), ("a", "x"), ("a", "y"), ("b", "z"))
    }
    await kit.start(1, tenant="b", workflow="w")
    worker = await kit.worker("w", "x", "y", "z")
    for run in (await kit.claim(worker, "w", "x", "y", "z")).runs:
        await kit.fail(worker, run)
    for names, wanted in ((["w", "x"], ["w", "x"]), (["w", "x", *(f"n{number}" for number in range(40))], ["w", "x"])):
        seen = kit.store.tenant_view("a", names)
        newest = [id for workflow in reversed(wanted) for id in reversed(made[workflow])]
        page = await seen.runs(RunFilter(), limit=3, cursor=None)
        rest = await seen.runs(RunFilter(), limit=3, cursor=page.next)
        assert [row.public_id for row in [*page.items, *rest.items]] == newest
        letters = await seen.letters(LetterFilter(), limit=9, cursor=None)
        assert {row.run_id for row in letters.items} == set(newest)
        assert {
            row.workflow for row in (await seen.letters(LetterFilter(status="OPEN"), limit=9, cursor=None)).items
        } == {"w", "x"}
        assert (await seen.total(RunFilter())).count == (await seen.total(LetterFilter(status="OPEN"))).count == 4
        assert (await seen.facets(LetterFilter(), most=9)).by["workflow"] == {"w": 2, "x": 2}
        assert len(await seen.run_summaries(RunFilter(), most=9)) == 4
        assert len((await seen.runs(RunFilter(workflow="x"), limit=9, cursor=None)).items) == 2
        assert len((await seen.runs(RunFilter(workflows=("x",)), limit=9, cursor=None)).items) == 2
        for other in (RunFilter(workflow="y"), RunFilter(workflows=("x", "y"))):
            with pytest.raises(NotAllowed):
                await seen.runs(other, limit=9, cursor=None)
    with pytest.raises(InputError, match="name one of w, x"):  # a bulk action belongs to one workflow
        await kit.store.tenant_view("a", ["w", "x"]).count_letters(LetterFilter())
    assert (await kit.store.tenant_view("a", []).runs(RunFilter(), limit=9, cursor=None)).items == []


async def test_a_view_s_first_page_is_full_however_many_newer_rows_others_have(kit: Kit) -> None:
    mine = (await kit.start(25, tenant="a"))[::-1]
    await kit.store.start([kit.new(tenant="b") for _ in range(500)])
    seen = kit.store.tenant_view("a")
    page = await seen.runs(RunFilter(), limit=20, cursor=None)
    rest = await seen.runs(RunFilter(), limit=20, cursor=page.next)
    assert [row.public_id for row in [*page.items, *rest.items]] == mine
