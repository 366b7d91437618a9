-- Lists of runs, letters and audit lines: the body of a query, and the conditions it is put together from.

-- name: runs
-- A page of runs; the conditions and the order are filled in.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout
FROM runs AS r {by} WHERE {conditions} ORDER BY r.id {order} LIMIT :most;

-- name: runs.glances
-- The same rows as a page of runs, with little about each.
SELECT r.id, r.status, r.created_at, r.available_at
FROM runs AS r {by} WHERE {conditions} ORDER BY r.id {order} LIMIT :most;

-- name: runs.tenant
-- Runs of one tenant.
r.tenant = :tenant;

-- name: runs.workflow
-- Runs of one workflow.
r.workflow = :workflow;

-- name: runs.status
-- Runs in one state.
r.status = :status;

-- name: runs.indexed
-- Said in addition for states that the index by state covers, so that SQLite knows it may be used.
r.status <> 'SUCCESS' AND r.status <> 'RUNNING';

-- name: runs.succeeded
-- Said in addition for runs that succeeded, for the same reason.
r.status = 'SUCCESS';

-- name: runs.held
-- Said in addition for runs that a worker holds: they are few, and have an index of their own.
r.id IN (SELECT held.id FROM runs AS held INDEXED BY runs_held WHERE held.worker IS NOT NULL);

-- name: runs.correlation_id
-- Runs that belong together.
r.correlation_id = :correlation_id;

-- name: runs.idempotency_key
-- Runs started with this key.
r.id IN (SELECT k.run FROM idempotency AS k WHERE k.given = :idempotency_key);

-- name: runs.handler_for
-- Runs that handle the failure of one run, and what those started.
r.handler_for = :handler_for;

-- name: runs.handling
-- Said in addition for runs that handle failures, which have an index of their own.
r.handler_for IS NOT NULL;

-- name: runs.correlated
-- Said in addition for runs that belong together, for the same reason.
r.correlation_id IS NOT NULL;

-- name: runs.queue
-- Runs of one queue.
r.queue = :queue;

-- name: runs.index
-- Runs that have one of these values in a field to search by.
r.id IN (SELECT x.run FROM run_index AS x
         WHERE x.field = :index_0_field AND x.value IN (SELECT value FROM json_each(:index_0_values)));

-- name: runs.popular
-- The same, where there are so many of those runs that they are looked at one by one.
EXISTS (SELECT 1 FROM run_index AS x WHERE x.field = :index_0_field
        AND x.value IN (SELECT value FROM json_each(:index_0_values)) AND x.run = r.id);

-- name: runs.since
-- Runs accepted at this time or later.
r.created_at >= :since;

-- name: runs.until
-- Runs accepted before this time.
r.created_at < :until;

-- name: runs.below
-- Runs older than a place.
r.id < :below;

-- name: runs.above
-- Runs newer than a place.
r.id > :above;

-- name: runs.edge
-- How far runs are looked through: how many there are up to there, and the ids at both ends.
SELECT count(*) AS count, min(id) AS lowest, max(id) AS highest FROM (
    SELECT r.id FROM runs AS r {by} WHERE {conditions} ORDER BY r.id {order} LIMIT :scanned) AS met;

-- name: runs.at
-- When the first run from an id on was accepted.
SELECT created_at FROM runs WHERE id >= ? ORDER BY id LIMIT 1;

-- name: runs.last
-- The newest id.
SELECT COALESCE(max(id), 0) FROM runs;

-- name: having
-- How many runs have one of these values in a field to search by, as far as that matters.
SELECT count(*) FROM (
    SELECT 1 FROM run_index AS x WHERE x.field = :index_0_field
      AND x.value IN (SELECT value FROM json_each(:index_0_values)) LIMIT :most) AS x;

-- name: letters
-- A page of letters; the conditions and the order are filled in.
SELECT l.id, l.public_id, l.tenant, l.run, l.run_id, l.workflow, l.status, l.code, l.stage, l.category, l.reason,
       t.failure, l.fingerprint, l.payload_hash, t.input, t.options, l.step, l.step_index, l.attempts,
       l.replay_count, l.owner, l.correlation_id, l.version, l.created_at, l.failed_at, l.closed_at, l.closed_by,
       l.resolution, l.expires_at, l.tags
FROM letters AS l {by} CROSS JOIN letter_texts AS t ON t.letter = l.id
WHERE {conditions} ORDER BY l.id {order} LIMIT :most;

-- name: letters.facets
-- The same rows as a page of letters, with those columns alone that are counted by.
SELECT l.id, l.code, l.stage, l.workflow, l.step, l.owner
FROM letters AS l {by} WHERE {conditions} ORDER BY l.id {order} LIMIT :most;

-- name: letters.tenant
-- Letters of one tenant.
l.tenant = :tenant;

-- name: letters.status
-- Letters in one state.
l.status = :status;

-- name: letters.code
-- Letters that ended for one reason.
l.code = :code;

-- name: letters.stage
-- Letters that ended at one stage.
l.stage = :stage;

-- name: letters.early_or_late
-- Letters that ended at another stage than most.
l.stage = :early_or_late;

-- name: letters.unusual
-- Said in addition for those, which have an index of their own.
l.stage <> 'exec';

-- name: letters.category
-- Letters with failures of one category.
l.category = :category;

-- name: letters.workflow
-- Letters of one workflow.
l.workflow = :workflow;

-- name: letters.step
-- Letters in which one step failed.
l.step = :step;

-- name: letters.fingerprint
-- Letters with one cause.
l.fingerprint = :fingerprint;

-- name: letters.owner
-- Letters that somebody looks after.
l.owner = :owner;

-- name: letters.owned
-- Said in addition for those, which have an index of their own.
l.owner IS NOT NULL;

-- name: letters.tag
-- Letters marked with a word.
EXISTS (SELECT 1 FROM json_each(l.tags) AS tag WHERE tag.value = :tag);

-- name: letters.tagged
-- Said in addition for letters that are marked, which have an index of their own.
l.tags <> '[]';

-- name: letters.index
-- Letters of runs that have one of these values in a field to search by.
l.run IN (SELECT x.run FROM run_index AS x
         WHERE x.field = :index_0_field AND x.value IN (SELECT value FROM json_each(:index_0_values)));

-- name: letters.popular
-- The same, where there are so many of those runs that letters are looked at one by one.
EXISTS (SELECT 1 FROM run_index AS x WHERE x.field = :index_0_field
        AND x.value IN (SELECT value FROM json_each(:index_0_values)) AND x.run = l.run);

-- name: letters.since
-- Letters written at this time or later.
l.created_at >= :since;

-- name: letters.until
-- Letters written before this time.
l.created_at < :until;

-- name: letters.text
-- Letters whose reason contains a text.
l.reason LIKE :text ESCAPE '\';

-- name: letters.below
-- Letters older than a place.
l.id < :below;

-- name: letters.above
-- Letters newer than a place.
l.id > :above;

-- name: letters.edge
-- How far letters are looked through: how many there are up to there, and the ids at both ends.
SELECT count(*) AS count, min(id) AS lowest, max(id) AS highest FROM (
    SELECT l.id FROM letters AS l {by} WHERE {conditions} ORDER BY l.id {order} LIMIT :scanned) AS met;

-- name: letters.at
-- When the first letter from an id on was written.
SELECT created_at FROM letters WHERE id >= ? ORDER BY id LIMIT 1;

-- name: letters.last
-- The newest id.
SELECT COALESCE(max(id), 0) FROM letters;

-- name: audit
-- A page of the audit log; the conditions and the order are filled in.
SELECT a.id, a.tenant, a.at, a.event, a.by, a.subject, a.letter, a.before, a.after, a.reason
FROM audit AS a {by} WHERE {conditions} ORDER BY a.id {order} LIMIT :most;

-- name: audit.tenant
-- Lines about one tenant.
a.tenant = :tenant;

-- name: audit.event
-- Lines of one event.
a.event = :event;

-- name: audit.kind
-- Lines of all events that begin like this.
a.event >= :kind AND a.event < :kind || '~';

-- name: audit.by
-- Lines about what the engine did by itself, which most of them are.
a.by = :by;

-- name: audit.person
-- Lines about what one person did.
a.by = :person;

-- name: audit.by_person
-- Said in addition for those, which have an index of their own.
a.by <> 'redrive';

-- name: audit.subject
-- Lines about one run, policy or workflow.
a.subject = :subject;

-- name: audit.letter
-- Lines about one letter.
a.letter = :letter;

-- name: audit.about_letter
-- Said in addition for lines about letters, for the same reason.
a.letter IS NOT NULL;

-- name: audit.no_accounts
-- Lines that are not about users and tokens.
a.event NOT LIKE 'user.%' AND a.event NOT LIKE 'token.%';

-- name: audit.since
-- Lines from this time on.
a.at >= :since;

-- name: audit.until
-- Lines before this time.
a.at < :until;

-- name: audit.below
-- Lines older than a place.
a.id < :below;

-- name: audit.above
-- Lines newer than a place.
a.id > :above;

-- name: audit.edge
-- How far lines are looked through: how many there are up to there, and the ids at both ends.
SELECT count(*) AS count, min(id) AS lowest, max(id) AS highest FROM (
    SELECT a.id FROM audit AS a {by} WHERE {conditions} ORDER BY a.id {order} LIMIT :scanned) AS met;

-- name: audit.at
-- When the first line from an id on was written.
SELECT at FROM audit WHERE id >= ? ORDER BY id LIMIT 1;

-- name: audit.last
-- The newest id.
SELECT COALESCE(max(id), 0) FROM audit;
