"""Rows as the first release wrote them: a dead letter with its run and journal, and a run that is due.

`redrive.` stands for the schema on PostgreSQL and for nothing on SQLite.
"""

from __future__ import annotations

from letter_kit import answers, audited, case_of, reopens
from store_kit import DAY, HOUR, Kit

from redrive.core.states import LetterStatus, RunStatus
from redrive.store.filters import LetterFilter
from redrive.store.records import Purge

STATEMENTS = """
INSERT INTO redrive.runs
    (id, public_id, tenant, workflow, queue, rank, status, created_at, finished_at, fence, timeout)
VALUES (1, 'old', 'default', 'w', 'default', 0, 'DLQ_PENDING', 1, 2, 4, 3600000000);
INSERT INTO redrive.runs (id, public_id, tenant, workflow, queue, rank, status, created_at, available_at)
VALUES (2, 'due', 'default', 'w', 'default', 0, 'PENDING', 1, 1);
INSERT INTO redrive.inputs (run, tenant, input, options)
SELECT id, tenant, '{"n":1}', '{}' FROM redrive.runs;
INSERT INTO redrive.results (run, tenant, failure) VALUES (1, 'default', '{}');
INSERT INTO redrive.entries
    (run, idx, attempt, fence, first_at, began_at, ended_at, done, tenant, key, kind, name, status)
VALUES (1, 0, 1, 4, 1, 1, 1, 0, 'default', '/charge#0', 'step', 'charge', 'DLQ');
INSERT INTO redrive.letters
    (public_id, tenant, run, run_id, workflow, status, code, stage, category, reason, failure, fingerprint,
     payload_hash, input, options, attempts, version, created_at, failed_at, expires_at)
VALUES ('dl-old', 'default', 1, 'old', 'w', 'OPEN', 'timeout', 'exec', 'timeout', 'r', '{}', 'f', '',
        '{"n":1}', '{}', 1, '', 2, 2, 9000000000000000000);
""".strip().split(";\n")


async def goes_on(kit: Kit) -> None:
    """What was there before the upgrade is there, and can be worked with as if it had been written today."""
    case = await case_of(kit, "dl-old")
    assert case.letter is not None
    assert (case.run.public_id, case.run.letter, case.replays) == ("old", None, ())
    letter = await kit.store.letter("dl-old")
    assert letter is not None
    assert (letter.status, letter.tags) == (case.letter.status, ()) == (LetterStatus.OPEN, ())
    assert (letter.input, letter.options, letter.failure) == ('{"n":1}', "{}", "{}")
    assert [(row.index, row.superseded, row.loose) for row in case.journal] == [(0, 0, 0)]
    assert len((await kit.store.letters(LetterFilter(status="OPEN"), limit=5, cursor=None)).items) == 1
    assert (await kit.store.apply([reopens(case.run, supersedes=(0,))]))[0].kept
    worker = await kit.worker()
    claimed = {run.public_id: run for run in (await kit.claim(worker)).runs}
    assert claimed.keys() == {"old", "due"}
    assert claimed["old"].deadline == kit.clock.now() + HOUR
    await kit.store.apply([answers(claimed["old"])], worker=worker)
    case = await case_of(kit, "old")
    assert case.letter is not None
    assert (case.run.status, case.letter.status) == (RunStatus.SUCCESS, LetterStatus.RESOLVED)
    assert [(each.number, each.outcome) for each in case.replays] == [(1, "SUCCESS")]
    assert [line.event for line in await audited(kit)] == ["dlq.retry", "dlq.replay_succeeded"]
    kit.clock.move(900 * DAY)
    await kit.store.purge(Purge(runs=DAY, letters=DAY, workers=DAY, limit=100))
    assert await kit.store.cases(["dl-old"]) == []
    assert await audited(kit) == []
