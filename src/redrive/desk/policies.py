"""`app.policies`: retry policies that users store, which override those in the code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from redrive.clock import Clock
from redrive.core.audit import AuditEvent
from redrive.core.roles import Permission
from redrive.core.transitions import AuditWrite
from redrive.desk.actor import Actor
from redrive.desk.api_operations import operation
from redrive.desk.presenter import present_row
from redrive.desk.validation import require_text
from redrive.errors import InputError
from redrive.policy import RetryPolicy
from redrive.reasons import Reason, ReasonCode
from redrive.store.port import DeskStore
from redrive.store.settings import PolicyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """A stored policy and its target; None means any. Without a workflow and a step it is the default."""

    policy: RetryPolicy
    workflow: str | None
    step: str | None
    tenant: str | None
    updated_at: datetime
    updated_by: str


class Policies:
    """Stored retry policies: for a step, for all steps of a workflow, or the default; of one tenant or of all."""

    def __init__(self, store: DeskStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @operation("PUT /policies", Permission.SET_POLICIES)
    async def set(
        self,
        policy: RetryPolicy,
        *,
        workflow: str | None = None,
        step: str | None = None,
        tenant: str | None = None,
        by: str = "unknown",
    ) -> StoredPolicy:
        """Store a policy, replacing the one with the same target; in force from the next attempt on.

        Without a workflow and a step it is the default, for steps that have no policy in the code either.
        """
        if not isinstance(policy, RetryPolicy):
            raise InputError(Reason(ReasonCode.TYPE_NEEDED, type="RetryPolicy", given=type(policy).__name__))
        after = json.dumps(policy.to_json())
        key, line = await self._prepare_change(AuditEvent.POLICY_SET, by, tenant, workflow, step, after)
        row = PolicyRow(
            tenant=key[0], workflow=key[1], step=key[2], policy=after, updated_at=self._store.now(), updated_by=by
        )
        await self._store.set_policy(row, line)
        return _present_policy(row)

    async def get(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None
    ) -> StoredPolicy | None:
        """Return the policy stored for exactly this target, or None."""
        target = (tenant, workflow, step)
        return next((each for each in await self.list() if (each.tenant, each.workflow, each.step) == target), None)

    @operation("GET /policies", Permission.LOOK)
    async def list(self) -> list[StoredPolicy]:
        """Return all stored policies."""
        return [_present_policy(row) for row in await self._store.policies()]

    @operation("DELETE /policies", Permission.SET_POLICIES, status=204)
    async def delete(
        self, *, workflow: str | None = None, step: str | None = None, tenant: str | None = None, by: str = "unknown"
    ) -> bool:
        """Remove the policy stored for exactly this target; False if there was none."""
        key, line = await self._prepare_change(AuditEvent.POLICY_DELETED, by, tenant, workflow, step, None)
        return await self._store.delete_policy(*key, line)

    async def _prepare_change(
        self, event: AuditEvent, by: str, tenant: str | None, workflow: str | None, step: str | None, after: str | None
    ) -> tuple[tuple[str, str, str], AuditWrite]:
        actor = Actor(by)
        if tenant is not None:
            require_text("tenant", tenant)
        stored = await self.get(workflow=workflow, step=step, tenant=tenant)
        before = None if stored is None else json.dumps(stored.policy.to_json())
        subject = f"{workflow or '*'}/{step or '*'}"
        line = actor.make_audit(self._clock, event, tenant or "", subject, before=before, after=after)
        return (tenant or "", workflow or "", step or ""), line


def _present_policy(row: PolicyRow) -> StoredPolicy:
    target = {"workflow": row.workflow or None, "step": row.step or None, "tenant": row.tenant or None}
    return present_row(StoredPolicy, row, policy=RetryPolicy.from_stored(json.loads(row.policy)), **target)
