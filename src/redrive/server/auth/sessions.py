"""Signing in and out. A browser holds a random cookie; what it stands for is kept on the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import Principal
from redrive.core.transitions import AuditWrite
from redrive.errors import InputError, NotSignedIn
from redrive.records import replace
from redrive.server.auth.admin import AccountAdmin
from redrive.server.auth.secrets import (
    check_password,
    claims_match_token,
    decode_token,
    hash_secret,
    looks_like_jwt,
    matches_password,
    matches_secret,
    new_secret,
    parse_api_key,
)
from redrive.settings import API_PREFIX
from redrive.store.accounts import MemberRow, SessionRow, TokenKind, TokenRow, UserRow, token_invalid_reason
from redrive.store.port import Store

# -- Signing in and out. A browser holds a random cookie; what it stands for is kept on the server -------


SESSION_LIFETIME = 12 * 3600
"""Seconds until somebody has to sign in again."""

REFUSAL_INTERVAL = 0.25
"""Seconds: refusals are given on this beat, so that their time does not tell who is known."""

_SIGN_IN_REFUSED = "address and password, or the code, do not fit together, or this person may not sign in"


class Login(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What somebody signs in with. `tenant` chooses among several; `code` signs in once.

    `place` is the address it came from, for the audit log.
    """

    email: str
    password: str | None = None
    code: str | None = None
    tenant: str | None = None
    new_password: str | None = None
    place: str = ""


class SignInResult(msgspec.Struct, frozen=True):
    """Somebody who signed in, and the cookie to know them by."""

    principal: Principal
    cookie: str


class TenantChoiceNeeded(InputError):
    """Somebody who belongs to several tenants has to say which one they want to work in."""

    def __init__(self, tenants: Sequence[str]) -> None:
        super().__init__(f"you belong to several tenants; name one in `tenant`: {', '.join(tenants)}")
        self.tenants = tuple(tenants)


class Sessions:
    """Begins and ends sign-ins."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def sign_in(self, login: Login) -> SignInResult:
        """Begin a session; NotSignedIn, in the same words and on the same beat, for every reason not to."""
        begun = self._clock.monotonic()
        try:
            return await self._sign_in(login)
        except NotSignedIn:
            await self._clock.sleep(REFUSAL_INTERVAL - (self._clock.monotonic() - begun) % REFUSAL_INTERVAL)
            raise

    async def _sign_in(self, login: Login) -> SignInResult:
        if login.new_password is not None:
            check_password(login.new_password)
        known = await self._store.accounts.users_by_email(login.email.lower())
        proven = [user for user in await self._authenticate(known, login) if user.disabled_at is None]
        if not proven:
            await self._refuse(known, login.place)
        user, member = self._choose_member(proven, login.tenant)
        who = Principal(who=user.email, tenant=member.tenant, role=member.role, payloads=member.payloads, user=user.id)
        if login.new_password is not None:
            await AccountAdmin(self._store.accounts, self._clock, who).set_password(user, login.new_password)
        cookie = new_secret()
        session = SessionRow(hash=hash_secret(cookie), tenant=member.tenant, user=user.id)
        await self._store.accounts.put_session(session, SESSION_LIFETIME * MICROS)
        if await self._store.accounts.session(session.hash) is None:
            raise NotSignedIn(_SIGN_IN_REFUSED)  # the tenant is disabled
        await self._write_audit(AuditEvent.USER_SIGNED_IN, member.tenant, user.email, login.place)
        return SignInResult(who, cookie)

    async def sign_out(self, cookie: str) -> None:
        """End a session."""
        await self._store.accounts.end_sessions(hash=hash_secret(cookie))

    async def _authenticate(self, known: Sequence[UserRow], login: Login) -> list[UserRow]:
        """Return the accounts that the secret fits, each with the memberships that it opens.

        A password opens all tenants of its account, a code the one tenant it was created for.
        """
        if login.code is not None:
            return await self._use_code(known, login.code, login.tenant)
        if login.password is None:
            raise InputError("a password or a code is needed to sign in")
        # All at once, so that the time does not tell how many tenants have an account for the address.
        hashes = [user.password for user in known] or [None]
        fits = await asyncio.gather(*(matches_password(stored, login.password) for stored in hashes))
        return [user for user, fit in zip(known, fits, strict=False) if fit]

    async def _use_code(self, known: Sequence[UserRow], code: str, wanted: str | None) -> list[UserRow]:
        """Return the account that a code opens, and make the code invalid; of two callers one is first."""
        id, _, secret = code.strip().partition(".")
        accounts, now = self._store.accounts, self._store.now()
        row = await accounts.token(id)
        user = next((each for each in known if row is not None and each.id == row.user), None)
        if row is None or user is None or row.kind is not TokenKind.CODE or not matches_secret(row.hash, secret):
            return []
        if row.expires_at is None or row.is_over(now) or wanted not in (None, row.tenant):
            return []
        if await token_invalid_reason(accounts, row, now) is not None:
            return []
        line = self._make_audit(AuditEvent.TOKEN_REVOKED, row.tenant, row.id, by=user.email)
        if not await accounts.revoke_token(row.id, row.tenant, line):
            return []
        return [replace(user, members=tuple(each for each in user.members if each.tenant == row.tenant))]

    def _choose_member(self, proven: Sequence[UserRow], tenant: str | None) -> tuple[UserRow, MemberRow]:
        active = [
            (user, each) for user in proven for each in user.members if each.active and tenant in (None, each.tenant)
        ]
        if not active:
            raise NotSignedIn(_SIGN_IN_REFUSED)
        if len(active) > 1:
            raise TenantChoiceNeeded(sorted(member.tenant for _, member in active))
        return active[0]

    async def _refuse(self, known: Sequence[UserRow], place: str) -> NoReturn:
        """Refuse to sign in, and note it in the log of each tenant that knows the address."""
        for user in known:
            for member in user.members:
                await self._write_audit(AuditEvent.USER_REFUSED, member.tenant, user.email, place)
        raise NotSignedIn(_SIGN_IN_REFUSED)

    async def _write_audit(self, event: AuditEvent, tenant: str, email: str, place: str) -> None:
        line = self._make_audit(event, tenant, email, by=email)
        await self._store.note([replace(line, after=json.dumps({"from": place})) if place else line])

    def _make_audit(self, event: AuditEvent, tenant: str, subject: str, by: str) -> AuditWrite:
        return AuditWrite(event=event.value, tenant=tenant, by=by, subject=subject, token=self._clock.new_id())


# -- From what came with a request to a principal: an API key, a signed token, or the cookie of a se -----


_MAX_NAME_SHOWN = 180
_CREDENTIAL_REFUSED = "the credential is unknown, expired or revoked; sign in, or use another token"


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
            return await self._authenticate_bearer(text.strip())
        if cookie is not None:
            return await self._authenticate_session(cookie)
        raise NotSignedIn(f"a token is needed: Authorization: Bearer ...; or sign in with POST {API_PREFIX}/login")

    async def _authenticate_bearer(self, text: str) -> Principal:
        if (key := parse_api_key(text)) is not None:
            row = await self._store.accounts.token(key.id)
            if row is None or row.kind is not TokenKind.KEY or not matches_secret(row.hash, key.secret):
                raise NotSignedIn(_CREDENTIAL_REFUSED)
            return await self._make_token_principal(row)
        if looks_like_jwt(text) and self._secret_key:
            claims = decode_token(text, self._secret_key, self._store.now() // MICROS)
            row = await self._store.accounts.token(str(claims["jti"]))
            if row is None or row.kind is not TokenKind.JWT or not claims_match_token(claims, row):
                raise NotSignedIn(_CREDENTIAL_REFUSED)
            return await self._make_token_principal(row)
        raise NotSignedIn(_CREDENTIAL_REFUSED)

    async def _make_token_principal(self, row: TokenRow) -> Principal:
        now = self._store.now()
        if row.is_over(now) or await token_invalid_reason(self._store.accounts, row, now) is not None:
            raise NotSignedIn(_CREDENTIAL_REFUSED)
        return Principal(
            who=f"token:{row.name[:_MAX_NAME_SHOWN]}:{row.id}",  # names are not unique, and `by` has 255 characters
            tenant=row.tenant,
            role=row.role,
            payloads=row.payloads,
            workflows=frozenset(row.workflows) or None,
            token=row.id,
        )

    async def _authenticate_session(self, cookie: str) -> Principal:
        accounts = self._store.accounts
        found = await accounts.session(hash_secret(cookie))
        if found is None or found.expires_at <= self._store.now():
            raise NotSignedIn(_CREDENTIAL_REFUSED)
        user = await accounts.user(found.user)
        member = next((each for each in (user.members if user else ()) if each.tenant == found.tenant), None)
        if user is None or user.disabled_at is not None or member is None or not member.active:
            raise NotSignedIn(_CREDENTIAL_REFUSED)
        return Principal(who=user.email, tenant=found.tenant, role=member.role, payloads=member.payloads, user=user.id)
