"""Cases of one test, for checks that take microseconds: to collect and report a test takes longer than to check one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Call a test with each of the values, as `parametrize` does, but as one test. A failure names its case."""
    arguments = [name.strip() for name in names.split(",")]

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        @functools.wraps(check)
        def check_each() -> None:
            count = 0
            for count, value in enumerate(values, 1):
                given = dict(zip(arguments, (value,) if len(arguments) == 1 else value, strict=True))
                try:
                    check(**given)
                except BaseException as error:
                    error.add_note(f"in case {count}: {given!r:.2000}")
                    raise
            assert count, "there are no cases"

        check_each.__signature__ = inspect.Signature()  # type: ignore[attr-defined] # pytest would look for fixtures
        return check_each

    return decorate
