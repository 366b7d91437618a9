"""The façade: registering, opening, starting, finding."""

from redrive.app.app import Redrive
from redrive.app.handle import RunHandle
from redrive.app.workflow import Start, Workflow

__all__ = ["Redrive", "RunHandle", "Start", "Workflow"]
