"""What the code that is being executed belongs to, for log lines that it writes."""

from __future__ import annotations

from typing import Any

from redrive.signals.reporting import about_run
from redrive.worker.attempt import Attempt
from redrive.worker.branch import current

__all__ = ["about_here"]


def about_here() -> dict[str, Any]:
    """The run, and the step and attempt if it is one, that the caller is part of; nothing outside of runs."""
    here = current.get()
    execution = getattr(here, "execution", None)
    if execution is None:
        return {}
    about = about_run(execution.view)
    return {**about, "step": here.step, "attempt": here.attempt} if isinstance(here, Attempt) else about
