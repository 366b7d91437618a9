"""Who may do what: one table of roles and permissions, and the rules about handing them on.

    OWNER    everything, of all tenants          alias SUPER_ADMIN
    ADMIN    everything of one tenant            alias ORG_ADMIN
    STAFF    starts and cancels runs, comments, assigns; decides nothing about dead letters
    VIEWER   looks

Seeing hidden payloads is no matter of rank: it is given to a person or a token by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from redrive.errors import InputError, NotAllowed

ALL_TENANTS = "*"
"""What an owner says to mean every tenant at once; no tenant may be called so."""

DEFAULT_TENANT = "default"
"""Whose everything is where nobody names a tenant, and where the first owner is."""


def check_tenant_name(name: str) -> str:
    """The name, if it can be that of a tenant."""
    if name == ALL_TENANTS:
        raise InputError(f"no tenant can be called {ALL_TENANTS!r}, which means all of them")
    return name


class Role(StrEnum):
    """What somebody is to a tenant."""

    OWNER = "OWNER"
    ADMIN = "ADMIN"
    STAFF = "STAFF"
    VIEWER = "VIEWER"


ROLE_ALIASES = {"SUPER_ADMIN": Role.OWNER, "ORG_ADMIN": Role.ADMIN}
"""Other names that roles go by."""


class Permission(StrEnum):
    """One kind of thing that can be done."""

    LOOK = "look"
    START = "start"
    CANCEL = "cancel"
    NOTE = "note"
    DECIDE = "decide"
    SET_POLICIES = "set policies"
    MANAGE_PEOPLE = "manage people"
    PAUSE = "pause workflows"
    MANAGE_SINKS = "manage sinks"
    MANAGE_TENANTS = "manage tenants"
    SEE_PAYLOADS = "see payloads"


_Permission = Permission
_VIEWER_PERMISSIONS = frozenset({_Permission.LOOK})
_STAFF_PERMISSIONS = _VIEWER_PERMISSIONS | {_Permission.START, _Permission.CANCEL, _Permission.NOTE}
_ADMIN_PERMISSIONS = _STAFF_PERMISSIONS | {_Permission.DECIDE, _Permission.SET_POLICIES, _Permission.MANAGE_PEOPLE}

ROLE_PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: _VIEWER_PERMISSIONS,
    Role.STAFF: _STAFF_PERMISSIONS,
    Role.ADMIN: _ADMIN_PERMISSIONS,
    Role.OWNER: _ADMIN_PERMISSIONS | {_Permission.PAUSE, _Permission.MANAGE_SINKS, _Permission.MANAGE_TENANTS},
}
"""The table. Workflows and sinks are of all tenants, so they belong to those who answer for all."""

_ROLES_BY_RANK = (Role.VIEWER, Role.STAFF, Role.ADMIN, Role.OWNER)


def ranks_at_least(role: Role, least: Role) -> bool:
    """Return True if `role` ranks as high as `least`, or higher."""
    return _ROLES_BY_RANK.index(role) >= _ROLES_BY_RANK.index(least)


def parse_role(name: str) -> Role:
    """The role that a name or an alias stands for."""
    wanted = name.upper().replace("-", "_") if isinstance(name, str) else ""
    for role in Role:
        if wanted == role:
            return role
    if wanted in ROLE_ALIASES:
        return ROLE_ALIASES[wanted]
    raise InputError(f"there is no role {name!r:.60}; there are {', '.join(Role)}")


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever sends a request: who it is, for which tenant, and what that allows.

    `workflows` limits a token to runs and letters of these; None means all. `token` is the id of a token, and
    `user` the id of a user who signed in; the other one is empty.
    """

    who: str
    tenant: str
    role: Role
    payloads: bool = False
    workflows: frozenset[str] | None = None
    token: str = ""
    user: str = ""

    @property
    def key(self) -> str:
        """What tells this credential from all others."""
        return f"{self.tenant}\0{self.who}\0{self.token}{self.user}"

    def may(self, permission: Permission) -> bool:
        """True if this is allowed."""
        if permission is Permission.SEE_PAYLOADS:
            return self.payloads
        return permission in ROLE_PERMISSIONS[self.role]

    def need(self, permission: Permission) -> None:
        """Refuse what is not allowed, and say what is missing."""
        if self.may(permission):
            return
        if permission is Permission.SEE_PAYLOADS:
            raise NotAllowed("hidden payloads are shown to those only who were given the permission for it")
        least = next(role for role in _ROLES_BY_RANK if permission in ROLE_PERMISSIONS[role])
        raise NotAllowed(
            f"this needs the role {least} or higher ({permission}); yours is {self.role}", role=least.value
        )

    def enter(self, tenant: str | None) -> str:
        """The tenant to work for: one's own, or the one that an owner names."""
        if tenant is None or tenant == self.tenant:
            return self.tenant
        if self.role is Role.OWNER:
            return tenant
        raise NotAllowed("another tenant can be named by an OWNER only; leave `tenant` out")

    def require_grant(self, tenant: str, role: Role, *, payloads: bool, workflows: Iterable[str] | None = None) -> None:
        """Refuse to give more rights in a tenant than this principal has there.

        An OWNER acts in every tenant, with the payload right of the credential that signed in. Any other
        principal has rights in its own tenant only.
        """
        if tenant != self.tenant and self.role is not Role.OWNER:
            raise NotAllowed(f"this {self.role} has no rights in tenant {tenant!r} to give: ask an OWNER")
        if not ranks_at_least(self.role, role):
            raise NotAllowed(f"this needs the role {role}, and yours is {self.role}: ask a user who has it")
        if payloads and not self.payloads:
            raise NotAllowed("this needs the right to see payloads, which you lack: ask a user who has it")
        if self.workflows is not None and (workflows is None or not self.workflows.issuperset(workflows)):
            raise NotAllowed(f"this token is for {', '.join(sorted(self.workflows))} and cannot give more")
