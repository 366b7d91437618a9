-- Failure handlers: from a failed run to the runs that handle its failure.
-- oldest code: 2

CREATE INDEX runs_handling ON runs (handler_for, id) WHERE handler_for IS NOT NULL;
