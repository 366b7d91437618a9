-- Circuits: reading and changing them, permits, and the runs that wait. Marks are written by writes.sql.

-- name: circuit
-- A circuit with the samples of its generation, the permits in use, and the runs that wait; always one row.
SELECT :now AS now,
       c.id, w.tenant, w.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at,
       (SELECT count(*) FROM (
            SELECT 1 FROM redrive.runs AS r /* INDEXED BY runs_parked */
            WHERE r.tenant = w.tenant AND r.parked_on COLLATE "C" = w.key AND r.parked_on IS NOT NULL
              AND r.status = 'SLEEPING' AND r.worker IS NULL
            LIMIT CAST(:counted AS bigint)) AS waiting) AS parked,
       (SELECT count(*) FROM redrive.probes AS p /* CROSS */ JOIN redrive.runs AS r ON r.id = p.run
        WHERE p.tenant = w.tenant AND p.key = w.key AND p.generation = c.generation
          AND (r.fence = p.fence AND r.worker IS NOT NULL OR EXISTS (
              SELECT 1 FROM redrive.step_tasks AS t
              WHERE t.run = p.run AND t.idx = p.idx AND t.fence = p.fence
                AND t.status NOT IN ('READY', 'ANSWERED', 'PARKED', 'CLOSED') LIMIT 1 OFFSET 0))) AS probing,
       (SELECT CAST(json_agg(newest.at) AS text) FROM (
            SELECT m.at FROM redrive.circuit_samples AS m
            WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 0
            ORDER BY m.at DESC LIMIT CAST(:most AS bigint)) AS newest) AS bad,
       (SELECT max(m.at) FROM redrive.circuit_samples AS m
        WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 1) AS good,
       (SELECT m.category FROM redrive.circuit_samples AS m
        WHERE m.tenant = w.tenant AND m.key = w.key AND m.generation = c.generation AND m.good = 0
        ORDER BY m.at DESC LIMIT 1) AS category
FROM (SELECT CAST(:tenant AS text) COLLATE "C" AS tenant, CAST(:key AS text) COLLATE "C" AS key) AS w
LEFT JOIN redrive.circuits AS c ON c.tenant = w.tenant AND c.key = w.key;

-- name: circuit_stats
-- The failures and successes of some circuits since a time each, and the last of both, in no order.
SELECT w.tenant, w.key,
       (SELECT count(*) FROM redrive.circuit_samples AS m /* INDEXED BY circuit_samples_counted */
        WHERE m.tenant = w.tenant AND m.key = w.key AND m.good = 0 AND m.at > w.since) AS failures,
       (SELECT CAST(COALESCE(sum(s.calls), 0) AS bigint) FROM redrive.circuit_successes AS s
        WHERE s.tenant = w.tenant AND s.key = w.key AND s.at > w.since) AS successes,
       (SELECT max(m.at) FROM redrive.circuit_samples AS m /* INDEXED BY circuit_samples_counted */
        WHERE m.tenant = w.tenant AND m.key = w.key AND m.good = 0) AS failed_at,
       (SELECT max(s.last_at) FROM redrive.circuit_successes AS s
        WHERE s.tenant = w.tenant AND s.key = w.key) AS succeeded_at
FROM unnest(CAST(:tenants AS text[]), CAST(:keys AS text[]), CAST(:since AS bigint[])) AS w (tenant, key, since);

-- name: insert_quiet_circuit
-- Insert a circuit of which only successes are known.
INSERT INTO redrive.circuits (tenant, key, status, generation, version, wave, next_wave_at, settings, changed_at)
VALUES (:tenant, :key, 'CLOSED', 0, 1, 0, 0, :settings, :now)
ON CONFLICT (tenant, key) DO NOTHING;

-- name: add_successes
-- Add successful calls to those of the same time.
INSERT INTO redrive.circuit_successes AS s (tenant, key, at, calls, last_at)
VALUES (:tenant, :key, :at, :calls, :last_at)
ON CONFLICT (tenant, key, at) DO UPDATE SET calls = s.calls + excluded.calls, last_at = excluded.last_at;

-- name: lock_circuit
-- Let no other transaction ask for a permit, or change the circuit, before this one ends.
SELECT id FROM redrive.circuits WHERE tenant = :tenant AND key = :key FOR UPDATE;

-- name: insert_circuit
-- Insert a circuit that has no row yet, unless another node did so first.
INSERT INTO redrive.circuits (tenant, key, status, generation, version, until, wave, next_wave_at, settings, override,
                              why, changed_by, changed_at)
VALUES (:tenant, :key, :status, :generation, CAST(:version AS integer) + 1, :until, :wave, :next_wave_at, :settings,
        :override, :why, :by, :now)
ON CONFLICT (tenant, key) DO NOTHING
RETURNING id;

-- name: update_circuit
-- Change a circuit that still has the version it was read with.
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
    changed_at = CASE WHEN CAST(:changed AS integer) = 1 THEN :now ELSE changed_at END
WHERE tenant = :tenant AND key = :key AND version = :version
RETURNING id;

-- name: release_parked
-- Make parked runs due, those started first. Runs that are locked are passed over: waiting for one would hold the
-- circuit's row meanwhile.
UPDATE redrive.runs SET available_at = :now, parked_on = NULL
WHERE id = ANY (ARRAY(
    SELECT r.id FROM redrive.runs AS r /* INDEXED BY runs_parked */
    WHERE r.tenant = CAST(:tenant AS text) AND r.parked_on COLLATE "C" = CAST(:key AS text)
      AND r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
    ORDER BY r.id LIMIT CAST(:releases AS bigint) FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: permit_state
-- Two flags of the asking run: it has a permit of this generation; it, or its task, is still held under its fence.
SELECT EXISTS (SELECT 1 FROM redrive.probes AS p
               WHERE p.tenant = :tenant AND p.key = :key AND p.generation = :generation AND p.run = CAST(:run AS bigint)
                 AND p.fence = CAST(:fence AS bigint) AND p.idx = :index) AS permitted,
       EXISTS (SELECT 1 FROM redrive.runs AS r
               WHERE r.id = CAST(:run AS bigint) AND r.fence = CAST(:fence AS bigint) AND r.worker IS NOT NULL)
       OR EXISTS (SELECT 1 FROM redrive.step_tasks AS t
                  WHERE t.run = CAST(:run AS bigint) AND t.idx = CAST(:index AS integer) AND t.fence = CAST(:fence AS bigint)
                    AND t.status NOT IN ('READY', 'ANSWERED', 'PARKED', 'CLOSED') LIMIT 1 OFFSET 0) AS held;

-- name: put_permit
-- Insert a permit, unless the run has it already.
INSERT INTO redrive.probes (tenant, key, generation, run, fence, idx, at)
VALUES (:tenant, :key, :generation, :run, :fence, :index, :now)
ON CONFLICT (tenant, key, generation, run, fence, idx) DO NOTHING;

-- name: circuits_due
-- Circuits that were open long enough, that have new samples, or that runs wait for although they admit calls.
-- The index of parked runs is read once for each circuit, not once for each run.
WITH RECURSIVE waits (id, n) AS (
    SELECT CAST(NULL AS bigint), 0
    UNION ALL
    SELECT COALESCE(
            (SELECT r.id FROM redrive.runs AS r /* INDEXED BY runs_parked */
             WHERE r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
               AND r.tenant = head.tenant AND r.parked_on COLLATE "C" > head.parked_on COLLATE "C"
             ORDER BY r.tenant, r.parked_on COLLATE "C", r.id LIMIT 1),
            (SELECT r.id FROM redrive.runs AS r /* INDEXED BY runs_parked */
             WHERE r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
               AND r.tenant > COALESCE(head.tenant, '')
             ORDER BY r.tenant, r.parked_on COLLATE "C", r.id LIMIT 1)), waits.n + 1
    FROM waits LEFT JOIN redrive.runs AS head ON head.id = waits.id
    WHERE waits.n = 0 OR waits.id IS NOT NULL
)
SELECT c.tenant, c.key FROM redrive.circuits AS c /* INDEXED BY circuits_open */
WHERE c.status = 'OPEN' AND c.until IS NOT NULL AND c.until <= :now
UNION
SELECT m.tenant, m.key FROM redrive.circuit_samples AS m /* INDEXED BY circuit_samples_recent */
WHERE m.at >= CAST(:since AS bigint)
UNION
SELECT r.tenant, r.parked_on COLLATE "C"
FROM waits /* CROSS */ JOIN redrive.runs AS r ON r.id = waits.id
LEFT JOIN redrive.circuits AS c ON c.tenant = r.tenant AND c.key = r.parked_on COLLATE "C"
WHERE c.id IS NULL OR (c.status <> 'OPEN' AND c.next_wave_at <= :now);

-- name: circuits_changed_since
-- Circuits whose status ever changed, and that were changed since a time.
SELECT c.id, c.tenant, c.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at
FROM redrive.circuits AS c /* INDEXED BY circuits_changed */
WHERE c.generation > 0 AND c.changed_at >= CAST(:since AS bigint)
ORDER BY c.changed_at;

-- name: circuits
-- A page of circuits, each with the number of runs that wait for it; the conditions and the order are filled in.
SELECT c.id, c.tenant, c.key, c.status, c.generation, c.version, c.until, c.wave, c.next_wave_at, c.settings,
       c.override, c.why, c.changed_by, c.changed_at,
       (SELECT count(*) FROM (
            SELECT 1 FROM redrive.runs AS r /* INDEXED BY runs_parked */
            WHERE r.tenant = c.tenant AND r.parked_on COLLATE "C" = c.key AND r.parked_on IS NOT NULL
              AND r.status = 'SLEEPING' AND r.worker IS NULL
            LIMIT CAST(:counted AS bigint)) AS waiting) AS parked
FROM redrive.circuits AS c WHERE {conditions} ORDER BY c.id {order} LIMIT CAST(:most AS bigint);

-- name: circuits.tenant
-- Circuits of one tenant.
c.tenant = :tenant;

-- name: circuits.status
-- Circuits in one state.
c.status = :status;

-- name: circuits.below
-- Circuits with a lower id.
c.id < :below;

-- name: circuits.above
-- Circuits with a higher id.
c.id > :above;

-- name: delete_old_samples
-- Remove samples that are older than every window.
DELETE FROM redrive.circuit_samples WHERE (run, idx, attempt, fence) IN (
    SELECT m.run, m.idx, m.attempt, m.fence FROM redrive.circuit_samples AS m /* INDEXED BY circuit_samples_recent */
    WHERE m.at <= CAST(:before AS bigint) ORDER BY m.at LIMIT CAST(:most AS bigint))
RETURNING run;

-- name: delete_old_successes
-- Remove counts that are older than every window, except the last one of a circuit.
DELETE FROM redrive.circuit_successes WHERE (tenant, key, at) IN (
    SELECT s.tenant, s.key, s.at FROM redrive.circuit_successes AS s /* INDEXED BY circuit_successes_recent */
    WHERE s.at <= CAST(:before AS bigint)
      AND EXISTS (SELECT 1 FROM redrive.circuit_successes AS n
                  WHERE n.tenant = s.tenant AND n.key = s.key AND n.at > s.at LIMIT 1 OFFSET 0)
    ORDER BY s.at LIMIT CAST(:most AS bigint))
RETURNING at;

-- name: delete_old_probes
-- Remove permits whose runs are no longer held under the permit's fence.
DELETE FROM redrive.probes WHERE (tenant, key, generation, run, fence, idx) IN (
    SELECT p.tenant, p.key, p.generation, p.run, p.fence, p.idx FROM redrive.probes AS p /* INDEXED BY probes_old */
    WHERE p.at <= CAST(:before AS bigint)
      AND NOT EXISTS (SELECT 1 FROM redrive.runs AS r
                      WHERE r.id = p.run AND r.fence = p.fence AND r.worker IS NOT NULL LIMIT 1 OFFSET 0)
    ORDER BY p.at LIMIT CAST(:most AS bigint))
RETURNING run;
