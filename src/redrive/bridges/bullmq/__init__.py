"""BullMQ: jobs of producers become runs; dead letters, messages and attempts of remote steps become jobs.

    bull = BullMQ()                # REDIS_URL, or REDIS_HOST, REDIS_PORT, ...
    app.source("orders", bull.consume("workflow-execution", workflow="execute", tenant="acme"))
    app.sink("dlq", LETTERS, bull.mirror("workflow-execution-dlq"))
    app.sink("jobs", "orders.*", bull.jobs("orders"))
    app.source("emails", bull.steps("emails"))

`redrive bridge bullmq module:app` serves them. `redrive[bullmq]` brings the library, which is called `bullmq` as well.
"""

from __future__ import annotations

import os
from typing import Unpack

from redrive.bridges.bullmq.consumer import Consumer, ConsumerOptions
from redrive.bridges.bullmq.queues import JobSink, LetterMirror, QueueAddress, read_redis_address
from redrive.bridges.bullmq.steps import StepJobs, StepOptions
from redrive.core.engine_messages import LETTER_CLOSED_TOPIC, LETTER_OPENED_TOPIC
from redrive.errors import ConfigurationError

__all__ = ["LETTERS", "BullMQ", "Consumer", "JobSink", "LetterMirror", "StepJobs"]

LETTERS = (LETTER_OPENED_TOPIC, LETTER_CLOSED_TOPIC)
"""The topics of a mirror."""


class BullMQ:
    """The queues of one Redis.

    - `url`: `redis://`, `rediss://` or `unix://`. Default: `REDIS_URL`, else `REDIS_HOST` (localhost), `REDIS_PORT`
      (6379), `REDIS_USERNAME`, `REDIS_PASSWORD`, `REDIS_DB` and `REDIS_TLS` (yes or no).
    - `prefix`: the beginning of all keys, as for the producers.
    - `allow_eviction`: use a Redis that removes keys when its memory is full, although it may lose jobs.
    """

    def __init__(self, url: str | None = None, *, prefix: str = "bull", allow_eviction: bool = False) -> None:
        try:
            import bullmq  # noqa: F401  # whether it is there is said now, not with the first job
        except ImportError:
            raise ConfigurationError("BullMQ is not installed: pip install 'redrive[bullmq]'") from None
        if not prefix or ":" in prefix:
            raise ConfigurationError(f"{prefix!r} cannot be a prefix of BullMQ: give a text without a colon")
        self._redis = read_redis_address(url, os.environ)
        self._prefix = prefix
        self._allow_eviction = allow_eviction

    def _address(self, queue: str) -> QueueAddress:
        if not isinstance(queue, str) or not queue or ":" in queue or not queue.isprintable():
            raise ConfigurationError(f"{queue!r} cannot name a queue of BullMQ: give a printable text without a colon")
        return QueueAddress(redis=self._redis, prefix=self._prefix, queue=queue, allow_eviction=self._allow_eviction)

    def consume(self, queue: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Return a source that starts a run for each job of a queue.

        - `workflow`: the workflow of all jobs. `workflows=[...]` instead: the name of the job must be one of these.
        - `tenant`: the tenant of all runs. `tenant_field="tenantId"` instead: a field of the job's data names a
          registered tenant.
        - `complete`: `"ended"` (the default) completes the job with the result of the run, or fails it; `"accepted"`
          completes it as soon as the run is stored.
        - `input`: a function from the data of a job to the input of its run. Default: the data itself.
        - `results`: what a completed job holds: `"full"` (the default), `"redacted"` or `"none"`.
        - `retry`: a failed job that is retried by hand replays the dead letter of its run (`"replay"`, the default), or
          fails again (`"refuse"`).
        - `progress`: how often the progress of jobs is updated, in seconds or as `"5s"`; None turns progress off.
        - `concurrency`: the number of jobs accepted at a time. Default: that of the app, `WORKER_CONCURRENCY` or 100.
        - `lock`: how long a job stays with a bridge that died. Default: 30 s.
        - `stream`: the name that stands for the queue in idempotency keys. Default: prefix and queue. Give one if two
          Redis servers have queues of the same name.
        """
        return Consumer(self._address(queue), options)

    def mirror(self, queue: str, *, payload: str = "auto") -> LetterMirror:
        """Return a sink for the topics `LETTERS` that keeps a job in a queue for each dead letter without a decision.

        `payload="none"` leaves out the input of the run. By default it is that of the job the run came from, redacted
        for other runs, and left out if payloads are encrypted.
        """
        return LetterMirror(self._address(queue), payload)

    def jobs(self, queue: str, *, cloud_events: bool = False) -> JobSink:
        """Return a sink that adds a job for each message: named by its topic, with its payload or a CloudEvent."""
        return JobSink(self._address(queue), cloud_events)

    def steps(self, queue: str, **options: Unpack[StepOptions]) -> StepJobs:
        """Return a source that lets processors of a queue execute remote steps: each attempt becomes a job.

        The job is called like the step, its data are the arguments by name, and its id is that of run, step and
        attempt. Its result is that of the step, its failure is decided on by the retry policy of the step.

        - `steps`: the name in `remote=` of the steps. Default: the name of the queue.
        - `tenant`: only steps of this tenant. Default: of all tenants.
        - `jobs`: the number of jobs in the queue at a time. Default: 1,000.
        - `allow_clear`: write inputs to Redis although payloads are encrypted in the store.
        """
        return StepJobs(self._address(queue), options)
