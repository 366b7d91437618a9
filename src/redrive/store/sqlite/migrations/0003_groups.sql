-- Failure groups, sets of letters that are decided on together, and fields to search by.
-- oldest code: 2

-- What changed in the number of letters with one cause. Written with the change itself, by the triggers below, and
-- folded into the groups a moment later: whatever writes letters needs to know nothing of it, and an outage with one
-- cause appends rows instead of queueing for one. open and total are differences, seen counts failures; at is when, as far as
-- the letter says so: triggers read no clock.
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
    at          INTEGER
);

-- Letters by cause. place is the feed's number of the latest failure: groups are listed by it, newest first.
CREATE TABLE groups (
    tenant      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    workflow    TEXT    NOT NULL,
    step        TEXT,
    open        INTEGER NOT NULL,
    total       INTEGER NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    place       INTEGER NOT NULL,
    sample      TEXT,
    PRIMARY KEY (tenant, fingerprint)
) WITHOUT ROWID;
CREATE INDEX groups_open ON groups (place) WHERE open > 0;
CREATE INDEX groups_of_tenant_open ON groups (tenant, place) WHERE open > 0;
CREATE INDEX groups_all ON groups (place) WHERE total > 0;
CREATE INDEX groups_of_tenant ON groups (tenant, place) WHERE total > 0;

-- Failures by hour since 1970, for as long as the trend looks back.
CREATE TABLE group_hours (
    tenant      TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    hour        INTEGER NOT NULL,
    seen        INTEGER NOT NULL,
    PRIMARY KEY (tenant, fingerprint, hour)
) WITHOUT ROWID;
CREATE INDEX group_hours_old ON group_hours (hour);

CREATE TRIGGER feed_new AFTER INSERT ON letters BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at)
    VALUES (new.tenant, new.fingerprint, new.workflow, new.step, new.public_id, new.status = 'OPEN', 1, 1, new.failed_at);
END;

CREATE TRIGGER feed_changed AFTER UPDATE OF status, fingerprint ON letters
WHEN old.fingerprint = new.fingerprint AND (old.status = 'OPEN') <> (new.status = 'OPEN') BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at)
    VALUES (new.tenant, new.fingerprint, new.workflow, new.step, new.public_id,
            (new.status = 'OPEN') - (old.status = 'OPEN'), 0, new.status = 'OPEN',
            CASE WHEN new.status = 'OPEN' THEN new.failed_at ELSE new.closed_at END);
END;

CREATE TRIGGER feed_moved AFTER UPDATE OF fingerprint ON letters WHEN old.fingerprint <> new.fingerprint BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at)
    VALUES (old.tenant, old.fingerprint, old.workflow, old.step, old.public_id, -(old.status = 'OPEN'), -1, 0,
            new.failed_at),
           (new.tenant, new.fingerprint, new.workflow, new.step, new.public_id, new.status = 'OPEN', 1,
            new.status = 'OPEN', new.failed_at);
END;

CREATE TRIGGER feed_gone AFTER DELETE ON letters BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at)
    VALUES (old.tenant, old.fingerprint, old.workflow, old.step, old.public_id, -(old.status = 'OPEN'), -1, 0, NULL);
END;

INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at)
SELECT tenant, fingerprint, workflow, step, public_id, status = 'OPEN', 1, 1, failed_at FROM letters ORDER BY id;

-- What runs can be searched by: fields of their inputs that their workflow declared, in clear or covered by a key.
CREATE TABLE run_index (
    field  TEXT    NOT NULL,
    value  TEXT    NOT NULL,
    run    INTEGER NOT NULL,
    tenant TEXT    NOT NULL,
    PRIMARY KEY (field, value, run)
) WITHOUT ROWID;
CREATE INDEX run_index_of_run ON run_index (run);

-- Few letters have an owner or tags, and those are what people look for.
CREATE INDEX letters_owned ON letters (owner, id) WHERE owner IS NOT NULL;
CREATE INDEX letters_tagged ON letters (id) WHERE tags <> '[]';

-- Letters that are decided on together. wanted is the filter that names them, of letters up to the number upto, and
-- reached how far they are listed; where ids were given, all are. fence and lease_until: who works on it, and until
-- when nobody else does.
CREATE TABLE sets (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id   TEXT    NOT NULL UNIQUE,
    tenant      TEXT    NOT NULL,
    action      TEXT    NOT NULL CHECK (action IN ('REPLAY', 'RESOLVE', 'IGNORE')),
    status      TEXT    NOT NULL CHECK (status IN ('RUNNING', 'DONE', 'STOPPED')),
    by          TEXT    NOT NULL,
    reason      TEXT,
    request     TEXT,
    wanted      TEXT,
    upto        INTEGER NOT NULL,
    reached     INTEGER NOT NULL,
    listed      INTEGER NOT NULL,
    total       INTEGER NOT NULL,
    done        INTEGER NOT NULL DEFAULT 0,
    failed      INTEGER NOT NULL DEFAULT 0,
    created_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    closed_by   TEXT,
    fence       INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL,
    CHECK ((ended_at IS NULL) = (status = 'RUNNING'))
);
CREATE INDEX sets_running ON sets (lease_until) WHERE status = 'RUNNING';
CREATE INDEX sets_ended ON sets (ended_at) WHERE ended_at IS NOT NULL;

-- The letters of a set, each once, with what became of the decision.
CREATE TABLE set_items (
    set_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    tenant TEXT    NOT NULL,
    letter TEXT    NOT NULL,
    status TEXT    NOT NULL CHECK (status IN ('PENDING', 'DONE', 'FAILED')),
    run_id TEXT,
    error  TEXT,
    at     INTEGER,
    PRIMARY KEY (set_id, number),
    CHECK ((at IS NULL) = (status = 'PENDING'))
) WITHOUT ROWID;
CREATE INDEX set_items_by_status ON set_items (set_id, status, number);
