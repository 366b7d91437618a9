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

__all__ = [
    "ALIASES",
    "ALL_TENANTS",
    "DEFAULT_TENANT",
    "GRANTS",
    "Permission",
    "Principal",
    "Role",
    "at_least",
    "one_tenant",
    "role_of",
]

ALL_TENANTS = "*"
"""What an owner says to mean every tenant at once; no tenant may be called so."""

DEFAULT_TENANT = "default"
"""Whose everything is where nobody names a tenant, and where the first owner is."""


def one_tenant(name: str) -> str:
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


ALIASES = {"SUPER_ADMIN": Role.OWNER, "ORG_ADMIN": Role.ADMIN}
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


_P = Permission
_VIEWER = frozenset({_P.LOOK})
_STAFF = _VIEWER | {_P.START, _P.CANCEL, _P.NOTE}
_ADMIN = _STAFF | {_P.DECIDE, _P.SET_POLICIES, _P.MANAGE_PEOPLE}

GRANTS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: _VIEWER,
    Role.STAFF: _STAFF,
    Role.ADMIN: _ADMIN,
    Role.OWNER: _ADMIN | {_P.PAUSE, _P.MANAGE_SINKS, _P.MANAGE_TENANTS},
}
"""The table. Workflows and sinks are of all tenants, so they belong to those who answer for all."""

_RANK = (Role.VIEWER, Role.STAFF, Role.ADMIN, Role.OWNER)


def at_least(role: Role, least: Role) -> bool:
    """Return True if `role` ranks as high as `least`, or higher."""
    return _RANK.index(role) >= _RANK.index(least)


def role_of(name: str) -> Role:
    """The role that a name or an alias stands for."""
    wanted = name.upper().replace("-", "_") if isinstance(name, str) else ""
    for role in Role:
        if wanted == role:
            return role
    if wanted in ALIASES:
        return ALIASES[wanted]
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
        return permission in GRANTS[self.role]

    def need(self, permission: Permission) -> None:
        """Refuse what is not allowed, and say what is missing."""
        if self.may(permission):
            return
        if permission is Permission.SEE_PAYLOADS:
            raise NotAllowed("hidden payloads are shown to those only who were given the permission for it")
        least = next(role for role in _RANK if permission in GRANTS[role])
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

    def need_grant(
        self, tenant: str, role: Role, *, payloads: bool, workflows: Iterable[str] | None = None
    ) -> None:
        """Refuse to give more rights in a tenant than this principal has there.

        An OWNER acts in every tenant, with the payload right of the credential that signed in. Any other
        principal has rights in its own tenant only.
        """
        if tenant != self.tenant and self.role is not Role.OWNER:
            raise NotAllowed(f"this {self.role} has no rights in tenant {tenant!r} to give: ask an OWNER")
        if not at_least(self.role, role):
            raise NotAllowed(f"this needs the role {role}, and yours is {self.role}: ask a user who has it")
        if payloads and not self.payloads:
            raise NotAllowed("this needs the right to see payloads, which you lack: ask a user who has it")
        if self.workflows is not None and (workflows is None or not self.workflows.issuperset(workflows)):
            raise NotAllowed(f"this token is for {', '.join(sorted(self.workflows))} and cannot give more")
