"""`redrive doctor`: is everything in order, and what to do where it is not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from redrive.cli.messages import FAILED
from redrive.cli.output import Output, clean, echo, folded, shown, styled
from redrive.cli.place import Place, at_a_place

if TYPE_CHECKING:
    from redrive.cli.doctor_checks import Finding

__all__ = ["doctor"]

_SIGNS = {"ok": ("✓", "green"), "note": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command(short_help="Is everything in order? If not, what to do.")
@shown
@at_a_place
def doctor(place: Place, output: Output) -> None:
    """Check store, schema, clock, workers, late runs, schedules, messages, mail, webhooks, and security.

    Exit code 1 if something is wrong; each finding says what to do. --quiet prints what is wrong only.
    Of a server: whether it answers, what the token allows, and what waits.

    \b
    Examples:
      redrive doctor
      redrive doctor --json --url postgresql://shop@db/shop
    """
    from redrive.cli.messages import explained

    with explained():
        findings = _examined(place)
    wrong = any(finding.level == "wrong" for finding in findings)
    if output.json:
        output.object({"ok": not wrong, "findings": findings})
    else:
        for finding in findings:
            if not output.quiet or finding.level == "wrong":
                _print(finding)
    if wrong:
        raise click.exceptions.Exit(FAILED)


def _examined(place: Place) -> list[Finding]:
    import asyncio

    from redrive.cli.doctor_checks import examine
    from redrive.cli.doctor_remote import examine_telling

    server = place.server()
    if server is not None:
        from redrive.cli.doctor_remote import examine_server

        return asyncio.run(examine_server(server))
    app = place.app()
    findings = asyncio.run(examine(app.settings.url))
    if any(each.level == "wrong" and each.check in ("store", "schema") for each in findings):
        return findings
    from redrive.cli.hardening import examine_hardening

    # A setting that cannot be read keeps the app itself from looking further.
    hardening = asyncio.run(examine_hardening(app))
    return [*findings, *hardening, *asyncio.run(examine_telling(app))]


def _print(finding: Finding) -> None:
    sign, colour = _SIGNS[finding.level]
    text = folded(f"{sign} {finding.check + ':':<10} {clean(finding.text)}", sys.stdout, deeper=" " * 13)
    echo(styled(sign, fg=colour) + text.removeprefix(sign))
    if finding.advice:
        echo(folded(f"    {clean(finding.advice)}", sys.stdout))
