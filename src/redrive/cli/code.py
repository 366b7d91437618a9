"""`redrive code check` and `redrive runs export`: the code of an app against what runs recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.errors import CommandFailed, UsageError
from redrive.cli.hints import hint
from redrive.cli.options import current_user
from redrive.cli.output import Column, Output, echo, echo_err, field_columns, output_options
from redrive.cli.target import Target, run_on, target_options

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.worker.dry_execution import HistoryCheck


@click.group()
def code() -> None:
    """Check code before it is deployed.

    \b
    Examples:
      redrive code check shop:app
    """


@code.command(short_help="Check whether all open runs fit the code of an app.")
@click.argument("app_name", metavar="MODULE:APP")
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Up to N runs of each workflow.  [default: all]"
)
@click.option("--url", metavar="URL", help="The store, or a server with its token.  [default: the app's]")
@output_options
def check(app_name: str, sample: int | None, url: str | None, output: Output) -> None:
    """Walk the workflows of MODULE:APP through the records of all open runs, and list the runs that do not fit.

    No step is called and nothing is changed. Exit code 1: at least one run does not fit. On a server, the token needs
    the permission to see payloads, and the server's audit log records the use of it.

    \b
    Examples:
      redrive code check shop:app
      redrive code check shop:app --sample 100 --url https://redrive.example.org
    """
    target = Target(url=url, app_name=app_name)
    app = target.app()

    async def look(found: Redrive) -> list[HistoryCheck]:
        from redrive.app.code_check import check_code

        return [each async for each in check_code(app, found.runs, sample=sample)]

    checks = run_on(target, look)
    wrong = [each for each in checks if not each.fits]
    columns: list[Column[HistoryCheck]] = [
        *field_columns(RUN="run_id", WORKFLOW="workflow", VERSION="version", ENTRY="entry"),
        Column("RESULT", lambda each: each.verdict.value),
        Column("WHY", lambda each: str(each.reason), sentence=True),
    ]
    output.list(wrong, columns, id=lambda each: each.run_id, empty=f"{_count(len(checks))}. All fit.", runs=len(checks))
    if wrong:
        advice = "keep the old path with redrive.patched(...), or let these runs end first"
        raise CommandFailed(f"{len(wrong)} of {_count(len(checks))} do not fit this code: {advice}")


def _count(runs: int) -> str:
    return f"{runs:,} open run" if runs == 1 else f"{runs:,} open runs"


@click.command(short_help="Write the histories of runs, for tests of code.")
@click.option("--histories", is_flag=True, required=True, help="Write what runs recorded, one line of JSON for each.")
@click.option("--per-workflow", type=click.IntRange(min=1), metavar="N", default=20, show_default=True)
@click.option("--workflow", "names", multiple=True, metavar="NAME", help="Only this workflow; may be repeated.")
@click.option("--seal", metavar="KEY", help="Encrypt each line with this key, as REDRIVE_ENCRYPTION_KEYS has it.")
@target_options
def export(
    histories: bool, per_workflow: int, names: tuple[str, ...], seal: str | None, target: Target, **_: Any
) -> None:
    """Write what runs recorded: of each workflow the newest open runs, then the newest ended ones.

    The lines contain inputs and results as the code saw them, in clear unless --seal is given. The audit log records
    who exported them. redrive.testing.replay_histories checks code against the file.

    \b
    Examples:
      redrive runs export --histories > histories.jsonl
      redrive runs export --histories --per-workflow 50 --seal "$KEY" > histories.jsonl
    """
    from redrive.store.encryption.keyring import Keyring

    ring = None
    if seal is not None:
        ring = Keyring.parse(seal)
        if ring is None or ring.writes is None:
            raise UsageError("--seal is empty: give a key, such as one line of `openssl rand -base64 32`")

    async def write(app: Redrive) -> int:
        from redrive.app.code_check import select_histories

        known = names or [each.name for each in await app.workflows.list()]
        written = 0
        async for each in select_histories(app.runs, known, per_workflow, current_user()):
            line = each.to_line()
            echo(line if ring is None else ring.seal(line, each.tenant))
            written += 1
        return written

    if not run_on(target, write):
        echo_err(f"No run has a history yet. To see runs: {hint('runs', 'list')}")
