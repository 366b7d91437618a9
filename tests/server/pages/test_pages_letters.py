"""Dead letters in a browser: found, understood, corrected, decided on, by those who may."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Iterator
from html import unescape

import pytest
from pages_kit import Looked, browser, of_role, once
from server_kit import SECRET, World, access_of, opened, serving

from redrive import Redrive
from redrive.core.roles import Role
from redrive.server.auth.access import NewToken

HOSTILE = "</pre><script>alert(1)</script>=cmd|' /C calc'!A0 مرحبا"
MANY = 30


async def fill(url: str, world: World) -> None:
    """Letters of three tenants: many alike, one whose texts are hostile, one that is large.

    Those of `acme` are looked at, and stay open; those of `initech` are decided on, each by one test.
    """
    from server_shop import app, fulfil

    app.settings = Redrive(url, secret_key=SECRET).settings
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
        wrong, mended = [
            await fulfil.start("A-17", 400, "k3y-s3cr3t", tenant=tenant, correlation_id="order-17")
            for tenant in ("acme", "initech")
        ]
        closed, again = [await fulfil.start(f"B-{n}", 1000, "k3y", tenant="initech") for n in range(2)]
        nasty = await fulfil.start(HOSTILE, 1000, "x" * 300_000, tenant="acme", correlation_id=HOSTILE)
        other = await fulfil.start("G-1", 1000, tenant="globex")
        for run in [*runs, wrong, mended, closed, again, nasty, other]:
            while (await run.status()) != "DLQ_PENDING":  # noqa: ASYNC110 - a real worker
                await asyncio.sleep(0.02)
        world.ids = {
            "acme": {"wrong": f"dl-{wrong.id}", "nasty": f"dl-{nasty.id}", "any": f"dl-{runs[0].id}"}
        }
        world.ids["globex"] = {"any": f"dl-{other.id}"}
        world.ids["initech"] = {
            "mended": f"dl-{mended.id}",
            "closed": f"dl-{closed.id}",
            "again": f"dl-{again.id}",
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


def test_causes_lead_to_letters_and_filters_are_in_the_address(shop: World) -> None:
    with of_role(shop, "VIEWER") as client:
        causes = client.get("/admin/dlq").text
        assert len(rows(causes)) == 1
        assert "Replay" not in Looked(causes).text
        link = re.search(r'href="/app(/admin/dlq\?fingerprint=[^"]+)"', causes)
        assert link
        first = client.get(link[1] + "&limit=50").text
        assert 'name="text"' not in first, "what is hidden is no matter of searching"
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
        assert rows(client.get("/admin/dlq", params={"index": "order:A-17"}).text) == [
            shop.ids["acme"]["wrong"]
        ]
        assert "Nothing matches" in client.get("/admin/dlq", params={"workflow": "nothing"}).text
        assert rows(client.get("/admin/dlq", params={"status": "RESOLVED"}).text) == []
        assert client.get("/admin/dlq", params={"since": "yesterday-ish"}).status_code == 422


def test_a_list_is_a_file_in_which_no_cell_is_a_formula(shop: World) -> None:
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


def test_a_letter_says_what_happened_and_hides_secrets(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['wrong']}"
    with of_role(shop, "ADMIN") as client:
        page = Looked(client.get(path).text)
        assert "Step charge of fulfil failed" in page.text
        assert "400 is too much" in page.text
        assert "trying again does not mend" in page.text
        assert "k3y-s3cr3t" not in page.text
        assert client.post(f"{path}/reveal").status_code == 403
    with browser(shop, shop.tokens["acme", "SEER"]) as seer:
        assert "k3y-s3cr3t" in seer.post(f"{path}/reveal").text
        assert "Hidden data of a dead letter was shown" in seer.get(path).text
        assert seer.get(f"{path}/reveal").headers["location"] == f"/app{path}"
    with of_role(shop, "ADMIN", headers={"Accept-Language": "pl"}) as client:
        assert "Krok charge przepływu fulfil nie powiódł się" in Looked(client.get(path).text).text


def test_somebody_corrects_a_field_and_replays_once(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['initech']['mended']}"
    with of_role(shop, "ADMIN", "initech") as client:
        asked = client.get(f"{path}/replay")
        assert "Done again" in asked.text
        form = {"mode": "FROM_FAILED", "f:order": "A-17", "f:amount": "a lot", "f:api_key": "••••••"}
        refused = client.post(f"{path}/replay", data={**form, "do": "check", "once": once(asked.text)})
        assert refused.status_code == 422
        assert re.search(r'id="wrong-\d" lang="en">[^<]*integer', refused.text)
        assert 'value="a lot"' in refused.text
        form["f:amount"] = "40"
        hurried = client.post(f"{path}/replay", data={**form, "do": "replay", "once": once(asked.text)})
        assert "Nothing was done yet" in hurried.text
        assert "<del>400</del> <ins>40</ins>" in hurried.text
        assert "k3y-s3cr3t" not in hurried.text
        seen = re.search(r'name="seen" value="([^"]+)"', hurried.text)
        assert seen
        form |= {"do": "replay", "seen": seen[1], "once": once(hurried.text), "reason": "a nought too many"}
        answers = [client.post(f"{path}/replay", data=form) for _ in range(2)]
        assert [(each.status_code, each.headers["location"]) for each in answers] == [
            (303, f"/app{path}?done=replayed")
        ] * 2
        page = client.get(f"{path}?done=replayed")
        assert "It runs again" in page.text
        assert page.text.count("a nought too many") == 1
        assert "Being replayed" in page.text
        api = shop.client("initech", "ADMIN")
        assert len(api.get(f"/workflow-dlq/{shop.ids['initech']['mended']}").json()["replays"]) == 1
        changed = client.post(f"{path}/replay", data={**form, "reason": "another"})
        assert changed.status_code == 422


def test_json_that_cannot_be_read_is_kept_and_named(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['any']}/replay"
    with of_role(shop, "ADMIN") as client:
        typed = '{"order": "B-0",\n "amount": }'
        page = client.post(f"{path}?as=json", data={"mode": "FULL", "input": typed, "do": "check"})
        assert page.status_code == 422
        assert typed.replace('"', "&#34;") in page.text
        fitting = json.dumps({"order": "B-0", "amount": 1, "api_key": "••••••"})
        page = client.post(f"{path}?as=json", data={"mode": "FULL", "input": fitting, "do": "check"})
        assert "A new run does everything" in page.text
        assert "<ins>1</ins>" in page.text


def test_notes_and_closing_are_done_once_and_told(shop: World) -> None:
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
        assert "Resolve" not in page
        assert staff.post(f"{path}/resolve").status_code == 403
        assert staff.post(f"{path}/comment", data={"text": " "}).status_code == 422
    with of_role(shop, "ADMIN", "initech") as admin:
        answer = admin.post(f"{path}/resolve", data={"reason": "paid by hand"})
        assert answer.headers["location"].endswith("?done=resolved")
        page = Looked(admin.get(path).text).text
        assert "Resolved" in page
        assert "paid by hand" in page
        assert admin.post(f"{path}/ignore").status_code == 409


def test_hostile_content_is_text_and_large_content_is_folded(shop: World) -> None:
    path = f"/admin/dlq/{shop.ids['acme']['nasty']}"
    with browser(shop, shop.tokens["acme", "SEER"]) as client:
        for page in (client.get(path), client.get(f"{path}/replay"), client.post(f"{path}/reveal")):
            looked = Looked(page.text)
            assert looked.tags.count("script") == 1
            assert looked.inline == []
            assert "&lt;/pre&gt;&lt;script&gt;alert(1)" in page.text
        assert len(client.get(path).text) < 120_000


def test_many_are_replayed_after_a_look_and_at_most_once(shop: World) -> None:
    with of_role(shop, "ADMIN", "initech") as client, of_role(shop, "VIEWER", "initech") as viewer:
        assert client.get("/admin/bulk-replays/new").status_code == 422
        picked = {"ids": rows(client.get("/admin/dlq?view=items&index=order:B-1").text)}
        assert picked == {"ids": [shop.ids["initech"]["again"]]}
        plan = client.get("/admin/bulk-replays/new", params=picked).text
        assert "Replay 1 dead letter" in plan
        assert "Done again" in plan
        form = {"action": "REPLAY", "mode": "FROM_FAILED", "reason": "the bank is back", **picked}
        patched = client.post(
            "/admin/bulk-replays/new", data={**form, "input": '{"amount": 5}', "do": "begin"}
        ).text
        assert "Nothing was done yet" in patched
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
        assert "Stop…" not in page
        path = place.removeprefix("/app")
        for verb in ("pause", "resume", "rate", "stop"):
            assert viewer.post(f"{path}/{verb}").status_code == 403
        assert "at most 1\u202f200 a minute" in page
        assert client.post(f"{path}/pause").status_code == 303
        paused = Looked(client.get(path).text).text
        assert "Paused by" in paused
        assert "Go on" in paused
        for typed in ("0", "0.5", "1,5"):
            wrong = client.post(f"{path}/rate", data={"rate": typed, "per": "s"})
            assert (wrong.status_code, "a whole number from 1 to" in wrong.text) == (422, True)
        assert client.post(f"{path}/rate", data={"rate": "7", "per": "h"}).status_code == 303
        assert client.post(f"{path}/resume").status_code == 303
        going = Looked(client.get(path).text).text
        assert "at most 7 an hour" in going
        assert "Paused by" not in going
        assert client.post(f"{path}/rate", data={"rate": "", "per": "h"}).status_code == 303
        assert "as fast as it can" in client.get(path).text
        assert client.post(f"{path}/stop").status_code == 303
        assert "Stopped" in Looked(client.get(place.removeprefix("/app")).text).text
        listed = Looked(viewer.get("/admin/bulk-replays").text).text
        assert listed.count("the bank is back") == 1
        with of_role(shop, "ADMIN", tenant="globex") as other:
            assert other.get(place.removeprefix("/app")).status_code == 404


def test_a_filter_is_saved_opened_shared_and_removed(shop: World) -> None:
    in_polish = {"Accept-Language": "pl"}
    with of_role(shop, "STAFF") as staff, of_role(shop, "VIEWER") as viewer:
        assert "Save this view" not in staff.get("/admin/dlq?view=items").text
        page = staff.get("/admin/dlq?view=items&code=timeout&workflow=a%26b").text
        assert "Keep it for everybody" in page
        assert "Keep it for everybody" not in viewer.get("/admin/dlq?view=items&code=timeout").text
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
        assert (
            staff.post("/views/share", data={**form, "name": "night shift", "once": "s"}).status_code == 303
        )
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
        assert "filtr widoku o coś pyta" in polish.text
        assert (
            staff.post("/views/unshare", data={"list": "letters", "name": "night shift"}).status_code == 303
        )
        assert staff.post("/views/remove", data={"list": "letters", "name": "<i>slow"}).status_code == 303
        assert "Saved views" not in staff.get("/admin/dlq").text


def test_the_number_is_typed_where_there_are_many(shop: World) -> None:
    with of_role(shop, "ADMIN") as client:
        plan = client.get("/admin/bulk-replays/new", params={"all": "yes", "action": "IGNORE"}).text
        count = re.search(r"Ignore (\d+) dead letters", plan)
        assert count
        assert "to confirm" not in plan
        wide = client.get("/admin/bulk-replays/new", params={"ids": [f"dl-{n}" for n in range(101)]}).text
        assert "Type 101 to confirm" in wide
        seen = re.search(r'name="seen" value="([^"]+)"', wide)
        form = {"action": "REPLAY", "mode": "FROM_FAILED", "do": "begin", "total": "101", "confirm": "11"}
        form |= {"ids": [f"dl-{n}" for n in range(101)], "seen": seen[1] if seen else ""}
        refused = client.post("/admin/bulk-replays/new", data=form)
        assert (refused.status_code, "Nothing was done" in refused.text) == (422, True)
        begun = client.post("/admin/bulk-replays/new", data={**form, "confirm": " 101 "})
        assert begun.status_code == 303


def test_another_tenant_s_letter_is_not_there(shop: World) -> None:
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

    assert asyncio.run(kept()) == ("OPEN", None, ()), "nothing was written for strangers"


def test_an_owner_s_change_in_another_tenant_is_noted_each_time(shop: World) -> None:
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
