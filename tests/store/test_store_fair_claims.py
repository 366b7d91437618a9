"""The order in which due runs of queues are chosen."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from redrive.store.claims import DueRun, choose_fairly


def queue(tenant: str, count: int, *, rank: int = 0, first: int = 1, name: str = "default") -> list[DueRun]:
    return [DueRun(tenant, name, rank, first + n, first + n) for n in range(count)]


def tenants(chosen: list[DueRun]) -> str:
    return "".join(due.tenant for due in chosen)


def test_queues_take_turns() -> None:
    assert tenants(choose_fairly(queue("a", 5) + queue("b", 2) + queue("c", 3), 10)) == "abcabcacaa"


def test_the_queue_that_comes_first_is_served_first() -> None:
    assert tenants(choose_fairly(queue("b", 1) + queue("a", 1), 1)) == "b"


def test_each_queue_of_a_tenant_is_a_separate_queue() -> None:
    chosen = choose_fairly(queue("a", 5, name="x") + queue("a", 5, name="y"), 4)
    assert [due.queue for due in chosen] == ["x", "y", "x", "y"]


def test_a_queue_is_ordered_by_urgency_then_age_then_number() -> None:
    late, early = DueRun("a", "q", 1, 10, 1), DueRun("a", "q", 1, 5, 9)
    urgent, twin = DueRun("a", "q", -5, 99, 3), DueRun("a", "q", 1, 5, 8)
    assert choose_fairly([late, early, urgent, twin], 4) == [urgent, twin, early, late]


def test_nothing_is_chosen_without_due_runs_or_capacity() -> None:
    assert choose_fairly([], 10) == []
    assert choose_fairly(queue("a", 3), 0) == []
    assert choose_fairly(queue("a", 3), -1) == []


_due = st.lists(
    st.builds(
        DueRun,
        tenant=st.sampled_from("abc"),
        queue=st.sampled_from("xy"),
        rank=st.integers(-2, 2),
        due_at=st.integers(0, 5),
        run=st.integers(),
    ),
    unique_by=lambda due: due.run,
    max_size=40,
)


@given(due=_due, capacity=st.integers(0, 50))
def test_the_capacity_is_filled_and_each_run_is_chosen_once(due: list[DueRun], capacity: int) -> None:
    chosen = choose_fairly(due, capacity)
    assert len(chosen) == min(len(due), capacity)
    assert set(chosen) <= set(due)
    assert len(set(chosen)) == len(chosen)


@given(due=_due, capacity=st.integers(0, 50))
def test_no_queue_gets_two_more_than_one_that_still_waits(due: list[DueRun], capacity: int) -> None:
    chosen = Counter((run.tenant, run.queue) for run in choose_fairly(due, capacity))
    there = Counter((run.tenant, run.queue) for run in due)
    for waiting in there:
        if chosen[waiting] < there[waiting]:
            assert all(chosen[other] <= chosen[waiting] + 1 for other in there)


@given(due=_due, capacity=st.integers(0, 50))
def test_no_run_is_passed_by_a_less_urgent_one_of_the_same_queue(due: list[DueRun], capacity: int) -> None:
    chosen = choose_fairly(due, capacity)
    left = set(due) - set(chosen)
    for run in chosen:
        rivals = [other for other in left if (other.tenant, other.queue) == (run.tenant, run.queue)]
        assert all(run.urgency < other.urgency for other in rivals)


@given(due=_due, capacity=st.integers(0, 30))
def test_more_capacity_only_adds_to_the_choice(due: list[DueRun], capacity: int) -> None:
    assert choose_fairly(due, capacity) == choose_fairly(due, capacity + 1)[:capacity]
