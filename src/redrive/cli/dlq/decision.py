"""Running things again: find them, say what would happen, ask, do it, wait for the end.

`dlq replay`, `complete` and `edit` and `runs retry` differ in what they decide, and are one here.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import click

from redrive.app import Redrive
from redrive.cli.messages import FAILED, INTERRUPTED, hint, worker_hint
from redrive.cli.options import Change, end, given, tried
from redrive.cli.output import Output, as_json, clean, echo, folded, on_terminal, say, styled
from redrive.cli.place import Place, ask
from redrive.core.json_edit import Change as JsonChange
from redrive.core.replay import Mode
from redrive.core.states import FINAL, RunStatus, StepStatus
from redrive.desk.decisions import Replay
from redrive.desk.models import Run
from redrive.desk.preview import DryRun, PlannedStep

__all__ = [
    "Act",
    "Asked",
    "Subject",
    "decide",
    "differences",
    "say_if_nobody_works",
    "sentences",
    "wait_for",
    "way",
]


# -- Waiting for replays to end, and saying when nobody is there to do them ------------------------------


_LOOK = 0.2


async def wait_for(app: Redrive, made: Sequence[Replay], output: Output) -> int:
    """Tell how each ended; 1 if one did not end well."""
    worst = 0
    for replay in made:
        run = await _ended(app, replay.run_id)
        if output.json:
            output.done(replay.letter_id, {**as_json(replay), "ended": run.status}, "")
        elif not output.quiet:
            output.done(replay.letter_id, None, _told(replay, run))
        if not _went_well(replay, run):
            worst = FAILED
            say(f"{run.error or run.status}\nTo understand it: {hint('dlq', 'show', replay.letter_id)}")
    return worst


def _told(replay: Replay, run: Run) -> str:
    as_run = f" as run {run.id}" if replay.mode == Mode.FULL else ""
    how = "succeeded" if _went_well(replay, run) else f"did not succeed, it is {run.status}"
    more = "; more would follow" if how == "succeeded" and run.status is RunStatus.PARTIAL else ""
    return folded(f"{replay.letter_id} {how}{as_run}{more}", sys.stdout, deeper="  ")


async def _ended(app: Redrive, run_id: str) -> Run:
    while True:
        run = await app.runs.get(run_id)
        if run.status in FINAL:
            return run
        await asyncio.sleep(_LOOK)


def _went_well(replay: Replay, run: Run) -> bool:
    """A single step that succeeded is what was asked for, even where more would follow."""
    if run.status is RunStatus.PARTIAL:
        return replay.mode == Mode.STEP_ONLY
    return run.status is RunStatus.SUCCESS


async def say_if_nobody_works(app: Redrive, workflow: str, *, waits: bool) -> None:
    """A run that nobody can take looks like one that hangs; say so to whoever watches or waits."""
    if not (waits or on_terminal()):
        return
    known = await app.workflows.list()
    if not any(one.workers for one in known if one.name == workflow):
        say(f"No live worker has workflow {workflow!r}: it waits until one is started: {worker_hint()}")


# -- A dry run in plain sentences: what would run again, what is reused, what to know before -------------


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


# -- Running things again: find them, say what would happen, ask, do it, wait for the end ----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is to run again, as it was found. `settled`: somebody decided about it before, so that the same
    decision changes nothing and another one is refused. `decisions`: how many there were.
    """

    id: str
    name: str
    workflow: str
    settled: bool
    decisions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A decision: how its subject is found, and how it is tried (`dry_run`) and made."""

    find: Callable[[Redrive, str], Awaitable[Subject]]
    make: Callable[[Redrive, Subject, bool], Awaitable[Replay | DryRun]]
    verb: str = "Run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How the caller wants it done and shown."""

    change: Change
    output: Output
    wait: bool


def decide(place: Place, ids: Sequence[str], act: Act, asked: Asked) -> None:
    """Decide about each; ends the command with the worst exit code."""
    work = _Work(act, asked)
    try:
        worst = ask(place, lambda app: work.all(app, given(ids)))
    except KeyboardInterrupt:
        for replay in work.made:
            say(f"\nIt goes on. To follow it: {hint('runs', 'watch', replay.run_id)}")
        raise click.exceptions.Exit(INTERRUPTED) from None
    end(worst)


@dataclass(slots=True)
class _Work:
    act: Act
    asked: Asked
    found: dict[str, Subject] = field(default_factory=dict)
    made: list[Replay] = field(default_factory=list)

    async def all(self, app: Redrive, ids: Sequence[str]) -> int:
        worst = await tried(ids, lambda id: self._find(app, id))
        if self.asked.change.dry_run:
            return max(worst, await tried(list(self.found), lambda id: self._preview(app, id)))
        if not self.found:
            return worst
        refused = await self._ask(app)
        if refused:
            return max(worst, refused)
        worst = max(worst, await tried(list(self.found), lambda id: self._make(app, id)))
        for workflow in {self.found[id].workflow for id in self.found} if self.made else ():
            await say_if_nobody_works(app, workflow, waits=self.asked.wait)
        if self.asked.wait:
            return max(worst, await wait_for(app, self.made, self.asked.output))
        if len(self.made) == 1 and on_terminal() and not self.asked.output.quiet:
            say(f"To follow it: {hint('runs', 'watch', self.made[0].run_id)}")
        return worst

    async def _find(self, app: Redrive, id: str) -> None:
        subject = await self.act.find(app, id)
        self.found[subject.id] = subject

    async def _preview(self, app: Redrive, id: str) -> None:
        plan = await self.act.make(app, self.found[id], True)
        told = _told_deciding(self.found[id], plan)
        self.asked.output.done(id, plan, "\n".join([*told, "Nothing was changed."]))

    async def _ask(self, app: Redrive) -> int:
        """Show a person the plan of one thing or the number of many, and ask; gives a refusal's exit code."""
        change, subjects = self.asked.change, list(self.found.values())
        if change.yes or not change.somebody_watches or all(subject.settled for subject in subjects):
            return 0
        if len(subjects) == 1 and not subjects[0].settled:
            refused = await tried([subjects[0].id], lambda id: self._show_plan(app, id))
            if refused:
                return refused
        change.confirm(f"{self.act.verb} {_named(subjects)} again")
        return 0

    async def _show_plan(self, app: Redrive, id: str) -> None:
        plan = await self.act.make(app, self.found[id], True)
        echo("\n".join(_told_deciding(self.found[id], plan)), err=True)

    async def _make(self, app: Redrive, id: str) -> None:
        replay = await self.act.make(app, self.found[id], False)
        assert isinstance(replay, Replay)
        self.made.append(replay)
        if not (self.asked.wait and self.asked.output.json):
            text = folded(_done(self.found[id], replay), sys.stdout, deeper="  ")
            self.asked.output.done(id, replay, text)


def _named(subjects: list[Subject]) -> str:
    if len(subjects) == 1:
        return subjects[0].name
    return f"all {len(subjects)} of them, {subjects[0].id} to {subjects[-1].id},"


def _told_deciding(subject: Subject, plan: DryRun | Replay) -> list[str]:
    """What a decision would do: its plan, or that it was made before."""
    return sentences(plan) if isinstance(plan, DryRun) else [_done(replace(subject, settled=True), plan)]


def _done(subject: Subject, replay: Replay) -> str:
    what = "new run" if replay.mode == Mode.FULL else "run"
    if subject.settled or replay.number <= subject.decisions:
        return (
            f"{subject.id} was decided before, by {replay.by} at {_clock(replay.at)}: {what} {replay.run_id}"
        )
    return f"{subject.id} runs again, {way(replay.mode)}: {what} {replay.run_id}"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
