-- Which user or token created a token, and one account for an address in each tenant; no tenant writes an OWNER.
-- oldest code: 21

-- A token ends with its maker. Tokens that a user created before are found by the user's address. Row level security
-- is forced, so the owner of the tables sees no row: the engine looks.
ALTER TABLE redrive.access_tokens ADD COLUMN maker_user text COLLATE "C", ADD COLUMN maker_token text COLLATE "C";
GRANT SELECT (maker_user, maker_token) ON redrive.access_tokens TO redrive_app;
SET LOCAL ROLE redrive_engine;
UPDATE redrive.access_tokens AS t SET maker_user = u.id FROM redrive.access_users AS u WHERE u.email = t.created_by;
SET LOCAL ROLE NONE;

-- A refusal to add a known address would tell one tenant about the users of another, so an address is unique within
-- the tenant that created the account (home).
ALTER TABLE redrive.access_users ADD COLUMN home text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE redrive.access_users DROP CONSTRAINT access_users_email_key;
ALTER TABLE redrive.access_users ADD CONSTRAINT access_users_of_home UNIQUE (email, home);
GRANT SELECT (home) ON redrive.access_users TO redrive_app;

-- -------------------------------------------------------------------------------------------- rights
-- An OWNER acts in all tenants, so only the engine writes one. A tenant's transaction cannot, whatever the code does.
DROP POLICY added ON redrive.access_users;
CREATE POLICY added ON redrive.access_users FOR INSERT TO redrive_app
    WITH CHECK (home = (SELECT NULLIF(current_setting('redrive.tenant', true), '')));
DROP POLICY tenant ON redrive.access_members;
CREATE POLICY tenant ON redrive.access_members TO redrive_app
    USING (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')))
    WITH CHECK (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')) AND role <> 'OWNER');
DROP POLICY tenant ON redrive.access_tokens;
CREATE POLICY tenant ON redrive.access_tokens TO redrive_app
    USING (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')))
    WITH CHECK (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')) AND role <> 'OWNER');
