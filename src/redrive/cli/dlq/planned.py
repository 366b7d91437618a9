"""A dry run in plain sentences: what would run again, what is reused, what to know before."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from redrive.cli.folding import folded
from redrive.cli.output import as_json, clean, styled
from redrive.core.edit import Change as JsonChange
from redrive.core.replay import Mode
from redrive.core.states import StepStatus
from redrive.desk.preview import DryRun, PlannedStep

__all__ = ["differences", "sentences", "way"]

_WAYS = {
    Mode.FROM_FAILED: "from where it failed",
    Mode.STEP_ONLY: "the failed step alone",
    Mode.FROM_STEP: "from a chosen step",
    Mode.SKIP: "past the failed step",
    Mode.COMPLETE: "with the failed step's result given by hand",
    Mode.FULL: "from the beginning",
    Mode.ROLLBACK: "backwards, undoing what it did",
}
_WAYS_BACK = {
    Mode.FROM_FAILED: "resumed at the compensation that failed",
    Mode.SKIP: "resumed past the compensation that is next",
    Mode.COMPLETE: "resumed, the compensation that is next being done by hand",
    Mode.ROLLBACK: "begun",
}
_LENGTH = 60  # of a value within a sentence


def way(mode: str) -> str:
    """How a mode of replay reads in a sentence."""
    return _WAYS[Mode(mode)]


def sentences(plan: DryRun) -> list[str]:
    """The whole plan, one line for each thing to know, folded where a person reads it."""
    return [folded(line, sys.stdout, deeper="  ") for line in _sentences(plan)]


def _sentences(plan: DryRun) -> list[str]:
    if plan.undoes:
        return [
            f"The rollback of run {plan.run_id} would be {_WAYS_BACK[Mode(plan.mode)]}.",
            *_part("Not called:", [clean(name) for name in plan.given]),
            *_part("Undone, in this order:", [*_again(plan.again), plan.then]),
            *_part("Know this before:", [*_warnings(plan)]),
        ]
    where = ", as a new run" if plan.new_run else ""
    return [
        f"{plan.letter_id} would run again, {way(plan.mode)}{where}.",
        *_part("What changes in the input:", differences(plan.changes)),
        *_part("Taken as given, not run:", [clean(name) for name in plan.given]),
        *_part("Reused as recorded, not run again:", [_reused(step) for step in plan.reused]),
        *_part("Runs again:", [*_again(plan.again), _then(plan)]),
        *_part("Know this before:", [*_warnings(plan)]),
    ]


def differences(changes: Sequence[JsonChange]) -> list[str]:
    """What an edit changes, a line for each place."""
    return [_difference(change) for change in changes]


def _difference(change: JsonChange) -> str:
    path = clean(change.path)
    match change.kind:
        case "added":
            return styled(f"+ {path}: {_value(change.after)}", fg="green")
        case "removed":
            return styled(f"- {path}: it was {_value(change.before)}", fg="red")
        case "changed":
            return styled(f"~ {path}: {_value(change.before)} becomes {_value(change.after)}", fg="yellow")


def _part(title: str, lines: Sequence[str]) -> list[str]:
    return [f"  {styled(title, bold=True)}", *(f"    {line}" for line in lines)] if lines else []


def _reused(step: PlannedStep) -> str:
    if step.status is not StepStatus.SUCCESS:
        return f"{_name(step)}, which is {step.status}"
    return f"{_name(step)} gave {_value(step.output)}"


def _again(steps: Sequence[PlannedStep]) -> Iterator[str]:
    for step in steps:
        effect = f", which {clean(step.effect)}" if step.effect else ""
        yield f"{_name(step)}{effect}"
        yield f"  idempotency key {clean(step.idempotency_key)}"


def _then(plan: DryRun) -> str:
    if plan.mode == Mode.STEP_ONLY:
        return "and nothing else: if more would follow, the run ends as PARTIAL"
    return plan.then


def _warnings(plan: DryRun) -> Iterator[str]:
    yield from (clean(warning).replace("new_operation", "--new-operation") for warning in plan.warnings)
    if plan.newest_version is not None:
        for name in plan.unregistered:
            yield f"the newest code has no step {clean(name)!r} any more"
    for circuit in plan.open_circuits:
        yield f"circuit {clean(circuit)!r} is open: the run waits until it closes"


def _name(step: PlannedStep) -> str:
    return f"{clean(step.name)} (step {step.index})"


def _value(value: object) -> str:
    text = clean(json.dumps(as_json(value), ensure_ascii=False))
    return text if len(text) <= _LENGTH else f"{text[: _LENGTH - 1]}…"
