"""Conformance tests of settings: retry policies, pauses and the key of fingerprints."""

from __future__ import annotations

import pytest
from store_kit import SECOND, Kit, noted

from redrive.core.transitions import AuditWrite
from redrive.errors import NotAllowed
from redrive.record_fields import replace
from redrive.store.filters import AuditFilter
from redrive.store.settings import PolicyRow

DEFAULT = PolicyRow(tenant="", workflow="", step="", policy='{"max_retries":1}', updated_at=0, updated_by="ann")

SET, DELETED = noted("policy.set"), noted("policy.deleted")


def paused(by: str) -> AuditWrite:
    return noted("workflow.paused", by=by)


RESUMED = noted("workflow.resumed")


async def lines(kit: Kit) -> list[tuple[str, str]]:
    """Return the lines of the audit log, oldest first."""
    page = await kit.store.audit(AuditFilter(), limit=50, cursor=None)
    return [(line.event, line.by) for line in reversed(page.items)]


async def test_a_policy_is_stored_with_the_time_of_the_store(kit: Kit) -> None:
    await kit.store.set_policy(DEFAULT, SET)
    assert await kit.store.policies() == [replace(DEFAULT, updated_at=kit.clock.now())]


async def test_each_scope_has_one_policy_even_the_scope_of_all_workflows(kit: Kit) -> None:
    await kit.store.set_policy(DEFAULT, SET)
    kit.clock.move(SECOND)
    await kit.store.set_policy(
        replace(DEFAULT, policy='{"max_retries":2}', updated_by="bob"), noted("policy.set", by="bob")
    )
    await kit.store.set_policy(replace(DEFAULT, workflow="w"), SET)
    stored = await kit.store.policies()
    assert [(row.workflow, row.policy, row.updated_by) for row in stored] == [
        ("", '{"max_retries":2}', "bob"),
        ("w", '{"max_retries":1}', "ann"),
    ]


async def test_a_policy_is_deleted_once(kit: Kit) -> None:
    await kit.store.set_policy(DEFAULT, SET)
    assert await kit.store.delete_policy("", "", "", DELETED)
    assert not await kit.store.delete_policy("", "", "", DELETED)
    assert await kit.store.policies() == []
    assert await lines(kit) == [("policy.set", "ann"), ("policy.deleted", "ann")]


async def test_the_first_pause_counts_and_one_resume_ends_it(kit: Kit) -> None:
    await kit.store.pause("w", paused("ann"))
    await kit.store.pause("w", paused("bob"))
    await kit.store.pause("a", paused("bob"))
    assert await kit.store.paused() == {"a": "bob", "w": "ann"}
    await kit.store.resume("w", RESUMED)
    await kit.store.resume("w", RESUMED)
    assert await kit.store.paused() == {"a": "bob"}
    noted_by = [("workflow.paused", "ann"), ("workflow.paused", "bob"), ("workflow.resumed", "ann")]
    assert await lines(kit) == noted_by


# -- the key of fingerprints ---------------------------------------------------------------------------


async def test_every_process_of_a_store_has_the_same_key_for_a_tenant(kit: Kit) -> None:
    """The first process creates the secret. A process that would draw a different one finds it."""
    key = kit.store.fingerprint_key("acme")
    assert len(key) == 32
    assert kit.store.fingerprint_key("globex") != key
    if kit.shared:
        kit.clock.new_secret = lambda: "another secret"  # type: ignore[method-assign]
        other = await kit.beside()
        assert other.fingerprint_key("acme") == key


async def test_a_view_has_the_key_of_its_own_tenant_only(kit: Kit) -> None:
    view = kit.store.tenant_view("acme")
    assert view.fingerprint_key("acme") == kit.store.fingerprint_key("acme")
    with pytest.raises(NotAllowed):
        view.fingerprint_key("globex")
