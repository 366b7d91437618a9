-- Sagas: what a run becomes when everything is undone, and the decision to undo it.
-- oldest code: 8

ALTER TABLE runs ADD COLUMN ends_as TEXT
    CHECK (ends_as IN ('COMPENSATED', 'TIMED_OUT', 'CANCELLED', 'DLQ_PENDING'));

-- The same table with one more mode: SQLite changes no CHECK.
CREATE TABLE replays_with_rollbacks (
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
    PRIMARY KEY (letter, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) WITHOUT ROWID;
INSERT INTO replays_with_rollbacks SELECT * FROM replays;
DROP TABLE replays;
ALTER TABLE replays_with_rollbacks RENAME TO replays;
