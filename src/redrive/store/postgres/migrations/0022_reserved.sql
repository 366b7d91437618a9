-- Reserved for a change that is made elsewhere at the same time.
-- oldest code: 21

SELECT 1;
