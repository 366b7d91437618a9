-- Replaying many letters at nearly the speed of new runs, and what lists of letters still lacked.
-- oldest code: 8

-- Every letter is in this one as well; a tenant's letters are found state by state.
DROP INDEX letters_of_tenant;

-- Most letters fail while a step executes; the others are few, and looked for.
CREATE INDEX letters_by_stage ON letters (stage, id) WHERE stage <> 'exec';

-- Groups without letters, which nobody sees.
DELETE FROM groups WHERE total = 0 AND open = 0;
