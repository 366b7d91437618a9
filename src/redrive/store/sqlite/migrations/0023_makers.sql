-- Who bound an idempotency key, and how large remembered answers are.
-- oldest code: 21

-- Whether another input equals the first one is told to the credential that bound the key, and to those who may see it.
ALTER TABLE idempotency ADD COLUMN maker TEXT;

-- What a tenant may have of them is counted from the index alone. Older ones count as empty until they expire.
ALTER TABLE access_answers ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
CREATE INDEX access_answers_sizes ON access_answers (tenant, size);
