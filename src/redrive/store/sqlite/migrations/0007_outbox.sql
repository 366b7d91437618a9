-- The outbox: messages committed with the fact they announce, and their deliveries to each sink.
-- oldest code: 2

-- Where messages go. seen_at is when an app that has the sink was last opened.
CREATE TABLE sinks (
    name    TEXT    PRIMARY KEY,
    kind    TEXT    NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

-- What a sink wants: topics that are called so, or, if wild, that begin so.
CREATE TABLE sink_topics (
    sink  TEXT    NOT NULL,
    topic TEXT    NOT NULL,
    wild  INTEGER NOT NULL,
    PRIMARY KEY (sink, topic, wild)
) WITHOUT ROWID;

-- The id orders messages with one key. public_id begins with the run's, so that it finds a run's messages, too.
CREATE TABLE messages (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id      TEXT    NOT NULL UNIQUE,
    tenant         TEXT    NOT NULL,
    topic          TEXT    NOT NULL,
    key            TEXT,
    run_id         TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    payload        TEXT    NOT NULL
);
CREATE INDEX messages_of_tenant ON messages (tenant, id);

-- One for each sink that wanted the message when it was committed.
-- available_at: when it may be claimed. lease_until: nobody else claims it before, while it is under way; it is no
-- part of an index, so that a claim changes none. fence grows with every claim.
-- behind: the message with the same key whose delivery to this sink must be over first.
CREATE TABLE deliveries (
    message      INTEGER NOT NULL,
    sink         TEXT    NOT NULL,
    tenant       TEXT    NOT NULL,
    key          TEXT,
    status       TEXT    NOT NULL CHECK (status IN ('PENDING', 'DELIVERED', 'DEAD', 'SKIPPED')),
    attempt      INTEGER NOT NULL DEFAULT 0,
    fence        INTEGER NOT NULL DEFAULT 0,
    available_at INTEGER,
    lease_until  INTEGER NOT NULL DEFAULT 0,
    behind       INTEGER,
    tried_at     INTEGER,
    finished_at  INTEGER,
    error        TEXT,
    PRIMARY KEY (message, sink),
    CHECK ((finished_at IS NULL) = (status IN ('PENDING', 'DEAD'))),
    CHECK ((available_at IS NOT NULL) = (status = 'PENDING' AND behind IS NULL)),
    CHECK (behind IS NULL OR status = 'PENDING')
) WITHOUT ROWID;
CREATE INDEX deliveries_due ON deliveries (sink, available_at, message) WHERE available_at IS NOT NULL;
CREATE INDEX deliveries_in_order ON deliveries (sink, tenant, key, message)
    WHERE key IS NOT NULL AND finished_at IS NULL;
CREATE INDEX deliveries_behind ON deliveries (sink, behind) WHERE behind IS NOT NULL;
CREATE INDEX deliveries_dead ON deliveries (message) WHERE status = 'DEAD';
