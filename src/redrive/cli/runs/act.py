"""`redrive runs start` and `cancel`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from redrive.cli.change import Change, changing, each
from redrive.cli.output import Output, on_terminal, say, shown
from redrive.cli.place import Place, ask, at_a_place

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.desk.shapes import Run

__all__ = ["cancel", "start"]

_BATCH = 500


@click.command()
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
@click.option("--delay", metavar="TIME", help="Begin so much later, such as 10m.")
@click.option("--deadline", metavar="TIME", help="End within this time, such as 2h.")
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
    or in $REDRIVE_APP. A worker executes the run; none needs to be alive now.

    \b
    Examples:
      redrive runs start fulfil --input '{"order": "A-1"}' --app shop:app
      redrive runs start fulfil --input @order.json --key A-1 --app shop:app
      redrive runs start fulfil --many orders.jsonl --app shop:app
    """
    from redrive.cli.inputs import one_input, read_lines

    if place.target is None:
        raise click.UsageError(
            f"starting {name!r} needs its code, to check the input: "
            "name the app with --app module:app or $REDRIVE_APP"
        )
    if many is not None and (text is not None or options["idempotency_key"]):
        raise click.UsageError("--many excludes --input and --key")
    dry_run = options.pop("dry_run")
    inputs = [one_input(text)] if many is None else list(read_lines(many))
    ids = ask(place, lambda app: _start(app, name, inputs, dry_run=dry_run, options=options))
    for id in ids:
        output.done(id, {"id": id, "workflow": name}, id)
    if dry_run:
        say(f"would start {len(inputs)} run{'s' * (len(inputs) != 1)} of {name!r}; nothing was started")
    elif on_terminal() and not output.json and not output.quiet and len(ids) == 1:
        say(f"Follow it: redrive runs watch {ids[0]}")


async def _start(
    app: Redrive, name: str, inputs: list[str], *, dry_run: bool, options: dict[str, Any]
) -> list[str]:
    from redrive.app import Start
    from redrive.cli.inputs import known_workflow

    workflow = known_workflow(app, name)
    given = {key: value for key, value in options.items() if value is not None}
    starts = [Start(*workflow.signature.decode(text), given) for text in inputs]
    if dry_run:
        return []
    ids: list[str] = []
    with click.progressbar(
        length=len(starts),
        label="starting",
        file=sys.stderr,
        hidden=len(starts) < 2 * _BATCH,
    ) as bar:
        for begin in range(0, len(starts), _BATCH):
            handles = await workflow.start_many(starts[begin : begin + _BATCH])
            ids += (handle.id for handle in handles)
            bar.update(len(handles))
    return ids


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

    wanted = given(ids)
    change.confirm(f"Cancel {_named(wanted)}, for good")

    async def work(app: Redrive) -> None:
        async def one(id: str) -> None:
            run = await app.runs.get(await find_run(app, id))
            if change.dry_run:
                output.done(run.id, run, f"would cancel {run.id}, which is {run.status}{_can_it(run)}")
                return
            run = await app.runs.cancel(run.id, by=change.by, reason=reason)
            output.done(run.id, run, f"cancelled {run.id}")

        await each(wanted, one)

    ask(place, work)


def _named(ids: list[str]) -> str:
    return f"run {ids[0]}" if len(ids) == 1 else f"{len(ids)} runs"


def _can_it(run: Run) -> str:
    from redrive.core.states import FINAL

    return ": too late, it has ended" if run.status in FINAL else ""
