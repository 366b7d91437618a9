"""What is measured: workloads, who runs them, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["METRICS", "WORKLOADS", "Measurement", "Metric", "plan"]

OURS, PEER = "redrive", "dbos"

WORKLOADS = {
    "throughput": "five no-op async steps per run, 1,000 runs started at once; start to last result",
    "idle": "one such run on an idle system, start to result",
    "first-step": "start of a run to the first line of its first step, on an idle system",
    "backlog": "start_many of 10,000 one-step runs without a worker, then a worker drains them",
    "retries": "three steps, the third fails twice and is retried at once, then succeeds",
    "store": "journal rows through the store's apply() alone, 250 to a batch",
    "engine": "the throughput workload with the store replaced by nothing",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a measurement: what it is called, its unit, and whether more is better."""

    title: str
    unit: str
    more_is_better: bool = True


METRICS = {
    "steps": Metric("durable steps", "/s"),
    "cpu": Metric("CPU per 1,000 steps", "s", more_is_better=False),
    "python": Metric("CPU per step, store threads included", "µs", more_is_better=False),
    "loop": Metric("CPU per step, store threads excluded", "µs", more_is_better=False),
    "batch": Metric("outcomes per commit", ""),
    "run": Metric("start to result, p50", "ms", more_is_better=False),
    "here": Metric("in one process, p50", "ms", more_is_better=False),
    "across": Metric("across processes, p50", "ms", more_is_better=False),
    "start": Metric("start", "runs/s"),
    "drain": Metric("drain", "runs/s"),
    "runs": Metric("runs", "/s"),
    "rows": Metric("rows", "/s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One workload, run by one system in one way."""

    workload: str
    system: str
    variant: str
    size: int
    concurrency: int = 100
    wal: bool = True

    @property
    def subject(self) -> str:
        """Who it is, as the table shows it."""
        return f"{self.system} {self.variant}".strip()


def plan(*, quick: bool, only: list[str], peers: bool) -> list[Measurement]:
    """The measurements of one round. Peers get smaller sizes, or a round would take very long."""
    everything = [
        Measurement(workload="throughput", system=OURS, variant="1000 at once", size=5000, concurrency=1000),
        Measurement(workload="throughput", system=OURS, variant="100 at once", size=5000),
        Measurement(workload="throughput", system=PEER, variant="default", size=100, wal=False),
        Measurement(workload="throughput", system=PEER, variant="WAL", size=100),
        Measurement(workload="idle", system=OURS, variant="", size=200),
        Measurement(workload="idle", system=PEER, variant="default", size=30, wal=False),
        Measurement(workload="idle", system=PEER, variant="WAL", size=30),
        Measurement(workload="first-step", system=OURS, variant="", size=200),
        Measurement(workload="first-step", system=PEER, variant="WAL", size=30),
        Measurement(workload="backlog", system=OURS, variant="1000 at once", size=10_000, concurrency=1000),
        Measurement(workload="backlog", system=OURS, variant="100 at once", size=10_000),
        Measurement(workload="backlog", system=PEER, variant="WAL", size=200),
        Measurement(workload="retries", system=OURS, variant="1000 at once", size=2000, concurrency=1000),
        Measurement(workload="retries", system=OURS, variant="100 at once", size=2000),
        Measurement(workload="retries", system=PEER, variant="WAL", size=60),
        Measurement(workload="store", system=OURS, variant="", size=50_000),
        Measurement(workload="engine", system=OURS, variant="1000 at once", size=5000, concurrency=1000),
    ]
    chosen = [
        one for one in everything if (not only or one.workload in only) and (peers or one.system == OURS)
    ]
    return [replace(one, size=max(20, one.size // 5)) for one in chosen] if quick else chosen
