"""Saved views of the desk: allowed names and queries, and the errors for others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from desk_kit import new_app

from redrive.desk.saved_views import MAX_VIEWS, ListName, SavedViews
from redrive.errors import Conflict, InputError, NotFound
from redrive.store.filters import AuditFilter
from redrive.testing import Engine, engine

LETTERS = ListName.LETTERS


@pytest.fixture
async def desk() -> AsyncIterator[tuple[Engine, SavedViews]]:
    async with engine(new_app()) as e:
        yield e, e.app.runtime.desk(e.store, e.clock).views


async def test_a_view_keeps_only_the_filters_of_a_query(desk: tuple[Engine, SavedViews]) -> None:
    _, views = desk
    new = await views.save(
        LETTERS, "  late   ones ", "?since=24h&code=timeout&tag=&text=%C5%BC%26", by="ann", tenant="acme"
    )
    assert (new.name, new.query, new.shared) == ("late ones", "code=timeout&text=%C5%BC%26&since=24h", False)
    assert new.wanted == {"code": "timeout", "text": "ż&", "since": "24h"}
    assert await views.list(ListName.RUNS, reader="ann", tenant="acme") == []
    assert await views.list(reader="ann", tenant="acme") == [new]
    assert await views.list(reader="bob", tenant="acme") == []


async def test_view_names_are_normalised(desk: tuple[Engine, SavedViews]) -> None:
    _, views = desk
    await views.save(LETTERS, "late  cafe\u0301", "code=timeout", by="ann")
    await views.save(LETTERS, "late caf\xe9", "stage=exec", by="ann")
    assert [view.query for view in await views.list(reader="ann")] == ["stage=exec"]
    await views.remove(LETTERS, " late cafe\u0301", by="ann")
    assert await views.list(reader="ann") == []


async def test_a_shared_view_belongs_to_the_tenant_and_is_audited(desk: tuple[Engine, SavedViews]) -> None:
    e, views = desk
    await views.save(LETTERS, "late", "code=timeout", by="ann", tenant="acme")
    await views.save(LETTERS, "late", "code=timeout", by="ann", tenant="acme", shared=True)
    (seen,) = await views.list(reader="bob", tenant="acme")
    assert (seen.name, seen.shared, seen.by) == ("late", True, "ann")
    assert await views.list(reader="bob", tenant="globex") == []
    await views.remove(LETTERS, "late", by="bob", tenant="acme", shared=True)
    with pytest.raises(NotFound, match="no shared view 'late'"):
        await views.remove(LETTERS, "late", by="bob", tenant="acme", shared=True)
    assert [view.shared for view in await views.list(reader="ann", tenant="acme")] == [False]
    log = (await e.app.audit.list(AuditFilter(tenant="acme"))).items
    assert [(line.event, line.by, line.subject) for line in log] == [
        ("view.removed", "bob", "late"),
        ("view.shared", "ann", "late"),
    ]
    assert log[1].after == {"list": "letters", "query": "code=timeout"}


@pytest.mark.parametrize(
    ("name", "query", "says"),
    [
        ("", "code=timeout", "cannot be the name of a view: use 1 to 60"),
        (" \t", "code=timeout", "cannot be the name of a view: use 1 to 60"),
        ("x" * 61, "code=timeout", "cannot be the name of a view: use 1 to 60"),
        ("a/b", "code=timeout", "without a slash"),
        ("a\u202eb", "code=timeout", "printable"),
        ("late", "code=" + "x" * 2000, "longer than 2,000"),
        ("late", "text=" + "ż" * 400, "longer than 2,000"),
        ("late", "text=\ud800", "half a character"),
        ("late", "text=%00", "a NUL"),
        ("late", "queue=fast", "cannot be filtered by queue"),
        ("late", "code=", "filter the list first"),
        ("late", "", "filter the list first"),
    ],
)
async def test_an_invalid_view_is_refused_with_advice(
    desk: tuple[Engine, SavedViews], name: str, query: str, says: str
) -> None:
    _, views = desk
    with pytest.raises(InputError, match=says):
        await views.save(LETTERS, name, query, by="ann", tenant="acme")
    assert await views.list(reader="ann", tenant="acme") == []


async def test_the_number_of_views_is_limited(desk: tuple[Engine, SavedViews]) -> None:
    _, views = desk
    for number in range(MAX_VIEWS):
        await views.save(LETTERS, f"view {number}", "code=timeout", by="ann", tenant="acme")
    with pytest.raises(Conflict, match="you already have 50 views of this list: remove one"):
        await views.save(LETTERS, "one more", "code=timeout", by="ann", tenant="acme")
    await views.save(LETTERS, "view 7", "stage=exec", by="ann", tenant="acme")
    await views.save(LETTERS, "one more", "code=timeout", by="bob", tenant="acme")
