"""`redrive dlq sets`: decisions on many letters, and how far they are."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click
import msgspec

from redrive.cli.dlq.arguments import parse_rate_option
from redrive.cli.messages import FAILED, INTERRUPTED, NOT_FOUND, CommandFailed, hint
from redrive.cli.options import ChangeOptions, change_options
from redrive.cli.output import Column, Output, as_json, echo_err, escape_line, format_age, on_terminal, output_options
from redrive.cli.pager import Listing, PageOptions, page_options
from redrive.cli.place import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.bulk import LetterSet, SetItem
    from redrive.store.list_query import Page

_POLL_INTERVAL = 0.3
_POLL_BACKOFF = 9  # how many times longer than a look takes to leave a set alone: counting a large one takes long
_MAX_FAILURES_SHOWN = 10
_ACTION_TEXTS = {"REPLAY": "runs again", "RESOLVE": "resolves", "IGNORE": "ignores"}
_ACTION_VERBS = {"REPLAY": "run again", "RESOLVE": "resolve", "IGNORE": "ignore"}


@click.group(short_help="Follow decisions on many letters.")
def sets() -> None:
    """Follow decisions on many letters, pause them, slow them down, stop them.

    `dlq replay`, `resolve` and `ignore` with --all begin a set. Workers carry it out, each letter at most
    once; it survives crashes.

    \b
    Examples:
      redrive dlq sets list
      redrive dlq sets show 01k9x7
      redrive dlq sets pause 01k9x7
      redrive dlq sets rate 01k9x7 10/s
      redrive dlq sets stop 01k9x7
    """


@sets.command("list")
@click.option("--tenant", metavar="NAME", help="Only sets of this tenant.  [default: all]")
@page_options
@output_options
@target_options
def list_(tenant: str | None, pages: PageOptions, output: Output, place: Target) -> None:
    """List decisions on many letters, the newest first.

    \b
    Examples:
      redrive dlq sets list
      redrive dlq sets list --all --json
    """
    columns: list[Column[LetterSet]] = [
        Column("ID", lambda one: one.id),
        Column("WHAT", lambda one: _ACTION_VERBS[one.action]),
        Column("STATUS", lambda one: one.status.value),
        Column("DONE", lambda one: f"{one.done + one.failed:,} of {one.total:,}"),
        Column("REFUSED", lambda one: one.failed or None),
        Column("RATE", lambda one: one.rate),
        Column("BEGUN", lambda one: one.created_at),
        Column("BY", lambda one: one.by),
        Column("REASON", lambda one: one.reason, sentence=True),
    ]
    listing: Listing[LetterSet] = Listing(
        fetch=lambda app, limit, cursor: app.dlq.sets(limit=limit, cursor=cursor, tenant=tenant),
        columns=columns,
        id=lambda one: one.id,
        empty="Nobody decided on many letters at once yet.",
    )
    pages.show(place, listing, output)


@sets.command()
@click.argument("id", metavar="SET")
@click.option("--refused", is_flag=True, help="List the letters on which the decision was refused, and why.")
@page_options
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until every letter was decided on; exit code 1 if some were refused or it was stopped.",
)
@output_options
@target_options
def show(id: str, refused: bool, pages: PageOptions, wait: bool, output: Output, place: Target) -> None:
    """Show how far a set is, what was refused, and how the runs stand that it let go on.

    SET is an id, or a beginning of one that fits no other.

    \b
    Examples:
      redrive dlq sets show 01k9x7 --wait
      redrive dlq sets show 01k9x7 --refused
    """
    if wait:
        follow_bulk(place, id, output)
    elif refused:
        _list_refused(place, id, pages, output)
    else:
        one, failures = run_on(place, lambda app: _load_with_failures(app, id))
        output.done(one.id, _bulk_as_json(one), "\n".join(_render_bulk(one, failures)))


@sets.command()
@click.argument("id", metavar="SET")
@change_options
@output_options
@target_options
def stop(id: str, change: ChangeOptions, output: Output, place: Target) -> None:
    """Decide on no further letter of a set. What was decided stays so.

    \b
    Examples:
      redrive dlq sets stop 01k9x7
    """
    turn = _BulkChange("stop", "stopped", lambda app, id: app.dlq.stop_set(id, by=change.by))
    _change_bulk(place, id, turn, change, output)


@sets.command()
@click.argument("id", metavar="SET")
@change_options
@output_options
@target_options
def pause(id: str, change: ChangeOptions, output: Output, place: Target) -> None:
    """Decide on no further letter of a set until it is resumed. What is in hand is finished.

    It stays paused, over restarts too, until `dlq sets resume`.

    \b
    Examples:
      redrive dlq sets pause 01k9x7
    """
    turn = _BulkChange("pause", "paused", lambda app, id: app.dlq.pause_set(id, by=change.by))
    _change_bulk(place, id, turn, change, output)


@sets.command()
@click.argument("id", metavar="SET")
@change_options
@output_options
@target_options
def resume(id: str, change: ChangeOptions, output: Output, place: Target) -> None:
    """Go on with a set that was paused, where it was.

    \b
    Examples:
      redrive dlq sets resume 01k9x7
    """
    turn = _BulkChange("resume", "resumed", lambda app, id: app.dlq.resume_set(id, by=change.by))
    _change_bulk(place, id, turn, change, output)


@sets.command()
@click.argument("id", metavar="SET")
@click.argument("rate", metavar="RATE")
@change_options
@output_options
@target_options
def rate(id: str, rate: str, change: ChangeOptions, output: Output, place: Target) -> None:
    """Let a set decide on at most so many letters from now on, whichever nodes work on it.

    RATE is a whole number per second, minute or hour, such as 50/s, 600/m or 100/h; `none` is no limit.

    \b
    Examples:
      redrive dlq sets rate 01k9x7 10/s
      redrive dlq sets rate 01k9x7 none
    """
    wanted = None if rate.lower() == "none" else parse_rate_option(rate)
    turn = _BulkChange(
        "give another rate to", "gave another rate to", lambda app, id: app.dlq.rate_set(id, wanted, by=change.by)
    )
    _change_bulk(place, id, turn, change, output)


class _BulkChange(msgspec.Struct, frozen=True):
    """A change of a set that goes on: its verb, and how it reads when it is done."""

    verb: str
    done: str
    make: Callable[[Redrive, str], Awaitable[LetterSet]]


def _change_bulk(place: Target, id: str, turn: _BulkChange, change: ChangeOptions, output: Output) -> None:
    async def work(app: Redrive) -> LetterSet:
        one = await _load_bulk(app, id)
        change.confirm(
            f"{turn.verb.capitalize()} set {one.id} ({_ACTION_VERBS[one.action]}, {_format_remaining(one)} letters to go)"
        )
        return one if change.dry_run else await turn.make(app, one.id)

    one = run_on(place, work)
    verb = f"would {turn.verb}" if change.dry_run else turn.done
    of = f" of {one.total:,}" if one.listed else ""
    output.done(one.id, _bulk_as_json(one), f"{verb} set {one.id} after {one.done + one.failed:,}{of} letters")


def _format_remaining(one: LetterSet) -> str:
    """How many letters wait, as far as is known: workers list them on the way."""
    return f"{one.pending:,}{'' if one.listed else ' or more'}"


def describe_bulk(one: LetterSet) -> str:
    """A set in one line."""
    which = (
        f"{one.done:,} of {one.total:,} letter{'s' * (one.total != 1)}" if one.total or one.listed else "its letters"
    )
    refused = f", {one.failed:,} refused" if one.failed else ""
    pace = f", at most {one.rate}" if one.rate and one.ended_at is None else ""
    return f"set {one.id} {_ACTION_TEXTS[one.action]} {which}{refused}{pace}: {one.status}"


def follow_bulk(place: Target, id: str, output: Output) -> None:
    """Wait until every letter of a set was decided on; 1 if some were refused or it was stopped."""
    from redrive.store.bulk import SetStatus

    try:
        one, failures = run_on(place, lambda app: _wait_until_done(app, id, output))
    except KeyboardInterrupt:
        echo_err(f"\nThe set goes on. To look at it again: {hint('dlq', 'sets', 'show', id)}")
        raise click.exceptions.Exit(INTERRUPTED) from None
    output.done(one.id, _bulk_as_json(one), "\n".join(_render_bulk(one, failures)))
    if one.failed or one.status is not SetStatus.DONE:
        raise click.exceptions.Exit(FAILED)


async def _wait_until_done(app: Redrive, id: str, output: Output) -> tuple[LetterSet, list[SetItem]]:
    import asyncio

    clock = asyncio.get_running_loop().time
    hidden = output.json or output.quiet or not on_terminal()
    one, pause = await _load_bulk(app, id), _POLL_INTERVAL
    with click.progressbar(length=max(1, one.total), label="decided", file=sys.stderr, hidden=hidden) as bar:
        while one.ended_at is None:
            bar.length = max(1, one.total)
            bar.label = "decided" if one.paused_at is None else "paused"
            bar.update(one.done + one.failed - bar.pos)
            await asyncio.sleep(pause)
            begun = clock()
            one = await _load_bulk(app, id)
            pause = max(_POLL_INTERVAL, _POLL_BACKOFF * (clock() - begun))
        bar.update(one.done + one.failed - bar.pos)
    return await _load_with_failures(app, id)


async def _load_with_failures(app: Redrive, id: str) -> tuple[LetterSet, list[SetItem]]:
    one = await _load_bulk(app, id)
    failures = (await app.dlq.set_items(one.id, status="FAILED", limit=_MAX_FAILURES_SHOWN)).items if one.failed else []
    return one, failures


async def _load_bulk(app: Redrive, id: str) -> LetterSet:
    from redrive.cli.options import find_bulk_id
    from redrive.errors import NotFound

    try:
        return await app.dlq.set(await find_bulk_id(app, id))
    except NotFound as error:
        raise CommandFailed(f"{error}; `{hint('dlq', 'sets', 'list')}` shows them", NOT_FOUND) from error


def _render_bulk(one: LetterSet, failures: list[SetItem]) -> list[str]:
    from redrive.cli.dlq.decision import describe_mode
    from redrive.cli.runs.explain import render_facts

    lines = [
        describe_bulk(one),
        *render_facts(
            begun=f"{one.created_at:%Y-%m-%d %H:%M:%S} UTC, {format_age(one.created_at)}, by {one.by}",
            reason=one.reason,
            how=None if one.mode is None else describe_mode(one.mode),
            to_go=_describe_remaining(one) if one.ended_at is None else None,
            paused=None if one.paused_at is None else f"{format_age(one.paused_at)}, by {one.paused_by}",
            ended=None if one.ended_at is None else f"{one.ended_at:%Y-%m-%d %H:%M:%S} UTC",
            stopped_by=one.stopped_by,
            because=one.stopped_because,
            its_runs=_describe_runs(one),
        ),
    ]
    if failures:
        lines += ["  refused", *(f"    {item.letter_id}: {escape_line(item.error or '')}" for item in failures)]
        if one.failed > len(failures):
            lines.append(f"  all of them:  {hint('dlq', 'sets', 'show', one.id, '--refused')}")
    return lines


def _describe_remaining(one: LetterSet) -> str:
    """How many letters wait, and how long they take at the least."""
    from redrive.duration import format_duration

    least = one.seconds_left
    return (
        _format_remaining(one)
        if not least
        else f"{_format_remaining(one)}, which takes {format_duration(least)} or longer"
    )


def _describe_runs(one: LetterSet) -> str | None:
    """How the runs stand that the set let go on."""
    counts = {"succeeded": one.succeeded, "failed again": one.failed_again, "still going": one.still_going}
    return ", ".join(f"{count:,} {how}" for how, count in counts.items() if count) or None


def _list_refused(place: Target, id: str, pages: PageOptions, output: Output) -> None:
    async def fetch(app: Redrive, limit: int, cursor: str | None) -> Page[SetItem]:
        one = await _load_bulk(app, id)
        return await app.dlq.set_items(one.id, status="FAILED", limit=limit, cursor=cursor)

    listing: Listing[SetItem] = Listing(
        fetch=fetch,
        columns=[
            Column("LETTER", lambda item: item.letter_id),
            Column("WHEN", lambda item: item.at),
            Column("WHY", lambda item: item.error, sentence=True),
        ],
        id=lambda item: item.letter_id,
        empty="No letter of this set was refused.",
    )
    pages.show(place, listing, output)


def _bulk_as_json(one: LetterSet) -> dict[str, object]:
    return {**as_json(one), "pending": one.pending}
