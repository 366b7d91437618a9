-- Schedules: keeping them, marking how far they are, and what people decide about them.

-- name: keep_schedule
-- Take schedules that nobody alive keeps; with another expression than before they begin anew.
INSERT INTO redrive.schedules AS s (tenant, workflow, name, expression, zone, passed, keeper)
SELECT n.tenant, n.workflow, n.name, n.expression, n.zone, CAST(:now AS bigint), CAST(:worker AS bigint)
FROM unnest(CAST(:tenants AS text[]), CAST(:workflows AS text[]), CAST(:names AS text[]),
            CAST(:expressions AS text[]), CAST(:zones AS text[]))
    AS n (tenant, workflow, name, expression, zone)
ORDER BY n.tenant COLLATE "C", n.workflow COLLATE "C", n.name COLLATE "C"
ON CONFLICT (tenant, workflow, name) DO UPDATE SET
    passed = CASE WHEN s.expression = excluded.expression AND s.zone = excluded.zone THEN s.passed
                  ELSE excluded.passed END,
    expression = excluded.expression, zone = excluded.zone, keeper = excluded.keeper
WHERE s.keeper <> excluded.keeper AND NOT EXISTS (
    SELECT 1 FROM redrive.workers AS w
    WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > CAST(:now AS bigint));

-- name: kept_schedules
-- Schedules by what they are known by, in the order asked for.
SELECT s.tenant, s.workflow, s.name, s.expression, s.zone, s.passed, s.last_at, s.last_run, s.paused_at, s.paused_by,
       EXISTS (SELECT 1 FROM redrive.workers AS w
               WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > CAST(:now AS bigint))
FROM unnest(CAST(:tenants AS text[]), CAST(:workflows AS text[]), CAST(:names AS text[]))
    WITH ORDINALITY AS n (tenant, workflow, name, number)
JOIN redrive.schedules AS s ON s.tenant = n.tenant AND s.workflow = n.workflow AND s.name = n.name
ORDER BY n.number;

-- name: mark_schedule
-- Move a schedule on, unless it is so far already, or has another expression by now.
UPDATE redrive.schedules SET passed = :at,
    last_at = CASE WHEN CAST(:run AS text) IS NULL THEN last_at ELSE CAST(:at AS bigint) END,
    last_run = COALESCE(CAST(:run AS text), last_run)
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND expression = :expression AND zone = :zone
  AND passed < :at
RETURNING 1;

-- name: schedules
-- All schedules, or those of a tenant.
SELECT s.tenant, s.workflow, s.name, s.expression, s.zone, s.passed, s.last_at, s.last_run, s.paused_at, s.paused_by,
       EXISTS (SELECT 1 FROM redrive.workers AS w
               WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > CAST(:now AS bigint))
FROM redrive.schedules AS s
WHERE CAST(:tenant AS text) IS NULL OR s.tenant = CAST(:tenant AS text)
ORDER BY s.workflow, s.tenant, s.name;

-- name: pause_schedule
-- Start nothing for a schedule; the first pause counts.
UPDATE redrive.schedules SET paused_at = CAST(:now AS bigint), paused_by = :by
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND paused_at IS NULL
RETURNING 1;

-- name: resume_schedule
-- Undo a pause; what came meanwhile is over.
UPDATE redrive.schedules SET paused_at = NULL, paused_by = NULL, passed = GREATEST(passed, CAST(:now AS bigint))
WHERE tenant = :tenant AND workflow = :workflow AND name = :name AND paused_at IS NOT NULL
RETURNING 1;

-- name: drop_schedule
-- Forget a schedule that nobody alive keeps.
DELETE FROM redrive.schedules AS s
WHERE s.tenant = :tenant AND s.workflow = :workflow AND s.name = :name AND NOT EXISTS (
    SELECT 1 FROM redrive.workers AS w
    WHERE w.id = s.keeper AND w.state = 'LIVE' AND w.lease_until > CAST(:now AS bigint))
RETURNING 1;
