"""The façade: registering, opening, starting, finding."""

from redrive.app.app import Redrive
from redrive.app.workflow import RunHandle, Start, Workflow

__all__ = ["Redrive", "RunHandle", "Start", "Workflow"]
