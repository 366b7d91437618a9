"""Running things again: find them, say what would happen, ask, do it, wait for the end.

`dlq replay`, `complete` and `edit` and `runs retry` differ in what they decide, and are one here.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import click

from redrive.app import Redrive
from redrive.cli.messages import FAILED, INTERRUPTED, hint, worker_hint
from redrive.cli.options import ChangeOptions, exit_if_failed, for_each_id, read_ids
from redrive.cli.output import Output, as_json, echo, echo_err, escape_line, fold_text, on_terminal, style_text
from redrive.cli.target import Target, run_on
from redrive.core.json_edit import Change as JsonChange
from redrive.core.replay import ReplayMode
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus, StepStatus
from redrive.desk.decisions import Replay
from redrive.desk.models import Run
from redrive.desk.preview import DryRun, PlannedStep
from redrive.records import replace

# -- Waiting for replays to end, and saying when nobody is there to do them ------------------------------


_POLL_INTERVAL = 0.2


async def wait_for_replays(app: Redrive, made: Sequence[Replay], output: Output) -> int:
    """Tell how each ended; 1 if one did not end well."""
    worst = 0
    for replay in made:
        run = await _wait_until_ended(app, replay.run_id)
        if output.json:
            output.done(replay.letter_id, {**as_json(replay), "ended": run.status}, "")
        elif not output.quiet:
            output.done(replay.letter_id, None, _describe_end(replay, run))
        if not _is_success(replay, run):
            worst = FAILED
            echo_err(f"{run.error or run.status}\nTo understand it: {hint('dlq', 'show', replay.letter_id)}")
    return worst


def _describe_end(replay: Replay, run: Run) -> str:
    as_run = f" as run {run.id}" if replay.mode == ReplayMode.FULL else ""
    how = "succeeded" if _is_success(replay, run) else f"did not succeed, it is {run.status}"
    more = "; more would follow" if how == "succeeded" and run.status is RunStatus.PARTIAL else ""
    return fold_text(f"{replay.letter_id} {how}{as_run}{more}", sys.stdout, deeper="  ")


async def _wait_until_ended(app: Redrive, run_id: str) -> Run:
    while True:
        run = await app.runs.get(run_id)
        if run.status in FINAL_RUN_STATUSES:
            return run
        await asyncio.sleep(_POLL_INTERVAL)


def _is_success(replay: Replay, run: Run) -> bool:
    """A single step that succeeded is what was asked for, even where more would follow."""
    if run.status is RunStatus.PARTIAL:
        return replay.mode == ReplayMode.STEP_ONLY
    return run.status is RunStatus.SUCCESS


async def warn_if_no_worker(app: Redrive, workflow: str, *, waits: bool) -> None:
    """A run that nobody can take looks like one that hangs; say so to whoever watches or waits."""
    if not (waits or on_terminal()):
        return
    known = await app.workflows.list()
    if not any(one.workers for one in known if one.name == workflow):
        echo_err(f"No live worker has workflow {workflow!r}: it waits until one is started: {worker_hint()}")


# -- A dry run in plain sentences: what would run again, what is reused, what to know before -------------


_MODE_TEXTS = {
    ReplayMode.FROM_FAILED: "from where it failed",
    ReplayMode.STEP_ONLY: "the failed step alone",
    ReplayMode.FROM_STEP: "from a chosen step",
    ReplayMode.SKIP: "past the failed step",
    ReplayMode.COMPLETE: "with the failed step's result given by hand",
    ReplayMode.FULL: "from the beginning",
    ReplayMode.ROLLBACK: "backwards, undoing what it did",
}
_ROLLBACK_MODE_TEXTS = {
    ReplayMode.FROM_FAILED: "resumed at the compensation that failed",
    ReplayMode.SKIP: "resumed past the compensation that is next",
    ReplayMode.COMPLETE: "resumed, the compensation that is next being done by hand",
    ReplayMode.ROLLBACK: "begun",
}
_MAX_VALUE_LENGTH = 60  # of a value within a sentence


def describe_mode(mode: str) -> str:
    """How a mode of replay reads in a sentence."""
    return _MODE_TEXTS[ReplayMode(mode)]


def render_plan(plan: DryRun) -> list[str]:
    """The whole plan, one line for each thing to know, folded where a person reads it."""
    return [fold_text(line, sys.stdout, deeper="  ") for line in _list_plan_lines(plan)]


def _list_plan_lines(plan: DryRun) -> list[str]:
    if plan.undoes:
        return [
            f"The rollback of run {plan.run_id} would be {_ROLLBACK_MODE_TEXTS[ReplayMode(plan.mode)]}.",
            *_render_section("Not called:", [escape_line(name) for name in plan.given]),
            *_render_section("Undone, in this order:", [*_describe_repeated(plan.again), plan.then]),
            *_render_section("Know this before:", [*_list_warnings(plan)]),
        ]
    where = ", as a new run" if plan.new_run else ""
    return [
        f"{plan.letter_id} would run again, {describe_mode(plan.mode)}{where}.",
        *_render_section("What changes in the input:", render_changes(plan.changes)),
        *_render_section("Taken as given, not run:", [escape_line(name) for name in plan.given]),
        *_render_section("Reused as recorded, not run again:", [_describe_reused(step) for step in plan.reused]),
        *_render_section("Runs again:", [*_describe_repeated(plan.again), _describe_rest(plan)]),
        *_render_section("Know this before:", [*_list_warnings(plan)]),
    ]


def render_changes(changes: Sequence[JsonChange]) -> list[str]:
    """What an edit changes, a line for each place."""
    return [_render_change(change) for change in changes]


def _render_change(change: JsonChange) -> str:
    path = escape_line(change.path)
    match change.kind:
        case "added":
            return style_text(f"+ {path}: {_format_value(change.after)}", fg="green")
        case "removed":
            return style_text(f"- {path}: it was {_format_value(change.before)}", fg="red")
        case "changed":
            return style_text(
                f"~ {path}: {_format_value(change.before)} becomes {_format_value(change.after)}", fg="yellow"
            )


def _render_section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"  {style_text(title, bold=True)}", *(f"    {line}" for line in lines)] if lines else []


def _describe_reused(step: PlannedStep) -> str:
    if step.status is not StepStatus.SUCCESS:
        return f"{_name_step(step)}, which is {step.status}"
    return f"{_name_step(step)} gave {_format_value(step.output)}"


def _describe_repeated(steps: Sequence[PlannedStep]) -> Iterator[str]:
    for step in steps:
        effect = f", which {escape_line(step.effect)}" if step.effect else ""
        yield f"{_name_step(step)}{effect}"
        yield f"  idempotency key {escape_line(step.idempotency_key)}"


def _describe_rest(plan: DryRun) -> str:
    if plan.mode == ReplayMode.STEP_ONLY:
        return "and nothing else: if more would follow, the run ends as PARTIAL"
    return plan.then


def _list_warnings(plan: DryRun) -> Iterator[str]:
    yield from (escape_line(warning).replace("new_operation", "--new-operation") for warning in plan.warnings)
    if plan.newest_version is not None:
        for name in plan.unregistered:
            yield f"the newest code has no step {escape_line(name)!r} any more"
    for circuit in plan.open_circuits:
        yield f"circuit {escape_line(circuit)!r} is open: the run waits until it closes"


def _name_step(step: PlannedStep) -> str:
    return f"{escape_line(step.name)} (step {step.index})"


def _format_value(value: object) -> str:
    text = escape_line(json.dumps(as_json(value), ensure_ascii=False))
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"


# -- Running things again: find them, say what would happen, ask, do it, wait for the end ----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSubject:
    """What is to run again, as it was found. `settled`: somebody decided about it before, so that the same
    decision changes nothing and another one is refused. `decisions`: how many there were.
    """

    id: str
    name: str
    workflow: str
    settled: bool
    decisions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDecision:
    """A decision: how its subject is found, and how it is tried (`dry_run`) and made."""

    find: Callable[[Redrive, str], Awaitable[DecisionSubject]]
    make: Callable[[Redrive, DecisionSubject, bool], Awaitable[Replay | DryRun]]
    verb: str = "Run"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionOptions:
    """How the caller wants it done and shown."""

    change: ChangeOptions
    output: Output
    wait: bool


def run_decision(place: Target, ids: Sequence[str], act: ReplayDecision, asked: DecisionOptions) -> None:
    """Decide about each; ends the command with the worst exit code."""
    work = _DecisionCommand(act, asked)
    try:
        worst = run_on(place, lambda app: work.all(app, read_ids(ids)))
    except KeyboardInterrupt:
        for replay in work.made:
            echo_err(f"\nIt goes on. To follow it: {hint('runs', 'watch', replay.run_id)}")
        raise click.exceptions.Exit(INTERRUPTED) from None
    exit_if_failed(worst)


@dataclass(slots=True)
class _DecisionCommand:
    act: ReplayDecision
    asked: DecisionOptions
    found: dict[str, DecisionSubject] = field(default_factory=dict)
    made: list[Replay] = field(default_factory=list)

    async def all(self, app: Redrive, ids: Sequence[str]) -> int:
        worst = await for_each_id(ids, lambda id: self._find(app, id))
        if self.asked.change.dry_run:
            return max(worst, await for_each_id(list(self.found), lambda id: self._preview(app, id)))
        if not self.found:
            return worst
        refused = await self._confirm(app)
        if refused:
            return max(worst, refused)
        worst = max(worst, await for_each_id(list(self.found), lambda id: self._apply(app, id)))
        for workflow in {self.found[id].workflow for id in self.found} if self.made else ():
            await warn_if_no_worker(app, workflow, waits=self.asked.wait)
        if self.asked.wait:
            return max(worst, await wait_for_replays(app, self.made, self.asked.output))
        if len(self.made) == 1 and on_terminal() and not self.asked.output.quiet:
            echo_err(f"To follow it: {hint('runs', 'watch', self.made[0].run_id)}")
        return worst

    async def _find(self, app: Redrive, id: str) -> None:
        subject = await self.act.find(app, id)
        self.found[subject.id] = subject

    async def _preview(self, app: Redrive, id: str) -> None:
        plan = await self.act.make(app, self.found[id], True)
        told = _render_preview(self.found[id], plan)
        self.asked.output.done(id, plan, "\n".join([*told, "Nothing was changed."]))

    async def _confirm(self, app: Redrive) -> int:
        """Show a person the plan of one thing or the number of many, and ask; gives a refusal's exit code."""
        change, subjects = self.asked.change, list(self.found.values())
        if change.yes or not change.is_interactive or all(subject.settled for subject in subjects):
            return 0
        if len(subjects) == 1 and not subjects[0].settled:
            refused = await for_each_id([subjects[0].id], lambda id: self._show_plan(app, id))
            if refused:
                return refused
        change.confirm(f"{self.act.verb} {_name_subjects(subjects)} again")
        return 0

    async def _show_plan(self, app: Redrive, id: str) -> None:
        plan = await self.act.make(app, self.found[id], True)
        echo("\n".join(_render_preview(self.found[id], plan)), err=True)

    async def _apply(self, app: Redrive, id: str) -> None:
        replay = await self.act.make(app, self.found[id], False)
        assert isinstance(replay, Replay)
        self.made.append(replay)
        if not (self.asked.wait and self.asked.output.json):
            text = fold_text(_describe_result(self.found[id], replay), sys.stdout, deeper="  ")
            self.asked.output.done(id, replay, text)


def _name_subjects(subjects: list[DecisionSubject]) -> str:
    if len(subjects) == 1:
        return subjects[0].name
    return f"all {len(subjects)} of them, {subjects[0].id} to {subjects[-1].id},"


def _render_preview(subject: DecisionSubject, plan: DryRun | Replay) -> list[str]:
    """What a decision would do: its plan, or that it was made before."""
    return render_plan(plan) if isinstance(plan, DryRun) else [_describe_result(replace(subject, settled=True), plan)]


def _describe_result(subject: DecisionSubject, replay: Replay) -> str:
    what = "new run" if replay.mode == ReplayMode.FULL else "run"
    if subject.settled or replay.number <= subject.decisions:
        return f"{subject.id} was decided before, by {replay.by} at {_format_time(replay.at)}: {what} {replay.run_id}"
    return f"{subject.id} runs again, {describe_mode(replay.mode)}: {what} {replay.run_id}"


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
