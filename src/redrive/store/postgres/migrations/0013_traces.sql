-- The trace that a message belongs to, as W3C Trace Context writes it.
-- oldest code: 2
ALTER TABLE redrive.messages ADD COLUMN trace text;

-- As `publish`, which workers that know nothing of traces go on calling.
CREATE FUNCTION redrive.publish_traced(
    now bigint, kept boolean[], m_t integer[], m_public_id text[], m_tenant text[], m_topic text[], m_key text[],
    m_run_id text[], m_correlation_id text[], m_payload text[], m_trace text[], OUT done boolean)
LANGUAGE plpgsql VOLATILE
AS $body$
#variable_conflict use_column
BEGIN
    IF cardinality(m_t) > 0 THEN
        -- put_message, put_deliveries
        WITH new AS (
            INSERT INTO redrive.messages (
                public_id, tenant, topic, key, run_id, correlation_id, created_at, payload, trace)
            SELECT n.public_id, COALESCE(n.tenant, m_tenant[1]), COALESCE(n.topic, m_topic[1]), n.key, n.run_id,
                   n.correlation_id, publish_traced.now, n.payload, n.trace
            FROM unnest(m_t, m_public_id, m_tenant, m_topic, m_key, m_run_id, m_correlation_id, m_payload, m_trace)
                WITH ORDINALITY AS n (t, public_id, tenant, topic, key, run_id, correlation_id, payload, trace, number)
            WHERE kept[n.t]
            ORDER BY n.number
            ON CONFLICT (public_id) DO NOTHING
            RETURNING id, tenant, topic, key
        )
        INSERT INTO redrive.deliveries (message, sink, tenant, key, status, available_at)
        SELECT new.id, s.name, new.tenant, new.key, 'PENDING', publish_traced.now
        FROM new JOIN redrive.sinks AS s ON EXISTS (
            SELECT 1 FROM redrive.sink_topics AS t
            WHERE t.sink = s.name AND (t.topic = new.topic OR (t.wild AND starts_with(new.topic, t.topic))));
    END IF;
    done := true;
END $body$;
