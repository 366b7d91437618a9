"""From what came with a request to a principal: an API key, a signed token, or the cookie of a session.

The tenant is the credential's, never the request's. Every reason to refuse one gives the same answer, so
that nobody learns which part of a guess was right.
"""

from __future__ import annotations

from redrive.clock import MICROS
from redrive.core.addresses import API
from redrive.core.roles import Principal
from redrive.errors import NotSignedIn
from redrive.server.auth.keys import hash_of, is_secret, read_key
from redrive.server.auth.signed import agrees, looks_signed, read_token
from redrive.store.account_records import TokenKind, TokenRow, lapse_of
from redrive.store.port import Store

__all__ = ["Credentials"]

_SHOWN = 180
_REFUSED = "the credential is unknown, expired or revoked; sign in, or use another token"


class Credentials:
    """Finds out who is asking."""

    def __init__(self, store: Store, secret_key: str = "") -> None:
        self._store = store
        self._secret_key = secret_key

    async def principal(self, authorization: str | None, cookie: str | None) -> Principal:
        """Whoever a request comes from; NotSignedIn if that cannot be told."""
        if authorization is not None:
            kind, _, text = authorization.partition(" ")
            if kind.lower() != "bearer" or not text:
                raise NotSignedIn("the Authorization header must be `Bearer` and a token")
            return await self._bearer(text.strip())
        if cookie is not None:
            return await self._session(cookie)
        raise NotSignedIn(f"a token is needed: Authorization: Bearer ...; or sign in with POST {API}/login")

    async def _bearer(self, text: str) -> Principal:
        if (key := read_key(text)) is not None:
            row = await self._store.accounts.token(key.id)
            if row is None or row.kind is not TokenKind.KEY or not is_secret(row.hash, key.secret):
                raise NotSignedIn(_REFUSED)
            return await self._holder(row)
        if looks_signed(text) and self._secret_key:
            claims = read_token(text, self._secret_key, self._store.now() // MICROS)
            row = await self._store.accounts.token(str(claims["jti"]))
            if row is None or row.kind is not TokenKind.JWT or not agrees(claims, row):
                raise NotSignedIn(_REFUSED)
            return await self._holder(row)
        raise NotSignedIn(_REFUSED)

    async def _holder(self, row: TokenRow) -> Principal:
        now = self._store.now()
        if row.is_over(now) or await lapse_of(self._store.accounts, row, now) is not None:
            raise NotSignedIn(_REFUSED)
        return Principal(
            who=f"token:{row.name[:_SHOWN]}:{row.id}",  # names are not unique, and `by` has 255 characters
            tenant=row.tenant,
            role=row.role,
            payloads=row.payloads,
            workflows=frozenset(row.workflows) or None,
            token=row.id,
        )

    async def _session(self, cookie: str) -> Principal:
        accounts = self._store.accounts
        found = await accounts.session(hash_of(cookie))
        if found is None or found.expires_at <= self._store.now():
            raise NotSignedIn(_REFUSED)
        user = await accounts.user(found.user)
        member = next((each for each in (user.members if user else ()) if each.tenant == found.tenant), None)
        if user is None or user.disabled_at is not None or member is None or not member.active:
            raise NotSignedIn(_REFUSED)
        return Principal(
            who=user.email, tenant=found.tenant, role=member.role, payloads=member.payloads, user=user.id
        )
