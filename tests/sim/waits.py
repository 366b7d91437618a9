"""A model of waits: every interleaving of a waiting run, a fact and its wake-up, with a crash at any point.

The waiter looks for the fact, registers its wait, looks again, and is suspended in the store. Another process commits
the fact, and afterwards wakes the runs that are registered. Each process may die after any step. A worker that died is
replaced. A chore finds a fact whose process died before the wake-up, and wakes in its place.

    rule 3   a run is suspended only if no wake-up came since it looked
    rule 4   register first, look afterwards

A wake-up is lost if, in the end, the fact is there and the run sleeps without a due time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Rules:
    """The rules in force. `always`: a fact wakes the run whether or not it is registered, as events do."""

    guards: bool = True
    looks_again: bool = True
    always: bool = False


@dataclass(frozen=True)
class State:
    """The store, and how far each process is. `at`: the next step of the waiter, None while no worker has the run."""

    at: str | None = "look"
    seen: int = 0
    wakeups: int = 0
    registered: bool = False
    fact: bool = False
    told: bool = False
    teller: str | None = "commit"
    due: bool = False
    answers: int = 0
    crashes: int = 1

    @property
    def is_lost(self) -> bool:
        """True if the run would sleep although its fact is there."""
        return self.fact and self.told and self.at is None and not self.due and not self.answers


def steps(state: State, rules: Rules) -> Iterator[State]:
    """Yield every state that one step of one process leads to."""
    yield from _waiter(state, rules)
    yield from _teller(state, rules)
    if state.at is None and state.due and not state.answers:  # a worker claims the run, and its code walks to the wait
        yield replace(state, at="look", due=False)
    if state.crashes:
        if state.at not in (None, "done"):  # its worker dies; the reaper makes the run due
            yield replace(state, at=None, due=True, crashes=state.crashes - 1)
        if state.teller == "tell":  # the process dies between the fact and the wake-up: the chore is left
            yield replace(state, teller="chore", crashes=state.crashes - 1)


def _waiter(state: State, rules: Rules) -> Iterator[State]:
    if state.at == "look":
        if state.fact:
            yield replace(state, at="answer", seen=state.wakeups)
        else:
            yield replace(state, at="register", seen=state.wakeups)
    elif state.at == "register":
        yield replace(state, at="again" if rules.looks_again else "suspend", registered=True)
    elif state.at == "again":
        yield replace(state, at="answer" if state.fact else "suspend", seen=state.wakeups)
    elif state.at == "suspend":
        newer = rules.guards and state.wakeups > state.seen
        yield replace(state, at=None, due=newer)
    elif state.at == "answer":  # the commit under the fence, which takes the fact
        yield replace(state, at="done", answers=state.answers + 1, registered=False)


def _teller(state: State, rules: Rules) -> Iterator[State]:
    if state.teller == "commit":
        if rules.always:  # one transaction: the event, and the wake-up of a run that sleeps
            yield _wake(replace(state, fact=True))
        else:
            yield replace(state, fact=True, teller="tell")
    elif state.teller in ("tell", "chore"):
        yield _wake(state) if state.registered else replace(state, teller=None, told=True)


def _wake(state: State) -> State:
    sleeps = state.at is None and state.registered
    return replace(state, wakeups=state.wakeups + 1, teller=None, told=True, due=state.due or sleeps)


def explore(rules: Rules) -> tuple[int, list[State]]:
    """Return the number of states that can be reached, and those in which a wake-up is lost."""
    seen, left = {State()}, [State()]
    while left:
        for state in steps(left.pop(), rules):
            assert state.answers <= 1, "a fact was consumed twice"
            if state not in seen:
                seen.add(state)
                left.append(state)
    return len(seen), [state for state in seen if state.is_lost and not list(steps(state, rules))]
