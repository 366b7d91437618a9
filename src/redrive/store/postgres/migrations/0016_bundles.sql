-- Messages that are in somebody's hands from the moment of their commit, and how they are noted: many at once.
-- oldest code: 16

-- The bundle that a message is in. It has no deliveries then to the sinks that the bundle is for.
ALTER TABLE redrive.messages ADD COLUMN bundle bigint;

-- Messages of one commit, on one topic, without a key, as somebody brings them to one sink. They are those between
-- `first` and `last` that name the bundle. lease_until: whoever looks after that unfolds what is not finished, and
-- so gives each of its messages a delivery of its own. finished_at: when all of them had arrived.
CREATE TABLE redrive.bundles (
    id          bigint  NOT NULL,
    first       bigint  NOT NULL,
    last        bigint  NOT NULL,
    lease_until bigint  NOT NULL,
    finished_at bigint,
    size        integer NOT NULL,
    sink        text    COLLATE "C" NOT NULL,
    tenant      text    COLLATE "C" NOT NULL,
    PRIMARY KEY (id, sink)
);
CREATE INDEX bundles_open ON redrive.bundles (sink, lease_until) WHERE finished_at IS NULL;

-- The messages of a batch of transitions, as `publish` writes them, with what the carriers `c_sink` have from now on
-- for as long as `c_lease`. No correlation id is that of the run. m_group numbers those that may be bundled, by tenant and by topic, which is in g_topic.
-- Its parts bear the names of the SQLite store's statements.
-- ids: the numbers of the messages, in order. bundles: those of the groups' bundles. w_topic, w_sink: who wants what.
-- Where some messages were there before, no bundle is told, and all of them are anybody's.
CREATE FUNCTION redrive.publish_bundled(
    now bigint, kept boolean[], m_t integer[], m_public_id text[], m_tenant text[], m_topic text[], m_key text[],
    m_run_id text[], m_correlation_id text[], m_payload text[], m_trace text[], m_group integer[],
    g_topic text[], c_sink text[], c_lease bigint[],
    OUT ids bigint[], OUT bundles bigint[], OUT w_topic text[], OUT w_sink text[])
LANGUAGE plpgsql VOLATILE
AS $body$
#variable_conflict use_column
DECLARE
    wanted bigint;
BEGIN
    IF m_t IS NULL THEN
        RETURN;
    END IF;
    -- sinks_for
    SELECT array_agg(d.topic), array_agg(s.name) INTO w_topic, w_sink
    FROM (SELECT DISTINCT t.topic FROM unnest(m_topic) AS t (topic)) AS d JOIN redrive.sinks AS s ON EXISTS (
        SELECT 1 FROM redrive.sink_topics AS t
        WHERE t.sink = s.name AND (t.topic = d.topic OR (t.wild AND starts_with(d.topic, t.topic))));
    SELECT array_agg(CASE WHEN EXISTS (
        SELECT 1 FROM unnest(w_topic, w_sink) AS w (topic, sink) WHERE w.topic = g.topic AND w.sink = ANY (c_sink)
    ) THEN nextval('redrive.messages_id_seq') END ORDER BY g.number) INTO bundles
    FROM unnest(g_topic) WITH ORDINALITY AS g (topic, number);
    -- put_message, put_bundle, put_delivery
    WITH new AS (
        INSERT INTO redrive.messages (
            public_id, tenant, topic, key, run_id, correlation_id, created_at, payload, trace, bundle)
        SELECT n.public_id, COALESCE(n.tenant, m_tenant[1]), COALESCE(n.topic, m_topic[1]), n.key, n.run_id,
               COALESCE(n.correlation_id, n.run_id), publish_bundled.now, n.payload, n.trace, bundles[COALESCE(n.grp, m_group[1])]
        FROM unnest(m_t, m_public_id, m_tenant, m_topic, m_key, m_run_id, m_correlation_id, m_payload, m_trace, m_group)
            WITH ORDINALITY AS n (
                t, public_id, tenant, topic, key, run_id, correlation_id, payload, trace, grp, number)
        WHERE kept[n.t]
        ORDER BY n.number
        ON CONFLICT (public_id) DO NOTHING
        RETURNING id, tenant, topic, key, bundle
    ), whole AS (
        INSERT INTO redrive.bundles (id, sink, tenant, first, last, size, lease_until)
        SELECT n.bundle, b.sink, min(n.tenant), min(n.id), max(n.id), count(*),
               publish_bundled.now + c_lease[array_position(c_sink, b.sink)]
        FROM unnest(w_topic, w_sink) AS b (topic, sink) JOIN new AS n ON n.topic = b.topic AND n.bundle IS NOT NULL
        WHERE b.sink = ANY (c_sink)
        GROUP BY n.bundle, b.sink
    ), alone AS (
        INSERT INTO redrive.deliveries (message, sink, tenant, key, status, available_at)
        SELECT n.id, w.sink, n.tenant, n.key, 'PENDING', publish_bundled.now
        FROM unnest(w_topic, w_sink) AS w (topic, sink) JOIN new AS n ON n.topic = w.topic
        WHERE n.bundle IS NULL OR c_sink IS NULL OR w.sink <> ALL (c_sink)
    )
    SELECT array_agg(n.id ORDER BY n.id) INTO ids FROM new AS n;
    SELECT count(*) INTO wanted FROM unnest(m_t) AS t WHERE kept[t];
    -- no_bundle: a repeat, because a reply was lost, and with it what was given to the carriers
    IF wanted > COALESCE(cardinality(ids), 0) THEN
        UPDATE redrive.bundles AS b SET lease_until = 0
        WHERE b.finished_at IS NULL AND b.id = ANY (ARRAY(
            SELECT m.bundle FROM redrive.messages AS m WHERE m.public_id = ANY (m_public_id)));
        bundles := NULL;
    END IF;
END $body$;

-- -------------------------------------------------------------------------------------------- rights
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.bundles TO redrive_engine;
GRANT SELECT ON redrive.bundles TO redrive_app;
ALTER TABLE redrive.bundles ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.bundles FORCE ROW LEVEL SECURITY;
CREATE POLICY engine ON redrive.bundles TO redrive_engine USING (true) WITH CHECK (true);
CREATE POLICY tenant ON redrive.bundles TO redrive_app
    USING (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')))
    WITH CHECK (tenant = (SELECT NULLIF(current_setting('redrive.tenant', true), '')));
