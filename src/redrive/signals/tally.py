"""Counting what the engine does, in memory: a few additions for each outcome, nothing else.

Names of workflows and steps come from users' code, and each becomes a time series somewhere: from a few
hundred on, further ones are counted together as `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from redrive.core.outcome import Began, Noted, OpenStep, Outcome, Place, Raised, Returned, Slept, Woke
from redrive.core.states import FINAL, EntryKind, RunStatus, StepStatus
from redrive.core.transition import Answer, AttemptEnd, Transition
from redrive.signals.histogram import DELAYS, LATENCIES, SIZES, Histogram

__all__ = ["OTHER", "Ear", "StepTally", "Tally", "bounded"]

OTHER = "other"
MOST_WORKFLOWS, MOST_STEPS = 200, 500

_QUIET = frozenset({Began, Noted, Slept, Woke})
_GOOD = frozenset({RunStatus.SUCCESS, RunStatus.PARTIAL})


class Ear(Protocol):
    """Hears of every batch of transitions that was applied."""

    def settled(
        self,
        outcomes: Sequence[Outcome],
        transitions: Sequence[Transition],
        answers: Sequence[Answer],
        seconds: float,
    ) -> None:
        """These outcomes were decided on like this, and answered so, within so many seconds."""


class StepTally:
    """The tries of one step in one workflow.

    `recovered` and `gave_up` count how steps ended that had been tried more than once.
    """

    __slots__ = ("ends", "gave_up", "recovered", "retries", "seconds", "succeeded")

    def __init__(self) -> None:
        self.succeeded = 0
        self.recovered = 0
        self.gave_up = 0
        self.seconds = Histogram(LATENCIES)
        self.ends: Counter[AttemptEnd] = Counter()
        self.retries: Counter[str] = Counter()


class Tally:
    """Everything that one process counts. It is written on the event loop and may be read from any thread."""

    def __init__(self) -> None:
        self.steps: dict[tuple[str, EntryKind, str], StepTally] = {}
        self.runs: Counter[tuple[str, str]] = Counter()
        self.letters: Counter[tuple[str, str, str]] = Counter()
        self.replays: Counter[tuple[str, str]] = Counter()
        self.replay_ends: Counter[tuple[str, str]] = Counter()
        self.delays: dict[str, Histogram] = {}
        self.batches = Histogram(SIZES)
        self.commits = Histogram(LATENCIES)
        self.claims = Histogram(LATENCIES)
        self.published = Histogram(LATENCIES)
        self.deliveries: Counter[tuple[str, str]] = Counter()
        self.refused = 0
        self.runs_lost = 0
        self.leases_lost = 0
        self.worker_deaths = 0
        self._workflows: set[str] = set()

    # -- decisions ------------------------------------------------------------------------------------

    def settled(
        self,
        outcomes: Sequence[Outcome],
        transitions: Sequence[Transition],
        answers: Sequence[Answer],
        seconds: float,
    ) -> None:
        """Count what was applied."""
        self.batches.add(len(outcomes))
        self.commits.add(seconds)
        for outcome, transition, answer in zip(outcomes, transitions, answers, strict=True):
            if not answer.kept:
                self.refused += 1
            elif type(outcome) is Returned:
                self._returned(outcome)
            elif type(outcome) not in _QUIET:
                self._other(outcome, transition)

    def _returned(self, outcome: Returned) -> None:
        place = outcome.place
        step = self.steps.get((outcome.run.workflow, place.kind, place.name))
        if step is None:
            step = self._step(outcome.run.workflow, place)
        step.succeeded += 1
        step.seconds.add(outcome.began_ago / 1e6)
        if outcome.attempt > 1:
            step.recovered += 1

    def _other(self, outcome: Outcome, transition: Transition) -> None:
        workflow, change = self._workflow(outcome.run.workflow), transition.change
        if transition.attempts:
            self._attempts(outcome, transition)
        if isinstance(outcome, Raised):
            self._raised(outcome, transition)
        if (letter := transition.letter) is not None:
            self.letters[workflow, letter.stage, letter.code] += 1
        if change is not None and change.status in FINAL:
            self.runs[workflow, change.status.value] += 1
            if transition.ends_replay is not None:
                self.replay_ends[workflow, "success" if change.status in _GOOD else "failure"] += 1

    def _attempts(self, outcome: Outcome, transition: Transition) -> None:
        """Tries that ended otherwise than well: this one, and those that ended with it."""
        places = {each.place.index: each.place for each in _open(outcome)}
        if (own := getattr(outcome, "place", None)) is not None:
            places[own.index] = own
        for attempt in transition.attempts:
            place = places.get(attempt.index)
            if place is not None:
                step = self._step(outcome.run.workflow, place)
                step.ends[attempt.end] += 1
                if attempt.end is not AttemptEnd.PARKED:
                    step.seconds.add(attempt.began_ago / 1e6)

    def _raised(self, outcome: Raised, transition: Transition) -> None:
        step, entry = self._step(outcome.run.workflow, outcome.place), transition.entries[0]
        if entry.status is StepStatus.RETRYING:
            step.retries[outcome.failure.category.value] += 1
            workflow = self._workflow(outcome.run.workflow)
            self.delays.setdefault(workflow, Histogram(DELAYS)).add((entry.wake_in or 0) / 1e6)
        elif outcome.attempt > 1:
            step.gave_up += 1

    # -- what is no outcome ---------------------------------------------------------------------------

    def replayed(self, workflow: str, mode: str) -> None:
        """A person's decision to replay was applied."""
        self.replays[self._workflow(workflow), mode] += 1

    def delivered(self, sink: str, end: str, seconds: float) -> None:
        """A message came to a sink, or did not, so long after it was committed."""
        self.deliveries[sink, end] += 1
        if end == "DELIVERED":
            self.published.add(seconds)

    # -- names ----------------------------------------------------------------------------------------

    def _workflow(self, name: str) -> str:
        if name not in self._workflows:
            if len(self._workflows) >= MOST_WORKFLOWS:
                return OTHER
            self._workflows.add(name)
        return name

    def _step(self, workflow: str, place: Place) -> StepTally:
        key = (workflow, place.kind, place.name)
        found = self.steps.get(key)
        if found is None:
            if len(self.steps) >= MOST_STEPS:
                key = (OTHER, place.kind, OTHER)
            found = self.steps.setdefault(key, StepTally())
        return found


def _open(outcome: Outcome) -> Iterable[OpenStep]:
    """The other entries that were under way when something happened to their run."""
    return (*getattr(outcome, "open", ()), *getattr(outcome, "others", ()))


def bounded(counts: Iterable[tuple[str, int]], most: int = MOST_WORKFLOWS) -> dict[str, int]:
    """Counts by name; the smallest are counted together where there are too many."""
    ordered = sorted(counts, key=lambda each: (-each[1], each[0]))
    told = dict(ordered[:most])
    rest = sum(count for _, count in ordered[most:])
    return {**told, OTHER: told.get(OTHER, 0) + rest} if rest else told
