"""Signing in and out. A browser holds a random cookie; what it stands for is kept on the server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from redrive.clock import MICROS, Clock
from redrive.core.events import Event
from redrive.core.roles import Principal
from redrive.core.transition import AuditWrite
from redrive.errors import InputError, NotSignedIn
from redrive.frozen import dataclass
from redrive.server.auth.access import Access
from redrive.server.auth.keys import hash_of, is_secret, new_secret
from redrive.server.auth.passwords import check_password, is_password
from redrive.store.accounts import MemberRow, SessionRow, TokenKind, UserRow
from redrive.store.port import Store

__all__ = ["BEAT", "LASTS", "Login", "Sessions", "SeveralTenants", "SignedIn"]

LASTS = 12 * 3600
"""Seconds until somebody has to sign in again."""

BEAT = 0.25
"""Seconds: refusals are given on this beat, so that their time does not tell who is known."""

_WRONG = "address and password, or the code, do not fit together, or this person may not sign in"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What somebody signs in with. `tenant` chooses among several; `code` signs in once.

    `place` is the address it came from, for the audit log.
    """

    email: str
    password: str | None = None
    code: str | None = None
    tenant: str | None = None
    new_password: str | None = None
    place: str = ""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Somebody who signed in, and the cookie to know them by."""

    principal: Principal
    cookie: str


class SeveralTenants(InputError):
    """Somebody who belongs to several tenants has to say which one they want to work in."""

    def __init__(self, tenants: Sequence[str]) -> None:
        super().__init__(f"you belong to several tenants; name one in `tenant`: {', '.join(tenants)}")
        self.tenants = tuple(tenants)


class Sessions:
    """Begins and ends sign-ins."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def sign_in(self, login: Login) -> SignedIn:
        """Begin a session; NotSignedIn, in the same words and on the same beat, for every reason not to."""
        begun = self._clock.monotonic()
        try:
            return await self._sign_in(login)
        except NotSignedIn:
            await self._clock.sleep(BEAT - (self._clock.monotonic() - begun) % BEAT)
            raise

    async def _sign_in(self, login: Login) -> SignedIn:
        if login.new_password is not None:
            check_password(login.new_password)
        user = await self._store.accounts.user(email=login.email.lower())
        proven = await self._proven(user, login)
        if proven is None or user is None or user.disabled_at is not None:
            await self._refuse(user, login.place)
        assert user is not None
        assert proven is not None
        member = self._chosen(user, proven.tenant)
        who = Principal(who=user.email, tenant=member.tenant, role=member.role, payloads=member.payloads)
        if login.new_password is not None:
            await Access(self._store.accounts, self._clock, who).set_password(user, login.new_password)
        cookie = new_secret()
        session = SessionRow(hash=hash_of(cookie), tenant=member.tenant, user=user.id)
        await self._store.accounts.put_session(session, LASTS * MICROS)
        if await self._store.accounts.session(session.hash) is None:
            raise NotSignedIn(_WRONG)  # the tenant is disabled
        await self._note(Event.USER_SIGNED_IN, member.tenant, user.email, login.place)
        return SignedIn(who, cookie)

    async def sign_out(self, cookie: str) -> None:
        """End a session."""
        await self._store.accounts.end_sessions(hash=hash_of(cookie))

    async def _proven(self, user: UserRow | None, login: Login) -> Login | None:
        """What was proven: a password opens whatever tenant was asked for, a code its own and no other."""
        if login.code is not None:
            tenant = None if user is None else await self._take(user, login.code, login.tenant)
            return None if tenant is None else replace(login, tenant=tenant)
        if login.password is None:
            raise InputError("a password or a code is needed to sign in")
        fits = await is_password(None if user is None else user.password, login.password)
        return login if fits else None

    async def _take(self, user: UserRow, code: str, wanted: str | None) -> str | None:
        """Use a code up, and say which tenant it opens; of two who send it at once, one is first."""
        id, _, secret = code.strip().partition(".")
        row = await self._store.accounts.token(id)
        if row is None or row.kind is not TokenKind.CODE or row.user != user.id:
            return None
        if row.expires_at is None or row.expires_at <= self._store.now() or not is_secret(row.hash, secret):
            return None
        if wanted not in (None, row.tenant):
            return None
        line = self._line(Event.TOKEN_REVOKED, row.tenant, row.id, by=user.email)
        return row.tenant if await self._store.accounts.revoke_token(row.id, row.tenant, line) else None

    def _chosen(self, user: UserRow, tenant: str | None) -> MemberRow:
        active = [each for each in user.members if each.active and tenant in (None, each.tenant)]
        if not active:
            raise NotSignedIn(_WRONG)
        if len(active) > 1:
            raise SeveralTenants([each.tenant for each in active])
        return active[0]

    async def _refuse(self, user: UserRow | None, place: str) -> None:
        """Say no. That somebody tried is noted where the person is known, and a stranger leaves no row."""
        for member in user.members if user is not None else ():
            await self._note(Event.USER_REFUSED, member.tenant, user.email if user else "", place)
        raise NotSignedIn(_WRONG)

    async def _note(self, event: Event, tenant: str, email: str, place: str) -> None:
        line = self._line(event, tenant, email, by=email)
        await self._store.note([replace(line, after=json.dumps({"from": place})) if place else line])

    def _line(self, event: Event, tenant: str, subject: str, by: str) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=tenant,
            by=by,
            subject=subject,
            token=self._clock.new_id(),
        )
