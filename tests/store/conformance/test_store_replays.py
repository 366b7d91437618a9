"""Conformance tests of recorded replays and of the cases that they are decided on."""

from __future__ import annotations

from letter_kit import answers, audited, case_of, failed, fails_again, letter_of, reopens, replay, replayed, restarts
from store_kit import SECOND, Kit, becomes, catalogue, noted

from redrive.core.states import LetterStatus, RunStatus
from redrive.record_fields import field_names, replace
from redrive.store.filters import LetterFilter
from redrive.store.letters import ReplayRow, Triage
from redrive.store.workers import CatalogueItem, CatalogueRow, NewWorker


async def test_a_replay_is_recorded_as_it_was_decided(kit: Kit) -> None:
    _, run = await failed(kit)
    kit.clock.move(SECOND)
    made = replay(
        run,
        mode="FROM_STEP",
        digest="d2",
        request='{"mode":"FROM_STEP","from_step":1}',
        reason="the bank is back",
        key="k",
        changes='[{"path":"/n"}]',
    )
    await kit.store.apply([replace(reopens(run), replay=made)])
    assert (await case_of(kit, run.public_id)).replays == (
        ReplayRow(
            number=1,
            letter=letter_of(run),
            mode="FROM_STEP",
            digest="d2",
            request='{"mode":"FROM_STEP","from_step":1}',
            run_id=run.public_id,
            by="ann",
            reason="the bank is back",
            key="k",
            changes='[{"path":"/n"}]',
            at=kit.clock.now(),
            ended_at=None,
            outcome=None,
        ),
    )


async def test_replays_are_numbered_by_letter_and_end_with_their_runs(kit: Kit) -> None:
    worker, run = await failed(kit)
    other = (await failed(kit))[1]
    for status in (RunStatus.DLQ_PENDING, RunStatus.PARTIAL):
        again = await replayed(kit, worker, await kit.look(run))
        kit.clock.move(SECOND)
        ended = fails_again(again) if status is RunStatus.DLQ_PENDING else answers(again, status)
        await kit.store.apply([ended], worker=worker)
    await replayed(kit, worker, other)
    found = (await case_of(kit, run.public_id)).replays
    assert [(each.number, each.outcome) for each in found] == [(1, "DLQ_PENDING"), (2, "PARTIAL")]
    assert [each.ended_at - each.at for each in found] == [SECOND, SECOND]
    (still,) = (await case_of(kit, other.public_id)).replays
    assert (still.number, still.ended_at, still.outcome) == (1, None, None)


async def test_an_ended_replay_does_not_end_again(kit: Kit) -> None:
    worker, run = await failed(kit)
    again = await replayed(kit, worker, run)
    await kit.store.apply([fails_again(again)], worker=worker)
    before = (await case_of(kit, run.public_id)).replays
    kit.clock.move(SECOND)
    late = replace(becomes(await kit.look(run), RunStatus.FAILED), ends_replay=letter_of(run))
    assert (await kit.store.apply([late]))[0].kept
    assert (await case_of(kit, run.public_id)).replays == before


async def test_an_old_fence_does_not_end_a_replay(kit: Kit) -> None:
    worker, run = await failed(kit)
    again = await replayed(kit, worker, run)
    before = await case_of(kit, run.public_id)
    assert not (await kit.store.apply([replace(answers(again), fence=again.fence - 1)], worker=worker))[0].kept
    assert await case_of(kit, run.public_id) == before
    assert await audited(kit, event="dlq.replay_succeeded") == []


# -- cases -------------------------------------------------------------------------------------------------


async def test_a_case_is_found_by_its_letter_and_by_its_run(kit: Kit) -> None:
    worker, run = await failed(kit)
    await kit.store.apply([fails_again(await replayed(kit, worker, run, supersedes=(1,)))], worker=worker)
    case = await case_of(kit, letter_of(run))
    assert case == await case_of(kit, run.public_id)
    assert await kit.store.cases([letter_of(run), run.public_id, letter_of(run)]) == [case]
    assert case.run == await kit.look(run)
    whole = await kit.letter(run)
    assert case.letter is not None
    assert all(getattr(whole, name) == getattr(case.letter, name) for name in field_names(case.letter))
    assert list(case.journal) == await kit.store.journal(run.id)
    assert [each.number for each in case.replays] == [1]
    assert case.subject == letter_of(run)


async def test_many_cases_are_read_at_once_and_unknown_ids_are_left_out(kit: Kit) -> None:
    runs = [(await failed(kit))[1] for _ in range(3)]
    ids = [letter_of(runs[0]), "unknown", runs[2].public_id]
    found = await kit.store.cases(ids)
    assert {case.run.public_id for case in found} == {runs[0].public_id, runs[2].public_id}
    assert await kit.store.cases([]) == []
    assert await kit.store.cases(["unknown", ""]) == []


async def test_a_run_without_a_letter_has_a_case_and_can_have_replays(kit: Kit) -> None:
    worker, claimed = await kit.held()
    await kit.store.apply([becomes(claimed, RunStatus.FAILED, failure="{}")], worker=worker)
    run = await kit.look(claimed)
    assert (await case_of(kit, run.public_id)).letter is None
    await kit.store.apply([replace(reopens(run), move=None)])
    case = await case_of(kit, run.public_id)
    assert (case.letter, case.subject, len(case.replays)) == (None, f"dl-{run.public_id}", 1)


async def test_the_case_of_a_moved_letter_is_the_new_run(kit: Kit) -> None:
    _, run = await failed(kit)
    new = kit.new()
    await kit.store.apply([restarts(run, new)])
    case = await case_of(kit, letter_of(run))
    assert (case.run.public_id, case.subject, case.journal) == (new.public_id, letter_of(run), ())
    assert case == await case_of(kit, new.public_id)
    old = await case_of(kit, run.public_id)
    assert (old.run.public_id, old.letter) == (run.public_id, None)
    assert [each.run_id for each in old.replays] == [each.run_id for each in case.replays] == [new.public_id]


# -- notes -------------------------------------------------------------------------------------------------


async def test_owner_and_tags_are_set_independently(kit: Kit) -> None:
    _, run = await failed(kit)
    first = await kit.letter(run)
    for triage, owner, tags in (
        ({"owner": "bob"}, "bob", ()),
        ({"tags": ("b", "a", "ü")}, "bob", ("b", "a", "ü")),
        ({}, "bob", ("b", "a", "ü")),
        ({"owner": ""}, None, ("b", "a", "ü")),
        ({"tags": (), "owner": "ann"}, "ann", ()),
    ):
        assert await kit.store.triage(Triage(letter=letter_of(run), audit=noted(), **triage))
        found = await kit.letter(run)
        assert (found.owner, found.tags) == (owner, tags)
    assert replace(found, owner=None) == first
    assert len(await audited(kit)) == 5


async def test_triage_needs_a_letter(kit: Kit) -> None:
    assert not await kit.store.triage(Triage(letter="unknown", owner="bob", audit=noted()))
    assert await audited(kit) == []


async def test_a_repeated_triage_adds_one_audit_line(kit: Kit) -> None:
    _, run = await failed(kit)
    triage = Triage(letter=letter_of(run), owner="bob", audit=noted(token="t1"))
    for _ in range(3):
        assert await kit.store.triage(triage)
    assert len(await audited(kit)) == 1


async def test_letters_are_listed_by_owner_and_by_tag(kit: Kit) -> None:
    runs = [(await failed(kit))[1] for _ in range(3)]
    for run, owner, tags in zip(runs, ("ann", "bob", "bob"), (("a",), ("a", "b"), ("ab",)), strict=True):
        await kit.store.triage(Triage(letter=letter_of(run), owner=owner, tags=tags, audit=noted()))

    async def listed(**where: str) -> list[int]:
        page = await kit.store.letters(LetterFilter(**where), limit=10, cursor=None)
        return [[letter_of(run) for run in runs].index(row.public_id) for row in page.items]

    assert await listed(owner="bob") == [2, 1]
    assert await listed(tag="a") == [1, 0]
    assert await listed(tag="b") == [1]
    assert await listed(tag="c") == []
    assert await listed(tag="a", owner="ann") == [0]
    assert await listed(status=LetterStatus.OPEN, tag="ab") == [2]


# -- the catalogue -----------------------------------------------------------------------------------------


async def test_a_catalogue_item_comes_from_the_newest_version_that_registers_it(kit: Kit) -> None:
    async def enlist(version: str, *names: str, schema: str) -> None:
        seen = catalogue(version, *names)
        items = tuple(replace(item, schema_in=schema) for item in seen.workflows)
        steps = (CatalogueItem(name="charge", options="{}", schema_in=schema, schema_out="out"),)
        await kit.store.enlist(
            NewWorker(name="n", version=version, workflows=names, lease=30 * SECOND),
            replace(seen, workflows=items, steps=steps),
        )

    await enlist("z", "w", "gone", schema="1")
    await enlist("a", "w", schema="2")
    await enlist("z", "w", "gone", schema="1")  # seen again, but this version was first seen earlier
    found = {(item.kind, item.name): item for item in await kit.store.known(["w", "gone", "charge", "no"])}
    assert found.keys() == {("workflow", "w"), ("workflow", "gone"), ("step", "charge")}
    assert {name: (item.version, item.schema_in) for (_, name), item in found.items()} == {
        "w": ("a", "2"),
        "gone": ("z", "1"),
        "charge": ("a", "2"),
    }
    assert found["step", "charge"] == CatalogueRow(
        kind="step", name="charge", version="a", options="{}", schema_in="2", schema_out="out"
    )
    assert await kit.store.known([]) == []


async def test_a_workflow_and_a_step_with_the_same_name_are_both_found(kit: Kit) -> None:
    await kit.worker("charge")
    assert {item.kind for item in await kit.store.known(["charge"])} == {"workflow", "step"}
