"""What workflow code says and does not wait for: recorded values, and messages.

Both go to the committer at once; whatever begins next in the run waits until they are durable. A message is
held back while the journal has not been walked through: the code might turn out to be other code.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redrive.core.keys import message_id
from redrive.core.outcome import Noted
from redrive.core.states import EntryKind
from redrive.core.topics import check_topic
from redrive.worker.publishing import written

if TYPE_CHECKING:
    from redrive.settle.settler import Settled
    from redrive.worker.branch import Branch
    from redrive.worker.execution import Execution

__all__ = ["Notes"]


class Notes:
    """The notes and messages of one run. `unsaved` is the answer to the latest that was sent."""

    __slots__ = ("_execution", "held_back", "unsaved")

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self.held_back: list[Noted] = []
        self.unsaved: asyncio.Future[Settled] | None = None

    def noted(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        """A value that is made once and is the same ever after."""
        if branch.threaded:
            return self._execution.tasks.enter(branch, self._noted_later(branch, name, make))
        return self._note(branch, name, make)

    async def _noted_later(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        return self._note(branch, name, make)

    def _note(self, branch: Branch, name: str, make: Callable[[], Any]) -> Any:
        execution = self._execution
        place, entry = execution.requests.place(branch, EntryKind.NOTE, name)
        if entry is not None and entry.output is not None:
            return json.loads(entry.output)
        value = make()
        self.unsaved = execution.worker.committer.submit(
            Noted(run=execution.view, place=place, output=json.dumps(value))
        )
        return value

    def publish(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        """Publish a message, once: a resumed run finds it in the journal."""
        if branch.threaded:
            later = self._publish_later(branch, topic, payload, key)
            return str(self._execution.tasks.enter(branch, later))
        return self._publish(branch, topic, payload, key)

    async def _publish_later(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        return self._publish(branch, topic, payload, key)

    def _publish(self, branch: Branch, topic: str, payload: Any, key: str | None) -> str:
        execution = self._execution
        name = f"redrive.publish {check_topic(topic)}"
        place, entry = execution.requests.place(branch, EntryKind.PUBLISH, name)
        if entry is not None:
            return message_id(execution.claimed.public_id, place.index, 0)
        execution.sole.say_nothing()
        message = written(execution, place.index, 0, topic, payload, key)
        output = json.dumps(message.public_id)
        self.held_back.append(Noted(run=execution.view, place=place, output=output, messages=(message,)))
        if execution.journal.turn is None:
            self.send_held_back()
        return message.public_id

    def send_held_back(self) -> None:
        """What code says that has not been seen to agree with the journal would be said to the world."""
        for said in self.held_back:
            self.unsaved = self._execution.worker.committer.submit(said)
        self.held_back.clear()

    async def saved(self) -> None:
        """Wait until everything that was sent is durable."""
        unsaved, self.unsaved = self.unsaved, None
        if unsaved is not None:
            self._execution.check(await unsaved)
