-- Reserved: what belongs here is being made elsewhere.
-- oldest code: 2
SELECT 1;
