"""Regressions of the desk, one test for each fault that was found."""

from __future__ import annotations

import re
from typing import Any

import pytest
from desk_kit import ONCE, dump, ended, events, failed, new_app, shop, statuses
from engines import OnStore

from redrive import Redrive, RetryPolicy
from redrive.core import journal
from redrive.core.journal import Journal
from redrive.core.transitions import AuditWrite
from redrive.desk.models import DeadLetter
from redrive.desk.preview import DryRun
from redrive.desk.replays import Replay
from redrive.errors import Conflict, DataRefused, InputError, NotAllowed, NotFound
from redrive.record_fields import replace
from redrive.store.bulk import NewBulk
from redrive.store.filters import AuditFilter, LetterFilter
from redrive.testing import Crash, Engine, engine, faults
from redrive.worker import engine_calls

# -- children ----------------------------------------------------------------------------------------------


def family() -> tuple[Redrive, Any, set[str]]:
    """Return an app and a parent that starts a child and then fails while `broken` is not empty."""
    app, broken = new_app(), {"pay"}

    @app.step(retry=ONCE)
    async def look(amount: int) -> int:
        return amount

    @app.step(retry=ONCE)
    async def pay(amount: int) -> str:
        if broken:
            raise ConnectionError("no")
        return f"{amount} paid"

    @app.workflow
    async def child(amount: int) -> int:
        return amount

    @app.workflow
    async def parent(amount: int, key: str | None = None) -> str:
        await look(amount)
        await child.start(amount, idempotency_key=key)
        return await pay(amount)

    return app, parent, broken


@pytest.mark.parametrize("options", [{"mode": "FULL"}, {"mode": "FROM_STEP", "from_step": 0}, {"mode": "FROM_FAILED"}])
async def test_a_replay_with_another_input_reuses_the_existing_child(
    on_store: OnStore, options: dict[str, Any]
) -> None:
    app, parent, broken = family()
    async with on_store(app) as e:
        letter = await failed(e, parent, 40)
        broken.clear()
        replay = await app.dlq.replay(letter.id, patch={"amount": 50}, **options)
        report = await ended(e, replay.run_id)
        assert (report.status, report.result) == ("SUCCESS", "50 paid")
        children = [run for run in (await app.runs.list()).items if run.workflow == "child"]
        assert len(children) == 1
        assert (await app.runs.get(children[0].id)).input == {"amount": 40}


async def test_a_new_operation_starts_a_new_child() -> None:
    app, parent, broken = family()
    async with engine(app) as e:
        letter = await failed(e, parent, 40)
        broken.clear()
        replay = await app.dlq.replay(letter.id, "FULL", patch={"amount": 50}, new_operation=True)
        await ended(e, replay.run_id)
        inputs = [
            (await app.runs.get(run.id)).input for run in (await app.runs.list()).items if run.workflow == "child"
        ]
        assert sorted(one["amount"] for one in inputs) == [40, 50]


async def test_an_explicit_child_key_is_still_bound_to_one_input() -> None:
    app, parent, broken = family()
    async with engine(app) as e:
        letter = await failed(e, parent, 40, "mine")
        broken.clear()
        replay = await app.dlq.replay(letter.id, "FULL", patch={"amount": 50})
        report = await ended(e, replay.run_id)
        assert report.status == "DLQ_PENDING"
        assert "was used for run" in (await app.dlq.get(letter.id)).message


# -- superseded entries ------------------------------------------------------------------------------------


async def test_superseded_entries_do_not_count_towards_the_entry_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (journal, engine_calls):
        monkeypatch.setattr(module, "MAX_ENTRIES", 4)
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        for _ in range(5):
            replay = await s.app.dlq.replay(letter.id, "FROM_STEP", from_step=await first_step(e, letter.id))
            await ended(e, replay.run_id)
        s.ledger.broken.clear()
        replay = await s.app.dlq.replay(letter.id)
        assert (await ended(e, replay.run_id)).status == "SUCCESS"


async def first_step(e: Engine, id: str) -> int:
    return min(step.index for step in (await e.app.dlq.get(id)).steps if not step.superseded)


async def test_a_run_that_records_too_many_entries_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (journal, engine_calls):
        monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    s = shop(broken="")
    async with engine(s.app) as e:
        assert (await failed(e, s.order, "lamp", 40)).code == "policy_violation"


def test_the_journal_counts_superseded_entries() -> None:
    row = journal.EntryRow(
        index=0, key="/a#0", kind="STEP", name="a", status="SUCCESS", attempt=1, done=0, first_at=0,
        began_at=0, ended_at=1, wake_at=None, limit_at=None, input=None, output="1", failure=None,
        options=None,
    )  # fmt: skip
    known = Journal([replace(row, superseded=1), replace(row, index=1)])
    assert (known.next_index, known.superseded_count) == (2, 1)


# -- tags, ids and users -----------------------------------------------------------------------------------


async def test_a_single_text_is_refused_as_a_list_of_tags() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        for tags in ("vat", 5, None):
            with pytest.raises(InputError, match="tags must be a list of words, not"):
                await s.app.dlq.tag(letter.id, tags)  # type: ignore[arg-type]
        assert (await s.app.dlq.tag(letter.id, ["vat"])).tags == ("vat",)


@pytest.mark.parametrize("id", ["a\x00b", "\ud800", "x" * 10_000_000, "źle", "", 5, None])
async def test_an_invalid_id_is_not_found(on_store: OnStore, id: Any) -> None:
    s = shop()
    async with on_store(s.app):
        runs, dlq = s.app.runs, s.app.dlq
        for ask in (runs.get, runs.cancel, runs.retry, s.app.saga, dlq.get, dlq.set):
            with pytest.raises(NotFound, match="does not exist") as caught:
                await ask(id)
            assert len(str(caught.value)) < 120


@pytest.mark.parametrize("by", ["redrive", "Redrive", " REDRIVE ", "\uff52edrive"])
async def test_no_user_can_sign_as_the_engine(by: str) -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        before = await dump(e)
        for act in (s.app.dlq.resolve, s.app.dlq.replay, s.app.runs.cancel):
            with pytest.raises(InputError, match="the name that the engine signs with"):
                await act(letter.run_id, by=by)  # type: ignore[operator]
        assert await dump(e) == before


# -- dry runs of repeated decisions --------------------------------------------------------------------------


async def test_a_dry_run_of_a_repeated_decision_returns_the_first_answer() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        assert isinstance(await s.app.dlq.replay(letter.id, dry_run=True), DryRun)
        s.ledger.broken.clear()
        first = await s.app.dlq.replay(letter.id, by="ann")
        before = await dump(e)
        assert await s.app.dlq.replay(letter.id, dry_run=True, by="bob") == first
        with pytest.raises(Conflict):
            await s.app.dlq.replay(letter.id, "FULL", dry_run=True)
        assert await dump(e) == before
        await ended(e, first.run_id)
        assert await s.app.dlq.replay(letter.id, dry_run=True) == first
        assert await s.app.runs.retry(letter.run_id, dry_run=True) == first
        many = await s.app.dlq.replay_many([letter.id], dry_run=True)
        assert (many.checked, many.refused, many.sample) == (1, (), ())  # type: ignore[union-attr]


# -- bulk actions -----------------------------------------------------------------------------------------


async def test_a_letter_named_by_its_id_and_its_run_counts_once(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        other = await failed(e, s.order, "lamp", 50)
        again = await s.app.dlq.replay(other.id, "FULL")
        await ended(e, again.run_id)
        names = [letter.id, letter.run_id, again.run_id, other.id, other.run_id, "dl-unknown", "unknown"]
        begun = await s.app.dlq.ignore_many(names, by="ann")
        assert begun.total == 3
        await e.settle()
        set = await s.app.dlq.set(begun.id)
        assert (set.status, set.done, set.failed) == ("DONE", 2, 1)
        plan = await s.app.dlq.replay_many(names, dry_run=True)
        assert plan.total == 3  # type: ignore[union-attr]


async def test_a_set_with_an_invalid_filter_is_stopped_with_the_reason(on_store: OnStore) -> None:
    s = shop()
    async with on_store(s.app) as e:
        await failed(e, s.order, "lamp", 40)
        where = LetterFilter()
        object.__setattr__(where, "since", 10**30)  # an older release stored filters unchecked
        line = AuditWrite(event="dlq.bulk_started", tenant="", by="ann", subject="set1", token="t1")
        given = {"public_id": "set1", "tenant": "", "action": "IGNORE", "by": "ann", "reason": None}
        await s.app.runtime.store.create_bulk(NewBulk(**given, request=None, where=where), line)
        await e.settle()
        set = await s.app.dlq.set("set1")
        assert (set.status, set.stopped_by) == ("STOPPED", "redrive")
        assert set.stopped_because is not None
        assert "is out of range" in set.stopped_because
        assert (await s.app.dlq.list(LetterFilter(status="OPEN"))).items


async def test_a_set_whose_filter_the_store_refuses_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    s = shop()
    async with engine(s.app) as e:
        await failed(e, s.order, "lamp", 40)
        narrow = s.app.runtime.desk(e.store.tenant_view("default", {"order"}), e.clock)
        begun = await narrow.dlq.ignore_many(LetterFilter(tag="vat", workflow="order"), by="ann", tenant="default")

        async def refuse(*_: Any, **__: Any) -> None:
            raise DataRefused("the store refused a row: too large")

        monkeypatch.setattr(s.app.runtime.bulk_worker._store, "advance", refuse)
        assert await s.app.runtime.bulk_worker.run_once() == 0
        for dlq in (s.app.dlq, narrow.dlq):
            set = await dlq.set(begun.id)
            assert (set.status, set.stopped_because) == ("STOPPED", "the store refused a row: too large")
        for beyond in (AuditFilter(), AuditFilter(subject="unknown")):
            with pytest.raises(NotAllowed, match="belongs to all workflows"):
                await narrow.audit.list(beyond)


async def test_a_set_counts_the_outcomes_of_its_runs() -> None:
    s = shop(retry=RetryPolicy(max_retries=0))
    async with engine(s.app) as e:
        letters = [await failed(e, s.order, "lamp", amount) for amount in range(3)]
        begun = await s.app.dlq.replay_many([letter.id for letter in letters[:2]])
        await e.settle()
        await e.finish_all()
        s.ledger.broken.clear()
        await ended(e, (await s.app.dlq.replay(letters[0].id, "STEP_ONLY")).run_id)
        set = await s.app.dlq.set(begun.id)
        assert (set.done, set.succeeded, set.failed_again, set.still_going) == (2, 1, 1, 0)
        assert [one.id for one in (await s.app.dlq.sets()).items] == [begun.id]
        assert (await s.app.dlq.sets(tenant="other")).items == []


# -- steps that may have happened ----------------------------------------------------------------------------


def risky(**options: Any) -> tuple[Redrive, Any, list[str]]:
    """Return a workflow with an at-most-once step that kills its worker, and a step after it."""
    app, calls = new_app(), list[str]()

    @app.step(at_most_once=True)
    async def transfer(amount: int) -> str:
        calls.append("transfer")
        return f"{amount} sent"

    @app.step
    async def note(text: str) -> str:
        calls.append("note")
        return f"noted: {text}"

    @app.workflow(max_crashes=1, **options)
    async def pay(amount: int) -> str:
        return await note(await transfer(amount))

    return app, pay, calls


async def poisoned(e: Engine, workflow: Any) -> DeadLetter:
    """Return the letter of a run whose workers died too often during a step."""
    with faults("transfer", [Crash], at="after"):
        return await failed(e, workflow, 40)


async def test_a_step_that_may_have_happened_can_be_completed_manually(on_store: OnStore) -> None:
    app, pay, calls = risky()
    async with on_store(app) as e:
        letter = await poisoned(e, pay)
        assert (letter.code, letter.status) == ("infrastructure_failure", "OPEN")
        with pytest.raises(InputError, match=r"runs at most once and may have happened.*FROM_STEP 0"):
            await app.dlq.replay(letter.id)
        with pytest.raises(InputError, match="may have happened"):
            await app.dlq.replay(letter.id, "STEP_ONLY")
        replay = await app.dlq.complete(letter.id, "40 sent by telephone", by="ann")
        report = await ended(e, replay.run_id)
        assert (report.status, report.result) == ("SUCCESS", "noted: 40 sent by telephone")
        assert calls == ["transfer", "note"]
        step = (await app.dlq.get(letter.id)).steps[0]
        assert (step.name, step.status, step.by_hand) == ("transfer", "SUCCESS", True)
        assert [attempt.decision for attempt in step.attempts] == [
            "attempt 1: interrupted; it may have happened and is not repeated"
        ]


@pytest.mark.parametrize(
    ("options", "result", "called"),
    [
        ({"mode": "SKIP", "output": "nothing sent"}, "noted: nothing sent", ["transfer", "note"]),
        ({"mode": "FROM_STEP", "from_step": 0}, "noted: 40 sent", ["transfer", "transfer", "note"]),
    ],
)
async def test_a_step_that_may_have_happened_can_be_skipped_or_replayed_from(
    options: dict[str, Any], result: str, called: list[str]
) -> None:
    app, pay, calls = risky()
    async with engine(app) as e:
        letter = await poisoned(e, pay)
        replay = await app.dlq.replay(letter.id, **options)
        report = await ended(e, replay.run_id)
        assert (report.status, report.result, calls) == ("SUCCESS", result, called)
        assert await statuses(e, letter) == ("RESOLVED", "SUCCESS")
        assert ("dlq.created", "redrive") in await events(e, letter)


async def test_a_manually_completed_step_shows_no_successful_attempt() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        await ended(e, (await s.app.dlq.complete(letter.id, "paid by telephone")).run_id)
        step = (await s.app.dlq.get(letter.id)).steps[1]
        assert (step.status, step.by_hand, step.output) == ("SUCCESS", True, "paid by telephone")
        assert not [attempt for attempt in step.attempts if re.search("succeeded", attempt.decision)]
        others = [one for one in (await s.app.dlq.get(letter.id)).steps if one is not step]
        assert [one.by_hand for one in others if one.name != "charge"] == [False, False]


async def test_a_dry_run_warns_about_an_edited_input_under_a_used_key() -> None:
    s = shop()
    async with engine(s.app) as e:
        letter = await failed(e, s.order, "lamp", 40)
        plain = await s.app.dlq.replay(letter.id, dry_run=True)
        edited = await s.app.dlq.replay(letter.id, patch={"amount": 50}, dry_run=True)
        anew = await s.app.dlq.replay(letter.id, patch={"amount": 50}, new_operation=True, dry_run=True)
        warned = [
            any("keeps its old idempotency key" in said for said in plan.warnings)
            for plan in (plain, edited, anew)
            if not isinstance(plan, Replay)
        ]
        assert warned == [False, True, False]
