"""Decisions to run something again: find it, preview the plan, confirm, apply, wait for the end.

`dlq replay`, `complete` and `edit` and `runs retry` share this code.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import click

from redrive.app import Redrive
from redrive.cli.errors import FAILED, INTERRUPTED
from redrive.cli.hints import hint, worker_hint
from redrive.cli.options import ChangeOptions, exit_if_failed, for_each_id, read_ids
from redrive.cli.output import Output, as_json, echo, echo_err, escape_line, fold_text, on_terminal, style_text
from redrive.cli.target import Target, run_on
from redrive.core.json_edit import Change as JsonChange
from redrive.core.replay_plan import ReplayMode
from redrive.core.states import FINAL_RUN_STATUSES, RunStatus, StepStatus
from redrive.desk.preview import DryRun, PlannedStep
from redrive.desk.replays import Replay

_POLL_INTERVAL = 0.2
_MODE_TEXTS = {
    ReplayMode.FROM_FAILED: "from where it failed",
    ReplayMode.STEP_ONLY: "only the failed step",
    ReplayMode.FROM_STEP: "from a chosen step",
    ReplayMode.SKIP: "skipping the failed step",
    ReplayMode.COMPLETE: "with the result of the failed step given by hand",
    ReplayMode.FULL: "from the beginning",
    ReplayMode.ROLLBACK: "as a rollback",
}
_ROLLBACK_MODE_TEXTS = {
    ReplayMode.FROM_FAILED: "resume at the failed compensation",
    ReplayMode.SKIP: "skip the next compensation and resume",
    ReplayMode.COMPLETE: "take the next compensation as done by hand and resume",
    ReplayMode.ROLLBACK: "start",
}
_MAX_VALUE_LENGTH = 60  # of a value within a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSubject:
    """A letter or run to run again.

    `settled`: there is a decision about it already, so that the same one changes nothing and another one is
    refused. `decisions`: the number of earlier decisions.
    """

    id: str
    name: str
    workflow: str
    settled: bool
    decisions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDecision:
    """A decision: `find` loads its subject, `make` applies it or, as a dry run, returns its plan."""

    find: Callable[[Redrive, str], Awaitable[DecisionSubject]]
    make: Callable[[Redrive, DecisionSubject, bool], Awaitable[Replay | DryRun]]


def run_decision(
    target: Target, ids: Sequence[str], decision: ReplayDecision, change: ChangeOptions, output: Output, *, wait: bool
) -> None:
    """Decide about each id; end the command with the worst exit code."""
    command = _DecisionCommand(decision, change, output, wait)
    try:
        worst = run_on(target, lambda app: command.run(app, read_ids(ids)))
    except KeyboardInterrupt:
        for replay in command.replays:
            echo_err(f"\nThe run continues. To follow it: {hint('runs', 'watch', replay.run_id)}")
        raise click.exceptions.Exit(INTERRUPTED) from None
    exit_if_failed(worst)


@dataclass(slots=True)
class _DecisionCommand:
    decision: ReplayDecision
    change: ChangeOptions
    output: Output
    wait: bool
    subjects: dict[str, DecisionSubject] = field(default_factory=dict)
    replays: list[Replay] = field(default_factory=list)

    async def run(self, app: Redrive, ids: Sequence[str]) -> int:
        async def find(id: str) -> None:
            subject = await self.decision.find(app, id)
            self.subjects[subject.id] = subject

        async def preview(id: str) -> None:
            plan = await self.decision.make(app, self.subjects[id], True)
            self.output.done(id, plan, "\n".join([*_render_preview(self.subjects[id], plan), "Nothing was changed."]))

        async def apply(id: str) -> None:
            subject = self.subjects[id]
            replay = await self.decision.make(app, subject, False)
            assert isinstance(replay, Replay)
            self.replays.append(replay)
            if not (self.wait and self.output.json):
                text = _describe_replay(subject, replay, repeated=subject.settled or replay.number <= subject.decisions)
                self.output.done(id, replay, fold_text(text, sys.stdout, deeper="  "))

        worst = await for_each_id(ids, find)
        if self.change.dry_run:
            return max(worst, await for_each_id(list(self.subjects), preview))
        if not self.subjects:
            return worst
        refused = await self._confirm(app)
        if refused:
            return max(worst, refused)
        worst = max(worst, await for_each_id(list(self.subjects), apply))
        if self.replays and (self.wait or on_terminal()):
            served = {workflow.name for workflow in await app.workflows.list() if workflow.workers}
            for name in {subject.workflow for subject in self.subjects.values()} - served:
                # To the user, a run that waits for a worker would look like one that hangs.
                text = f"No running worker has workflow {name!r}: the run waits for one."
                echo_err(f"{text} To start one: {worker_hint()}")
        if self.wait:
            return max(worst, await _wait_for_replays(app, self.replays, self.output))
        if len(self.replays) == 1 and on_terminal() and not self.output.quiet:
            echo_err(f"To follow it: {hint('runs', 'watch', self.replays[0].run_id)}")
        return worst

    async def _confirm(self, app: Redrive) -> int:
        """Show the plan of a single subject and ask the user; return the exit code of a refusal, or 0."""

        async def show_plan(id: str) -> None:
            plan = await self.decision.make(app, self.subjects[id], True)
            echo("\n".join(_render_preview(self.subjects[id], plan)), err=True)

        change, subjects = self.change, list(self.subjects.values())
        # A settled subject needs no question: the same decision changes nothing, another one is refused.
        if change.yes or not change.is_interactive or all(subject.settled for subject in subjects):
            return 0
        name = f"all {len(subjects)} of them, {subjects[0].id} to {subjects[-1].id},"
        if len(subjects) == 1:
            name = subjects[0].name
            refused = await for_each_id([subjects[0].id], show_plan)
            if refused:
                return refused
        change.confirm(f"Run {name} again")
        return 0


async def _wait_for_replays(app: Redrive, replays: Sequence[Replay], output: Output) -> int:
    """Report the end of each replay; return 1 if one did not succeed."""
    worst = 0
    for replay in replays:
        run = await app.runs.get(replay.run_id)
        while run.status not in FINAL_RUN_STATUSES:
            await asyncio.sleep(_POLL_INTERVAL)
            run = await app.runs.get(replay.run_id)
        # The success of a single step was requested, even where more steps would follow.
        is_partial = run.status is RunStatus.PARTIAL and replay.mode == ReplayMode.STEP_ONLY
        succeeded = is_partial or run.status is RunStatus.SUCCESS
        if output.json:
            output.done(replay.letter_id, {**as_json(replay), "ended": run.status}, "")
        elif not output.quiet:
            result = "succeeded" if succeeded else f"did not succeed, it is {run.status}"
            as_run = f" as run {run.id}" if replay.mode == ReplayMode.FULL else ""
            more = "; more steps would follow" if is_partial else ""
            text = f"{replay.letter_id} {result}{as_run}{more}"
            output.done(replay.letter_id, None, fold_text(text, sys.stdout, deeper="  "))
        if not succeeded:
            worst = FAILED
            echo_err(f"{run.error or run.status}\nTo see why: {hint('dlq', 'show', replay.letter_id)}")
    return worst


def describe_mode(mode: str) -> str:
    """Describe a replay mode as a part of a sentence."""
    return _MODE_TEXTS[ReplayMode(mode)]


def _render_preview(subject: DecisionSubject, plan: DryRun | Replay) -> list[str]:
    if isinstance(plan, DryRun):
        return render_plan(plan)
    return [_describe_replay(subject, plan, repeated=True)]


def _describe_replay(subject: DecisionSubject, replay: Replay, *, repeated: bool) -> str:
    run = f"{'new run' if replay.mode == ReplayMode.FULL else 'run'} {replay.run_id}"
    if repeated:
        return f"{subject.id} was decided before, by {replay.by} at {replay.at:%Y-%m-%d %H:%M:%S} UTC: {run}"
    return f"{subject.id} runs again, {describe_mode(replay.mode)}: {run}"


def _name_options(warning: str) -> str:
    """Return a warning with the options of the command in the place of those of the API."""
    return warning.replace("new_operation", "--new-operation").replace("ask_again", "--ask-again")


def render_plan(plan: DryRun) -> list[str]:
    """Render a plan, one line for each fact, wrapped for a terminal."""
    given = [escape_line(name) for name in plan.given]
    repeated = []
    for step in plan.again:
        effect = f", which {escape_line(step.effect)}" if step.effect else ""
        repeated += [f"{_name_step(step)}{effect}", f"  idempotency key {escape_line(step.idempotency_key)}"]
    if plan.undoes:
        lines = [
            f"The rollback of run {plan.run_id} would {_ROLLBACK_MODE_TEXTS[ReplayMode(plan.mode)]}.",
            *_render_section("Not called:", given),
            *_render_section("Undone, in this order:", [*repeated, plan.then]),
        ]
    else:
        only_step = "and nothing else: if more steps would follow, the run ends as PARTIAL"
        lines = [
            f"{plan.letter_id} would run again, {describe_mode(plan.mode)}{', as a new run' if plan.new_run else ''}.",
            *_render_section("Changes of the input:", render_changes(plan.changes)),
            *_render_section("Result given, not run:", given),
            *_render_section("Already done, not run again:", [_describe_reused(step) for step in plan.reused]),
            *_render_section("Runs again:", [*repeated, only_step if plan.mode == ReplayMode.STEP_ONLY else plan.then]),
        ]
    warnings = [_name_options(escape_line(warning)) for warning in plan.warnings]
    if plan.newest_version is not None:
        warnings += (f"the newest code has no step {escape_line(name)!r} any more" for name in plan.unregistered)
    warnings += (f"circuit {escape_line(key)!r} is open: the run waits until it closes" for key in plan.open_circuits)
    lines += _render_section("Check first:", warnings)
    return [fold_text(line, sys.stdout, deeper="  ") for line in lines]


def _render_section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"  {style_text(title, bold=True)}", *(f"    {line}" for line in lines)] if lines else []


def _name_step(step: PlannedStep) -> str:
    return f"{escape_line(step.name)} (step {step.index})"


def _describe_reused(step: PlannedStep) -> str:
    if step.status is not StepStatus.SUCCESS:
        return f"{_name_step(step)}, which is {step.status}"
    return f"{_name_step(step)} returned {_format_value(step.output)}"


def render_changes(changes: Sequence[JsonChange]) -> list[str]:
    """Render the changes of an input, one line each."""
    lines = []
    for change in changes:
        path, before, after = escape_line(change.path), _format_value(change.before), _format_value(change.after)
        match change.kind:
            case "added":
                lines.append(style_text(f"+ {path}: {after}", fg="green"))
            case "removed":
                lines.append(style_text(f"- {path}: it was {before}", fg="red"))
            case "changed":
                lines.append(style_text(f"~ {path}: {before} becomes {after}", fg="yellow"))
    return lines


def _format_value(value: object) -> str:
    text = escape_line(json.dumps(as_json(value), ensure_ascii=False))
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"
