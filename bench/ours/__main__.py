"""A measuring process: does one measurement and prints its figures."""

from __future__ import annotations

import asyncio
import json
import sys

from bench.ours.backlog import backlog
from bench.ours.engine import engine
from bench.ours.job import Job
from bench.ours.latency import first_step, idle
from bench.ours.retries import retries
from bench.ours.store import store
from bench.ours.throughput import throughput

MEASURES = {
    "throughput": throughput,
    "idle": idle,
    "first-step": first_step,
    "backlog": backlog,
    "retries": retries,
    "store": store,
    "engine": engine,
}

wanted = json.loads(sys.argv[1])
job = Job(url=wanted["store"], size=wanted["size"], concurrency=wanted["concurrency"])
print(json.dumps(asyncio.run(MEASURES[wanted["workload"]](job))))
