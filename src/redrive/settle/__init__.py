"""The seam between those who see what happened and those who decide: outcomes in, durable answers out."""

from redrive.settle.settler import LocalSettler, Settled, Settler, make_open_step, make_open_steps, make_run_view

__all__ = ["LocalSettler", "Settled", "Settler", "make_open_step", "make_open_steps", "make_run_view"]
