-- Sagas: what a run becomes when everything is undone, and the decision to undo it.
-- oldest code: 8

ALTER TABLE redrive.runs ADD COLUMN ends_as text COLLATE "C"
    CHECK (ends_as IN ('COMPENSATED', 'TIMED_OUT', 'CANCELLED', 'DLQ_PENDING'));

ALTER TABLE redrive.replays DROP CONSTRAINT replays_mode_check;
ALTER TABLE redrive.replays ADD CONSTRAINT replays_mode_check CHECK (
    mode IN ('FROM_FAILED', 'STEP_ONLY', 'FROM_STEP', 'SKIP', 'COMPLETE', 'FULL', 'ROLLBACK'));
