-- Schedules: how far each is, who keeps it, and whether it is paused. What it starts is in code.
-- oldest code: 2

-- Times up to passed are over. keeper: the worker whose expression is in force while it lives.
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
    PRIMARY KEY (tenant, workflow, name),
    CHECK ((last_at IS NULL) = (last_run IS NULL)),
    CHECK ((paused_at IS NULL) = (paused_by IS NULL))
) WITHOUT ROWID;
