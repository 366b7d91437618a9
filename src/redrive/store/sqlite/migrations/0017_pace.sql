-- Sets that are paused, and sets that go no faster than somebody said.
-- oldest code: 17

-- A set is paused while it has paused_at. rate is text such as 50/s; none is as fast as it can be. One that has to wait for
-- its rate is nobody's, and its lease says until when.
ALTER TABLE sets ADD COLUMN rate TEXT;
ALTER TABLE sets ADD COLUMN paused_at INTEGER CHECK (paused_at IS NULL OR status = 'RUNNING');
ALTER TABLE sets ADD COLUMN paused_by TEXT CHECK ((paused_at IS NULL) = (paused_by IS NULL));
