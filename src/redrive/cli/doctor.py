"""`redrive doctor`: is everything in order, and what to do where it is not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from redrive.cli.messages import FAILED
from redrive.cli.output import Output, echo, escape_line, fold_text, output_options, style_text
from redrive.cli.target import Target, target_options

if TYPE_CHECKING:
    from redrive.cli.doctor_checks import Finding

_LEVEL_SIGNS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command(short_help="Is everything in order? If not, what to do.")
@output_options
@target_options
def doctor(place: Target, output: Output) -> None:
    """Check store, schema, clock, workers, late runs, schedules, messages, mail, webhooks, and security.

    Exit code 1 if something is wrong; each finding says what to do. --quiet prints what is wrong only.
    Of a server: whether it answers, what the token allows, and what waits.

    \b
    Examples:
      redrive doctor
      redrive doctor --json --url postgresql://shop@db/shop
    """
    from redrive.cli.messages import report_errors

    with report_errors():
        findings = _collect_findings(place)
    wrong = any(finding.level == "wrong" for finding in findings)
    if output.json:
        output.object({"ok": not wrong, "findings": findings})
    else:
        for finding in findings:
            if not output.quiet or finding.level == "wrong":
                _print_finding(finding)
    if wrong:
        raise click.exceptions.Exit(FAILED)


def _collect_findings(place: Target) -> list[Finding]:
    import asyncio

    from redrive.cli.doctor_checks import check_store
    from redrive.cli.doctor_remote import check_notifications

    server = place.server()
    if server is not None:
        from redrive.cli.doctor_remote import check_server

        return asyncio.run(check_server(server))
    app = place.app()
    findings = asyncio.run(check_store(app.settings.url))
    if any(each.level == "wrong" and each.check in ("store", "schema") for each in findings):
        return findings
    from redrive.cli.hardening import check_hardening

    # A setting that cannot be read keeps the app itself from looking further.
    hardening = asyncio.run(check_hardening(app))
    return [*findings, *hardening, *asyncio.run(check_notifications(app))]


def _print_finding(finding: Finding) -> None:
    sign, colour = _LEVEL_SIGNS[finding.level]
    text = fold_text(f"{sign} {finding.check + ':':<10} {escape_line(finding.text)}", sys.stdout, deeper=" " * 13)
    echo(style_text(sign, fg=colour) + text.removeprefix(sign))
    if finding.advice:
        echo(fold_text(f"    {escape_line(finding.advice)}", sys.stdout))
