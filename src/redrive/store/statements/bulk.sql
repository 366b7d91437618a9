-- Bulk decisions: creating, executing, changing and reading them. Each has its letters as items.

-- name: highest_letter
-- The newest letter. Later ones do not belong to a bulk action that begins now.
SELECT COALESCE(max(id), 0) FROM redrive.letters;

-- name: insert_bulk
-- Insert a bulk action; a repeat changes nothing.
INSERT INTO redrive.bulk_actions (public_id, tenant, action, status, by, reason, request, wanted, upto, reached, listed, total,
                          created_at, lease_until, rate)
VALUES (:public_id, :tenant, :action, 'RUNNING', :by, :reason, :request, :wanted, :upto, 0, :listed, :total, :now, :now,
        :rate)
ON CONFLICT (public_id) DO NOTHING
RETURNING id;

-- name: has_claimable_bulk
-- True if there is a bulk action that is not paused and that no worker holds; read without a lock.
SELECT EXISTS (SELECT 1 FROM redrive.bulk_actions WHERE status = 'RUNNING' AND paused_at IS NULL AND lease_until <= CAST(:now AS bigint));

-- name: claim_bulk
-- Claim the bulk action that has waited longest, until the lease expires.
UPDATE redrive.bulk_actions SET fence = fence + 1, lease_until = CAST(:now AS bigint) + CAST(:lease AS bigint)
WHERE id = (SELECT id FROM redrive.bulk_actions WHERE status = 'RUNNING' AND paused_at IS NULL AND lease_until <= CAST(:now AS bigint)
            ORDER BY lease_until, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, public_id, tenant, action, status, by, reason, request, wanted, listed, total, done, failed, created_at,
          ended_at, closed_by, fence, rate, paused_at, paused_by;

-- name: add_result_counts
-- Add results to the counts of a bulk action.
UPDATE redrive.bulk_actions SET done = done + CAST(:done AS bigint), failed = failed + CAST(:failed AS bigint) WHERE id = :bulk;

-- name: renew_bulk
-- Renew the lease of a bulk action, unless it was stopped or claimed by another worker. A paused bulk action keeps its lease time.
UPDATE redrive.bulk_actions SET lease_until = CAST(:now AS bigint) + CAST(:lease AS bigint)
WHERE id = :bulk AND fence = :fence AND status = 'RUNNING'
RETURNING wanted, upto, reached, listed, paused_at IS NOT NULL;

-- name: list_next_letters
-- List the next letters of a bulk action; the conditions are filled in.
INSERT INTO redrive.bulk_items (bulk, number, tenant, letter, status)
SELECT CAST(:bulk AS bigint), l.id, CAST(:bulk_tenant AS text), l.public_id, 'PENDING' FROM redrive.letters AS l {hint}
WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint)
RETURNING number;

-- name: record_listing
-- Record the progress of listing a bulk action.
UPDATE redrive.bulk_actions SET total = total + CAST(:count AS bigint), reached = :reached, listed = :listed WHERE id = :bulk;

-- name: pending
-- The next letters to decide on.
SELECT number, letter FROM redrive.bulk_items /* INDEXED BY bulk_items_by_status */
WHERE bulk = :bulk AND status = 'PENDING' ORDER BY number LIMIT CAST(:most AS bigint);

-- name: finish_bulk
-- Mark a bulk action as done.
UPDATE redrive.bulk_actions SET status = 'DONE', ended_at = :now WHERE id = :bulk AND status = 'RUNNING';

-- name: stop_bulk
-- Stop a bulk action.
UPDATE redrive.bulk_actions SET status = 'STOPPED', ended_at = :now, closed_by = :by, paused_at = NULL, paused_by = NULL
WHERE public_id = :bulk AND status = 'RUNNING'
RETURNING id;

-- name: pause_bulk
-- Pause a bulk action until a user resumes it.
UPDATE redrive.bulk_actions SET paused_at = :now, paused_by = :by
WHERE public_id = :bulk AND status = 'RUNNING' AND paused_at IS NULL
RETURNING id;

-- name: resume_bulk
-- Resume a paused or stopped bulk action: at once, unless its rate makes it wait.
UPDATE redrive.bulk_actions SET status = 'RUNNING', ended_at = NULL, closed_by = NULL, paused_at = NULL, paused_by = NULL,
                        lease_until = CASE WHEN rate IS NULL THEN CAST(:now AS bigint) ELSE lease_until END
WHERE public_id = :bulk AND (paused_at IS NOT NULL OR status = 'STOPPED')
RETURNING id;

-- name: rate_bulk
-- Change the rate of a bulk action. Its worker loses it, because it does not know the new rate.
UPDATE redrive.bulk_actions SET rate = :rate, fence = fence + 1, lease_until = CASE WHEN lease_until < CAST(:now AS bigint) + CAST(:gap AS bigint) THEN lease_until
                       ELSE CAST(:now AS bigint) + CAST(:gap AS bigint) END
WHERE public_id = :bulk AND status = 'RUNNING' AND rate IS DISTINCT FROM CAST(:rate AS text)
RETURNING id;

-- name: bulk_by_id
-- The bulk action with a public id.
SELECT id, public_id, tenant, action, status, by, reason, request, wanted, listed, total, done, failed, created_at,
       ended_at, closed_by, fence, rate, paused_at, paused_by
FROM redrive.bulk_actions WHERE public_id = :bulk;

-- name: bulk_actions
-- A page of bulk actions; the conditions and the order are filled in.
SELECT s.id, s.public_id, s.tenant, s.action, s.status, s.by, s.reason, s.request, s.wanted, s.listed, s.total, s.done,
       s.failed, s.created_at, s.ended_at, s.closed_by, s.fence, s.rate, s.paused_at, s.paused_by
FROM redrive.bulk_actions AS s WHERE {conditions} ORDER BY s.id {order} LIMIT CAST(:most AS bigint);

-- name: bulk_actions.tenant
-- Bulk actions of one tenant.
s.tenant = :tenant;

-- name: bulk_actions.below
-- Bulk actions before a position.
s.id < :below;

-- name: bulk_actions.above
-- Bulk actions after a position.
s.id > :above;

-- name: bulk_run_counts
-- The number of runs by status that the replays of a bulk action resumed or started.
SELECT r.status, count(*) FROM redrive.bulk_items AS i JOIN redrive.runs AS r ON r.public_id = i.run_id
WHERE i.bulk = :bulk AND i.status = 'DONE' GROUP BY r.status;

-- name: items
-- A page of a bulk action's letters; the conditions and the order are filled in.
SELECT i.number, i.letter, i.status, i.run_id, i.error, i.at
FROM redrive.bulk_items AS i WHERE i.bulk = :bulk AND {conditions} ORDER BY i.number {order} LIMIT CAST(:most AS bigint);

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

