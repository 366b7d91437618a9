"""Rules of every page in a real browser: accessibility, live updates, isolation and hostile content."""

from __future__ import annotations

import re

from browser_kit import ACCOUNTANT, BY_LOOKS, DESKTOP, OWNER, PHONE, VISITOR, Looking, complaints, overflow
from browser_shop import RIGHT_TO_LEFT, SCRIPT
from playwright.sync_api import Locator, Page, expect

PLACES = [
    "/app/",
    "/app/admin/dlq",
    "/app/admin/dlq/causes/{cause}?range=7d",
    "/app/admin/dlq?view=items",
    "/app/admin/dlq?view=items&code=validation_failed",
    "/app/admin/dlq/dl-{wrong}",
    "/app/admin/dlq/dl-{wrong}/replay",
    "/app/admin/bulk-replays",
    "/app/admin/bulk-replays/{set}",
    "/app/admin/bulk-replays/{slow_set}",
    "/app/admin/bulk-replays/{paused_set}",
    "/app/admin/bulk-replays/new?workflow=settle_account",
    "/app/runs?tenant=*",
    "/app/runs/{stuck}",
    "/app/runs/{down}/again",
    "/app/tasks",
    "/app/tasks/{task_asked_looked}",
    "/app/circuits",
    "/app/circuits/one?key=standing-payments",
    "/app/policies",
    "/app/workflows",
    "/app/workflows/one?name=fulfil",
    "/app/queues",
    "/app/schedules",
    "/app/outbox",
    "/app/workers",
    "/app/audit",
    "/app/search?q=settle",
    "/app/members",
    "/app/health",
    "/app/notifications",
    "/app/nowhere",
    "/api/docs",
]


def test_axe_finds_no_violations_in_light_and_dark_mode(looking: Looking) -> None:
    """Each page is checked in English, wide and light, and in Polish, dark and on a phone."""
    wide = looking.person(OWNER, color_scheme="light", axe=True)
    phone = looking.person(OWNER, color_scheme="dark", phone=True, axe=True, locale="pl-PL")
    wrong: list[str] = []
    for path in PLACES:
        wide.goto(path.format(**looking.shop.ids))
        phone.goto(path.format(**looking.shop.ids))
        wrong += complaints(wide) + complaints(phone, BY_LOOKS)
        wrong += [f"{path} is {by} px too wide" for by in [overflow(phone)] if by]
        wrong += [f"{path} is not Polish" for lang in [_language(phone)] if lang != "pl" and "/app" in path]
    assert wrong == []


CUT_TABLES = """() => [...document.querySelectorAll('.scroll')].filter(it => it.scrollWidth > it.clientWidth + 1)
    .map(it => it.getAttribute('aria-label'))"""


def test_a_long_name_does_not_cut_tables_and_the_phone_menu_names_the_page(looking: Looking) -> None:
    page = looking.person(ACCOUNTANT)
    name = "a_workflow_whose_name_takes_a_hundred_characters_since_nobody_stopped_the_person_who_wrote_it_down_x"
    policy = {"workflow": name, "policy": {"max_retries": 2}}
    assert page.context.request.put("/api/v1/policies", data=policy, headers={"Origin": looking.shop.address}).ok
    for width in (390, 768, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        for path in ("/app/policies", "/app/schedules", "/app/workflows", "/app/circuits", "/app/runs"):
            page.goto(path)
            assert (overflow(page), page.evaluate(CUT_TABLES)) == (0, []), (width, path)
    page.set_viewport_size({"width": 768, "height": 900})
    page.goto("/app/runs")
    page.locator("summary", has_text="Columns").click()
    sheet = page.locator(".tools .sheet").first.bounding_box()
    assert sheet is not None
    assert sheet["x"] >= 0, "the menu opens on the screen"
    polish = looking.person(ACCOUNTANT, locale="pl-PL")  # its words are longer
    polish.goto("/app/circuits")
    expect(polish.locator("#circuits tbody tr").first).to_be_visible()
    assert polish.evaluate(CUT_TABLES) == []
    polish.set_viewport_size(PHONE)
    polish.goto("/app/admin/dlq")
    tops = polish.locator(".tabs a").evaluate_all("tabs => tabs.map(it => it.offsetTop)")
    assert len(tops) == 3
    assert len(set(tops)) == 1, "the tabs are one row"
    assert overflow(polish) == 0
    unscripted = looking.person(ACCOUNTANT, phone=True, java_script_enabled=False)
    unscripted.goto("/app/schedules")
    menu = unscripted.locator("details.pages > summary")
    expect(menu).to_have_text(re.compile("Schedules"))
    expect(menu).to_be_in_viewport()
    menu.click()
    unscripted.get_by_role("navigation", name="Pages").get_by_role("link", name="Circuits").click()
    expect(unscripted.get_by_role("heading", level=1, name="Circuits")).to_be_visible()


def test_times_show_their_time_zone_and_it_can_be_chosen(looking: Looking) -> None:
    page = looking.person(ACCOUNTANT, timezone_id="Asia/Kolkata")
    page.goto(f"/app/admin/dlq/dl-{looking.shop.ids['wrong']}")
    exact = page.locator("time[data-as=exact]").first
    expect(exact).to_contain_text("GMT+5:30")
    page.locator("header summary", has_text=ACCOUNTANT).click()
    page.get_by_role("button", name="UTC").click()
    expect(exact).to_contain_text("UTC")
    assert "GMT+5:30" in (exact.get_attribute("title") or "")
    page.goto("/app/audit")
    expect(page.locator("#lines time").first).to_contain_text("UTC")


def test_a_bulk_action_is_paused_and_resumed_and_a_view_is_saved_with_the_keyboard(looking: Looking) -> None:
    page = looking.person(ACCOUNTANT, axe=True)
    page.goto(f"/app/admin/bulk-replays/{looking.shop.ids['slow_set']}")
    page.get_by_role("button", name="Pause").press("Enter")
    expect(page.get_by_text(f"Paused by {ACCOUNTANT}")).to_be_visible()
    page.locator("summary", has_text="Change rate").press("Enter")
    page.get_by_label("Limit", exact=True).fill("many")
    page.get_by_label("Limit", exact=True).press("Enter")
    refused = page.get_by_role("dialog").get_by_label("Limit", exact=True)
    expect(refused).to_have_value("many")
    expect(refused).to_be_focused()
    page.get_by_label("Limit", exact=True).fill("1,200")
    assert complaints(page) == []
    page.get_by_label("Limit", exact=True).press("Enter")
    expect(page.get_by_text("at most 1,200 per hour")).to_be_visible()
    page.get_by_role("button", name="Resume").press("Enter")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.goto("/app/runs?kind=person")
    page.locator("summary", has_text="Save this view").press("Enter")
    assert complaints(page) == []
    page.get_by_label("Name").fill("Every morning")
    page.get_by_label("Name").press("Enter")
    view = page.get_by_role("link", name="Every morning")
    expect(view).to_have_attribute("aria-current", "true")
    page.goto("/app/runs")
    view.press("Enter")
    expect(page).to_have_url(re.compile(r"/app/runs\?kind=person$"))
    page.locator("summary", has_text="Remove a view").press("Enter")
    page.get_by_role("button", name="Remove Every morning").press("Enter")
    expect(view).to_have_count(0)


def _language(page: Page) -> str:
    return page.locator("html").get_attribute("lang") or ""


def test_the_sign_in_page_is_accessible(looking: Looking) -> None:
    page = looking.stranger(phone=True, axe=True)
    page.goto("/app/runs")
    expect(page).to_have_url(re.compile("/app/login"))
    assert (complaints(page), overflow(page)) == ([], 0)


def test_a_user_does_not_see_data_of_another_tenant(looking: Looking) -> None:
    visitor = looking.person(VISITOR)
    visitor.goto("/app/runs")
    expect(visitor.locator("#runs tbody tr")).to_have_count(2)
    visitor.goto(f"/app/runs/{looking.shop.ids['good']}")
    expect(visitor.get_by_role("heading", name="Not found")).to_be_visible()


POST = """([path, data]) => fetch('/api/v1/' + path, {method: 'POST', body: JSON.stringify(data),
          headers: {'Content-Type': 'application/json'}}).then(answer => answer.status)"""
HELD = "() => [scrollY, document.activeElement.held, String(getSelection())]"


def _keys(rows: Locator) -> list[str]:
    found: list[str] = rows.evaluate_all("rows => rows.map(row => row.dataset.key)")
    return found


def _start(page: Page, number: int) -> int:
    wanted = {"workflow": "settle_account", "input": {"number": number}}
    status: int = page.evaluate(POST, ("runs", wanted))
    return status


def test_live_updates_keep_position_focus_and_selection(looking: Looking) -> None:
    """Scroll position, focus, selection and rows stay as they are, and new rows are counted."""
    reader, other = looking.person(ACCOUNTANT), looking.person(ACCOUNTANT)
    for page in (reader, other):
        page.set_viewport_size({"width": 1000, "height": 400})
        page.goto("/app/runs?workflow=settle_account")  # A schedule of the shop starts other workflows.
        expect(page.locator("#live")).to_be_visible()
    rows = reader.locator("#runs tbody tr")
    before = _keys(rows)
    rows.nth(4).get_by_role("link").first.evaluate("it => { it.held = 'here'; it.focus(); }")
    held = reader.evaluate(HELD)
    assert held[0] > 0, "the list is longer than the window"
    assert _start(reader, 99) == 201
    pill = reader.get_by_text("1 new", exact=True)
    expect(pill).to_be_visible()
    assert (reader.evaluate(HELD), _keys(rows)) == (held, before)

    rows.nth(3).evaluate("row => getSelection().selectAllChildren(row)")
    held = reader.evaluate(HELD)
    assert "settle_account" in held[2]
    assert _start(other, 100) == 201
    expect(other.get_by_text("2 new", exact=True)).to_be_visible()  # The reader was notified too.
    assert reader.evaluate(HELD) == held
    reader.evaluate("getSelection().removeAllRanges()")
    expect(reader.get_by_text("2 new", exact=True)).to_be_visible()
    reader.get_by_text("2 new", exact=True).click()
    expect(rows.nth(2)).to_have_attribute("data-key", before[0])


STREAMS = """
window.streams = [];
window.EventSource = class extends EventSource { constructor(address) { super(address); streams.push(this); } };
"""


def test_a_page_shows_a_lost_connection_and_catches_up_after_it(looking: Looking) -> None:
    page, other = looking.person(OWNER), looking.person(OWNER)
    page.add_init_script(STREAMS)
    page.goto("/app/admin/dlq")
    sign = page.locator("#live")
    expect(sign).to_have_text("Live")
    path = page.locator("#groups tbody a").first.get_attribute("href") or ""
    page.route("**/api/v1/events*", lambda route: route.abort())
    page.evaluate("streams.at(-1).dispatchEvent(new Event('error'))")  # This simulates a lost connection.
    expect(sign).to_have_text(re.compile(r"^Connection lost, last updated at \d\d:\d\d$"))
    other.goto("/app/runs")
    cause = path.rpartition("/")[2]
    assert other.evaluate(POST, (f"workflow-dlq/groups/{cause}/mute", {})) == 200
    expect(page.locator(f'#groups tbody a[href="{path}"]')).to_have_count(1)
    page.unroute("**/api/v1/events*")
    expect(sign).to_have_text("Live")
    expect(page.locator(f'#groups tbody a[href="{path}"]')).to_have_count(0)
    assert other.evaluate(POST, (f"workflow-dlq/groups/{cause}/unmute", {})) == 200
    expect(page.get_by_text("1 new", exact=True)).to_be_visible()


def test_typed_text_stays_while_other_users_write(looking: Looking) -> None:
    page = looking.person(ACCOUNTANT)
    letter = looking.shop.letter("down")
    page.goto(f"/app/admin/dlq/{letter}")
    expect(page.locator("#live")).to_be_visible()
    box = page.get_by_label("Comment")
    box.press_sequentially("half a thou")
    said = ("workflow-dlq/" + letter + "/comment", {"text": "I have asked the bank."})
    assert page.evaluate(POST, said) == 200
    expect(page.locator("#history").get_by_text("I have asked the bank.")).to_be_visible()
    expect(box).to_be_focused()
    page.keyboard.type("ght")
    expect(box).to_have_value("half a thought")


def test_hostile_content_is_shown_as_text(looking: Looking) -> None:
    page = looking.person(OWNER)
    for path in ("/app/admin/dlq/dl-{hostile}", "/app/runs/{hostile}", "/app/admin/dlq/dl-{hostile}/replay"):
        page.set_viewport_size(DESKTOP)
        page.goto(path.format(**looking.shop.ids))
        assert "owned" not in page.title()
        expect(page.locator("main img, main script")).to_have_count(0)
        expect(page.get_by_text("hunter2")).to_have_count(0)
        assert RIGHT_TO_LEFT[-4:] in page.locator("main").inner_text()
        assert overflow(page) == 0
        page.set_viewport_size(PHONE)
        assert overflow(page) == 0
    expect(page.get_by_role("button", name="Retry", exact=True)).to_be_visible()
    for path in ("/app/runs/{hostile}", "/app/admin/dlq/dl-{hostile}"):
        page.goto(path.format(**looking.shop.ids))
        size = page.evaluate("document.documentElement.outerHTML.length")
        assert size < 400_000, "the page shows only the beginning of half a megabyte of input"
        page.locator("summary", has_text="Input of hostile").click()
        expect(page.get_by_role("region", name="Input of hostile")).to_contain_text(SCRIPT)
        page.get_by_text("Stack trace of attempt 1").click()
        stack = page.get_by_role("region", name="Stack trace of attempt 1")
        assert stack.inner_text().count("_deeper") > 100
        assert stack.evaluate("it => it.scrollHeight > it.clientHeight"), "500 lines scroll inside their region"
        assert overflow(page) == 0
    page.get_by_role("link", name="Correct and retry").click()
    expect(page.get_by_role("heading", level=1, name="Retry bite")).to_be_visible()
