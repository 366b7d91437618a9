"""People and tokens that somebody wants to have; apart, since asking for them needs none of their secrets."""

from __future__ import annotations

from redrive.core.roles import Role
from redrive.frozen import dataclass
from redrive.store.account_records import TokenKind, TokenRow

__all__ = ["Made", "NewToken", "NewUser"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """A person to be known. Without a password a code to sign in once is made."""

    email: str
    tenant: str
    role: Role
    password: str | None = None
    payloads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token to be made. `lasts` is in seconds; a signed one has an end in any case."""

    tenant: str
    role: Role
    name: str
    kind: TokenKind = TokenKind.KEY
    workflows: tuple[str, ...] = ()
    payloads: bool = False
    lasts: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """A token, and its secret, which is shown now and never again."""

    token: TokenRow
    secret: str
