"""`app.policies`: retry policies that people store, in force from the next attempt on."""

from __future__ import annotations

import json
from datetime import datetime

from redrive.clock import Clock
from redrive.core.events import Event
from redrive.core.transition import AuditWrite
from redrive.desk.checks import person, short_text
from redrive.duration import moment
from redrive.errors import InputError
from redrive.frozen import dataclass
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import People
from redrive.store.records import PolicyRow

__all__ = ["Policies", "StoredPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """A stored policy and what it applies to; None means any."""

    policy: RetryPolicy
    workflow: str | None
    step: str | None
    tenant: str | None
    updated_at: datetime
    updated_by: str


class Policies:
    """Stored retry policies: for a step, or for all steps of a workflow; of one tenant or of all."""

    def __init__(self, store: People, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def set(
        self,
        policy: RetryPolicy,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredPolicy:
        """Store a policy, replacing the one for the same place."""
        if not isinstance(policy, RetryPolicy):
            raise InputError(Reason(ReasonCode.POLICY_NEEDED, given=type(policy).__name__))
        person(by)
        if tenant is not None:
            short_text("tenant", tenant)
        if not workflow and not step:
            raise InputError(Reason(ReasonCode.POLICY_TARGET_NEEDED))
        row = PolicyRow(
            tenant=tenant or "",
            workflow=workflow or "",
            step=step or "",
            policy=json.dumps(policy.to_json()),
            updated_at=self._store.now(),
            updated_by=by,
        )
        before = await self.get(workflow=workflow, step=step, tenant=tenant)
        await self._store.set_policy(row, self._line(Event.POLICY_SET, row, before))
        return _shaped(row)

    async def get(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None
    ) -> StoredPolicy | None:
        """The policy stored for exactly this place, or None."""
        place = (tenant, workflow, step)
        for stored in await self.list():
            if (stored.tenant, stored.workflow, stored.step) == place:
                return stored
        return None

    async def list(self) -> list[StoredPolicy]:
        """All stored policies."""
        return [_shaped(row) for row in await self._store.policies()]

    async def delete(
        self,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> bool:
        """Remove the policy stored for exactly this place; False if there was none."""
        person(by)
        if tenant is not None:
            short_text("tenant", tenant)
        before = await self.get(workflow=workflow, step=step, tenant=tenant)
        place = (tenant or "", workflow or "", step or "")
        gone = PolicyRow(
            tenant=place[0], workflow=place[1], step=place[2], policy="", updated_at=0, updated_by=by
        )
        return await self._store.delete_policy(*place, self._line(Event.POLICY_DELETED, gone, before))

    def _line(self, event: Event, row: PolicyRow, before: StoredPolicy | None) -> AuditWrite:
        return AuditWrite(
            event=event.value,
            tenant=row.tenant,
            by=row.updated_by,
            subject=f"{row.workflow or '*'}/{row.step or '*'}",
            before=None if before is None else json.dumps(before.policy.to_json()),
            after=row.policy or None,
            token=self._clock.new_id(),
        )


def _shaped(row: PolicyRow) -> StoredPolicy:
    return StoredPolicy(
        policy=RetryPolicy.from_json(json.loads(row.policy)),
        workflow=row.workflow or None,
        step=row.step or None,
        tenant=row.tenant or None,
        updated_at=moment(row.updated_at),
        updated_by=row.updated_by,
    )
