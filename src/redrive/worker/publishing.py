"""`redrive.publish`: messages that are committed with what they announce.

In workflow code a message is an entry of the journal: a resumed run finds it there and does not publish it
again. In a step it is kept with the attempt and committed with the step's success, or forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn

from redrive.core.keys import message_id
from redrive.core.payload import check_size, encode_any
from redrive.core.quick import quick
from redrive.core.topics import check_key, check_topic
from redrive.core.transition import MessageWrite
from redrive.errors import InputError, MisusedStep
from redrive.signals.traces import here

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

__all__ = ["Drafts", "Published", "written"]

MOST = 1_000
"""Messages that one attempt of a step may publish: they travel in one commit."""

_MessageWrite = quick(MessageWrite)
_LOCK = threading.Lock()


class Published(str):
    """The id of a message. It may be awaited, which is the same."""

    __slots__ = ()

    def __await__(self) -> Generator[NoReturn, None, str]:
        return str(self)
        yield


def written(
    execution: Execution, index: int, number: int, topic: str, payload: Any, key: str | None
) -> MessageWrite:
    """The message as it is stored. Raises InputError if it cannot be."""
    topic, key = check_topic(topic), check_key(key)
    text = encode_any(payload)
    check_size(text, execution.worker.max_payload, f"the payload of a message on {topic!r}")
    return _MessageWrite(
        public_id=message_id(execution.claimed.public_id, index, number),
        topic=topic,
        payload=text,
        run_id=execution.claimed.public_id,
        correlation_id=execution.correlation_id,
        key=key,
        trace=here() or execution.view.options.trace,
    )


class Drafts:
    """What one attempt of a step has published so far, from whatever threads."""

    __slots__ = ("_closed", "_messages")

    def __init__(self) -> None:
        self._messages: list[MessageWrite] = []
        self._closed = False

    def add(self, execution: Execution, index: int, topic: str, payload: Any, key: str | None) -> Published:
        """Keep another message. Raises MisusedStep if the attempt is over, whoever still runs in it."""
        with _LOCK:
            number = len(self._messages)
            if self._closed:
                raise MisusedStep(
                    f"a message on {topic!r} was published after its attempt was over, so that nothing will "
                    "commit it; wait in the step for what it begins"
                )
            if number == MOST:
                raise InputError(
                    f"a step publishes {MOST:,} messages at most; spread them over several steps"
                )
            message = written(execution, index, number, topic, payload, key)
            self._messages.append(message)
        return Published(message.public_id)

    def close(self) -> tuple[MessageWrite, ...]:
        """All of them; there will be no more."""
        with _LOCK:
            self._closed = True
            return tuple(self._messages)
