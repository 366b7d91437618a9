-- The failure desk: replays and their lineage, what people note on letters, the audit log.
-- oldest code: 2

-- letter: what hears how the run ends, while it is replayed. sole_step: the only entry that may begin.
ALTER TABLE runs ADD COLUMN letter TEXT;
ALTER TABLE runs ADD COLUMN sole_step TEXT;

-- loose: recorded before a replay; answers whoever asks for it, but need not be asked for again.
ALTER TABLE entries ADD COLUMN loose INTEGER NOT NULL DEFAULT 0;

-- A JSON array of words.
ALTER TABLE letters ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
CREATE INDEX letters_of_workflow ON letters (workflow, id);

-- Decisions to replay. letter is the id a run's letter has or would have; number counts them from 1.
CREATE TABLE replays (
    letter   TEXT    NOT NULL,
    number   INTEGER NOT NULL,
    tenant   TEXT    NOT NULL,
    mode     TEXT    NOT NULL CHECK (mode IN ('FROM_FAILED', 'STEP_ONLY', 'FROM_STEP', 'SKIP', 'COMPLETE', 'FULL')),
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
    PRIMARY KEY (letter, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) WITHOUT ROWID;

-- Append-only. token is given by callers who may have to send a line again.
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
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
