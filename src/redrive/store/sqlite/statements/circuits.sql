-- Circuits: what happened to them, who waits, and what to do about it. What is marked down is in writes.sql.

-- name: circuit
-- A circuit with the marks of its generation, the permits that are out, and whether runs wait; one row in any case.
SELECT c.id, w.tenant, w.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at,
       (SELECT count(*) FROM (
            SELECT 1 FROM runs AS r INDEXED BY runs_parked
            WHERE r.tenant = w.tenant AND r.parked_on = w.key AND r.parked_on IS NOT NULL AND r.status = 'SLEEPING'
              AND r.worker IS NULL
            LIMIT :counted)),
       (SELECT count(*) FROM probes AS p CROSS JOIN runs AS r ON r.id = p.run
        WHERE p.tenant = w.tenant AND p.key = w.key AND p.generation = c.generation AND r.fence = p.fence
          AND r.worker IS NOT NULL),
       (SELECT json_group_array(at) FROM (
            SELECT m.at FROM circuit_marks AS m
            WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 0
            ORDER BY m.at DESC LIMIT :most)),
       (SELECT max(m.at) FROM circuit_marks AS m
        WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 1),
       (SELECT m.category FROM circuit_marks AS m
        WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 0
        ORDER BY m.at DESC LIMIT 1)
FROM (SELECT :tenant AS tenant, :key AS key) AS w
LEFT JOIN circuits AS c ON c.tenant = w.tenant AND c.key = w.key;

-- name: new_circuit
-- The row of a circuit that nothing happened to before; somebody else may be quicker.
INSERT INTO circuits (tenant, key, status, generation, version, until, wave, next_wave_at, settings, override, why,
                      changed_by, changed_at)
VALUES (:tenant, :key, :status, :generation, :version + 1, :until, :wave, :next_wave_at, :settings, :override, :why,
        :by, :now)
ON CONFLICT (tenant, key) DO NOTHING
RETURNING id;

-- name: turn_circuit
-- A circuit as it shall stand, if nobody was quicker.
UPDATE circuits SET
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
    changed_at = CASE WHEN :changed THEN :now ELSE changed_at END
WHERE tenant = :tenant AND key = :key AND version = :version
RETURNING id;

-- name: release_parked
-- Let parked runs go on: those that were started first.
UPDATE runs SET available_at = :now, parked_on = NULL
WHERE id IN (SELECT r.id FROM runs AS r INDEXED BY runs_parked
             WHERE r.tenant = :tenant AND r.parked_on = :key AND r.parked_on IS NOT NULL AND r.status = 'SLEEPING'
               AND r.worker IS NULL
             ORDER BY r.id LIMIT :releases)
RETURNING id;

-- name: my_permit
-- Whether the asker has a permit of this generation.
SELECT 1 FROM probes
WHERE tenant = :tenant AND key = :key AND generation = :generation AND run = :run AND fence = :fence AND idx = :index;

-- name: put_permit
-- A permit; asked for again, it is there already.
INSERT INTO probes (tenant, key, generation, run, fence, idx, at)
VALUES (:tenant, :key, :generation, :run, :fence, :index, :now)
ON CONFLICT (tenant, key, generation, run, fence, idx) DO NOTHING;

-- name: asker
-- Whether the run that asks is still held under its fence.
SELECT 1 FROM runs WHERE id = :run AND fence = :fence AND worker IS NOT NULL;

-- name: circuits_due
-- Circuits that were open long enough, that something was marked down about, or that runs wait for although they let
-- calls through. The index of parked runs is leapt through from circuit to circuit.
WITH RECURSIVE waits (id, n) AS (
    SELECT NULL, 0
    UNION ALL
    SELECT COALESCE(
            (SELECT r.id FROM runs AS r INDEXED BY runs_parked
             WHERE r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
               AND r.tenant = head.tenant AND r.parked_on > head.parked_on
             ORDER BY r.tenant, r.parked_on, r.id LIMIT 1),
            (SELECT r.id FROM runs AS r INDEXED BY runs_parked
             WHERE r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
               AND r.tenant > COALESCE(head.tenant, '')
             ORDER BY r.tenant, r.parked_on, r.id LIMIT 1)), waits.n + 1
    FROM waits LEFT JOIN runs AS head ON head.id = waits.id
    WHERE waits.n = 0 OR waits.id IS NOT NULL
)
SELECT c.tenant, c.key FROM circuits AS c INDEXED BY circuits_open
WHERE c.status = 'OPEN' AND c.until IS NOT NULL AND c.until <= :now
UNION
SELECT m.tenant, m.key FROM circuit_marks AS m INDEXED BY circuit_marks_recent WHERE m.at >= :since
UNION
SELECT r.tenant, r.parked_on
FROM waits CROSS JOIN runs AS r ON r.id = waits.id
LEFT JOIN circuits AS c ON c.tenant = r.tenant AND c.key = r.parked_on
WHERE c.id IS NULL OR (c.status <> 'OPEN' AND c.next_wave_at <= :now);

-- name: circuits_since
-- Circuits that ever turned, and were changed lately.
SELECT c.id, c.tenant, c.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at
FROM circuits AS c INDEXED BY circuits_changed
WHERE c.generation > 0 AND c.changed_at >= :since
ORDER BY c.changed_at;

-- name: circuits
-- A page of circuits, each with the number of runs that wait for it; the conditions and the order are filled in.
SELECT c.id, c.tenant, c.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at,
       (SELECT count(*) FROM (
            SELECT 1 FROM runs AS r INDEXED BY runs_parked
            WHERE r.tenant = c.tenant AND r.parked_on = c.key AND r.parked_on IS NOT NULL AND r.status = 'SLEEPING'
              AND r.worker IS NULL
            LIMIT :counted))
FROM circuits AS c WHERE {conditions} ORDER BY c.id {order} LIMIT :most;

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
DELETE FROM circuit_marks WHERE (run, idx, attempt, fence) IN (
    SELECT run, idx, attempt, fence FROM circuit_marks INDEXED BY circuit_marks_recent
    WHERE at <= :before ORDER BY at LIMIT :most)
RETURNING run;

-- name: old_probes
-- Permits whose runs went on without giving them back.
DELETE FROM probes WHERE (tenant, key, generation, run, fence, idx) IN (
    SELECT p.tenant, p.key, p.generation, p.run, p.fence, p.idx FROM probes AS p INDEXED BY probes_old
    WHERE p.at <= :before
      AND NOT EXISTS (SELECT 1 FROM runs AS r WHERE r.id = p.run AND r.fence = p.fence AND r.worker IS NOT NULL)
    ORDER BY p.at LIMIT :most)
RETURNING run;
