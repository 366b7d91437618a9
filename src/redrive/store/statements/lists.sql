-- Lists of runs, letters and audit lines: the body of a query, and the conditions it is put together from.
-- No index serves IS NOT DISTINCT FROM: the index is chosen in lists.py, and the planner gets no other.

-- name: runs
-- A page of runs without inputs and results; the conditions and the order are filled in. Options and failures are read
-- by subqueries and not by joins: the planner could join them first, and each page has few of them.
SELECT r.id, r.public_id, r.tenant, r.workflow, r.queue, r.rank, r.status, r.fence, r.worker, r.available_at,
       r.deadline, r.deaths, r.version, r.created_at, r.started_at, r.finished_at, r.correlation_id, r.parent,
       r.root, r.replay_of, r.generation, r.parked_on, r.diverged_at, r.letter, r.handler_for, r.timeout, r.pin, NULL,
       (SELECT i.options FROM redrive.inputs AS i WHERE i.run = r.id), NULL,
       (SELECT o.failure FROM redrive.results AS o WHERE o.run = r.id)
FROM redrive.runs AS r {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint);

-- name: runs.summaries
-- A page of runs with few columns of each.
SELECT r.id, r.status, r.created_at, r.available_at
FROM redrive.runs AS r {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint);

-- name: runs.by_slot
-- The newest runs by the time of their start: slot, runs, those that failed, and the first start in the slot.
SELECT met.slot, count(*), CAST(sum(met.failed) AS bigint), min(met.created_at) FROM (
    SELECT r.created_at / CAST(:width AS bigint) AS slot, r.created_at,
           CASE WHEN r.status IN ('DLQ_PENDING', 'FAILED', 'TIMED_OUT') THEN 1 ELSE 0 END AS failed
    FROM redrive.runs AS r {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint)) AS met
GROUP BY met.slot;

-- name: runs.tenant
-- Runs of one tenant.
r.tenant IS NOT DISTINCT FROM :tenant;

-- name: runs.workflow
-- Runs of one workflow.
r.workflow IS NOT DISTINCT FROM :workflow;

-- name: runs.workflows
-- Runs of some workflows.
r.workflow = ANY (CAST(:workflows AS text[]));

-- name: runs.status
-- Runs in one state.
r.status IS NOT DISTINCT FROM :status;

-- name: runs.indexed
-- Added for states that the partial index by state covers, so that the planner may use it.
r.status <> 'SUCCESS' AND r.status <> 'RUNNING';

-- name: runs.succeeded
-- Added for runs that succeeded, for the same reason.
r.status = 'SUCCESS';

-- name: runs.correlation_id
-- Runs with one correlation id.
r.correlation_id IS NOT DISTINCT FROM :correlation_id;

-- name: runs.handler_for
-- Runs that handle the failure of one run, and what those started.
r.handler_for IS NOT DISTINCT FROM :handler_for;

-- name: runs.handling
-- Added for runs that handle failures, which have a partial index.
r.handler_for IS NOT NULL;

-- name: runs.parent
-- Runs that one run started.
r.parent IS NOT DISTINCT FROM :parent;

-- name: runs.child
-- Added for runs that other runs started, which have a partial index.
r.parent IS NOT NULL;

-- name: runs.correlated
-- Added for runs with a correlation id, for the same reason.
r.correlation_id IS NOT NULL;

-- name: runs.waits_for
-- Runs that wait for an event, or for the end of a run.
EXISTS (SELECT 1 FROM redrive.waits AS w
        WHERE w.kind IN ('event', 'letter', 'run') AND w.subject = :waits_for AND w.run = r.id OFFSET 0);

-- name: runs.queue
-- Runs of one queue.
r.queue IS NOT DISTINCT FROM :queue;

-- name: runs.since
-- Runs accepted at this time or later.
r.created_at >= :since;

-- name: runs.until
-- Runs accepted before this time.
r.created_at < :until;

-- name: runs.below
-- Runs older than a position.
r.id < :below;

-- name: runs.above
-- Runs newer than a position.
r.id > :above;

-- name: runs.edge
-- The range of runs that one page scans: their number, and the ids at both ends.
SELECT count(*) AS count, min(id) AS lowest, max(id) AS highest FROM (
    SELECT r.id FROM redrive.runs AS r {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:scanned AS bigint)) AS met;

-- name: runs.at
-- When the first run from an id on was accepted.
SELECT created_at FROM redrive.runs WHERE id >= CAST(:id AS bigint) ORDER BY id LIMIT 1;

-- name: runs.last
-- The newest id.
SELECT COALESCE(max(id), 0) FROM redrive.runs;

-- name: count_index_matches
-- The number of runs with one of these values in a search field, up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM redrive.run_index AS x WHERE x.field = :index_0_field
      AND x.value = ANY (CAST(:index_0_values AS text[])) LIMIT CAST(:most AS bigint)) AS x;

-- name: letters.facets
-- A page of letters with only the columns that they are counted by.
SELECT l.id, l.code, l.stage, l.workflow, l.step, l.owner
FROM redrive.letters AS l {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint);

-- name: letters.tenant
-- Letters of one tenant.
l.tenant IS NOT DISTINCT FROM :tenant;

-- name: letters.status
-- Letters in one state.
l.status IS NOT DISTINCT FROM :status;

-- name: letters.code
-- Letters with one code.
l.code IS NOT DISTINCT FROM :code;

-- name: letters.stage
-- Letters of one stage.
l.stage IS NOT DISTINCT FROM :stage;

-- name: letters.early_or_late
-- Letters of an unusual stage.
l.stage IS NOT DISTINCT FROM :early_or_late;

-- name: letters.unusual
-- Added for those, which have a partial index.
l.stage <> 'exec';

-- name: letters.category
-- Letters with failures of one category.
l.category IS NOT DISTINCT FROM :category;

-- name: letters.workflow
-- Letters of one workflow.
l.workflow IS NOT DISTINCT FROM :workflow;

-- name: letters.workflows
-- Letters of some workflows.
l.workflow = ANY (CAST(:workflows AS text[]));

-- name: letters.step
-- Letters in which one step failed.
l.step IS NOT DISTINCT FROM :step;

-- name: letters.fingerprint
-- Letters with one cause.
l.fingerprint IS NOT DISTINCT FROM :fingerprint;

-- name: letters.owner
-- Letters with one owner.
l.owner IS NOT DISTINCT FROM :owner;

-- name: letters.owned
-- Added for those, which have a partial index.
l.owner IS NOT NULL;

-- name: letters.escalated
-- Letters that are escalated: to one role, user or channel, or to any.
l.escalated_to IS NOT NULL AND (CAST(:escalated AS text) = '*' OR l.escalated_to = CAST(:escalated AS text));

-- name: letters.is_escalated
-- Added for those, which have a partial index.
l.escalated_to IS NOT NULL;

-- name: letters.tagged
-- Added for letters with tags, which have a partial index.
l.tags <> '[]';

-- name: letters.since
-- Letters written at this time or later.
l.created_at >= :since;

-- name: letters.until
-- Letters written before this time.
l.created_at < :until;

-- name: letters.text
-- Letters whose reason, error message, reference or search field contains a text.
(l.reason ILIKE :text_reason ESCAPE '\' OR l.message ILIKE :text_plain ESCAPE '\'
 OR l.correlation_id ILIKE :text_plain ESCAPE '\'
 OR EXISTS (SELECT 1 FROM redrive.run_index AS x WHERE x.run = l.run AND x.value ILIKE :text_plain ESCAPE '\' OFFSET 0));

-- name: letters.texts
-- The texts of letters that a search opens where they are sealed.
SELECT l.id, l.tenant, l.reason, l.message, l.correlation_id
FROM redrive.letters AS l {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint);

-- name: letters.ids
-- Letters with these ids.
l.id = ANY (CAST(:ids AS bigint[]));

-- name: letters.below
-- Letters older than a position.
l.id < :below;

-- name: letters.above
-- Letters newer than a position.
l.id > :above;

-- name: letters.edge
-- The range of letters that one page scans: their number, and the ids at both ends.
SELECT count(*) AS count, min(id) AS lowest, max(id) AS highest FROM (
    SELECT l.id FROM redrive.letters AS l {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:scanned AS bigint)) AS met;

-- name: letters.at
-- When the first letter from an id on was written.
SELECT created_at FROM redrive.letters WHERE id >= CAST(:id AS bigint) ORDER BY id LIMIT 1;

-- name: letters.last
-- The newest id.
SELECT COALESCE(max(id), 0) FROM redrive.letters;

-- name: audit
-- A page of the audit log; the conditions and the order are filled in.
SELECT a.id, a.tenant, a.at, a.event, a.by, a.subject, a.letter, a.before, a.after, a.reason
FROM redrive.audit AS a {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint);

-- name: audit.tenant
-- Lines about one tenant.
a.tenant IS NOT DISTINCT FROM :tenant;

-- name: audit.event
-- Lines of one event.
a.event IS NOT DISTINCT FROM :event;

-- name: audit.kind
-- Lines of all events that begin like this.
a.event >= :kind AND a.event < CAST(:kind AS text) || '~';

-- name: audit.by
-- Lines about actions of the engine, which are most of them.
a.by IS NOT DISTINCT FROM :by;

-- name: audit.person
-- Lines about actions of one user.
a.by IS NOT DISTINCT FROM :person;

-- name: audit.people
-- Lines about actions of users and their programs.
a.by <> 'redrive';

-- name: audit.by_person
-- Added for those, which have a partial index.
a.by <> 'redrive';

-- name: audit.subject
-- Lines about one run, policy or workflow.
a.subject IS NOT DISTINCT FROM :subject;

-- name: audit.letter
-- Lines about one letter.
a.letter IS NOT DISTINCT FROM :letter;

-- name: audit.about_letter
-- Added for lines about letters, for the same reason.
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
-- Lines older than a position.
a.id < :below;

-- name: audit.above
-- Lines newer than a position.
a.id > :above;

-- name: audit.edge
-- The range of lines that one page scans: their number, and the ids at both ends.
SELECT count(*) AS count, min(id) AS lowest, max(id) AS highest FROM (
    SELECT a.id FROM redrive.audit AS a {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:scanned AS bigint)) AS met;

-- name: audit.at
-- When the first line from an id on was written.
SELECT at FROM redrive.audit WHERE id >= CAST(:id AS bigint) ORDER BY id LIMIT 1;

-- name: audit.last
-- The newest id.
SELECT COALESCE(max(id), 0) FROM redrive.audit;

-- name: messages
-- A page of messages; the conditions and the order are filled in.
SELECT m.id, m.public_id, m.tenant, m.topic, m.key, m.payload, m.run_id, m.correlation_id, m.created_at, m.trace
FROM redrive.messages AS m {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint);

-- name: messages.tenant
-- Messages of one tenant.
m.tenant IS NOT DISTINCT FROM :tenant;

-- name: messages.topic
-- Messages on one topic.
m.topic IS NOT DISTINCT FROM :topic;

-- name: messages.key
-- Messages with one key.
m.key IS NOT DISTINCT FROM :key;

-- name: messages.run_id
-- Messages of one run; their ids begin with its id.
m.public_id >= 'msg-' || :run_id || '-' AND m.public_id < 'msg-' || :run_id || '.' AND m.run_id = :run_id;

-- name: messages.since
-- Messages from this time on.
m.created_at >= CAST(:since AS bigint);

-- name: messages.until
-- Messages before this time.
m.created_at < CAST(:until AS bigint);

-- name: messages.below
-- Messages older than a position.
m.id < CAST(:below AS bigint);

-- name: messages.above
-- Messages newer than a position.
m.id > CAST(:above AS bigint);

-- name: messages.edge
-- The range of messages that one page scans: their number, and the ids at both ends.
SELECT count(*) AS count, min(id) AS lowest, max(id) AS highest FROM (
    SELECT m.id FROM redrive.messages AS m {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:scanned AS bigint)) AS met;

-- name: messages.at
-- When the first message from an id on was published.
SELECT created_at FROM redrive.messages WHERE id >= CAST(:id AS bigint) ORDER BY id LIMIT 1;

-- name: messages.last
-- The newest id.
SELECT COALESCE(max(id), 0) FROM redrive.messages;

-- name: runs.count
-- The number of runs that match, up to a limit.
SELECT count(*) FROM (
    SELECT r.id FROM redrive.runs AS r {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint)) AS met;

-- name: letters.count
-- The number of letters that match, up to a limit.
SELECT count(*) FROM (
    SELECT l.id FROM redrive.letters AS l {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint)) AS met;

-- name: audit.count
-- The number of lines that match, up to a limit.
SELECT count(*) FROM (
    SELECT a.id FROM redrive.audit AS a {hint} WHERE {conditions} ORDER BY {order} LIMIT CAST(:most AS bigint)) AS met;
