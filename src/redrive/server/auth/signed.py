"""Signed tokens (JWT): one algorithm, our issuer and audience, an end, and a scope.

    {"iss": "redrive", "aud": "redrive", "jti": ID, "exp": ..., "tenant": ..., "role": ..., ...}

A signature says that somebody with REDRIVE_SECRET_KEY wrote the claims; the row that the token's id names
says that they still hold. Claims that say more than the row are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from redrive.errors import ConfigurationError, NotSignedIn
from redrive.settings import LEAST_SECRET
from redrive.store.account_records import TokenRow

__all__ = ["agrees", "looks_signed", "read_token", "sign_token"]

ALGORITHM = "HS256"
NAME = "redrive"


def sign_token(row: TokenRow, expires_at: int, secret: str) -> str:
    """A token that says what its row says, until a time in seconds since 1970."""
    claims = {"iss": NAME, "aud": NAME, "jti": row.id, "exp": expires_at, **_said(row)}
    return jwt.encode({"alg": ALGORITHM}, claims, _key(secret), algorithms=[ALGORITHM])


def read_token(text: str, secret: str, now: int) -> dict[str, Any]:
    """The claims of a token that was signed here for us and has not expired."""
    wanted = jwt.JWTClaimsRegistry(
        now=now,
        leeway=0,
        iss={"essential": True, "value": NAME},
        aud={"essential": True, "value": NAME},
        exp={"essential": True},
        jti={"essential": True},
    )
    try:
        claims = jwt.decode(text, _key(secret), algorithms=[ALGORITHM]).claims
        wanted.validate(claims)
    except (JoseError, ValueError, TypeError):
        raise NotSignedIn("the token is not one of ours, or it has expired") from None
    return claims


def agrees(claims: Mapping[str, Any], row: TokenRow) -> bool:
    """True if the claims say what the row says, and nothing beyond it."""
    return all(claims.get(name) == value for name, value in _said(row).items())


def looks_signed(text: str) -> bool:
    """True for what has the three parts of a signed token."""
    return text.count(".") == 2


def _said(row: TokenRow) -> dict[str, Any]:
    return {
        "tenant": row.tenant,
        "role": row.role.value,
        "workflows": list(row.workflows),
        "payloads": row.payloads,
    }


def _key(secret: str) -> OctKey:
    if len(secret.encode()) < LEAST_SECRET:
        raise ConfigurationError(
            f"signed tokens need REDRIVE_SECRET_KEY, of at least {LEAST_SECRET} bytes: "
            "`openssl rand -base64 48` makes one"
        )
    return OctKey.import_key(secret.encode())
