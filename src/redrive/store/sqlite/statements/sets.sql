-- Sets of letters that are decided on together: listing them, working them off, looking at them.

-- name: highest_letter
-- The newest letter; later ones do not belong to a set that begins now.
SELECT COALESCE(max(id), 0) FROM letters;

-- name: put_set
-- Begin a set; one that is sent again is there already.
INSERT INTO sets (public_id, tenant, action, status, by, reason, request, wanted, upto, reached, listed, total,
                  created_at, lease_until, rate)
VALUES (:public_id, :tenant, :action, 'RUNNING', :by, :reason, :request, :wanted, :upto, 0, :listed, :total, :now, :now,
        :rate)
ON CONFLICT (public_id) DO NOTHING
RETURNING id;

-- name: put_item
-- A letter of a set, by the id that was given.
INSERT INTO set_items (set_id, number, tenant, letter, status) VALUES (:set, :number, :tenant, :letter, 'PENDING');

-- name: any_set
-- Whether there is a set to work on, which is neither paused nor somebody's: a look that takes no lock.
SELECT EXISTS (SELECT 1 FROM sets WHERE status = 'RUNNING' AND paused_at IS NULL AND lease_until <= :now);

-- name: claim_set
-- Take the set that has waited longest, for a while.
UPDATE sets SET fence = fence + 1, lease_until = :now + :lease
WHERE id = (SELECT id FROM sets WHERE status = 'RUNNING' AND paused_at IS NULL AND lease_until <= :now ORDER BY lease_until, id LIMIT 1)
RETURNING id, public_id, tenant, action, status, by, reason, request, wanted, listed, total, done, failed, created_at,
          ended_at, closed_by, fence, rate, paused_at, paused_by;

-- name: mark_item
-- What became of decisions on letters, where the same became of all; said a second time, it changes nothing. The set is
-- named with each: named once, all its letters would be walked through to find each of these.
UPDATE set_items SET status = :status, run_id = this.run_id, error = this.error, at = :now
FROM (SELECT json_extract(value, '$[0]') AS set_id, json_extract(value, '$[1]') AS number,
             json_extract(value, '$[2]') AS run_id, json_extract(value, '$[3]') AS error
      FROM json_each(:these)) AS this
WHERE set_items.set_id = this.set_id AND set_items.number = this.number AND set_items.status = 'PENDING';

-- name: count_marked
-- Add what was marked to the set's counts.
UPDATE sets SET done = done + :done, failed = failed + :failed WHERE id = :set;

-- name: keep_set
-- Go on with a set, unless it was stopped or taken over. Of one that is paused the lease says when it may go on.
UPDATE sets SET lease_until = :now + :lease WHERE id = :set AND fence = :fence AND status = 'RUNNING'
RETURNING wanted, upto, reached, listed, paused_at IS NOT NULL;

-- name: gather
-- List the next letters of a set; the conditions are filled in.
INSERT INTO set_items (set_id, number, tenant, letter, status)
SELECT :set, l.id, :set_tenant, l.public_id, 'PENDING' FROM letters AS l {by}
WHERE {conditions} ORDER BY l.id LIMIT :most
RETURNING number;

-- name: note_gathered
-- How far a set is listed.
UPDATE sets SET total = total + :count, reached = :reached, listed = :listed WHERE id = :set;

-- name: pending
-- The next letters to decide on.
SELECT number, letter FROM set_items INDEXED BY set_items_by_status
WHERE set_id = :set AND status = 'PENDING' ORDER BY number LIMIT :most;

-- name: end_set
-- All letters of the set were decided on.
UPDATE sets SET status = 'DONE', ended_at = :now WHERE id = :set AND status = 'RUNNING';

-- name: stop_set
-- No further letter of the set is decided on.
UPDATE sets SET status = 'STOPPED', ended_at = :now, closed_by = :by, paused_at = NULL, paused_by = NULL
WHERE public_id = :set AND status = 'RUNNING'
RETURNING id;

-- name: pause_set
-- No further letter of the set is decided on until somebody lets it go on.
UPDATE sets SET paused_at = :now, paused_by = :by
WHERE public_id = :set AND status = 'RUNNING' AND paused_at IS NULL
RETURNING id;

-- name: resume_set
-- Go on with a set that is paused: at once, unless its rate has something against it.
UPDATE sets SET paused_at = NULL, paused_by = NULL, lease_until = CASE WHEN rate IS NULL THEN :now ELSE lease_until END
WHERE public_id = :set AND paused_at IS NOT NULL
RETURNING id;

-- name: rate_set
-- Another rate for a set. Whoever works on it has it no longer, and would not know of it.
UPDATE sets SET rate = :rate, fence = fence + 1, lease_until = min(lease_until, :now + :gap)
WHERE public_id = :set AND status = 'RUNNING' AND rate IS NOT :rate
RETURNING id;

-- name: set_by_id
-- A set.
SELECT id, public_id, tenant, action, status, by, reason, request, wanted, listed, total, done, failed, created_at,
       ended_at, closed_by, fence, rate, paused_at, paused_by
FROM sets WHERE public_id = :set;

-- name: sets
-- A page of sets; the conditions and the order are filled in.
SELECT s.id, s.public_id, s.tenant, s.action, s.status, s.by, s.reason, s.request, s.wanted, s.listed, s.total, s.done,
       s.failed, s.created_at, s.ended_at, s.closed_by, s.fence, s.rate, s.paused_at, s.paused_by
FROM sets AS s WHERE {conditions} ORDER BY s.id {order} LIMIT :most;

-- name: sets.all
-- Sets of everybody.
true;

-- name: sets.tenant
-- Sets of one tenant.
s.tenant = :tenant;

-- name: sets.below
-- Sets before a place.
s.id < :below;

-- name: sets.above
-- Sets behind a place.
s.id > :above;

-- name: set_endings
-- How the runs stand that the replays of a set let go on or started.
SELECT r.status, count(*) FROM set_items AS i JOIN runs AS r ON r.public_id = i.run_id
WHERE i.set_id = :set AND i.status = 'DONE' GROUP BY r.status;

-- name: items
-- A page of a set's letters; the conditions and the order are filled in.
SELECT i.number, i.letter, i.status, i.run_id, i.error, i.at
FROM set_items AS i WHERE i.set_id = :set AND {conditions} ORDER BY i.number {order} LIMIT :most;

-- name: items.all
-- Whatever became of them.
true;

-- name: items.PENDING
-- Letters that were not decided on yet.
i.status = 'PENDING';

-- name: items.DONE
-- Letters that were decided on.
i.status = 'DONE';

-- name: items.FAILED
-- Letters on which the decision was refused.
i.status = 'FAILED';

-- name: items.below
-- Letters before a place.
i.number < :below;

-- name: items.above
-- Letters behind a place.
i.number > :above;

-- name: count_letters
-- How many letters there are; the conditions are filled in.
SELECT count(*) FROM letters AS l {by} WHERE {conditions};

-- name: old_items
-- Letters of sets that ended long enough ago.
DELETE FROM set_items WHERE (set_id, number) IN (
    SELECT i.set_id, i.number
    FROM (SELECT id FROM sets WHERE ended_at IS NOT NULL AND ended_at <= :before ORDER BY ended_at LIMIT 10) AS s
    CROSS JOIN set_items AS i ON i.set_id = s.id LIMIT :most)
RETURNING number;

-- name: old_sets
-- Sets that ended long enough ago, once their letters are gone.
DELETE FROM sets WHERE id IN (
    SELECT s.id FROM sets AS s WHERE s.ended_at IS NOT NULL AND s.ended_at <= :before
      AND NOT EXISTS (SELECT 1 FROM set_items AS i WHERE i.set_id = s.id)
    ORDER BY s.ended_at LIMIT 10)
RETURNING id;
