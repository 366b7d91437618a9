-- What a letter tells is kept apart from how it stands, and letters that are decided on are counted together.
-- oldest code: 21

-- A decision writes a letter's row anew, with whatever is in it. These are never part of one, and most of its size.
CREATE TABLE letter_texts (
    letter  INTEGER PRIMARY KEY,
    tenant  TEXT NOT NULL,
    failure TEXT NOT NULL,
    input   TEXT NOT NULL,
    options TEXT NOT NULL
);
INSERT INTO letter_texts (letter, tenant, failure, input, options)
SELECT id, tenant, failure, input, options FROM letters ORDER BY id;
ALTER TABLE letters DROP COLUMN failure;
ALTER TABLE letters DROP COLUMN input;
ALTER TABLE letters DROP COLUMN options;

CREATE TRIGGER letter_texts_gone AFTER DELETE ON letters BEGIN
    DELETE FROM letter_texts WHERE letter = old.id;
END;

-- As before (0003), but letters that are no longer open add to one row of the feed for each cause: a set decides on
-- thousands with the same one, and here nobody else could have to wait for that row.
DROP TRIGGER feed_changed;
CREATE UNIQUE INDEX letter_feed_left ON letter_feed (tenant, fingerprint) WHERE letter = '';
CREATE TRIGGER feed_opened AFTER UPDATE OF status, fingerprint ON letters
WHEN old.fingerprint = new.fingerprint AND old.status <> 'OPEN' AND new.status = 'OPEN' BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at)
    VALUES (new.tenant, new.fingerprint, new.workflow, new.step, new.public_id, 1, 0, 1, new.failed_at);
END;
CREATE TRIGGER feed_left AFTER UPDATE OF status, fingerprint ON letters
WHEN old.fingerprint = new.fingerprint AND old.status = 'OPEN' AND new.status <> 'OPEN' BEGIN
    INSERT INTO letter_feed (tenant, fingerprint, workflow, step, letter, open, total, seen, at)
    VALUES (new.tenant, new.fingerprint, new.workflow, new.step, '', -1, 0, 0, new.closed_at)
    ON CONFLICT (tenant, fingerprint) WHERE letter = '' DO UPDATE SET open = open - 1;
END;
