-- The engine's tables: runs and their journal, workers, dead letters, the catalogue, settings.
-- oldest code: 1
-- Times are microseconds since 1970. Empty strings stand for "any" where NULL would defeat UNIQUE.
-- On the busy tables a list of states is written `a = 'X' OR a = 'Y'`, the most frequent first, and not
-- `a IN ('X', 'Y')`: SQLite builds the set of an IN anew for each row, which made a third of a row's cost.

-- What claiming touches: kept narrow, payloads lie in `inputs` and `results`.
-- rank = -priority, so that one ascending index serves the most urgent first.
-- fence grows with every claim and every time the run is taken from its holder.
-- deaths counts workers that died with this run in hand; above 0 the run is a suspect.
-- purged_at: only the state and the result are left, for as long as an idempotency key names the run.
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
    created_at     INTEGER NOT NULL,
    started_at     INTEGER,
    finished_at    INTEGER,
    correlation_id TEXT,
    parent         TEXT,
    root           TEXT,
    replay_of      TEXT,
    generation     INTEGER NOT NULL DEFAULT 0,
    handler_for    TEXT,
    parked_on      TEXT,
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
CREATE INDEX runs_due ON runs (tenant, queue, rank, workflow, available_at, id)
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths = 0;
CREATE INDEX runs_suspect ON runs (available_at, id)
    WHERE worker IS NULL AND available_at IS NOT NULL AND deaths > 0;
CREATE INDEX runs_held ON runs (worker) WHERE worker IS NOT NULL;
CREATE INDEX runs_deadline ON runs (deadline) WHERE deadline IS NOT NULL AND finished_at IS NULL;
-- For the purge. A run that waits for a person is kept, one whose details are gone needs no second look.
CREATE INDEX runs_finished ON runs (finished_at)
    WHERE finished_at IS NOT NULL AND status <> 'DLQ_PENDING' AND purged_at IS NULL;
CREATE INDEX runs_of_tenant ON runs (tenant, id);
CREATE INDEX runs_of_workflow ON runs (workflow, id);
-- For lists by state. Runs that succeeded are most of the table, and those that run are found by runs_held.
CREATE INDEX runs_by_status ON runs (status, id) WHERE status <> 'SUCCESS' AND status <> 'RUNNING';
CREATE INDEX runs_correlated ON runs (correlation_id, id) WHERE correlation_id IS NOT NULL;

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

-- The journal. Rows are appended in time order; (run, idx) finds them. idx is the order of first begin
-- and is never used again in a run, not even after a replay superseded the entry.
-- fence is the claim under which the entry was last written: a limit set under an earlier claim says
-- nothing about the try that is under way now, and a try may be begun again under the same attempt number.
-- timeout_at is the end of the try by its own timeout, patience how long it may go without a heartbeat;
-- limit_at is the earlier of the two ends, moved on by each heartbeat, and what the reaper looks for.
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
    heartbeat_at INTEGER,
    heartbeat    TEXT
);
CREATE UNIQUE INDEX entries_of_run ON entries (run, idx);
CREATE INDEX entries_limited ON entries (limit_at) WHERE limit_at IS NOT NULL;

-- Tries that did not succeed. A fence allows one try of an attempt, which makes the key natural.
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
    failure        TEXT    NOT NULL,
    fingerprint    TEXT    NOT NULL,
    payload_hash   TEXT    NOT NULL,
    input          TEXT    NOT NULL,
    options        TEXT    NOT NULL,
    step           TEXT,
    step_index     INTEGER,
    attempts       INTEGER NOT NULL,
    replay_count   INTEGER NOT NULL DEFAULT 0,
    owner          TEXT,
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
CREATE INDEX letters_of_tenant ON letters (tenant, id);
CREATE INDEX letters_by_status ON letters (status, id);
CREATE INDEX letters_of_tenant_by_status ON letters (tenant, status, id);
CREATE INDEX letters_by_fingerprint ON letters (fingerprint, id);
CREATE INDEX letters_expiring ON letters (expires_at) WHERE status = 'OPEN';
CREATE INDEX letters_closed ON letters (closed_at) WHERE closed_at IS NOT NULL;

-- key is the encoded key, given the caller's own words, by which people look for a run.
CREATE TABLE idempotency (
    tenant     TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    given      TEXT    NOT NULL,
    run        INTEGER NOT NULL,
    run_id     TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_expiring ON idempotency (expires_at);
CREATE INDEX idempotency_given ON idempotency (given);
CREATE INDEX idempotency_of_run ON idempotency (run);

CREATE TABLE workers (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('LIVE', 'STOPPED', 'DEAD')),
    workflows   TEXT    NOT NULL,
    lease       INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    beat_at     INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);

-- The catalogue: what each version of the user's code contains. seq is the order of first sight.
CREATE TABLE versions (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    version       TEXT    NOT NULL UNIQUE,
    first_seen_at INTEGER NOT NULL
);

CREATE TABLE catalogue (
    kind       TEXT NOT NULL CHECK (kind IN ('workflow', 'step')),
    name       TEXT NOT NULL,
    version    TEXT NOT NULL,
    options    TEXT NOT NULL,
    schema_in  TEXT NOT NULL,
    schema_out TEXT NOT NULL,
    PRIMARY KEY (kind, name, version)
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
