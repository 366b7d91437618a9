"""`redrive dlq show` and `list`: the page an accountant reads."""

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from console import Terminal, piped
from dlq_kit import Shop, working

from redrive import Redrive
from redrive.chores.maintenance import Purger
from redrive.cli.dlq.letter_page import render_letter
from redrive.core.states import LetterStatus
from redrive.reasons import ReasonCode
from redrive.record_fields import replace


def section(page: str, title: str) -> list[str]:
    """Return the lines below a title, up to the next empty line."""
    return page.split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()


def test_the_page_shows_the_failure_its_reason_and_the_next_commands(shop: Shop) -> None:
    page = piped("dlq", "show", shop.down).output
    head = page.split("\n\n")
    assert head[0] == f"dead letter dl-{shop.down}  sell  OPEN"
    what, why, stands = head[1].splitlines()
    assert what.endswith("step 'charge' of 'sell' failed, after 2 attempts: the bank does not \\u001b[31manswer")
    assert why == "  All attempts failed."
    assert stands == "  It needs a decision."
    assert section(page, "step results") == ['  0 reserve: "R-7"', "  1 charge: failed, no result"]
    assert '        "card_token": "••••••"' in section(page, "input")
    assert section(page, "activity")[0].endswith("redrive: A failure was recorded")
    assert section(page, "next commands")[:3] == [
        f"  run it again: redrive dlq replay dl-{shop.down}",
        f"  correct it:   redrive dlq edit dl-{shop.down}",
        f"  preview:      redrive dlq replay dl-{shop.down} --dry-run",
    ]


def test_a_data_error_suggests_correcting_the_input_first(shop: Shop) -> None:
    page = piped("dlq", "show", shop.wrong).output
    assert "Retrying does not help with this error." in page
    assert section(page, "next commands")[0] == f"  correct it:   redrive dlq edit dl-{shop.wrong}"


def test_the_page_lists_all_actions_in_order(shop: Shop) -> None:
    assert piped("dlq", "assign", shop.wrong, "--to", "kim", "--by", "lee").exit_code == 0
    assert piped("dlq", "comment", shop.wrong, "asked the customer", "--by", "kim").exit_code == 0
    assert piped("dlq", "tag", shop.wrong, "vat", "urgent", "--by", "kim").exit_code == 0
    with working(shop):
        patch = ["--patch", '{"order": {"country": "XX"}}', "--reason", "a guess"]
        assert piped("dlq", "replay", shop.wrong, *patch, "--by", "kim", "--wait").exit_code == 1
    page = piped("dlq", "show", shop.wrong).output
    assert "It was run again once and failed again. It needs a decision." in page
    assert "  owner        kim\n  tags         vat urgent\n" in page
    assert [line[19:] for line in section(page, "activity")[1:4]] == [
        "lee: assigned it to kim",
        "kim: commented: asked the customer",
        "kim: tagged it: vat, urgent",
    ]
    assert section(page, "activity")[4].endswith("kim: ran it again, from where it failed: failed again (a guess)")
    assert len(section(page, "activity")) == 6
    assert section(page, "activity")[5] == '      ~ order.country: "PO" becomes "XX"'
    assert "  2 book, replaced by a replay: failed, no result" in section(page, "step results")


def test_a_closed_letter_shows_who_closed_it(shop: Shop) -> None:
    assert piped("dlq", "resolve", shop.down, "--by", "kim", "--reason", "refunded").exit_code == 0
    page = piped("dlq", "show", shop.down).output
    assert "It was closed as RESOLVED by kim: refunded. Nothing is left to do." in page
    assert section(page, "next commands") == [f"  run it anyway: redrive runs retry {shop.down}"]


def test_a_replaying_letter_names_its_run(shop: Shop) -> None:
    assert piped("dlq", "replay", shop.down).exit_code == 0
    page = piped("dlq", "show", shop.down).output
    assert f"It is running again, as run {shop.down}." in page
    assert section(page, "next commands") == [f"  follow it: redrive runs watch {shop.down}"]


def test_a_letter_with_a_successful_replay_names_its_run(shop: Shop) -> None:
    with working(shop):
        assert piped("dlq", "replay", shop.down, "--wait").exit_code == 0
    page = piped("dlq", "show", shop.down).output
    assert section(page, "activity")[1].endswith("from where it failed: it succeeded")
    assert section(page, "next commands") == [f"  see how it ended: redrive runs show {shop.down}"]


def test_a_letter_with_a_single_step_replay_says_that_the_run_is_not_finished(shop: Shop) -> None:
    with working(shop):
        assert piped("dlq", "replay", shop.down, "--mode", "step_only", "--wait").exit_code == 0
        page = piped("dlq", "show", shop.down).output
        assert "Its failed step alone was run again and succeeded. The run is not finished." in page
        assert "Nothing is left to do" not in page
        assert section(page, "next commands") == [f"  continue it: redrive runs retry {shop.down}"]
        refused = piped("dlq", "ignore", shop.down)
        assert f"To continue it: redrive runs retry {shop.down}" in refused.stderr
        assert piped("runs", "retry", shop.down, "--wait").exit_code == 0
    page = piped("dlq", "show", shop.down).output
    assert "It was run again and succeeded. Nothing is left to do." in page
    assert section(page, "next commands") == [f"  see how it ended: redrive runs show {shop.down}"]


def test_a_letter_with_a_cancelled_replay_says_that_its_work_was_not_done(shop: Shop) -> None:
    assert piped("dlq", "replay", shop.down).exit_code == 0
    assert piped("runs", "cancel", shop.down).exit_code == 0
    page = piped("dlq", "show", shop.down).output
    assert "It was run again and cancelled before it ended. Its work was not done" in page
    assert "Nothing is left to do" not in page
    assert any(line.endswith("from where it failed: it was cancelled") for line in section(page, "activity"))
    assert section(page, "next commands") == [f"  see how it ended: redrive runs show {shop.down}"]


def expire(shop: Shop) -> None:
    """Set the expiry of all letters to the past and run the purger."""
    with closing(sqlite3.connect(shop.folder / "shop.db")) as con, con:
        con.execute("UPDATE letters SET expires_at = 1")

    async def notice() -> None:
        async with Redrive(shop.url).client() as app:
            await Purger(app.runtime.store, app.runtime.clock, app.settings).run_once()

    asyncio.run(notice())


def test_an_expired_letter_says_that_its_work_was_not_done(shop: Shop) -> None:
    expire(shop)
    assert shop.letter(shop.down).status == "EXPIRED"
    page = piped("dlq", "show", shop.down).output
    assert "It expired without a decision. Its work was not done." in page
    assert "Nothing is left to do" not in page
    assert section(page, "next commands") == [f"  run it again: redrive runs retry {shop.down}"]
    with working(shop):
        assert piped("runs", "retry", shop.down, "--wait").exit_code == 0
    assert "and succeeded. Nothing is left to do." in piped("dlq", "show", shop.down).output


def test_an_expired_letter_without_its_run_offers_no_command(shop: Shop) -> None:
    expire(shop)
    page = "\n".join(render_letter(replace(shop.letter(shop.down), purged=True)))
    assert "Its work was not done. Its run was purged, so it cannot run again." in page
    assert "next commands" not in page


@pytest.mark.parametrize(
    ("resolution", "words"),
    [
        (ReasonCode.REPLAY_SUCCEEDED, "and succeeded. Nothing is left to do."),
        (ReasonCode.STEP_REPLAY_SUCCEEDED, "succeeded. The run is not finished."),
        (ReasonCode.RUN_CANCELLED, "Its work was not done"),
        (ReasonCode.ROLLED_BACK, "Its run was rolled back. Nothing is left to do."),
    ],
)
def test_a_letter_closed_by_the_engine_shows_the_outcome_without_its_replays(
    shop: Shop, resolution: ReasonCode, words: str
) -> None:
    letter = shop.letter(shop.down)
    closed = replace(
        letter,
        status=LetterStatus.RESOLVED,
        closed_at=letter.failed_at,
        closed_by="redrive",
        resolution_code=resolution,
    )
    assert words in "\n".join(render_letter(closed))


def test_a_letter_closed_by_a_user_after_a_replay_shows_the_user_s_reason(shop: Shop) -> None:
    with working(shop):
        assert piped("dlq", "replay", shop.wrong, "--wait").exit_code == 1
    assert piped("dlq", "resolve", shop.wrong, "--by", "kim", "--reason", "booked by hand").exit_code == 0
    page = piped("dlq", "show", shop.wrong).output
    assert "It was closed as RESOLVED by kim: booked by hand. Nothing is left to do." in page


def test_revealing_hidden_values_is_audited(shop: Shop) -> None:
    hidden = json.loads(piped("dlq", "show", shop.down, "--json").output)
    assert hidden["input"]["order"]["card_token"] == "••••••"
    shown = json.loads(piped("dlq", "show", shop.down, "--json", "--reveal", "--by", "kim").output)
    assert shown["input"]["order"]["card_token"] == "tok-7"
    (line,) = json.loads(piped("audit", "list", "--event", "dlq.revealed", "--json").output)["items"]
    assert (line["by"], line["letter"]) == ("kim", f"dl-{shop.down}")


def test_no_line_of_the_page_is_wider_than_the_terminal(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    page = terminal("dlq", "show", shop.down)
    assert page.end() == 0
    prose = page.text.split("for developers")[0] + page.text.split("next commands")[1]
    assert max(map(len, prose.splitlines())) <= 80


@pytest.mark.parametrize("option", [("--tag", "vat"), ("--owner", "kim")])
def test_letters_are_found_by_tag_and_owner(shop: Shop, option: tuple[str, str]) -> None:
    assert piped("dlq", "list", "-q", *option).output == ""
    assert piped("dlq", "tag", shop.down, "vat").exit_code == 0
    assert piped("dlq", "assign", shop.down, "--to", "kim").exit_code == 0
    assert piped("dlq", "list", "-q", *option).output == f"dl-{shop.down}\n"


def test_the_list_of_all_letters_shows_their_status(shop: Shop) -> None:
    assert piped("dlq", "ignore", shop.down).exit_code == 0
    lines = piped("dlq", "list", "--status", "all").output.splitlines()
    assert [line.split("\t")[10] for line in lines] == ["OPEN", "IGNORED"]


def test_the_list_shows_the_error_message(shop: Shop, terminal: Callable[..., Terminal]) -> None:
    table = terminal("dlq", "list")
    assert table.end() == 0
    assert "    no VAT rate for 'PO' (step 'book' failed once" in table.text
    assert piped("dlq", "list").output.split("\t")[6] == "no VAT rate for 'PO'"


def test_an_unknown_letter_names_the_list_command(shop: Shop) -> None:
    result = piped("dlq", "show", "dl-01m7gtc6tf9mkk1pvk7wg972gw")
    assert result.exit_code == 3
    assert "`redrive dlq list` shows those that are open" in result.stderr
