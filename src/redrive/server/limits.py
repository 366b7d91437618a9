"""Limits of requests: their sizes, and the counting of requests, sign-ins and stored responses.

`request_guard` enforces the limits of size, shape and time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from redrive.clock import Clock
from redrive.reasons import Reason, ReasonCode
from redrive.server.problem_responses import ProblemError
from redrive.server.request_body import JsonLimits

_WIDE_FACTOR = 20  # attempts for an email, or from an address, per attempt for both together


class Limits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits of requests: size, depth, time and rate. Rates are per second and credential.

    `answers` and `answer_bytes` limit the stored responses for the idempotency keys of each tenant.
    `anonymous_*` limit requests without a valid credential, for each address that they come from.
    A body has at most `payloads` times the size of the largest payload, unless it may contain many payloads.
    """

    body: int = 16 << 20
    payloads: int = 6
    depth: int = 64
    keys: int = 100_000
    containers: int = 100_000
    values: int = 500_000
    fields: int = 20_000
    parameters: int = 200
    repeats: int = 50
    seconds: float = 30.0
    header_seconds: float = 10.0
    in_flight: int = 256 << 20
    in_flight_each: int = 64 << 20
    rate: float = 100.0
    burst: int = 400
    anonymous_body: int = 64 << 10
    anonymous_fields: int = 100
    anonymous_in_flight: int = 16 << 20
    anonymous_in_flight_each: int = 1 << 20
    anonymous_rate: float = 50.0
    anonymous_burst: int = 500
    logins: float = 0.2
    login_burst: int = 10
    answers: int = 250_000
    answer_bytes: int = 512 << 20
    streams: int = 2000
    streams_each: int = 20

    @property
    def shape(self) -> JsonLimits:
        """The limits of JSON with a credential."""
        return JsonLimits(depth=self.depth, keys=self.keys, containers=self.containers, values=self.values)

    @property
    def anonymous_shape(self) -> JsonLimits:
        """The limits of JSON without a credential."""
        most = self.anonymous_fields
        return JsonLimits(depth=self.depth, keys=most, containers=most, values=most)


class RateLimiter:
    """Token buckets by name. The least recently used ones are dropped first."""

    def __init__(self, clock: Clock, rate: float, burst: int, *, most: int = 10_000) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """Count one request, or refuse it with the time until the next one."""
        now = self._clock.monotonic()
        left, at = self._buckets.pop(name, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate)
        if left < 1:
            self._buckets[name] = (left, now)
            wait = max(1, round((1 - left) / self._rate))
            reason = Reason(ReasonCode.TOO_MANY_REQUESTS, seconds=wait)
            raise ProblemError(429, reason, headers={"Retry-After": str(wait)})
        self._buckets[name] = (left - 1, now)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)

    def give_back(self, name: str) -> None:
        """Stop counting a request that was taken."""
        if name in self._buckets:
            left, at = self._buckets[name]
            self._buckets[name] = (min(float(self._burst), left + 1), at)


class LoginLimiter:
    """Limits failed sign-ins for an email from one address, and more generously for each of the two alone.

    An attacker who knows an email cannot lock out its owner at another address, and users behind one proxy do
    not lock out each other.
    """

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._near = RateLimiter(clock, limits.logins, limits.login_burst)
        self._wide = RateLimiter(clock, limits.logins * _WIDE_FACTOR, limits.login_burst * _WIDE_FACTOR)

    def take(self, client: str, email: str) -> None:
        """Count an attempt before it is made, so that parallel attempts are limited as well."""
        for limiter, name in self._limiters(client, email):
            limiter.take(name)

    def give_back(self, client: str, email: str) -> None:
        """Stop counting an attempt that did not fail."""
        for limiter, name in self._limiters(client, email):
            limiter.give_back(name)

    def _limiters(self, client: str, email: str) -> Iterable[tuple[RateLimiter, str]]:
        return (self._near, f"{client}\0{email}"), (self._wide, f"from {client}"), (self._wide, f"for {email}")


class AnswerQuota:
    """Limits the stored responses of each tenant, in number and in bytes.

    The store counts them once a minute; this process adds its own in between. So all servers together may exceed
    a limit by the responses of one minute.
    """

    _LASTS = 60.0  # seconds until the store counts again
    _PARTS = 100  # or after this fraction of the limit was added

    def __init__(self, clock: Clock, limits: Limits, *, most: int = 10_000) -> None:
        self._clock = clock
        self._count = limits.answers
        self._size = limits.answer_bytes
        self._most = most
        self._used: OrderedDict[str, tuple[float, int, int, int]] = OrderedDict()  # at, count, size, added

    async def is_full(self, tenant: str, ask: Callable[[str], Awaitable[tuple[int, int]]]) -> bool:
        """Return True if a tenant has reached its limit; `ask` counts its responses in the store."""
        now = self._clock.monotonic()
        at, count, size, added = self._used.get(tenant, (now - self._LASTS, 0, 0, 0))
        # At the limit the store counts each time, because responses may have expired.
        full = count >= self._count or size >= self._size
        if full or now - at >= self._LASTS or added * self._PARTS >= self._count:
            count, size = await ask(tenant)
            self._update(tenant, now, count, size, 0)
        return count > self._count or size > self._size

    def add(self, tenant: str, size: int) -> None:
        """Count a response that was stored."""
        if tenant in self._used:
            at, count, before, added = self._used[tenant]
            self._update(tenant, at, count + 1, before + size, added + 1)

    def _update(self, tenant: str, at: float, count: int, size: int, added: int) -> None:
        self._used[tenant] = at, count, size, added
        self._used.move_to_end(tenant)
        while len(self._used) > self._most:
            self._used.popitem(last=False)
