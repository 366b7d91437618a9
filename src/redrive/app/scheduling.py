"""The schedules of an app: what its workflows declare, checked, and the runs that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from redrive.chores import Planned
from redrive.core.schedules import Schedule
from redrive.errors import PayloadError, RedriveError, RegistrationError

if TYPE_CHECKING:
    from redrive.app.app import Redrive

__all__ = ["check_inputs", "planned", "read_schedules"]


def read_schedules(what: str, given: Any) -> tuple[Schedule, ...]:
    """The schedules that a workflow was registered with; whatever is none is refused."""
    schedules = (given,) if isinstance(given, Schedule) else () if given is None else given
    if not isinstance(schedules, Sequence) or not all(isinstance(each, Schedule) for each in schedules):
        raise RegistrationError(
            f"schedule of {what} is {given!r:.80}; give a Schedule, as in "
            'Schedule("0 6 * * MON-FRI", timezone="Europe/Warsaw"), or a list of them'
        )
    known: set[tuple[str, str]] = set()
    for each in schedules:
        if (each.tenant, each.name) in known:
            raise RegistrationError(
                f"{what} has two schedules called {each.name!r} for tenant {each.tenant!r}; give each a name="
            )
        known.add((each.tenant, each.name))
    return tuple(schedules)


def planned(app: Redrive) -> list[Planned]:
    """Every schedule of the app, with the way to its runs."""
    return [
        Planned(workflow=name, schedule=schedule, run=partial(workflow.scheduled, schedule))
        for name, workflow in app.registered_workflows.items()
        for schedule in workflow.schedules
    ]


def check_inputs(app: Redrive, now: int) -> None:
    """Refuse schedules whose input does not fit their workflow, before one of them is due.

    A function that makes the input is tried with the next fire time.
    """
    for each in planned(app):
        _refuse_misfit(app, each, each.schedule.cron.next(now) or now)


def _refuse_misfit(app: Redrive, each: Planned, at: int) -> None:
    try:
        app.find(each.workflow).input_text((), each.schedule.input_at(at))
    except PayloadError as error:
        raise RegistrationError(f"the input of {each} does not fit: {error}") from None
    except RedriveError as error:
        raise RegistrationError(f"{each}: {error}") from None
    except Exception as error:
        raise RegistrationError(f"{each}: its input= raised {error!r} for the next fire time") from error
