-- The time of the server.

-- name: server_time
-- What time it is.
SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()));
