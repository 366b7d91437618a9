"""Conformance tests of users, tokens, sign-ins and remembered requests."""

from __future__ import annotations

import pytest
from store_kit import DAY, SECOND, Kit, entry, failed_try, noted, writes

from redrive.core.roles import Role
from redrive.record_fields import replace
from redrive.store.accounts import (
    MemberRow,
    RequestClaim,
    ResponseRow,
    SessionRow,
    TenantRow,
    TokenKind,
    TokenRow,
    UserRow,
    token_invalid_reason,
)
from redrive.store.filters import AuditFilter, LetterFilter, RunFilter


def member(user: str = "u1", tenant: str = "acme", role: Role = Role.ADMIN, **more: bool) -> MemberRow:
    return MemberRow(user=user, tenant=tenant, role=role, **more)


def person(id: str = "u1", email: str = "ann@example.org", *members: MemberRow) -> UserRow:
    return UserRow(id=id, email=email, password="hash", members=members or (member(id),))


def token(id: str = "t1", tenant: str = "acme", **more: object) -> TokenRow:
    given: dict[str, object] = {"kind": TokenKind.KEY, "role": Role.STAFF, "name": "ci", "created_by": "ann"}
    return TokenRow(id=id, tenant=tenant, **{**given, **more})  # type: ignore[arg-type]


async def events(kit: Kit) -> list[str]:
    page = await kit.store.audit(AuditFilter(), limit=50, cursor=None)
    return [line.event for line in reversed(page.items)]


async def test_a_tenant_is_registered_once_disabled_and_enabled(kit: Kit) -> None:
    accounts = kit.store.accounts
    new = TenantRow(tenant="acme", created_by="ann")
    assert await accounts.put_tenant(new, noted("tenant.created", tenant="acme"))
    assert not await accounts.put_tenant(new, noted("tenant.created", tenant="acme"))
    assert await accounts.put_tenant(replace(new, disabled_at=1), noted("tenant.changed", tenant="acme"))
    (row,) = await accounts.tenants()
    assert (row.tenant, row.created_by, row.disabled_at) == ("acme", "ann", kit.clock.now())
    assert not await accounts.put_tenant(replace(new, disabled_at=1), noted("tenant.changed", tenant="acme"))
    assert await accounts.put_tenant(new, noted("tenant.changed", tenant="acme"))
    assert [each.disabled_at for each in await accounts.tenants()] == [None]
    assert await events(kit) == ["tenant.created", "tenant.changed", "tenant.changed"]


async def test_a_user_is_added_once_and_found_by_id_and_address(kit: Kit) -> None:
    accounts = kit.store.accounts
    ann = person("u1", "ann@example.org", member("u1", "acme"), member("u1", "globex", Role.VIEWER, payloads=True))
    assert await accounts.add_user(ann, noted("user.created", tenant="acme"))
    assert not await accounts.add_user(person("u2"), noted("user.created", tenant="acme"))
    found = await accounts.user("u1")
    assert found == replace(ann, created_at=kit.clock.now())
    assert await accounts.users_by_email("ann@example.org") == [found]
    assert await accounts.users_by_email("Ann@example.org") == []
    assert await accounts.user("u2") is None
    assert await events(kit) == ["user.created"]


async def test_an_address_has_one_account_in_each_home(kit: Kit) -> None:
    accounts = kit.store.accounts
    for id, home in (("u1", "acme"), ("u2", "globex"), ("u3", "")):
        new = replace(person(id, "ann@example.org", member(id, home)), home=home)
        assert await accounts.add_user(new, noted())
        assert not await accounts.add_user(replace(new, id=f"{id}-2", members=()), noted())
    assert [(row.id, row.home) for row in await accounts.users_by_email("ann@example.org")] == [
        ("u1", "acme"),
        ("u2", "globex"),
        ("u3", ""),
    ]
    assert [row.id for row in await accounts.users("globex")] == ["u2"]


async def test_the_users_of_a_tenant_are_listed_without_passwords_and_other_tenants(kit: Kit) -> None:
    accounts = kit.store.accounts
    ann = person("u1", "ann@example.org", member("u1", "acme"), member("u1", "globex"))
    await accounts.add_user(ann, noted())
    await accounts.add_user(person("u2", "bob@example.org", member("u2", "globex")), noted())
    (listed,) = await accounts.users("acme")
    assert (listed.id, listed.password, [each.tenant for each in listed.members]) == ("u1", None, ["acme"])
    assert [len(each.members) for each in await accounts.users(None)] == [2, 1]
    assert await accounts.users("unknown") == []


async def test_a_user_and_a_membership_are_changed(kit: Kit) -> None:
    accounts = kit.store.accounts
    await accounts.add_user(person(), noted())
    assert await accounts.change_user(replace(person(), password="new", disabled_at=1), noted())
    found = await accounts.user("u1")
    assert found is not None
    assert (found.password, found.disabled_at) == ("new", kit.clock.now())
    assert await accounts.change_user(replace(person(), password=None), noted())
    await accounts.put_member(member(role=Role.VIEWER, active=False), noted())
    found = await accounts.user("u1")
    assert found is not None
    assert (found.password, found.disabled_at) == ("new", None)
    assert found.members == (member(role=Role.VIEWER, active=False),)
    assert not await accounts.change_user(person("u9", "zoe@example.org"), noted())


async def test_a_token_is_stored_with_its_hash_and_listed_without_it(kit: Kit) -> None:
    accounts = kit.store.accounts
    one = token(hash="h", workflows=("fulfil", 'a"b'), payloads=True, user="u1", maker_user="u2", maker_token="t0")
    await accounts.put_token(one, DAY, noted())
    await accounts.put_token(token("t2", "globex"), None, noted())
    expected = replace(one, created_at=kit.clock.now(), expires_at=kit.clock.now() + DAY)
    assert await accounts.token("t1") == expected
    assert await accounts.tokens("acme") == [replace(expected, hash="")]
    assert [row.id for row in await accounts.tokens(None)] == ["t2", "t1"]
    assert await accounts.token("t3") is None


async def test_a_token_is_revoked_once_and_by_its_own_tenant_only(kit: Kit) -> None:
    accounts = kit.store.accounts
    await accounts.put_token(token(), None, noted())
    assert not await accounts.revoke_token("t1", "globex", noted())
    assert await accounts.revoke_token("t1", "acme", noted())
    assert not await accounts.revoke_token("t1", None, noted())
    found = await accounts.token("t1")
    assert found is not None
    assert found.revoked_at == kit.clock.now()


async def test_a_sign_in_lasts_until_it_is_ended_or_found_expired(kit: Kit) -> None:
    accounts = kit.store.accounts
    for hash, user in (("h1", "u1"), ("h2", "u1"), ("h3", "u2")):
        await accounts.put_session(SessionRow(hash=hash, tenant="acme", user=user), 10 * SECOND)
    found = await accounts.session("h1")
    assert found is not None
    assert (found.user, found.tenant, found.expires_at) == ("u1", "acme", kit.clock.now() + 10 * SECOND)
    await accounts.end_sessions(hash="h1")
    assert await accounts.session("h1") is None
    await accounts.end_sessions(user="u1")
    assert await accounts.session("h2") is None
    assert await accounts.session("h3") is not None
    kit.clock.move(11 * SECOND)
    await accounts.put_session(SessionRow(hash="h4", tenant="acme", user="u1"), SECOND)
    assert await accounts.session("h3") is None


async def test_a_disabled_tenant_has_no_credentials_until_it_is_enabled(kit: Kit) -> None:
    accounts = kit.store.accounts
    acme = TenantRow(tenant="acme")
    await accounts.put_tenant(acme, noted())
    await accounts.put_token(token(), None, noted())
    await accounts.put_session(SessionRow(hash="h", tenant="acme", user="u1"), DAY)
    await accounts.put_tenant(replace(acme, disabled_at=1), noted())
    assert await accounts.token("t1") is await accounts.session("h") is None
    await accounts.put_tenant(acme, noted())
    assert None not in (await accounts.token("t1"), await accounts.session("h"))


# -- creators of tokens --------------------------------------------------------------------------------

ADMIN, STAFF, OWNER = Role.ADMIN, Role.STAFF, Role.OWNER


@pytest.mark.parametrize(
    ("maker", "gives", "works"),
    [
        (member(role=ADMIN), {"role": ADMIN}, True),
        (member(role=STAFF), {"role": ADMIN}, False),
        (member(role=ADMIN), {"role": STAFF, "payloads": True}, False),
        (member(role=ADMIN, payloads=True), {"role": STAFF, "payloads": True}, True),
        (member(role=ADMIN, active=False), {"role": STAFF}, False),
        (member(tenant="globex", role=ADMIN), {"role": STAFF}, False),
        (member(tenant="globex", role=OWNER), {"role": OWNER}, True),
        (member(tenant="globex", role=OWNER), {"role": STAFF, "payloads": True}, False),
    ],
)
async def test_a_token_works_while_its_creator_may_create_it(
    kit: Kit, maker: MemberRow, gives: dict[str, object], works: bool
) -> None:
    accounts = kit.store.accounts
    await accounts.add_user(person("u1", "ann@example.org", maker), noted())
    made = token(maker_user="u1", **gives)
    assert (await token_invalid_reason(accounts, made, kit.clock.now()) is None) is works
    await accounts.change_user(replace(person(), disabled_at=1), noted())
    assert await token_invalid_reason(accounts, made, kit.clock.now()) == "ann@example.org, who created it, is disabled"
    assert "erased" in str(await token_invalid_reason(accounts, replace(made, maker_user="u9"), kit.clock.now()))


async def test_a_token_ends_with_the_token_that_created_it(kit: Kit) -> None:
    accounts = kit.store.accounts
    await accounts.put_token(token("t0"), 10 * SECOND, noted())
    for number in range(1, 10):
        await accounts.put_token(token(f"t{number}", maker_token=f"t{number - 1}"), None, noted())

    async def works(id: str) -> bool:
        row = await accounts.token(id)
        assert row is not None
        return await token_invalid_reason(accounts, row, kit.clock.now()) is None

    assert [await works(f"t{number}") for number in (0, 1, 7, 8, 9)] == [True, True, True, False, False]
    await accounts.revoke_token("t3", None, noted())
    assert [await works(f"t{number}") for number in (1, 2, 3, 4, 5)] == [True, True, True, False, False]
    kit.clock.move(11 * SECOND)
    assert [await works(f"t{number}") for number in (1, 2)] == [False, False]


# -- remembered answers --------------------------------------------------------------------------------


def asked(key: str = "k", digest: str = "d", tenant: str = "acme") -> RequestClaim:
    return RequestClaim(tenant=tenant, key=key, digest=digest, patience=60 * SECOND, keeps=DAY)


async def test_a_request_is_carried_out_once_and_repeats_get_its_answer(kit: Kit) -> None:
    accounts = kit.store.accounts
    assert isinstance(await accounts.claim_request(asked()), int)
    under_way = ResponseRow(tenant="acme", key="k", digest="d", status=None, body=None)
    assert await accounts.claim_request(asked()) == under_way
    done = replace(under_way, status=200, body='{"pin": "1234"}')
    await accounts.save_response(done)
    assert await accounts.claim_request(asked()) == done
    assert await accounts.claim_request(asked(digest="other")) == done
    assert isinstance(await accounts.claim_request(asked(tenant="globex")), int)
    kit.clock.move(DAY)
    assert isinstance(await accounts.claim_request(asked(digest="other")), int)


async def test_an_abandoned_request_is_taken_over_by_its_repeat_and_by_no_other(kit: Kit) -> None:
    accounts = kit.store.accounts
    first = await accounts.claim_request(asked())
    assert isinstance(first, int)
    kit.clock.move(61 * SECOND)
    assert isinstance(await accounts.claim_request(asked(digest="other")), ResponseRow)
    assert await accounts.claim_request(asked()) == first, "the start of the first request is returned"
    assert isinstance(await accounts.claim_request(asked()), ResponseRow)


async def test_a_dropped_request_is_forgotten(kit: Kit) -> None:
    accounts = kit.store.accounts
    assert isinstance(await accounts.claim_request(asked()), int)
    await accounts.drop_request("acme", "k")
    assert isinstance(await accounts.claim_request(asked(digest="other")), int)


async def test_the_remembered_answers_of_a_tenant_are_counted_with_their_size(kit: Kit) -> None:
    accounts = kit.store.accounts
    assert await accounts.response_usage("acme") == (0, 0)
    for key in ("a", "b"):
        assert isinstance(await accounts.claim_request(asked(key)), int)
    row = ResponseRow(tenant="acme", key="a", digest="d", status=200, body="x" * 1000)
    await accounts.save_response(row)
    count, size = await accounts.response_usage("acme")
    assert count == 2
    assert size >= 1000
    assert await accounts.response_usage("globex") == (0, 0)


# -- erasing a tenant ----------------------------------------------------------------------------------


async def everything_of(kit: Kit, tenant: str) -> None:
    """Store one of everything that a tenant can have."""
    worker, run = await kit.held(tenant=tenant, key="k", key_hash="h", key_keeps=DAY, index=(("a", "b"),))
    step = writes(run, entry(0, output=tenant), attempts=(failed_try(0),))
    assert (await kit.store.apply([step], worker=worker))[0].kept
    await kit.fail(worker, run)
    await kit.start(3, tenant=tenant)
    await kit.store.retire(worker)
    await kit.store.fold(100)
    accounts = kit.store.accounts
    await accounts.put_tenant(TenantRow(tenant=tenant), noted("tenant.created", tenant=tenant))
    await accounts.add_user(person(f"u-{tenant}", f"{tenant}@example.org", member(f"u-{tenant}", tenant)), noted())
    await accounts.put_token(token(f"t-{tenant}", tenant), None, noted(tenant=tenant))
    await accounts.put_session(SessionRow(hash=f"s-{tenant}", tenant=tenant, user=f"u-{tenant}"), DAY)
    assert isinstance(await accounts.claim_request(asked(tenant=tenant)), int)


async def erase(kit: Kit, tenant: str) -> int:
    erased = 0
    while step := await kit.store.accounts.erase(tenant, 2):
        erased += step
    return erased


async def test_erasing_a_tenant_removes_all_of_its_rows_and_no_others(kit: Kit) -> None:
    for tenant in ("acme", "globex"):
        await everything_of(kit, tenant)
    ((theirs, *_),) = [(await kit.store.runs(RunFilter(tenant="globex"), limit=9, cursor=None)).items[::-1]]
    before = await kit.everything(theirs)
    assert await erase(kit, "acme") > 10
    store = kit.store
    assert (await store.runs(RunFilter(tenant="acme"), limit=9, cursor=None)).items == []
    assert (await store.letters(LetterFilter(tenant="acme"), limit=9, cursor=None)).items == []
    assert (await store.audit(AuditFilter(tenant="acme"), limit=9, cursor=None)).items == []
    accounts = store.accounts
    assert [row.tenant for row in await accounts.tenants()] == ["globex"]
    assert await accounts.users_by_email("acme@example.org") == []
    assert await accounts.token("t-acme") is await accounts.session("s-acme") is None
    assert isinstance(await accounts.claim_request(asked(tenant="acme")), int)
    assert await kit.everything(theirs) == before
    assert await accounts.token("t-globex") is not None
    assert len(await accounts.users_by_email("globex@example.org")) == 1
    assert await accounts.session("s-globex") is not None


async def test_a_user_whom_another_tenant_knows_survives_an_erasure(kit: Kit) -> None:
    accounts = kit.store.accounts
    ann = person("u1", "ann@example.org", member("u1", "acme"), member("u1", "globex"))
    await accounts.add_user(ann, noted(tenant="acme"))
    await erase(kit, "acme")
    found = await accounts.user("u1")
    assert found is not None
    assert [each.tenant for each in found.members] == ["globex"]


async def test_erasing_matches_the_tenant_name_exactly(kit: Kit) -> None:
    await kit.start(1, tenant="acme")
    for name in ("", "ac", "acme2", "ACME", "%"):
        await erase(kit, name)
        assert len((await kit.store.runs(RunFilter(), limit=9, cursor=None)).items) == 1, name
