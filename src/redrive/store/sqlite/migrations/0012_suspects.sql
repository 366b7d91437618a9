-- Deliveries that may have killed whoever had them.
-- oldest code: 8

-- How many processes in a row ended without a word while they had this delivery. A claim counts it: what nobody noted
-- still has the lease under which it was claimed.
ALTER TABLE deliveries ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
