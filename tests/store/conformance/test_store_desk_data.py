"""Conformance tests of text that users write: every store returns it unchanged or refuses it by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

import pytest
from letter_kit import audited, case_of, closes, failed, letter_of, reopens, replay, restarts, state_of
from store_kit import Kit, entry, noted, writes

from redrive.core.states import StepStatus
from redrive.core.transitions import Transition
from redrive.errors import DataRefused, InputError, StoreUnavailable
from redrive.record_fields import replace
from redrive.store.filters import AuditFilter, CircuitFilter, GroupFilter, LetterFilter, OutboxFilter, RunFilter
from redrive.store.letters import Triage
from redrive.store.runs import RunRow
from redrive.store.settings import PolicyRow

ODD = [
    "",
    "\0",
    "a\0b\0",
    "\x1a0 \x1a1 \x1a",
    "\x01\x1f\x7f\x85\u2028",
    "日本語 🙂 \U0010ffff",
    "'; DROP TABLE audit; --",
    '{"a":"\\ud800 \\u0000"}',
    "\\%_\"'`",
    "x" * 1_000_000,
]
POLICY = PolicyRow(tenant="", workflow="", step="", policy="{}", updated_at=0, updated_by="ann")


async def test_the_text_of_a_replay_is_returned_unchanged(kit: Kit, subtests: pytest.Subtests) -> None:
    for text in ODD:
        with subtests.test(text=text):
            await check_replayed_text(kit, text)


async def check_replayed_text(kit: Kit, text: str) -> None:
    _, run = await failed(kit)
    made = replay(run, reason=text, key=text, changes=text, request=text)
    line = noted(letter=letter_of(run), before=text, after=text, reason=text)
    given = entry(1, StepStatus.SKIPPED, output=text)
    decision = replace(reopens(run, given, input=text, options=text), replay=made, audit=(line,))
    assert (await kit.store.apply([decision]))[0].kept
    case = await case_of(kit, run.public_id)
    (found,) = case.replays
    assert (found.reason, found.key, found.changes, found.request) == (text, text, text, text)
    assert (case.run.input, case.run.options, case.journal[1].output) == (text, text, text)
    assert (text, text, text) in [(line.before, line.after, line.reason) for line in await audited(kit)]
    (again,) = (await kit.claim(await kit.worker())).runs
    assert (again.input, again.options) == (text, text)


async def test_the_text_of_a_new_run_a_resolution_and_a_comment_is_returned_unchanged(
    kit: Kit, subtests: pytest.Subtests
) -> None:
    for text in ODD:
        with subtests.test(text=text):
            await check_decided_text(kit, text)


async def check_decided_text(kit: Kit, text: str) -> None:
    _, run = await failed(kit)
    new = kit.new(input=text, options=text, correlation_id=text, parent=text)
    _, other = await failed(kit)
    comment = Triage(letter=letter_of(run), audit=noted(after=text, reason=text))
    assert await kit.store.triage(comment)
    decided = [restarts(run, new), closes(other, by=text, resolution=text)]
    assert [answer.kept for answer in await kit.store.apply(decided)] == [True, True]
    (found,) = await kit.store.runs_by_id([new.public_id])
    assert (found.input, found.options, found.correlation_id, found.parent) == (text, text, text, text)
    letter = await kit.letter(other)
    assert (letter.closed_by, letter.resolution) == (text, text)
    assert (text, text) in [(line.after, line.reason) for line in await audited(kit)]


async def test_a_letter_is_found_by_any_tag_and_hides_no_other(kit: Kit, subtests: pytest.Subtests) -> None:
    runs = [(await failed(kit))[1] for _ in range(2)]

    async def listed(**where: str) -> list[str]:
        page = await kit.store.letters(LetterFilter(**where), limit=10, cursor=None)
        return [row.public_id for row in page.items]

    for tag in ("\x1a0", "日本語", '"', "\\", "[", "a,b", "x" * 255):
        with subtests.test(tag=tag):
            for run, tags in zip(runs, ((tag, "plain"), ("plain",)), strict=True):
                await kit.store.triage(Triage(letter=letter_of(run), tags=tags, owner=tag, audit=noted()))
            assert ((await kit.letter(runs[0])).tags, (await kit.letter(runs[0])).owner) == ((tag, "plain"), tag)
            assert await listed(tag=tag) == [letter_of(runs[0])]
            assert await listed(tag="plain") == [letter_of(runs[1]), letter_of(runs[0])]
            assert len(await listed(owner=tag)) == 2


@pytest.mark.parametrize("name", ["\x1a0", "日本語", "'", "\\"])
async def test_an_audit_line_is_found_by_any_name(kit: Kit, name: str) -> None:
    await kit.store.note([noted(by=name, subject=name), noted()])
    (line,) = await audited(kit, by=name)
    assert (line.by, line.subject) == (name, name)
    assert await audited(kit, subject=name) == [line]


@pytest.mark.parametrize("odd", ["a\0b", "\ud800"])
async def test_a_filter_that_no_row_can_match_is_refused_by_name_before_any_query(kit: Kit, odd: str) -> None:
    """A line may contain NUL, but a filter may not: PostgreSQL refuses NUL, and SQLite ends the text there."""
    await kit.store.note([noted(by="a\0b", subject="a\0b"), noted(by="a")])
    assert {line.by for line in await audited(kit)} == {"a\0b", "a"}
    kinds: list[Any] = [AuditFilter, RunFilter, LetterFilter, GroupFilter, CircuitFilter, OutboxFilter]
    for kind in kinds:
        for field in {each.name for each in fields(kind)} - {
            "since",
            "until",
            "status",
            "index",
            "workflows",
            "accounts",
            "people",
            "muted",
        }:
            with pytest.raises(InputError, match=f"^{field} contains a NUL or half a character"):
                kind(**{field: odd})
    index: dict[str, Any] = {"customer": odd}
    assert (await kit.store.runs(RunFilter(index=index), limit=10, cursor=None)).items == []
    assert (await kit.store.letters(LetterFilter(index=index), limit=10, cursor=None)).items == []


# -- invalid data ------------------------------------------------------------------------------------------

LONE = "\ud800"


INVALID_DECISIONS: list[Callable[[RunRow], Transition]] = [
    lambda run: reopens(run, input=LONE),
    lambda run: reopens(run, options=LONE),
    lambda run: reopens(run, sole_step=LONE),
    lambda run: reopens(run, entry(1, StepStatus.SKIPPED, output=LONE)),
    lambda run: replace(reopens(run), replay=replay(run, reason=LONE)),
    lambda run: replace(reopens(run), replay=replay(run, key=LONE)),
    lambda run: replace(reopens(run), replay=replay(run, changes=LONE)),
    lambda run: replace(reopens(run), replay=replay(run, mode="SOMEHOW")),
    lambda run: closes(run, resolution=LONE),
    lambda run: closes(run, by=LONE),
    lambda run: writes(run, audit=(noted(reason=LONE),)),
    lambda run: writes(run, audit=(noted(after=LONE),)),
    lambda run: writes(run, audit=(noted(by=LONE),)),
    lambda run: writes(run, audit=(noted(subject=None),)),
]


async def test_an_invalid_decision_refuses_its_batch_and_nothing_else(kit: Kit, subtests: pytest.Subtests) -> None:
    _, good = await failed(kit)
    _, bad = await failed(kit)
    before = await state_of(kit, good), await state_of(kit, bad)
    for number, decide in enumerate(INVALID_DECISIONS):
        with subtests.test(number=number):
            with pytest.raises(DataRefused) as caught:
                await kit.store.apply([reopens(good), decide(bad)])
            assert not isinstance(caught.value, StoreUnavailable)
            assert (await state_of(kit, good), await state_of(kit, bad)) == before
    assert (await kit.store.apply([reopens(good)]))[0].kept


async def test_a_new_run_that_could_never_run_is_refused_with_its_decision(kit: Kit, subtests: pytest.Subtests) -> None:
    _, run = await failed(kit)
    before = await state_of(kit, run)
    for new in ({"public_id": "a\0b"}, {"tenant": "\0"}, {"workflow": "\0"}, {"queue": "\0"}, {"input": None}):
        with subtests.test(new=new):
            with pytest.raises(DataRefused):
                await kit.store.apply([restarts(run, kit.new(**new))])
            assert await state_of(kit, run) == before


INVALID_NOTES: list[Callable[[Kit, str], Awaitable[object]]] = [
    lambda kit, letter: kit.store.note([noted(), noted(reason=LONE)]),
    lambda kit, letter: kit.store.triage(Triage(letter=letter, owner="bob", audit=noted(after=LONE))),
    lambda kit, letter: kit.store.triage(Triage(letter=letter, tags=(LONE,), audit=noted())),
    lambda kit, letter: kit.store.triage(Triage(letter=letter, owner=LONE, audit=noted())),
    lambda kit, letter: kit.store.triage(Triage(letter=letter, owner="a\0", audit=noted())),
    lambda kit, letter: kit.store.triage(Triage(letter=letter, tags=("b", "a\0"), audit=noted())),
    lambda kit, letter: kit.store.set_policy(POLICY, noted(reason=LONE)),
    lambda kit, letter: kit.store.pause("w", noted(reason=LONE)),
]


async def test_an_invalid_note_changes_nothing(kit: Kit, subtests: pytest.Subtests) -> None:
    _, run = await failed(kit)
    before = await state_of(kit, run)
    for number, call in enumerate(INVALID_NOTES):
        with subtests.test(number=number):
            with pytest.raises(DataRefused):
                await call(kit, letter_of(run))
            assert await state_of(kit, run) == before
            assert (await kit.store.policies(), await kit.store.paused()) == ([], {})
