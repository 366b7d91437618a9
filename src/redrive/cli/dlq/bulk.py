"""Bulk actions: one decision on all letters that match a filter, and `redrive dlq bulk`, which follows them."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click
import msgspec

from redrive.cli.dlq.letter_selection import parse_rate_option
from redrive.cli.errors import FAILED, INTERRUPTED, NOT_FOUND, REFUSED, CommandFailed
from redrive.cli.hints import hint, worker_hint
from redrive.cli.options import ChangeOptions, find_bulk_id, interruptible_prompt
from redrive.cli.output import (
    Column,
    Output,
    as_json,
    echo_err,
    escape_line,
    field_columns,
    format_age,
    on_terminal,
    render_facts,
)
from redrive.cli.target import Listing, PageOptions, Target, common_options, decision_options, page_options, run_on

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.bulk import BulkAction, BulkItem, DryRunOfMany
    from redrive.store.filters import LetterFilter
    from redrive.store.result_page import Page

_POLL_INTERVAL = 0.3
_POLL_BACKOFF = 9  # pauses are this many times longer than a query: counting many letters takes long
_MAX_FAILURES_SHOWN = 10
_MAX_REFUSALS = 5
_TYPED_CONFIRMATION_ABOVE = 100  # for more, the user types the number instead of answering yes
_ACTION_TEXTS = {"REPLAY": "runs again", "RESOLVE": "resolves", "IGNORE": "ignores"}
_ACTION_VERBS = {"REPLAY": "run again", "RESOLVE": "resolve", "IGNORE": "ignore"}
_PAST_TENSES = {"stop": "stopped", "pause": "paused", "resume": "resumed", "change the rate of": "changed the rate of"}


@click.group("bulk", short_help="Follow and control bulk actions.")
def bulk_group() -> None:
    """Follow, pause, slow down and stop bulk actions.

    `dlq replay`, `resolve` and `ignore` with --all start a bulk action. Workers process its letters, each at most
    once. A bulk action continues after a crash or a restart.

    \b
    Examples:
      redrive dlq bulk list
      redrive dlq bulk show 01k9x7
      redrive dlq bulk pause 01k9x7
      redrive dlq bulk rate 01k9x7 10/s
      redrive dlq bulk stop 01k9x7
    """


@bulk_group.command("list")
@click.option("--tenant", metavar="NAME", help="Only bulk actions of this tenant.  [default: all]")
@page_options
@common_options
def list_(tenant: str | None, pages: PageOptions, output: Output, target: Target) -> None:
    """List bulk actions, newest first.

    \b
    Examples:
      redrive dlq bulk list
      redrive dlq bulk list --all --json
    """
    columns: list[Column[BulkAction]] = [
        Column("ID", lambda bulk: bulk.id),
        Column("WHAT", lambda bulk: _ACTION_VERBS[bulk.action]),
        Column("STATUS", lambda bulk: bulk.status.value),
        Column("DONE", lambda bulk: f"{bulk.done + bulk.failed:,} of {bulk.total:,}"),
        Column("REFUSED", lambda bulk: bulk.failed or None),
        *field_columns(RATE="rate", BEGUN="created_at", BY="by"),
        Column("REASON", lambda bulk: bulk.reason, sentence=True),
    ]
    listing: Listing[BulkAction] = Listing(
        fetch=lambda app, limit, cursor: app.dlq.sets(limit=limit, cursor=cursor, tenant=tenant),
        columns=columns,
        id=lambda bulk: bulk.id,
        empty="No bulk actions yet.",
    )
    pages.show(target, listing, output)


@bulk_group.command()
@click.argument("id", metavar="ID")
@click.option("--refused", is_flag=True, help="List the letters that were refused, and why.")
@page_options
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until every letter is processed; exit code 1 if some were refused or it was stopped.",
)
@common_options
def show(id: str, refused: bool, pages: PageOptions, wait: bool, output: Output, target: Target) -> None:
    """Show the progress and the runs of a bulk action.

    ID is a whole id or the start of one, if no other id starts like it.

    \b
    Examples:
      redrive dlq bulk show 01k9x7 --wait
      redrive dlq bulk show 01k9x7 --refused
    """
    if wait:
        follow_bulk(target, id, output)
        return
    if not refused:
        _show_bulk(*run_on(target, lambda app: _load_with_failures(app, id)), output)
        return

    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[BulkItem]:
        bulk = await _load_bulk(app, id)
        return await app.dlq.set_items(bulk.id, status="FAILED", limit=limit, cursor=cursor)

    listing: Listing[BulkItem] = Listing(
        fetch=fetch,
        columns=[*field_columns(LETTER="letter_id", WHEN="at"), Column("WHY", lambda item: item.error, sentence=True)],
        id=lambda item: item.letter_id,
        empty="No letter of this bulk action was refused.",
    )
    pages.show(target, listing, output)


def _add_change_command(action: str, help: str) -> None:
    @bulk_group.command(action, help=f"{help}\n\n\b\nExamples:\n  redrive dlq bulk {action} 01k9x7")
    @click.argument("id", metavar="ID")
    @decision_options
    def command(id: str, change: ChangeOptions, output: Output, target: Target) -> None:
        _change_bulk(target, id, action, action, change, output)


_add_change_command("stop", "Stop a bulk action. Decisions that were made stay; `dlq bulk resume` processes the rest.")
_add_change_command(
    "pause", "Pause a bulk action until `dlq bulk resume`, over restarts too. Letters in progress are finished."
)
_add_change_command("resume", "Resume a paused or stopped bulk action at its next letter.")


@bulk_group.command()
@click.argument("id", metavar="ID")
@click.argument("rate", metavar="RATE")
@decision_options
def rate(id: str, rate: str, change: ChangeOptions, output: Output, target: Target) -> None:
    """Change how many letters a bulk action processes in a given time.

    RATE is a whole number per second, minute or hour, such as 50/s, 600/m or 100/h. `none` removes the
    limit. It holds for all workers together.

    \b
    Examples:
      redrive dlq bulk rate 01k9x7 10/s
      redrive dlq bulk rate 01k9x7 none
    """
    limit = None if rate.lower() == "none" else parse_rate_option(rate)
    _change_bulk(target, id, "rate", "change the rate of", change, output, limit)


def _change_bulk(
    target: Target, id: str, action: str, verb: str, change: ChangeOptions, output: Output, *arguments: str | None
) -> None:
    """Call `app.dlq.<action>_set` on a bulk action, after a question."""

    async def work(app: Redrive) -> BulkAction:
        bulk = await _load_bulk(app, id)
        details = f"{_ACTION_VERBS[bulk.action]}, remaining letters: {_format_remaining(bulk)}"
        change.confirm(f"{verb.capitalize()} bulk action {bulk.id} ({details})")
        if change.dry_run:
            return bulk
        changed: BulkAction = await getattr(app.dlq, f"{action}_set")(bulk.id, *arguments, by=change.by)
        return changed

    bulk = run_on(target, work)
    of_total = f" of {bulk.total:,}" if bulk.listed else ""
    done = f"{'would ' + verb if change.dry_run else _PAST_TENSES[verb]} bulk action {bulk.id}"
    output.done(bulk.id, _bulk_as_json(bulk), f"{done} after {bulk.done + bulk.failed:,}{of_total} letters")


def _format_remaining(bulk: BulkAction) -> str:
    # Workers list the letters of a bulk action after its start. Until they have finished, the number is a minimum.
    if not bulk.listed and not bulk.pending:
        return "not counted yet"
    return f"{bulk.pending:,}{'' if bulk.listed else ' or more'}"


def _bulk_as_json(bulk: BulkAction) -> dict[str, object]:
    return {**as_json(bulk), "pending": bulk.pending}


def describe_bulk(bulk: BulkAction) -> str:
    """Describe a bulk action in one line."""
    letters = "its letters"
    if bulk.total or bulk.listed:
        letters = f"{bulk.done:,} of {bulk.total:,} letter{'s' * (bulk.total != 1)}"
    refused = f", {bulk.failed:,} refused" if bulk.failed else ""
    rate = f", at most {bulk.rate}" if bulk.rate and bulk.ended_at is None else ""
    return f"bulk action {bulk.id} {_ACTION_TEXTS[bulk.action]} {letters}{refused}{rate}: {bulk.status}"


def follow_bulk(target: Target, id: str, output: Output) -> None:
    """Wait until every letter of a bulk action is processed; exit with 1 if some were refused or it was stopped."""
    import asyncio

    from redrive.store.bulk import BulkStatus

    async def wait(app: Redrive) -> tuple[BulkAction, list[BulkItem]]:
        clock = asyncio.get_running_loop().time
        hidden = output.json or output.quiet or not on_terminal()
        bulk, pause = await _load_bulk(app, id), _POLL_INTERVAL
        with click.progressbar(length=max(1, bulk.total), label="processed", file=sys.stderr, hidden=hidden) as bar:
            while bulk.ended_at is None:
                bar.length = max(1, bulk.total)
                bar.label = "processed" if bulk.paused_at is None else "paused"
                bar.update(bulk.done + bulk.failed - bar.pos)
                await asyncio.sleep(pause)
                started = clock()
                bulk = await _load_bulk(app, id)
                pause = max(_POLL_INTERVAL, _POLL_BACKOFF * (clock() - started))
            bar.update(bulk.done + bulk.failed - bar.pos)
        return await _load_with_failures(app, id)

    try:
        bulk, failures = run_on(target, wait)
    except KeyboardInterrupt:
        echo_err(f"\nThe bulk action continues. To look at it again: {hint('dlq', 'bulk', 'show', id)}")
        raise click.exceptions.Exit(INTERRUPTED) from None
    _show_bulk(bulk, failures, output)
    if bulk.failed or bulk.status is not BulkStatus.DONE:
        raise click.exceptions.Exit(FAILED)


async def _load_with_failures(app: Redrive, id: str) -> tuple[BulkAction, list[BulkItem]]:
    bulk = await _load_bulk(app, id)
    if not bulk.failed:
        return bulk, []
    return bulk, (await app.dlq.set_items(bulk.id, status="FAILED", limit=_MAX_FAILURES_SHOWN)).items


async def _load_bulk(app: Redrive, id: str) -> BulkAction:
    from redrive.errors import NotFound

    try:
        return await app.dlq.set(await find_bulk_id(app, id))
    except NotFound as error:
        raise CommandFailed(f"{error}; `{hint('dlq', 'bulk', 'list')}` shows them", NOT_FOUND) from error


def _show_bulk(bulk: BulkAction, failures: list[BulkItem], output: Output) -> None:
    from redrive.cli.replay_decision import describe_mode
    from redrive.time_values import format_duration

    at_least = f", at least {format_duration(bulk.seconds_left)}" if bulk.seconds_left else ""
    runs = {"succeeded": bulk.succeeded, "failed again": bulk.failed_again, "in progress": bulk.still_going}
    lines = [
        describe_bulk(bulk),
        *render_facts(
            started=f"{bulk.created_at:%Y-%m-%d %H:%M:%S} UTC, {format_age(bulk.created_at)}, by {bulk.by}",
            reason=bulk.reason,
            mode=None if bulk.mode is None else describe_mode(bulk.mode),
            remaining=f"{_format_remaining(bulk)}{at_least}" if bulk.ended_at is None else None,
            paused=None if bulk.paused_at is None else f"{format_age(bulk.paused_at)}, by {bulk.paused_by}",
            ended=None if bulk.ended_at is None else f"{bulk.ended_at:%Y-%m-%d %H:%M:%S} UTC",
            stopped_by=bulk.stopped_by,
            because=bulk.stopped_because,
            runs=", ".join(f"{count:,} {state}" for state, count in runs.items() if count) or None,
        ),
    ]
    if failures:
        lines += ["  refused", *(f"    {item.letter_id}: {escape_line(item.error or '')}" for item in failures)]
        if bulk.failed > len(failures):
            lines.append(f"  all of them:  {hint('dlq', 'bulk', 'show', bulk.id, '--refused')}")
    output.done(bulk.id, _bulk_as_json(bulk), "\n".join(lines))


class BulkDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision on many letters: its verb, its start, and its preview if it has one."""

    verb: str
    begin: Callable[[Redrive], Awaitable[BulkAction]]
    preview: Callable[[Redrive], Awaitable[DryRunOfMany]] | None = None


def run_bulk_decision(
    target: Target, where: LetterFilter, decision: BulkDecision, change: ChangeOptions, output: Output, *, wait: bool
) -> None:
    """Start a bulk action, unless it is a dry run or no letter matches; `--wait` follows it."""
    bulk = run_on(target, lambda app: _start_bulk(app, where, decision, change, output))
    if bulk is None:
        return
    if wait:
        follow_bulk(target, bulk.id, output)
        return
    output.done(bulk.id, bulk, describe_bulk(bulk))
    if on_terminal():
        echo_err(f"To follow it: {hint('dlq', 'bulk', 'show', bulk.id)}")


async def _start_bulk(
    app: Redrive, where: LetterFilter, decision: BulkDecision, change: ChangeOptions, output: Output
) -> BulkAction | None:
    from redrive.core.states import LetterStatus
    from redrive.record_fields import replace

    verb = decision.verb
    count = await app.dlq.count(replace(where, status=LetterStatus.OPEN))
    if change.dry_run and decision.preview is not None:
        plan = await decision.preview(app)
        output.done("", plan, "\n".join([*_render_bulk_plan(plan, verb), "Nothing was changed."]))
        return None
    letters = _format_letter_count(count)
    if change.dry_run or count == 0:
        text = f"would {verb} {letters}" if count else "no open letter matches, so nothing was done"
        output.done("", {"total": count}, text)
        return None
    question = f"{verb.capitalize()} {letters}"
    if count <= _TYPED_CONFIRMATION_ABOVE or change.yes:
        change.confirm(question)
    else:
        change.require_yes(f"nothing was changed: give --yes to {verb} {letters} without a question")
        with interruptible_prompt():
            typed = click.prompt(f"{question}? Type {count} to continue", default="", show_default=False, err=True)
        if typed.replace(",", "") != str(count):
            raise CommandFailed("nothing was changed", REFUSED)
    bulk = await decision.begin(app)
    if not any(workflow.workers for workflow in await app.workflows.list()):
        echo_err(f"No worker is running: the bulk action waits for one. To start one: {worker_hint()}")
    return bulk


def _render_bulk_plan(plan: DryRunOfMany, verb: str) -> list[str]:
    from redrive.cli.replay_decision import render_plan

    letters = _format_letter_count(plan.total)
    accepted = f"{plan.checked - len(plan.refused):,} of"
    if plan.checked < plan.total:
        letters = f"{accepted} the first {plan.checked:,} of {letters}; the others were not checked"
    elif plan.refused:
        letters = f"{accepted} {letters}"
    lines = [f"would {verb} {letters}"]
    if plan.refused:
        lines.append(f"{len(plan.refused):,} would be refused:")
        lines += (f"  {refusal.letter_id}: {refusal.reason}" for refusal in plan.refused[:_MAX_REFUSALS])
    if plan.sample:
        lines += ["one of the others:" if plan.refused else "for example:", *render_plan(plan.sample[0])]
    return lines


def _format_letter_count(count: int) -> str:
    return f"{count:,} dead letter{'s' * (count != 1)}"
