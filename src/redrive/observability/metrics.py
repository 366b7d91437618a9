"""Metrics for Prometheus, from the counters of the process and the store's statistics. Needs the extra `metrics`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from redrive.core.states import EntryKind
from redrive.core.transitions import AttemptEnd
from redrive.errors import ConfigurationError
from redrive.observability.counters import LATENCY_BUCKETS, Counters, Histogram, Labels, StatsCache, StepCounters
from redrive.store.stats import StoreStats

LabelledValues: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
LabelledHistograms: TypeAlias = Iterable[tuple[tuple[str, ...], Histogram]]
_ATTEMPT_OUTCOMES = {
    AttemptEnd.FAILED: "failed",
    AttemptEnd.TIMED_OUT: "timed_out",
    AttemptEnd.LOST: "lost",
    AttemptEnd.RELEASED: "released",
    AttemptEnd.CANCELLED: "cancelled",
}
METRICS = {
    "workflow_step_attempts_total": "Finished attempts of steps, by outcome",
    "workflow_step_retries_total": "Failed attempts that will be retried, by category",
    "workflow_step_retry_delay_seconds": "Delay before the next attempt",
    "workflow_step_retry_outcomes_total": "Outcomes of steps that were retried",
    "workflow_step_parked_total": "Step calls that waited because a circuit was open",
    "workflow_step_duration_seconds": "Duration of one attempt of a step",
    "workflow_stage_latency_seconds": "Duration of one claim, attempt, commit or delivery",
    "workflow_compensation_invocations_total": "Attempts of compensations",
    "workflow_compensation_outcomes_total": "Outcomes of compensations",
    "workflow_runs_finished_total": "Finished runs, by status",
    "workflow_dlq_moves_total": "Dead letters written, by stage and code",
    "workflow_dlq_replay_outcomes_total": "Outcomes of replayed runs",
    "workflow_commit_batch_size": "Outcomes in one commit",
    "workflow_writes_refused_total": "Outcomes refused because another worker had the run by then",
    "workflow_lease_losses_total": "Times that this process was declared dead while it was alive",
    "workflow_runs_lost_total": "Runs that were taken from this process",
    "workflow_worker_deaths_total": "Dead workers whose runs this process recovered",
    "workflow_outbox_deliveries_total": "Delivery attempts of messages, by sink and outcome",
    "workflow_dlq_replays_total": "Replays since the store was created, by mode",
    "workflow_dlq_depth": "Open dead letters",
    "workflow_dlq_oldest_age_seconds": "Age of the oldest open dead letter",
    "workflow_runs_due": "Runs that a worker could claim now",
    "workflow_runs_overdue": "Due runs that no worker claimed within a minute",
    "workflow_runs_due_oldest_age_seconds": "Waiting time of the first due run",
    "workflow_runs_open": "Open runs that began, by workflow and version of the code",
    "workflow_runs_unclaimable": "Due runs that no live worker can claim, with the version to which they are pinned",
    "workflow_runs_suspect": "Runs whose worker died",
    "workflow_runs_stalled": "Runs that a remote worker holds without reporting anything",
    "workflow_runs_parked": "Runs that wait for a circuit",
    "workflow_waits": "Open waits of runs, by kind: for events, other runs, dead letters of runs, tasks, remote steps",
    "workflow_parents_waiting_for_letters": "Runs that wait for a run with an open dead letter",
    "workflow_parents_oldest_letter_age_seconds": "Age of the oldest dead letter that another run waits for",
    "workflow_unread_events": "Events that were sent to runs and not taken yet",
    "workflow_open_tasks": "Tasks that wait for the answer of a person",
    "workflow_tasks_oldest_age_seconds": "Age of the oldest open task",
    "workflow_circuits": "Circuits that are not closed",
    "workflow_outbox_pending": "Deliveries that are not finished",
    "workflow_outbox_dead": "Deliveries that failed for good and need a decision",
    "workflow_outbox_lag_seconds": "Waiting time of the first due delivery",
    "workflow_workers": "Workers by state",
    "workflow_store_up": "1 if the store answered the query for its statistics",
    "workflow_build_info": "The version of Redrive",
}
"""Every metric and its meaning. The runbook says what to do about each."""


class Collector:
    """Collector of the counters and of the store's statistics. `stats` returns None if the store does not answer."""

    def __init__(self, counters: Counters | None, stats: Callable[[], StoreStats | None]) -> None:
        self._counters = counters
        self._labels = Counters() if counters is None else counters
        self._read_stats = stats

    def describe(self) -> list[Metric]:
        """Return no metrics in advance: that would need a query to the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield InfoMetricFamily("workflow_build", METRICS["workflow_build_info"], {"version": version("redrive")})
        if self._counters is not None:
            yield from _step_metrics(self._counters)
        stats = self._read_stats()
        yield _gauge("workflow_store_up", (), [((), float(stats is not None))])
        if stats is not None:
            yield from _store_metrics(stats, self._labels)


def make_registry(counters: Counters | None, stats: Callable[[], StoreStats | None]) -> CollectorRegistry:
    """Make a registry with the engine's metrics and those of this process."""
    registry = CollectorRegistry()
    registry.register(Collector(counters, stats))
    ProcessCollector(registry=registry)
    return registry


def render_metrics(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the metrics in the format that the scraper accepts, and their content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _step_metrics(counters: Counters) -> Iterator[Metric]:
    steps = [((workflow, name), kind, step) for (workflow, kind, name), step in list(counters.steps.items())]
    plain = [(labels, step) for labels, _, step in steps]
    undone = [(labels, step) for labels, kind, step in steps if kind is EntryKind.UNDO]
    where = ("workflow", "step")
    yield _counter("workflow_step_attempts_total", (*where, "outcome"), _attempt_outcomes(plain))
    yield _counter(
        "workflow_step_retries_total",
        (*where, "category"),
        [((*labels, category), n) for labels, step in plain for category, n in list(step.retries.items())],
    )
    yield _counter("workflow_step_retry_outcomes_total", (*where, "outcome"), _retry_outcomes(plain))
    parked = [(labels, step.ends[AttemptEnd.PARKED]) for labels, step in plain if step.ends[AttemptEnd.PARKED]]
    yield _counter("workflow_step_parked_total", where, parked)
    delays = [((workflow,), delays) for workflow, delays in list(counters.delays.items())]
    yield _histogram("workflow_step_retry_delay_seconds", ("workflow",), delays)
    yield _histogram("workflow_step_duration_seconds", where, [(labels, s.seconds) for labels, s in plain])
    execute = Histogram(LATENCY_BUCKETS)
    for _, step in plain:
        execute.total += step.seconds.total
        execute.counts = [a + b for a, b in zip(execute.counts, step.seconds.counts, strict=True)]
    stages = {"claim": counters.claims, "execute": execute, "commit": counters.commits, "publish": counters.published}
    latencies = [((stage,), histogram) for stage, histogram in stages.items()]
    yield _histogram("workflow_stage_latency_seconds", ("stage",), latencies)
    invocations = [(labels, s.succeeded + sum(s.ends[end] for end in _ATTEMPT_OUTCOMES)) for labels, s in undone]
    yield _counter("workflow_compensation_invocations_total", where, invocations)
    yield _counter("workflow_compensation_outcomes_total", (*where, "outcome"), _compensation_outcomes(undone))
    workflow = ("workflow",)
    yield _counter("workflow_runs_finished_total", (*workflow, "status"), list(counters.runs.items()))
    yield _counter("workflow_dlq_moves_total", (*workflow, "stage", "code"), list(counters.letters.items()))
    yield _counter("workflow_dlq_replay_outcomes_total", (*workflow, "outcome"), list(counters.replay_ends.items()))
    deliveries = [((sink, end.lower()), n) for (sink, end), n in list(counters.deliveries.items())]
    yield _counter("workflow_outbox_deliveries_total", ("sink", "outcome"), deliveries)
    yield _histogram("workflow_commit_batch_size", (), [((), counters.batches)])
    yield _counter("workflow_writes_refused_total", (), [((), counters.refused)])
    yield _counter("workflow_lease_losses_total", (), [((), counters.leases_lost)])
    yield _counter("workflow_runs_lost_total", (), [((), counters.runs_lost)])
    yield _counter("workflow_worker_deaths_total", (), [((), counters.worker_deaths)])


def _attempt_outcomes(steps: Iterable[tuple[tuple[str, str], StepCounters]]) -> LabelledValues:
    for labels, step in steps:
        yield (*labels, "success"), step.succeeded
        for end, word in _ATTEMPT_OUTCOMES.items():
            if step.ends[end]:
                yield (*labels, word), step.ends[end]


def _retry_outcomes(steps: Iterable[tuple[tuple[str, str], StepCounters]]) -> LabelledValues:
    for labels, step in steps:
        if step.recovered or step.gave_up:
            yield (*labels, "success"), step.recovered
            yield (*labels, "failure"), step.gave_up


def _compensation_outcomes(steps: Iterable[tuple[tuple[str, str], StepCounters]]) -> LabelledValues:
    for labels, step in steps:
        yield (*labels, "success"), step.succeeded
        failed = step.ends[AttemptEnd.FAILED] + step.ends[AttemptEnd.TIMED_OUT]
        yield (*labels, "failure"), failed - sum(step.retries.values())


def _store_metrics(found: StoreStats, labels: Counters) -> Iterator[Metric]:
    by_workflow, workflows = ("workflow",), labels.workflows
    yield _gauge("workflow_dlq_depth", by_workflow, _count_by_label(found.letters.items(), workflows))
    oldest, due = _seconds_since(found.now, found.oldest_letter), _seconds_since(found.now, found.due_since)
    yield _gauge("workflow_dlq_oldest_age_seconds", (), [((), oldest)])
    yield _gauge("workflow_runs_due", by_workflow, _count_by_label(found.due.items(), workflows))
    yield _gauge("workflow_runs_overdue", by_workflow, _count_by_label(found.overdue.items(), workflows))
    yield _gauge("workflow_runs_due_oldest_age_seconds", (), [((), due)])
    opened: Counter[tuple[str, ...]] = Counter()
    for one in found.versions:
        opened[workflows.find(one.workflow), labels.versions.find(one.version)] += one.runs
    yield _gauge("workflow_runs_open", ("workflow", "version"), opened.items())
    stuck: Counter[tuple[str, ...]] = Counter()
    for each in found.unclaimable:
        stuck[workflows.find(each.workflow), labels.versions.find(each.version or "")] += each.runs
    yield _gauge("workflow_runs_unclaimable", ("workflow", "version"), stuck.items())
    yield _gauge("workflow_runs_suspect", (), [((), found.suspects)])
    yield _gauge("workflow_runs_stalled", (), [((), found.stalled)])
    yield _gauge("workflow_runs_parked", (), [((), found.parked)])
    yield _gauge("workflow_waits", ("kind",), [((kind,), count) for kind, count in found.waiting.items()])
    yield _gauge("workflow_parents_waiting_for_letters", (), [((), found.stuck_parents)])
    stuck_for = _seconds_since(found.now, found.oldest_stuck)
    yield _gauge("workflow_parents_oldest_letter_age_seconds", (), [((), stuck_for)])
    yield _gauge("workflow_unread_events", (), [((), found.unread_events)])
    yield _gauge("workflow_open_tasks", (), [((), found.open_tasks)])
    yield _gauge("workflow_tasks_oldest_age_seconds", (), [((), _seconds_since(found.now, found.oldest_task))])
    replays: Counter[tuple[str, ...]] = Counter()
    for counted in found.replays:
        replays[workflows.find(counted.workflow), counted.mode] += counted.total
    yield _counter("workflow_dlq_replays_total", ("workflow", "mode"), replays.items())
    circuits: Counter[tuple[str, ...]] = Counter()
    for circuit in found.circuits:
        circuits[labels.circuits.find(circuit.key), circuit.status.value] += circuit.count
    yield _gauge("workflow_circuits", ("circuit", "state"), circuits.items())
    pending: Counter[tuple[str, ...]] = Counter()
    dead: Counter[tuple[str, ...]] = Counter()
    lags: dict[tuple[str, ...], float] = {}
    for sink in found.sinks:
        names = (labels.sinks.find(sink.sink),)
        pending[names] += sink.pending
        dead[names] += sink.dead
        lags[names] = max(lags.get(names, 0.0), _seconds_since(found.now, sink.due_since))
    yield _gauge("workflow_outbox_pending", ("sink",), pending.items())
    yield _gauge("workflow_outbox_dead", ("sink",), dead.items())
    yield _gauge("workflow_outbox_lag_seconds", ("sink",), lags.items())
    workers = [((state,), found.workers.get(state, 0)) for state in ("LIVE", "STOPPED", "DEAD")]
    yield _gauge("workflow_workers", ("state",), workers)


def _count_by_label(counts: Iterable[tuple[str, int]], labels: Labels) -> LabelledValues:
    """Return counts by label, the largest first; without any, a 0 that can be compared all the same."""
    found: Counter[tuple[str, ...]] = Counter()
    for name, count in sorted(counts, key=lambda each: (-each[1], each[0])):
        found[(labels.find(name),)] += count
    return found.items() or [(("",), 0)]


def _seconds_since(now: int, since: int | None) -> float:
    return 0.0 if since is None else max(0, now - since) / 1e6


def _make_family(
    kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, labels: tuple[str, ...], values: LabelledValues
) -> Metric:
    family = kind(name, METRICS[name], labels=labels)
    for each, value in values:
        family.add_metric(each, value)
    return family


_counter = functools.partial(_make_family, CounterMetricFamily)
_gauge = functools.partial(_make_family, GaugeMetricFamily)


def _histogram(name: str, labels: tuple[str, ...], values: LabelledHistograms) -> Metric:
    family = HistogramMetricFamily(name, METRICS[name], labels=labels)
    for names, each in values:
        family.add_metric(names, each.buckets(), each.total)
    return family


_STORE_TIMEOUT = 3.0


class MetricsEndpoint:
    """HTTP server for scrapers, with its own port and thread."""

    def __init__(self, host: str, port: int, counters: Counters | None, recent: StatsCache) -> None:
        self._loop = asyncio.get_running_loop()
        self._recent = recent
        self._server: Any
        try:
            self._server, self._thread = start_http_server(port, host, make_registry(counters, self._read_stats))
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on {host}:{port} ({error.strerror or error}): choose another port with "
                "--metrics or REDRIVE_METRICS; port 0 takes a free one"
            ) from None

    @property
    def address(self) -> str:
        """The URL to be scraped."""
        host, port = self._server.server_address[:2]
        return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"

    def _read_stats(self) -> StoreStats | None:
        query = asyncio.run_coroutine_threadsafe(self._recent.get(), self._loop)
        try:
            return query.result(_STORE_TIMEOUT)
        except (TimeoutError, concurrent.futures.CancelledError):
            query.cancel()
            return None

    async def close(self) -> None:
        """Stop the server and its thread."""
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        await asyncio.to_thread(self._thread.join)
