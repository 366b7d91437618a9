"""One decision on all letters that match a filter: say how many, ask, begin a set, wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import click

from redrive.app import Redrive
from redrive.cli.change import asking
from redrive.cli.dlq.deciding import Asked
from redrive.cli.dlq.planned import sentences
from redrive.cli.dlq.sets import follow, told
from redrive.cli.exits import REFUSED, Stopped
from redrive.cli.hints import hint, worker_hint
from redrive.cli.output import on_terminal, say
from redrive.cli.place import Place, ask
from redrive.core.states import LetterStatus
from redrive.desk.sets import DryRunOfMany, LetterSet
from redrive.frozen import dataclass
from redrive.store.selection import LetterFilter

__all__ = ["Many", "decide_on_many"]

_TYPED = 100  # from here on the number is typed, not agreed to
_REFUSALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """A decision on many letters: its words, how it is begun, and how it is tried where that can be done."""

    verb: str
    begin: Callable[[Redrive], Awaitable[LetterSet]]
    preview: Callable[[Redrive], Awaitable[DryRunOfMany]] | None = None


def decide_on_many(place: Place, where: LetterFilter, many: Many, asked: Asked) -> None:
    """Begin a set, unless it is only tried or nothing matches; `--wait` follows it."""
    begun = ask(place, lambda app: _decide(app, where, many, asked))
    if begun is None:
        return
    if asked.wait:
        follow(place, begun.id, asked.output)
        return
    asked.output.done(begun.id, begun, told(begun))
    if on_terminal():
        say(f"To follow it: {hint('dlq', 'sets', 'show', begun.id)}")


async def _decide(app: Redrive, where: LetterFilter, many: Many, asked: Asked) -> LetterSet | None:
    count = await app.dlq.count(replace(where, status=LetterStatus.OPEN))
    if asked.change.dry_run and many.preview is not None:
        plan = await many.preview(app)
        asked.output.done("", plan, "\n".join([*_plan(plan, many.verb), "Nothing was changed."]))
        return None
    if asked.change.dry_run or count == 0:
        would = (
            f"would {many.verb} {_letters(count)}" if count else "no open letter matches, so nothing was done"
        )
        asked.output.done("", {"total": count}, would)
        return None
    _ask(count, many.verb, asked)
    begun = await many.begin(app)
    if not any(one.workers for one in await app.workflows.list()):
        say(f"No worker is alive: it waits until one is started: {worker_hint()}")
    return begun


def _ask(count: int, verb: str, asked: Asked) -> None:
    """A large number is typed by whoever means it."""
    change, what = asked.change, f"{verb.capitalize()} {_letters(count)}"
    if count < _TYPED or change.yes:
        change.confirm(what)
        return
    change.expect_yes(f"nothing was changed: say --yes to {verb} {_letters(count)} without being asked")
    with asking():
        typed = click.prompt(f"{what}? Type {count} to go on", default="", show_default=False, err=True)
    if typed.replace(",", "") != str(count):
        raise Stopped("nothing was changed", REFUSED)


def _plan(plan: DryRunOfMany, verb: str) -> list[str]:
    lines = [f"would {verb} {_how_many(plan)}"]
    if plan.refused:
        lines.append(f"{len(plan.refused):,} would be refused:")
        lines += (f"  {refusal.letter_id}: {refusal.reason}" for refusal in plan.refused[:_REFUSALS])
    if plan.sample:
        lines += ["one of the others:" if plan.refused else "for example:", *sentences(plan.sample[0])]
    return lines


def _how_many(plan: DryRunOfMany) -> str:
    """The letters that the decision would be made on, as far as it was tried."""
    able = f"{plan.checked - len(plan.refused):,} of"
    if plan.checked < plan.total:
        return f"{able} the first {plan.checked:,} of {_letters(plan.total)}; the others were not tried"
    return f"{able} {_letters(plan.total)}" if plan.refused else _letters(plan.total)


def _letters(count: int) -> str:
    return f"{count:,} dead letter{'s' * (count != 1)}"
