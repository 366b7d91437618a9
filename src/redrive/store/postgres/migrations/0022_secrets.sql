-- Secrets of the store: random, made once by the first process that opens it, never shown to a tenant.
-- oldest code: 21

CREATE TABLE redrive.store_secrets (
    name   text COLLATE "C" NOT NULL PRIMARY KEY,
    secret text NOT NULL
);

-- -------------------------------------------------------------------------------------------- rights
GRANT SELECT, INSERT ON redrive.store_secrets TO redrive_engine;
ALTER TABLE redrive.store_secrets ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.store_secrets FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON redrive.store_secrets TO redrive_engine USING (true) WITH CHECK (true);
