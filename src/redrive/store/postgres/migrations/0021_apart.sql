-- What a letter tells is kept apart from how it stands: with long texts, this database does that by itself.
-- oldest code: 20

COMMENT ON TABLE redrive.letters IS 'Runs that a person has to decide on. Long texts lie apart, and no decision moves them.';
