"""What people set: retry policies and pauses."""

from __future__ import annotations

from dataclasses import replace

from store_kit import SECOND, Kit

from redrive.store.port import PolicyRow

DEFAULT = PolicyRow(
    tenant="", workflow="", step="", policy='{"max_retries":1}', updated_at=0, updated_by="ann"
)


async def test_a_policy_is_stored_with_the_store_s_time(kit: Kit) -> None:
    await kit.store.set_policy(DEFAULT)
    assert await kit.store.policies() == [replace(DEFAULT, updated_at=kit.clock.now())]


async def test_there_is_one_policy_for_each_place_even_for_any(kit: Kit) -> None:
    await kit.store.set_policy(DEFAULT)
    kit.clock.move(SECOND)
    await kit.store.set_policy(replace(DEFAULT, policy='{"max_retries":2}', updated_by="bob"))
    await kit.store.set_policy(replace(DEFAULT, workflow="w"))
    stored = await kit.store.policies()
    assert [(row.workflow, row.policy, row.updated_by) for row in stored] == [
        ("", '{"max_retries":2}', "bob"),
        ("w", '{"max_retries":1}', "ann"),
    ]


async def test_a_policy_is_deleted_once(kit: Kit) -> None:
    await kit.store.set_policy(DEFAULT)
    assert await kit.store.delete_policy("", "", "")
    assert not await kit.store.delete_policy("", "", "")
    assert await kit.store.policies() == []


async def test_the_first_pause_counts_and_one_resume_ends_it(kit: Kit) -> None:
    await kit.store.pause("w", by="ann")
    await kit.store.pause("w", by="bob")
    await kit.store.pause("a", by="bob")
    assert await kit.store.paused() == {"a": "bob", "w": "ann"}
    await kit.store.resume("w")
    await kit.store.resume("w")
    assert await kit.store.paused() == {"a": "bob"}
