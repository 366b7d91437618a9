"""Complete tasks of users in a real browser, from signing in to the result."""

from __future__ import annotations

import time

import pytest
from browser_kit import ACCOUNTANT, OWNER, PATIENCE, PHONE, Looking, complaints, overflow
from browser_shop import ATTEMPTS, FIXED, LETTERS, LONG_NAME, LONG_REFERENCE, ON_CALL
from playwright.sync_api import Page, expect

from redrive.cli.demo.shop import PASSWORD
from redrive.core.redact import MASK

SEND = "path => fetch(path, {method: 'POST', body: new URLSearchParams({once: path})}).then(a => a.status)"


def sign_in(page: Page, email: str, password: str = PASSWORD) -> None:
    page.goto("/app/login")
    page.get_by_label("Email").fill(email)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()


def test_the_accountant_corrects_a_field_and_replays(looking: Looking) -> None:
    page = looking.stranger()
    sign_in(page, ACCOUNTANT)
    page.get_by_role("link", name="Failures").first.click()
    page.get_by_role("link", name="ship").click()
    page.get_by_role("link", name="order-2", exact=True).click()
    expect(page.get_by_text("'nowhere' is not an address").first).to_be_visible()
    page.get_by_role("link", name="Correct and retry").click()
    address = page.get_by_label("address")
    address.fill("12 Mill Lane")
    page.get_by_label("price").fill("a lot")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_text("Please correct")).to_be_visible()  # The form keeps the typed values.
    expect(address).to_have_value("12 Mill Lane")
    expect(page.locator(".wrong")).to_have_text("Enter a number.")
    page.get_by_label("price").fill("19.90")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("ins").get_by_text("12 Mill Lane")).to_be_visible()
    page.get_by_label("Reason").fill("asked the customer")
    page.get_by_role("button", name="Retry", exact=True).dblclick()  # A double click retries only once.
    expect(page.locator("#status").get_by_text("Resolved")).to_be_visible()  # The page updates itself.
    expect(page.locator("#history").get_by_text("succeeded")).to_have_count(1)
    expect(page.get_by_text("The retry succeeded")).to_be_visible()
    expect(page.get_by_text("Retry started")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_have_text("ship succeeded after a retry")
    expect(page.locator("#input").get_by_text("12 Mill Lane")).to_be_visible()


def test_the_accountant_undoes_a_closing_and_keeps_the_typed_text(looking: Looking) -> None:
    page = looking.stranger(axe=True)
    sign_in(page, ACCOUNTANT)
    page.goto(f"/app/admin/dlq/{looking.shop.letter('down')}")
    page.locator("#resolve > summary").click()
    expect(page.locator("dialog textarea")).to_be_focused()
    page.locator("dialog textarea").fill("paid by hand")
    page.get_by_role("dialog").get_by_role("button", name="Mark as resolved").click()
    expect(page.locator("#status").get_by_text("Resolved")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("needs a decision again")).to_be_visible()
    expect(page.locator("#status").get_by_text("Unresolved")).to_be_visible()
    page.locator("#tag > summary").click()
    page.locator("dialog input[name=tags]").fill("bank, " + "x" * 300)
    page.get_by_role("button", name="Save tags").click()
    field = page.locator("dialog input[name=tags]")
    expect(field).to_be_focused()
    expect(field).to_have_value("bank, " + "x" * 300)
    expect(page.locator("#refused")).to_contain_text("a tag must be a text of 1 to 255")
    assert complaints(page) == []
    page.get_by_role("button", name="Close").click()
    page.context.clear_cookies()
    page.get_by_label("Comment").fill("asked the bank")
    page.get_by_role("button", name="Add comment").click()
    expect(page.get_by_text("what you entered is kept")).to_be_visible()
    page.get_by_label("Email").fill(ACCOUNTANT)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_label("Comment")).to_have_value("asked the bank")
    expect(page.locator("#history").get_by_text("asked the bank")).to_have_count(0)
    page.get_by_role("button", name="Add comment").click()
    expect(page.locator("#history").get_by_text("asked the bank")).to_be_visible()


def test_a_long_name_and_many_attempts_fit_on_every_screen(looking: Looking) -> None:
    page = looking.person(OWNER, axe=True)
    tags, origin = {"tags": ["x" * 100]}, {"Origin": looking.shop.address}
    where = f"/api/v1/workflow-dlq/{looking.shop.letter('long')}/tag"
    assert page.context.request.post(where, data=tags, headers=origin).ok
    for path in (f"/app/admin/dlq/{looking.shop.letter('long')}", f"/app/runs/{looking.shop.ids['long']}"):
        for width in (390, 768, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(path)
            expect(page.get_by_text(f"{ATTEMPTS - 5} earlier attempts")).to_be_visible()
            expect(page.locator("#steps blockquote", has_text="answering machine")).to_have_count(1)
            assert overflow(page) == 0, (path, width)
            assert page.evaluate("document.documentElement.scrollHeight") < 5_000
            assert page.locator(".scroll:has(.fall)").evaluate("it => it.scrollWidth - it.clientWidth") <= 1, width
        assert complaints(page) == []
    page.set_viewport_size(PHONE)
    for path in (
        f"/app/admin/bulk-replays/new?workflow={LONG_NAME[:-1]}x",
        f"/app/search?q={looking.shop.ids['long']}",
    ):
        page.goto(path)
        expect(page.get_by_text(LONG_NAME[:30]).first).to_be_visible()
        assert overflow(page) == 0, path
    assert page.locator(".results .grow").first.evaluate("it => it.clientWidth") > 250, "a result has a whole line"
    for path in ("/app/admin/dlq?view=items", "/app/runs?"):
        page.goto(f"{path}&workflow={LONG_NAME[:-1]}x")
        reference = page.locator(".main-cell .small a")
        expect(reference).to_have_text(LONG_REFERENCE)
        assert reference.evaluate("it => it.clientHeight") < 30, "a reference takes one line"
        assert overflow(page) == 0, path


def test_the_accountant_corrects_a_field_on_her_phone(looking: Looking) -> None:
    page = looking.stranger(phone=True, is_mobile=True)
    sign_in(page, ACCOUNTANT)
    ways = [
        page.get_by_role("link", name="Failures").first,
        page.locator("#groups").get_by_role("link", name="ship"),
        page.get_by_role("link", name="order-9", exact=True),
        page.get_by_role("link", name="Correct and retry"),
    ]
    for way in ways:
        expect(way).to_be_visible()
        assert overflow(page) == 0
        way.tap()
    page.get_by_label("address").fill("12 Mill Lane")
    page.get_by_role("button", name="Retry", exact=True).tap()
    expect(page.get_by_text("Nothing has run yet")).to_be_visible()  # The preview shows the change before it is made.
    expect(page.locator("ins").get_by_text("12 Mill Lane")).to_be_visible()
    assert overflow(page) == 0
    page.get_by_role("button", name="Retry", exact=True).tap()
    expect(page.locator("#status").get_by_text("Resolved")).to_be_visible()
    assert overflow(page) == 0


def test_the_on_call_engineer_replays_a_group_after_a_fix(looking: Looking) -> None:
    page = looking.stranger(axe=True)
    sign_in(page, ON_CALL)
    expect(page.get_by_role("status").get_by_text("need attention")).to_be_visible()
    page.locator("#groups").get_by_role("link", name="transfer").click()
    expect(page.get_by_role("heading", level=1, name="transfer failed")).to_be_visible()
    page.get_by_role("link", name=f"Show all {LETTERS}").click()
    expect(page.locator("#letters tbody tr")).to_have_count(LETTERS)
    page.locator("#letters tbody a").first.click()
    expect(page.locator("#what").get_by_text("the bank is away")).to_be_visible()
    (looking.shop.folder / FIXED).touch()
    page.get_by_role("link", name="Failures", exact=True).first.click()
    row = page.locator("#groups tr", has_text="transfer")
    row.get_by_role("link", name=f"Retry {LETTERS}").click()
    title = page.get_by_role("heading", level=1, name=f"Retry {LETTERS} failures")
    expect(title).to_be_visible()
    expect(page.get_by_text("All failures were checked")).to_be_visible()
    page.get_by_label("Reason").fill("the bank is back")
    page.get_by_role("button", name=f"Retry {LETTERS} failures").click()
    progress = page.locator("#progress")
    expect(progress.get_by_text("Done", exact=True)).to_be_visible()  # The page updates itself.
    expect(progress.locator(".figure", has_text="Succeeded").locator("b")).to_have_text(str(LETTERS))
    expect(page.locator("#items tbody tr")).to_have_count(LETTERS)
    assert complaints(page) == []
    page.get_by_role("link", name="Failures", exact=True).first.click()
    expect(page.locator("#groups tr", has_text="bite")).to_be_visible()
    expect(row).to_have_count(0)


def to(page: Page, name: str, key: str = "Tab") -> None:
    """Press a key until the element with this name has a visible focus."""
    if key != "Tab":
        hears_keys(page)
    for _ in range(60):
        page.keyboard.press(key)
        at = page.locator(":focus")
        if at.count() and name in at.inner_text():
            assert at.evaluate("it => getComputedStyle(it).outlineStyle") != "none", name
            return
    raise AssertionError(f"{key} does not reach {name}")


def hears_keys(page: Page) -> None:
    """Wait until the page's script has loaded, which handles single keys."""
    expect(page.locator("#live")).to_be_visible()


def test_the_operator_searches_and_filters_a_list(looking: Looking) -> None:
    page = looking.person(ON_CALL, axe=True)
    page.goto("/app/")
    hears_keys(page)
    page.keyboard.press("/")
    page.keyboard.type("hosti")
    expect(page.locator("#find-options option[value=hostile]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Results for hosti")).to_be_visible()
    assert complaints(page) == []
    page.locator("section", has_text="Workflows").get_by_role("link", name="Failures").click()
    chip = page.get_by_role("link", name="Workflow: hostile")
    expect(page.locator("#letters tbody tr")).to_have_count(1)
    expect(page.get_by_text("1–1 of 1").first).to_be_visible()
    retry = page.get_by_role("button", name="Retry selected")
    expect(retry).to_be_disabled()
    page.locator("input[data-pick]").check()
    expect(retry).to_be_enabled()
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Code version").check()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("columnheader", name="Code version")).to_be_visible()
    page.locator("summary", has_text="Copy as").click()
    expect(page.get_by_text("redrive dlq list --status OPEN --workflow hostile")).to_be_visible()
    assert complaints(page) == []
    chip.click()
    expect(chip).to_have_count(0)
    hears_keys(page)
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Search everything")).to_be_focused()


def test_a_failure_is_retried_with_the_keyboard_only(looking: Looking) -> None:
    (looking.shop.folder / FIXED).touch()
    page = looking.stranger()
    page.goto("/app/login")
    expect(page.get_by_label("Email")).to_be_focused()  # The first key is lost if it comes before the focus.
    page.keyboard.type(ON_CALL)
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    to(page, "Skip to content")
    hears_keys(page)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    to(page, "Failures")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Failures")).to_be_visible()
    to(page, "pay_back", "j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="pay_back failed")).to_be_visible()
    to(page, "Show all 1")
    page.keyboard.press("Enter")
    expect(page.locator("#letters tbody tr")).to_have_count(1)
    to(page, "pay_back", "j")
    page.keyboard.press("x")
    expect(page.get_by_role("button", name="Retry selected (1)")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="pay_back failed")).to_be_visible()
    hears_keys(page)
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1, name="Retry pay_back")).to_be_visible()
    to(page, "Retry")
    page.keyboard.press("Enter")
    expect(page.locator("#status").get_by_text("Resolved")).to_be_visible()


def test_the_owner_invites_a_viewer_who_can_change_nothing(looking: Looking) -> None:
    owner = looking.stranger()
    sign_in(owner, OWNER)
    owner.get_by_role("link", name="Members").click()
    owner.locator("summary", has_text="Invite a member").click()
    sheet = owner.get_by_role("dialog")
    sheet.get_by_label("Email").fill("guest@shop.example")
    sheet.get_by_label("Role").first.select_option("Viewer")
    sheet.get_by_role("button", name="Send invitation").click()
    expect(owner.get_by_role("heading", name="guest@shop.example was invited")).to_be_visible()
    code = owner.locator("#secret").inner_text()
    owner.reload()
    expect(owner.get_by_text(code)).to_have_count(0)

    guest = looking.stranger()
    guest.goto("/app/login")
    guest.get_by_label("Email").fill("guest@shop.example")
    guest.get_by_text("I have an invitation code").click()
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
    expect(guest.get_by_text("This requires the role Administrator or higher")).to_be_visible()
    letter = f"/app/admin/dlq/{looking.shop.letter('hostile')}"
    guest.goto(letter)
    expect(guest.get_by_role("heading", level=1, name="bite failed")).to_be_visible()
    expect(guest.locator("main form, main button:not(.copy), main a.button")).to_have_count(0)
    expect(guest.get_by_text("hunter2")).to_have_count(0)
    guest.locator("summary", has_text="Input of hostile").click()
    expect(guest.get_by_role("region", name="Input of hostile")).to_contain_text(f'"password": "{MASK}"')
    decisions = ["reveal", "replay", "resolve", "ignore", "assign", "comment", "tag"]
    refused = [f"{letter}/{each}" for each in decisions]
    refused += [f"/app/runs/{looking.shop.ids['parked']}/cancel", "/app/admin/bulk-replays/new"]
    assert {path: guest.evaluate(SEND, path) for path in refused} == dict.fromkeys(refused, 403)


def test_a_notification_links_to_its_failure_and_is_read_once(looking: Looking) -> None:
    page = looking.person(ACCOUNTANT)
    page.goto("/app/notifications?unread=yes")
    row = page.locator("#inbox tr", has_text="ship failed")
    row.get_by_role("button").click()
    expect(page.locator("#inbox tr", has_text="charge failed")).to_be_visible()
    page.get_by_role("link", name="Unread").click()
    expect(row).to_have_count(0)
    page.get_by_role("link", name="charge failed").click()
    expect(page.get_by_role("heading", level=1, name="charge failed")).to_be_visible()


def test_the_on_call_engineer_finishes_a_stopped_rollback(looking: Looking) -> None:
    page = looking.person(OWNER)
    page.goto(f"/app/runs/{looking.shop.ids['stuck']}")
    expect(page.get_by_text("0 of 2 rolled back")).to_be_visible()
    page.locator("summary", has_text="Mark as done manually").click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_label("Reason").fill("paid back in cash")
    sheet.get_by_role("button", name="Mark as done manually").click()
    expect(page.locator("#head").get_by_text("Rolled back")).to_be_visible()  # The page updates itself.
    expect(page.get_by_text("2 of 2 rolled back")).to_be_visible()
    page.goto("/app/audit?event=saga.")
    expect(page.get_by_text("paid back in cash")).to_be_visible()


@pytest.mark.parametrize("scripted", [True, False])
def test_a_task_is_answered_on_a_phone_with_and_without_javascript(looking: Looking, scripted: bool) -> None:
    page = looking.stranger(phone=True, is_mobile=True, java_script_enabled=scripted)
    sign_in(page, OWNER)
    task = looking.shop.ids["task_asked" if scripted else "task_asked_unscripted"]
    page.goto("/app/tasks")
    assert overflow(page) == 0
    page.locator(f"a[href*='{task}']").tap()
    expect(page.locator("#shown").get_by_text("customer")).to_be_visible()
    assert overflow(page) == 0
    page.get_by_label("Note").fill("a regular customer")
    page.get_by_role("button", name="in part").tap()
    expect(page.locator("#answer").get_by_text("a regular customer")).to_be_visible()
    expect(page.locator("#answer").get_by_text(OWNER)).to_be_visible()
    assert overflow(page) == 0
    page.goto("/app/tasks?view=history")
    expect(page.locator(f"a[href*='{task}']")).to_be_visible()


def test_pages_and_single_actions_work_without_javascript(looking: Looking) -> None:
    page = looking.stranger(java_script_enabled=False)
    sign_in(page, OWNER)
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("link", name="Waiting", exact=True).click()
    page.get_by_role("link", name="renew").click()
    expect(page.get_by_text("Waiting for circuit standing-payments")).to_be_visible()
    page.locator("summary", has_text="Cancel run").click()
    page.get_by_label("Reason").fill("no longer needed")
    page.get_by_role("button", name="Cancel run").click()
    expect(page.locator("#head").get_by_text("Cancelled")).to_be_visible()
    page.get_by_role("link", name="Circuits").first.click()
    page.get_by_role("link", name="standing-payments").click()
    page.locator("summary", has_text="Close circuit").click()
    page.get_by_role("button", name="Close circuit").click()
    expect(page.get_by_text("Calls are allowed.")).to_be_visible()
    _replay_unscripted(page, looking.shop.letter("wrong_unscripted"))
    page.goto(f"/app/admin/dlq/{looking.shop.letter('down')}")
    page.locator("summary", has_text="Mark as resolved").click()
    page.get_by_role("textbox", name="Resolution").fill("paid in cash")
    page.get_by_role("button", name="Mark as resolved").click()
    expect(page.get_by_text("Marked as resolved.")).to_be_visible()
    expect(page.locator("#history").get_by_text("paid in cash")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#status").get_by_text("Unresolved")).to_be_visible()


def _replay_unscripted(page: Page, letter: str) -> None:
    """Retry a letter through form and preview; reload the page until it shows the result."""
    page.goto(f"/app/admin/dlq/{letter}")
    page.get_by_role("link", name="Correct and retry").click()
    page.get_by_label("address").fill("12 Mill Lane")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.get_by_text("Nothing has run yet")).to_be_visible()
    expect(page.locator("ins").get_by_text("12 Mill Lane")).to_be_visible()
    page.get_by_role("button", name="Retry", exact=True).click()
    until = time.monotonic() + PATIENCE
    while not page.locator("#status").get_by_text("Resolved").count():
        assert time.monotonic() < until, page.locator("#status").inner_text()
        page.reload()
    expect(page.get_by_text("The retry succeeded")).to_be_visible()
    expect(page.get_by_text("Retry started")).to_have_count(0)
