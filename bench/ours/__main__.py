"""A measuring process: does one measurement and prints its figures. It is set up as `redrive worker` is."""

from __future__ import annotations

import json
import sys

from bench.ours.backlog import backlog
from bench.ours.bare import bare
from bench.ours.bullmq import bullmq
from bench.ours.circuits import circuits, opening, release
from bench.ours.dashboard import dashboard, pages
from bench.ours.engine import engine
from bench.ours.fleet import fleet
from bench.ours.growth import growth
from bench.ours.handlers import handlers
from bench.ours.http import batches, lists, streams
from bench.ours.job import Job
from bench.ours.latency import first_step, idle
from bench.ours.letters import letters
from bench.ours.memory import memory
from bench.ours.outbox import outbox, relay, webhook
from bench.ours.remote import remote, remote_many
from bench.ours.replays import replays
from bench.ours.retries import retries
from bench.ours.sagas import sagas
from bench.ours.signals import signals
from bench.ours.store import store
from bench.ours.tasks import tasks
from bench.ours.tenants import tenants
from bench.ours.throughput import throughput
from bench.ours.waits import children, events, waiting
from redrive.cli.worker_process import run_event_loop, tune_interpreter

MEASURES = {
    "throughput": throughput,
    "idle": idle,
    "first-step": first_step,
    "backlog": backlog,
    "retries": retries,
    "handlers": handlers,
    "events": events,
    "children": children,
    "waiting": waiting,
    "fleet": fleet,
    "sagas": sagas,
    "store": store,
    "bare": bare,
    "engine": engine,
    "tenants": tenants,
    "memory": memory,
    "growth": growth,
    "replays": replays,
    "letters": letters,
    "outbox": outbox,
    "relay": relay,
    "webhook": webhook,
    "circuits": circuits,
    "signals": signals,
    "opening": opening,
    "release": release,
    "batches": batches,
    "bullmq": bullmq,
    "remote": remote,
    "remote-many": remote_many,
    "tasks": tasks,
    "streams": streams,
    "lists": lists,
    "pages": pages,
    "dashboard": dashboard,
}

wanted = json.loads(sys.argv[1])
job = Job(
    url=wanted["store"],
    size=wanted["size"],
    concurrency=wanted["concurrency"],
    workers=wanted["workers"],
    server=wanted["server"],
)
tune_interpreter()
print(json.dumps(run_event_loop(MEASURES[wanted["workload"]](job))))
