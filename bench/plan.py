"""The plan of a measurement: workloads, the systems that run them, and their sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from redrive.record_fields import replace

__all__ = ["BIG", "METRICS", "OURS", "POSTGRES", "SQLITE", "WORKLOADS", "Measurement", "Metric", "plan"]

OURS = "redrive"
ABSURD, DBOS, PGQUEUER, PROCRASTINATE = "absurd", "dbos", "pgqueuer", "procrastinate"
SQLITE, POSTGRES = "sqlite", "postgres"

WORKLOADS = {
    "throughput": "five no-op async steps per run, 1,000 runs started at once; start to last result",
    "idle": "one such run on an idle system, start to result",
    "first-step": "start of a run to the first line of its first step, on an idle system",
    "backlog": "start_many of 10,000 one-step runs without a worker, then a worker drains them",
    "retries": "three steps, the third fails twice and is retried at once, then succeeds",
    "handlers": "one-step runs that fail, with a failure handler and without, in turn",
    "events": "a run that waits for an event which is sent to it; whole runs at once",
    "children": "a run of one step, alone and as the child of a run that waits for it",
    "waiting": "runs that wait for an event in the store; one is sent to, then 2,000 at once",
    "fleet": "five-step runs drained by one, two and four worker processes",
    "store": "journal rows through the store's apply() alone, 256 to a batch",
    "bare": "the same rows and nothing else, inserted and committed by one bare connection, 256 to a batch",
    "engine": "the throughput workload with the store replaced by nothing",
    "sagas": "the throughput workload with a circuit and a compensation on every step and without, in turn",
    "tenants": "one tenant with 1,000,000 due runs beside 100 with 10 each",
    "memory": "1,000,000 runs asleep in the store, and 20,000 more put to sleep by the worker",
    "growth": "the throughput workload with 10,000,000 finished and 1,000,000 sleeping runs, and without, in turn",
    "replays": "100,000 letters replayed by one filter, in turn with as many new runs, a tenth at a time",
    "letters": "pages of 50, one after the other, of 1,000,000 letters in 10,000 groups",
    "outbox": "the throughput workload with and without a message from every step to a subscriber",
    "relay": "messages that wait in the outbox, delivered to a subscriber in this process",
    "webhook": "the same, posted to a server on the loopback, 32 at a time",
    "circuits": "the throughput workload with a circuit on every step, and without, in turn",
    "signals": "the throughput workload with metrics, logs and tracing without an SDK, and without, in turn",
    "opening": "5,000 runs whose calls fail, 1,000 at once in 4 workers, until the circuit is open",
    "remote": "the throughput and the idle workload with an embedded worker and with a remote one, in turn",
    "remote-many": "500 idle remote workers on one server; then 50,000 runs of one step that they end",
    "tasks": "five remote steps per run, by a step worker in Python and one in Node, 1,000 runs at once; and one run",
    "bullmq": "jobs of BullMQ that wait, accepted and ended by a bridge and a worker in one process; and one at a time",
    "batches": "POST /runs:batch to a server process, and start_many in this one, 500 at a time, in turn",
    "streams": "a server process with 1,000 open streams of hints",
    "lists": "pages over HTTP of 1,000,000 runs and 100,000 letters",
    "pages": "every page of the dashboard with very many failures",
    "dashboard": "pages, and clicks in a browser, while 1,000 changes a second arrive; and the first load",
    "release": "100,000 parked runs after their circuit is closed, the first ten seconds",
}

BIG = ("tenants", "memory", "growth", "replays", "letters", "lists", "pages")
"""Measured when they are asked for by name."""

_POSTGRES_ONLY = ("tenants", "memory")

NAMED = (
    *BIG,
    "events",
    "children",
    "waiting",
    "circuits",
    "signals",
    "opening",
    "release",
    "batches",
    "bullmq",
    "remote",
    "remote-many",
    "streams",
    "tasks",
    "dashboard",
)
"""Measured when they are asked for by name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a measurement: its name, its unit, and whether more is better."""

    title: str
    unit: str
    more_is_better: bool = True


METRICS = {
    "steps": Metric("durable steps", "/s"),
    "cpu": Metric("CPU per 1,000 steps, server included", "s", more_is_better=False),
    "server": Metric("CPU per 1,000 steps, the server's part", "s", more_is_better=False),
    "loop": Metric("CPU per step on the loop's thread", "µs", more_is_better=False),
    "batch": Metric("outcomes per commit", ""),
    "cpu_run": Metric("CPU per run, server included", "µs", more_is_better=False),
    "loop_run": Metric("CPU per run on the loop's thread", "µs", more_is_better=False),
    "run": Metric("start to result, p50", "ms", more_is_better=False),
    "here": Metric("in one process, p50", "ms", more_is_better=False),
    "across": Metric("across processes, p50", "ms", more_is_better=False),
    "start": Metric("start", "runs/s"),
    "drain": Metric("drain", "runs/s"),
    "runs": Metric("runs", "/s"),
    "rows": Metric("rows", "/s"),
    "commit": Metric("a single row and its commit, p50", "ms", more_is_better=False),
    "sent": Metric("send until the workflow continues, p50", "ms", more_is_better=False),
    "alone_run": Metric("a run of one step, start to result, p50", "ms", more_is_better=False),
    "parent_run": Metric("a parent with such a child, start to result, p50", "ms", more_is_better=False),
    "idle_cpu_empty": Metric("CPU of an idle worker on an empty store", "%", more_is_better=False),
    "idle_cpu": Metric("CPU of an idle worker beside very many waiting runs", "%", more_is_better=False),
    "woken": Metric("runs woken by a send until their end", "/s"),
    "small": Metric("until the last run of a small tenant", "s", more_is_better=False),
    "large": Metric("runs of the large tenant done by then", ""),
    "base": Metric("a busy worker on an empty store", "MB", more_is_better=False),
    "added": Metric("added to a worker by very many runs", "MB", more_is_better=False),
    "empty": Metric("durable steps, empty store", "/s"),
    "full": Metric("durable steps, full store", "/s"),
    "list": Metric("a page of a filtered list, p95", "ms", more_is_better=False),
    "groups": Metric("a page of failure groups, p95", "ms", more_is_better=False),
    "folded": Metric("changes folded into groups", "/s"),
    "replay": Metric("replayed, replay to end", "runs/s"),
    "fresh": Metric("new, start to end", "runs/s"),
    "messages": Metric("messages delivered", "/s"),
    "plain": Metric("durable steps, plain", "/s"),
    "undoable": Metric("durable steps, each with both", "/s"),
    "cpu_plain": Metric("CPU per 1,000 steps, without", "s", more_is_better=False),
    "cpu_undoable": Metric("CPU per 1,000 steps, with", "s", more_is_better=False),
    "kept": Metric("kept of the speed", "%"),
    "kept_cpu": Metric("the same in processor time", "%"),
    "failed": Metric("failing runs without a handler", "/s"),
    "handled": Metric("failing runs with a handler", "/s"),
    "guarded": Metric("durable steps with a circuit on each", "/s"),
    "loop_plain": Metric("CPU per step without circuits", "µs", more_is_better=False),
    "loop_guarded": Metric("CPU per step with a circuit on each", "µs", more_is_better=False),
    "mute": Metric("durable steps, nothing told", "/s"),
    "told": Metric("durable steps, everything told", "/s"),
    "loop_mute": Metric("CPU per step, nothing told", "µs", more_is_better=False),
    "loop_told": Metric("CPU per step, everything told", "µs", more_is_better=False),
    "calls": Metric("calls before it was open", "", more_is_better=False),
    "late": Metric("calls begun after the fifth failure's commit", "", more_is_better=False),
    "late_each": Metric("of these, in each worker", "", more_is_better=False),
    "last": Metric("the last of these, after it", "ms", more_is_better=False),
    "parking": Metric("runs parked", "/s"),
    "second_1": Metric("calls in the first second (wave of 10)", "", more_is_better=False),
    "second_2": Metric("calls in the second (wave of 100)", "", more_is_better=False),
    "second_3": Metric("calls in the third (wave of 1,000)", "", more_is_better=False),
    "busiest": Metric("calls in the busiest of ten seconds", "", more_is_better=False),
    "ten": Metric("calls in ten seconds", "", more_is_better=False),
    "embedded_steps": Metric("durable steps, embedded worker", "/s"),
    "python_tasks": Metric("remote steps, a step worker in Python", "/s"),
    "node_tasks": Metric("remote steps, a step worker in Node", "/s"),
    "python_late": Metric("call to result, Python, p50", "ms", more_is_better=False),
    "node_late": Metric("call to result, Node, p50", "ms", more_is_better=False),
    "accepted_jobs": Metric("jobs accepted", "/s"),
    "ended_jobs": Metric("jobs ended with a result", "/s"),
    "job_to_step": Metric("job added to first step, p50", "ms", more_is_better=False),
    "remote_steps": Metric("durable steps, remote worker", "/s"),
    "embedded_idle": Metric("an idle run of five steps, embedded worker, p50", "ms", more_is_better=False),
    "remote_idle": Metric("the same, remote worker, p50", "ms", more_is_better=False),
    "many_memory": Metric("memory of the server for 500 idle workers", "MB", more_is_better=False),
    "many_cpu": Metric("its processor time for them", "%", more_is_better=False),
    "many_calls": Metric("transactions of the database for them", "/s", more_is_better=False),
    "beat_answer": Metric("heartbeat to answer, p99", "ms", more_is_better=False),
    "start_many": Metric("start_many", "runs/s"),
    "posted": Metric("POST /runs:batch", "runs/s"),
    "page_runs": Metric("a page of runs over HTTP, p99", "ms", more_is_better=False),
    "page_letters": Metric("a page of letters over HTTP, p99", "ms", more_is_better=False),
    "page_others": Metric("a page of groups or of the log over HTTP, p99", "ms", more_is_better=False),
    "first": Metric("the first page after the server has started", "ms", more_is_better=False),
    "dashboard": Metric("the slowest page of the dashboard, median", "ms", more_is_better=False),
    "busy": Metric("a page while changes arrive, median", "ms", more_is_better=False),
    "busy_slow": Metric("the same, p99", "ms", more_is_better=False),
    "click": Metric("a click until the run is shown, median", "ms", more_is_better=False),
    "click_slow": Metric("the slowest of these", "ms", more_is_better=False),
    "changes": Metric("changes that arrived", "/s"),
    "first_load": Metric("sent with the first page", "kB", more_is_better=False),
    "alone": Metric("a server process without streams", "MB", more_is_better=False),
    "streaming": Metric("the same with open streams", "MB", more_is_better=False),
    "cpu_empty": Metric("CPU per 1,000 steps, empty store", "s", more_is_better=False),
    "cpu_full": Metric("CPU per 1,000 steps, full store", "s", more_is_better=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A workload, run by one system in one way on one kind of store."""

    workload: str
    system: str = OURS
    variant: str = ""
    size: int
    concurrency: int = 100
    workers: int = 1
    wal: bool = True
    on: str = POSTGRES

    @property
    def subject(self) -> str:
        """The name of the system and variant, as the table shows it."""
        return f"{self.system} {self.variant}".strip()


_OURS = [
    Measurement(workload="throughput", variant="1000 at once", size=5000, concurrency=1000),
    Measurement(workload="throughput", variant="256 at once", size=5000, concurrency=256),
    Measurement(workload="throughput", variant="100 at once", size=5000),
    Measurement(workload="idle", size=200),
    Measurement(workload="first-step", size=200),
    Measurement(workload="backlog", variant="1000 at once", size=10_000, concurrency=1000),
    Measurement(workload="backlog", variant="100 at once", size=10_000),
    Measurement(workload="retries", variant="1000 at once", size=2000, concurrency=1000),
    Measurement(workload="retries", variant="100 at once", size=2000),
    Measurement(workload="handlers", size=500),
    Measurement(workload="events", size=2000),
    Measurement(workload="children", size=2000),
    Measurement(workload="waiting", size=20_000),
    Measurement(workload="fleet", variant="1 worker", size=10_000, workers=1),
    Measurement(workload="fleet", variant="2 workers", size=10_000, workers=2),
    Measurement(workload="fleet", variant="4 workers", size=10_000, workers=4),
    Measurement(workload="sagas", variant="1000 at once", size=10_000, concurrency=1000),
    Measurement(workload="store", size=50_000),
    Measurement(workload="bare", size=50_000),
    Measurement(workload="outbox", variant="1000 at once", size=5000, concurrency=1000),
    Measurement(workload="relay", size=100_000),
    Measurement(workload="webhook", size=10_000),
    Measurement(workload="circuits", size=12_000, concurrency=1000),
    Measurement(workload="signals", variant="1000 at once", size=20_000, concurrency=1000),
    Measurement(workload="opening", size=5000, concurrency=1000),
    Measurement(workload="release", size=100_000),
    Measurement(workload="batches", size=25_000),
    Measurement(workload="bullmq", size=10_000, concurrency=500),
    Measurement(workload="remote", size=3000, concurrency=1000),
    Measurement(workload="remote-many", size=50_000),
    Measurement(workload="tasks", size=3000, concurrency=1000),
    Measurement(workload="streams", size=1000),
    Measurement(workload="dashboard", size=100),
]

# Peers get smaller sizes, or a round would take very long.
_DBOS_SIZES = {"throughput": 100, "idle": 30, "first-step": 30, "backlog": 200, "retries": 60}
_DBOS_SIZES |= {"events": 60, "children": 60}
_ABSURD_SIZES = {"throughput": 200, "idle": 30, "first-step": 30, "backlog": 1000, "retries": 200}
_PEERS = {
    POSTGRES: [
        *(Measurement(workload=name, system=DBOS, size=size) for name, size in _DBOS_SIZES.items()),
        *(Measurement(workload=name, system=ABSURD, size=size) for name, size in _ABSURD_SIZES.items()),
        Measurement(workload="first-step", system=PGQUEUER, size=100),
        Measurement(workload="backlog", system=PGQUEUER, size=10_000),
        Measurement(workload="retries", system=PGQUEUER, size=1000),
        Measurement(workload="first-step", system=PROCRASTINATE, size=50),
        Measurement(workload="backlog", system=PROCRASTINATE, size=1000),
        Measurement(workload="retries", system=PROCRASTINATE, size=200),
    ],
    SQLITE: [
        *(Measurement(workload=name, system=DBOS, variant="WAL", size=size, on=SQLITE)
          for name, size in _DBOS_SIZES.items()),
        *(Measurement(workload=name, system=DBOS, variant="default", size=size, wal=False, on=SQLITE)
          for name, size in _DBOS_SIZES.items() if name in ("throughput", "idle")),
    ],
}  # fmt: skip

_ENGINE = Measurement(workload="engine", variant="1000 at once", size=5000, concurrency=1000)
_BIG = [
    Measurement(workload="tenants", size=1_000_000),
    Measurement(workload="memory", size=1_000_000),
    Measurement(workload="growth", size=10_000_000, concurrency=1000),
    Measurement(workload="replays", size=100_000),
    Measurement(workload="letters", size=1_000_000),
    Measurement(workload="lists", size=1_000_000),
    Measurement(workload="pages", variant="5,000 failures", size=5000),
    Measurement(workload="pages", variant="1,000,000 failures", size=1_000_000),
]


def plan(stores: Sequence[str], *, quick: bool, only: Collection[str], peers: Collection[str]) -> list[Measurement]:
    """Yield the measurements of one round, workload by workload."""
    everything = [one for store in stores for one in [*(replace(o, on=store) for o in _OURS), *_PEERS[store]]]
    everything += [replace(_ENGINE, on=stores[0])]
    everything += [
        replace(one, on=store)
        for store in stores
        for one in _BIG
        if store == POSTGRES or one.workload not in _POSTGRES_ONLY
    ]
    chosen = [
        one
        for one in everything
        if one.system in (OURS, *peers) and (one.workload in only if only else one.workload not in NAMED)
    ]
    order = list(WORKLOADS)
    chosen.sort(key=lambda one: (order.index(one.workload), one.on))
    return [replace(one, size=max(20, one.size // 5)) for one in chosen] if quick else chosen
