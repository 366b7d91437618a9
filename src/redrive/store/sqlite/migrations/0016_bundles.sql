-- Messages that are in somebody's hands from the moment of their commit, and how they are noted: many at once.
-- oldest code: 16

-- The bundle that a message is in. It has no deliveries then to the sinks that the bundle is for.
ALTER TABLE messages ADD COLUMN bundle INTEGER;

-- Messages of one commit, on one topic, without a key, as somebody brings them to one sink. They are those between
-- `first` and `last` that name the bundle. lease_until: whoever looks after that unfolds what is not finished, and
-- so gives each of its messages a delivery of its own. finished_at: when all of them had arrived.
CREATE TABLE bundles (
    id          INTEGER NOT NULL,
    sink        TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    first       INTEGER NOT NULL,
    last        INTEGER NOT NULL,
    size        INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    finished_at INTEGER,
    PRIMARY KEY (id, sink)
) WITHOUT ROWID;
CREATE INDEX bundles_open ON bundles (sink, lease_until) WHERE finished_at IS NULL;
