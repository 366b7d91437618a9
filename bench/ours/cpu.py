"""How much processor time was used, and by which threads."""

from __future__ import annotations

import threading
import time

__all__ = ["Cpu"]


class Cpu:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._all = time.process_time()
        self._here = time.thread_time()

    @property
    def all(self) -> float:
        """Seconds used by the whole process."""
        return time.process_time() - self._all

    @property
    def here(self) -> float:
        """Seconds used by this thread, which is the loop's."""
        assert threading.current_thread() is threading.main_thread()
        return time.thread_time() - self._here
