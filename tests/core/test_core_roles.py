"""Roles: their permissions, and the limits on granting them."""

from __future__ import annotations

import itertools

import pytest
from cases import each

from redrive.core.roles import ROLE_PERMISSIONS, Permission, Principal, Role, parse_role
from redrive.errors import InputError, NotAllowed


def principal(role: Role = Role.ADMIN, **more: object) -> Principal:
    return Principal(who="ann", tenant="acme", role=role, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "role"),
    [("OWNER", "OWNER"), ("super_admin", "OWNER"), ("ORG_ADMIN", "ADMIN"), ("org-admin", "ADMIN"), ("staff", "STAFF")],
)
def test_roles_are_known_by_name_and_alias(name: str, role: str) -> None:
    assert parse_role(name) is Role(role)


@pytest.mark.parametrize("name", ["", "root", "ADMIN ", None, 7])
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(InputError, match="the roles are OWNER, ADMIN, STAFF, VIEWER"):
        parse_role(name)  # type: ignore[arg-type]


def test_each_role_includes_the_permissions_of_the_role_below() -> None:
    ranks = [ROLE_PERMISSIONS[role] for role in (Role.VIEWER, Role.STAFF, Role.ADMIN, Role.OWNER)]
    assert all(lower < higher for lower, higher in itertools.pairwise(ranks))


def test_no_role_includes_the_right_to_see_payloads() -> None:
    assert not any(Permission.SEE_PAYLOADS in allowed for allowed in ROLE_PERMISSIONS.values())
    assert not principal(Role.OWNER).may(Permission.SEE_PAYLOADS)
    assert principal(Role.VIEWER, payloads=True).may(Permission.SEE_PAYLOADS)


@each("permission", Permission)
def test_a_missing_permission_is_named(permission: Permission) -> None:
    viewer = principal(Role.VIEWER)
    if viewer.may(permission):
        viewer.need(permission)
        return
    with pytest.raises(NotAllowed, match=r"needs the role|the right to see payloads"):
        viewer.need(permission)


def test_only_an_owner_works_for_another_tenant() -> None:
    assert principal().enter(None) == principal().enter("acme") == "acme"
    assert principal(Role.OWNER).enter("globex") == "globex"
    for role in (Role.ADMIN, Role.STAFF, Role.VIEWER):
        with pytest.raises(NotAllowed):
            principal(role).enter("globex")


def test_a_user_cannot_grant_more_than_they_have() -> None:
    principal().require_grant("acme", Role.ADMIN, payloads=False)
    principal(Role.OWNER, payloads=True).require_grant("acme", Role.OWNER, payloads=True)
    with pytest.raises(NotAllowed):
        principal().require_grant("acme", Role.OWNER, payloads=False)
    with pytest.raises(NotAllowed):
        principal().require_grant("acme", Role.VIEWER, payloads=True)
    limited = principal(workflows=frozenset({"fulfil"}))
    limited.require_grant("acme", Role.STAFF, payloads=False, workflows=["fulfil"])
    for wider in (None, ["fulfil", "refund"]):
        with pytest.raises(NotAllowed):
            limited.require_grant("acme", Role.STAFF, payloads=False, workflows=wider)
