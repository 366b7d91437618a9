"""Deliveries of messages: which of them may go now, and what follows when one fails.

Messages with one key go to a sink in the order of their numbers, one batch of a key at a time. So a due
delivery may be taken if every earlier one of its key that is not over is taken with it; otherwise it *waits
behind* that one, and is due again when that one is over. Messages without a key wait for nobody.

Messages without a key may be somebody's from the moment of their commit: those on one topic are a *bundle*
then, which its carrier has under a lease. Where all of a bundle arrived, that is noted once. Otherwise it is
*unfolded*: each of its messages has a delivery like any other from there on.

A delivery that its process never noted is a *suspect*: it may have killed that process. Where user code
delivers, suspects are tried one at a time, so that a further death is laid to the right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import msgspec

from redrive.core.failure import Failure
from redrive.core.retry import compute_backoff
from redrive.core.states import DeliveryStatus
from redrive.errors import InputError
from redrive.policy import RetryPolicy

# -- Deliveries of messages: which of them may go now, and what follows when one fails -------------------


DEFAULT_SINK_RETRY = RetryPolicy(max_retries=15, base_delay=2.0, factor=3.0, max_delay=3600.0)
"""How a sink is tried again: after 2 s, 6 s, 18 s, ... and then every hour, for about nine hours."""

MAX_CLAIM_BYTES = 16 << 20
"""Payloads of about this size are claimed at once, and at least one message."""

INITIAL_FENCE = 1
"""The fence of a delivery that was somebody's from the moment of its commit."""

_MAX_CRASHES = 3
NO_PREDECESSOR = 0
"""Stands where a message would wait behind one that is over by now."""

Lane = tuple[str, str]
"""Messages that are delivered in order: those of one tenant with one key."""


class Suspects(Enum):
    """What a claim does about deliveries that may have killed a process."""

    TAKE = auto()
    """They are like any other: nothing of the user's runs in this process."""

    LEAVE = auto()
    """They are for a claim that takes one of them alone."""

    TAKE_ONE = auto()
    """One of them, and nothing else."""


class SinkLease(msgspec.Struct, frozen=True, gc=False):
    """A sink whose messages the one who commits them takes along, for as long as the lease lasts."""

    sink: str
    lease: int


class Bundle(msgspec.Struct, frozen=True, gc=False):
    """Messages of one commit, on one topic and without a key, in the hands of the carriers to these sinks.

    `whole`: no other sink wants them.
    """

    id: int
    sinks: tuple[str, ...]
    whole: bool


class DeliveredBundle(msgspec.Struct, frozen=True, gc=False):
    """All messages of a bundle, each of which arrived at the first try."""

    bundle: int
    messages: tuple[int, ...]


class DueDelivery(msgspec.Struct, frozen=True, gc=False):
    """A delivery whose time has come."""

    message: int
    tenant: str
    key: str | None

    @property
    def lane(self) -> Lane | None:
        """Whom it shares an order with; None if nobody."""
        return None if self.key is None else (self.tenant, self.key)


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of a delivery that was claimed under a fence.

    PENDING is to be tried again: after `wake_in`, or once the delivery of the message `behind` is over.
    `attempt` counts tries; one that was not `tried` is given back as it was. Others may wait
    behind one that is `keyed`. What is noted of a message of a `bundle` unfolds that.
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
        """True if nothing more is to be done about it, and nobody needs to wait behind it."""
        return self.status in (DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED)


def group_by_lane(due: Sequence[DueDelivery]) -> dict[Lane, list[int]]:
    """The messages that have a key, by key, in order."""
    found: dict[Lane, list[int]] = {}
    for each in due:
        if each.lane is not None:
            found.setdefault(each.lane, []).append(each.message)
    return {lane: sorted(messages) for lane, messages in found.items()}


def find_first_blocked(due: Sequence[DueDelivery], first_others: Mapping[Lane, int]) -> dict[Lane, int]:
    """For each lane in which not all that is due may go, the first message that may not.

    `first_others` has, for each lane in which there is one, the first message that is not over, is not among
    the due ones, and comes before the last of those.
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
    """Those that may not go yet, each with the message it waits behind: the one `ahead` of its lane.

    That is the one next before the first that is kept `back`, or whom that one waits for. So whatever waits
    for a dead message waits for it alone, and what follows a batch under way waits for the batch's last.
    Where nobody is ahead any more, it is to be looked at again.
    """
    return {
        each.message: ahead.get(each.lane, NO_PREDECESSOR)
        for each in due
        if each.lane is not None and each.lane in back and each.message >= back[each.lane]
    }


def is_poison(deaths: int) -> bool:
    """True if a delivery is not tried again, because so many processes died of it."""
    return deaths >= _MAX_CRASHES


def decide_retry_delay(
    failure: Failure, policy: RetryPolicy, *, attempt: int, first_ago: float, draw: float
) -> float | None:
    """How many seconds to wait before a sink is tried again after failed attempt `attempt`; None: no more.

    Whatever the category: a receiver that answers 404 today may be deployed tomorrow, and the message is
    not at fault. Only `NonRetryable` and the policy's own words end it early.
    """
    names = {failure.category.value, failure.error_type, *failure.bases}
    if failure.retryable is False or names.intersection(policy.never_retry_on):
        return None
    if policy.retry_on is not None and not names.intersection(policy.retry_on):
        return None
    if 0 <= policy.max_retries < attempt:
        return None
    delay = compute_backoff(policy, attempt, draw, failure.retry_after).seconds
    if policy.max_elapsed is not None and first_ago + delay > policy.max_elapsed:
        return None
    return delay


# -- What messages may be called, and which of them a sink wants -----------------------------------------


MAX_TOPIC_LENGTH = 200
MAX_KEY_LENGTH = 500
_WORD = r"[A-Za-z0-9_-]+"
_TOPIC = re.compile(rf"{_WORD}(?:\.{_WORD})*", re.ASCII)
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, order=True)
class TopicPattern:
    """Topics that are called `topic`; if `wild`, those that begin with it."""

    topic: str
    wild: bool = False

    @classmethod
    def read(cls, text: Any) -> TopicPattern:
        """A pattern as people write it."""
        if text == "*":
            return cls("", wild=True)
        if isinstance(text, str) and text.endswith(".*") and _is_topic(text[:-2]):
            return cls(text[:-1], wild=True)
        if _is_topic(text):
            return cls(text)
        raise InputError(
            f"{text!r:.80} names no topics: give one such as orders.paid, all that begin alike with "
            "orders.*, or all there are with *"
        )

    def matches(self, topic: str) -> bool:
        """True if it wants messages on this topic."""
        return topic.startswith(self.topic) if self.wild else topic == self.topic

    def __str__(self) -> str:
        return f"{self.topic}*" if self.wild else self.topic


def parse_patterns(given: str | Iterable[str]) -> tuple[TopicPattern, ...]:
    """The patterns that somebody gave, one or several, each once."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Iterable):
        raise InputError(f"{given!r:.80} names no topics: give a text, or a list of them")
    found = tuple(dict.fromkeys(TopicPattern.read(text) for text in texts))
    if not found:
        raise InputError("no topic is named; give at least one, or * for all")
    return found


def check_topic(topic: Any) -> str:
    """The topic itself, if a message may have it."""
    if not _is_topic(topic):
        raise InputError(
            f"{topic!r:.80} cannot be a topic: use words of letters, digits, _ and -, joined by dots, "
            f"{MAX_TOPIC_LENGTH} characters at most, as in orders.paid"
        )
    return str(topic)


def check_message_key(key: Any) -> str | None:
    """The key itself, if a message may have it. Messages with equal keys are delivered in order."""
    if key is None:
        return None
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH or _UNSAFE.search(key):
        raise InputError(
            f"{key!r:.80} cannot be the key of a message: use a text of 1 to {MAX_KEY_LENGTH} characters, none "
            "of them a control character, such as the id of what the message is about"
        )
    return key


def _is_topic(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= MAX_TOPIC_LENGTH and _matches_topic(text)


@lru_cache(maxsize=1024)
def _matches_topic(text: str) -> bool:
    """Remembered, because a program has few topics and uses them again and again."""
    return _TOPIC.fullmatch(text) is not None
