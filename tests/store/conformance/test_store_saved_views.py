"""Conformance tests of saved views: their owners, and the users who see them."""

from __future__ import annotations

import pytest
from store_kit import SECOND, Kit, noted

from redrive.errors import NotAllowed
from redrive.record_fields import replace
from redrive.store.filters import AuditFilter
from redrive.store.settings import NewView

MINE = NewView(tenant="acme", list="letters", owner="ann", name="late", query="code=timeout&text=4711", by="ann")
SHARED = replace(MINE, owner="", name="ours")
THEIRS = replace(MINE, tenant="globex", name="theirs")


async def put(kit: Kit, *views: NewView) -> None:
    for view in views:
        assert await kit.store.views.put(view, most=9, audit=None)


async def names(kit: Kit, tenant: str, owner: str) -> list[tuple[str, str]]:
    return [(row.list, row.name) for row in await kit.store.views.known(tenant, owner)]


async def test_each_user_has_private_views_and_the_shared_ones(kit: Kit) -> None:
    await put(kit, MINE, SHARED, THEIRS, replace(MINE, owner="bob", name="bobs"), replace(MINE, list="runs"))
    assert await names(kit, "acme", "ann") == [("letters", "late"), ("letters", "ours"), ("runs", "late")]
    assert await names(kit, "acme", "bob") == [("letters", "bobs"), ("letters", "ours")]
    assert await names(kit, "globex", "ann") == [("letters", "theirs")]
    row = (await kit.store.views.known("acme", "ann"))[0]
    assert (row.query, row.by, row.owner, row.at) == (MINE.query, "ann", "ann", kit.clock.now())


async def test_a_view_is_replaced_by_name_and_their_number_is_limited(kit: Kit) -> None:
    views = kit.store.views
    assert await views.put(MINE, most=1, audit=None)
    kit.clock.move(SECOND)
    assert await views.put(replace(MINE, query="stage=exec"), most=1, audit=None)
    (row,) = await views.known("acme", "ann")
    assert (row.query, row.at) == ("stage=exec", kit.clock.now())
    assert not await views.put(replace(MINE, name="more"), most=1, audit=noted(tenant="acme"))
    for other in (SHARED, replace(MINE, list="runs"), replace(MINE, owner="bob"), THEIRS):
        assert await views.put(other, most=1, audit=None)
    assert (await kit.store.audit(AuditFilter(), limit=9, cursor=None)).items == []


async def test_shared_views_are_audited_and_removed_once(kit: Kit) -> None:
    views = kit.store.views
    assert await views.put(SHARED, most=9, audit=noted("view.shared", tenant="acme"))
    assert not await views.remove(MINE.key, None)
    assert await views.remove(SHARED.key, noted("view.removed", tenant="acme"))
    assert not await views.remove(SHARED.key, noted("view.removed", tenant="acme"))
    assert await names(kit, "acme", "ann") == []
    log = (await kit.store.audit(AuditFilter(tenant="acme"), limit=9, cursor=None)).items
    assert [line.event for line in log] == ["view.removed", "view.shared"]


async def test_a_tenant_s_user_does_not_see_views_of_other_tenants(kit: Kit) -> None:
    await put(kit, MINE, SHARED, THEIRS)
    seen = kit.store.tenant_view("acme").views
    assert [row.name for row in await seen.known("acme", "ann")] == ["late", "ours"]
    assert await seen.known("globex", "ann") == await seen.known("globex", None) == []
    assert [row.owner for row in await seen.known("acme", None)] == ["ann", ""]
    for call in (
        seen.put(THEIRS, most=9, audit=None),
        seen.put(MINE, most=9, audit=noted(tenant="globex")),
        seen.remove(THEIRS.key, None),
    ):
        with pytest.raises(NotAllowed):
            await call
    assert await seen.put(replace(MINE, name="new"), most=9, audit=noted(tenant="acme"))
    assert await seen.remove(SHARED.key, noted(tenant="acme"))
    assert await names(kit, "acme", "ann") == [("letters", "late"), ("letters", "new")]
    assert await names(kit, "globex", "ann") == [("letters", "theirs")]
    some = kit.store.tenant_view("acme", {"w"}).views
    assert await some.known("acme", "ann") == []
    with pytest.raises(NotAllowed, match="some workflows"):
        await some.put(MINE, most=9, audit=None)
