-- Statistics. Every count stops at a limit, so that reading costs the same however full the store is.

-- name: open_letters
-- Open letters by workflow: what the groups have counted, and what is not folded into them yet.
SELECT counted.workflow, CAST(SUM(counted.open) AS bigint) AS open FROM (
    SELECT few.workflow, few.open FROM (
        SELECT g.workflow, g.open FROM redrive.groups AS g /* INDEXED BY groups_open */ WHERE g.open > 0
        ORDER BY g.latest DESC LIMIT CAST(:causes AS bigint)) AS few
    UNION ALL
    SELECT fed.workflow, fed.open FROM (
        SELECT f.workflow, f.open FROM redrive.letter_feed AS f ORDER BY f.id LIMIT CAST(:changes AS bigint)) AS fed
) AS counted
GROUP BY counted.workflow;

-- name: oldest_letter
-- When the first letter that is still open was written.
SELECT l.created_at FROM redrive.letters AS l /* INDEXED BY letters_by_status */
WHERE l.status = 'OPEN' ORDER BY l.id LIMIT 1;

-- name: suspects
-- Runs whose worker died, waiting or running again.
SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.runs AS r /* INDEXED BY runs_suspect */
                              WHERE r.worker IS NULL AND r.available_at IS NOT NULL AND r.deaths > 0
                              ORDER BY r.available_at LIMIT CAST(:counted AS bigint)) AS waiting)
       + (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.runs AS r /* INDEXED BY runs_held */
                                WHERE r.worker IS NOT NULL AND r.deaths > 0
                                ORDER BY r.worker LIMIT CAST(:counted AS bigint)) AS held);

-- name: parked
-- Runs that wait for a circuit.
SELECT COUNT(*) FROM (SELECT 1 FROM redrive.runs AS r /* INDEXED BY runs_parked */
                      WHERE r.parked_on IS NOT NULL AND r.status = 'SLEEPING' AND r.worker IS NULL
                      ORDER BY r.tenant, r.parked_on COLLATE "C", r.id LIMIT CAST(:counted AS bigint)) AS parked;

-- name: waiting
-- Waits of one kind. A wait of a run that has ended does not count.
SELECT COUNT(*) FROM (SELECT w.run FROM redrive.waits AS w /* INDEXED BY waits_for */
                      WHERE w.kind = :kind AND EXISTS (
                          SELECT 1 FROM redrive.runs AS r WHERE r.id = w.run AND r.finished_at IS NULL LIMIT 1 OFFSET 0)
                      ORDER BY w.kind, w.subject, w.run LIMIT CAST(:counted AS bigint)) AS waiting;

-- name: unread_events
-- Events that no wait has taken.
SELECT COUNT(*) FROM (SELECT 1 FROM redrive.run_events AS v /* INDEXED BY run_events_unread */ WHERE v.taken IS NULL
                      ORDER BY v.run, v.seq LIMIT CAST(:counted AS bigint)) AS unread;

-- name: circuits_by_status
-- Circuits that are not closed, by name and state; several tenants may have one of the same name.
SELECT c.key, c.status, COUNT(*) FROM redrive.circuits AS c WHERE c.status <> 'CLOSED'
GROUP BY c.key, c.status ORDER BY COUNT(*) DESC, c.key LIMIT CAST(:circuits AS bigint);

-- name: attention
-- What needs attention, of one tenant if given: open letters, open circuits, dead deliveries, and workers that crashed
-- since a time. Letters have one index for a tenant and another one for all: one of their counts is always 0.
SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.letters AS l /* INDEXED BY letters_of_tenant_by_status */
                              WHERE l.tenant = CAST(:tenant AS text) AND l.status = 'OPEN'
                              LIMIT CAST(:most AS bigint)) AS own)
       + (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.letters AS l /* INDEXED BY letters_by_status */
                                WHERE CAST(:tenant AS text) IS NULL AND l.status = 'OPEN'
                                LIMIT CAST(:most AS bigint)) AS every),
       (SELECT COUNT(*) FROM redrive.circuits AS c
        WHERE c.status <> 'CLOSED' AND (CAST(:tenant AS text) IS NULL OR c.tenant = :tenant)),
       (SELECT COUNT(*) FROM (SELECT 1 FROM redrive.deliveries AS d /* INDEXED BY deliveries_dead */
                              WHERE d.status = 'DEAD' AND (CAST(:tenant AS text) IS NULL OR d.tenant = :tenant)
                              LIMIT CAST(:most AS bigint)) AS dead),
       (SELECT COUNT(*) FROM redrive.workers AS w
        WHERE w.lease_until > CAST(:since AS bigint)
          AND (w.state = 'DEAD' OR w.state = 'LIVE' AND w.lease_until <= CAST(:now AS bigint)));

-- name: workers_by_state
-- Workers by state. A worker whose lease has expired counts as dead, even if not declared dead yet.
SELECT CASE WHEN w.state = 'LIVE' AND w.lease_until < CAST(:now AS bigint) THEN 'DEAD' ELSE w.state END, COUNT(*)
FROM redrive.workers AS w GROUP BY 1;

-- name: take_uncounted_replays
-- Mark replays as counted, the oldest first, and return them. Another process skips those that are being counted.
UPDATE redrive.replays SET counted = 1
WHERE (letter, number) IN (SELECT o.letter, o.number FROM redrive.replays AS o /* INDEXED BY replays_uncounted */
                           WHERE o.counted = 0 ORDER BY o.at LIMIT CAST(:most AS bigint) FOR UPDATE SKIP LOCKED)
RETURNING run_id, mode;

-- name: workflows_of_runs
-- The workflows of runs.
SELECT public_id, workflow FROM redrive.runs WHERE public_id = ANY (CAST(:ids AS text[]));

-- name: add_replay_counts
-- Add to the numbers of replays.
INSERT INTO redrive.replay_counts AS c (workflow, mode, total)
SELECT w.workflow, w.mode, w.total
FROM unnest(CAST(:workflows AS text[]), CAST(:modes AS text[]), CAST(:totals AS bigint[])) AS w (workflow, mode, total)
WHERE true
ON CONFLICT (workflow, mode) DO UPDATE SET total = c.total + excluded.total;

-- name: replay_counts
-- The numbers of replays, the largest first.
SELECT c.workflow, c.mode, c.total FROM redrive.replay_counts AS c
ORDER BY c.total DESC, c.workflow, c.mode LIMIT CAST(:counted AS bigint);

-- name: suspended_versions
-- The workflows and versions of the code of open runs that began and that no worker holds. The query skips through the
-- index from version to version.
WITH RECURSIVE heads (id, n) AS (
    SELECT CAST(NULL AS bigint), 0
    UNION ALL
    SELECT COALESCE(
            (SELECT r.id FROM redrive.runs AS r /* INDEXED BY runs_suspended */
             WHERE r.worker IS NULL AND r.finished_at IS NULL AND r.fence > 0
               AND r.workflow = head.workflow AND r.version > head.version
             ORDER BY r.workflow, r.version, r.id LIMIT 1),
            (SELECT r.id FROM redrive.runs AS r /* INDEXED BY runs_suspended */
             WHERE r.worker IS NULL AND r.finished_at IS NULL AND r.fence > 0
               AND r.workflow > COALESCE(head.workflow, '')
             ORDER BY r.workflow, r.version, r.id LIMIT 1)), heads.n + 1
    FROM heads LEFT JOIN redrive.runs AS head ON head.id = heads.id
    WHERE heads.n < CAST(:most AS bigint) AND (heads.n = 0 OR heads.id IS NOT NULL)
)
SELECT r.workflow, r.version FROM heads JOIN redrive.runs AS r ON r.id = heads.id;

-- name: count_suspended
-- The open runs of a workflow and version that no worker holds, of one tenant if given: all, those that are pinned,
-- those that do not fit newer code, and when the first was started.
SELECT COUNT(*), COALESCE(SUM(CASE WHEN few.pin <> '' THEN 1 ELSE 0 END), 0), COUNT(few.diverged_at), MIN(few.created_at)
FROM (SELECT r.tenant, r.pin, r.diverged_at, r.created_at FROM redrive.runs AS r /* INDEXED BY runs_suspended */
      WHERE r.worker IS NULL AND r.finished_at IS NULL AND r.fence > 0
        AND r.workflow = :workflow AND r.version = :version
      ORDER BY r.id LIMIT CAST(:counted AS bigint)) AS few
WHERE CAST(:tenant AS text) IS NULL OR few.tenant = CAST(:tenant AS text);

-- name: held_versions
-- The runs that workers hold, of one tenant if given, by workflow and version of the code: as in `count_suspended`.
SELECT few.workflow, few.version, COUNT(*), SUM(CASE WHEN few.pin <> '' THEN 1 ELSE 0 END), COUNT(few.diverged_at),
       MIN(few.created_at)
FROM (SELECT r.tenant, r.workflow, r.version, r.pin, r.diverged_at, r.created_at
      FROM redrive.runs AS r /* INDEXED BY runs_held */
      WHERE r.worker IS NOT NULL ORDER BY r.worker LIMIT CAST(:counted AS bigint)) AS few
WHERE CAST(:tenant AS text) IS NULL OR few.tenant = CAST(:tenant AS text)
GROUP BY few.workflow, few.version;

-- name: waiting_for_letters
-- Runs that wait for another run which has an open dead letter, and when the first of those letters was written.
SELECT COUNT(*), MIN(found.since) FROM (
    SELECT (SELECT l.created_at FROM redrive.letters AS l
            WHERE l.public_id = 'dl-' || few.subject AND l.tenant = few.tenant AND l.status = 'OPEN') AS since
    FROM (SELECT w.subject, w.tenant FROM redrive.waits AS w /* INDEXED BY waits_for */ WHERE w.kind = 'run'
          ORDER BY w.kind, w.subject, w.run LIMIT CAST(:counted AS bigint)) AS few) AS found
WHERE found.since IS NOT NULL;
