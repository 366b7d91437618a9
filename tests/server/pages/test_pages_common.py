"""Rules of every page: signing in and out, headers, static files, languages, errors."""

from __future__ import annotations

import gzip
import re
from html import unescape

import httpx2
from pages_kit import Looked, browser, of_role
from server_kit import World

PASSWORD = "a good password"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PERSON = {"email": "staff@acme.example", "password": PASSWORD}


def test_signing_in_leads_to_the_requested_page(site: World) -> None:
    with browser(site) as client:
        assert client.get(f"{site.address}/").headers["location"] == "/app/"
        wanted = "/app/?tenant=acme"
        sent_to = client.get(f"{site.address}{wanted}")
        assert sent_to.status_code == 303
        page = client.get(f"{site.address}{sent_to.headers['location']}")
        assert 'name="next" value="/app/?tenant=acme"' in page.text
        wrong = client.post("/login", data={**PERSON, "password": "wrong password", "next": wanted})
        assert wrong.status_code == 401
        assert "Wrong email, password or code." in wrong.text
        assert 'value="staff@acme.example"' in wrong.text
        assert "wrong password" not in wrong.text
        coded = client.post("/login", data={"email": PERSON["email"], "code": "c0de.typo"})
        assert (coded.status_code, 'value="c0de.typo"' in coded.text) == (401, True), "a typo can be corrected"
        answer = client.post("/login", data={**PERSON, "next": wanted})
        assert (answer.status_code, answer.headers["location"]) == (303, wanted)
        home = client.get("/")
        assert home.status_code == 200
        looked = Looked(home.text)
        assert "acme" in looked.text
        assert "staff@acme.example" in looked.text
        assert client.post("/logout").headers["location"] == "/app/login"
        assert client.get("/").status_code == 303


def test_signing_in_redirects_only_to_pages_of_this_server(site: World) -> None:
    with browser(site) as client:
        for wanted in ("https://evil.example/", "//evil.example", "/app//evil.example", "/app/\\evil", "/api/v1/me"):
            answer = client.post("/login", data={**PERSON, "next": wanted})
            assert answer.headers["location"] == "/app/", wanted


def test_a_form_survives_an_expired_session_and_is_not_resubmitted_automatically(site: World) -> None:
    path = f"/admin/dlq/{site.ids['acme']['letter']}"
    words = 'asked the bank: "tomorrow" <b>ą</b>'
    with browser(site) as client:
        form = {"text": words, "page": f"/app{path}", "once": "word-1"}
        expired = client.post(f"{path}/comment", data=form)
        assert expired.status_code == 401
        assert "what you entered is kept" in expired.text
        kept = re.search(r'name="kept" value="([^"]+)"', expired.text)
        assert kept
        wrong = client.post("/login", data={**PERSON, "password": "wrong password", "kept": kept[1]})
        assert kept[1] in wrong.text
        back = client.post("/login", data={**PERSON, "kept": kept[1]})
        assert back.status_code == 200
        assert "Nothing has been sent yet" in back.text
        filled = re.search(r'<textarea[^>]*name="text"[^>]*>\n(.*?)</textarea>', back.text)
        assert filled
        assert unescape(filled[1]) == words
        assert "asked the bank" not in client.get(path).text
        assert client.post(f"{path}/comment", data={**form, "once": "word-2"}).status_code == 303
        assert "asked the bank" in client.get(path).text
        for other in ("x", "eJw=", kept[1][:40]):
            assert client.post("/login", data={**PERSON, "kept": other}).status_code == 303
        large = client.post(f"{path}/comment", data={**form, "text": "x" * 70_000}, headers={"Cookie": ""})
        assert (large.status_code, large.headers["location"]) == (303, "/app/login")


def test_forms_from_other_sites_are_refused(site: World) -> None:
    with browser(site, headers={"Sec-Fetch-Site": "cross-site"}) as client:
        for path in ("/login", "/logout", "/look"):
            assert client.post(path, data=PERSON).status_code == 403, path


def test_other_sites_fill_in_no_forms(site: World) -> None:
    """A user who signs in, or who is signed in, would take the words for their own and send them."""
    path = f"/admin/dlq/{site.ids['acme']['letter']}"
    form = {"text": "words of another site", "page": f"/app{path}", "once": "word-3"}
    with browser(site) as client:
        for where in ("cross-site", "same-site"):
            other = {"Sec-Fetch-Site": where, "Origin": "https://other.example"}
            unknown = client.post(f"{path}/comment", data=form, headers={**other, "Cookie": ""})
            assert (unknown.status_code, unknown.headers["location"]) == (303, "/app/login")
            assert client.post("/login", data=PERSON).status_code == 303
            refused = client.post(f"{path}/comment", data=form, headers=other)
            assert (refused.status_code, "words of another site" in refused.text) == (403, False)


def test_pages_contain_no_inline_code_and_no_external_links(site: World) -> None:
    with of_role(site, "OWNER") as client:
        for path in ("/login", "/", "/nowhere"):
            page = client.get(path)
            looked = Looked(page.text)
            assert looked.inline == []
            assert all(link.startswith(("/app/", "#")) for link in looked.links), looked.links
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert page.headers["referrer-policy"] == "same-origin"
            assert page.headers["cache-control"] == "no-store"


def test_the_first_load_is_small_and_its_files_are_cached(site: World) -> None:
    with of_role(site, "OWNER") as client:
        page = client.get("/")
        size = len(gzip.compress(page.content))
        files = re.findall(r'(?:href|src)="(/app/static/[^"]+)"', page.text)
        assert len(files) == 3
        for file in files:
            plain = client.get(f"{site.address}{file}", headers={"Accept-Encoding": "identity"})
            small = client.get(f"{site.address}{file}")
            assert "immutable" in small.headers["cache-control"]
            assert plain.content == small.content
            size += len(gzip.compress(plain.content))
        assert size < 60_000
        assert client.get("/static/app.000000000000.css").status_code == 404


def test_language_theme_and_time_zone_are_chosen_and_kept(site: World) -> None:
    with of_role(site, "VIEWER", headers={"Accept-Language": "pl-PL,pl;q=0.9"}) as client:
        assert '<html lang="pl" data-theme="auto" data-clock="local">' in client.get("/").text
        chosen = client.post("/look", data={"language": "en", "next": "/app/?tenant=acme"})
        assert chosen.headers["location"] == "/app/?tenant=acme"
        client.post("/look", data={"theme": "dark"})
        client.post("/look", data={"clock": "utc"})
        assert '<html lang="en" data-theme="dark" data-clock="utc">' in client.get("/").text
        client.post("/look", data={"theme": "loud", "language": "tlh", "clock": "cuckoo"})
        assert '<html lang="en" data-theme="dark" data-clock="utc">' in client.get("/").text


def test_an_owner_sees_all_tenants_and_other_users_only_theirs(site: World) -> None:
    with of_role(site, "OWNER") as owner, of_role(site, "ADMIN") as admin:
        home = owner.get("/?tenant=globex")
        assert "globex" in Looked(home.text).text
        assert "/app/?tenant=globex" in home.text
        assert 'data-events="/api/v1/events?tenant=globex"' in home.text
        assert "globex" not in Looked(admin.get("/").text).text
        unknown = owner.get("/?tenant=acmee")
        assert unknown.status_code == 404
        assert "acmee" in unknown.text
        assert "All clear" not in unknown.text
        refused = admin.get("/?tenant=globex")
        assert refused.status_code == 403
        assert "OWNER" in refused.text


def test_access_to_another_tenant_is_audited_once_per_interval(site: World) -> None:
    api = site.client("globex", "ADMIN")
    new = site.client("acme", "OWNER").post("/tokens", json={"role": "OWNER", "name": "passer-by"}).json()

    def noted() -> int:
        lines = api.get("/audit", params={"event": "tenant.entered"}).json()["items"]
        return sum(line["by"].startswith("token:passer-by:") for line in lines)

    with browser(site, new["secret"]) as owner:
        for _ in range(3):
            assert owner.get("/?tenant=globex").status_code == 200
        assert noted() == 1
        owner.get("/?tenant=*")
        assert noted() == 1


def test_errors_are_shown_as_pages(site: World) -> None:
    with of_role(site, "VIEWER") as client:
        missing = client.get("/nowhere")
        assert missing.status_code == 404
        assert "Not found" in missing.text
        for path in ("/nowhere", "/look", "/?tenant=globex"):  # no page, a form without a page, another tenant
            page = client.get(path)
            assert page.status_code in (403, 404), path
            assert '<a href="/app/admin/dlq"' in page.text, f"the navigation is missing: {path}"
        assert client.put("/login", data={"x": "y"}).status_code == 405
        unread = client.post("/login", content=b"\xff=1", headers=FORM)
        assert unread.status_code == 422

    with browser(site) as stranger:
        assert '<a href="/app/admin/dlq"' not in stranger.get("/nowhere").text

    with httpx2.Client(base_url=site.address, headers={"accept": "text/html,*/*;q=0.8"}) as outside:
        page = outside.get("/nowhere")  # an address without /app
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "Not found" in page.text
        assert 'href="/app/"' in page.text, "the page leads to the dashboard"
        for path, accepted in (("/api/v1/nowhere", "text/html"), ("/nowhere", "*/*")):
            problem = outside.get(path, headers={"accept": accepted})
            assert (problem.status_code, problem.json()["status"]) == (404, 404), path


def test_the_api_refuses_form_bodies(site: World) -> None:
    with httpx2.Client(base_url=site.address) as client:
        assert client.post("/api/v1/login", data=PERSON).status_code == 415
