"""Counters of one process: a few additions in memory for each outcome; and the statistics of its store, cached.

Names of workflows, steps, circuits and sinks come from users, and each becomes a time series in Prometheus.
Each process therefore gives a separate label only to the first names that it sees; all others share the label
`other`. A name keeps its label until the process ends: a limit per scrape would let changing names add series
without end.
"""

from __future__ import annotations

import importlib.util
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from redrive.clock import Clock
from redrive.core.outcomes import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    EntryRef,
    Outcome,
    SleepEnded,
    SleepStarted,
    ValueRecorded,
)
from redrive.core.states import FINAL_RUN_STATUSES, EntryKind, RunStatus, StepStatus
from redrive.core.transitions import AttemptEnd, Transition, TransitionResult
from redrive.errors import RedriveError
from redrive.settings import METRICS_OFF
from redrive.store.stats import StoreStats

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0)
"""Seconds: from one commit on a fast disk to a call that is worth an alert."""

DELAY_BUCKETS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds between two attempts."""

SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 512.0)
"""Outcomes in one commit; 512 is the most."""


class Histogram:
    """Number of values in each range, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the number of values up to each bound, in the cumulative form of Prometheus."""
        so_far, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


OTHER_LABEL = "other"
MAX_WORKFLOWS, MAX_STEPS, MAX_CIRCUITS, MAX_SINKS, MAX_VERSIONS = 200, 500, 100, 50, 100
_MAX_NAME_LENGTH = 200
_MAX_STATS_AGE = 2.0  # seconds
_UNCOUNTED = frozenset({AttemptStarted, ValueRecorded, SleepStarted, SleepEnded})
_SUCCESSES = frozenset({RunStatus.SUCCESS, RunStatus.PARTIAL})


class SettleListener(Protocol):
    """Receiver of batches of transitions that were applied.

    `ignored`: kinds of outcomes that it does not need. It is not called for a batch that has only those.
    """

    @property
    def ignored(self) -> frozenset[type]: ...

    def on_settled(
        self,
        outcomes: Sequence[Outcome],
        transitions: Sequence[Transition],
        answers: Sequence[TransitionResult],
        seconds: float,
    ) -> None:
        """Take note of a batch: its outcomes, the decisions, the store's answers, and how long it took."""


class Labels:
    """Names that have their own label: the first ones requested, up to a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def find(self, name: str) -> str:
        """Return the label for a name: the name, or `other` if too many were seen before it."""
        if name in self._known:
            return name
        if len(self._known) >= self._most or len(name) > _MAX_NAME_LENGTH:
            return OTHER_LABEL
        self._known.add(name)
        return name


class StepCounters:
    """Attempts of one step in one workflow. `recovered` and `gave_up` count ends of steps with several attempts."""

    __slots__ = ("ends", "gave_up", "recovered", "retries", "seconds", "succeeded")

    def __init__(self) -> None:
        self.succeeded = 0
        self.recovered = 0
        self.gave_up = 0
        self.seconds = Histogram(LATENCY_BUCKETS)
        self.ends: Counter[AttemptEnd] = Counter()
        self.retries: Counter[str] = Counter()


class Counters:
    """All counters of one process. Written on the event loop, read from any thread."""

    ignored: frozenset[type] = frozenset()  # even a batch of begin marks counts as a commit

    def __init__(self) -> None:
        self.steps: dict[tuple[str, EntryKind, str], StepCounters] = {}
        self.runs: Counter[tuple[str, str]] = Counter()
        self.letters: Counter[tuple[str, str, str]] = Counter()
        self.replay_ends: Counter[tuple[str, str]] = Counter()
        self.delays: dict[str, Histogram] = {}
        self.batches = Histogram(SIZE_BUCKETS)
        self.commits = Histogram(LATENCY_BUCKETS)
        self.claims = Histogram(LATENCY_BUCKETS)
        self.published = Histogram(LATENCY_BUCKETS)
        self.deliveries: Counter[tuple[str, str]] = Counter()
        self.refused = 0
        self.runs_lost = 0
        self.leases_lost = 0
        self.worker_deaths = 0
        self.workflows = Labels(MAX_WORKFLOWS)
        self.versions = Labels(MAX_VERSIONS)
        self.circuits = Labels(MAX_CIRCUITS)
        self.sinks = Labels(MAX_SINKS)

    def on_settled(
        self,
        outcomes: Sequence[Outcome],
        transitions: Sequence[Transition],
        answers: Sequence[TransitionResult],
        seconds: float,
    ) -> None:
        """Count the outcomes of a batch that was applied."""
        self.batches.add(len(outcomes))
        self.commits.add(seconds)
        for outcome, transition, answer in zip(outcomes, transitions, answers, strict=True):
            if not answer.kept:
                self.refused += 1
            elif type(outcome) is AttemptSucceeded:
                step = self._find_step(outcome.run.workflow, outcome.place)
                step.succeeded += 1
                step.seconds.add(outcome.began_ago / 1e6)
                if outcome.attempt > 1:
                    step.recovered += 1
            elif type(outcome) not in _UNCOUNTED:
                self._count_failure_or_end(outcome, transition)

    def _count_failure_or_end(self, outcome: Outcome, transition: Transition) -> None:
        workflow, change = self.workflows.find(outcome.run.workflow), transition.change
        if transition.attempts:
            self._count_attempts(outcome, transition)
        if isinstance(outcome, AttemptFailed):
            step, entry = self._find_step(outcome.run.workflow, outcome.place), transition.entries[0]
            if entry.status is StepStatus.RETRYING:
                step.retries[outcome.failure.category.value] += 1
                self.delays.setdefault(workflow, Histogram(DELAY_BUCKETS)).add((entry.wake_in or 0) / 1e6)
            elif outcome.attempt > 1:
                step.gave_up += 1
        if (letter := transition.letter) is not None:
            self.letters[workflow, letter.stage, letter.code] += 1
        if change is not None and change.status in FINAL_RUN_STATUSES:
            self.runs[workflow, change.status.value] += 1
            if transition.ends_replay is not None:
                self.replay_ends[workflow, "success" if change.status in _SUCCESSES else "failure"] += 1

    def _count_attempts(self, outcome: Outcome, transition: Transition) -> None:
        """Count the attempts that did not succeed: the one of the outcome, and those that ended with it."""
        open_entries = (*getattr(outcome, "open", ()), *getattr(outcome, "others", ()))
        places = {each.place.index: each.place for each in open_entries}
        if (own := getattr(outcome, "place", None)) is not None:
            places[own.index] = own
        for attempt in transition.attempts:
            place = places.get(attempt.index)
            if place is not None:
                step = self._find_step(outcome.run.workflow, place)
                step.ends[attempt.end] += 1
                if attempt.end is not AttemptEnd.PARKED:
                    step.seconds.add(attempt.began_ago / 1e6)

    def count_delivery(self, sink: str, end: str, seconds: float) -> None:
        """Count a delivery attempt, `seconds` after the message was committed."""
        self.deliveries[self.sinks.find(sink), end] += 1
        if end == "DELIVERED":
            self.published.add(seconds)

    def _find_step(self, workflow: str, place: EntryRef) -> StepCounters:
        key = (workflow, place.kind, place.name)
        found = self.steps.get(key)
        if found is None:
            if len(self.steps) >= MAX_STEPS or max(len(workflow), len(place.name)) > _MAX_NAME_LENGTH:
                key = (OTHER_LABEL, place.kind, OTHER_LABEL)
            found = self.steps.setdefault(key, StepCounters())
        return found


def metrics_enabled(setting: str) -> bool:
    """Return True if the extra is installed and the setting is not off."""
    return setting != METRICS_OFF and importlib.util.find_spec("prometheus_client") is not None


class StatsCache:
    """The store's statistics, cached for two seconds because there may be many scrapers."""

    def __init__(self, ask: Callable[[], Awaitable[StoreStats]], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._found: StoreStats | None = None
        self._at = 0.0

    async def get(self) -> StoreStats | None:
        """Return the statistics; None if the store does not answer."""
        if self._found is not None and self._clock.monotonic() - self._at < _MAX_STATS_AGE:
            return self._found
        try:
            self._found = await self._ask()
        except RedriveError:
            self._found = None
        self._at = self._clock.monotonic()
        return self._found
