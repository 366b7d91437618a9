"""Conformance tests of searchable fields: runs and letters are found by the stored fields of their inputs."""

from __future__ import annotations

from typing import Any

import pytest
from store_kit import DAY, Kit, becomes, ends_in_letter

from redrive.core.states import LetterStatus, RunStatus
from redrive.core.transitions import AuditWrite, LetterStatusWrite, NewRun, ReopenWrite, RunWrite, Transition
from redrive.errors import InputError
from redrive.store.bulk import NewBulk
from redrive.store.chores import PurgeRequest
from redrive.store.claims import ClaimedRun
from redrive.store.filters import LetterFilter, RunFilter

ORDER = (("order_id", "42"), ("customer.email", "ann@example.org"))


async def found(kit: Kit, **index: Any) -> list[str]:
    page = await kit.store.runs(RunFilter(index=index), limit=100, cursor=None)
    return [run.public_id for run in page.items]


async def letters(kit: Kit, **index: Any) -> list[str]:
    page = await kit.store.letters(LetterFilter(index=index), limit=100, cursor=None)
    return [letter.run_id for letter in page.items]


async def failed(kit: Kit, **more: Any) -> ClaimedRun:
    worker, run = await kit.held(**more)
    await kit.store.apply([ends_in_letter(run)], worker=worker)
    return run


async def test_a_run_is_found_by_its_fields(kit: Kit) -> None:
    (first,) = await kit.start(index=ORDER)
    (second,) = await kit.start(index=(("order_id", "42"),))
    await kit.start(index=(("order_id", "43"), ("other", "42")))
    await kit.start()
    assert await found(kit, order_id="42") == [second, first]
    assert await found(kit, order_id=42) == [second, first]
    assert await found(kit, **{"order_id": "42", "customer.email": "ann@example.org"}) == [first]
    assert await found(kit, order_id="4") == await found(kit, unknown="42") == []
    assert len(await found(kit, order_id=["42", "43"])) == 3


async def test_fields_are_combined_with_other_conditions_and_pages(kit: Kit) -> None:
    runs = await kit.start(5, index=ORDER)
    await kit.start(2, index=ORDER, tenant="other")
    where = RunFilter(index={"order_id": "42"}, tenant="default", status="PENDING")
    first = await kit.store.runs(where, limit=3, cursor=None)
    second = await kit.store.runs(where, limit=3, cursor=first.next)
    names = [run.public_id for page in (first, second) for run in page.items]
    assert names == list(reversed(runs))
    back = await kit.store.runs(where, limit=3, cursor=second.prev)
    assert back.items == first.items


async def test_a_repeated_or_refused_start_adds_no_fields(kit: Kit) -> None:
    run = kit.new(index=ORDER, key="k", key_hash="h", key_keeps=DAY)
    for _ in range(2):
        await kit.store.start([run])
    (clash,) = await kit.store.start([kit.new(index=(("order_id", "7"),), key="k", key_hash="x")])
    assert clash.clash
    assert await found(kit, order_id="42") == [run.public_id]
    assert await found(kit, order_id="7") == []


async def test_a_letter_is_found_by_the_fields_of_its_run(kit: Kit) -> None:
    run = await failed(kit, index=ORDER)
    await failed(kit, index=(("order_id", "43"),))
    assert await letters(kit, order_id="42") == [run.public_id]
    assert await kit.store.count_letters(LetterFilter(index={"order_id": "42"})) == 1


async def test_a_bulk_action_selects_letters_by_their_fields(kit: Kit) -> None:
    run = await failed(kit, index=ORDER)
    await failed(kit)
    new = NewBulk(public_id="s", tenant="", action="IGNORE", by="ann", where=LetterFilter(index={"order_id": 42}))
    await kit.store.create_bulk(new, AuditWrite(event="e", tenant="", by="ann", subject="s", token="t"))
    row = await kit.store.claim_bulk(DAY)
    assert row is not None
    items = await kit.store.advance(row, (), limit=10, lease=DAY)
    assert items is not None
    assert [item.letter for item in items] == [f"dl-{run.public_id}"]


async def test_an_edited_input_is_found_by_its_new_fields_only(kit: Kit) -> None:
    run = await kit.look(await failed(kit, index=ORDER))
    reopening = ReopenWrite(letter=f"dl-{run.public_id}", input="{}", index=(("order_id", "7"),))
    change = RunWrite(status=RunStatus.PENDING, wake_in=0, take=True)
    edit = Transition(run=run.id, tenant=run.tenant, fence=run.fence, change=change, reopens=reopening)
    late = Transition(run=run.id, tenant=run.tenant, fence=run.fence + 7, change=change, reopens=reopening)
    assert not (await kit.store.apply([late]))[0].kept
    assert await found(kit, order_id="42") == [run.public_id]
    assert (await kit.store.apply([edit]))[0].kept
    assert await found(kit, order_id="42") == await found(kit, **{"customer.email": "ann@example.org"}) == []
    assert await found(kit, order_id="7") == [run.public_id]


async def test_reopening_without_new_fields_keeps_the_old_ones(kit: Kit) -> None:
    run = await kit.look(await failed(kit, index=ORDER))
    change = RunWrite(status=RunStatus.PENDING, wake_in=0, take=True)
    reopening = ReopenWrite(letter=f"dl-{run.public_id}")
    again = Transition(run=run.id, tenant=run.tenant, fence=run.fence, change=change, reopens=reopening)
    assert (await kit.store.apply([again]))[0].kept
    assert await found(kit, order_id="42") == [run.public_id]


async def test_a_run_that_a_decision_starts_is_found_by_its_fields(kit: Kit) -> None:
    run = await kit.look(await failed(kit, index=ORDER))
    new: NewRun = kit.new(index=(("order_id", "7"),), letter=f"dl-{run.public_id}")
    move = LetterStatusWrite(letter=f"dl-{run.public_id}", status=LetterStatus.REPLAYING, run=new.public_id)
    change = RunWrite(status=RunStatus.FAILED, take=True)
    start = Transition(run=run.id, tenant=run.tenant, fence=run.fence, change=change, starts=(new,), move=move)
    late = Transition(run=run.id, tenant=run.tenant, fence=run.fence + 7, change=change, starts=(new,))
    assert not (await kit.store.apply([late]))[0].kept
    assert await found(kit, order_id="7") == []
    assert (await kit.store.apply([start]))[0].kept
    assert await found(kit, order_id="7") == [new.public_id]
    assert await letters(kit, order_id="7") == [new.public_id]


async def test_a_purge_deletes_the_fields_of_a_run(kit: Kit) -> None:
    worker, run = await kit.held(index=ORDER, key="k", key_hash="h", key_keeps=900 * DAY)
    await kit.store.apply([becomes(run, RunStatus.SUCCESS, output="1")], worker=worker)
    kit.clock.move(10 * DAY)
    await kit.store.purge(PurgeRequest(runs=DAY, letters=DAY, workers=900 * DAY, limit=100))
    assert await kit.store.run(run.public_id) is not None
    assert await found(kit, order_id="42") == []


async def test_every_text_is_found_unchanged(kit: Kit) -> None:
    from redrive.core.new_run import format_index_value

    for value in ("żółć", "a'b\"c", "x" * 5000, "a\nb", "null\0", "", "sha256:x", "%"):
        (run,) = await kit.start(index=(("field", format_index_value(value)),))
        await kit.start(index=(("field", format_index_value(value + "x")),))
        assert await found(kit, field=value) == [run], value


@pytest.mark.parametrize("index", [{"field": None}, {"field": {"a": 1}}, {7: "x"}, ["field"]])
def test_invalid_fields_are_refused(index: Any) -> None:
    with pytest.raises(InputError):
        RunFilter(index=index)
    with pytest.raises(InputError):
        LetterFilter(index=index)
