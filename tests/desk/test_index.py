"""`@app.workflow(index=...)`: finds runs and letters by fields of their inputs, replays included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from desk_kit import ONCE, ended, failed, new_app
from store_keys import with_keys

from redrive import Redrive
from redrive.app import Workflow
from redrive.errors import RegistrationError
from redrive.store import open_store
from redrive.store.encryption.keyring import Keyring
from redrive.store.filters import LetterFilter, RunFilter
from redrive.testing import Engine, engine
from redrive.testing.virtual_clock import VirtualClock


@dataclass
class Customer:
    email: str


def indexed(app: Redrive | None = None) -> tuple[Redrive, Workflow[..., Any, Any]]:
    app = app or new_app()

    @app.step(retry=ONCE)
    async def charge(order_id: int) -> None:
        raise ConnectionError("the bank is down")

    @app.workflow(index=["order_id", "customer.email"])
    async def order(order_id: int, customer: Customer) -> None:
        await charge(order_id)

    return app, order


async def runs(e: Engine, **index: Any) -> list[str]:
    return [run.id for run in (await e.app.runs.list(RunFilter(index=index))).items]


async def letters(e: Engine, **index: Any) -> list[str]:
    return [letter.id for letter in (await e.app.dlq.list(LetterFilter(index=index))).items]


async def test_runs_and_letters_are_found_by_declared_fields() -> None:
    app, order = indexed()
    async with engine(app) as e:
        letter = await failed(e, order, 42, Customer("ann@example.org"))
        await failed(e, order, 43, Customer("bob@example.org"))
        assert await runs(e, order_id=42) == [letter.run_id]
        assert await letters(e, **{"customer.email": "ann@example.org"}) == [letter.id]
        assert await letters(e, **{"customer.email": "ann@example.org", "order_id": 43}) == []


async def test_an_edited_replay_is_found_by_its_new_input() -> None:
    app, order = indexed()
    async with engine(app) as e:
        letter = await failed(e, order, 42, Customer("ann@example.org"))
        await e.app.dlq.replay(letter.id, patch={"order_id": 7}, by="ann")
        await e.finish_all()
        assert await runs(e, order_id=42) == []
        assert await runs(e, order_id=7) == await runs(e, **{"customer.email": "ann@example.org"})
        assert await letters(e, order_id=7) == [letter.id]


async def test_a_full_replay_is_indexed_as_a_separate_run() -> None:
    app, order = indexed()
    async with engine(app) as e:
        letter = await failed(e, order, 42, Customer("ann@example.org"))
        plain = await e.app.dlq.replay(letter.id, "FULL", by="ann")
        await ended(e, plain.run_id)
        edited = await e.app.dlq.replay(letter.id, "FULL", patch={"order_id": 7}, by="ann")
        await ended(e, edited.run_id)
        assert await runs(e, order_id=42) == [plain.run_id, letter.run_id]
        assert await runs(e, order_id=7) == [edited.run_id]
        assert await letters(e, order_id=7) == [letter.id]


async def test_a_set_can_select_letters_by_an_indexed_field() -> None:
    app, order = indexed()
    async with engine(app) as e:
        letter = await failed(e, order, 42, Customer("ann@example.org"))
        await failed(e, order, 43, Customer("bob@example.org"))
        begun = await e.app.dlq.ignore_many(LetterFilter(index={"order_id": 42}), by="ann")
        await e.settle()
        assert (await e.app.dlq.set(begun.id)).total == 1
        assert str((await e.app.dlq.get(letter.id)).status) == "IGNORED"


async def test_encrypted_values_are_found_under_every_key_and_not_stored_in_plain_text() -> None:
    app, order = indexed()
    clock = VirtualClock(seed=0)
    old, new = bytes(range(32)), bytes(32)
    store = open_store("sqlite:///:memory:", clock, Keyring([old]))
    async with engine(app, store=store, clock=clock) as e:
        letter = await failed(e, order, 42, Customer("ann@example.org"))
        assert await letters(e, order_id=42) == [letter.id]
        rows = await e.fetch("SELECT value FROM run_index")
        assert len(rows) == 2
        assert all(row["value"].startswith("det1:") for row in rows)
        rotated = with_keys(store, Keyring([new, old]))
        where = RunFilter(index={"customer.email": "ann@example.org"})
        assert [run.public_id for run in (await rotated.runs(where, limit=10, cursor=None)).items] == [letter.run_id]
        stranger = with_keys(store, Keyring([new]))
        assert (await stranger.runs(where, limit=10, cursor=None)).items == []
        begun = await e.app.dlq.ignore_many(LetterFilter(index=dict(where.index or {})), by="ann")
        for table in ("bulk_actions", "audit"):
            assert "ann@example.org" not in str(await e.fetch(f"SELECT * FROM {table}"))
        await e.settle()
        assert (await e.app.dlq.set(begun.id)).done == 1


async def test_a_workflow_without_an_index_stores_no_index_values() -> None:
    app = new_app()

    @app.workflow
    async def plain(order_id: int) -> int:
        return order_id

    assert "index" not in plain.options_text
    async with engine(app) as e:
        await e.run(plain, 42)
        assert await e.fetch("SELECT * FROM run_index") == []


@pytest.mark.parametrize(
    "index", ["order_id", ["orderid"], [""], ["order_id."], [7], [f"order_id.f{n}" for n in range(17)]]
)
def test_an_invalid_index_field_is_refused_at_registration(index: Any) -> None:
    app = new_app()

    async def order(order_id: int) -> None: ...

    with pytest.raises(RegistrationError, match="index of workflow 'order'"):
        app.workflow(index=index)(order)
