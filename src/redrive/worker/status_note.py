"""The status note that the code of a run sets (`redrive.set_status`). The next commit of the run writes the latest one.

It is not in the journal: a crash may lose it, and it never changes what the run does.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from redrive.clock import Timer
from redrive.core.failure import clean_text
from redrive.core.outcomes import StatusNoted
from redrive.core.transitions import StatusNoteWrite
from redrive.errors import InputError
from redrive.reasons import Reason, ReasonCode

if TYPE_CHECKING:
    from redrive.worker.execution import Execution

# A note is one line on a page, and is written again with each change. Larger data belongs to the result of a step.
_MAX_TEXT = 500
_MAX_DATA = 10_000
# Seconds after which a status is written that no other commit took along: soon enough to watch, one write at most.
_INTERVAL = 1.0


def make_status_note(text: Any, progress: Any, data: dict[str, Any]) -> StatusNoteWrite:
    """Return a status; InputError if it cannot be stored."""
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_TEXT:
        raise InputError(Reason(ReasonCode.STATUS_TEXT_INVALID, longest=_MAX_TEXT))
    if progress is not None and not (isinstance(progress, int | float) and 0 <= progress <= 1):
        raise InputError(Reason(ReasonCode.STATUS_PROGRESS_INVALID))
    try:
        encoded = json.dumps(data, ensure_ascii=False, allow_nan=False) if data else None
    except (TypeError, ValueError) as error:
        raise InputError(Reason(ReasonCode.NOT_JSON, what="status", why=str(error))) from None
    if encoded is not None and len(encoded) > _MAX_DATA:
        raise InputError(Reason(ReasonCode.STATUS_DATA_TOO_LARGE, longest=_MAX_DATA))
    return StatusNoteWrite(
        text=clean_text(text, 4 * _MAX_TEXT), progress=None if progress is None else float(progress), data=encoded
    )


class PendingStatusNote:
    """The status note of one run that is not written yet."""

    __slots__ = ("_execution", "_pending", "_timer")

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._pending: StatusNoteWrite | None = None
        self._timer: Timer | None = None

    def set(self, note: StatusNoteWrite) -> None:
        """Take a new status. May be called from any thread."""
        loop = self._execution.loop
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            self._set(note)
        else:
            loop.call_soon_threadsafe(self._set, note)

    def _set(self, note: StatusNoteWrite) -> None:
        execution = self._execution
        if execution.dead or execution.journal.next_key is not None:
            return  # a run that walks through its record has set this status before
        self._pending = note
        if self._timer is None:
            self._timer = execution.clock.call_later(_INTERVAL, self.flush)

    def flush(self) -> None:
        """Send the status, if there is a new one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        note, self._pending = self._pending, None
        execution = self._execution
        if note is not None and not execution.dead:
            execution.worker.committer.post(StatusNoted(run=execution.view, note=note))
