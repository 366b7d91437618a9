-- The trace that a message belongs to, as W3C Trace Context writes it.
-- oldest code: 2
ALTER TABLE messages ADD COLUMN trace text;
