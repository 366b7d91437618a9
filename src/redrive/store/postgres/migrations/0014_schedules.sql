-- Schedules: how far each is, who keeps it, and whether it is paused. What it starts is in code.
-- oldest code: 2

-- Times up to passed are over. keeper: the worker whose expression is in force while it lives.
CREATE TABLE redrive.schedules (
    passed     bigint NOT NULL,
    keeper     bigint NOT NULL,
    last_at    bigint,
    paused_at  bigint,
    tenant     text   COLLATE "C" NOT NULL,
    workflow   text   COLLATE "C" NOT NULL,
    name       text   COLLATE "C" NOT NULL,
    expression text   NOT NULL,
    zone       text   NOT NULL,
    last_run   text   COLLATE "C",
    paused_by  text,
    PRIMARY KEY (tenant, workflow, name),
    CHECK ((last_at IS NULL) = (last_run IS NULL)),
    CHECK ((paused_at IS NULL) = (paused_by IS NULL))
);

-- -------------------------------------------------------------------------------------------- rights
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.schedules TO redrive_engine;
GRANT SELECT, UPDATE, DELETE ON redrive.schedules TO redrive_app;
GRANT SELECT (lease_until) ON redrive.workers TO redrive_app;
ALTER TABLE redrive.schedules ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.schedules FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON redrive.schedules TO redrive_engine USING (true) WITH CHECK (true);
CREATE POLICY tenant ON redrive.schedules TO redrive_app
    USING (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')))
    WITH CHECK (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')));
