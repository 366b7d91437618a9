"""Secrets: API keys, invitation codes, passwords and signed tokens (JWT).

Only hashes of random secrets and passwords are stored. The claims of a signed token are

    {"iss": "redrive", "aud": "redrive", "jti": ID, "exp": ..., "tenant": ..., "role": ..., ...}

The signature proves that a process with REDRIVE_SECRET_KEY wrote the claims. The stored row with the token's id
proves that they are still valid. Claims that differ from the row are refused.
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

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from redrive.errors import ConfigurationError, InputError, NotSignedIn
from redrive.reasons import Reason, ReasonCode
from redrive.settings import MIN_SECRET_BYTES
from redrive.store.accounts import TokenRow

ALGORITHM = "HS256"
ISSUER = "redrive"
MIN_PASSWORD_LENGTH, MAX_PASSWORD_LENGTH = 10, 1024
HASHING_THREADS, MAX_WAITING = 2, 64
_hasher = PasswordHasher()
_threads = ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="redrive-password")
_waiting = 0
T = TypeVar("T")
_API_KEY_PATTERN = re.compile(r"rdk_([0-9a-z]{26})_([A-Za-z0-9_-]{43})", re.ASCII)
_CODE_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"


def new_secret() -> str:
    """Return 256 random bits as text."""
    return secrets.token_urlsafe(32)


def new_api_key(id: str) -> tuple[str, str]:
    """Return an API key for the id of a token, and the hash to store."""
    secret = new_secret()
    return f"rdk_{id}_{secret}", hash_secret(secret)


def new_code() -> str:
    """Return an invitation code: 120 random bits, in groups of characters that are hard to confuse."""
    return "-".join("".join(secrets.choice(_CODE_ALPHABET) for _ in range(5)) for _ in range(5))


def parse_api_key(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of an API key, None for any other text."""
    found = _API_KEY_PATTERN.fullmatch(text)
    return None if found is None else (found[1], found[2])


def hash_secret(secret: str) -> str:
    """Return the hash of a secret that is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def matches_secret(stored: str, secret: str) -> bool:
    """Return True if the secret has the stored hash, in constant time."""
    return hmac.compare_digest(stored, hash_secret(secret))


def check_password(password: str) -> str:
    """Return a password, or refuse one that is too short or too long."""
    if not isinstance(password, str) or len(password) < MIN_PASSWORD_LENGTH:
        raise InputError(Reason(ReasonCode.PASSWORD_TOO_SHORT, least=MIN_PASSWORD_LENGTH))
    if len(password) > MAX_PASSWORD_LENGTH:
        raise InputError(Reason(ReasonCode.PASSWORD_TOO_LONG, most=MAX_PASSWORD_LENGTH))
    return password


async def hash_password(password: str) -> str:
    """Return the argon2 hash of a password that is stored."""
    return await _run_in_thread(_hasher.hash, check_password(password).encode("utf-8", "surrogatepass"))


async def matches_password(stored: str | None, password: str) -> bool:
    """Return True if the password has the stored hash. Without a hash the call takes equally long."""
    return await _run_in_thread(_verify_password, stored, password)


def is_hashing_busy() -> bool:
    """Return True if too many calls wait for a thread to accept another."""
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


def sign_token(row: TokenRow, expires_at: int, secret: str) -> str:
    """Return a signed token with the claims of a row, valid until a time in seconds since 1970."""
    claims = {"iss": ISSUER, "aud": ISSUER, "jti": row.id, "exp": expires_at, **_make_claims(row)}
    return jwt.encode({"alg": ALGORITHM}, claims, _make_signing_key(secret), algorithms=[ALGORITHM])


def decode_token(text: str, secret: str, now: int) -> dict[str, Any]:
    """Return the claims of a token that this installation signed and that has not expired."""
    rules = jwt.JWTClaimsRegistry(
        now=now,
        leeway=0,
        iss={"essential": True, "value": ISSUER},
        aud={"essential": True, "value": ISSUER},
        exp={"essential": True},
        jti={"essential": True},
    )
    try:
        claims = jwt.decode(text, _make_signing_key(secret), algorithms=[ALGORITHM]).claims
        rules.validate(claims)
    except (JoseError, ValueError, TypeError):
        raise NotSignedIn(Reason(ReasonCode.CREDENTIAL_INVALID)) from None
    return claims


def claims_match_token(claims: Mapping[str, Any], row: TokenRow) -> bool:
    """Return True if the claims agree with the row."""
    return all(claims.get(name) == value for name, value in _make_claims(row).items())


def looks_like_jwt(text: str) -> bool:
    """Return True if a text has the three parts of a signed token."""
    return text.count(".") == 2


def _make_claims(row: TokenRow) -> dict[str, Any]:
    scope = {"tenant": row.tenant, "role": row.role.value, "workflows": list(row.workflows), "payloads": row.payloads}
    return scope | ({"steps": list(row.steps)} if row.steps else {})


def _make_signing_key(secret: str) -> OctKey:
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise ConfigurationError(
            f"REDRIVE_SECRET_KEY has fewer than {MIN_SECRET_BYTES} bytes: create one with `openssl rand -base64 48`"
        )
    return OctKey.import_key(secret.encode())
