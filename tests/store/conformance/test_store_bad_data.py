"""Conformance tests of invalid data: it is refused by name, and valid data is returned unchanged."""

from __future__ import annotations

import pytest
from store_kit import Kit, becomes, ends_in_letter, entry, failed_try, writes

from redrive.core.states import RunStatus
from redrive.core.transitions import RunWrite
from redrive.errors import DataRefused, StoreUnavailable
from redrive.store.filters import RunFilter

ODD = [
    "",
    "\0",
    "a\0b\0",
    "\x1a;\x1aN\x1a",
    "\x1aN",
    "\x01\x1f\x7f\x85\u2028",
    "日本語 🙂 \U0010ffff",
    "'; DROP TABLE runs; --",
    '{"a":"\\ud800"}',
    "\\%_\"'`",
    "x" * 1_000_000,
]


async def test_unusual_text_is_returned_unchanged(kit: Kit, subtests: pytest.Subtests) -> None:
    for text in ODD:
        with subtests.test(text=text):
            await check_text(kit, text)


async def check_text(kit: Kit, text: str) -> None:
    worker, run = await kit.held(input=text, correlation_id=text)
    assert run.input == text
    assert run.correlation_id == text
    step = entry(0, input=text, output=text, failure=text)
    other = entry(1, input=text)
    await kit.store.apply([writes(run, step, other, attempts=(failed_try(failure=text),))], worker=worker)
    rows = await kit.store.journal(run.id)
    assert [(row.input, row.output, row.failure) for row in rows] == [(text, text, text), (text, None, None)]
    await kit.fail(worker, run, reason=text, failure=text)
    found = await kit.letter(run)
    assert (found.reason, found.failure, found.input) == (text, text, text)
    assert (await kit.store.attempts(run.id))[0].failure == text


async def test_unusual_names_are_valid_lanes(kit: Kit, subtests: pytest.Subtests) -> None:
    for text in ("日本語", "a'b", 'a"b', "\\", "a:b"):
        with subtests.test(text=text):
            await check_lane(kit, text)


async def check_lane(kit: Kit, text: str) -> None:
    key = {"key": text, "key_hash": text, "key_keeps": 10**12}
    (public_id,) = await kit.start(tenant=text, queue=text, workflow=text, **key)
    worker = await kit.worker(text)
    (run,) = (await kit.claim(worker, text)).runs
    assert (run.tenant, run.workflow) == (text, text)
    (again,) = await kit.store.start([kit.new(tenant=text, **key)])
    assert (again.public_id, again.new) == (public_id, False)
    page = await kit.store.runs(RunFilter(tenant=text, workflow=text, queue=text), limit=5, cursor=None)
    assert len(page.items) == 1


UNSTORABLE_RUNS: list[dict[str, object]] = [
    {"input": "\ud800"},
    {"tenant": "\udfff"},
    {"public_id": "\ud800"},
    {"key": "\ud800", "key_hash": "h"},
    {"tenant": "a\0b"},
    {"workflow": "\0"},
    {"queue": "\0"},
    {"public_id": "\0"},
    {"key": "\0", "key_hash": "h"},
    {"delay": 2**63},
    {"priority": 2**64},
    {"deadline": 10**30},
    {"input": None},
    {"input": {"no": "text"}},
]


async def test_a_run_that_cannot_be_stored_is_refused(kit: Kit, subtests: pytest.Subtests) -> None:
    for more in UNSTORABLE_RUNS:
        with subtests.test(more=repr(more)):
            with pytest.raises(DataRefused):
                await kit.store.start([kit.new(**more)])
            assert (await kit.store.runs(RunFilter(), limit=5, cursor=None)).items == []


INVALID_ROWS = [
    lambda run: writes(run, entry(0, output="\ud800")),
    lambda run: writes(run, entry(2**63)),
    lambda run: writes(run, entry(0, wake_in=2**63)),
    lambda run: writes(run, attempts=(failed_try(failure="\udc80"),)),
    lambda run: becomes(run, RunStatus.SUCCESS, output="\ud800"),
    lambda run: ends_in_letter(run, reason="\ud800"),
    lambda run: writes(run, change=RunWrite(status=RunStatus.SLEEPING, wake_in=2**63)),
]


async def test_an_invalid_row_refuses_its_batch_and_nothing_else(kit: Kit, subtests: pytest.Subtests) -> None:
    await kit.start(2)
    worker = await kit.worker()
    good, bad = (await kit.claim(worker)).runs
    for number, transition in enumerate(INVALID_ROWS):
        with subtests.test(number=number):
            with pytest.raises(DataRefused) as caught:
                await kit.store.apply([writes(good, entry(0)), transition(bad)], worker=worker)
            assert not isinstance(caught.value, StoreUnavailable)
            assert await kit.store.journal(good.id) == []
    (answer,) = await kit.store.apply([writes(good, entry(0))], worker=worker)
    assert answer.kept
