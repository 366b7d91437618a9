"""Signing in: passwords, codes, cookies, and protection against requests from other sites."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from server_kit import PATIENCE, PREFIX, World, access_of, caller, opened, served_here, serving

from redrive import Redrive
from redrive.clock import SystemClock
from redrive.core.redact import MASK
from redrive.core.roles import Role
from redrive.errors import NotSignedIn
from redrive.reasons import Reason
from redrive.server import request_context
from redrive.server.auth import secrets as passwords
from redrive.server.auth.sessions import REFUSAL_INTERVAL, Login, Sessions
from redrive.server.limits import Limits
from redrive.store.accounts import NewUser

PASSWORD = "a good password"


def browser(world: World) -> httpx2.Client:
    return world.bearer(None, headers={"Sec-Fetch-Site": "same-origin"})


def sign_in(client: httpx2.Client, email: str = "staff@acme.example", **more: str) -> httpx2.Response:
    return client.post("/login", json={"email": email, "password": PASSWORD, **more})


def test_a_password_opens_a_session_and_signing_out_ends_it(world: World) -> None:
    client = browser(world)
    answer = sign_in(client)
    assert (answer.status_code, answer.json()["role"], answer.json()["tenant"]) == (200, "STAFF", "acme")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert client.get("/me").json()["who"] == "staff@acme.example"
    kept = dict(client.cookies)
    assert client.post("/logout", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.get("/me").status_code == 200, "another site cannot sign a user out"
    bare = world.bearer(None, headers={"Sec-Fetch-Site": "cross-site"}).post("/logout")
    assert "set-cookie" not in bare.headers, "a request without the cookie does not remove it"
    assert client.post("/logout").status_code == 204
    assert client.get("/me").status_code == 401
    client.cookies.update(kept)
    assert client.get("/me").status_code == 401


def test_every_failed_sign_in_has_the_same_answer(world: World) -> None:
    client = browser(world)
    tries = [
        sign_in(client, password="wrong password"),
        sign_in(client, email="unknown@acme.example"),
        sign_in(client, tenant="globex"),
        client.post("/login", json={"email": "staff@acme.example", "code": "x.y"}),
    ]
    assert {(each.status_code, each.json()["detail"]) for each in tries} == {(401, tries[0].json()["detail"])}
    assert all("set-cookie" not in each.headers for each in tries)


def test_a_refused_credential_is_answered_with_help(world: World) -> None:
    """The help names header and token, which redaction must not hide."""
    sent = ({}, {"Authorization": "Basic dXNlcg=="}, {"Authorization": "Bearer no-such-token"})
    answers = [world.bearer(None).get("/runs", headers=headers) for headers in sent]
    assert [each.status_code for each in answers] == [401, 401, 401]
    problems = [each.json() for each in answers]
    codes = [each["reason_code"] for each in problems]
    assert codes == ["credential_missing", "bearer_needed", "credential_invalid"]
    for problem in problems:
        said = Reason(problem["reason_code"], **problem["reason_params"])
        assert problem["detail"] == str(said)
        assert MASK not in problem["detail"]


def test_other_sites_cannot_act_with_a_user_s_cookie(world: World) -> None:
    client = browser(world)
    sign_in(client)
    cookies = dict(client.cookies)
    post = {"workflow": "remind"}

    def attempt(**headers: str) -> int:
        plain = world.bearer(None, headers={name.replace("_", "-"): text for name, text in headers.items()})
        plain.cookies.update(cookies)
        return plain.post("/runs", json=post).status_code

    host = world.address.removeprefix("http://")
    assert attempt(Sec_Fetch_Site="same-origin") == 201
    assert attempt(Origin=f"http://{host}") == 201
    assert attempt(Sec_Fetch_Site="cross-site") == 403
    assert attempt(Sec_Fetch_Site="same-site") == 403
    assert attempt(Origin="http://evil.example") == 403
    assert attempt(Origin="null") == 403
    assert attempt(Sec_Fetch_Site="same-origin", Origin="http://evil.example") == 403
    assert attempt() == 403


async def test_password_attempts_are_rate_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten attempts are free, then one is allowed every five seconds. The test stops the server's clock."""

    class StandingClock(SystemClock):
        seconds = 0.0

        @classmethod
        def monotonic(cls) -> float:
            return cls.seconds

    monkeypatch.setattr(request_context, "SystemClock", StandingClock)
    async with (
        served_here(tmp_path, Limits()) as world,
        caller(world, known=False, **{"Sec-Fetch-Site": "same-origin"}) as client,
    ):

        async def attempt(password: str) -> httpx2.Response:
            login = {"email": "staff@acme.example", "password": password}
            return await client.post(f"{PREFIX}/login", json=login)

        answers = [(await attempt(f"wrong password {number}")).status_code for number in range(14)]
        assert answers == [401] * 10 + [429] * 4
        refused = await attempt(PASSWORD)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        StandingClock.seconds += 4.9
        assert (await attempt(PASSWORD)).status_code == 429
        StandingClock.seconds += 0.2
        assert (await attempt("wrong again")).status_code == 401
        assert (await attempt(PASSWORD)).status_code == 429
        StandingClock.seconds += 5.1
        assert (await attempt(PASSWORD)).status_code == 200


def test_the_first_start_lets_an_owner_sign_in_once(tmp_path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    with serving(url, "--owner", "root@example.org", app=None) as process:
        code = next(line.strip() for line in process.lines if line.startswith("    "))
        world = World(url, address=process.address)
        with world.bearer(None, headers={"Sec-Fetch-Site": "same-origin"}) as client:
            login = {"email": "root@example.org", "code": code, "new_password": "a much better password"}
            assert client.post("/login", json=login).json()["role"] == "OWNER"
            assert client.post("/login", json=login).status_code == 401
            again = {"email": "root@example.org", "password": "a much better password"}
            assert client.post("/login", json=again).json()["may_see_payloads"] is True
            assert "Secure" not in client.post("/login", json=again).headers["set-cookie"]
        assert process.stop() == 0
    with serving(url, app=None, REDRIVE_BASE_URL="https://redrive.example.org") as process:
        assert not any(line.startswith("    ") for line in process.lines)
        far = {"Sec-Fetch-Site": "same-origin", "X-Forwarded-For": "198.51.100.7"}
        with World(url, address=process.address).bearer(None, headers=far) as client:
            assert "; Secure" in client.post("/login", json=again).headers["set-cookie"]
            assert signed_in_from(client) == "127.0.0.1", "any client can send such a header"


def signed_in_from(client: httpx2.Client) -> str:
    """Return the client address of the newest sign-in in the audit log."""
    cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}
    lines = client.get("/audit", params={"event": "user.signed_in"}, headers=cookie).json()["items"]
    return str(lines[0]["after"]["from"])


async def test_the_duration_of_a_refusal_does_not_reveal_known_users() -> None:
    """Refusals are delayed to a fixed interval, however long the check took."""

    class Clock(SystemClock):
        took, slept = 0.0, 0.0

        def monotonic(self) -> float:
            self.took += 0.06
            return self.took

        async def sleep(self, delay: float) -> None:
            self.slept += delay

    app = Redrive("sqlite:///:memory:")
    async with app.client():
        store = app.runtime.store
        access = access_of(store)
        await access.create_tenant("acme")
        await access.create_user(NewUser(email="ann@acme.example", tenant="acme", role=Role.STAFF, password=PASSWORD))
        for login in (
            Login(email="ann@acme.example", password="wrong password"),
            Login(email="unknown@acme.example", password="wrong password"),
            Login(email="ann@acme.example", code="x.y"),
            Login(email="unknown@acme.example", code="x.y"),
        ):
            clock = Clock()
            with pytest.raises(NotSignedIn):
                await Sessions(store, clock).sign_in(login)
            assert clock.slept == pytest.approx(REFUSAL_INTERVAL - 0.06), login
        clock = Clock()
        await Sessions(store, clock).sign_in(Login(email="ann@acme.example", password=PASSWORD))
        assert clock.slept == 0


def test_a_credential_of_one_tenant_does_not_work_in_another(world: World) -> None:
    """An admin who created a user knows the password or code. Both end when an owner adds another tenant."""
    admin, owner = world.client("acme", "ADMIN"), world.client("globex", "OWNER")
    known, coded = f"known-{uuid4()}@acme.example", f"coded-{uuid4()}@acme.example"
    admin.post("/users", json={"email": known, "role": "VIEWER", "password": PASSWORD}).raise_for_status()
    old = admin.post("/users", json={"email": coded, "role": "VIEWER"}).json()["code"]
    client = browser(world)
    assert sign_in(client, known).status_code == 200
    codes = {}
    for email in (known, coded):
        given = owner.post(f"/users/{email}/role", json={"role": "ADMIN"})
        assert {each["tenant"] for each in given.json()["memberships"]} == {"acme", "globex"}
        codes[email] = given.json()["code"]
    assert client.get("/me").status_code == 401, "the open session has ended"

    def enter(email: str, **more: str) -> int:
        return browser(world).post("/login", json={"email": email, **more}).status_code

    assert {enter(known, password=PASSWORD, tenant=name) for name in ("acme", "globex")} == {401}
    assert {enter(coded, code=old, tenant=name) for name in ("acme", "globex")} == {401}
    assert enter(known, code=codes[known], tenant="acme") == 401, "a code works only in its tenant"
    assert enter(known, code=codes[known], new_password="chosen by oneself") == 200
    assert enter(known, password="chosen by oneself", tenant="globex") == 200
    assert admin.post(f"/users/{known}/code").status_code == 403, "only an owner may create this code"
    again = owner.post(f"/users/{known}/role", json={"role": "VIEWER"})
    assert again.json()["code"] is None
    assert enter(known, password="chosen by oneself", tenant="globex") == 200


async def test_a_disabled_or_inactive_user_is_signed_out_at_once(own_world: World) -> None:
    world = own_world
    client = browser(world)
    sign_in(client)
    admin, owner = world.client("acme", "ADMIN"), world.client("acme", "OWNER")
    user = world.ids["acme"]["user"]
    assert admin.post(f"/users/{user}/role", json={"active": False}).status_code == 200
    assert client.get("/me").status_code == 401
    assert sign_in(client).status_code == 401
    assert admin.post(f"/users/{user}/role", json={"active": True}).status_code == 200
    assert sign_in(client).status_code == 200
    assert owner.post(f"/users/{user}/disable").status_code == 200
    assert client.get("/me").status_code == 401
    async with opened(world.url) as store:
        assert (await access_of(store).user("acme", user)).disabled_at is not None


def test_short_secrets_are_refused_at_start(tmp_path) -> None:
    from server_kit import Process

    process = Process(f"sqlite:///{tmp_path}/new.db", app=None, REDRIVE_SECRET_KEY="short")
    try:
        process.wait_for("REDRIVE_SECRET_KEY")
        assert process.process.wait(60) == 1
        assert "short\n" not in "".join(process.lines)
    finally:
        process.end()


def test_the_prefix_is_api_v1() -> None:
    assert PREFIX == "/api/v1"


def test_other_sites_cannot_sign_a_browser_in(world: World) -> None:
    """A user in a session that another site started would work in the attacker's account."""
    login = {"email": "staff@acme.example", "password": PASSWORD}

    def attempt(**headers: str) -> tuple[int, bool]:
        plain = world.bearer(None, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = plain.post("/login", json=login)
        return answer.status_code, "set-cookie" in answer.headers

    assert attempt() == (200, True), "a program sends neither header"
    assert attempt(Origin=world.address) == (200, True)
    assert attempt(Origin=world.address.replace("http:", "https:")) == (403, False)
    assert attempt(Origin="http://evil.example") == (403, False)
    assert attempt(Origin="null") == (403, False)
    assert attempt(Origin="http://[") == (403, False)
    assert attempt(Sec_Fetch_Site="cross-site") == (403, False)


async def test_the_scheme_of_an_origin_is_checked(tmp_path: Path) -> None:
    async with served_here(tmp_path, Limits(), base_url="https://Redrive.example.org:443") as world:
        for origin, status in {
            "https://redrive.example.org": 200,
            "http://redrive.example.org": 403,
            "https://redrive.example.org:8443": 403,
            world.address: 403,
        }.items():
            async with caller(world, known=False, Origin=origin) as client:
                login = {"email": "staff@acme.example", "password": PASSWORD}
                assert (await client.post(f"{PREFIX}/login", json=login)).status_code == status, origin


async def test_the_cookie_is_bound_to_the_host_or_to_the_port(tmp_path: Path) -> None:
    login = {"email": "staff@acme.example", "password": PASSWORD}
    https = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.7"}
    async with served_here(tmp_path, Limits(), trusted_proxies="127.0.0.1") as world:
        port = world.address.rpartition(":")[2]
        async with caller(world, known=False) as client:
            plain = (await client.post(f"{PREFIX}/login", json=login)).headers["set-cookie"]
            safe = (await client.post(f"{PREFIX}/login", json=login, headers=https)).headers["set-cookie"]
        async with caller(world) as admin:
            lines = (await admin.get(f"{PREFIX}/audit", params={"event": "user.signed_in"})).json()["items"]
            assert [line["after"]["from"] for line in lines[:2]] == ["198.51.100.7", "127.0.0.1"]
        assert plain.startswith(f"redrive_session_{port}=")
        assert "Secure" not in plain
        assert safe.startswith(f"__Host-redrive_session_{port}=")
        assert "; Secure" in safe
        assert "Path=/" in safe
        assert "Domain" not in safe
        secret = safe.partition("=")[2].partition(";")[0]
        for name, headers, status in (
            (f"__Host-redrive_session_{port}", https, 200),
            ("__Host-redrive_session", https | {"Host": "redrive.example.org"}, 200),
            ("__Host-redrive_session", https, 401),
            (f"__Host-redrive_session_{port}", {}, 401),
            ("redrive_session", https, 401),
            (f"redrive_session_{port}", {}, 200),
        ):
            async with caller(world, known=False, Cookie=f"{name}={secret}", **headers) as client:
                assert (await client.get(f"{PREFIX}/me")).status_code == status, name
    async with served_here(tmp_path, Limits()) as world, caller(world, known=False, **https) as client:
        cookie = (await client.post(f"{PREFIX}/login", json=login)).headers["set-cookie"]
        assert "Secure" not in cookie, "an untrusted client can send such a header"


async def test_two_servers_on_one_host_do_not_sign_each_other_s_users_out(tmp_path: Path) -> None:
    login = {"email": "staff@acme.example", "password": PASSWORD}
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir()
    async with (
        served_here(places[0], Limits()) as first,
        served_here(places[1], Limits()) as second,
        caller(first, known=False) as browser,  # A browser keeps one set of cookies for a host.
    ):
        for world in (first, second):
            assert (await browser.post(f"{world.address}{PREFIX}/login", json=login)).status_code == 200
        for world in (first, second):
            assert (await browser.get(f"{world.address}{PREFIX}/me")).status_code == 200, world.address


async def test_answers_have_security_headers(tmp_path: Path) -> None:
    base_url = "https://redrive.example.org"
    async with served_here(tmp_path, Limits(), base_url=base_url) as world, caller(world, known=False) as client:
        for path in ("/healthz", "/app/login", f"{PREFIX}/me", "/nowhere"):
            headers = (await client.get(path)).headers
            assert headers["strict-transport-security"] == "max-age=31536000"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] in ("no-referrer", "same-origin")
            assert "no-store" in headers["cache-control"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "camera=()" in headers["permissions-policy"]
    async with served_here(tmp_path, Limits()) as world, caller(world, known=False) as client:
        assert "strict-transport-security" not in (await client.get("/healthz")).headers


@pytest.mark.parametrize(
    ("host", "base_url", "warned"),
    [
        ("0.0.0.0", "", True),
        ("0.0.0.0", "http://redrive.example.org", True),
        ("0.0.0.0", "https://redrive.example.org", False),
        ("127.0.0.1", "", False),
    ],
)
async def test_a_reachable_server_without_tls_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, base_url: str, warned: bool
) -> None:
    settings = {"base_url": base_url} if base_url else {}
    async with served_here(tmp_path, Limits(), host=host, **settings):
        assert ("without https" in caplog.text) == warned


async def test_sign_ins_use_separate_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords are hashed in a few dedicated threads, and too many concurrent sign-ins are refused."""
    begun, go_on = Counter[str](), threading.Event()

    def verify(*_: Any) -> bool:
        begun[threading.current_thread().name] += 1
        assert go_on.wait(PATIENCE)
        return False

    monkeypatch.setattr(passwords, "_verify_password", verify)
    limits = Limits(login_burst=1000, anonymous_burst=10_000)
    async with served_here(tmp_path, limits) as world, caller(world, known=False) as client:

        async def sign_in(number: int) -> int:
            login = {"email": f"u{number}@acme.example", "password": PASSWORD}
            return (await client.post(f"{PREFIX}/login", json=login)).status_code

        most = passwords.HASHING_THREADS + passwords.MAX_WAITING
        trying = [asyncio.create_task(sign_in(number)) for number in range(most)]
        async with asyncio.timeout(PATIENCE):
            while not passwords.is_hashing_busy():  # noqa: ASYNC110 - a real server
                await asyncio.sleep(0.01)
            assert await sign_in(most) == 503
            assert await asyncio.to_thread(lambda: "other work") == "other work"
            assert (await client.get("/readyz")).status_code == 200
            go_on.set()
            assert set(await asyncio.gather(*trying)) == {401}
    assert all(name.startswith("redrive-password") for name in begun)
    assert len(begun) <= passwords.HASHING_THREADS
