"""`redrive runs start` and `cancel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from redrive.cli.change import Change, changing, end, tried
from redrive.cli.hints import hint
from redrive.cli.moment import SPAN
from redrive.cli.output import Output, on_terminal, say, shown
from redrive.cli.place import Place, ask, at_a_place
from redrive.cli.runs.elsewhere import progress, start_elsewhere

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.shapes import Run

__all__ = ["cancel", "start"]

_BATCH = 500


class _Start(click.Command):
    """Says where a workflow's own parameters belong when one is given as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-")
            raise click.UsageError(
                f"{error.format_message()} Parameters of the workflow go into --input: '{{\"{name}\": ...}}'",
                ctx,
            ) from error


@click.command(cls=_Start)
@click.argument("name", metavar="WORKFLOW")
@click.option(
    "--input", "text", metavar="JSON", help="An object from parameter to value; @FILE reads a file."
)
@click.option(
    "--many",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Start one run for each line, each the input of one; - is standard input.",
)
@click.option("--tenant", metavar="NAME", help="Whose run it is.  [default: default]")
@click.option(
    "--key", "idempotency_key", metavar="KEY", help="Idempotency key: the same key is the same run."
)
@click.option("--event", metavar="ID", help="The event that starts it: the same event is the same run.")
@click.option("--stream", metavar="NAME", help="The stream that --event is of.")
@click.option("--delay", type=SPAN, metavar="TIME", help="Begin so much later, such as 10m.")
@click.option("--deadline", type=SPAN, metavar="TIME", help="End within this time, such as 2h.")
@click.option("--priority", type=int, metavar="N", help="Larger is more urgent.  [default: 0]")
@click.option("--queue", metavar="NAME", help="The queue.  [default: default]")
@click.option("--correlation-id", metavar="ID", help="An id of yours to find it by.")
@click.option("--dry-run", is_flag=True, help="Check the input, and start nothing.")
@shown
@at_a_place
def start(
    name: str, text: str | None, many: TextIO | None, place: Place, output: Output, **options: Any
) -> None:
    """Start a run of WORKFLOW and print its id.

    The input is checked against the workflow's types, so its code is needed: name the app with --app
    or in $REDRIVE_APP. A server checks it itself. A worker executes the run; none needs to be alive now.

    \b
    Examples:
      redrive runs start fulfil --input '{"order": "A-1"}' --app shop:app
      redrive runs start fulfil --input @order.json --key A-1 --app shop:app
      redrive runs start fulfil --input @event.json --stream orders --event e-17 --app shop:app
      redrive runs start fulfil --many orders.jsonl --app shop:app
    """
    from redrive.cli.inputs import one_input, read_lines

    elsewhere = place.server() is not None
    if place.target is None and not elsewhere:
        raise click.UsageError(
            f"starting {name!r} needs its code, to check the input: "
            "name the app with --app module:app or $REDRIVE_APP"
        )
    if many is not None and (text is not None or options["idempotency_key"] or options["event"]):
        raise click.UsageError("--many excludes --input, --key and --event")
    if (options["event"] is None) != (options["stream"] is None):
        raise click.UsageError(
            "--event and --stream belong together: the id of an event, and of which stream"
        )
    if options["event"] is not None and options["idempotency_key"] is not None:
        raise click.UsageError("--event excludes --key: an event is its own key")
    dry_run = options.pop("dry_run")
    inputs = [one_input(text)] if many is None else list(read_lines(many))
    begin = start_elsewhere if elsewhere else _start
    ids = ask(place, lambda app: begin(app, name, inputs, dry_run=dry_run, options=options))
    for id in ids:
        output.done(id, {"id": id, "workflow": name}, id)
    if dry_run:
        say(f"would start {len(inputs)} run{'s' * (len(inputs) != 1)} of {name!r}; nothing was started")
    elif on_terminal() and not output.json and not output.quiet and len(ids) == 1:
        say(f"Follow it: {hint('runs', 'watch', ids[0])}")


async def _start(
    app: Redrive, name: str, inputs: list[str], *, dry_run: bool, options: dict[str, Any]
) -> list[str]:
    from redrive.app import Start
    from redrive.cli.inputs import arguments, known_workflow

    workflow = known_workflow(app, name)
    given = {key: value for key, value in options.items() if value is not None}
    event = (given.pop("stream", ""), given.pop("event", ""))
    with progress("checking", len(inputs)) as bar:
        starts = [Start(*arguments(workflow, text), given) for text in _counted(inputs, bar)]
    if dry_run:
        return []
    if any(event):
        return [(await workflow.receive(event, *each.args, **each.kwargs, **given)).id for each in starts]
    ids: list[str] = []
    with progress("starting", len(starts)) as bar:
        for begin in range(0, len(starts), _BATCH):
            handles = await workflow.start_many(starts[begin : begin + _BATCH])
            ids += (handle.id for handle in handles)
            bar.update(len(handles))
    return ids


def _counted(inputs: list[str], bar: Any) -> Iterator[str]:
    """The inputs one by one, counted in batches: a bar that moves at each would cost more than the work."""
    for number, text in enumerate(inputs, 1):
        yield text
        if number % _BATCH == 0 or number == len(inputs):
            bar.update((number - 1) % _BATCH + 1)


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="RUN...")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the record.")
@changing
@shown
@at_a_place
def cancel(ids: tuple[str, ...], reason: str, change: Change, place: Place, output: Output) -> None:
    """Cancel runs for good. `-` reads ids from standard input.

    \b
    Examples:
      redrive runs cancel 01k9x7 --reason "ordered twice"
      redrive runs list -q --workflow remind | redrive runs cancel - --yes
    """
    from redrive.cli.ids import find_run, given

    async def work(app: Redrive) -> None:
        found: dict[str, Run] = {}

        async def find(id: str) -> None:
            run = await app.runs.get(await find_run(app, id))
            found[run.id] = run

        async def one(id: str) -> None:
            if change.dry_run:
                run = found[id]
                output.done(id, run, f"would cancel {id}, which is {run.status}{_can_it(run)}")
                return
            output.done(id, await app.runs.cancel(id, by=change.by, reason=reason), f"cancelled {id}")

        missing = await tried(given(ids), find)
        if found:
            change.confirm(f"Cancel {_named(list(found.values()))}, for good")
        end(max(missing, await tried(list(found), one)))

    ask(place, work)


def _named(runs: list[Run]) -> str:
    if len(runs) == 1:
        return f"run {runs[0].id} ({runs[0].workflow}, {runs[0].status})"
    return f"{len(runs)} runs, {runs[0].id} to {runs[-1].id}"


def _can_it(run: Run) -> str:
    from redrive.core.states import FINAL

    return ": too late, it has ended" if run.status in FINAL else ""
