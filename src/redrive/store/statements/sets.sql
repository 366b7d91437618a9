-- Bulk decisions: creating, executing, changing and reading them. A set holds the letters of one.

-- name: highest_letter
-- The newest letter. Later ones do not belong to a set that begins now.
SELECT COALESCE(max(id), 0) FROM redrive.letters;

-- name: insert_bulk
-- Insert a set; a repeat changes nothing.
INSERT INTO redrive.sets (public_id, tenant, action, status, by, reason, request, wanted, upto, reached, listed, total,
                          created_at, lease_until, rate)
VALUES (:public_id, :tenant, :action, 'RUNNING', :by, :reason, :request, :wanted, :upto, 0, :listed, :total, :now, :now,
        :rate)
ON CONFLICT (public_id) DO NOTHING
RETURNING id;

-- name: has_claimable_bulk
-- True if there is a set that is not paused and that no worker holds; read without a lock.
SELECT EXISTS (SELECT 1 FROM redrive.sets WHERE status = 'RUNNING' AND paused_at IS NULL AND lease_until <= CAST(:now AS bigint));

-- name: claim_bulk
-- Claim the set that has waited longest, until the lease expires.
UPDATE redrive.sets SET fence = fence + 1, lease_until = CAST(:now AS bigint) + CAST(:lease AS bigint)
WHERE id = (SELECT id FROM redrive.sets WHERE status = 'RUNNING' AND paused_at IS NULL AND lease_until <= CAST(:now AS bigint)
            ORDER BY lease_until, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, public_id, tenant, action, status, by, reason, request, wanted, listed, total, done, failed, created_at,
          ended_at, closed_by, fence, rate, paused_at, paused_by;

-- name: add_result_counts
-- Add results to the counts of a set.
UPDATE redrive.sets SET done = done + CAST(:done AS bigint), failed = failed + CAST(:failed AS bigint) WHERE id = :set;

-- name: renew_bulk
-- Renew the lease of a set, unless it was stopped or claimed by another worker. A paused set keeps its lease time.
UPDATE redrive.sets SET lease_until = CAST(:now AS bigint) + CAST(:lease AS bigint)
WHERE id = :set AND fence = :fence AND status = 'RUNNING'
RETURNING wanted, upto, reached, listed, paused_at IS NOT NULL;

-- name: list_next_letters
-- List the next letters of a set; the conditions are filled in.
INSERT INTO redrive.set_items (set_id, number, tenant, letter, status)
SELECT CAST(:set AS bigint), l.id, CAST(:set_tenant AS text), l.public_id, 'PENDING' FROM redrive.letters AS l {hint}
WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint)
RETURNING number;

-- name: record_listing
-- Record the progress of listing a set.
UPDATE redrive.sets SET total = total + CAST(:count AS bigint), reached = :reached, listed = :listed WHERE id = :set;

-- name: pending
-- The next letters to decide on.
SELECT number, letter FROM redrive.set_items /* INDEXED BY set_items_by_status */
WHERE set_id = :set AND status = 'PENDING' ORDER BY number LIMIT CAST(:most AS bigint);

-- name: finish_bulk
-- Mark a set as done.
UPDATE redrive.sets SET status = 'DONE', ended_at = :now WHERE id = :set AND status = 'RUNNING';

-- name: stop_set
-- Stop a set.
UPDATE redrive.sets SET status = 'STOPPED', ended_at = :now, closed_by = :by, paused_at = NULL, paused_by = NULL
WHERE public_id = :set AND status = 'RUNNING'
RETURNING id;

-- name: pause_set
-- Pause a set until a user resumes it.
UPDATE redrive.sets SET paused_at = :now, paused_by = :by
WHERE public_id = :set AND status = 'RUNNING' AND paused_at IS NULL
RETURNING id;

-- name: resume_set
-- Resume a paused or stopped set: at once, unless its rate makes it wait.
UPDATE redrive.sets SET status = 'RUNNING', ended_at = NULL, closed_by = NULL, paused_at = NULL, paused_by = NULL,
                        lease_until = CASE WHEN rate IS NULL THEN CAST(:now AS bigint) ELSE lease_until END
WHERE public_id = :set AND (paused_at IS NOT NULL OR status = 'STOPPED')
RETURNING id;

-- name: rate_set
-- Change the rate of a set. Its worker loses it, because it does not know the new rate.
UPDATE redrive.sets SET rate = :rate, fence = fence + 1, lease_until = CASE WHEN lease_until < CAST(:now AS bigint) + CAST(:gap AS bigint) THEN lease_until
                       ELSE CAST(:now AS bigint) + CAST(:gap AS bigint) END
WHERE public_id = :set AND status = 'RUNNING' AND rate IS DISTINCT FROM CAST(:rate AS text)
RETURNING id;

-- name: bulk_by_id
-- The set with a public id.
SELECT id, public_id, tenant, action, status, by, reason, request, wanted, listed, total, done, failed, created_at,
       ended_at, closed_by, fence, rate, paused_at, paused_by
FROM redrive.sets WHERE public_id = :set;

-- name: sets
-- A page of sets; the conditions and the order are filled in.
SELECT s.id, s.public_id, s.tenant, s.action, s.status, s.by, s.reason, s.request, s.wanted, s.listed, s.total, s.done,
       s.failed, s.created_at, s.ended_at, s.closed_by, s.fence, s.rate, s.paused_at, s.paused_by
FROM redrive.sets AS s WHERE {conditions} ORDER BY s.id {order} LIMIT CAST(:most AS bigint);

-- name: sets.tenant
-- Sets of one tenant.
s.tenant = :tenant;

-- name: sets.below
-- Sets before a position.
s.id < :below;

-- name: sets.above
-- Sets after a position.
s.id > :above;

-- name: bulk_run_counts
-- The number of runs by status that the replays of a set resumed or started.
SELECT r.status, count(*) FROM redrive.set_items AS i JOIN redrive.runs AS r ON r.public_id = i.run_id
WHERE i.set_id = :set AND i.status = 'DONE' GROUP BY r.status;

-- name: items
-- A page of a set's letters; the conditions and the order are filled in.
SELECT i.number, i.letter, i.status, i.run_id, i.error, i.at
FROM redrive.set_items AS i WHERE i.set_id = :set AND {conditions} ORDER BY i.number {order} LIMIT CAST(:most AS bigint);

-- name: items.all
-- Letters with any result.
true;

-- name: items.PENDING
-- Letters without a decision.
i.status = 'PENDING';

-- name: items.DONE
-- Letters with a decision.
i.status = 'DONE';

-- name: items.FAILED
-- Letters whose decision was refused.
i.status = 'FAILED';

-- name: items.below
-- Letters before a position.
i.number < :below;

-- name: items.above
-- Letters after a position.
i.number > :above;

-- name: count_letters
-- The number of letters; the conditions are filled in.
SELECT count(*) FROM redrive.letters AS l {hint} WHERE {conditions};

