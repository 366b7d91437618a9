"""Schedules of a tenant: when its workflows are started by themselves, and pausing that."""

from __future__ import annotations

from redrive.core.roles import Permission
from redrive.desk.schedules import KnownSchedule
from redrive.server.asking import Asked, needs
from redrive.server.routes.shared import Body, Name, Reason, Text, router

__all__ = ["schedule_routes"]

schedule_routes = router("schedules")


class Pausing(Reason):
    """Why; and whether it is only tried out."""

    dry_run: bool = False


class Changed(Body):
    """Whether it changed anything: a repeat does not."""

    changed: bool


@schedule_routes.get("/schedules", **needs(Permission.LOOK))
async def list_schedules(asked: Asked) -> list[KnownSchedule]:
    """All schedules with their next times, in their own zones, and their last runs."""
    return list(await asked.desk.schedules.list())


@schedule_routes.post("/schedules/{workflow}/{name}/pause", **needs(Permission.DECIDE))
async def pause_schedule(asked: Asked, workflow: Name, name: Name, body: Pausing | None = None) -> Changed:
    """Start nothing for a schedule until it is resumed."""
    body = body or Pausing()
    changed = await asked.desk.schedules.pause(
        workflow, name, tenant=asked.home, by=asked.by, reason=body.reason, dry_run=body.dry_run
    )
    return Changed(changed=changed)


@schedule_routes.post("/schedules/{workflow}/{name}/resume", **needs(Permission.DECIDE))
async def resume_schedule(asked: Asked, workflow: Name, name: Name, body: Pausing | None = None) -> Changed:
    """Go on with its next time; those that came meanwhile are not made up for."""
    body = body or Pausing()
    changed = await asked.desk.schedules.resume(
        workflow, name, tenant=asked.home, by=asked.by, reason=body.reason, dry_run=body.dry_run
    )
    return Changed(changed=changed)


@schedule_routes.delete("/schedules/{workflow}/{name}", status_code=204, **needs(Permission.DECIDE))
async def remove_schedule(
    asked: Asked, workflow: Name, name: Name, reason: Text | None = None, dry_run: bool = False
) -> None:
    """Forget a schedule that is in no code any more."""
    await asked.desk.schedules.remove(
        workflow, name, tenant=asked.home, by=asked.by, reason=reason, dry_run=dry_run
    )
