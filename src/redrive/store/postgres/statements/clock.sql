-- The time of the server.

-- name: server_time
-- The server's time, or the test clock's.
SELECT COALESCE(CAST(:now AS bigint), redrive.micros(statement_timestamp()));
