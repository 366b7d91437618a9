"""What a rollback would undo, told without the code: by the journal, and by what the code said of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from redrive.core.journal import EntryRow
from redrive.core.options import StepOptions
from redrive.core.saga import Happened, follow_key, happened, passed_pivot
from redrive.core.states import EntryKind, StepStatus
from redrive.frozen import dataclass
from redrive.settle.view import last_tries
from redrive.store.port import People
from redrive.store.records import Case

__all__ = ["Effects", "effects_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The compensations of a run, in order, as they would be recorded; what makes it too late for them."""

    undoes: tuple[EntryRow, ...]
    pivot: str | None


async def effects_of(store: People, case: Case, names: Sequence[str]) -> Effects:
    """Look at a run that ended."""
    options: dict[str, StepOptions] = {}
    for item in await store.known(names):  # the newest first
        if item.kind == "step":
            options.setdefault(item.name, StepOptions.from_json(item.options))
    effects = happened(case.journal, last_tries(await store.attempts(case.run.id)), options)
    undoes = [_compensation(each, options.get(each.entry.name)) for each in effects]
    return Effects(
        undoes=tuple(entry for entry in undoes if entry is not None),
        pivot=passed_pivot(case.journal, effects, options),
    )


def _compensation(each: Happened, options: StepOptions | None) -> EntryRow | None:
    name = None if options is None else options.cancel or options.undo
    if name is None:
        return None
    return replace(
        each.entry,
        key=follow_key(each.entry, name),
        kind=EntryKind.UNDO,
        name=name,
        status=StepStatus.PENDING,
        output=None,
        failure=None,
        options=None,
    )
