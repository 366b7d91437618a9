-- Notifications: facts that people are to be told of, what was told, who read it, and the rules about it.
-- oldest code: 2

-- Who is told of what; an empty tenant or workflow means any.
CREATE TABLE notify_rules (
    tenant     TEXT    NOT NULL,
    workflow   TEXT    NOT NULL,
    rule       TEXT    NOT NULL,
    updated_at INTEGER NOT NULL,
    updated_by TEXT    NOT NULL,
    PRIMARY KEY (tenant, workflow)
) WITHOUT ROWID;

-- Facts, added one by one and never changed but for told_at. Those told are kept for a while, so that a repeat is known.
CREATE TABLE notices (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id  TEXT    NOT NULL UNIQUE,
    tenant     TEXT    NOT NULL,
    lane       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    notice     TEXT    NOT NULL,
    told_at    INTEGER
);
CREATE INDEX notices_untold ON notices (tenant, lane, id) WHERE told_at IS NULL;
CREATE INDEX notices_told ON notices (told_at) WHERE told_at IS NOT NULL;

-- When what is alike may be told next. A row is written when it is told, not when something is added to the lane.
CREATE TABLE notice_lanes (
    tenant  TEXT    NOT NULL,
    lane    TEXT    NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    next_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, lane)
) WITHOUT ROWID;
CREATE INDEX notice_lanes_due ON notice_lanes (next_at);

-- What was told, once for all who heard of it; the inbox shows those that are in_app.
CREATE TABLE notifications (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    public_id  TEXT    NOT NULL UNIQUE,
    tenant     TEXT    NOT NULL,
    event      TEXT    NOT NULL,
    workflow   TEXT    NOT NULL,
    count      INTEGER NOT NULL,
    in_app     INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    content    TEXT    NOT NULL
);
CREATE INDEX notifications_of_tenant ON notifications (tenant, id) WHERE in_app;
CREATE INDEX notifications_by_time ON notifications (created_at);

-- Who read what.
CREATE TABLE notification_reads (
    notification INTEGER NOT NULL,
    tenant       TEXT    NOT NULL,
    reader       TEXT    NOT NULL,
    read_at      INTEGER NOT NULL,
    PRIMARY KEY (notification, reader)
) WITHOUT ROWID;
