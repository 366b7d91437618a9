"""What holds on every page in a real browser, and the stories that need no dead letter."""

from __future__ import annotations

import re

from browser_kit import ACCOUNTANT, DESKTOP, OWNER, PHONE, VISITOR, Looking, complaints, overflow
from browser_shop import FIXED, LETTERS, RIGHT_TO_LEFT, SCRIPT
from playwright.sync_api import Page, expect

from redrive.cli.demo.people import PASSWORD

PLACES = [
    "/app/",
    "/app/admin/dlq",
    "/app/admin/dlq?view=items",
    "/app/admin/dlq/dl-{wrong}",
    "/app/admin/dlq/dl-{wrong}/replay",
    "/app/admin/bulk-replays",
    "/app/admin/bulk-replays/new?workflow=settle_account",
    "/app/runs",
    "/app/runs/{good}",
    "/app/runs/{stuck}",
    "/app/runs/{hostile}",
    "/app/runs/{down}/again",
    "/app/circuits",
    "/app/circuits/one?key=standing-payments",
    "/app/policies",
    "/app/workflows",
    "/app/workers",
    "/app/audit",
    "/app/members",
    "/app/health",
    "/app/notifications",
    "/app/nowhere",
    "/api/docs",
    "/app/runs?tenant=*",
]


def test_axe_finds_nothing_and_a_phone_shows_all_of_it(looking: Looking) -> None:
    page = looking.person(OWNER)
    wrong: list[str] = []
    for path in PLACES:
        page.set_viewport_size(DESKTOP)
        page.emulate_media(color_scheme="light")
        page.goto(path.format(**looking.shop.ids))
        wrong += complaints(page)
        page.set_viewport_size(PHONE)
        page.emulate_media(color_scheme="dark")
        wrong += complaints(page) + [f"{path} is {wide} px too wide" for wide in [overflow(page)] if wide]
    assert wrong == []


def test_the_door_is_accessible(looking: Looking) -> None:
    page = looking.stranger(phone=True)
    page.goto("/app/runs")
    expect(page).to_have_url(re.compile("/app/login"))
    assert (complaints(page), overflow(page)) == ([], 0)


def sign_in(page: Page, email: str, password: str = PASSWORD) -> None:
    page.goto("/app/login")
    page.get_by_label("Address").fill(email)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()


def test_the_accountant_corrects_a_field_and_replays(looking: Looking) -> None:
    page = looking.stranger()
    sign_in(page, ACCOUNTANT)
    page.get_by_role("link", name="Dead letters").first.click()
    page.get_by_role("link", name="ship").click()
    page.locator("#letters tbody a").first.click()
    expect(page.get_by_text("'nowhere' is no address").first).to_be_visible()
    page.get_by_role("link", name="Correct and replay").click()
    address = page.get_by_label("address")
    address.fill("12 Mill Lane")
    page.get_by_label("price").fill("a lot")
    page.get_by_role("button", name="Replay 1 dead letter of fulfil").click()
    expect(page.get_by_text("Correct this first")).to_be_visible()  # and nothing that was typed is lost
    expect(address).to_have_value("12 Mill Lane")
    page.get_by_label("price").fill("19.90")
    page.get_by_role("button", name="Show what will happen").click()
    expect(page.locator("ins").get_by_text("12 Mill Lane")).to_be_visible()
    page.get_by_label("Why").fill("asked the customer")
    page.get_by_role("button", name="Replay 1 dead letter of fulfil").dblclick()  # double clicks are harmless
    expect(page.locator("#status").get_by_text("Resolved")).to_be_visible()  # by itself, once it is
    expect(page.locator("#history").get_by_text("it succeeded")).to_have_count(1)


def test_the_on_call_engineer_replays_a_group_after_a_fix(looking: Looking) -> None:
    page = looking.person(OWNER)
    page.goto("/app/admin/dlq")
    row = page.locator("#groups tr", has_text="transfer")
    (looking.shop.folder / FIXED).touch()
    row.get_by_role("link", name=re.compile("Replay [0-9]")).click()
    title = page.get_by_role("heading", level=1)
    expect(title).to_contain_text("dead letters")
    page.get_by_role("button", name=title.inner_text()).click()
    expect(page.get_by_text("Done", exact=True).first).to_be_visible()
    page.goto("/app/runs?workflow=settle_account&kind=good")
    expect(page.locator("#runs tbody tr").nth(LETTERS - 1)).to_be_visible()
    page.goto("/app/admin/dlq")
    expect(page.locator("#groups tr", has_text="charge")).to_be_visible()
    expect(row).to_have_count(0)


def test_the_owner_invites_a_viewer_who_can_change_nothing(looking: Looking) -> None:
    owner = looking.stranger()
    sign_in(owner, OWNER)
    owner.get_by_role("link", name="Members").click()
    owner.locator("summary", has_text="Invite somebody").click()
    sheet = owner.get_by_role("dialog")
    sheet.get_by_label("Address").fill("guest@shop.example")
    sheet.get_by_label("Role").first.select_option("Viewer")
    sheet.get_by_role("button", name="Invite").click()
    expect(owner.get_by_role("heading", name="guest@shop.example is invited")).to_be_visible()
    code = owner.locator("#secret").inner_text()
    owner.reload()
    expect(owner.get_by_text(code)).to_have_count(0)

    guest = looking.stranger()
    guest.goto("/app/login")
    guest.get_by_label("Address").fill("guest@shop.example")
    guest.get_by_text("I was given a code").click()
    guest.get_by_label("Code").fill(code)
    guest.get_by_label("New password").fill("a password of their own")
    guest.get_by_role("button", name="Sign in").click()
    expect(guest.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    expect(guest.get_by_role("link", name="Members")).to_have_count(0)
    for path in ("/app/runs/{down}", "/app/runs/{stuck}", "/app/circuits/one?key=standing-payments"):
        guest.goto(path.format(**looking.shop.ids))
        offered = guest.locator("main form[method=post], main a[href*=again]")
        expect(offered).to_have_count(0)
    guest.goto("/app/members")
    expect(guest.get_by_text("This needs the role Administrator or higher")).to_be_visible()
    refused = guest.evaluate(
        "path => fetch(path, {method: 'POST', body: new URLSearchParams({once: 'g1'})}).then(a => a.status)",
        f"/app/runs/{looking.shop.ids['parked']}/cancel",
    )
    assert refused == 403


def test_what_somebody_was_told_leads_to_it_and_is_read_once(looking: Looking) -> None:
    page = looking.person(ACCOUNTANT)
    page.goto("/app/notifications?unread=yes")
    row = page.locator("#inbox tr", has_text="fulfil failed at step ship")
    row.get_by_role("button").click()
    expect(page.locator("#inbox tr", has_text="fulfil failed at step charge")).to_be_visible()
    page.get_by_role("link", name="Not read yet").click()
    expect(row).to_have_count(0)
    page.get_by_role("link", name="fulfil failed at step charge").click()
    expect(page.get_by_role("heading", level=1, name="charge failed")).to_be_visible()


def test_nobody_sees_what_another_tenant_has(looking: Looking) -> None:
    visitor = looking.person(VISITOR)
    visitor.goto("/app/runs")
    expect(visitor.locator("#runs tbody tr")).to_have_count(2)
    visitor.goto(f"/app/runs/{looking.shop.ids['good']}")
    expect(visitor.get_by_role("heading", name="There is no such thing here")).to_be_visible()


def test_the_on_call_engineer_ends_a_rollback_that_stopped(looking: Looking) -> None:
    page = looking.person(OWNER)
    page.goto(f"/app/runs/{looking.shop.ids['stuck']}")
    expect(page.get_by_text("0 of 2 undone")).to_be_visible()
    page.locator("summary", has_text="Done by hand").click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_label("Why").fill("paid back in cash")
    sheet.get_by_role("button", name="take_deposit was undone by hand").click()
    expect(page.locator("#head").get_by_text("Rolled back")).to_be_visible()  # by itself, once it is
    expect(page.get_by_text("2 of 2 undone")).to_be_visible()
    page.goto("/app/audit?event=saga.")
    expect(page.get_by_text("paid back in cash")).to_be_visible()


def test_a_list_says_what_is_new_and_does_not_jump(looking: Looking) -> None:
    page = looking.person(ACCOUNTANT)
    page.goto("/app/runs")
    expect(page.locator("#live")).to_be_visible()
    first = page.locator("#runs tbody tr").first
    before = first.get_attribute("data-key")
    page.evaluate(
        """() => fetch('/api/v1/runs', {method: 'POST', headers: {'Content-Type': 'application/json'},
                  body: JSON.stringify({workflow: 'settle_account', input: {number: 99}})})"""
    )
    pill = page.get_by_text("1 new")
    expect(pill).to_be_visible()
    assert first.get_attribute("data-key") == before
    pill.click()
    expect(pill).to_be_hidden()
    assert page.locator("#runs tbody tr").first.get_attribute("data-key") != before


def test_content_that_bites_is_only_text(looking: Looking) -> None:
    page = looking.person(OWNER)
    page.goto(f"/app/runs/{looking.shop.ids['hostile']}")
    size = page.evaluate("document.documentElement.outerHTML.length")
    assert size < 400_000, "of a megabyte of input the page shows a beginning"
    assert "owned" not in page.title()
    expect(page.locator("main img, main script")).to_have_count(0)
    page.locator("summary", has_text="Input of hostile").click()
    expect(page.get_by_role("region", name="Input of hostile")).to_contain_text(SCRIPT)
    expect(page.get_by_text("hunter2")).to_have_count(0)
    page.get_by_text("Stack of attempt 1").click()
    stack = page.get_by_role("region", name="Stack of attempt 1")
    assert stack.inner_text().count("_deeper") > 100
    assert stack.evaluate("it => it.scrollHeight > it.clientHeight"), "500 lines scroll in their place"
    assert RIGHT_TO_LEFT[-4:] in page.content()
    assert overflow(page) == 0


def test_the_keyboard_alone_is_enough(looking: Looking) -> None:
    page = looking.stranger()
    page.goto("/app/login?next=/app/runs?kind=person")
    page.keyboard.type(OWNER)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    for key in "jjk":
        page.keyboard.press(key)
    wanted = page.locator("#runs tbody tr.current a")
    expect(wanted).to_be_focused()
    name = wanted.inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)
    page.goto(f"/app/runs/{looking.shop.ids['down']}")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1, name="Retry from the failed step")).to_be_visible()


def test_without_javascript_everything_is_read_and_single_things_are_done(looking: Looking) -> None:
    page = looking.stranger(java_script_enabled=False)
    sign_in(page, OWNER)
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("link", name="Waiting for something").click()
    page.get_by_role("link", name="renew").click()
    expect(page.get_by_text("waits until circuit standing-payments")).to_be_visible()
    page.locator("summary", has_text="Cancel the run").click()
    page.get_by_label("Why").fill("nobody waits for it")
    page.get_by_role("button", name="Cancel run order-8").click()
    expect(page.locator("#head").get_by_text("Cancelled")).to_be_visible()
    page.get_by_role("link", name="Circuits").first.click()
    page.get_by_role("link", name="standing-payments").click()
    page.locator("summary", has_text="Close the circuit").click()
    page.get_by_role("button", name="Close the circuit: standing-payments").click()
    expect(page.get_by_text("Calls go through.")).to_be_visible()
