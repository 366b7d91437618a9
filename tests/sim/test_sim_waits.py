"""The rules of waits hold in every interleaving, and each of them is needed."""

from __future__ import annotations

import pytest
from waits import Rules, State, explore, steps


@pytest.mark.parametrize("always", [False, True])
def test_no_interleaving_loses_a_wake_up_or_consumes_a_fact_twice(always: bool) -> None:
    count, lost = explore(Rules(always=always))
    assert count > 30
    assert lost == []


@pytest.mark.parametrize("always", [False, True])
def test_without_the_guard_of_a_suspension_a_wake_up_is_lost(always: bool) -> None:
    assert explore(Rules(guards=False, always=always))[1]


def test_looking_before_registering_only_loses_a_wake_up() -> None:
    """A fact that wakes only those who are registered needs the second look. An event wakes in any case."""
    assert explore(Rules(looks_again=False))[1]
    assert explore(Rules(looks_again=False, always=True))[1] == []


def test_every_run_whose_fact_came_is_answered_in_the_end() -> None:
    """From every state that can be reached, some way leads to the answer."""
    rules = Rules()
    seen, left = {State()}, [State()]
    before: dict[State, set[State]] = {}
    while left:
        here = left.pop()
        for state in steps(here, rules):
            before.setdefault(state, set()).add(here)
            if state not in seen:
                seen.add(state)
                left.append(state)
    reaching = [state for state in seen if state.answers]
    found = set(reaching)
    while reaching:
        for state in before.get(reaching.pop(), ()):
            if state not in found:
                found.add(state)
                reaching.append(state)
    assert seen == found
