"""Deliveries of messages: which ones may be claimed now, and what follows a failed one. Topics and their patterns.

Messages with the same key are delivered to a sink in the order of their numbers, one batch per key at a time. A due
delivery may be claimed if every earlier unfinished one of its key is claimed with it. Otherwise it *waits behind*
that one, and becomes due again when that one is finished. Messages without a key wait for no other message.

Messages without a key may belong to a relay from the moment of their commit. Those on one topic are a *bundle*,
which the relay holds under a lease. If all messages of a bundle arrived, that is recorded once. Otherwise the bundle
is *unfolded*: each of its messages gets a delivery like any other.

A delivery that was claimed and never recorded is a *suspect*: it may have crashed its process. Where user code
delivers, suspects are tried one at a time, so that the next crash is attributed to the right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import msgspec

from redrive.core.failure import Failure
from redrive.core.retry import compute_backoff
from redrive.core.states import DeliveryStatus
from redrive.errors import InputError
from redrive.policy import RetryPolicy, lists_error
from redrive.reasons import Reason, ReasonCode, quote

DEFAULT_SINK_RETRY = RetryPolicy(max_retries=15, base_delay=2.0, factor=3.0, max_delay=3600.0)
"""Default retries of a sink: after 2 s, 6 s, 18 s, ... and then every hour, for about nine hours."""

MAX_CLAIM_BYTES = 16 << 20
"""Approximate size of the payloads of one claim, which has at least one message."""

INITIAL_FENCE = 1
"""The fence of a delivery that belongs to a relay from the moment of its commit."""

_MAX_CRASHES = 3
NO_PREDECESSOR = 0
"""Stands for the predecessor of a message whose real predecessor is finished by now."""

Lane = tuple[str, str]
"""Tenant and key of messages that are delivered in order."""


class Suspects(Enum):
    """Treatment of suspects by a claim."""

    TAKE = auto()
    """Claim them like any other delivery, because no user code runs in this process."""

    LEAVE = auto()
    """Leave them to a claim that takes one of them alone."""

    TAKE_ONE = auto()
    """Claim one of them, and nothing else."""


class SinkLease(msgspec.Struct, frozen=True, gc=False):
    """A sink whose messages belong to the process that commits them, until the lease ends."""

    sink: str
    lease: int


class Bundle(msgspec.Struct, frozen=True, gc=False):
    """Messages of one commit, on one topic and without a key, which a relay holds for these sinks.

    `whole` means that no other sink subscribes to them.
    """

    id: int
    sinks: tuple[str, ...]
    whole: bool


class DeliveredBundle(msgspec.Struct, frozen=True, gc=False):
    """A bundle whose messages all arrived at the first attempt."""

    bundle: int
    messages: tuple[int, ...]


class DueDelivery(msgspec.Struct, frozen=True, gc=False):
    """A delivery that is due."""

    message: int
    tenant: str
    key: str | None

    @property
    def lane(self) -> Lane | None:
        """The lane of the message; None if it has no key."""
        return None if self.key is None else (self.tenant, self.key)


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Result of a delivery that was claimed under a fence.

    A PENDING delivery is tried again after `wake_in`, or when the delivery of the message `behind` is finished.
    `attempt` counts attempts; a delivery that was not `tried` is released unchanged. Other messages may wait
    behind one that is `keyed`. A result for a message of a `bundle` unfolds the bundle.
    """

    message: int
    tenant: str
    fence: int
    status: DeliveryStatus
    attempt: int
    wake_in: int = 0
    behind: int | None = None
    error: str | None = None
    keyed: bool = False
    tried: bool = True
    bundle: int | None = None

    @property
    def over(self) -> bool:
        """True if the delivery is finished, so that no message waits behind it."""
        return self.status in (DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED)


def group_by_lane(due: Sequence[DueDelivery]) -> dict[Lane, list[int]]:
    """Return the messages that have a key, by lane, in order."""
    found: dict[Lane, list[int]] = {}
    for each in due:
        if each.lane is not None:
            found.setdefault(each.lane, []).append(each.message)
    return {lane: sorted(messages) for lane, messages in found.items()}


def find_first_blocked(due: Sequence[DueDelivery], first_others: Mapping[Lane, int]) -> dict[Lane, int]:
    """Return, for each lane with a blocked message, the first due message that is blocked.

    `first_others` has, for each lane that has one, the first unfinished message that is not due and comes before
    the last due one.
    """
    found: dict[Lane, int] = {}
    for lane, messages in group_by_lane(due).items():
        other = first_others.get(lane)
        if other is not None:
            found[lane] = next(message for message in messages if message > other)
    return found


def find_predecessors(
    due: Sequence[DueDelivery], back: Mapping[Lane, int], ahead: Mapping[Lane, int]
) -> dict[int, int]:
    """Return the blocked messages, each with the message that it waits behind: the one `ahead` in its lane.

    That is the message before the first one that is kept `back`, or the message which that one waits behind. So all
    messages blocked by a dead message wait behind it alone, and those after a batch in progress wait behind the last
    message of the batch. A message with no predecessor left gets NO_PREDECESSOR and is examined again.
    """
    return {
        each.message: ahead.get(each.lane, NO_PREDECESSOR)
        for each in due
        if each.lane is not None and each.lane in back and each.message >= back[each.lane]
    }


def is_poison(deaths: int) -> bool:
    """Return True if a delivery is not tried again, because it crashed too many processes."""
    return deaths >= _MAX_CRASHES


def decide_retry_delay(
    failure: Failure, policy: RetryPolicy, *, attempt: int, first_ago: float, draw: float
) -> float | None:
    """Return the seconds before the next delivery after failed attempt `attempt`; None ends the retries.

    Failures of every category are retried: a receiver that answers 404 today may be deployed tomorrow. Only
    `NonRetryable` and the policy end the retries early.
    """
    category, classes = failure.category.value, (failure.error_type, *failure.bases)
    if failure.retryable is False or lists_error(policy.never_retry_on, category, classes):
        return None
    if policy.retry_on is not None and not lists_error(policy.retry_on, category, classes):
        return None
    if 0 <= policy.max_retries < attempt:
        return None
    delay = compute_backoff(policy, attempt, draw, failure.retry_after).seconds
    if policy.max_elapsed is not None and first_ago + delay > policy.max_elapsed:
        return None
    return delay


ENGINE_PREFIX = "redrive."
"""The beginning of the engine's topics. A sink must ask for them by name, or by a pattern that begins like this."""

_ENGINE_EVENTS = ("redrive.run.*", "redrive.letter.*")
"""The meaning of `redrive.*` for a sink. Other topics of the engine have texts of errors and addresses."""

MAX_TOPIC_LENGTH = 200
MAX_KEY_LENGTH = 500
_WORD = r"[A-Za-z0-9_-]+"
_TOPIC = re.compile(rf"{_WORD}(?:\.{_WORD})*", re.ASCII)
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, order=True)
class TopicPattern:
    """The topic `topic`, or, if `wild`, all topics that begin with it. `*` leaves out the topics of the engine."""

    topic: str
    wild: bool = False

    @classmethod
    def read(cls, text: Any) -> TopicPattern:
        """Parse a topic, a prefix such as `orders.*`, or `*`."""
        if text == "*":
            return cls("", wild=True)
        if isinstance(text, str) and text.endswith(".*") and _is_topic(text[:-2]):
            return cls(text[:-1], wild=True)
        if _is_topic(text):
            return cls(text)
        raise InputError(Reason(ReasonCode.TOPIC_PATTERN_INVALID, given=quote(text)))

    def matches(self, topic: str) -> bool:
        if not self.wild:
            return topic == self.topic
        return topic.startswith(self.topic) and (self.topic != "" or not topic.startswith(ENGINE_PREFIX))

    def __str__(self) -> str:
        return f"{self.topic}*" if self.wild else self.topic


def parse_patterns(given: str | Iterable[str]) -> tuple[TopicPattern, ...]:
    """Parse the topics and patterns that a sink asks for, without repetitions."""
    texts = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    meant = [each for text in texts for each in (_ENGINE_EVENTS if text == f"{ENGINE_PREFIX}*" else (text,))]
    found = tuple(dict.fromkeys(TopicPattern.read(text) for text in meant))
    if not found:
        raise InputError(Reason(ReasonCode.TOPICS_NEEDED))
    return found


def check_topic(topic: Any) -> str:
    """Return the topic; refuse one that a message cannot have."""
    if not _is_topic(topic):
        raise InputError(Reason(ReasonCode.TOPIC_INVALID, given=quote(topic), longest=MAX_TOPIC_LENGTH))
    return str(topic)


def check_message_key(key: Any) -> str | None:
    """Return the key; refuse one that a message cannot have."""
    if key is None:
        return None
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH or _UNSAFE.search(key):
        raise InputError(Reason(ReasonCode.MESSAGE_KEY_INVALID, given=quote(key), longest=MAX_KEY_LENGTH))
    return key


def _is_topic(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= MAX_TOPIC_LENGTH and _TOPIC.fullmatch(text) is not None
