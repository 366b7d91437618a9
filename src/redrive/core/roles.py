"""Roles and permissions, and the rules for granting them.

    OWNER    everything, in all tenants          alias SUPER_ADMIN
    ADMIN    everything in one tenant            alias ORG_ADMIN
    STAFF    starts and cancels runs, answers tasks, comments, assigns, sees stack traces; no decisions on dead letters
    VIEWER   reads
    WORKER   executes runs: for tokens of workers that reach the store through a server; starts runs and awaits results

The right to see payloads does not depend on the role: it is granted to a user or a token separately.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from redrive.errors import InputError, NotAllowed
from redrive.reasons import Reason, ReasonCode, quote

ALL_TENANTS = "*"
"""The name that stands for all tenants at once. A tenant cannot have it."""

DEFAULT_TENANT = "default"
"""The tenant that is used if none is named. The first owner belongs to it."""


class Role(StrEnum):
    """The role of a user or a token in a tenant."""

    OWNER = "OWNER"
    ADMIN = "ADMIN"
    STAFF = "STAFF"
    VIEWER = "VIEWER"
    WORKER = "WORKER"


ROLE_ALIASES = {"SUPER_ADMIN": Role.OWNER, "ORG_ADMIN": Role.ADMIN}
"""Other names of roles."""


class Permission(StrEnum):
    """A permission that a role gives, or that is granted separately."""

    LOOK = "look"
    START = "start"
    CANCEL = "cancel"
    NOTE = "note"
    SEE_STACKS = "see stack traces"
    DECIDE = "decide"
    SET_POLICIES = "set policies"
    MANAGE_PEOPLE = "manage people"
    PAUSE = "pause workflows"
    MANAGE_SINKS = "manage sinks"
    MANAGE_WORKERS = "manage workers"
    MANAGE_TENANTS = "manage tenants"
    SEE_PAYLOADS = "see payloads"
    AWAIT = "await results"
    WORK = "execute runs"
    ANSWER = "answer tasks"


_VIEWER_PERMISSIONS = frozenset({Permission.LOOK})
_STAFF_PERMISSIONS = _VIEWER_PERMISSIONS | {
    Permission.START, Permission.CANCEL, Permission.NOTE, Permission.SEE_STACKS, Permission.ANSWER,
}  # fmt: skip
_ADMIN_PERMISSIONS = _STAFF_PERMISSIONS | {Permission.DECIDE, Permission.SET_POLICIES, Permission.MANAGE_PEOPLE}

ROLE_PERMISSIONS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: _VIEWER_PERMISSIONS,
    Role.STAFF: _STAFF_PERMISSIONS,
    Role.ADMIN: _ADMIN_PERMISSIONS,
    Role.OWNER: _ADMIN_PERMISSIONS
    | {Permission.PAUSE, Permission.MANAGE_SINKS, Permission.MANAGE_WORKERS, Permission.MANAGE_TENANTS},
    Role.WORKER: frozenset({Permission.WORK, Permission.START, Permission.AWAIT}),
}
"""The permissions of each role. All tenants share workflows, sinks and workers, so only an OWNER manages them."""

_ROLES_BY_RANK = (Role.VIEWER, Role.STAFF, Role.ADMIN, Role.OWNER)

USER_ROLES = _ROLES_BY_RANK
"""The roles that a user can have. A WORKER is always a token."""


def ranks_at_least(role: Role, least: Role) -> bool:
    """Return True if `role` ranks as high as `least` or higher.

    The code of a WORKER decides what runs do, so only an ADMIN or an OWNER grants this role.
    """
    if least is Role.WORKER:
        least = Role.ADMIN
    if role is Role.WORKER:
        return False
    return _ROLES_BY_RANK.index(role) >= _ROLES_BY_RANK.index(least)


def find_lowest_role(permission: Permission) -> Role:
    """Return the lowest role that gives a permission."""
    return next(role for role in (*_ROLES_BY_RANK, Role.WORKER) if permission in ROLE_PERMISSIONS[role])


def parse_role(name: str) -> Role:
    """Return the role with this name or alias, in any case."""
    known = {role.value: role for role in Role} | ROLE_ALIASES
    role = known.get(name.upper().replace("-", "_")) if isinstance(name, str) else None
    if role is None:
        raise InputError(Reason(ReasonCode.ROLE_UNKNOWN, given=quote(name), known=tuple(Role)))
    return role


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The caller of a request: its name, its tenant and its rights.

    `workflows` limits a token to the runs and letters of these workflows; None means all. `steps` limits the steps that
    a worker with the token may execute. `token` is the id of a token, `user` the id of a user who signed in; the other
    one is empty.
    """

    who: str
    tenant: str
    role: Role
    payloads: bool = False
    workflows: frozenset[str] | None = None
    steps: frozenset[str] | None = None
    token: str = ""
    user: str = ""

    @property
    def key(self) -> str:
        """A text that identifies this credential."""
        return f"{self.tenant}\0{self.who}\0{self.token}{self.user}"

    @property
    def digest(self) -> str:
        """A stored name of this credential, which does not name the user or the token."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:32]

    def may(self, permission: Permission) -> bool:
        if permission is Permission.SEE_PAYLOADS:
            return self.payloads
        if permission is Permission.SEE_STACKS and self.payloads:
            return True  # a stack trace shows less than the payloads do
        if permission is Permission.AWAIT and self.payloads:
            return True  # a result is a payload
        return permission in ROLE_PERMISSIONS[self.role]

    def need(self, permission: Permission) -> None:
        """Raise NotAllowed, with what is missing, if the caller lacks a permission."""
        if self.may(permission):
            return
        if permission in (Permission.SEE_PAYLOADS, Permission.AWAIT):
            raise NotAllowed(Reason(ReasonCode.PAYLOAD_PERMISSION_NEEDED))
        least = find_lowest_role(permission)
        reason = Reason(ReasonCode.ROLE_NEEDED, role=least.value, own=self.role.value, permission=permission.value)
        raise NotAllowed(reason, role=least.value)

    def enter(self, tenant: str | None) -> str:
        """Return the tenant to work in: the caller's own, or any that an OWNER names."""
        if tenant is None or tenant == self.tenant:
            return self.tenant
        if self.role is Role.OWNER or self.tenant == ALL_TENANTS:
            return tenant
        raise NotAllowed(Reason(ReasonCode.OTHER_TENANT_FORBIDDEN, tenant=self.tenant))

    def require_grant(self, tenant: str, role: Role, *, payloads: bool, workflows: Iterable[str] | None = None) -> None:
        """Refuse to give more rights in a tenant than this principal has there.

        An OWNER acts in every tenant, with the payload right of the credential that signed in. Any other
        principal has rights in its own tenant only.
        """
        if tenant != self.tenant and self.role is not Role.OWNER:
            raise NotAllowed(Reason(ReasonCode.OTHER_TENANT_FORBIDDEN, tenant=self.tenant))
        if not ranks_at_least(self.role, role):
            raise NotAllowed(Reason(ReasonCode.ROLE_NEEDED, role=role.value, own=self.role.value, permission=None))
        if payloads and not self.payloads:
            raise NotAllowed(Reason(ReasonCode.PAYLOAD_PERMISSION_NEEDED))
        if self.workflows is not None and (workflows is None or not self.workflows.issuperset(workflows)):
            raise NotAllowed(Reason(ReasonCode.TOKEN_LIMITED, workflows=tuple(sorted(self.workflows))))
