"""Queues of BullMQ: their connections, and the sinks that add jobs to them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import msgspec

from redrive.core.states import CLOSED_LETTER_STATUSES
from redrive.errors import ConfigurationError, NotFound, StoreError
from redrive.policy import RetryPolicy
from redrive.settings import letter_page_path, parse_port
from redrive.settle.settler import parse_run_options
from redrive.sinks import Message, encode_cloud_event
from redrive.store.encryption.keyring import Unreadable
from redrive.store.filters import LetterFilter
from redrive.time_values import to_datetime

if TYPE_CHECKING:
    import bullmq
    from redis.asyncio import Redis

    from redrive.app import Redrive
    from redrive.store.letters import LetterRow

log = logging.getLogger("redrive.bridges")

RETRY = RetryPolicy(max_retries=-1, base_delay=0.2, factor=2.0, max_delay=60.0)
"""Retries of messages to Redis, which may be away for days."""

_YES, _NO = frozenset({"1", "yes", "true", "on"}), frozenset({"", "0", "no", "false", "off"})
_CONNECTIONS = 16  # of one queue
_PAGE = 200  # letters that a resync reads at a time
_MIRRORED = ["OPEN", "REPLAYING"]


OUTAGE_PAUSE = 0.5
"""Seconds before Redis or the store is asked again."""

_CANCEL_AGAIN = 0.1  # seconds after which a task that took no notice is cancelled again


def find_outages() -> tuple[type[Exception], ...]:
    """Return the errors of a Redis that does not answer."""
    from redis.exceptions import BusyLoadingError, ConnectionError, ReadOnlyError, TimeoutError

    return ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, OSError


def find_failures() -> tuple[type[Exception], ...]:
    """Return the errors of a Redis or a store that does not answer."""
    return StoreError, *find_outages()


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until all have ended: a cancellation may be lost in the library while it waits for Redis."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN)


def read_redis_address(url: str | None, environment: Mapping[str, str]) -> str:
    """Return the URL of a Redis. Errors never show it, because it may hold a password."""
    url = url or environment.get("REDIS_URL") or None
    if url is not None:
        if not url.startswith(("redis://", "rediss://", "unix://")):
            raise ConfigurationError("the URL of a Redis (REDIS_URL) begins with redis://, rediss:// or unix://")
        return url
    port = parse_port(environment.get("REDIS_PORT") or "6379")
    if port is None:
        raise ConfigurationError(f"REDIS_PORT is {environment['REDIS_PORT']!r:.60}: give a number from 1 to 65535")
    database = environment.get("REDIS_DB") or "0"
    if not (database.isascii() and database.isdigit()):
        raise ConfigurationError(f"REDIS_DB is {database!r:.60}: give the number of a database, such as 0")
    tls = environment.get("REDIS_TLS", "").strip().lower()
    if tls not in _YES | _NO:
        raise ConfigurationError(f"REDIS_TLS is {tls!r:.60}: give yes or no")
    host, user, password = (environment.get(f"REDIS_{name}", "") for name in ("HOST", "USERNAME", "PASSWORD"))
    who = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    place = f"[{host}]" if ":" in host else host or "localhost"
    return f"{'rediss' if tls in _YES else 'redis'}://{who}{place}:{port}/{database}"


class QueueAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and the Redis that has it."""

    redis: str
    prefix: str
    queue: str
    allow_eviction: bool

    @property
    def stream(self) -> str:
        """The name of the queue in idempotency keys: the beginning of its keys in Redis."""
        return f"{self.prefix}:{self.queue}"

    async def connect(self) -> Redis:
        """Return a client of the Redis. Refuse a Redis that may remove jobs when its memory is full."""
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import ExponentialBackoff

        # The library's own client would retry one command for minutes. These limits let a caller see an outage at once;
        # a blocking read waits for 10 s at most.
        options: dict[str, Any] = {
            "decode_responses": True,
            "retry": Retry(ExponentialBackoff(cap=0.2, base=0.02), 2),
            "socket_timeout": 15.0,
            "socket_connect_timeout": 3.0,
        }
        # More calls at a time wait for a connection. A plain pool would refuse them.
        pool = BlockingConnectionPool.from_url(self.redis, max_connections=_CONNECTIONS, timeout=None, **options)
        client = Redis.from_pool(pool)
        try:
            policy = (await client.info("memory")).get("maxmemory_policy", "noeviction")
        except BaseException:
            await client.aclose()
            raise
        if policy != "noeviction" and not self.allow_eviction:
            await client.aclose()
            raise ConfigurationError(
                f"this Redis has the eviction policy {policy}, so it may remove jobs: run "
                "`redis-cli CONFIG SET maxmemory-policy noeviction`, or allow it with allow_eviction=True "
                "(--allow-eviction)"
            )
        return client


class _QueueSink:
    """A sink that writes to one queue. The connection opens with the first message."""

    retry = RETRY

    def __init__(self, address: QueueAddress) -> None:
        self._address = address
        self._client: Redis | None = None
        self._queue: bullmq.Queue | None = None
        self._opening = asyncio.Lock()

    async def _open(self) -> bullmq.Queue:
        async with self._opening:
            if self._queue is None:
                import bullmq

                self._client = await self._address.connect()
                options = {"connection": self._client, "prefix": self._address.prefix}
                self._queue = bullmq.Queue(self._address.queue, options)
        return self._queue

    async def close(self) -> None:
        """Close the connections."""
        client, self._client, self._queue = self._client, None, None
        if client is not None:
            await client.aclose()


class JobSink(_QueueSink):
    """A sink that adds a job for each message. The id of the message is that of the job, so a repeat adds none."""

    def __init__(self, address: QueueAddress, cloud_events: bool) -> None:
        super().__init__(address)
        self._cloud_events = cloud_events

    async def deliver(self, message: Message) -> None:
        """Add a job; the message has arrived when Redis says so."""
        queue = await self._open()
        data = json.loads(encode_cloud_event(message)) if self._cloud_events else message.payload
        await queue.add(message.topic, data, {"jobId": message.id, "attempts": 1})


class LetterMirror(_QueueSink):
    """A sink that keeps one job in a queue for each dead letter that is open or being replayed.

    Events have no order, so each one makes the queue equal to the letter as it is in the store now. The mirror goes one
    way: removing or changing its jobs decides nothing.
    """

    def __init__(self, address: QueueAddress, payload: str) -> None:
        super().__init__(address)
        if payload not in ("auto", "none"):
            raise ConfigurationError(f"payload of a mirror is {payload!r}: give 'auto' or 'none'")
        self._payload = payload
        self._app: Redrive | None = None

    def bind(self, app: Redrive) -> None:
        """Take the app whose letters are mirrored."""
        self._app = app

    async def deliver(self, message: Message) -> None:
        """Add, change or remove the job of the letter that the message is about."""
        await self._mirror(message.payload["letter_id"], message.tenant)

    async def resync(self) -> int:
        """Put the jobs of all letters without a decision back into the queue; return their number."""
        count, cursor = 0, None
        while True:
            page = await self._find_app().dlq.list(LetterFilter(status=_MIRRORED), limit=_PAGE, cursor=cursor)
            for letter in page.items:
                await self._mirror(letter.id, letter.tenant)
            count, cursor = count + len(page.items), page.next
            if cursor is None:
                return count

    def _find_app(self) -> Redrive:
        if self._app is None:
            raise ConfigurationError("this mirror has no app: register it with app.sink(name, LETTERS, mirror)")
        return self._app

    async def _mirror(self, letter_id: str, tenant: str) -> None:
        queue, store = await self._open(), self._find_app().runtime.store
        written: object = self  # nothing yet
        while True:
            letter = await store.letter(letter_id, tenant=tenant)
            state = None if letter is None or letter.status in CLOSED_LETTER_STATUSES else letter.failed_at
            if state == written:
                return
            if letter is None or state is None:
                await queue.backend.remove(letter_id, True)
            else:
                await self._put(queue, letter)
            written = state  # another event may have been handled meanwhile, so look again

    async def _put(self, queue: bullmq.Queue, letter: LetterRow) -> None:
        import bullmq

        data = await self._make_data(letter)
        job = await bullmq.Job.fromId(queue, letter.public_id)
        if job is None:
            options = {"jobId": letter.public_id, "attempts": 1, "removeOnComplete": False, "removeOnFail": False}
            await queue.add("dead-letter", data, options)
        elif job.data != data:
            await job.updateData(data)
        about = {"job_id": data["originalJobId"], "run_id": letter.run_id, "tenant": letter.tenant}
        about |= {"attempts_made": letter.attempts, "error": data["errorMessage"], "letter_id": letter.public_id}
        log.warning("dead letter is in queue %s", queue.name, extra={"redrive": about})

    async def _make_data(self, letter: LetterRow) -> dict[str, Any]:
        """Return the data of a letter's job: its payload, six fields, and what Redrive knows beside them."""
        app = self._find_app()
        try:
            run = await app.runs.get(letter.run_id)
        except NotFound:
            run = None
        options = None if isinstance(letter.options, Unreadable) else parse_run_options(letter.options)
        origin = None if options is None else options.origin
        job_id = letter.run_id if origin is None else read_job_id(origin[1])
        error = None if run is None else run.error
        return {
            **await self._read_payload(letter, origin),
            "originalJobId": job_id,
            "runId": job_id,
            "tenantId": letter.tenant,
            "failedAt": _format_time(letter.failed_at),
            "attemptsMade": letter.attempts,
            "errorMessage": error or f"Workflow execution failed after {letter.attempts} attempts: {letter.code}",
            "redrive": {
                "runId": letter.run_id,
                "letterId": letter.public_id,
                "code": letter.code,
                "category": letter.category,
                "fingerprint": letter.fingerprint,
                "url": app.settings.base_url.rstrip("/") + letter_page_path(letter.public_id),
            },
        }

    async def _read_payload(self, letter: LetterRow, origin: tuple[str, str] | None) -> dict[str, Any]:
        app = self._find_app()
        if self._payload == "none" or app.runtime.encrypts:
            return {}
        if origin is not None and self._client is not None:
            stream, id = origin
            text = await cast(Any, self._client.hget(f"{stream}:{read_job_id(id)}", "data"))
            if text is not None:
                return _read_object(json.loads(text))
        return _read_object((await app.dlq.get(letter.public_id)).input)


def _read_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"payload": value}


def _format_time(at: int) -> str:
    return to_datetime(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_event_id(job_id: str, timestamp: int) -> str:
    """Return the id of a job in idempotency keys.

    An id that a producer chose is unique, and contains letters: BullMQ refuses other ones. An id that BullMQ counted
    begins at 1 again when Redis lost its data, so the time of the job belongs to it.
    """
    return f"{job_id}:{timestamp}" if job_id.isdigit() else job_id


def read_job_id(event_id: str) -> str:
    """Return the id of the job from its id in idempotency keys."""
    number, colon, timestamp = event_id.partition(":")
    return number if colon and number.isdigit() and timestamp.isdigit() else event_id
