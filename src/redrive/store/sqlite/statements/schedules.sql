-- Schedules: keeping them, marking how far they are, and what people decide about them.

-- name: keep_schedule
-- Take a schedule that nobody alive keeps; with another expression than before it begins anew.
INSERT INTO schedules AS s (tenant, workflow, name, expression, zone, passed, keeper)
VALUES (:tenant, :workflow, :name, :expression, :zone, :now, :worker)
ON CONFLICT (tenant, workflow, name) DO UPDATE SET
    passed = CASE WHEN s.expression = excluded.expression AND s.zone = excluded.zone THEN s.passed
                  ELSE excluded.passed END,
    expression = excluded.expression, zone = excluded.zone, keeper = excluded.keeper
WHERE s.keeper <> excluded.keeper AND NOT EXISTS (
    SELECT 1 FROM workers AS w WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now);

-- name: kept_schedules
-- Schedules by what they are known by.
SELECT s.tenant, s.workflow, s.name, s.expression, s.zone, s.passed, s.last_at, s.last_run, s.paused_at, s.paused_by,
       EXISTS (SELECT 1 FROM workers AS w WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now)
FROM schedules AS s
WHERE s.tenant = :tenant AND s.workflow = :workflow AND s.name = :name;

-- name: mark_schedule
-- Move a schedule on, unless it is so far already, or has another expression by now.
UPDATE schedules SET passed = :at,
    last_at = CASE WHEN :run IS NULL THEN last_at ELSE :at END, last_run = COALESCE(:run, last_run)
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND expression = :expression AND zone = :zone
  AND passed < :at
RETURNING 1;

-- name: schedules
-- All schedules, or those of a tenant.
SELECT s.tenant, s.workflow, s.name, s.expression, s.zone, s.passed, s.last_at, s.last_run, s.paused_at, s.paused_by,
       EXISTS (SELECT 1 FROM workers AS w WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > :now)
FROM schedules AS s
WHERE :tenant IS NULL OR s.tenant = :tenant
ORDER BY s.workflow, s.tenant, s.name;

-- name: pause_schedule
-- Start nothing for a schedule; the first pause counts.
UPDATE schedules SET paused_at = :now, paused_by = :by
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND paused_at IS NULL
RETURNING 1;

-- name: resume_schedule
-- Undo a pause; what came meanwhile is over.
UPDATE schedules SET paused_at = NULL, paused_by = NULL, passed = max(passed, :now)
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND paused_at IS NOT NULL
RETURNING 1;

-- name: drop_schedule
-- Forget a schedule that nobody alive keeps.
DELETE FROM schedules
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND NOT EXISTS (
    SELECT 1 FROM workers AS w WHERE w.id = keeper AND w.state = 'LIVE' AND w.lease_until > :now)
RETURNING 1;
