"""Pages of dead letters: search, details, correction, replay and closing, with the permissions of each."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Iterator
from html import escape, unescape

import httpx2
import pytest
from pages_kit import Looked, browser, of_role, once
from server_kit import SECRET, World, access_of, opened, serving

from redrive import NonRetryable, Redrive, RetryPolicy
from redrive.core.roles import Role
from redrive.core.states import LetterStatus
from redrive.desk.bulk import DryRunOfMany
from redrive.reasons import ReasonCode
from redrive.record_fields import replace
from redrive.server.auth.admin import NewToken
from redrive.server.pages.bulk import EffectCount, count_effects
from redrive.server.pages.letters import OutcomeDisplay, describe_outcome
from redrive.server.pages.replay_form import FormField, fill_fields, list_form_fields
from redrive.testing import engine

HOSTILE = "</pre><script>alert(1)</script>=cmd|' /C calc'!A0 مرحبا"
MANY = 30


async def fill(url: str, world: World) -> None:
    """Create letters in three tenants: many similar ones, one with hostile texts, one with a large input.

    Tests only read the letters of `acme`, which stay open. Each letter of `initech` is closed or replayed by one test.
    """
    from server_shop import app, fulfil

    app.settings = Redrive(url, secret_key=SECRET, encryption_keys="plain").settings
    async with app:
        access = access_of(app.runtime.store)
        for tenant in ("acme", "globex", "initech"):
            await access.create_tenant(tenant)
            for role in Role:
                made = await access.create_token(NewToken(tenant=tenant, role=role, name=f"{role}"))
                world.tokens[tenant, role.value] = made.secret
            seer = NewToken(tenant=tenant, role=Role.ADMIN, name="seer", payloads=True)
            world.tokens[tenant, "SEER"] = (await access.create_token(seer)).secret
        runs = [await fulfil.start(f"B-{n}", 1000, "k3y", tenant="acme") for n in range(MANY)]
        wrong, corrected = [
            await fulfil.start("A-17", 400, "k3y-s3cr3t", tenant=tenant, correlation_id="order-17")
            for tenant in ("acme", "initech")
        ]
        closed, again, failing, healed = [await fulfil.start(f"B-{n}", 1000, "k3y", tenant="initech") for n in range(4)]
        nasty = await fulfil.start(HOSTILE, 1000, "x" * 300_000, tenant="acme", correlation_id=HOSTILE)
        other = await fulfil.start("G-1", 1000, tenant="globex")
        for run in [*runs, wrong, corrected, closed, again, failing, healed, nasty, other]:
            while (await run.status()) != "DLQ_PENDING":  # noqa: ASYNC110 - a real worker
                await asyncio.sleep(0.02)
        await app.dlq.replay(f"dl-{healed.id}", patch={"amount": 1}, by="ann")
        await healed.result(timeout="30s")
        world.ids = {"acme": {"wrong": f"dl-{wrong.id}", "nasty": f"dl-{nasty.id}", "any": f"dl-{runs[0].id}"}}
        world.ids["globex"] = {"any": f"dl-{other.id}"}
        world.ids["initech"] = {
            "corrected": f"dl-{corrected.id}",
            "closed": f"dl-{closed.id}",
            "again": f"dl-{again.id}",
            "failing": f"dl-{failing.id}",
            "healed": f"dl-{healed.id}",
        }
        while await app.runtime.store.fold(100):
            pass


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path_factory.mktemp('shop')}/redrive.db")
    asyncio.run(fill(world.url, world))
    with serving(world.url) as process:
        world.address = process.address
        yield world
        world.close()


def rows(page: str) -> list[str]:
    return re.findall(r'<tr data-key="([^"]+)"', page)


def test_causes_link_to_letters_and_filters_are_in_the_url(shop: World) -> None:
    with of_role(shop, "VIEWER") as client:
        causes = client.get("/admin/dlq").text
        assert len(rows(causes)) == 1
        assert "Retry" not in Looked(causes).text
        link = re.search(r'href="/app(/admin/dlq\?fingerprint=[^"]+)"', causes)
        assert link
        first = client.get(link[1] + "&limit=50").text
        assert 'name="text"' not in first, "a user who does not see payloads cannot search them"
        assert client.get("/admin/dlq?text=k3y").status_code == 403
        assert len(rows(first)) == MANY + 2
        few = client.get("/admin/dlq", params={"view": "items", "limit": 25}).text
        assert len(rows(few)) == 25
        older = re.search(r'rel="next" href="/app([^"]+)"', few)
        assert older
        rest = client.get(older[1].replace("&amp;", "&")).text
        assert len(rows(rest)) == MANY + 2 - 25
        newer = re.search(r'rel="prev" href="/app([^"]+)"', rest)
        assert newer
        assert rows(client.get(newer[1].replace("&amp;", "&")).text) == rows(few)
        assert rows(client.get("/admin/dlq", params={"index": "order:A-17"}).text) == [shop.ids["acme"]["wrong"]]
        assert "No matching failures" in client.get("/admin/dlq", params={"workflow": "nothing"}).text
        assert rows(client.get("/admin/dlq", params={"status": "RESOLVED"}).text) == []
        wrong = client.get("/admin/dlq", params={"since": "yesterday-ish", "status": "OPENED", "limit": 5})
        assert wrong.status_code == 422
        assert len(rows(wrong.text)) == 5, "the list ignores the invalid filter"
        assert 'value="yesterday-ish"' in wrong.text
        assert 'aria-describedby="wrong-since"' in wrong.text
        assert "status must be" in wrong.text
        assert client.get("/admin/dlq", params={"since": "yesterday-ish", "format": "csv"}).status_code == 422


def test_a_downloaded_list_contains_no_formulas(shop: World) -> None:
    hostile = "=cmd|' /C calc'!A0"
    with of_role(shop, "STAFF") as staff, of_role(shop, "VIEWER") as client:
        path = f"/admin/dlq/{shop.ids['acme']['wrong']}"
        staff.post(f"{path}/assign", data={"to": hostile})
        answer = client.get("/admin/dlq", params={"format": "csv", "view": "items"})
        staff.post(f"{path}/assign", data={"to": ""})
        assert answer.headers["content-disposition"] == 'attachment; filename="dead-letters.csv"'
        table = list(csv.DictReader(io.StringIO(answer.text)))
        assert len(table) == MANY + 2
        assert {row["workflow"] for row in table} == {"fulfil"}
        assert [row["owner"] for row in table if row["owner"]] == [f"'{hostile}"]
        assert not [cell for row in table for cell in row.values() if cell.startswith(("=", "+", "@"))]
        found = client.get("/admin/dlq", params={"format": "json", "index": "order:A-17"}).json()
        assert [row["id"] for row in found] == [shop.ids["acme"]["wrong"]]
        (wrong,) = [row for row in table if row["id"] == shop.ids["acme"]["wrong"]]
        assert (wrong["message"], wrong["input.order"], wrong["input.amount"]) == ("400 is too much", "A-17", "400")
        assert "k3y" not in answer.text


def links(page: str, rel: str) -> str:
    """Return the address of the next or the previous page of a list."""
    found = re.search(rf'rel="{rel}" href="/app([^"]+)"', page)
    assert found, f"no {rel} page"
    return unescape(found[1])


def test_a_list_shows_its_position_in_both_orders_and_ignores_a_wrong_limit(shop: World) -> None:
    total = MANY + 2
    with of_role(shop, "VIEWER") as client:
        everything = client.get("/admin/dlq?view=items&limit=200").text
        newest = rows(everything)
        assert f"1–{total} of {total} Newest first" in Looked(everything).text
        assert len(newest) == total
        first = client.get("/admin/dlq?view=items").text
        assert f"1–25 of {total}" in first
        second = client.get(links(first, "next")).text
        assert f"26–{total} of {total}" in second
        assert f"1–25 of {total}" in client.get(links(second, "prev")).text
        oldest = client.get("/admin/dlq?view=items&order=oldest").text
        assert 'rel="prev"' not in oldest
        assert "Oldest first Columns" in Looked(oldest).text
        assert rows(oldest) + rows(client.get(links(oldest, "next")).text) == newest[::-1]
        for slip, said in (
            ("limit=9999", "Limit must be"),
            ("limit=x", "Limit must be"),
            ("cursor=x", "is not a cursor"),
        ):
            page = client.get(f"/admin/dlq?view=items&{slip}")
            assert (page.status_code, said in page.text, rows(page.text)[0]) == (200, True, newest[0]), slip


def test_a_short_list_is_sorted_by_any_column(shop: World) -> None:
    with of_role(shop, "VIEWER") as client:
        newest = rows(client.get("/admin/dlq?view=items&limit=200").text)
        items = shop.client("acme", "VIEWER").get("/workflow-dlq?status=OPEN&limit=200").json()["items"]
        names = {each["id"]: each["step"] or each["workflow"] for each in items}
        page = client.get("/admin/dlq?view=items&sort=name").text
        assert 'aria-sort="ascending"><a href="/app/admin/dlq?view=items&amp;sort=name.down"' in page
        found = rows(page) + rows(client.get(links(page, "next")).text)
        assert found == sorted(newest, key=lambda id: names[id])
        assert f"26–{len(newest)} of {len(newest)}" in client.get(links(page, "next")).text
        down = rows(client.get("/admin/dlq?view=items&sort=name.down&limit=200").text)
        assert down == sorted(newest, key=lambda id: names[id], reverse=True)
        assert rows(client.get("/admin/dlq?view=items&sort=nothing").text) == newest[:25]
        runs = client.get("/runs?sort=duration.down").text
        assert 'aria-sort="descending"' in runs


def test_a_filter_chip_removes_its_filter_and_the_filter_is_copied_as_a_command(shop: World) -> None:
    with of_role(shop, "VIEWER") as client:
        page = unescape(client.get("/admin/dlq?workflow=fulfil&code=non_retryable&index=order:A-17").text)
        assert '/app/admin/dlq?code=non_retryable&workflow=fulfil&view=items"' in page, "without the input field"
        asked = "--workflow fulfil --code non_retryable --index order=A-17"
        command = f"redrive dlq list --status OPEN {asked} --tenant acme"
        # The options are in the order of the filter's fields.
        assert sorted(command.split()) == sorted(re.findall(r"<code>(redrive dlq list [^<]+)</code>", page)[0].split())
        curl = re.findall(r"<code>curl [^<]*'(http[^<']+)'</code>", page)[0]
        token = {"Authorization": client.headers["Authorization"]}
        assert [one["id"] for one in client.get(curl, headers=token).json()["items"]] == [shop.ids["acme"]["wrong"]]
        assert "Assignee</th>" in page
        chosen = client.post("/look", data={"list": "letters", "column": ["version", "nonsense"], "density": "compact"})
        assert chosen.status_code == 303
        page = client.get("/admin/dlq?view=items").text
        assert "Code version</th>" in page
        assert "Assignee</th>" not in page
        assert 'data-density="compact"' in page


def test_one_search_finds_messages_references_ids_and_workflows(shop: World) -> None:
    wrong = shop.ids["acme"]["wrong"]
    run = wrong.removeprefix("dl-")
    with of_role(shop, "SEER") as seer, of_role(shop, "VIEWER") as viewer, of_role(shop, "SEER", "globex") as other:

        def found(client: httpx2.Client, text: str) -> str:
            page = client.get("/search", params={"q": text})
            assert page.status_code == 200
            assert text in unescape(page.text)
            return page.text.partition("<main")[2]

        assert rf'href="/app/admin/dlq/{wrong}"' in found(seer, "400 IS too")
        for text in ("order-17", "A-17", run, wrong):
            assert f'href="/app/runs/{run}"' in found(viewer, text), text
            assert "Nothing found" in found(other, text), text
        assert "/app/runs?correlation_id=order-17" in found(viewer, "order-17")
        assert "/app/search?q=order-17" in found(viewer, "order-1")
        for path in (f"/admin/dlq/{wrong}", f"/runs/{run}"):
            assert '<a href="/app/search?q=order-17"><code>order-17' in viewer.get(path).text, "its reference is a link"
        assert "/app/runs?workflow=fulfil" in found(viewer, "FULF")
        by_cause = found(viewer, "is too much")
        assert "/app/admin/dlq/causes/" in by_cause
        assert "/app/admin/dlq/dl-" not in by_cause, "a user who does not see payloads searches only visible fields"
        assert f'href="/app/runs/{run}"' in found(seer, "k3y-s3cr3t")
        assert "Nothing found" in found(viewer, "k3y-s3cr3t"), "a match would confirm a guess"
        assert "Nothing found" in found(seer, HOSTILE[:40] + "%")
        assert viewer.get("/search/suggestions", params={"q": "order-"}).json() == ["order-17"]
        assert other.get("/search/suggestions", params={"q": "order-"}).json() == []
        assert viewer.get("/search/suggestions", params={"q": "fulf"}).json()[0] == "fulfil"
        for path in ("/", "/audit", "/health", f"/admin/dlq/{wrong}"):
            assert 'name="q"' in viewer.get(path).text
        assert "Enter a text" in viewer.get("/search").text


def test_a_letter_shows_its_failure_and_hides_secrets(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['wrong']}"
    with of_role(shop, "ADMIN") as client:
        page = Looked(client.get(path).text)
        assert "Step charge of fulfil failed" in page.text
        assert "400 is too much" in page.text
        assert "Retrying will not help with this error" in page.text
        assert "k3y-s3cr3t" not in page.text
        assert client.post(f"{path}/reveal").status_code == 403
    with browser(shop, shop.tokens["acme", "SEER"]) as seer:
        assert "k3y-s3cr3t" in seer.post(f"{path}/reveal").text
        assert "Hidden data of a failure was shown" in seer.get(path).text
        assert seer.get(f"{path}/reveal").headers["location"] == f"/app{path}"
    with of_role(shop, "ADMIN", headers={"Accept-Language": "pl"}) as client:
        shown = Looked(client.get(path).text).text
        assert "Krok charge przepływu fulfil nie powiódł się" in shown
        assert "Krok 'charge' nie powiódł się" in shown
        assert "bez ponowienia: " in shown
        missing = client.get("/admin/dlq/dl-<b>nothing")
        assert "Nieudana sprawa &#39;dl-&lt;b&gt;nothing&#39; nie istnieje" in missing.text


def test_a_corrected_field_is_replayed_once(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['initech']['corrected']}"
    with of_role(shop, "ADMIN", "initech") as client:
        asked = client.get(f"{path}/replay")
        assert "Will run again" in asked.text
        form = {"mode": "FROM_FAILED", "f:order": "A-17", "f:amount": "a lot", "f:api_key": "••••••"}
        refused = client.post(f"{path}/replay", data={**form, "do": "check", "once": once(asked.text)})
        assert refused.status_code == 422
        assert re.search(r'id="wrong-\d">[^<]*Enter a whole number', refused.text)
        assert 'value="a lot"' in refused.text
        form["f:amount"] = "40"
        hurried = client.post(f"{path}/replay", data={**form, "do": "replay", "once": once(asked.text)})
        assert "Nothing has run yet" in hurried.text
        assert "<del>400</del> <ins>40</ins>" in hurried.text
        assert "turn on “Use new idempotency keys”" in hurried.text, "a warning names the field of the page"
        assert "new_operation to" not in hurried.text
        assert "k3y-s3cr3t" not in hurried.text
        seen = re.search(r'name="seen" value="([^"]+)"', hurried.text)
        assert seen
        form |= {"do": "replay", "seen": seen[1], "once": once(hurried.text), "reason": "a nought too many"}
        answers = [client.post(f"{path}/replay", data=form) for _ in range(2)]
        assert [(each.status_code, each.headers["location"]) for each in answers] == [
            (303, f"/app{path}?done=replayed")
        ] * 2
        page = client.get(f"{path}?done=replayed")
        assert "Retry started" in page.text
        assert page.text.count("a nought too many") == 1
        assert "Retrying" in page.text
        api = shop.client("initech", "ADMIN")
        assert len(api.get(f"/workflow-dlq/{shop.ids['initech']['corrected']}").json()["replays"]) == 1
        changed = client.post(f"{path}/replay", data={**form, "reason": "another"})
        assert changed.status_code == 422


def test_invalid_json_is_reported_and_stays_in_the_form(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['any']}/replay"
    with of_role(shop, "ADMIN") as client:
        typed = '{"order": "B-0",\n "amount": }'
        page = client.post(f"{path}?as=json", data={"mode": "FULL", "input": typed, "do": "check"})
        assert page.status_code == 422
        assert typed.replace('"', "&#34;") in page.text
        fitting = json.dumps({"order": "B-0", "amount": 1, "api_key": "••••••"})
        page = client.post(f"{path}?as=json", data={"mode": "FULL", "input": fitting, "do": "check"})
        assert "A new run executes all steps" in page.text
        assert "<ins>1</ins>" in page.text


def test_switching_between_fields_and_json_keeps_typed_values(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['any']}/replay"
    with of_role(shop, "ADMIN") as client:
        sent = {"mode": "FULL", **FIELDS, "f:amount": "47", "reason": "a typing error"}
        page = client.post(path, data={**sent, "as": "json"})
        typed = unescape(re.findall(r'<textarea class="json"[^>]*>(.*?)</textarea>', page.text, re.S)[0])
        assert json.loads(typed) == {"order": "B-0", "amount": 47, "api_key": "••••••"}
        assert 'value="a typing error"' in page.text
        sent = {"mode": "FULL", "input": typed.replace("47", "48"), "as": "fields"}
        page = client.post(f"{path}?as=json", data=sent)
        assert (page.status_code, 'name="f:amount"' in page.text) == (200, True)
        assert 'value="48"' in page.text
        lines = typed.replace("B-0", "B-0\\nB-1")
        page = client.post(f"{path}?as=json", data={**sent, "input": lines})
        assert (page.status_code, ">B-0\nB-1</textarea>" in page.text) == (200, True), "a field can hold several lines"
        turned = json.dumps(dict(reversed(json.loads(typed).items())))
        assert client.post(f"{path}?as=json", data={**sent, "input": turned}).status_code == 200
        back = client.post(f"{path}?as=json", data={**sent, "mode": "STEP_ONLY"})
        assert (back.status_code, KEPT in back.text, 'value="48"' in back.text) == (422, True, True)
        for wrong in ("NaN", "1e999", "[" * 1000):
            page = client.post(path, data={"mode": "FULL", **FIELDS, "f:amount": wrong, "as": "json"})
            assert (page.status_code, f"&#34;{wrong}&#34;" in page.text) == (422, True), wrong
        lost = typed.replace("B-0", "B-0\\rB-1")
        for beyond in (typed.replace("47", '48, "more": 1'), typed.replace("47", '"48"'), lost):
            page = client.post(f"{path}?as=json", data={**sent, "input": beyond})
            assert (page.status_code, page.text.count("no fields for this change")) == (422, 2)
            assert escape(beyond, quote=False).replace('"', "&#34;") in page.text
        kept = client.post(path, data={**FIELDS, "f:amount": "47", "mode": "STEP_ONLY", "as": "json"})
        assert (KEPT in kept.text, "47" in kept.text) == (True, True)
    api = shop.client("acme", "ADMIN")
    assert api.get(f"/workflow-dlq/{shop.ids['acme']['any']}").json()["status"] == "OPEN"


KEPT = "This mode keeps the input"
FIELDS = {"f:order": "B-0", "f:amount": "1000", "f:api_key": "••••••"}


@pytest.mark.parametrize("mode", ["STEP_ONLY", "SKIP", "COMPLETE"])
def test_a_mode_that_keeps_the_input_refuses_a_changed_input(shop: World, mode: str) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['any']}/replay"
    form = {"mode": mode, "output": '"paid"', **FIELDS}
    as_json = {"mode": mode, "output": '"paid"', "input": '{"order": "B-0", "amount": 4}'}
    with of_role(shop, "ADMIN") as client:
        kept = client.post(path, data={**form, "do": "check"})
        seen = re.search(r'name="seen" value="([^"]+)"', kept.text)
        assert (kept.status_code, bool(seen), KEPT in kept.text) == (200, True, False)
        for do in ("check", "replay"):
            sent = {**form, "f:amount": "4", "do": do, "seen": seen[1] if seen else ""}
            refused = client.post(path, data={**sent, "once": once(kept.text)})
            assert (refused.status_code, refused.text.count(KEPT)) == (422, 2), (
                "the error is shown at the top and at the input"
            )
            assert 'value="4"' in refused.text, "the form keeps the typed values"
            assert 'name="seen"' not in refused.text
        assert KEPT in client.post(f"{path}?as=json", data={**as_json, "do": "check"}).text
        many = {"ids": shop.ids["acme"]["any"], "action": "REPLAY", "mode": mode, "output": '"paid"'}
        patched = client.post("/admin/bulk-replays/new", data={**many, "input": '{"amount": 4}', "do": "check"})
        assert (patched.status_code, KEPT in patched.text) == (422, True)


def test_line_endings_of_a_browser_do_not_count_as_a_change() -> None:
    shown = {"note": "\r\none\r\ntwo\rthree", "amount": 1}
    same = {"note": "one\ntwo\nthree", "amount": "1"}
    assert fill_fields(shown, list_form_fields(shown) or [], same) == shown
    note = FormField(("note",), "one\rtwo")
    assert not note.is_one_line(note.text), "a single-line field would lose the line breaks"
    assert [note.keeps(text) for text in ("one\rtwo", "one\ntwo", "a\rb", "\na", "a\0", "\ud800")] == [
        *(True, True),
        *(False, False, False, False),
    ]


@pytest.mark.parametrize("typed", ["3", '"x"', "[1]", "[]", "null", "{half"])
def test_a_retry_policy_must_be_an_object(shop: World, typed: str) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['any']}/replay"
    with of_role(shop, "ADMIN") as client:
        page = client.post(path, data={"mode": "FROM_FAILED", "retry": typed, "do": "check"})
        assert page.status_code == 422
        assert 'aria-describedby="wrong-retry"' in page.text
        assert typed == "{half" or "Enter the retry policy as an object" in page.text
        assert f">{typed}</textarea>".replace('"', "&#34;") in page.text
        right = client.post(path, data={"mode": "FROM_FAILED", "retry": '{"max_retries": 5}', "do": "check"})
        assert (right.status_code, 'name="seen"' in right.text) == (200, True)


@pytest.mark.parametrize("typed", ["", " ", "null", "[]", '"B-0"'])
def test_an_input_must_be_an_object(shop: World, typed: str) -> None:
    ids = shop.ids["acme"]["any"]
    with of_role(shop, "ADMIN") as client:
        form = {"mode": "FROM_FAILED", "input": typed, "do": "check"}
        page = client.post(f"/admin/dlq/{ids}/replay?as=json", data=form)
        assert (page.status_code, "an object from name to value" in page.text) == (422, True)
        many = client.post("/admin/bulk-replays/new", data={"ids": ids, "action": "REPLAY", **form})
        blank = not typed.strip()
        assert (many.status_code, "an object from name" in many.text) == ((200, False) if blank else (422, True))


@pytest.mark.parametrize(
    ("mode", "output", "place", "words"),
    [
        ("SKIP", "", "output", "Enter the result of the step"),
        ("COMPLETE", "", "output", "Enter the result of the step"),
        ("FROM_STEP", "", "from_step", "Choose the step to continue from"),
        ("COMPLETE", "payment 7", "output", "A text needs quotes, such as &#34;payment 7&#34;"),
    ],
)
def test_a_missing_value_of_a_mode_is_reported_at_its_field(
    shop: World, mode: str, output: str, place: str, words: str
) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['any']}/replay"
    with of_role(shop, "ADMIN") as client:
        assert client.get(path, params={"mode": mode}).status_code == 200, "a form that was not sent yet has no errors"
        page = client.post(path, data={"mode": mode, "output": output, "do": "check"})
        assert (page.status_code, page.text.count(words)) == (422, 2)
        assert f'id="wrong-{place}"' in page.text
        polish = client.post(
            path, data={"mode": mode, "output": output, "do": "check"}, headers={"Accept-Language": "pl"}
        )
        assert words.split(",")[0] not in polish.text
        if mode == "SKIP":
            many = {"ids": shop.ids["acme"]["any"], "mode": mode, "do": "check"}
            asked = client.post("/admin/bulk-replays/new", data={**many, "action": "REPLAY"})
            assert (asked.status_code, words in asked.text) == (422, True)
            closing = client.post("/admin/bulk-replays/new", data={**many, "action": "RESOLVE"})
            assert closing.status_code == 200, "closing needs no result"


def test_a_refused_form_is_shown_again_in_place_with_all_typed_values(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['any']}"
    with of_role(shop, "STAFF") as staff:
        tags = f"bank, {'x' * 300}"
        refused = staff.post(f"{path}/tag", data={"tags": tags, "page": f"/app{path}", "once": "t1"})
        assert refused.status_code == 422
        assert re.search(
            rf'<details class="act " id="tag" open>(?:(?!</details>).)*value="{tags}"', refused.text, re.DOTALL
        )
        assert re.search(r'<input aria-invalid="true" aria-describedby="refused" name="tags"', refused.text)
        assert refused.text.count('id="refused"') == 1
        assert f'data-address="/app{path}"' in refused.text
        again = staff.post(f"{path}/tag", data={"tags": "bank", "page": f"/app{path}", "once": "t1"})
        assert again.status_code == 303, "the id of a refused form is not used up"
        gone = staff.post(f"{path}/tag", data={"tags": tags, "page": "/app/nowhere", "once": "t2"})
        assert (gone.status_code, tags in gone.text) == (422, True)


def test_a_failure_that_was_retried_shows_its_success(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['initech']['healed']}"
    with of_role(shop, "ADMIN", "initech") as admin:
        page = admin.get(path).text
        assert "<title>charge succeeded after a retry" in page
        assert "Corrected input" in page
        assert re.search(r"<del>1000</del> <ins>1</ins>", page)
        assert "paid 1" in Looked(page).text
        run = Looked(admin.get(f"/runs/{shop.ids['initech']['healed'].removeprefix('dl-')}").text).text
        assert "This run failed and then succeeded after a retry." in run
        assert "To correct the input" not in run
        again = Looked(admin.get(f"/runs/{shop.ids['initech']['healed'].removeprefix('dl-')}/again").text).text
        assert "Only a failed run can be retried. State of this run: Succeeded." in again
        assert "Start over as a new run" not in again, "no way to retry is offered"


@pytest.mark.parametrize(("mode", "title"), [("COMPLETE", "{name} was done manually"), ("SKIP", "{name} was skipped")])
async def test_a_failure_whose_result_was_entered_does_not_say_that_the_step_succeeded(mode: str, title: str) -> None:
    app = Redrive()

    @app.step(retry=RetryPolicy(max_retries=0))
    async def charge() -> str:
        raise ValueError("declined")

    @app.workflow
    async def order() -> str:
        paid: str = await charge()
        return paid

    async with engine(app) as e:
        handle = await order.start()
        await e.settle()
        await app.dlq.replay(f"dl-{handle.id}", mode, output="paid in cash", by="ann")
        await e.settle()
        outcome = describe_outcome(await app.dlq.get(f"dl-{handle.id}"))
    assert outcome is not None
    assert (outcome.title, outcome.good) == (title, True)


def test_a_missing_permission_is_explained_with_the_required_role(shop: World) -> None:
    id = shop.ids["acme"]["any"]
    with of_role(shop, "STAFF") as staff, of_role(shop, "VIEWER") as viewer, of_role(shop, "ADMIN") as admin:
        sentence = "needs the role Administrator. Ask a member of this tenant who has it."
        assert f"Retrying or closing a failure {sentence}" in Looked(staff.get(f"/admin/dlq/{id}").text).text
        assert f"Retrying a run {sentence}" in Looked(staff.get(f"/runs/{id.removeprefix('dl-')}").text).text
        assert "Assigning or commenting needs the role Staff" in Looked(viewer.get(f"/admin/dlq/{id}").text).text
        assert "Ask a member" not in admin.get(f"/admin/dlq/{id}").text


def test_comments_and_closing_are_applied_once_and_shown(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['initech']['closed']}"
    with of_role(shop, "STAFF", "initech") as staff:
        word = once(staff.get(path).text)
        for _ in range(2):
            staff.post(f"{path}/comment", data={"text": "asked the bank", "once": word})
        staff.post(f"{path}/assign", data={"do": "me"})
        staff.post(f"{path}/tag", data={"tags": "bank, monday"})
        page = Looked(staff.get(path).text).text
        assert page.count("asked the bank") == 1
        assert "token:STAFF" in page
        assert "monday" in page
        assert "Mark as resolved" not in page
        assert staff.post(f"{path}/resolve").status_code == 403
        assert staff.post(f"{path}/comment", data={"text": " "}).status_code == 422
    with of_role(shop, "ADMIN", "initech") as admin:
        answer = admin.post(f"{path}/resolve", data={"reason": "paid by hand"})
        assert answer.headers["location"].endswith("?done=resolved")
        page = Looked(admin.get(path).text).text
        assert "Resolved" in page
        assert "paid by hand" in page
        late = admin.post(f"{path}/ignore")
        assert (late.status_code, "This has changed since you opened it" in late.text) == (409, True)
        sent = {"reason": "a test order", "page": f"/app{path}", "once": "late"}
        late = admin.post(f"{path}/ignore", data=sent)
        assert (late.status_code, "This has changed since you opened it" in late.text) == (409, True)
        assert "Closed by token:ADMIN" in late.text, "the answer shows the current state of the failure"
        assert "a test order" in late.text
        assert "Another decision came first. State of this failure: Resolved." in late.text
        assert f'href="/app{path}/replay"' not in admin.get(path).text, "this link would always be refused"
        link = re.search(r'href="/app(/runs/[^"]+)"[^>]*>(?:(?!</a>).)*Retry the run', admin.get(path).text)
        assert link
        assert "Will run again" in admin.get(link[1]).text
        undone = admin.get(f"{path}?done=resolved").text
        assert re.search(rf'action="/app{path}/reopen"[^>]*>(?:(?!</form>).)*Undo', undone, re.DOTALL)
        answer = admin.post(f"{path}/reopen", data={"reason": "the bank sent it back"})
        page = admin.get(answer.headers["location"].removeprefix("/app")).text
        assert "needs a decision again" in page
        assert "the bank sent it back" in page
        assert f'href="/app{path}/replay"' in page
        assert f"{path}/reopen" not in page


def test_a_letter_shows_the_end_of_its_replay_instead_of_its_start(shop: World) -> None:
    healed, failing = (f"/admin/dlq/{shop.ids['initech'][name]}" for name in ("healed", "failing"))
    with of_role(shop, "ADMIN", "initech") as client:
        page = client.get(f"{healed}?done=replayed").text
        assert "The retry succeeded" in page
        for gone in ("Retry started", "Retrying will not help", "Retry the run", f"/app{healed}/replay"):
            assert gone not in page, gone
        assert "Retry started" not in client.get(f"{failing}?done=replayed").text
        assert "Comment added" in client.get(f"{failing}?done=commented").text


async def test_a_closed_letter_shows_the_outcome_of_its_run() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.workflow
    async def order() -> None:
        raise NonRetryable("no")

    async with engine(app) as e:
        await e.run(order)
        letter = await app.dlq.get((await app.dlq.list()).items[0].id)
    assert describe_outcome(letter) is None
    closed = replace(letter, status=LetterStatus.RESOLVED, closed_by="redrive", closed_at=letter.failed_at)
    ways = {
        ReasonCode.REPLAY_SUCCEEDED: ("succeeded. Nothing more to do", False),
        ReasonCode.STEP_REPLAY_SUCCEEDED: ("The run is not finished", True),
        ReasonCode.ROLLED_BACK: ("was rolled back. Nothing more to do", False),
        ReasonCode.RUN_CANCELLED: ("The retry was cancelled", False),
    }
    for resolution, (words, retries) in ways.items():
        found = describe_outcome(replace(closed, resolution_code=resolution))
        assert found is not None
        assert (words in (found.sentence or ""), found.retries) == (True, retries), resolution
    expired = replace(closed, status=LetterStatus.EXPIRED, resolution=None)
    found = describe_outcome(expired)
    assert found is not None
    assert (found.retries, "The work was not done" in (found.sentence or "")) == (True, True)
    assert describe_outcome(replace(closed, closed_by="ann", resolution="paid")) == OutcomeDisplay(
        retries=True, reopens=True
    )
    assert describe_outcome(replace(closed, closed_by="ann", purged=True)) == OutcomeDisplay(retries=False)


def test_hostile_content_is_text_and_large_content_is_folded(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['nasty']}"
    with browser(shop, shop.tokens["acme", "SEER"]) as client:
        for page in (client.get(path), client.get(f"{path}/replay"), client.post(f"{path}/reveal")):
            looked = Looked(page.text)
            assert looked.tags.count("script") == 1
            assert looked.inline == []
            assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in page.text
        assert len(client.get(path).text) < 120_000


def test_many_letters_are_replayed_at_most_once_after_a_preview(shop: World) -> None:
    with of_role(shop, "ADMIN", "initech") as client, of_role(shop, "VIEWER", "initech") as viewer:
        for list in ("", "?list=https://evil.example/", "?list=/app/runs?x=1"):
            assert client.get(f"/admin/bulk-replays/new{list}").status_code == 422
        address = "/app/admin/dlq?view=items&index=order%3AB-1"
        assert f'name="list" value="{address.replace("&", "&amp;")}"' in client.get(address[4:]).text
        sent = client.get("/admin/bulk-replays/new", params={"action": "REPLAY", "list": address})
        assert (sent.status_code, sent.headers["location"]) == (303, f"{address}&select=none")
        again = client.get(sent.headers["location"][4:]).text
        assert "Nothing was selected." in again
        assert f'name="list" value="{address.replace("&", "&amp;")}"' in again
        picked = {"ids": rows(client.get("/admin/dlq?view=items&index=order:B-1").text)}
        assert picked == {"ids": [shop.ids["initech"]["again"]]}
        plan = client.get("/admin/bulk-replays/new", params=picked).text
        assert "Retry 1 failure" in plan
        assert "Will run again" in plan
        form = {"action": "REPLAY", "mode": "FROM_FAILED", "reason": "the bank is back", **picked}
        patched = client.post("/admin/bulk-replays/new", data={**form, "input": '{"amount": 5}', "do": "begin"}).text
        assert "Nothing has run yet" in patched
        assert "<ins>5</ins>" in patched
        seen = re.search(r'name="seen" value="([^"]+)"', plan)
        assert seen
        form |= {"do": "begin", "seen": seen[1], "once": once(plan), "rate": "fast", "per": "m"}
        refused = client.post("/admin/bulk-replays/new", data=form)
        assert (refused.status_code, "a whole number from 1 to" in refused.text) == (422, True)
        form |= {"rate": "1\u202f200", "once": once(refused.text)}
        places = {client.post("/admin/bulk-replays/new", data=form).headers["location"] for _ in range(2)}
        (place,) = places
        page = viewer.get(place.removeprefix("/app")).text
        assert "the bank is back" in page
        assert "<h1>Retry: 1 selected failure</h1>" in page
        assert "Stop…" not in page
        path = place.removeprefix("/app")
        for verb in ("pause", "resume", "rate", "stop"):
            assert viewer.post(f"{path}/{verb}").status_code == 403
        assert "at most 1,200 per minute" in page
        assert client.post(f"{path}/pause").status_code == 303
        paused = Looked(client.get(path).text).text
        assert "Paused by" in paused
        assert "Resume" in paused
        for typed in ("0", "0.5", "1,5"):
            wrong = client.post(f"{path}/rate", data={"rate": typed, "per": "s"})
            assert (wrong.status_code, "a whole number from 1 to" in wrong.text) == (422, True)
        assert client.post(f"{path}/rate", data={"rate": "7", "per": "h"}).status_code == 303
        assert client.post(f"{path}/resume").status_code == 303
        going = Looked(client.get(path).text).text
        assert "at most 7 per hour" in going
        assert "Paused by" not in going
        assert client.post(f"{path}/rate", data={"rate": "", "per": "h"}).status_code == 303
        assert "no limit" in client.get(path).text
        assert client.post(f"{path}/stop").status_code == 303
        stopped = Looked(client.get(path).text).text
        assert "Stopped" in stopped
        assert "1 Not processed" in stopped
        assert "Queued" not in stopped
        assert "Waiting" not in stopped, "a stopped bulk action has no waiting letters"
        wanted = {"tag": "urgent", "owner": "kim", "since": "2026-01-31T12:00:00Z"}
        named = shop.client("initech", "ADMIN").post("/workflow-dlq/ignore", json={"filter": wanted}).json()
        title = Looked(viewer.get(f"/admin/bulk-replays/{named['id']}").text).text
        assert "Ignore: Assignee: kim, Tag: urgent, From: 2026-01-31 12:00" in title
        listed = Looked(viewer.get("/admin/bulk-replays").text).text
        assert "Stopped 1 not processed" in listed
        assert listed.count("the bank is back") == 1
        with of_role(shop, "ADMIN", tenant="globex") as other:
            assert other.get(place.removeprefix("/app")).status_code == 404


def test_a_bulk_preview_counts_retried_and_refused_letters(shop: World) -> None:
    with of_role(shop, "ADMIN") as client:
        new, ids = "/admin/bulk-replays/new", [shop.ids["acme"]["any"], shop.ids["acme"]["wrong"]]
        mixed = Looked(client.get(new, params={"ids": [*ids, "dl-nothing"]}).text).text
        assert "Of 3 checked failures, 1 would be refused and 2 retried." in mixed
        assert "charge – charges a card in 2 of 2 examples" in mixed
        none = Looked(client.get(new, params={"ids": ["dl-nothing", "dl-missing"]}).text).text
        assert "All 2 checked failures would be refused." in none
        assert "Will call external services" not in none


async def test_a_bulk_preview_counts_the_effects_of_all_examples() -> None:
    app = Redrive("sqlite:///:memory:")

    @app.step(effect="charges a card")
    async def charge() -> None:
        raise NonRetryable("no")

    @app.step
    async def count() -> None:
        raise NonRetryable("no")

    @app.workflow
    async def pay() -> None:
        await charge()

    @app.workflow
    async def sum_up() -> None:
        await count()

    async with engine(app) as e:
        for workflow in (sum_up, pay, pay):
            await e.run(workflow)
        letters = sorted((await app.dlq.list()).items, key=lambda each: each.workflow, reverse=True)
        plan = await app.dlq.replay_many([each.id for each in letters], dry_run=True, by="ann")
    assert isinstance(plan, DryRunOfMany)
    assert plan.sample[0].effects == ()
    assert count_effects(plan) == [EffectCount(step="charge", effect="charges a card", count=2)]


def test_a_filter_is_saved_opened_shared_and_removed(shop: World) -> None:
    in_polish = {"Accept-Language": "pl"}
    with of_role(shop, "STAFF") as staff, of_role(shop, "VIEWER") as viewer:
        assert "Save this view" not in staff.get("/admin/dlq?view=items").text
        page = staff.get("/admin/dlq?view=items&code=timeout&workflow=a%26b").text
        assert "Save for everyone" in page
        assert "Save for everyone" not in viewer.get("/admin/dlq?view=items&code=timeout").text
        query = re.search(r'name="query" value="([^"]+)"', page)
        assert query
        form = {"list": "letters", "query": unescape(query[1]), "name": "<i>slow", "once": once(page)}
        answers = [staff.post("/views", data=form) for _ in range(2)]
        assert {answer.headers["location"] for answer in answers} == {
            "/app/admin/dlq?code=timeout&workflow=a%26b&view=items"
        }
        opened = staff.get("/admin/dlq").text
        assert "&lt;i&gt;slow" in opened
        assert "code=timeout&amp;workflow=a%26b&amp;view=items" in opened
        assert "slow" not in viewer.get("/admin/dlq").text
        assert viewer.post("/views/share", data=form).status_code == 403
        assert staff.post("/views/share", data={**form, "name": "night shift", "once": "s"}).status_code == 303
        assert "night shift" in viewer.get("/admin/dlq").text
        assert "Remove a view" not in viewer.get("/admin/dlq").text
        with of_role(shop, "ADMIN", tenant="globex") as other:
            assert "night shift" not in other.get("/admin/dlq").text
        for path in ("/runs?kind=bad", "/audit?event=dlq."):
            assert "Save this view" in viewer.get(path).text
        for wrong in ({"name": "x" * 61}, {"query": ""}, {"query": "queue=x"}, {"list": "people"}):
            refused = staff.post("/views", data={**form, "once": str(wrong), **wrong})
            assert (refused.status_code, "Nothing was changed" in refused.text) == (422, True), wrong
        polish = staff.post("/views", data={**form, "once": "pl", "query": ""}, headers=in_polish)
        assert "Filtr widoku jest pusty" in polish.text
        assert staff.post("/views/unshare", data={"list": "letters", "name": "night shift"}).status_code == 303
        assert staff.post("/views/remove", data={"list": "letters", "name": "<i>slow"}).status_code == 303
        assert "Saved views" not in staff.get("/admin/dlq").text


def test_a_large_bulk_action_is_confirmed_by_typing_its_number(shop: World) -> None:
    with of_role(shop, "ADMIN") as client:
        plan = client.get("/admin/bulk-replays/new", params={"all": "yes", "action": "IGNORE"}).text
        count = re.search(r"Ignore (\d+) failures", plan)
        assert count
        assert "to confirm" not in plan
        wide = client.get("/admin/bulk-replays/new", params={"ids": [f"dl-{n}" for n in range(101)]}).text
        assert "Enter 101 to confirm" in wide
        seen = re.search(r'name="seen" value="([^"]+)"', wide)
        form = {"action": "REPLAY", "mode": "FROM_FAILED", "do": "begin", "total": "101", "confirm": "11"}
        form |= {"ids": [f"dl-{n}" for n in range(101)], "seen": seen[1] if seen else ""}
        refused = client.post("/admin/bulk-replays/new", data=form)
        assert (refused.status_code, "Please correct" in refused.text) == (422, True)
        begun = client.post("/admin/bulk-replays/new", data={**form, "confirm": " 101 "})
        assert begun.status_code == 303


def test_a_letter_of_another_tenant_is_not_found(shop: World) -> None:
    with of_role(shop, "ADMIN") as admin, of_role(shop, "OWNER") as owner:
        theirs = shop.ids["globex"]["any"]
        for path in (f"/admin/dlq/{theirs}", f"/admin/dlq/{theirs}/replay"):
            assert admin.get(path).status_code == 404
            assert owner.get(f"{path}?tenant=globex").status_code == 200
        led = owner.get(f"/admin/dlq/{theirs}")
        assert led.headers["location"] == f"/app/admin/dlq/{theirs}?tenant=globex"
        for action in ("resolve", "ignore", "assign", "comment", "tag", "replay"):
            assert admin.post(f"/admin/dlq/{theirs}/{action}", data={"text": "x"}).status_code == 404
        assert theirs not in admin.get("/admin/dlq?view=items").text
        assert theirs in owner.get("/admin/dlq?view=items&tenant=*").text

    async def kept() -> tuple[object, ...]:
        async with opened(shop.url) as store:
            row = await store.letter(theirs)
            assert row is not None
            return row.status, row.owner, row.tags

    assert asyncio.run(kept()) == ("OPEN", None, ()), "refused requests of other tenants change nothing"


def test_every_change_by_an_owner_in_another_tenant_is_audited(shop: World) -> None:
    api = shop.client("globex", "ADMIN")

    def noted() -> int:
        return len(api.get("/audit", params={"event": "tenant.entered"}).json()["items"])

    path = f"/admin/dlq/{shop.ids['globex']['any']}"
    with of_role(shop, "OWNER") as owner:
        page = owner.get(f"{path}?tenant=globex").text
        assert f'action="/app{path}/comment?tenant=globex"' in page
        before = noted()
        for text in ("one", "two"):
            sent = {"text": text, "once": f"{text}-{once(page)}"}
            assert owner.post(f"{path}/comment?tenant=globex", data=sent).status_code == 303
        assert noted() == before + 2
        owner.get(f"{path}?tenant=globex")
        assert noted() == before + 2
