"""The journal: the results a resumed function gets, their order, and the entries it did not request."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.journal import EntryRow, Journal, entry_key
from redrive.core.states import EntryKind, StepStatus
from redrive.record_fields import replace


def entry(
    index: int,
    key: str,
    done: int | None = None,
    *,
    kind: EntryKind = EntryKind.STEP,
    status: StepStatus | None = None,
    superseded: int = 0,
    loose: int = 0,
) -> EntryRow:
    return EntryRow(
        index=index,
        key=key,
        kind=kind,
        name=key.rpartition("/")[2].partition("#")[0],
        status=status or (StepStatus.RUNNING if done is None else StepStatus.SUCCESS),
        attempt=1,
        done=done,
        first_at=0,
        began_at=0,
        ended_at=None if done is None else 1,
        wake_at=None,
        limit_at=None,
        input="{}",
        output=None if done is None else f'"{key}"',
        failure=None,
        options=None,
        superseded=superseded,
        loose=loose,
    )


def handed_out(journal: Journal) -> list[str]:
    """Ask for each result in turn until there is none left."""
    keys = []
    while (key := journal.next_key) is not None:
        journal.mark_delivered(key)
        keys.append(key)
    return keys


# -- keys ------------------------------------------------------------------------------------------------


def test_a_key_is_branch_name_and_count() -> None:
    assert entry_key("", "charge", 0) == "/charge#0"
    assert entry_key("1.0", "charge", 2) == "1.0/charge#2"


# Names of steps contain neither of the two separators; registration refuses them.
NAMES = st.text(st.characters(exclude_characters="/#"), min_size=1, max_size=8)
PLACES = st.tuples(st.from_regex(r"(\d(\.\d)*)?", fullmatch=True), NAMES, st.integers(0, 99))


@settings(deadline=None)
@given(PLACES, PLACES)
def test_different_places_never_share_a_key(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    assert (entry_key(*one) == entry_key(*other)) == (one == other)


# -- requests --------------------------------------------------------------------------------------------


def test_a_new_run_has_an_empty_journal() -> None:
    journal = Journal()
    assert journal.request_entry("/charge#0") is None
    assert (journal.next_key, journal.next_index, journal.next_done) == (None, 0, 0)
    assert journal.list_unrequested() == []


def test_an_entry_is_found_by_its_key_and_counts_as_asked_for_from_then_on() -> None:
    charge, ship = entry(0, "/charge#0", 0), entry(1, "/charge#1", 1)
    journal = Journal([charge, ship])
    assert not journal.is_optional("/charge#1")
    assert journal.request_entry("/charge#1") is ship
    assert journal.is_optional("/charge#1")
    assert not journal.is_optional("/charge#0")


def test_a_request_for_an_unrecorded_entry_finds_nothing() -> None:
    journal = Journal([entry(0, "/charge#0", 0)])
    assert journal.request_entry("/refund#0") is None
    assert not journal.is_optional("/charge#0")
    assert [row.key for row in journal.list_unrequested()] == ["/charge#0"]


def test_a_loose_entry_is_returned_on_request_but_not_required() -> None:
    """A replay keeps such entries from after the failure: the function may take another path now."""
    kept, loose = entry(0, "/charge#0", 0), entry(1, "/ship#0", 1, loose=1)
    journal = Journal([kept, loose])
    assert journal.is_optional("/ship#0")
    assert [row.key for row in journal.list_unrequested()] == ["/charge#0"]
    assert journal.request_entry("/ship#0") is loose
    assert handed_out(journal) == ["/charge#0", "/ship#0"]


def test_a_loose_note_is_not_required_either() -> None:
    row = entry(0, "/redrive.now#0", kind=EntryKind.NOTE, status=StepStatus.SUCCESS, loose=1)
    assert Journal([row]).list_unrequested() == []


def test_branches_with_the_same_step_names_get_their_own_entries() -> None:
    rows = [entry(0, "0/charge#0", 1), entry(1, "1/charge#0", 0), entry(2, "1.0/charge#0", 2)]
    journal = Journal(rows)
    assert [journal.request_entry(row.key) for row in rows] == rows


def test_new_entries_are_numbered_after_all_that_were_recorded() -> None:
    journal = Journal([entry(3, "/charge#0", 7), entry(9, "/ship#0"), entry(5, "/pack#0", 4)])
    assert (journal.next_index, journal.next_done) == (10, 8)


def test_a_superseded_entry_is_hidden_but_its_index_is_never_reused() -> None:
    journal = Journal([entry(0, "/charge#0", 0), entry(1, "/ship#0", 1, superseded=1)])
    assert journal.request_entry("/ship#0") is None
    assert handed_out(journal) == ["/charge#0"]
    assert [row.key for row in journal.list_unrequested()] == ["/charge#0"]
    assert (journal.next_index, journal.next_done) == (2, 2)


def test_an_entry_that_took_the_place_of_a_superseded_one_is_found() -> None:
    old, new = entry(1, "/ship#0", 1, superseded=1), entry(2, "/ship#0", 2)
    for rows in ([old, new], [new, old]):
        assert Journal(rows).request_entry("/ship#0") is new


# -- order -----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.permutations(range(8)), st.permutations(range(8)))
def test_results_are_handed_out_in_the_order_in_which_they_were_completed(
    begun: list[int], completed: list[int]
) -> None:
    """The order in which steps began, and in which the store returned them, does not matter."""
    rows = [entry(index, f"{index}/charge#0", done=completed[index]) for index in begun]
    journal = Journal(rows)
    assert handed_out(journal) == [f"{completed.index(done)}/charge#0" for done in range(8)]
    assert journal.next_key is None


def test_an_incomplete_entry_has_no_turn() -> None:
    journal = Journal(
        [
            entry(0, "/a#0", status=StepStatus.RUNNING),
            entry(1, "/b#0", 0),
            entry(2, "/c#0", status=StepStatus.CANCELLED),
            entry(3, "/redrive.now#0", kind=EntryKind.NOTE, status=StepStatus.SUCCESS),
        ]
    )
    assert handed_out(journal) == ["/b#0"]


def test_a_result_is_not_handed_out_before_its_turn() -> None:
    journal = Journal([entry(0, "0/a#0", 1), entry(1, "1/b#0", 0)])
    with pytest.raises(ValueError, match="the next result to deliver is '1/b#0', not '0/a#0'"):
        journal.mark_delivered("0/a#0")
    assert journal.next_key == "1/b#0"


def test_nothing_is_handed_out_twice() -> None:
    journal = Journal([entry(0, "/a#0", 0)])
    journal.mark_delivered("/a#0")
    with pytest.raises(ValueError, match="the next result to deliver is None"):
        journal.mark_delivered("/a#0")


# -- changed code ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    kind: EntryKind
    status: StepStatus
    done: int | None
    missed: bool


@each(
    "case",
    [
        Kind(EntryKind.STEP, StepStatus.SUCCESS, 0, True),
        Kind(EntryKind.STEP, StepStatus.FAILED, 0, True),
        Kind(EntryKind.STEP, StepStatus.SKIPPED, 0, True),
        Kind(EntryKind.SLEEP, StepStatus.SUCCESS, 0, True),
        Kind(EntryKind.TIMER, StepStatus.SUCCESS, 0, True),
        Kind(EntryKind.START, StepStatus.SUCCESS, 0, True),
        Kind(EntryKind.NOTE, StepStatus.SUCCESS, None, True),
        Kind(EntryKind.STEP, StepStatus.RUNNING, None, False),
        Kind(EntryKind.STEP, StepStatus.RETRYING, None, False),
        Kind(EntryKind.STEP, StepStatus.CANCELLED, None, False),
        Kind(EntryKind.TIMER, StepStatus.CANCELLED, None, False),
    ],
)
def test_results_that_the_function_saw_must_be_requested_again(case: Kind) -> None:
    """A step in flight had not returned anything to the function yet, so the function may skip it."""
    row = entry(0, "/x#0", case.done, kind=case.kind, status=case.status)
    journal = Journal([row])
    assert journal.list_unrequested() == ([row] if case.missed else [])
    journal.request_entry("/x#0")
    assert journal.list_unrequested() == []


def test_unrequested_entries_are_listed_in_the_order_they_began() -> None:
    journal = Journal([entry(2, "/c#0", 0), entry(0, "/a#0", 2), entry(1, "/b#0", 1)])
    journal.request_entry("/b#0")
    assert [row.key for row in journal.list_unrequested()] == ["/a#0", "/c#0"]


def test_the_difference_is_described_in_a_sentence() -> None:
    journal = Journal([entry(0, "/charge#0", 0), entry(1, "/charge#1", 1), entry(2, "1.0/ship#0", 2)])
    assert str(journal.describe_difference(["/refund#0"])) == (
        "the journal contains 'charge', 'charge' (call 2), 'ship' in branch 1.0, but the code now calls "
        "'refund': the workflow function changed during this run"
    )
    journal.request_entry("/charge#0")
    assert str(journal.describe_difference(["0/refund#2", "1/pack#0"])).startswith(
        "the journal contains 'charge' (call 2), 'ship' in branch 1.0, but the code now calls "
        "'refund' (call 3) in branch 0, 'pack' in branch 1: "
    )


def test_a_difference_of_a_function_that_ended_early_is_described() -> None:
    journal = Journal([entry(0, "/charge#0", 0)])
    assert str(journal.describe_difference(())).startswith(
        "the journal contains 'charge', but the code now calls nothing more: "
    )


def test_a_difference_of_a_function_that_calls_more_steps_is_described() -> None:
    assert str(Journal().describe_difference(["/charge#0"])).startswith(
        "the journal contains nothing more, but the code now calls 'charge': "
    )


def test_a_long_difference_names_the_first_five_of_each_side() -> None:
    journal = Journal([entry(index, f"/step{index}#0", index) for index in range(9)])
    words = str(journal.describe_difference(f"/new{index}#0" for index in range(9)))
    assert "'step4', but" in words
    assert "step5" not in words
    assert "'new4':" in words
    assert "new5" not in words


# -- patches -----------------------------------------------------------------------------------------------


def test_a_run_passed_a_place_if_it_recorded_something_that_is_not_requested_yet() -> None:
    patch = entry(4, "/redrive.patched a#0", kind=EntryKind.PATCH, status=StepStatus.SUCCESS)
    rows = [entry(0, "1/charge#0", 0), entry(1, "10/charge#0"), entry(2, "2.3/charge#0", loose=1), patch]
    journal = Journal(rows)
    for row in rows[:3]:
        assert journal.has_unrequested()
        journal.request_entry(row.key)
    assert not journal.has_unrequested()  # the patch itself says nothing about the place


def test_a_branch_misses_the_patches_that_it_or_a_branch_above_took() -> None:
    patch = entry(0, "1/redrive.patched a#0", kind=EntryKind.PATCH, status=StepStatus.SUCCESS)
    journal = Journal([replace(patch, output="true")])
    missed = [branch for branch in ("", "1", "1.0", "10", "2") if journal.has_missed_patch(branch)]
    assert missed == ["1", "1.0"]
    journal.request_entry("1/redrive.patched a#0")
    assert not journal.has_missed_patch("1.0")
