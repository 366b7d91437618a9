"""What can be said about an SQL statement without a database: that it is one, and how many values it takes.

This is a check of what developers write, for a clear error at registration; the drivers hold the line. So
where quoting depends on the database (backslashes, dollar quotes) it errs on the side of refusing.
"""

from __future__ import annotations

import re

__all__ = ["placeholders", "statement_problem"]

_LONGEST = 100_000
_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_DOLLAR = re.compile(r"\$(\d{1,5})", re.ASCII)
_MARK = re.compile(r"\?(\d{1,5})?", re.ASCII)
_NAMED = re.compile(r"(?<![:\w])[:@$][A-Za-z_]\w*|%s|%\(", re.ASCII)


def statement_problem(statement: str) -> str | None:
    """What keeps a text from being one statement with bound values, or None."""
    if "{{" in statement or "}}" in statement:
        return "contains template braces. Put a placeholder ($1 or ?) there and the template into params."
    if "\x00" in statement or len(statement) > _LONGEST:
        return f"contains a NUL, or is longer than {_LONGEST} characters."
    bare = _bare(statement)
    body = bare.strip().rstrip(";").strip()
    if not body:
        return "is empty."
    if ";" in body:
        return (
            "is more than one statement, or holds a ';' that could begin another. Give one for each action."
        )
    if _NAMED.search(bare):
        return "has a placeholder with a name or '%s'. Number them ($1, $2) or use '?'."
    return None


def placeholders(statement: str) -> int:
    """How many values the statement takes: the highest of `$1`, `$2`, or the number of `?`."""
    bare = _bare(statement)
    numbered = [int(found) for found in _DOLLAR.findall(bare)]
    if numbered:
        return max(numbered)
    marks = _MARK.findall(bare)
    return max([len([mark for mark in marks if not mark]), *(int(mark) for mark in marks if mark)])


def _bare(statement: str) -> str:
    """The statement without what is quoted or a comment; all of it where quoting cannot be told for sure."""
    if "\\" in statement or "$$" in statement:
        return statement
    return _QUOTED.sub(" ", statement)
