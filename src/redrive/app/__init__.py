"""The Python interface: `Redrive`, registered workflows, and handles to runs."""

from redrive.app.app import Redrive
from redrive.app.workflow import RunHandle, Start, Workflow

__all__ = ["Redrive", "RunHandle", "Start", "Workflow"]
