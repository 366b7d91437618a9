"""Durability on SQLite: commits that wait for the disk, and commits that the next one makes durable."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable

from letter_kit import failed, reopens
from store_kit import HOUR, Kit, noted

from redrive.store.bulk import BulkItemResult, BulkItemStatus, NewBulk


async def waits_for_the_disk(kit: Kit, work: Callable[[], Awaitable[object]]) -> bool:
    """Return True if the writes of the work are on the disk when it is acknowledged."""
    commits: list[bool] = []

    def hear(con: sqlite3.Connection) -> None:
        lazy = False

        def listen(statement: str) -> None:
            nonlocal lazy
            if statement.startswith("PRAGMA synchronous"):
                lazy = statement.endswith("NORMAL")
            if statement == "COMMIT":
                commits.append(not lazy)

        con.set_trace_callback(listen)

    lines = kit.store._connections
    await lines.run_on_writer(hear)
    await work()
    await lines.run_on_writer(lambda con: con.set_trace_callback(None))
    (waited,) = commits
    assert await lines.run_on_writer(lambda con: con.execute("PRAGMA synchronous").fetchone()[0]) == 2
    return waited


async def test_a_decision_is_on_the_disk_before_it_is_acknowledged(on_file: Kit) -> None:
    _, run = await failed(on_file)
    assert await waits_for_the_disk(on_file, lambda: on_file.store.apply([reopens(run)]))


async def test_results_of_a_bulk_action_reach_the_disk_with_the_next_commit(on_file: Kit) -> None:
    """A bulk action would repeat lost results, so they do not wait for the disk."""
    store = on_file.store
    await failed(on_file)
    new = NewBulk(public_id="s", tenant="", action="REPLAY", by="ann", letters=("dl-x",))
    assert await waits_for_the_disk(on_file, lambda: store.create_bulk(new, noted("dlq.bulk_created")))
    claimed = await store.claim_bulk(lease=HOUR)
    assert claimed is not None
    items = await store.advance(claimed, [], limit=5, lease=HOUR)
    marks = [BulkItemResult(id=item.id, status=BulkItemStatus.DONE) for item in items or ()]
    assert not await waits_for_the_disk(on_file, lambda: store.advance(claimed, marks, limit=5, lease=HOUR))


async def test_the_texts_of_a_letter_are_deleted_with_it(on_file: Kit) -> None:
    await failed(on_file)
    await failed(on_file)

    def left(con: sqlite3.Connection) -> list[tuple[int]]:
        con.execute("DELETE FROM letters WHERE id = 1")
        return con.execute("SELECT letter FROM letter_texts").fetchall()

    assert await on_file.store._connections.write(left) == [(2,)]
