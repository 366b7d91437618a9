-- The schema: runs and their journal, dead letters and decisions, circuits, the outbox, accounts, notifications.
-- oldest code: 1
-- Times are microseconds since 1970. Empty strings stand for "any" where NULL would defeat UNIQUE.
-- On the busy tables a list of states is written `a = 'X' OR a = 'Y'`, the most frequent first, and not
-- `a IN ('X', 'Y')`: SQLite builds the set of an IN anew for each row, which made a third of a row's cost.

-- ------------------------------------------------------------------------------------------------ runs
-- A claim reads and writes this table only, so it is narrow: payloads are in `inputs` and `results`.
-- rank is -priority, so that one ascending index gives the most urgent runs first.
-- fence grows with every claim and every time the run is taken from its worker.
-- deaths counts workers that died while they held this run; above 0 the run is a suspect.
-- letter: the dead letter that is told how the run ends, while it is replayed. sole_step: the only entry that may begin.
-- ends_as: the state of a saga's run after all its steps were compensated.
-- purged_at: only the state and the result are left, for as long as an idempotency key names the run.
-- wakeups counts the events that were sent to the run, and the ends of runs that it waited for: a worker that suspends the run says how many it has seen.
-- replaced_by: the run that a full replay started in its place, which gets its events.
-- owner: the run whose end cancels this one.
CREATE TABLE runs (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id      TEXT    NOT NULL UNIQUE,
    tenant         TEXT    NOT NULL,
    workflow       TEXT    NOT NULL,
    queue          TEXT    NOT NULL,
    rank           INTEGER NOT NULL,
    status         TEXT    NOT NULL,
    available_at   INTEGER,
    worker         INTEGER,
    fence          INTEGER NOT NULL DEFAULT 0,
    deaths         INTEGER NOT NULL DEFAULT 0,
    deadline       INTEGER,
    timeout        INTEGER,
    version        TEXT    NOT NULL DEFAULT '',
    pin            TEXT    NOT NULL DEFAULT '',
    created_at     INTEGER NOT NULL,
    started_at     INTEGER,
    finished_at    INTEGER,
    correlation_id TEXT,
    parent         TEXT,
    root           TEXT,
    replay_of      TEXT,
    generation     INTEGER NOT NULL DEFAULT 0,
    wakeups        INTEGER NOT NULL DEFAULT 0,
    handler_for    TEXT,
    replaced_by    TEXT,
    owner          TEXT,
    parked_on      TEXT,
    letter         TEXT,
    sole_step      TEXT,
    ends_as        TEXT    CHECK (ends_as IN ('COMPENSATED', 'TIMED_OUT', 'CANCELLED', 'DLQ_PENDING')),
    diverged_at    INTEGER,
    purged_at      INTEGER,
    CHECK (finished_at IS NULL
           AND (status = 'PENDING' OR status = 'RUNNING' OR status = 'SLEEPING' OR status = 'COMPENSATING')
        OR finished_at IS NOT NULL AND worker IS NULL AND available_at IS NULL
           AND (status = 'SUCCESS' OR status = 'DLQ_PENDING' OR status = 'FAILED' OR status = 'PARTIAL'
                OR status = 'TIMED_OUT' OR status = 'CANCELLED' OR status = 'COMPENSATED')),
    CHECK (status <> 'RUNNING' OR worker IS NOT NULL),
    CHECK (status <> 'PENDING' OR (worker IS NULL AND available_at IS NOT NULL))
);
-- From a run to the runs that it started, and to those of them that end with it.
CREATE INDEX runs_children ON runs (parent, id) WHERE parent IS NOT NULL;
CREATE INDEX runs_owned ON runs (owner, id) WHERE owner IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_of_owner ON runs (owner, id) WHERE owner IS NOT NULL;
-- pin is the version of the code whose workers alone may claim the run; empty for workers of all versions.
CREATE INDEX runs_due ON runs (tenant, queue, rank, workflow, pin, available_at, id)
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0;
-- Suspects over all workflows are counted, those of one workflow are claimed.
CREATE INDEX runs_suspect ON runs (available_at, id)
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0;
CREATE INDEX runs_suspect_of ON runs (workflow, pin, available_at, id)
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0;
CREATE INDEX runs_held ON runs (worker) WHERE worker IS NOT NULL;
-- Open runs that began and that no worker holds, by the version of the code that they need.
CREATE INDEX runs_suspended ON runs (workflow, version, id)
    WHERE worker IS NULL AND finished_at IS NULL AND fence > 0;
CREATE INDEX runs_deadline ON runs (deadline) WHERE deadline IS NOT NULL AND finished_at IS NULL;
-- For the purge, which keeps the last runs of each workflow. A run that waits for a decision is kept.
CREATE INDEX runs_finished ON runs (workflow, finished_at, id)
    WHERE finished_at IS NOT NULL AND status <> 'DLQ_PENDING' AND purged_at IS NULL;
CREATE INDEX runs_of_tenant ON runs (tenant, id);
CREATE INDEX runs_of_workflow ON runs (workflow, id);
-- For lists by state. Most runs succeeded, so these have an index of their own; running ones are found by runs_held.
CREATE INDEX runs_by_status ON runs (status, id) WHERE status <> 'SUCCESS' AND status <> 'RUNNING';
CREATE INDEX runs_succeeded ON runs (id) WHERE status = 'SUCCESS';
CREATE INDEX runs_correlated ON runs (correlation_id, id) WHERE correlation_id IS NOT NULL;
-- From a failed run to the runs of its failure handler.
CREATE INDEX runs_handling ON runs (handler_for, id) WHERE handler_for IS NOT NULL;
-- Runs that wait for a circuit, in the order in which they continue.
CREATE INDEX runs_parked ON runs (tenant, parked_on, id)
    WHERE parked_on IS NOT NULL AND status = 'SLEEPING' AND worker IS NULL;

CREATE TABLE inputs (
    run     INTEGER PRIMARY KEY,
    tenant  TEXT NOT NULL,
    input   TEXT NOT NULL,
    options TEXT NOT NULL
);
CREATE TABLE results (
    run     INTEGER PRIMARY KEY,
    tenant  TEXT NOT NULL,
    output  TEXT,
    failure TEXT
);

-- Fields of inputs by which runs can be searched, declared by their workflow, in clear or encrypted.
CREATE TABLE run_index (
    field  TEXT    NOT NULL,
    value  TEXT    NOT NULL,
    run    INTEGER NOT NULL,
    tenant TEXT    NOT NULL,
    PRIMARY KEY (field, value, run)
) WITHOUT ROWID;
CREATE INDEX run_index_of_run ON run_index (run);

-- key is the encoded key; given is the key as the caller wrote it, by which a user looks for a run.
-- maker: the credential that bound the key; only it and those who may see payloads learn whether another input is equal.
CREATE TABLE idempotency (
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    given      TEXT    NOT NULL,
    run        INTEGER NOT NULL,
    run_id     TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    maker      TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_expiring ON idempotency (expires_at);
CREATE INDEX idempotency_given ON idempotency (given);
CREATE INDEX idempotency_of_run ON idempotency (run);

-- --------------------------------------------------------------------------------------------- journal
-- Rows are appended in time order; (run, idx) finds them. idx is the order in which entries first began, and is never
-- used again in a run, not even after a replay superseded the entry.
-- fence is the claim under which the entry was last written: a limit set under an earlier claim says nothing about the
-- attempt that runs now, and an attempt may begin again under the same number.
-- timeout_at is the end of the attempt by its timeout, patience how long it may run without a heartbeat; limit_at is the
-- earlier of the two ends, moved by each heartbeat, and read by the reaper.
-- loose: recorded before a replay; it answers a call for it, but the replayed code need not call for it again.
CREATE TABLE entries (
    run          INTEGER NOT NULL,
    idx          INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    status       TEXT    NOT NULL CHECK (
                     status = 'SUCCESS' OR status = 'RUNNING' OR status = 'RETRYING' OR status = 'FAILED'
                     OR status = 'DLQ' OR status = 'SKIPPED' OR status = 'CANCELLED' OR status = 'PENDING'),
    attempt      INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    done         INTEGER,
    first_at     INTEGER NOT NULL,
    began_at     INTEGER NOT NULL,
    ended_at     INTEGER,
    wake_at      INTEGER,
    timeout_at   INTEGER,
    patience     INTEGER,
    limit_at     INTEGER,
    input        TEXT,
    output       TEXT,
    failure      TEXT,
    options      TEXT,
    superseded   INTEGER NOT NULL DEFAULT 0,
    loose        INTEGER NOT NULL DEFAULT 0,
    heartbeat_at INTEGER,
    heartbeat    TEXT
);
CREATE UNIQUE INDEX entries_of_run ON entries (run, idx);
CREATE INDEX entries_limited ON entries (limit_at) WHERE limit_at IS NOT NULL;

-- Attempts that did not succeed. A fence allows one try of an attempt, which makes the key natural.
CREATE TABLE attempts (
    run      INTEGER NOT NULL,
    idx      INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    fence    INTEGER NOT NULL,
    tenant   TEXT    NOT NULL,
    ending   TEXT    NOT NULL,
    began_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    category TEXT,
    failure  TEXT,
    decision TEXT,
    next_at  INTEGER,
    worker   INTEGER,
    PRIMARY KEY (run, idx, attempt, fence)
) WITHOUT ROWID;

-- ---------------------------------------------------------------------------------------------- events
-- Events that were sent to runs. seq is the count of wake-ups of the run, so it gives the order of the commits.
-- taken: the index of the entry that took the event, or set it aside for the reason in refused. size: of the payload, in bytes.
CREATE TABLE run_events (
    run     INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    tenant  TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    key     TEXT,
    by      TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    payload TEXT    NOT NULL,
    size    INTEGER NOT NULL,
    taken   INTEGER,
    refused TEXT,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX run_events_once ON run_events (run, key) WHERE key IS NOT NULL;
CREATE INDEX run_events_unread ON run_events (run, seq, size) WHERE taken IS NULL;

-- Open waits of runs. subject: the name of the event, or the first of the runs that replay each other, that the entry
-- waits for, or the id of the task. kind letter: an open dead letter of that run ends the wait, too. A row may outlive its wait if the run
-- ended meanwhile.
CREATE TABLE waits (
    run     INTEGER NOT NULL,
    idx     INTEGER NOT NULL,
    kind    TEXT    NOT NULL CHECK (kind IN ('event', 'run', 'letter', 'task', 'step')),
    subject TEXT    NOT NULL,
    tenant  TEXT    NOT NULL,
    since   INTEGER NOT NULL,
    PRIMARY KEY (run, idx, subject)
) WITHOUT ROWID;
CREATE INDEX waits_for ON waits (kind, subject, run);

-- Questions to people, which users see as tasks. kind manual: a compensation that a person performs. key: of the journal
-- entry, by which a question of a replay finds the one that it replaces. role, people: who may answer. apart_from: who may
-- not. next_at: when the first step of plan is due. late_at: since when a step of it was. people and apart_from are JSON.
CREATE TABLE questions (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id   TEXT    NOT NULL UNIQUE,
    tenant      TEXT    NOT NULL,
    run         INTEGER NOT NULL,
    idx         INTEGER NOT NULL,
    run_id      TEXT    NOT NULL,
    workflow    TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    kind        TEXT    NOT NULL CHECK (kind IN ('ask', 'manual')),
    status      TEXT    NOT NULL CHECK (status IN ('OPEN', 'ANSWERED', 'EXPIRED', 'WITHDRAWN')),
    role        TEXT,
    people      TEXT    NOT NULL,
    apart_from  TEXT    NOT NULL,
    question    TEXT    NOT NULL,
    shown       TEXT,
    schema      TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    due_at      INTEGER,
    next_at     INTEGER,
    plan        TEXT,
    late_at     INTEGER,
    notify      TEXT,
    owner       TEXT,
    answered_at INTEGER,
    answered_by TEXT,
    answer      TEXT,
    note        TEXT,
    replaces    TEXT,
    UNIQUE (run, idx)
);
CREATE INDEX questions_open ON questions (tenant, id) WHERE status = 'OPEN';
CREATE INDEX questions_of_tenant ON questions (tenant, id);
CREATE INDEX questions_open_of_run ON questions (run) WHERE status = 'OPEN';
CREATE INDEX questions_by_age ON questions (created_at);
CREATE INDEX questions_of_run_id ON questions (run_id, id);
CREATE INDEX questions_next ON questions (next_at) WHERE next_at IS NOT NULL AND status = 'OPEN';

-- Steps that workers of a queue execute. A wait of the kind step begins one, and its end closes it; inputs are in entries.
-- fence grows each time the task is handed out, and is part of the worker's ticket. begun: its body may have been called.
-- settled, reply: the ticket that was answered last and its answer, so that a repeat gets the same one. PARKED: the run had
-- ended when a worker asked. timeout and patience are those of the step, in microseconds.
CREATE TABLE step_tasks (
    run        INTEGER NOT NULL,
    idx        INTEGER NOT NULL,
    tenant     TEXT    NOT NULL,
    queue      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    status     TEXT    NOT NULL CHECK (status IN ('READY', 'TAKEN', 'ANSWERED', 'PARKED', 'CLOSED')),
    attempt    INTEGER NOT NULL,
    fence      INTEGER NOT NULL DEFAULT 0,
    worker     INTEGER,
    begun      INTEGER NOT NULL DEFAULT 0,
    deaths     INTEGER NOT NULL DEFAULT 0,
    due_at     INTEGER NOT NULL,
    first_at   INTEGER,
    began_at   INTEGER NOT NULL,
    timeout    INTEGER NOT NULL,
    patience   INTEGER,
    timeout_at INTEGER,
    limit_at   INTEGER,
    beat_at    INTEGER,
    heartbeat  TEXT,
    admitted   TEXT,
    output     TEXT,
    failure    TEXT,
    settled    INTEGER NOT NULL DEFAULT 0,
    reply      TEXT,
    PRIMARY KEY (run, idx)
) WITHOUT ROWID;
CREATE INDEX step_tasks_ready ON step_tasks (queue, tenant, due_at) WHERE status = 'READY';
CREATE INDEX step_tasks_suspect ON step_tasks (queue, due_at) WHERE status = 'READY' AND deaths > 0;
CREATE INDEX step_tasks_taken ON step_tasks (worker) WHERE status = 'TAKEN';
CREATE INDEX step_tasks_limited ON step_tasks (limit_at) WHERE status = 'TAKEN';
CREATE INDEX step_tasks_answered ON step_tasks (run) WHERE status IN ('ANSWERED', 'PARKED');

CREATE TRIGGER task_begins AFTER INSERT ON waits WHEN NEW.kind = 'step' BEGIN
    INSERT INTO step_tasks (run, idx, tenant, queue, name, status, attempt, due_at, began_at, timeout, patience)
    SELECT NEW.run, NEW.idx, NEW.tenant, NEW.subject, e.name, 'READY', e.attempt + 1, NEW.since, NEW.since,
           CAST(json_extract(e.options, '$.timeout') * 1000000 AS INTEGER),
           CAST(json_extract(e.options, '$.heartbeat_timeout') * 1000000 AS INTEGER)
    FROM entries AS e WHERE e.run = NEW.run AND e.idx = NEW.idx
    ON CONFLICT (run, idx) DO UPDATE SET
        status = 'READY', attempt = excluded.attempt, fence = fence + 1, worker = NULL, begun = 0,
        due_at = excluded.due_at, output = NULL, failure = NULL;
END;
CREATE TRIGGER task_ends AFTER DELETE ON waits WHEN OLD.kind = 'step' BEGIN
    UPDATE step_tasks SET status = 'CLOSED', limit_at = NULL, output = NULL, failure = NULL
    WHERE run = OLD.run AND idx = OLD.idx;
END;

-- The latest status that the code of a run set.
CREATE TABLE run_notes (
    run      INTEGER PRIMARY KEY,
    tenant   TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    progress REAL,
    text     TEXT    NOT NULL,
    data     TEXT
);

-- --------------------------------------------------------------------------------------- workers, code
-- counted is the number of the last report of successful calls. suspects is a JSON array of the runs that are suspected
-- of the worker's death; a worker that registers again clears them.
CREATE TABLE workers (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('LIVE', 'STOPPED', 'DEAD')),
    workflows   TEXT    NOT NULL,
    versions    TEXT    NOT NULL DEFAULT '{}',
    pins        TEXT    NOT NULL DEFAULT '{}',
    queues      TEXT,
    lease       INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    beat_at     INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    counted     INTEGER NOT NULL DEFAULT 0,
    suspects    TEXT    NOT NULL DEFAULT '[]',
    draining    INTEGER NOT NULL DEFAULT 0
);

-- Workers that reach the store through a server, with the token that registered each. Tenant '' stands for all.
-- number, digest, answer and answered_at belong to the last batch of outcomes that was applied, so that a repeat gets the
-- same answer.
CREATE TABLE remote_workers (
    worker      INTEGER PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    token       TEXT    NOT NULL,
    number      INTEGER NOT NULL,
    digest      TEXT    NOT NULL,
    answer      TEXT    NOT NULL,
    answered_at INTEGER NOT NULL
);
CREATE INDEX remote_workers_by_token ON remote_workers (token);

-- The catalogue: what each version of the user's code contains. Tenant '' stands for all. seq is the order in which versions were first seen.
-- events: the schemas of the events that a workflow declares, by name; NULL if it declares none.
CREATE TABLE versions (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    version       TEXT    NOT NULL UNIQUE,
    first_seen_at INTEGER NOT NULL
);
CREATE TABLE catalogue (
    tenant     TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('workflow', 'step', 'channel')),
    name       TEXT NOT NULL,
    version    TEXT NOT NULL,
    options    TEXT NOT NULL,
    schema_in  TEXT NOT NULL,
    schema_out TEXT NOT NULL,
    events     TEXT,
    own        TEXT,
    PRIMARY KEY (kind, name, tenant, version)
) WITHOUT ROWID;

CREATE TABLE policies (
    tenant     TEXT    NOT NULL,
    workflow   TEXT    NOT NULL,
    step       TEXT    NOT NULL,
    policy     TEXT    NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT    NOT NULL,
    PRIMARY KEY (tenant, workflow, step)
) WITHOUT ROWID;
CREATE TABLE pauses (
    workflow  TEXT    PRIMARY KEY,
    paused_at INTEGER NOT NULL,
    paused_by TEXT    NOT NULL
) WITHOUT ROWID;

-- Times up to passed are over. keeper: the worker whose expression is in force while it lives. What is started is in code.
-- requested_at: when a user asked for a run beside its times, until a worker starts it.
CREATE TABLE schedules (
    tenant     TEXT    NOT NULL,
    workflow   TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    expression TEXT    NOT NULL,
    zone       TEXT    NOT NULL,
    passed     INTEGER NOT NULL,
    keeper     INTEGER NOT NULL,
    last_at    INTEGER,
    last_run   TEXT,
    paused_at  INTEGER,
    paused_by  TEXT,
    requested_at INTEGER,
    PRIMARY KEY (tenant, workflow, name),
    CHECK ((last_at IS NULL) = (last_run IS NULL)),
    CHECK ((paused_at IS NULL) = (paused_by IS NULL))
) WITHOUT ROWID;
CREATE INDEX schedules_requested ON schedules (requested_at) WHERE requested_at IS NOT NULL;

-- ---------------------------------------------------------------------------------------- dead letters
-- Runs that wait for a decision. tags is a JSON array of words. A decision writes to all of the indexes, so they are few.
CREATE TABLE letters (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id      TEXT    NOT NULL UNIQUE,
    tenant         TEXT    NOT NULL,
    run            INTEGER NOT NULL,
    run_id         TEXT    NOT NULL,
    workflow       TEXT    NOT NULL,
    status         TEXT    NOT NULL CHECK (status IN ('OPEN', 'REPLAYING', 'RESOLVED', 'IGNORED', 'EXPIRED')),
    code           TEXT    NOT NULL,
    stage          TEXT    NOT NULL CHECK (stage IN ('input', 'fetch', 'exec', 'output', 'commit')),
    category       TEXT    NOT NULL,
    reason         TEXT    NOT NULL,
    message        TEXT    NOT NULL DEFAULT '',
    fingerprint    TEXT    NOT NULL,
    payload_hash   TEXT    NOT NULL,
    step           TEXT,
    step_index     INTEGER,
    attempts       INTEGER NOT NULL,
    replay_count   INTEGER NOT NULL DEFAULT 0,
    failed_replays INTEGER NOT NULL DEFAULT 0,
    owner          TEXT,
    escalated_to   TEXT,
    escalated_at   INTEGER,
    tags           TEXT    NOT NULL DEFAULT '[]',
    correlation_id TEXT,
    version        TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    failed_at      INTEGER NOT NULL,
    closed_at      INTEGER,
    closed_by      TEXT,
    resolution     TEXT,
    expires_at     INTEGER NOT NULL,
    UNIQUE (run, tenant),  -- the run first, so that a run's letter is found without knowing its tenant
    CHECK ((closed_at IS NOT NULL) = (status IN ('RESOLVED', 'IGNORED', 'EXPIRED')))
);
CREATE INDEX letters_by_status ON letters (status, id);
CREATE INDEX letters_of_tenant_by_status ON letters (tenant, status, id);
CREATE INDEX letters_of_workflow ON letters (workflow, id);
CREATE INDEX letters_by_fingerprint ON letters (fingerprint, id);
-- Most letters fail while a step executes, and few have an owner or tags, or are escalated: users look for the others.
CREATE INDEX letters_by_stage ON letters (stage, id) WHERE stage <> 'exec';
CREATE INDEX letters_owned ON letters (owner, id) WHERE owner IS NOT NULL;
CREATE INDEX letters_tagged ON letters (id) WHERE tags <> '[]';
CREATE INDEX letters_escalated ON letters (id) WHERE escalated_to IS NOT NULL;
CREATE INDEX letters_unescalated ON letters (tenant, workflow, failed_at)
    WHERE status = 'OPEN' AND escalated_to IS NULL;
CREATE INDEX letters_expiring ON letters (expires_at) WHERE status = 'OPEN';
CREATE INDEX letters_closed ON letters (closed_at) WHERE closed_at IS NOT NULL;

-- A decision writes the letter's row anew. These texts are most of a letter's size and no decision changes them, so
-- they have a table of their own. PostgreSQL stores long texts separately without being told.
CREATE TABLE letter_texts (
    letter  INTEGER PRIMARY KEY,
    tenant  TEXT NOT NULL,
    failure TEXT NOT NULL,
    input   TEXT NOT NULL,
    options TEXT NOT NULL
);
CREATE TRIGGER letter_texts_gone AFTER DELETE ON letters BEGIN
    DELETE FROM letter_texts WHERE letter = old.id;
END;

-- Decisions to replay. letter is the id that the run's letter has or would have; number counts them from 1.
CREATE TABLE replays (
    letter   TEXT    NOT NULL,
    number   INTEGER NOT NULL,
    tenant   TEXT    NOT NULL,
    mode     TEXT    NOT NULL CHECK (
                 mode IN ('FROM_FAILED', 'STEP_ONLY', 'FROM_STEP', 'SKIP', 'COMPLETE', 'FULL', 'ROLLBACK')),
    digest   TEXT    NOT NULL,
    request  TEXT    NOT NULL,
    run_id   TEXT    NOT NULL,
    by       TEXT    NOT NULL,
    reason   TEXT,
    key      TEXT,
    changes  TEXT,
    at       INTEGER NOT NULL,
    ended_at INTEGER,
    outcome  TEXT,
    counted  INTEGER NOT NULL DEFAULT 0,  -- it is part of replay_counts
    PRIMARY KEY (letter, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) WITHOUT ROWID;
CREATE INDEX replays_uncounted ON replays (at) WHERE counted = 0;

-- The number of replays since the store was created, of all tenants, for metrics: replays themselves are purged.
-- workflow is empty if the run was purged before its replay was counted.
CREATE TABLE replay_counts (
    workflow TEXT    NOT NULL,
    mode     TEXT    NOT NULL,
    total    INTEGER NOT NULL,
    PRIMARY KEY (workflow, mode)
) WITHOUT ROWID;

-- Changes in the number of letters with one cause. The triggers below write them with the change itself, and a chore adds
-- them to the groups a moment later, so that an outage with one cause appends rows instead of waiting for one row.
-- open and total are differences, seen counts failures; at is when, as far as the letter tells: triggers read no clock.
CREATE TABLE letter_feed (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    workflow    TEXT    NOT NULL,
    step        TEXT,
    letter      TEXT    NOT NULL,
    open        INTEGER NOT NULL,
    total       INTEGER NOT NULL,
    seen        INTEGER NOT NULL,
    at          INTEGER,
    version     TEXT    NOT NULL
);
-- Letters that are no longer open add to one row for each cause: a bulk decision changes thousands with the same one,
-- and SQLite has one writer, so none waits for that row.
CREATE UNIQUE INDEX letter_feed_left ON letter_feed (tenant, fingerprint) WHERE letter = '';

-- Letters by cause. latest is the feed's number of the latest failure: groups are listed by it, newest first.
CREATE TABLE groups (
    tenant      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    workflow    TEXT    NOT NULL,
    step        TEXT,
    open        INTEGER NOT NULL,
    total       INTEGER NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    latest      INTEGER NOT NULL,
    sample      TEXT,
    PRIMARY KEY (tenant, fingerprint)
) WITHOUT ROWID;
CREATE INDEX groups_open ON groups (latest) WHERE open > 0;
CREATE INDEX groups_of_tenant_open ON groups (tenant, latest) WHERE open > 0;
CREATE INDEX groups_all ON groups (latest) WHERE total > 0;
CREATE INDEX groups_of_tenant ON groups (tenant, latest) WHERE total > 0;
CREATE INDEX groups_by_size ON groups (open, latest) WHERE open > 0;
CREATE INDEX groups_of_tenant_by_size ON groups (tenant, open, latest) WHERE open > 0;
CREATE INDEX groups_by_fingerprint ON groups (fingerprint);

-- Failures by minute and by hour: slot is the number of such spans of time since 1970. Charts look back until kept_until.
-- Those of a whole tenant have an empty fingerprint: a chart of all its causes reads few rows.
CREATE TABLE group_counts (
    tenant      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    seconds     INTEGER NOT NULL CHECK (seconds IN (60, 3600)),
    slot        INTEGER NOT NULL,
    seen        INTEGER NOT NULL,
    kept_until  INTEGER NOT NULL,
    PRIMARY KEY (tenant, fingerprint, seconds, slot)
) WITHOUT ROWID;
CREATE INDEX group_counts_of_tenants ON group_counts (seconds, slot) WHERE fingerprint = '';
CREATE INDEX group_counts_old ON group_counts (kept_until);

-- The versions of the code in which letters of a group failed.
CREATE TABLE group_versions (
    tenant      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    seen        INTEGER NOT NULL,
    PRIMARY KEY (tenant, fingerprint, version)
) WITHOUT ROWID;
CREATE INDEX group_versions_in_order ON group_versions (tenant, fingerprint, first_seen);
CREATE INDEX group_versions_old ON group_versions (last_seen);

-- What users decided about a cause. A muted one has a time at which the mute ends, or the number of open letters above
-- which it ends. The row outlives its group, so that a cause that was resolved is recognised when it is back.
CREATE TABLE group_decisions (
    tenant           TEXT    NOT NULL,
    fingerprint      TEXT    NOT NULL,
    owner            TEXT,
    muted_at         INTEGER,
    muted_by         TEXT,
    muted_until      INTEGER,
    muted_open       INTEGER,
    resolved_at      INTEGER,
    resolved_by      TEXT,
    resolved_version TEXT,
    retried_at       INTEGER,
    retried_by       TEXT,
    retried_bulk     TEXT,
    PRIMARY KEY (tenant, fingerprint),
    CHECK ((muted_at IS NULL) = (muted_until IS NULL AND muted_open IS NULL)),
    CHECK (muted_until IS NULL OR muted_open IS NULL)
) WITHOUT ROWID;

CREATE TRIGGER feed_new AFTER INSERT ON letters BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at, version)
    VALUES (new.tenant, new.fingerprint, new.workflow, new.step, new.public_id, new.status = 'OPEN', 1, 1, new.failed_at,
            new.version);
END;
-- A letter that a user reopened did not fail again.
CREATE TRIGGER feed_opened AFTER UPDATE OF status, fingerprint ON letters
WHEN old.fingerprint = new.fingerprint AND old.status <> 'OPEN' AND new.status = 'OPEN' BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at, version)
    VALUES (new.tenant, new.fingerprint, new.workflow, new.step, new.public_id, 1, 0,
            old.status = 'REPLAYING' OR new.failed_at <> old.failed_at, new.failed_at, new.version);
END;
CREATE TRIGGER feed_left AFTER UPDATE OF status, fingerprint ON letters
WHEN old.fingerprint = new.fingerprint AND old.status = 'OPEN' AND new.status <> 'OPEN' BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at, version)
    VALUES (new.tenant, new.fingerprint, new.workflow, new.step, '', -1, 0, 0, new.closed_at, new.version)
    ON CONFLICT (tenant, fingerprint) WHERE letter = '' DO UPDATE SET open = open - 1;
END;
CREATE TRIGGER feed_moved AFTER UPDATE OF fingerprint ON letters WHEN old.fingerprint <> new.fingerprint BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at, version)
    VALUES (old.tenant, old.fingerprint, old.workflow, old.step, old.public_id, -(old.status = 'OPEN'), -1, 0,
            new.failed_at, old.version),
           (new.tenant, new.fingerprint, new.workflow, new.step, new.public_id, new.status = 'OPEN', 1,
            new.status = 'OPEN', new.failed_at, new.version);
END;
CREATE TRIGGER feed_gone AFTER DELETE ON letters BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at, version)
    VALUES (old.tenant, old.fingerprint, old.workflow, old.step, old.public_id, -(old.status = 'OPEN'), -1, 0, NULL,
            old.version);
END;

-- Bulk actions. wanted is the filter that selects their letters, of those up to the number upto, and reached how far
-- they are listed; where ids were given, all are. fence and lease_until: which worker executes it, and until when no other
-- one does. rate is text such as 50/s; without one it is not limited. One that waits for its rate has no worker, and
-- lease_until says until when. It is paused while it has paused_at.
CREATE TABLE bulk_actions (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id   TEXT    NOT NULL UNIQUE,
    tenant      TEXT    NOT NULL,
    action      TEXT    NOT NULL CHECK (action IN ('REPLAY', 'RESOLVE', 'IGNORE')),
    status      TEXT    NOT NULL CHECK (status IN ('RUNNING', 'DONE', 'STOPPED')),
    by          TEXT    NOT NULL,
    reason      TEXT,
    request     TEXT,
    rate        TEXT,
    wanted      TEXT,
    upto        INTEGER NOT NULL,
    reached     INTEGER NOT NULL,
    listed      INTEGER NOT NULL,
    total       INTEGER NOT NULL,
    done        INTEGER NOT NULL DEFAULT 0,
    failed      INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    paused_at   INTEGER CHECK (paused_at IS NULL OR status = 'RUNNING'),
    paused_by   TEXT    CHECK ((paused_at IS NULL) = (paused_by IS NULL)),
    ended_at    INTEGER,
    closed_by   TEXT,
    fence       INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL,
    CHECK ((ended_at IS NULL) = (status = 'RUNNING'))
);
CREATE INDEX bulk_actions_running ON bulk_actions (lease_until) WHERE status = 'RUNNING';
CREATE INDEX bulk_actions_ended ON bulk_actions (ended_at) WHERE ended_at IS NOT NULL;

-- The letters of a bulk action, each once, with the result of the decision.
CREATE TABLE bulk_items (
    bulk   INTEGER NOT NULL,
    number INTEGER NOT NULL,
    tenant TEXT    NOT NULL,
    letter TEXT    NOT NULL,
    status TEXT    NOT NULL CHECK (status IN ('PENDING', 'DONE', 'FAILED')),
    run_id TEXT,
    error  TEXT,
    at     INTEGER,
    PRIMARY KEY (bulk, number),
    CHECK ((at IS NULL) = (status = 'PENDING'))
) WITHOUT ROWID;
CREATE INDEX bulk_items_by_status ON bulk_items (bulk, status, number);

-- The audit log is append-only. token is given by callers that may have to send a line again.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant  TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    event   TEXT    NOT NULL,
    by      TEXT    NOT NULL,
    subject TEXT    NOT NULL,
    letter  TEXT,
    before  TEXT,
    after   TEXT,
    reason  TEXT,
    token   TEXT    UNIQUE
);
CREATE INDEX audit_of_tenant ON audit (tenant, id);
CREATE INDEX audit_of_subject ON audit (subject, id);
CREATE INDEX audit_of_letter ON audit (letter, id) WHERE letter IS NOT NULL;
CREATE INDEX audit_by_event ON audit (event, id);
CREATE INDEX audit_by_actor ON audit (by, id) WHERE by <> 'redrive';
-- Few lines are about actions of people: they are listed without looking through those of the engine.
CREATE INDEX audit_of_people ON audit (tenant, id) WHERE by <> 'redrive';
CREATE INDEX audit_people ON audit (id) WHERE by <> 'redrive';
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;

-- Saved views: filters of lists, with names. query is that of a URL; owner is the user, '' for views that a tenant shares.
CREATE TABLE saved_views (
    tenant TEXT    NOT NULL,
    list   TEXT    NOT NULL,
    owner  TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    query  TEXT    NOT NULL,
    by     TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (tenant, list, owner, name)
) WITHOUT ROWID;

-- -------------------------------------------------------------------------------------------- circuits
-- key is the circuit's name, or workflow/step. generation counts changes of status, version all changes of the row.
-- until: when an open one lets probes through; NULL if a user opened it. wave: how many parked runs continued last,
-- next_wave_at when more may. settings are the code's, override is what a user set instead.
CREATE TABLE circuits (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant       TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    status       TEXT    NOT NULL CHECK (status IN ('CLOSED', 'OPEN', 'HALF_OPEN')),
    generation   INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    until        INTEGER,
    wave         INTEGER NOT NULL,
    next_wave_at INTEGER NOT NULL,
    settings     TEXT,
    override     TEXT,
    why          TEXT,
    changed_by   TEXT,
    changed_at   INTEGER NOT NULL,
    UNIQUE (tenant, key),
    CHECK (until IS NULL OR status = 'OPEN')
);
CREATE INDEX circuits_changed ON circuits (changed_at) WHERE generation > 0;
CREATE INDEX circuits_open ON circuits (until) WHERE status = 'OPEN' AND until IS NOT NULL;

-- How calls ended: failures that tell about the dependency, and probes that succeeded. Written with the end itself.
CREATE TABLE circuit_samples (
    run        INTEGER NOT NULL,
    idx        INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    good       INTEGER NOT NULL,
    category   TEXT,
    at         INTEGER NOT NULL,
    PRIMARY KEY (run, idx, attempt, fence)
) WITHOUT ROWID;
CREATE INDEX circuit_samples_counted ON circuit_samples (tenant, key, generation, good, at);
CREATE INDEX circuit_samples_recent ON circuit_samples (at);

-- Successful calls, counted by workers in steps of some seconds. They decide nothing: users see them.
CREATE TABLE circuit_successes (
    tenant  TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    calls   INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, key, at)
) WITHOUT ROWID;
CREATE INDEX circuit_successes_recent ON circuit_successes (at);

-- Permits to call a dependency that may be out of order. One counts while its run is held under its fence.
CREATE TABLE probes (
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    run        INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    idx        INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (tenant, key, generation, run, fence, idx)
) WITHOUT ROWID;
CREATE INDEX probes_old ON probes (at);

-- ---------------------------------------------------------------------------------------------- outbox
-- Where messages go. seen_at is when an app that has the sink was last opened.
CREATE TABLE sinks (
    name    TEXT    PRIMARY KEY,
    kind    TEXT    NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

-- The topics that a sink wants: with this name or, if wild, with this beginning.
CREATE TABLE sink_topics (
    sink  TEXT    NOT NULL,
    topic TEXT    NOT NULL,
    wild  INTEGER NOT NULL,
    PRIMARY KEY (sink, topic, wild)
) WITHOUT ROWID;

-- The id orders messages with one key.
-- public_id begins with the run's id, so that it finds a run's messages, too. trace is the W3C Trace Context.
-- bundle: the bundle that the message is in. It has no deliveries then to the sinks that the bundle is for.
CREATE TABLE messages (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id      TEXT    NOT NULL UNIQUE,
    tenant         TEXT    NOT NULL,
    topic          TEXT    NOT NULL,
    key            TEXT,
    run_id         TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    bundle         INTEGER,
    trace          TEXT,
    payload        TEXT    NOT NULL
);
CREATE INDEX messages_of_tenant ON messages (tenant, id);

-- Messages of one commit, on one topic, without a key, which one relay delivers to one sink. They are those between `first`
-- and `last` that name the bundle. If it is not finished at lease_until, or the worker's lease has expired, any relay
-- gives each of its messages a delivery.
CREATE TABLE bundles (
    id          INTEGER NOT NULL,
    sink        TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    first       INTEGER NOT NULL,
    last        INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    worker      INTEGER,
    finished_at INTEGER,
    PRIMARY KEY (id, sink)
) WITHOUT ROWID;
CREATE INDEX bundles_open ON bundles (sink, lease_until) WHERE finished_at IS NULL;

-- One for each sink that wanted the message when it was committed. available_at: when it may be claimed. lease_until: no
-- other relay claims it before; no index contains it, so that a claim changes none. fence grows with every claim.
-- worker: the worker of the process that claimed it. When the lease of that worker has expired, the claim has ended, too.
-- behind: the message with the same key whose delivery to this sink must be over first.
-- deaths: how many processes in a row ended while they had this delivery, counted by the next claim.
CREATE TABLE deliveries (
    message      INTEGER NOT NULL,
    sink         TEXT    NOT NULL,
    tenant       TEXT    NOT NULL,
    key          TEXT,
    status       TEXT    NOT NULL CHECK (status IN ('PENDING', 'DELIVERED', 'DEAD', 'SKIPPED')),
    attempt      INTEGER NOT NULL DEFAULT 0,
    deaths       INTEGER NOT NULL DEFAULT 0,
    fence        INTEGER NOT NULL DEFAULT 0,
    available_at INTEGER,
    lease_until  INTEGER NOT NULL DEFAULT 0,
    worker       INTEGER,
    behind       INTEGER,
    tried_at     INTEGER,
    finished_at  INTEGER,
    error        TEXT,
    PRIMARY KEY (message, sink),
    CHECK ((finished_at IS NULL) = (status IN ('PENDING', 'DEAD'))),
    CHECK ((available_at IS NOT NULL) = (status = 'PENDING' AND behind IS NULL)),
    CHECK (behind IS NULL OR status = 'PENDING')
) WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (sink, available_at, message) WHERE available_at IS NOT NULL;
CREATE INDEX deliveries_in_order ON deliveries (sink, tenant, key, message)
    WHERE key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX deliveries_behind ON deliveries (sink, behind) WHERE behind IS NOT NULL;
CREATE INDEX deliveries_dead ON deliveries (message) WHERE status = 'DEAD';

-- -------------------------------------------------------------------------------------------- accounts
-- The names begin alike because the file may hold the user's own tables, of which one is often called users.
CREATE TABLE access_tenants (
    tenant      TEXT    PRIMARY KEY,
    created_at  INTEGER NOT NULL,
    created_by  TEXT    NOT NULL,
    disabled_at INTEGER
);

-- An e-mail address is unique within the tenant that created the account (home): a refusal to add a known address would
-- tell one tenant about the users of another.
CREATE TABLE access_users (
    id          TEXT    PRIMARY KEY,
    email       TEXT    NOT NULL,
    home        TEXT    NOT NULL DEFAULT '',
    password    TEXT,
    created_at  INTEGER NOT NULL,
    disabled_at INTEGER,
    UNIQUE (email, home)
);

CREATE TABLE access_members (
    user_id  TEXT    NOT NULL,
    tenant   TEXT    NOT NULL,
    role     TEXT    NOT NULL CHECK (role IN ('OWNER', 'ADMIN', 'STAFF', 'VIEWER')),
    payloads INTEGER NOT NULL,
    active   INTEGER NOT NULL,
    PRIMARY KEY (user_id, tenant)
);
CREATE INDEX access_members_of_tenant ON access_members (tenant, user_id);

-- workflows and steps are JSON arrays of names; an empty one means all. hash is of the secret. A token ends with the user or the
-- token that created it (maker_user, maker_token).
CREATE TABLE access_tokens (
    id          TEXT    PRIMARY KEY,
    tenant      TEXT    NOT NULL,
    kind        TEXT    NOT NULL CHECK (kind IN ('key', 'jwt', 'code')),
    role        TEXT    NOT NULL CHECK (role IN ('OWNER', 'ADMIN', 'STAFF', 'VIEWER', 'WORKER')),
    name        TEXT    NOT NULL,
    created_by  TEXT    NOT NULL,
    maker_user  TEXT,
    maker_token TEXT,
    payloads    INTEGER NOT NULL,
    workflows   TEXT    NOT NULL,
    steps       TEXT    NOT NULL DEFAULT '[]',
    user_id     TEXT,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER,
    revoked_at  INTEGER,
    hash        TEXT    NOT NULL
);
CREATE INDEX access_tokens_of_tenant ON access_tokens (tenant, id);

CREATE TABLE access_sessions (
    hash       TEXT    PRIMARY KEY,
    tenant     TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX access_sessions_of_user ON access_sessions (user_id);
CREATE INDEX access_sessions_expiring ON access_sessions (expires_at);

-- Answers to requests with a key; a request is over when its row has a status. The index of sizes bounds a tenant's answers.
CREATE TABLE access_answers (
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    digest     TEXT    NOT NULL,
    begun_at   INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    size       INTEGER NOT NULL DEFAULT 0,
    status     INTEGER,
    body       TEXT,
    PRIMARY KEY (tenant, key),
    CHECK ((status IS NULL) = (body IS NULL))
);
CREATE INDEX access_answers_expiring ON access_answers (expires_at);
CREATE INDEX access_answers_sizes ON access_answers (tenant, size);

-- Random, made once by the first process that opens the store, never shown to a tenant.
CREATE TABLE store_secrets (
    name   TEXT NOT NULL PRIMARY KEY,
    secret TEXT NOT NULL
) WITHOUT ROWID;

-- --------------------------------------------------------------------------------------- notifications
-- Rules: which users are notified of which events; an empty tenant or workflow means any.
CREATE TABLE notify_rules (
    tenant     TEXT    NOT NULL,
    workflow   TEXT    NOT NULL,
    rule       TEXT    NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT    NOT NULL,
    PRIMARY KEY (tenant, workflow)
) WITHOUT ROWID;

-- Facts, added one by one and never changed but for sent_at. Those told are kept for a while, so that a repeat is known.
CREATE TABLE notices (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id  TEXT    NOT NULL UNIQUE,
    tenant     TEXT    NOT NULL,
    lane       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    notice     TEXT    NOT NULL,
    sent_at    INTEGER
);
CREATE INDEX notices_unsent ON notices (tenant, lane, id) WHERE sent_at IS NULL;
CREATE INDEX notices_sent ON notices (sent_at) WHERE sent_at IS NOT NULL;

-- When notices of one lane may be sent next. A row is written when they are sent, not when one is added to the lane.
CREATE TABLE notice_lanes (
    tenant  TEXT    NOT NULL,
    lane    TEXT    NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    next_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, lane)
) WITHOUT ROWID;
CREATE INDEX notice_lanes_due ON notice_lanes (next_at);

-- What was told, once for all recipients; the inbox shows those that are in_app.
CREATE TABLE notifications (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id  TEXT    NOT NULL UNIQUE,
    tenant     TEXT    NOT NULL,
    event      TEXT    NOT NULL,
    workflow   TEXT    NOT NULL,
    count      INTEGER NOT NULL,
    in_app     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    content    TEXT    NOT NULL
);
CREATE INDEX notifications_of_tenant ON notifications (tenant, id) WHERE in_app;
CREATE INDEX notifications_by_time ON notifications (created_at);

-- Which user read which notification.
CREATE TABLE notification_reads (
    notification INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    reader       TEXT    NOT NULL,
    read_at      INTEGER NOT NULL,
    PRIMARY KEY (notification, reader)
) WITHOUT ROWID;
