"""`redrive doctor`: check a store or a server, with advice for each problem."""

from __future__ import annotations

import functools
import sys

import click

from redrive.cli.errors import FAILED, report_errors
from redrive.cli.output import Output, echo, escape_line, fold_text, style_text
from redrive.cli.target import Target, common_options

_LEVEL_SIGNS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command()
@functools.partial(common_options, quiet_help="Print only what is wrong.")
def doctor(target: Target, output: Output) -> None:
    """Check store, schema, clock, workers, overdue runs, schedules, messages, mail, webhooks, and security.

    Each problem is printed with advice. Exit code 1 if something is wrong.
    For a server it checks that it answers, the rights of the token, and the waiting runs and dead letters.

    \b
    Examples:
      redrive doctor
      redrive doctor --json --url postgresql://shop@db/shop
    """
    import asyncio

    from redrive.cli.doctor_checks import check_notifications, check_server, check_store

    with report_errors():
        server = target.server()
        if server is not None:
            findings = asyncio.run(check_server(server))
        else:
            app = target.app()
            findings = asyncio.run(check_store(app.settings.url))
            if not any(each.level == "wrong" and each.check in ("store", "schema") for each in findings):
                from redrive.cli.doctor_security import check_hardening

                # These checks open the store themselves: an app with an invalid setting cannot be opened.
                findings += asyncio.run(check_hardening(app))
                findings += asyncio.run(check_notifications(app))
    failed = any(finding.level == "wrong" for finding in findings)
    if output.json:
        output.object({"ok": not failed, "findings": findings})
    else:
        for finding in findings:
            if output.quiet and finding.level != "wrong":
                continue
            sign, colour = _LEVEL_SIGNS[finding.level]
            line = f"{sign} {finding.check + ':':<10} {escape_line(finding.text)}"
            echo(style_text(sign, fg=colour) + fold_text(line, sys.stdout, deeper=" " * 13).removeprefix(sign))
            if finding.advice:
                echo(fold_text(f"    {escape_line(finding.advice)}", sys.stdout))
    if failed:
        raise click.exceptions.Exit(FAILED)
