-- Circuits: what happened to them, who waits, and what to do about it. What is marked down is in writes.sql.

-- name: circuit
-- A circuit with the marks of its generation, the permits that are out, and whether runs wait; one row in any case.
SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now,
       c.id, w.tenant, w.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at,
       (SELECT count(*) FROM (
            SELECT 1 FROM redrive.runs AS r
            WHERE r.tenant = w.tenant AND r.parked_on COLLATE "C" = w.key AND r.parked_on IS NOT NULL
              AND r.status = 'SLEEPING' AND r.worker IS NULL
            LIMIT CAST(:counted AS bigint)) AS p) AS parked,
       (SELECT count(*) FROM redrive.probes AS p JOIN redrive.runs AS r ON r.id = p.run
        WHERE p.tenant = w.tenant AND p.key = w.key AND p.generation = c.generation AND r.fence = p.fence
          AND r.worker IS NOT NULL) AS probing,
       ARRAY(SELECT m.at FROM redrive.circuit_marks AS m
             WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 0
             ORDER BY m.at DESC LIMIT CAST(:most AS bigint)) AS bad,
       (SELECT max(m.at) FROM redrive.circuit_marks AS m
        WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 1) AS good,
       (SELECT m.category FROM redrive.circuit_marks AS m
        WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 0
        ORDER BY m.at DESC LIMIT 1) AS category
FROM (SELECT CAST(:tenant AS text) COLLATE "C" AS tenant, CAST(:key AS text) COLLATE "C" AS key) AS w
LEFT JOIN redrive.circuits AS c ON c.tenant = w.tenant AND c.key = w.key;

-- name: lock_circuit
-- Let nobody else ask for a permit, or turn the circuit, before this transaction is over.
SELECT id FROM redrive.circuits WHERE tenant = :tenant AND key = :key FOR UPDATE;

-- name: new_circuit
-- The row of a circuit that nothing happened to before; somebody else may be quicker.
INSERT INTO redrive.circuits (tenant, key, status, generation, version, until, wave, next_wave_at, settings, override,
                              why, changed_by, changed_at)
VALUES (:tenant, :key, :status, :generation, CAST(:version AS integer) + 1, :until, :wave, :next_wave_at, :settings,
        :override, :why, :by, :now)
ON CONFLICT (tenant, key) DO NOTHING
RETURNING id;

-- name: turn_circuit
-- A circuit as it shall stand, if nobody was quicker.
UPDATE redrive.circuits SET
    status = :status,
    generation = :generation,
    version = version + 1,
    until = :until,
    wave = :wave,
    next_wave_at = :next_wave_at,
    settings = :settings,
    override = :override,
    why = :why,
    changed_by = :by,
    changed_at = CASE WHEN CAST(:changed AS integer) = 1 THEN CAST(:now AS bigint) ELSE changed_at END
WHERE tenant = :tenant AND key = :key AND version = :version
RETURNING id;

-- name: release_parked
-- Let parked runs go on: those that were started first, and that nobody has a hand on.
WITH first AS MATERIALIZED (
    SELECT r.id FROM redrive.runs AS r
    WHERE r.tenant = CAST(:tenant AS text) AND r.parked_on COLLATE "C" = CAST(:key AS text)
      AND r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
    ORDER BY r.id LIMIT CAST(:releases AS bigint) FOR UPDATE SKIP LOCKED)
UPDATE redrive.runs AS r SET available_at = CAST(:now AS bigint), parked_on = NULL FROM first WHERE r.id = first.id
RETURNING r.id;

-- name: my_permit
-- Whether the asker has a permit of this generation.
SELECT 1 FROM redrive.probes
WHERE tenant = :tenant AND key = :key AND generation = :generation AND run = :run AND fence = :fence AND idx = :index;

-- name: put_permit
-- A permit; asked for again, it is there already.
INSERT INTO redrive.probes (tenant, key, generation, run, fence, idx, at)
VALUES (:tenant, :key, :generation, :run, :fence, :index, :now)
ON CONFLICT (tenant, key, generation, run, fence, idx) DO NOTHING;

-- name: asker
-- Whether the run that asks is still held under its fence.
SELECT 1 FROM redrive.runs WHERE id = :run AND fence = :fence AND worker IS NOT NULL;

-- name: circuits_due
-- Circuits that were open long enough, that something was marked down about, or that runs wait for although they let
-- calls through. The index of parked runs is leapt through from circuit to circuit.
WITH RECURSIVE clock AS (
    SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp())) AS now
), waits (tenant, key) AS (
    (SELECT r.tenant, r.parked_on COLLATE "C" FROM redrive.runs AS r
     WHERE r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
     ORDER BY r.tenant, r.parked_on COLLATE "C", r.id LIMIT 1)
    UNION ALL
    SELECT next.tenant, next.key FROM waits CROSS JOIN LATERAL (
        SELECT r.tenant, r.parked_on COLLATE "C" AS key FROM redrive.runs AS r
        WHERE r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
          AND (r.tenant, r.parked_on COLLATE "C") > (waits.tenant, waits.key)
        ORDER BY r.tenant, r.parked_on COLLATE "C", r.id LIMIT 1) AS next
)
SELECT c.tenant, c.key FROM redrive.circuits AS c
WHERE c.status = 'OPEN' AND c.until IS NOT NULL AND c.until <= (SELECT clock.now FROM clock)
UNION
SELECT m.tenant, m.key FROM redrive.circuit_marks AS m WHERE m.at >= CAST(:since AS bigint)
UNION
SELECT w.tenant, w.key FROM waits AS w LEFT JOIN redrive.circuits AS c ON c.tenant = w.tenant AND c.key = w.key
WHERE c.id IS NULL OR (c.status <> 'OPEN' AND c.next_wave_at <= (SELECT clock.now FROM clock));

-- name: circuits_since
-- Circuits that ever turned, and were changed lately.
SELECT c.id, c.tenant, c.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at
FROM redrive.circuits AS c
WHERE c.generation > 0 AND c.changed_at >= CAST(:since AS bigint)
ORDER BY c.changed_at;

-- name: circuits
-- A page of circuits, each with the number of runs that wait for it; the conditions and the order are filled in.
SELECT c.id, c.tenant, c.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at,
       (SELECT count(*) FROM (
            SELECT 1 FROM redrive.runs AS r
            WHERE r.tenant = c.tenant AND r.parked_on COLLATE "C" = c.key AND r.parked_on IS NOT NULL
              AND r.status = 'SLEEPING' AND r.worker IS NULL
            LIMIT CAST(:counted AS bigint)) AS p) AS parked
FROM redrive.circuits AS c WHERE {conditions} ORDER BY c.id {order} LIMIT CAST(:most AS bigint);

-- name: circuits.tenant
-- Circuits of one tenant.
c.tenant = :tenant;

-- name: circuits.status
-- Circuits that stand at one thing.
c.status = :status;

-- name: circuits.below
-- Circuits before a place.
c.id < :below;

-- name: circuits.above
-- Circuits behind a place.
c.id > :above;

-- name: old_marks
-- Marks that no window reaches back to.
DELETE FROM redrive.circuit_marks AS d USING (
    SELECT run, idx, attempt, fence FROM redrive.circuit_marks
    WHERE at <= CAST(:before AS bigint) ORDER BY at LIMIT CAST(:most AS bigint)) AS o
WHERE d.run = o.run AND d.idx = o.idx AND d.attempt = o.attempt AND d.fence = o.fence
RETURNING d.run;

-- name: old_probes
-- Permits whose runs went on without giving them back.
DELETE FROM redrive.probes AS d USING (
    SELECT p.tenant, p.key, p.generation, p.run, p.fence, p.idx FROM redrive.probes AS p
    WHERE p.at <= CAST(:before AS bigint)
      AND NOT EXISTS (SELECT 1 FROM redrive.runs AS r
                      WHERE r.id = p.run AND r.fence = p.fence AND r.worker IS NOT NULL OFFSET 0)
    ORDER BY p.at LIMIT CAST(:most AS bigint)) AS o
WHERE d.tenant = o.tenant AND d.key = o.key AND d.generation = o.generation AND d.run = o.run AND d.fence = o.fence
  AND d.idx = o.idx
RETURNING d.run;
