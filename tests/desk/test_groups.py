"""`app.dlq.groups`: failures grouped by cause."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from desk_kit import Shop, ended, failed, new_app, shop

from redrive import NonRetryable
from redrive.core.redact import MASK
from redrive.errors import InputError, NotFound
from redrive.store.filters import LetterFilter
from redrive.testing import Crash, Engine, engine
from redrive.testing.faulty_store import FAIL, LOSE, Fault, Plan, crash_after, crash_before


@pytest.fixture
async def desk() -> Any:
    made = shop()
    async with engine(made.app) as e:
        yield e, made


async def test_a_group_shows_its_failure_its_count_and_its_first_time(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    began = e.now
    for amount in (1, 2):
        await failed(e, made.order, "tea", amount)
    await e.advance("1h")
    letter = await failed(e, made.order, "tea", 3)
    await e.settle()
    page = await e.app.dlq.groups()
    (group,) = page.items
    assert (group.open, group.total, group.tenant) == (3, 3, "default")
    assert (group.workflows, group.steps) == (("order",), ("charge",))
    assert group.first_seen == began
    assert group.trend[-2:] == (2, 1)
    assert (group.sample_id, group.message, group.fingerprint) == (letter.id, letter.reason, letter.fingerprint)
    assert group.error == letter.message
    assert page.as_of == e.now


async def test_a_letter_replayed_successfully_is_no_longer_counted_as_open(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    letter = await failed(e, made.order, "tea", 1)
    made.ledger.broken.clear()
    await ended(e, (await e.app.dlq.replay(letter.id, by="ann")).run_id)
    await e.settle()
    assert (await e.app.dlq.groups()).items == []
    (group,) = (await e.app.dlq.groups(status=None)).items
    assert (group.open, group.total) == (0, 1)


async def test_a_reopened_letter_counts_as_open_but_not_as_a_new_failure(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    letter = await failed(e, made.order, "tea", 1)
    await e.app.dlq.ignore(letter.id, by="ann")
    await e.app.dlq.reopen(letter.id, by="ann")
    await e.settle()
    (group,) = (await e.app.dlq.groups()).items
    assert (group.open, group.total, sum(group.trend)) == (1, 1, 1)


async def test_a_replay_from_the_start_that_fails_again_counts_the_letter_once(desk: tuple[Engine, Shop]) -> None:
    """The letter moves to the new run, so one letter was seen twice."""
    e, made = desk
    letter = await failed(e, made.order, "tea", 1)
    await ended(e, (await e.app.dlq.replay(letter.id, "FULL", by="ann")).run_id)
    await e.settle()
    (group,) = (await e.app.dlq.groups()).items
    assert (group.open, group.total, sum(group.trend)) == (1, 1, 2)


async def test_tenants_see_only_their_own_groups(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    await failed(e, made.order, "tea", 1, tenant="acme")
    await failed(e, made.order, "tea", 1, tenant="globex")
    await e.settle()
    assert [group.tenant for group in (await e.app.dlq.groups()).items] == ["globex", "acme"]
    assert [group.tenant for group in (await e.app.dlq.groups("acme")).items] == ["acme"]


async def test_secrets_in_the_message_are_hidden() -> None:
    app = new_app()

    @app.workflow
    async def leaky() -> None:
        raise NonRetryable("refused for Bearer abcdefghijklmnopqrstuvwxyz012345")

    async with engine(app) as e:
        await failed(e, leaky)
        await e.settle()
        (group,) = (await e.app.dlq.groups()).items
        assert group.message is not None
        assert MASK in group.message
        assert "abcdefghijklmnopqrstuvwxyz012345" not in group.message


def once(name: str, fault: Fault) -> Plan:
    """Return a plan with one fault, at the first call of that name by any worker."""
    left = [fault]
    return lambda call: left.pop() if call.name == name and left else None


@pytest.mark.parametrize("fault", [crash_before(Crash()), crash_after(Crash()), LOSE, FAIL])
async def test_a_crash_while_counting_groups_counts_nothing_twice(fault: Fault) -> None:
    made = shop()
    async with engine(made.app, plan=once("fold", fault)) as e:
        await failed(e, made.order, "tea", 1)
        await e.settle()
        await e.settle()
        (group,) = (await e.app.dlq.groups()).items
        assert (group.open, group.total, sum(group.trend)) == (1, 1, 1)


async def test_invalid_arguments_are_refused(desk: tuple[Engine, Shop]) -> None:
    e, _ = desk
    with pytest.raises(InputError, match="cursor"):
        await e.app.dlq.groups(cursor="nonsense")
    with pytest.raises(InputError, match="limit"):
        await e.app.dlq.groups(limit=0)
    with pytest.raises(InputError, match="OPEN"):
        await e.app.dlq.groups(status="REPLAYING")


async def test_one_cause_has_one_fingerprint_for_each_tenant_across_restarts(tmp_path: Path) -> None:
    """The secret is stored: a worker that starts later with another clock computes the same groups."""
    seen: dict[str, set[str]] = {"acme": set(), "globex": set()}
    elsewhere: set[str] = set()
    for place, seed in (("one.db", 1), ("one.db", 2), ("two.db", 3)):
        made = shop()
        async with engine(made.app, store=f"sqlite:///{tmp_path}/{place}", seed=seed) as e:
            for tenant in seen:
                letter = await failed(e, made.order, "tea", 1, tenant=tenant)
                (elsewhere if place == "two.db" else seen[tenant]).add(letter.fingerprint)
    assert [len(found) for found in seen.values()] == [1, 1]
    assert len(seen["acme"] | seen["globex"] | elsewhere) == 4


async def test_assigning_commenting_and_muting_a_group_is_audited(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    letter = await failed(e, made.order, "tea", 1)
    await e.settle()
    cause, dlq = letter.fingerprint, e.app.dlq
    assert (await dlq.assign_group(cause, to="kim", by="ann")).owner == "kim"
    assert [line.after for line in (await dlq.comment_group(cause, "asked the bank", by="ann")).comments] == [
        "asked the bank"
    ]
    muted = await dlq.mute_group(cause, by="ann", reason="known")
    assert (muted.muted, muted.muted_by, muted.muted_until) == (True, "ann", None)
    assert ((await dlq.groups(muted=False)).total, (await dlq.groups(muted=True)).total) == (0, 1)
    await failed(e, made.order, "tea", 2)
    await e.settle()
    assert [group.muted for group in (await dlq.groups(muted=False)).items] == [False]
    until = e.now + timedelta(days=1)
    assert (await dlq.mute_group(cause, until=until, by="ann")).muted_until == until
    west, east = (timezone(timedelta(hours=hours)) for hours in (-23, 23))
    for wrong, words in (
        (e.now, "until must be in the future"),
        (datetime(2099, 1, 1), "time zone"),  # noqa: DTZ001
        (datetime(9999, 12, 31, 23, tzinfo=west), "out of range"),
        (datetime(1, 1, 1, tzinfo=east), "out of range"),
    ):
        with pytest.raises(InputError, match=words):
            await dlq.mute_group(cause, until=wrong, by="ann")
    found = await dlq.unmute_group(cause, by="ann")
    events = [line.event.rpartition("_")[2] for line in found.history]
    assert (found.muted, events) == (False, ["assigned", "commented", "muted", "muted", "unmuted"])
    with pytest.raises(NotFound, match="cause 'f1' does not exist"):
        await dlq.group("f1")
    with pytest.raises(NotFound):
        await dlq.group(cause, tenant="acme")
    with pytest.raises(InputError, match="sort must be count or trend or newest"):
        await dlq.groups(sort="size")


async def test_a_group_shows_its_bulk_retries_and_resolutions(desk: tuple[Engine, Shop]) -> None:
    e, made = desk
    letter = await failed(e, made.order, "tea", 1)
    await e.settle()
    begun = await e.app.dlq.replay_many(LetterFilter(fingerprint=letter.fingerprint), by="ann")
    await e.advance("1m")
    found = await e.app.dlq.group(letter.fingerprint)
    assert (found.retried_by, found.retried_bulk, found.open) == ("ann", begun.id, 1)
    await e.app.dlq.resolve_many(LetterFilter(fingerprint=letter.fingerprint), by="kim", reason="fixed")
    await e.advance("1m")
    await e.advance("1m")  # workers execute the bulk action, then count
    found = await e.app.dlq.group(letter.fingerprint)
    assert (found.resolved_by, found.resolved_version, found.open) == ("kim", letter.version, 0)
    assert found.back_version is None
    await e.advance("1h")
    await failed(e, made.order, "tea", 2)
    await e.settle()
    assert (await e.app.dlq.group(letter.fingerprint)).back_version == letter.version
