"""The seam between those who see what happened and those who decide: outcomes in, durable answers out."""

from redrive.settle.settler import (
    LocalSettler,
    Settled,
    Settler,
    open_step,
    open_steps,
    view_of,
)

__all__ = ["LocalSettler", "Settled", "Settler", "open_step", "open_steps", "view_of"]
