-- Which user or token created a token, and one account for an address in each tenant.
-- oldest code: 21

-- A token ends with its maker. Tokens that a user created before are found by the user's address.
ALTER TABLE access_tokens ADD COLUMN maker_user TEXT;
ALTER TABLE access_tokens ADD COLUMN maker_token TEXT;
UPDATE access_tokens SET maker_user = (SELECT u.id FROM access_users AS u WHERE u.email = access_tokens.created_by);

-- A refusal to add a known address would tell one tenant about the users of another, so an address is unique within
-- the tenant that created the account (home). SQLite drops a constraint only with its table.
ALTER TABLE access_users RENAME TO access_users_before;
CREATE TABLE access_users (
    id          TEXT    PRIMARY KEY,
    email       TEXT    NOT NULL,
    home        TEXT    NOT NULL DEFAULT '',
    password    TEXT,
    created_at  INTEGER NOT NULL,
    disabled_at INTEGER,
    UNIQUE (email, home)
);
INSERT INTO access_users (id, email, password, created_at, disabled_at)
SELECT id, email, password, created_at, disabled_at FROM access_users_before;
DROP TABLE access_users_before;
