"""Grants: no user grants more rights than they have. Covers every granting call × every giver × every right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from server_document import operations
from server_kit import PREFIX, World, access_of, opened

from redrive.core.roles import Permission, Role
from redrive.core.transitions import AuditWrite
from redrive.server.app import PAGE_ROUTES
from redrive.store.accounts import MemberRow, NewToken, UserRow
from redrive.store.port import Store

HOME, ABROAD, THIRD = "acme", "globex", "initech"
RANK = {"VIEWER": 0, "STAFF": 1, "ADMIN": 2, "OWNER": 3}


@dataclass(frozen=True)
class Right:
    """A right to grant: a role, and access to hidden payloads."""

    role: str
    payloads: bool

    def member(self, user: str, tenant: str, *, active: bool = True) -> MemberRow:
        return MemberRow(user=user, tenant=tenant, role=Role(self.role), payloads=self.payloads, active=active)


@dataclass(frozen=True)
class Giver:
    """A user who grants a right, as a token of tenant `acme`."""

    role: str
    payloads: bool
    scoped: bool


@dataclass(frozen=True)
class Target:
    """The user who receives a right."""

    id: str
    email: str
    tenant: str


RIGHTS = [Right(role, payloads) for role in RANK for payloads in (False, True)]
LEAST, GREATEST = RIGHTS[0], RIGHTS[-1]
GIVERS = [Giver(*each) for each in itertools.product(RANK, (False, True), (False, True))]

Send = Callable[[httpx2.Client, Target, Right], httpx2.Response]
Members = Callable[[str, str, Right], Sequence[MemberRow]]


@dataclass(frozen=True)
class Call:
    """A way to grant a right. `members` are the target's earlier memberships; `owners` is set if only an OWNER may.

    `hashes`: it changes a password, which takes a tenth of a second of processor time on purpose.
    """

    route: str
    send: Send
    members: Members | None = None
    owners: bool = False
    disabled: bool = False
    hashes: bool = False

    @property
    def is_page(self) -> bool:
        return self.route.startswith("page ")


def body(right: Right) -> dict[str, Any]:
    return {"role": right.role, "may_see_payloads": right.payloads}


def form(right: Right) -> dict[str, str]:
    return {"role": right.role, **({"payloads": "on"} if right.payloads else {})}


def another(user: str, tenant: str, right: Right) -> list[MemberRow]:
    """Return a membership with few rights that differs from the granted right."""
    return [(Right("STAFF", payloads=False) if right == LEAST else LEAST).member(user, tenant)]


def inactive(user: str, tenant: str, right: Right) -> list[MemberRow]:
    return [right.member(user, tenant, active=False)]


def here(user: str, tenant: str, right: Right) -> list[MemberRow]:
    return [right.member(user, tenant)]


def elsewhere(user: str, tenant: str, right: Right) -> list[MemberRow]:
    return [LEAST.member(user, tenant), right.member(user, THIRD)]


CALLS = {
    "create a user who gets a code": Call(
        "POST /users", lambda client, to, right: client.post("/users", json={"email": to.email, **body(right)})
    ),
    "change a membership": Call(
        "POST /users/{id}/role",
        lambda client, to, right: client.post(f"/users/{to.id}/role", json=body(right)),
        another,
    ),
    "activate a membership": Call(
        "POST /users/{id}/role",
        lambda client, to, right: client.post(f"/users/{to.id}/role", json={"active": True}),
        inactive,
    ),
    "add a membership": Call(
        "POST /users/{id}/role",
        lambda client, to, right: client.post(f"/users/{to.id}/role", json=body(right)),
        lambda user, tenant, right: [LEAST.member(user, THIRD)],
        owners=True,
        hashes=True,
    ),
    "add a membership for a user with rights elsewhere": Call(
        "POST /users/{id}/role",
        lambda client, to, right: client.post(f"/users/{to.id}/role", json=body(LEAST)),
        lambda user, tenant, right: [right.member(user, THIRD)],
        owners=True,
        hashes=True,
    ),
    "make a code": Call(
        "POST /users/{id}/code", lambda client, to, right: client.post(f"/users/{to.id}/code"), here, owners=True
    ),
    "make a code for a user with rights elsewhere": Call(
        "POST /users/{id}/code", lambda client, to, right: client.post(f"/users/{to.id}/code"), elsewhere, owners=True
    ),
    "enable a user": Call(
        "POST /users/{id}/enable",
        lambda client, to, right: client.post(f"/users/{to.id}/enable"),
        elsewhere,
        owners=True,
        disabled=True,
    ),
    "create a token": Call(
        "POST /tokens", lambda client, to, right: client.post("/tokens", json={"name": to.email, **body(right)})
    ),
    "create a token for a workflow": Call(
        "POST /tokens",
        lambda client, to, right: client.post(
            "/tokens", json={"name": to.email, "workflows": ["fulfil"], **body(right)}
        ),
    ),
    "invite on the page": Call(
        "page POST /members", lambda client, to, right: client.post("/members", data={"email": to.email, **form(right)})
    ),
    "change a member on the page": Call(
        "page POST /members/{id}", lambda client, to, right: client.post(f"/members/{to.id}", data=form(right)), another
    ),
    "activate a member on the page": Call(
        "page POST /members/{id}",
        lambda client, to, right: client.post(f"/members/{to.id}", data=form(right)),
        inactive,
    ),
    "make a key on the page": Call(
        "page POST /keys", lambda client, to, right: client.post("/keys", data={"name": to.email, **form(right)})
    ),
}

# These change accounts and grant nothing, or only confirm a right that the user proves to have.
GIVE_NOTHING = {
    "POST /login", "POST /logout",
    "POST /tenants", "POST /tenants/{name}/disable", "POST /tenants/{name}/enable", "DELETE /tenants/{name}",
    "POST /users/{id}/disable", "POST /tokens/{id}/revoke",
    "page POST /login", "page POST /logout", "page POST /look", "page POST /keys/{id}/revoke",
}  # fmt: skip


def test_every_account_route_is_covered() -> None:
    """A new route fails here until it is a call of this file, or listed as granting nothing."""
    managing = {Permission.MANAGE_PEOPLE.value, Permission.MANAGE_TENANTS.value}
    found = {
        one.name
        for one in operations()
        if one.method != "get" and (one.permissions & managing or "people" in one.about.get("tags", ()))
    }
    for router in PAGE_ROUTES:
        for route in router.routes:
            each: Any = route
            named = set((each.openapi_extra or {}).get("x-permissions", ()))
            about = each.endpoint.__module__.rpartition(".")[2] == "accounts"
            if (named & managing) or about:
                found |= {f"page {method} {each.path}" for method in each.methods - {"GET", "HEAD"}}
    assert found == {call.route for call in CALLS.values()} | GIVE_NOTHING


def may_give(giver: Giver, call: Call, tenant: str, right: Right) -> bool:
    """Return the expected decision, implemented independently of the server."""
    if giver.scoped or RANK[giver.role] < RANK["OWNER" if call.owners or tenant != HOME else "ADMIN"]:
        return False
    return RANK[right.role] <= RANK[giver.role] and (giver.payloads or not right.payloads)


def cases(world: World, call: Call, *, every: bool) -> list[tuple[Giver, str, Right]]:
    """Return every giver with every right in the giver's tenant. Only an OWNER may enter another tenant.

    A giver who manages nothing is refused before the right is looked at, so unless `every` is asked for, such a
    giver is tested with the least and the greatest right only. Such a request never reaches a store, so PostgreSQL
    is tested with the other givers only. The decision depends neither on the store nor on the page, so some rights
    are enough there, and where each grant is expensive.
    """
    on_sqlite = world.url.startswith("sqlite")
    full = every or (on_sqlite and not call.is_page and not call.hashes)
    rights = RIGHTS if full else [LEAST, Right("ADMIN", payloads=True), Right("OWNER", payloads=False)]
    return [
        (giver, tenant, right)
        for tenant in (HOME, ABROAD)
        for right in rights
        for giver in GIVERS
        if tenant == HOME or giver.role == "OWNER" or right == LEAST
        if manages(giver) or (on_sqlite and (every or right in (LEAST, GREATEST)))
    ]


def manages(giver: Giver) -> bool:
    return not giver.scoped and RANK[giver.role] >= RANK["ADMIN"]


async def state(store: Store, target: Target) -> Any:
    """Return all state that a call could have changed: accounts with their memberships, codes, tokens."""
    users = await store.accounts.users_by_email(target.email)
    ids = {user.id for user in users}
    tokens = [row for row in await store.accounts.tokens(None) if row.user in ids or row.name == target.email]
    return users, tokens


async def prepared(store: Store, call: Call, tenant: str, right: Right) -> Target:
    target = Target(id=uuid4().hex, email=f"{uuid4().hex}@example.org", tenant=tenant)
    if call.members is not None:
        members = tuple(call.members(target.id, tenant, right))
        user = UserRow(
            id=target.id, email=target.email, home=THIRD, members=members, disabled_at=1 if call.disabled else None
        )
        assert await store.accounts.add_user(user, AuditWrite(event="test", tenant=tenant, by="test", subject="x"))
        if call.disabled:
            assert await store.accounts.change_user(
                user, AuditWrite(event="test", tenant=tenant, by="test", subject="x")
            )
    return target


_secrets: dict[str, dict[Giver, str]] = {}


async def givers(store: Store, url: str) -> dict[Giver, str]:
    """Return the secret of a token for each giver; each store gets them once, because pages list all tokens."""
    if url in _secrets:
        return _secrets[url]
    access = access_of(store)
    _secrets[url] = {
        giver: (
            await access.create_token(
                NewToken(
                    tenant=HOME,
                    role=Role(giver.role),
                    name="giver",
                    payloads=giver.payloads,
                    workflows=("fulfil",) if giver.scoped else (),
                )
            )
        ).secret
        for giver in GIVERS
    }
    return _secrets[url]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "every"])
@pytest.mark.parametrize("name", CALLS)
async def test_no_user_grants_more_rights_than_they_have(rough_world: World, name: str, every: bool) -> None:
    world, call = rough_world, CALLS[name]
    root = f"{world.address}{'/app' if call.is_page else PREFIX}"
    headers = {"Sec-Fetch-Site": "same-origin"}
    allowed = 0
    async with opened(world.url) as store:
        secrets = await givers(store, world.url)
        target, used, before = None, None, None
        with httpx2.Client(base_url=root, headers=headers, timeout=30.0, verify=False) as client:
            for giver, tenant, right in cases(world, call, every=every):
                if used != (tenant, right):
                    target, used = await prepared(store, call, tenant, right), (tenant, right)
                    before = await state(store, target)
                assert target is not None
                client.headers["Authorization"] = f"Bearer {secrets[giver]}"
                client.params = {} if tenant == HOME else {"tenant": tenant}
                answer = call.send(client, target, right)
                expected, what = (may_give(giver, call, tenant, right), (giver, tenant, right, answer.text[:300]))
                assert ((await state(store, target)) != before) is expected, what
                if expected:
                    assert answer.status_code in (200, 201, 303), what
                    allowed, used = allowed + 1, None
                else:
                    # For an admin of one tenant, users of other tenants do not exist.
                    assert answer.status_code in ((403, 404) if not call.is_page else (403, 422)), what
    enough = 20 if every or (world.url.startswith("sqlite") and not call.is_page and not call.hashes) else 8
    assert allowed > (enough // 2 if call.owners else enough)


# -- earlier escalations --------------------------------------------------------------------------------


def signed_in(world: World, email: str, secret: dict[str, str]) -> httpx2.Client:
    client = world.bearer(None, headers={"Sec-Fetch-Site": "same-origin"})
    client.post("/login", json={"email": email, **secret}).raise_for_status()
    return client


def person(world: World, role: str, *, payloads: bool = False, tenant: str = HOME, by: Any = None) -> Any:
    """Create a user of a tenant and sign in; return the client, the id and the e-mail address."""
    email = f"{uuid4().hex}@example.org"
    new = {"email": email, "role": role, "may_see_payloads": payloads}
    made = (by or world.client(tenant, "OWNER")).post("/users", json=new)
    made.raise_for_status()
    return signed_in(world, email, {"code": made.json()["code"]}), made.json()["id"], email


def test_an_owner_cannot_grant_themselves_the_payload_right(world: World) -> None:
    owner, id, _ = person(world, "OWNER")
    assert owner.get("/me").json()["may_see_payloads"] is False
    for tenant in (HOME, ABROAD):
        given = owner.post(f"/users/{id}/role?tenant={tenant}", json={"may_see_payloads": True})
        assert (given.status_code, given.json()["code"]) == (403, "not_allowed")


# -- tokens end with their creator ----------------------------------------------------------------------


def works(world: World, secret: str) -> bool:
    status = world.bearer(secret).get("/me").status_code
    assert status in (200, 401)
    return status == 200


@pytest.mark.parametrize("kind", ["key", "jwt"])
def test_a_token_ends_when_its_creator_loses_the_right_to_create_it(world: World, kind: str) -> None:
    admin, id, _ = person(world, "ADMIN")
    owner = world.client(HOME, "OWNER")
    made = admin.post("/tokens", json={"role": "ADMIN", "kind": kind, "name": "first"}).json()
    weak = admin.post("/tokens", json={"role": "STAFF", "kind": kind, "name": "weak"}).json()["secret"]
    second = world.bearer(made["secret"]).post("/tokens", json={"role": "VIEWER", "name": "second"}).json()
    secrets = (made["secret"], weak, second["secret"])

    def working() -> list[bool]:
        return [works(world, secret) for secret in secrets]

    assert working() == [True, True, True]
    assert owner.post(f"/users/{id}/disable").is_success
    assert working() == [False, False, False]
    assert owner.post(f"/users/{id}/enable").is_success
    assert working() == [True, True, True]
    assert owner.post(f"/users/{id}/role", json={"role": "STAFF"}).is_success
    assert working() == [False, True, False], "tokens that a STAFF may create are left"
    assert owner.post(f"/users/{id}/role", json={"role": "ADMIN", "active": False}).is_success
    assert working() == [False, False, False]
    assert owner.post(f"/users/{id}/role", json={"active": True}).is_success
    assert working() == [True, True, True]
    assert owner.post(f"/tokens/{made['id']}/revoke").is_success
    assert working() == [False, True, False], "a token ends with the token that created it"


def test_a_code_ends_when_its_creator_is_disabled(world: World) -> None:
    admin, id, _ = person(world, "ADMIN")
    email = f"{uuid4().hex}@example.org"
    code = admin.post("/users", json={"email": email, "role": "VIEWER"}).json()["code"]
    assert world.client(HOME, "OWNER").post(f"/users/{id}/disable").is_success
    client = world.bearer(None, headers={"Sec-Fetch-Site": "same-origin"})
    assert client.post("/login", json={"email": email, "code": code}).status_code == 401


# -- tokens are identified by their id ------------------------------------------------------------------


def test_tokens_with_the_same_name_are_separate(world: World) -> None:
    admin = world.client(HOME, "ADMIN")
    new = {"role": "STAFF", "name": "twin"}
    one, other = (world.bearer(admin.post("/tokens", json=new).json()["secret"]) for _ in range(2))
    names = [client.get("/me").json()["who"] for client in (one, other)]
    assert len(set(names)) == 2
    assert all(name.startswith("token:twin:") for name in names)
    assert one.put("/views/runs/mine", json={"query": "status=FAILED"}).is_success
    assert "mine" in {view["name"] for view in one.get("/views").json()}
    assert "mine" not in {view["name"] for view in other.get("/views").json()}
    assert other.delete("/views/runs/mine").status_code == 404
    letter, key = world.ids[HOME]["letter"], {"Idempotency-Key": uuid4().hex}
    comment = {"text": "looked at it"}
    assert one.post(f"/workflow-dlq/{letter}/comment", json=comment, headers=key).is_success
    reused = other.post(f"/workflow-dlq/{letter}/comment", json=comment, headers=key)
    assert (reused.status_code, reused.json()["code"]) == (422, "key_reused")
    assert other.post(f"/workflow-dlq/{letter}/comment", json=comment).is_success
    lines = admin.get("/audit", params={"letter": letter, "limit": 2}).json()["items"]
    assert [line["by"] for line in lines] == names[::-1]


# -- isolation of tenants -------------------------------------------------------------------------------


def test_an_admin_cannot_find_out_if_another_tenant_has_a_user(world: World) -> None:
    password = "a good password"
    _, _, known = person(world, "STAFF", tenant=HOME)
    unknown = f"{uuid4().hex}@example.org"
    globex, acme = world.client(ABROAD, "ADMIN"), world.client(HOME, "ADMIN")
    answers = [globex.post("/users", json={"email": email, "role": "VIEWER"}) for email in (known, unknown)]
    shapes = [(answer.status_code, {name: type(value) for name, value in answer.json().items()}) for answer in answers]
    assert shapes[0] == shapes[1]
    assert shapes[0][0] == 201
    for answer, email in zip(answers, (known, unknown), strict=True):
        made = answer.json()
        assert made["memberships"] == [{"tenant": ABROAD, "role": "VIEWER", "may_see_payloads": False, "active": True}]
        there = signed_in(world, email, {"code": made["code"], "new_password": password})
        assert there.get("/me").json()["tenant"] == ABROAD
        assert globex.post("/users", json={"email": email, "role": "VIEWER"}).status_code == 409, (
            "the address is known in this tenant"
        )
    assert signed_in(world, known, {"password": password}).get("/me").json()["tenant"] == ABROAD
    refused = world.bearer(None, headers={"Sec-Fetch-Site": "same-origin"}).post(
        "/login", json={"email": known, "password": password, "tenant": HOME}
    )
    assert refused.status_code == 401, "a password of one tenant's account opens no other"
    assert [user["memberships"][0]["role"] for user in acme.get("/users").json() if user["email"] == known] == ["STAFF"]
    owner = world.client(HOME, "OWNER")
    assert owner.post("/users?tenant=initech", json={"email": known, "role": "VIEWER"}).status_code == 409
    several = owner.post(f"/users/{known}/disable")
    assert (several.status_code, "by id" in several.text) == (409, True)


def test_users_without_account_rights_see_no_sign_ins_in_the_audit_log(world: World) -> None:
    email = "staff@acme.example"
    wrong = world.bearer(None, headers={"Sec-Fetch-Site": "same-origin"}).post(
        "/login", json={"email": email, "password": "a wrong password"}
    )
    assert wrong.status_code == 401
    signed_in(world, email, {"password": "a good password"})
    hidden = [{}, {"event": "user."}, {"event": "user.refused"}, {"event": "token."}, {"by": email}, {"subject": email}]
    for params in hidden:
        seen = {
            role: {line["event"] for line in world.client(HOME, role).get("/audit", params=params).json()["items"]}
            for role in ("VIEWER", "STAFF", "ADMIN")
        }
        about = {event for event in seen["ADMIN"] if event.startswith(("user.", "token."))}
        assert about, params
        assert not about & (seen["VIEWER"] | seen["STAFF"]), params
    token = {"Authorization": f"Bearer {world.tokens[HOME, 'VIEWER']}"}
    page = httpx2.get(f"{world.address}/app/audit?format=csv", headers=token, timeout=30.0)
    assert (page.status_code, email in page.text) == (200, False)


def test_an_owner_of_another_tenant_is_named_with_that_tenant(world: World) -> None:
    owner, _, email = person(world, "OWNER", tenant=ABROAD)
    letter = world.ids[HOME]["letter"]
    assert owner.post(f"/workflow-dlq/{letter}/comment?tenant={HOME}", json={"text": "hm"}).is_success
    (line,) = world.client(HOME, "ADMIN").get("/audit", params={"letter": letter, "limit": 1}).json()["items"]
    assert line["by"] == f"{email} ({ABROAD})"
