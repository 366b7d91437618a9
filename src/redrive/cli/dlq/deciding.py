"""Running things again: find them, say what would happen, ask, do it, wait for the end.

`dlq replay`, `complete` and `edit` and `runs retry` differ in what they decide, and are one here.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import click

from redrive.app import Redrive
from redrive.cli.change import Change, end, tried
from redrive.cli.dlq.planned import sentences, way
from redrive.cli.dlq.waiting import say_if_nobody_works, wait_for
from redrive.cli.exits import INTERRUPTED
from redrive.cli.folding import folded
from redrive.cli.hints import hint
from redrive.cli.ids import given
from redrive.cli.output import Output, echo, on_terminal, say
from redrive.cli.place import Place, ask
from redrive.core.replay import Mode
from redrive.desk.preview import DryRun
from redrive.desk.replaying import Replay

__all__ = ["Act", "Asked", "Subject", "decide"]


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
        told = _told(self.found[id], plan)
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
        echo("\n".join(_told(self.found[id], plan)), err=True)

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


def _told(subject: Subject, plan: DryRun | Replay) -> list[str]:
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
