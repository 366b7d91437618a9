"""The worker: claims due runs, executes them, and settles their outcomes. Begin reading in `worker.py`."""
