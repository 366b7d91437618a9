"""Signed tokens (JWT): one algorithm, our issuer and audience, an end, and a scope.

    {"iss": "redrive", "aud": "redrive", "jti": ID, "exp": ..., "tenant": ..., "role": ..., ...}

A signature says that somebody with REDRIVE_SECRET_KEY wrote the claims; the row that the token's id names
says that they still hold. Claims that say more than the row are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import msgspec
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from redrive.errors import ConfigurationError, InputError, NotSignedIn
from redrive.settings import MIN_SECRET_BYTES
from redrive.store.accounts import TokenRow

# -- Random secrets: API keys, sessions, codes. Only their hashes are stored, and compared in consta -----


_API_KEY_PATTERN = re.compile(r"rdk_([0-9a-z]{26})_([A-Za-z0-9_-]{43})", re.ASCII)
_CODE_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """An API key taken apart."""

    id: str
    secret: str


def new_secret() -> str:
    """256 random bits as text."""
    return secrets.token_urlsafe(32)


def new_api_key(id: str) -> tuple[str, str]:
    """An API key for a token's row: what its owner is shown once, and what is stored."""
    secret = new_secret()
    return f"rdk_{id}_{secret}", hash_secret(secret)


def new_code() -> str:
    """A code to be typed once: 120 random bits in groups of letters that are not mistaken for others."""
    letters = [secrets.choice(_CODE_ALPHABET) for _ in range(25)]
    return "-".join("".join(letters[start : start + 5]) for start in range(0, 25, 5))


def parse_api_key(text: str) -> ApiKey | None:
    """The parts of an API key; None if it is none."""
    found = _API_KEY_PATTERN.fullmatch(text)
    return None if found is None else ApiKey(found[1], found[2])


def hash_secret(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def matches_secret(stored: str, secret: str) -> bool:
    """True if the secret is the one that was stored; takes the same time whichever way it differs."""
    return hmac.compare_digest(stored, hash_secret(secret))


# -- Passwords, hashed with argon2 -----------------------------------------------------------------------


MIN_PASSWORD_LENGTH, MAX_PASSWORD_LENGTH = 10, 1024
HASHING_THREADS, MAX_WAITING = 2, 64
_hasher = PasswordHasher()
_threads = ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="redrive-password")
_waiting = 0
T = TypeVar("T")


def check_password(password: str) -> str:
    """The password, if it is one that may be chosen."""
    if not isinstance(password, str) or not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise InputError(f"a password has {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH:,} characters")
    return password


async def hash_password(password: str) -> str:
    """What is stored of a password."""
    return await _run_in_thread(_hasher.hash, check_password(password).encode("utf-8", "surrogatepass"))


async def matches_password(stored: str | None, password: str) -> bool:
    """True if it is the one that was stored. Takes as long when there is nothing to compare with."""
    return await _run_in_thread(_verify_password, stored, password)


def is_hashing_busy() -> bool:
    """Return True if so many calls wait for a thread that no more should be made."""
    return _waiting >= HASHING_THREADS + MAX_WAITING


async def _run_in_thread(call: Callable[..., T], *arguments: Any) -> T:
    global _waiting
    _waiting += 1
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, call, *arguments)
    finally:
        _waiting -= 1


def _verify_password(stored: str | None, password: str) -> bool:
    try:
        _hasher.verify(stored or _decoy_hash(), password.encode("utf-8", "surrogatepass"))
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


@cache
def _decoy_hash() -> str:
    """Return the hash of a password that no user has: an unknown address takes as long as a known one."""
    return _hasher.hash("no user has this password")


# -- Signed tokens (JWT): one algorithm, our issuer and audience, an end, and a scope --------------------


ALGORITHM = "HS256"
ISSUER = "redrive"


def sign_token(row: TokenRow, expires_at: int, secret: str) -> str:
    """A token that says what its row says, until a time in seconds since 1970."""
    claims = {"iss": ISSUER, "aud": ISSUER, "jti": row.id, "exp": expires_at, **_make_claims(row)}
    return jwt.encode({"alg": ALGORITHM}, claims, _make_signing_key(secret), algorithms=[ALGORITHM])


def decode_token(text: str, secret: str, now: int) -> dict[str, Any]:
    """The claims of a token that was signed here for us and has not expired."""
    wanted = jwt.JWTClaimsRegistry(
        now=now,
        leeway=0,
        iss={"essential": True, "value": ISSUER},
        aud={"essential": True, "value": ISSUER},
        exp={"essential": True},
        jti={"essential": True},
    )
    try:
        claims = jwt.decode(text, _make_signing_key(secret), algorithms=[ALGORITHM]).claims
        wanted.validate(claims)
    except (JoseError, ValueError, TypeError):
        raise NotSignedIn("the token is not one of ours, or it has expired") from None
    return claims


def claims_match_token(claims: Mapping[str, Any], row: TokenRow) -> bool:
    """True if the claims say what the row says, and nothing beyond it."""
    return all(claims.get(name) == value for name, value in _make_claims(row).items())


def looks_like_jwt(text: str) -> bool:
    """True for what has the three parts of a signed token."""
    return text.count(".") == 2


def _make_claims(row: TokenRow) -> dict[str, Any]:
    return {"tenant": row.tenant, "role": row.role.value, "workflows": list(row.workflows), "payloads": row.payloads}


def _make_signing_key(secret: str) -> OctKey:
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise ConfigurationError(
            f"signed tokens need REDRIVE_SECRET_KEY, of at least {MIN_SECRET_BYTES} bytes: "
            "`openssl rand -base64 48` makes one"
        )
    return OctKey.import_key(secret.encode())
