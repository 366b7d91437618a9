"""What waits for the disk, and what reaches it with the commit that follows."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable

from letter_kit import failed, reopens
from store_kit import HOUR, Kit, noted

from redrive.store.bulk import BulkItemResult, NewBulk, SetItemStatus


async def waits_for_the_disk(kit: Kit, work: Callable[[], Awaitable[object]]) -> bool:
    """Whether what is written meanwhile is on the disk when it is acknowledged."""
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


async def test_what_a_person_decides_is_on_the_disk_before_it_is_acknowledged(on_file: Kit) -> None:
    _, run = await failed(on_file)
    assert await waits_for_the_disk(on_file, lambda: on_file.store.apply([reopens(run)]))


async def test_what_a_set_would_do_again_reaches_the_disk_with_the_next_commit(on_file: Kit) -> None:
    """The marks of a set; the next commit that waits for the disk brings them there."""
    store = on_file.store
    await failed(on_file)
    new = NewBulk(public_id="s", tenant="", action="REPLAY", by="ann", letters=("dl-x",))
    assert await waits_for_the_disk(on_file, lambda: store.create_bulk(new, noted("dlq.set_created")))
    claimed = await store.claim_bulk(lease=HOUR)
    assert claimed is not None
    items = await store.advance(claimed, [], limit=5, lease=HOUR)
    marks = [BulkItemResult(id=item.id, status=SetItemStatus.DONE) for item in items or ()]
    assert not await waits_for_the_disk(on_file, lambda: store.advance(claimed, marks, limit=5, lease=HOUR))


async def test_what_a_letter_tells_goes_with_it(on_file: Kit) -> None:
    await failed(on_file)
    await failed(on_file)

    def left(con: sqlite3.Connection) -> list[tuple[int]]:
        con.execute("DELETE FROM letters WHERE id = 1")
        return con.execute("SELECT letter FROM letter_texts").fetchall()

    assert await on_file.store._connections.write(left) == [(2,)]
