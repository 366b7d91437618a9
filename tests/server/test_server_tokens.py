"""Invalid tokens: tampered with, expired, for another audience, unsigned, or with too many rights."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey
from server_kit import SECRET, World, access_of, opened

from redrive.core.roles import Role
from redrive.server.auth.admin import AccountAdmin
from redrive.store.accounts import IssuedToken, NewToken, TokenKind

OTHER = "another secret of thirty-two bytes"


def on(world: World, work: Callable[[AccountAdmin], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine on the store, without the server."""

    async def go() -> Any:
        async with opened(world.url) as store:
            return await work(access_of(store))

    return asyncio.run(go())


def made(world: World, **more: Any) -> IssuedToken:
    given = {"tenant": "acme", "role": Role.STAFF, "name": "t", "kind": TokenKind.JWT, **more}
    found: IssuedToken = on(world, lambda access: access.create_token(NewToken(**given)))
    return found


def claims_of(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def signed(claims: dict[str, Any], secret: str = SECRET, algorithm: str = "HS256") -> str:
    key = OctKey.import_key(secret.encode())
    return jwt.encode({"alg": algorithm}, claims, key, algorithms=[algorithm])


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def status(world: World, secret: str, path: str = "/me") -> int:
    with world.bearer(secret, headers={"X-Once": "1"}) as client:
        return client.get(path).status_code


def test_a_signed_token_grants_the_rights_in_its_claims(world: World) -> None:
    token = made(world, workflows=("fulfil",))
    with world.bearer(token.secret, headers={"X-Once": "1"}) as client:
        me = client.get("/me").json()
    assert (me["tenant"], me["role"], me["workflows"]) == ("acme", "STAFF", ["fulfil"])
    claims = claims_of(token.secret)
    assert (claims["iss"], claims["aud"], claims["tenant"]) == ("redrive", "redrive", "acme")
    assert claims["exp"] > time.time()


FORGED: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "signed with another key": lambda token, claims: signed(claims, OTHER),
    "unsigned": lambda token, claims: f"{part({'alg': 'none'})}.{part(claims)}.",
    "unsigned, with a signature": lambda token, claims: ".".join(
        [part({"alg": "none"}), part(claims), token.split(".")[2]]
    ),
    "another algorithm": lambda token, claims: signed(claims, SECRET, "HS512"),
    "tampered claims": lambda token, claims: ".".join(
        [token.split(".")[0], part({**claims, "role": "OWNER"}), token.split(".")[2]]
    ),
    "cut short": lambda token, claims: token[:-4],
    "one letter more": lambda token, claims: token + "A",
    "expired": lambda token, claims: signed({**claims, "exp": int(time.time()) - 1}),
    "without an end": lambda token, claims: signed({k: v for k, v in claims.items() if k != "exp"}),
    "for another audience": lambda token, claims: signed({**claims, "aud": "payments"}),
    "without an audience": lambda token, claims: signed({k: v for k, v in claims.items() if k != "aud"}),
    "of another issuer": lambda token, claims: signed({**claims, "iss": "another"}),
    "not known here": lambda token, claims: signed({**claims, "jti": "0" * 26}),
    "for another tenant": lambda token, claims: signed({**claims, "tenant": "globex"}),
    "with a higher role": lambda token, claims: signed({**claims, "role": "OWNER"}),
    "for more workflows": lambda token, claims: signed({**claims, "workflows": []}),
    "that sees payloads": lambda token, claims: signed({**claims, "payloads": True}),
    "an end that is not a number": lambda token, claims: signed({**claims, "exp": "tomorrow"}),
    "an end beyond all numbers": lambda token, claims: f"{token.split('.')[0]}.{part({'exp': 1e400})}.x",
    "no token at all": lambda token, claims: "..",
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_changed_token_is_refused(world: World, kind: str) -> None:
    token = made(world, workflows=("fulfil",)).secret
    assert status(world, token) == 200
    assert status(world, FORGED[kind](token, claims_of(token))) == 401


def test_a_token_for_several_workflows_lists_them(world: World) -> None:
    found = world.bearer(made(world, workflows=("book", "remind")).secret).get("/workflows")
    assert [each["name"] for each in found.json()] == ["book", "remind"]


def test_a_token_for_several_workflows_lists_their_runs_and_failures_and_no_others(world: World) -> None:
    everything = world.bearer(made(world, role=Role.ADMIN, payloads=True).secret)
    runs = everything.get("/runs?limit=200").json()["items"]
    names = sorted({run["workflow"] for run in runs} - {"remind"})  # the server may have started the scheduled one
    assert names == ["book", "fulfil"]
    for some in (["book", "remind"], ["fulfil", "remind"], [*names, "remind"]):
        token = made(world, role=Role.ADMIN, payloads=True, workflows=tuple(some)).secret
        client = world.bearer(token)
        for path in ("/runs", "/workflow-dlq"):
            wanted = [
                each["id"] for each in everything.get(f"{path}?limit=200").json()["items"] if each["workflow"] in some
            ]
            assert [each["id"] for each in client.get(f"{path}?limit=200").json()["items"]] == wanted
            named = client.get(path, params={"workflows": some, "limit": 200}).json()["items"]
            assert [each["id"] for each in named] == wanted
            assert client.get(path, params={"workflows": [*names, "nap"]}).status_code == 403
        overview = client.get(f"{world.address}/app/").text
        assert f"Only these workflows are shown: {', '.join(sorted(some))}" in overview
        assert "All dependencies are available" not in overview, "circuits are not visible"
        menu = re.findall(r'<li><a href="(/app/[^"?]*)"', overview)
        assert len(menu) > 8
        assert "/app/circuits" not in menu
        more = ("/admin/dlq?view=items", "/search?q=order", "/search/suggestions?q=order")
        for page in (*dict.fromkeys(menu), *(f"/app{each}" for each in more)):
            shown = client.get(f"{world.address}{page}")
            assert shown.status_code == 200, page
            assert not [name for name in set(names) - set(some) if re.search(rf"\b{name}\b", shown.text)], page


def test_a_changed_key_is_refused(world: World) -> None:
    key = made(world, kind=TokenKind.KEY).secret
    start, secret = key[:-44], key[-43:]
    assert status(world, key) == 200
    flipped = ("A" if secret[0] != "A" else "B") + secret[1:]
    for wrong in (f"{start}_{flipped}", key[:-1], key + "a", key.upper(), secret, f"rdk__{secret}"):
        assert status(world, wrong) == 401, wrong
    other = made(world, kind=TokenKind.KEY, tenant="globex").secret
    assert status(world, f"{start}_{other[-43:]}") == 401


@pytest.mark.parametrize("header", ["", "Bearer", "Basic YTpi", "bearer", "Bearer \u00e9", "Bearer a b"])
def test_other_authorization_headers_are_refused(world: World, header: str) -> None:
    with world.bearer(None, headers={"Authorization": header.encode("latin-1")}) as client:
        assert client.get("/me").status_code == 401


@pytest.mark.parametrize("kind", [TokenKind.KEY, TokenKind.JWT])
def test_a_revoked_token_is_refused(world: World, kind: TokenKind) -> None:
    token = made(world, kind=kind)
    assert status(world, token.secret) == 200
    on(world, lambda access: access.revoke_token("acme", token.token.id))
    assert status(world, token.secret) == 401


@pytest.mark.parametrize("kind", [TokenKind.KEY, TokenKind.JWT])
def test_a_token_expires_at_its_end(world: World, kind: TokenKind) -> None:
    token = made(world, kind=kind, lasts=1)
    end = time.monotonic() + 20
    while status(world, token.secret) == 200:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert status(world, token.secret) == 401


def test_no_secret_is_stored(world: World) -> None:
    key = made(world, kind=TokenKind.KEY)

    async def stored() -> str:
        async with opened(world.url) as store:
            return repr(await store.accounts.token(key.token.id)) + repr(await store.accounts.tokens("acme"))

    text = asyncio.run(stored())
    assert key.token.id in text
    assert key.secret[-43:] not in text


def test_credentials_of_a_disabled_tenant_work_again_once_it_is_enabled(own_world: World) -> None:
    world = own_world
    owner = world.client("globex", "OWNER")
    assert owner.post("/tenants/acme/disable").status_code == 200
    assert world.client("acme", "ADMIN").get("/me").status_code == 401
    assert owner.post("/tenants/globex/disable").status_code == 409
    assert owner.post("/tenants/acme/enable").status_code == 200
    assert world.client("acme", "ADMIN").get("/me").status_code == 200


# -- scope ---------------------------------------------------------------------------------------------


def test_a_token_for_a_workflow_cannot_access_another(world: World) -> None:
    mine = world.ids["acme"]
    admin = world.client("acme", "ADMIN")
    other = admin.post("/runs", json={"workflow": "remind"}).json()["id"]
    scoped = made(world, role=Role.ADMIN, workflows=("remind",), kind=TokenKind.KEY).secret
    client = world.bearer(scoped)
    assert client.get(f"/runs/{other}").status_code == 200
    assert client.get(f"/runs/{mine['run']}").status_code == 404
    assert client.get(f"/workflow-dlq/{mine['letter']}").status_code == 404
    assert client.post(f"/workflow-dlq/{mine['letter']}/replay").status_code == 404
    assert client.post("/runs", json={"workflow": "remind"}).status_code == 201
    assert client.post("/runs", json={"workflow": "fulfil", "input": {"order": "x"}}).status_code == 403
    mixed = {"runs": [{"workflow": "remind"}, {"workflow": "fulfil", "input": {"order": "x"}}]}
    assert client.post("/runs:batch", json=mixed).status_code == 403
    assert {run["workflow"] for run in client.get("/runs").json()["items"]} == {"remind"}
    assert client.get("/runs?workflow=fulfil").status_code == 403
    assert client.get("/audit").status_code == 403
    assert client.get("/users").status_code == client.get("/tokens").status_code == 403
    owner = made(world, role=Role.OWNER, workflows=("remind",), kind=TokenKind.KEY).secret
    for named in ("globex", "*"):
        assert world.bearer(owner).get(f"/runs?tenant={named}").status_code == 403
    wider = {"role": "VIEWER", "name": "wider"}
    assert client.post("/tokens", json=wider).status_code == 403


def test_no_user_creates_a_token_with_more_rights_than_theirs(world: World) -> None:
    admin = world.client("acme", "ADMIN")
    assert admin.post("/tokens", json={"role": "OWNER"}).status_code == 403
    assert admin.post("/tokens", json={"role": "VIEWER", "may_see_payloads": True}).status_code == 403
    assert admin.post("/users", json={"email": "e@x.org", "role": "SUPER_ADMIN"}).status_code == 403
    made = admin.post("/tokens", json={"role": "ORG_ADMIN"})
    assert (made.status_code, made.json()["role"]) == (201, "ADMIN")
    assert status(world, made.json()["secret"]) == 200
