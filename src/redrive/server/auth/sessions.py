"""Sessions of users, and the credentials of requests. A browser holds a random cookie; its session is stored."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from redrive.clock import MICROS, Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import Principal
from redrive.core.transitions import AuditWrite
from redrive.errors import InputError, NotSignedIn
from redrive.reasons import Reason, ReasonCode
from redrive.record_fields import replace
from redrive.server.auth import secrets
from redrive.server.auth.admin import AccountAdmin
from redrive.settings import API_PREFIX
from redrive.store.accounts import SessionRow, TokenKind, UserRow, token_invalid_reason
from redrive.store.port import Store

SESSION_LIFETIME = 12 * 3600
"""Seconds until a user has to sign in again."""

REFUSAL_INTERVAL = 0.25
"""Seconds: a refusal is delayed to a multiple of this, so that its time does not reveal which emails exist."""

_MAX_NAME_SHOWN = 180
_SIGN_IN_REFUSED = Reason(ReasonCode.SIGN_IN_REFUSED)
_CREDENTIAL_INVALID = Reason(ReasonCode.CREDENTIAL_INVALID)


class Login(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The credentials of a sign-in. `tenant` chooses among several; `code` is valid once.

    `address` is the network address of the user, for the audit log.
    """

    email: str
    password: str | None = None
    code: str | None = None
    tenant: str | None = None
    new_password: str | None = None
    address: str = ""


class SignInResult(msgspec.Struct, frozen=True):
    """The principal of a new session, and its cookie."""

    principal: Principal
    cookie: str


class TenantChoiceNeeded(InputError):
    """A user of several tenants did not choose one."""

    def __init__(self, tenants: Sequence[str]) -> None:
        super().__init__(Reason(ReasonCode.TENANT_CHOICE_NEEDED, tenants=tuple(tenants)))
        self.tenants = tuple(tenants)


class Sessions:
    """Starts and ends the sessions of users."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def sign_in(self, login: Login) -> SignInResult:
        """Start a session. Every refusal has the same text and a similar delay."""
        begun = self._clock.monotonic()
        try:
            return await self._sign_in(login)
        except NotSignedIn:
            await self._clock.sleep(REFUSAL_INTERVAL - (self._clock.monotonic() - begun) % REFUSAL_INTERVAL)
            raise

    async def _sign_in(self, login: Login) -> SignInResult:
        if login.new_password is not None:
            secrets.check_password(login.new_password)
        known = await self._store.accounts.users_by_email(login.email.lower())
        proven = [user for user in await self._authenticate(known, login) if user.disabled_at is None]
        if not proven:
            for user in known:
                for member in user.members:
                    await self._write_audit(AuditEvent.USER_REFUSED, member.tenant, user.email, login)
            raise NotSignedIn(_SIGN_IN_REFUSED)
        active = [(user, member) for user in proven for member in user.members if member.active]
        active = [(user, member) for user, member in active if login.tenant in (None, member.tenant)]
        if not active:
            raise NotSignedIn(_SIGN_IN_REFUSED)
        if len(active) > 1:
            raise TenantChoiceNeeded(sorted(member.tenant for _, member in active))
        user, member = active[0]
        who = Principal(who=user.email, tenant=member.tenant, role=member.role, payloads=member.payloads, user=user.id)
        if login.new_password is not None:
            await AccountAdmin(self._store.accounts, self._clock, who).set_password(user, login.new_password)
        cookie = secrets.new_secret()
        session = SessionRow(hash=secrets.hash_secret(cookie), tenant=member.tenant, user=user.id)
        await self._store.accounts.put_session(session, SESSION_LIFETIME * MICROS)
        if await self._store.accounts.session(session.hash) is None:
            raise NotSignedIn(_SIGN_IN_REFUSED)  # the tenant is disabled
        await self._write_audit(AuditEvent.USER_SIGNED_IN, member.tenant, user.email, login)
        return SignInResult(who, cookie)

    async def sign_out(self, cookie: str) -> None:
        await self._store.accounts.end_sessions(hash=secrets.hash_secret(cookie))

    async def _authenticate(self, known: Sequence[UserRow], login: Login) -> list[UserRow]:
        """Return the accounts that a password or code opens, each with the memberships that it opens.

        A password opens all tenants of its account, a code only the tenant it was created for.
        """
        if login.code is not None:
            return await self._use_code(known, login.code, login.tenant)
        if login.password is None:
            raise InputError(Reason(ReasonCode.PASSWORD_OR_CODE_NEEDED))
        # In parallel, so that the time does not reveal how many tenants have an account for the email.
        hashes = [user.password for user in known] or [None]
        fits = await asyncio.gather(*(secrets.matches_password(stored, login.password) for stored in hashes))
        return [user for user, fit in zip(known, fits, strict=False) if fit]

    async def _use_code(self, known: Sequence[UserRow], code: str, tenant: str | None) -> list[UserRow]:
        """Return the account that a code opens, and revoke the code; of two parallel sign-ins one succeeds."""
        id, _, secret = code.strip().partition(".")
        accounts, now = self._store.accounts, self._store.now()
        row = await accounts.token(id)
        user = next((each for each in known if row is not None and each.id == row.user), None)
        if (
            row is None
            or user is None
            or row.kind is not TokenKind.CODE
            or not secrets.matches_secret(row.hash, secret)
        ):
            return []
        if row.expires_at is None or row.is_over(now) or tenant not in (None, row.tenant):
            return []
        if await token_invalid_reason(accounts, row, now) is not None:
            return []
        line = self._make_audit(AuditEvent.TOKEN_REVOKED, row.tenant, user.email, subject=row.id)
        if not await accounts.revoke_token(row.id, row.tenant, line):
            return []
        return [replace(user, members=tuple(each for each in user.members if each.tenant == row.tenant))]

    async def _write_audit(self, event: AuditEvent, tenant: str, email: str, login: Login) -> None:
        after = json.dumps({"from": login.address}) if login.address else None
        await self._store.note([self._make_audit(event, tenant, email, subject=email, after=after)])

    def _make_audit(self, event: AuditEvent, tenant: str, by: str, **more: Any) -> AuditWrite:
        return AuditWrite(event=event.value, tenant=tenant, by=by, token=self._clock.new_id(), **more)


class Credentials:
    """Finds the principal of a request: by API key, signed token or session cookie."""

    def __init__(self, store: Store, secret_key: str = "") -> None:
        self._store = store
        self._secret_key = secret_key

    async def principal(self, authorization: str | None, cookie: str | None) -> Principal:
        """Return the principal of a request, or refuse a request without a valid credential."""
        if authorization is not None:
            kind, _, text = authorization.partition(" ")
            if kind.lower() != "bearer" or not text:
                raise NotSignedIn(Reason(ReasonCode.BEARER_NEEDED))
            return await self._authenticate_bearer(text.strip())
        if cookie is not None:
            return await self._authenticate_session(cookie)
        raise NotSignedIn(Reason(ReasonCode.CREDENTIAL_MISSING, path=f"{API_PREFIX}/login"))

    async def _authenticate_bearer(self, text: str) -> Principal:
        row = None
        if (key := secrets.parse_api_key(text)) is not None:
            id, secret = key
            row = await self._store.accounts.token(id)
            if row is not None and (row.kind is not TokenKind.KEY or not secrets.matches_secret(row.hash, secret)):
                row = None
        elif secrets.looks_like_jwt(text) and self._secret_key:
            claims = secrets.decode_token(text, self._secret_key, self._store.now() // MICROS)
            row = await self._store.accounts.token(str(claims["jti"]))
            if row is not None and (row.kind is not TokenKind.JWT or not secrets.claims_match_token(claims, row)):
                row = None
        if row is None:
            raise NotSignedIn(_CREDENTIAL_INVALID)
        now = self._store.now()
        if row.is_over(now) or await token_invalid_reason(self._store.accounts, row, now) is not None:
            raise NotSignedIn(_CREDENTIAL_INVALID)
        return Principal(
            who=f"token:{row.name[:_MAX_NAME_SHOWN]}:{row.id}",  # names are not unique, and `by` has 255 characters
            tenant=row.tenant,
            role=row.role,
            payloads=row.payloads,
            workflows=frozenset(row.workflows) or None,
            steps=frozenset(row.steps) or None,
            token=row.id,
        )

    async def _authenticate_session(self, cookie: str) -> Principal:
        accounts = self._store.accounts
        found = await accounts.session(secrets.hash_secret(cookie))
        if found is None or found.expires_at <= self._store.now():
            raise NotSignedIn(_CREDENTIAL_INVALID)
        user = await accounts.user(found.user)
        member = next((each for each in (user.members if user else ()) if each.tenant == found.tenant), None)
        if user is None or user.disabled_at is not None or member is None or not member.active:
            raise NotSignedIn(_CREDENTIAL_INVALID)
        return Principal(who=user.email, tenant=found.tenant, role=member.role, payloads=member.payloads, user=user.id)


class WorkerCredentials:
    """Finds the principal of a remote worker. It sends many requests, so its token is looked up every two seconds.

    A token that was revoked works for at most that long.
    """

    _LASTS = 2.0
    _MOST = 10_000

    def __init__(self, credentials: Callable[[], Credentials], clock: Clock) -> None:
        self._credentials = credentials
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, Principal]] = OrderedDict()
        self._lookups: dict[str, asyncio.Task[Principal]] = {}

    async def principal(self, authorization: str) -> Principal:
        """Return the principal of a request, or refuse a request without a valid credential."""
        name = secrets.hash_secret(authorization)
        found = self._known.get(name)
        if found is not None and self._clock.monotonic() - found[0] < self._LASTS:
            return found[1]
        # The workers of a token share one lookup: otherwise each request that arrives meanwhile would begin another.
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = asyncio.create_task(self._look_up(name, authorization))
            lookup.add_done_callback(lambda _: self._lookups.pop(name))
        return await asyncio.shield(lookup)

    async def _look_up(self, name: str, authorization: str) -> Principal:
        self._known.pop(name, None)
        asked_at = self._clock.monotonic()
        principal = await self._credentials().principal(authorization, None)
        self._known[name] = asked_at, principal
        while len(self._known) > self._MOST:
            self._known.popitem(last=False)
        return principal
