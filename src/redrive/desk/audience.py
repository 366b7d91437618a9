"""The people who may answer a question: checked for answers, and for results that are given to a wait for a person."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from redrive.core.questions import Audience
from redrive.core.roles import Role
from redrive.errors import NotAllowed
from redrive.reasons import Reason, ReasonCode
from redrive.store.accounts import find_people
from redrive.store.port import DeskStore
from redrive.store.questions import QuestionRow


class AudienceCheck:
    """Refuses callers who may not answer.

    `whole`: the store of all tenants, because a token may act in several. `role`: that of the caller.
    """

    def __init__(self, whole: DeskStore, role: Role) -> None:
        self._whole = whole
        self._role = role

    async def find_apart(self, rows: Sequence[QuestionRow], by: str) -> set[str]:
        """Return the ids of the tasks that the caller may not answer, as the same person as one who is kept apart."""
        found: set[str] = set()
        people: dict[str, set[str]] = {}
        for row in rows:
            apart = json.loads(row.apart_from)
            for name in (by, *apart) if apart else ():
                if name not in people:
                    people[name] = await find_people(self._whole.accounts, name)
            if any(people[by] & people[name] for name in apart):
                found.add(row.public_id)
        return found

    def require(self, row: QuestionRow, by: str, apart: Collection[str]) -> bool:
        """Refuse a caller who may not answer. Return True for an OWNER outside the audience, who may."""
        if row.public_id in apart:
            # With its colons, the name of a token looks like a secret, which errors do not show.
            raise NotAllowed(Reason(ReasonCode.TASK_APART, by=by.replace(":", " ")))
        role = None if row.role is None else Role(row.role)
        audience = Audience(role=role, people=tuple(json.loads(row.people)))
        if audience.includes(by, self._role):
            return False
        if self._role is not Role.OWNER:
            raise NotAllowed(Reason(ReasonCode.TASK_NOT_YOURS, audience=str(audience)))
        return True
