-- Schedules: claiming them, recording their progress, pausing and removing them.

-- name: claim_schedule
-- Claim a schedule that no live worker owns; with another expression than before it begins anew.
INSERT INTO redrive.schedules AS s (tenant, workflow, name, expression, zone, passed, keeper)
VALUES (:tenant, :workflow, :name, :expression, :zone, :now, :worker)
ON CONFLICT (tenant, workflow, name) DO UPDATE SET
    passed = CASE WHEN s.expression = excluded.expression AND s.zone = excluded.zone THEN s.passed
                  ELSE excluded.passed END,
    expression = excluded.expression, zone = excluded.zone, keeper = excluded.keeper
WHERE s.keeper <> excluded.keeper AND NOT EXISTS (
    SELECT 1 FROM redrive.workers AS w
    WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now);

-- name: schedule_by_key
-- One schedule.
SELECT s.tenant, s.workflow, s.name, s.expression, s.zone, s.passed, s.last_at, s.last_run, s.paused_at, s.paused_by,
       s.requested_at, EXISTS (SELECT 1 FROM redrive.workers AS w
               WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now)
FROM redrive.schedules AS s WHERE s.tenant = :tenant AND s.workflow = :workflow AND s.name = :name;

-- name: record_schedule_progress
-- Record the progress of a schedule, unless it is as far already or its expression changed.
UPDATE redrive.schedules SET passed = :at,
    last_at = CASE WHEN CAST(:run AS text) IS NULL THEN last_at ELSE CAST(:at AS bigint) END,
    last_run = COALESCE(CAST(:run AS text), last_run)
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND expression = :expression AND zone = :zone
  AND passed < :at
RETURNING 1;

-- name: schedules
-- All schedules, or those of a tenant.
SELECT s.tenant, s.workflow, s.name, s.expression, s.zone, s.passed, s.last_at, s.last_run, s.paused_at, s.paused_by,
       s.requested_at, EXISTS (SELECT 1 FROM redrive.workers AS w
               WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now)
FROM redrive.schedules AS s
WHERE CAST(:tenant AS text) IS NULL OR s.tenant = CAST(:tenant AS text)
ORDER BY s.workflow, s.tenant, s.name;

-- name: requested_schedules
-- Schedules for which a user asked for a run beside their times.
SELECT s.tenant, s.workflow, s.name, s.expression, s.zone, s.passed, s.last_at, s.last_run, s.paused_at, s.paused_by,
       s.requested_at, EXISTS (SELECT 1 FROM redrive.workers AS w
               WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now)
FROM redrive.schedules AS s /* INDEXED BY schedules_requested */ WHERE s.requested_at IS NOT NULL
ORDER BY s.requested_at LIMIT CAST(:most AS bigint);

-- name: request_schedule
-- Ask for a run of a schedule that a live worker owns; the first request counts.
UPDATE redrive.schedules AS s SET requested_at = :now
WHERE s.tenant = :tenant AND s.workflow = :workflow AND s.name = :name AND s.requested_at IS NULL AND EXISTS (
    SELECT 1 FROM redrive.workers AS w
    WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now)
RETURNING 1;

-- name: complete_request
-- Record the run that was started for a request, or that none was.
UPDATE redrive.schedules SET requested_at = NULL,
    last_at = CASE WHEN CAST(:run AS text) IS NULL THEN last_at ELSE CAST(:at AS bigint) END,
    last_run = COALESCE(CAST(:run AS text), last_run)
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND expression = :expression AND zone = :zone
  AND requested_at = :at
RETURNING 1;

-- name: pause_schedule
-- Pause a schedule; the first pause counts.
UPDATE redrive.schedules SET paused_at = :now, paused_by = :by
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND paused_at IS NULL
RETURNING 1;

-- name: resume_schedule
-- Undo a pause; times that passed meanwhile are skipped.
UPDATE redrive.schedules SET paused_at = NULL, paused_by = NULL, passed = CASE WHEN passed > :now THEN passed ELSE :now END
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND paused_at IS NOT NULL
RETURNING 1;

-- name: drop_schedule
-- Remove a schedule that no live worker owns.
DELETE FROM redrive.schedules AS s
WHERE s.tenant = :tenant AND s.workflow = :workflow AND s.name = :name AND NOT EXISTS (
    SELECT 1 FROM redrive.workers AS w
    WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now)
RETURNING 1;
