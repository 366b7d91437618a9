-- Saved views: filters of lists that people gave a name.
-- oldest code: 17

-- query is that of an address. owner is whose it is, and none ('') for those that a tenant shares.
CREATE TABLE redrive.saved_views (
    at     bigint NOT NULL,
    tenant text   COLLATE "C" NOT NULL,
    list   text   COLLATE "C" NOT NULL,
    owner  text   COLLATE "C" NOT NULL,
    name   text   COLLATE "C" NOT NULL,
    query  text   NOT NULL,
    by     text   NOT NULL,
    PRIMARY KEY (tenant, list, owner, name)
);

-- -------------------------------------------------------------------------------------------- rights
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.saved_views TO redrive_engine, redrive_app;
ALTER TABLE redrive.saved_views ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.saved_views FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON redrive.saved_views TO redrive_engine USING (true) WITH CHECK (true);
CREATE POLICY tenant ON redrive.saved_views TO redrive_app
    USING (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')))
    WITH CHECK (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')));
