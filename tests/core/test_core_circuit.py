"""The circuit against a reference of twenty lines, and its rules one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.circuit import (
    Admission,
    CircuitRules,
    CircuitSample,
    CircuitState,
    CircuitStatus,
    admit,
    close_circuit,
    evaluate,
    expire,
    open_manually,
    release_size,
)
from redrive.record_fields import replace

SECOND = 1_000_000
RULES = CircuitRules(failures=5, window=60 * SECOND, open_for=60 * SECOND, probes=3)
CLOSED, OPEN, HALF_OPEN = CircuitStatus.CLOSED, CircuitStatus.OPEN, CircuitStatus.HALF_OPEN


def failures(number: int, *, at: int = 0, generation: int = 0) -> list[CircuitSample]:
    return [CircuitSample(generation, False, at) for _ in range(number)]


def test_the_fifth_failure_within_the_window_opens_the_circuit_for_a_minute() -> None:
    state = evaluate(CircuitState(), RULES, failures(4), 0)
    assert state.status is CLOSED
    state = evaluate(CircuitState(), RULES, failures(5), 10)
    assert (state.status, state.generation, state.until) == (OPEN, 1, 10 + 60 * SECOND)


def test_failures_that_left_the_window_do_not_count() -> None:
    old = failures(4, at=0)
    assert evaluate(CircuitState(), RULES, old + failures(1, at=60 * SECOND), 60 * SECOND).status is CLOSED
    assert evaluate(CircuitState(), RULES, old + failures(1, at=59 * SECOND), 59 * SECOND).status is OPEN


def test_an_open_circuit_admits_no_call_until_its_time_is_over() -> None:
    state = evaluate(CircuitState(), RULES, failures(5), 0)
    assert expire(state, 60 * SECOND - 1) == state
    assert admit(state, RULES, 0) is Admission.STAY_OUT
    state = expire(state, 60 * SECOND)
    assert (state.status, state.generation) == (HALF_OPEN, 2)
    assert [admit(state, RULES, probing) for probing in range(5)] == [Admission.PROBE] * 3 + [Admission.STAY_OUT] * 2


def test_one_good_probe_closes_the_circuit_and_clears_the_window() -> None:
    state = CircuitState(status=HALF_OPEN, generation=2)
    state = evaluate(state, RULES, [*failures(5, generation=0), CircuitSample(2, True, 5)], 5)
    assert (state.status, state.generation) == (CLOSED, 3)
    assert evaluate(state, RULES, failures(4, generation=0), 6) == state


def test_a_failed_probe_reopens_the_circuit_whatever_the_other_probes_report() -> None:
    state = CircuitState(status=HALF_OPEN, generation=2)
    state = evaluate(state, RULES, [CircuitSample(2, True, 5), CircuitSample(2, False, 5)], 7)
    assert (state.status, state.until) == (OPEN, 7 + 60 * SECOND)


@pytest.mark.parametrize("status", list(CircuitStatus))
def test_late_results_of_an_earlier_generation_change_nothing(status: CircuitStatus) -> None:
    state = CircuitState(status=status, generation=7, until=100)
    assert evaluate(state, RULES, [*failures(50, generation=6), CircuitSample(6, True, 0)], 50) == state


def test_a_circuit_opened_by_a_user_stays_open_until_a_user_closes_it() -> None:
    state = open_manually(CircuitState())
    assert expire(state, 10**18) == state
    assert admit(state, RULES, 0) is Admission.STAY_OUT
    assert close_circuit(state) == CircuitState(status=CLOSED, generation=2)


def test_parked_runs_are_released_as_probes_and_then_in_growing_batches() -> None:
    half_open = CircuitState(status=HALF_OPEN, generation=2)
    assert [release_size(half_open, RULES, probing)[0] for probing in range(5)] == [3, 2, 1, 0, 0]
    assert release_size(CircuitState(status=OPEN, generation=1, until=1), RULES, 0)[0] == 0
    state, sizes = close_circuit(half_open), []
    for _ in range(5):
        size, state = release_size(state, RULES, 0)
        sizes.append(size)
    assert sizes == [10, 100, 1000, 1000, 1000]


class Reference:
    """Reference implementation of the circuit for one process and one thread."""

    def __init__(self) -> None:
        self.status, self.generation, self.bad, self.until = CLOSED, 0, list[int](), 0

    def turn(self, status: CircuitStatus) -> None:
        self.status, self.generation, self.bad = status, self.generation + 1, []

    def ended(self, generation: int, good: bool, now: int) -> None:
        if generation != self.generation:
            return
        if self.status is HALF_OPEN and good:
            self.turn(CLOSED)
        elif not good:
            self.bad = [at for at in self.bad if at > now - RULES.window] + [now]
            if self.status is HALF_OPEN or (self.status is CLOSED and len(self.bad) >= RULES.failures):
                self.turn(OPEN)
                self.until = now + RULES.open_for

    def may_call(self, now: int) -> bool:
        if self.status is OPEN and now >= self.until:
            self.turn(HALF_OPEN)
        return self.status is not OPEN


# Whole seconds: of a range of microseconds Hypothesis mostly draws so little that no failure leaves the window.
PAUSES = st.integers(0, 40).map(lambda seconds: seconds * SECOND)
EVENTS = st.lists(st.tuples(st.sampled_from(["good", "bad", "bad", "bad", "late", "look"]), PAUSES), max_size=80)


@given(EVENTS)
def test_the_circuit_behaves_like_the_reference(events: list[tuple[str, int]]) -> None:
    reference, state, marks, now = Reference(), CircuitState(), list[CircuitSample](), 0
    for what, passed in events:
        now += passed
        if what == "look":
            allowed = reference.may_call(now)
            state = expire(state, now)
            assert (admit(state, RULES, 0) is not Admission.STAY_OUT) == allowed
            continue
        generation = state.generation - 1 if what == "late" else state.generation
        good = what == "good"
        if good and state.status is CLOSED:
            continue  # workers do not record this
        marks.append(CircuitSample(generation, good, now))
        state = evaluate(state, RULES, marks, now)
        reference.ended(generation, good, now)
        assert (state.status, state.generation) == (reference.status, reference.generation)


@given(EVENTS)
def test_evaluating_twice_equals_evaluating_once(events: list[tuple[str, int]]) -> None:
    marks, now, state = list[CircuitSample](), 0, CircuitState()
    for what, passed in events:
        now += passed
        marks.append(CircuitSample(state.generation, what == "good", now))
        once = evaluate(state, RULES, marks, now)
        assert evaluate(once, RULES, marks, now) == once
        state = replace(once)
