-- Circuits: whether a dependency may be called, what was marked down about it, and who waits for it.
-- oldest code: 6

-- key is the circuit's name, or workflow/step. generation counts its changes of status, version all changes of the row.
-- until: when an open one lets probes through; NULL for one that a person opened. wave: how many parked runs went on
-- with the last wave, next_wave_at when more may. settings are the code's, override is what a person set instead.
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

-- How calls ended: failures that speak about the dependency, and the good ends of probes. Written with the end itself.
-- A fence allows one try of an attempt, which makes the key natural.
CREATE TABLE circuit_marks (
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
CREATE INDEX circuit_marks_weighed ON circuit_marks (tenant, key, generation, good, at);
CREATE INDEX circuit_marks_recent ON circuit_marks (at);

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

-- Runs that wait for a circuit, in the order in which they go on.
CREATE INDEX runs_parked ON runs (tenant, parked_on, id)
    WHERE parked_on IS NOT NULL AND status = 'SLEEPING' AND worker IS NULL;
