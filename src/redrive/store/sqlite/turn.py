"""Who in this process may write next.

SQLite lets one connection write at a time and makes the others poll for their chance, so whoever
writes without a pause (a row of transactional steps) can keep the committer out for seconds. Within
one process the writers therefore queue up here first.
"""

from __future__ import annotations

import threading
from collections import deque

__all__ = ["Turn"]


class Turn:
    """A lock that is handed over in the order in which it was asked for."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    def take(self, timeout: float) -> bool:
        """Wait for the lock; False if it did not come in time."""
        with self._mutex:
            if not self._taken:
                self._taken = True
                return True
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        if gate.acquire(timeout=timeout):
            return True
        with self._mutex:
            if gate in self._waiting:
                self._waiting.remove(gate)
                return False
            return True  # it was handed over at the last moment

    def give(self) -> None:
        """Hand the lock to the one who waits longest."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False
