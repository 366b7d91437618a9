"""Checks the words of the product: no banned phrases, and docstrings that open as `CONTRIBUTING.md` says.

Reads the strings, comments and docstrings of Python files, and templates, scripts, SQL and text files whole. A line
that needs a banned phrase says why: `language: <reason>` in a comment on the same line.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src/redrive", "bench", "tools")
TEXT_FILES = (".html", ".js", ".sql", ".json", ".txt")

BANNED = re.compile(
    r"\b(nobody|somebody|whoever|anybody|everybody|is no|goes on|of its own|what became of|in words|for ever"
    r"|mend(?:s|ed|ing)?|told of|tells? of|hand(?:s|ed|ing)? over|put(?:s|ting)? down|bur(?:y|ies|ied)|lets? go"
    r"|letting go)\b",
    re.IGNORECASE,
)
EXCUSE = re.compile(r"language: \w+")
QUESTIONS = {"what", "which", "who", "whose", "whom", "how", "whether", "why", "where", "when"}
PRONOUNS = {"it", "its", "they", "them", "this", "that", "these", "those", "he", "she", "one"}
ARTICLES = {"the", "a", "an", "no", "all", "every", "each", "with", "without", "by", "as", "of"}
NOT_IMPERATIVE = QUESTIONS | PRONOUNS | ARTICLES


def main(arguments: list[str]) -> int:
    """Print each fault with its place; return 1 if there is any."""
    chosen = [Path(name).resolve() for name in arguments] or [ROOT / folder for folder in FOLDERS]
    faults = [fault for path in chosen for fault in check_path(path)]
    print("\n".join(faults) or "no faults")
    return 1 if faults else 0


def check_path(path: Path) -> Iterator[str]:
    """Yield the faults of a file, or of all files below a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in files:
        if file == Path(__file__).resolve() or "__pycache__" in file.parts:
            continue
        if file.suffix == ".py":
            text = file.read_text(encoding="utf-8")
            yield from check_words(file, python_lines(text))
            yield from check_docstrings(file, ast.parse(text))
        elif file.suffix in TEXT_FILES:
            yield from check_words(file, list(enumerate(file.read_text(encoding="utf-8").splitlines(), 1)))


def python_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that hold a string or a comment, with their numbers."""
    lines = text.splitlines()
    wanted: set[int] = set()
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            wanted.update(range(token.start[0], token.end[0] + 1))
    return [(number, lines[number - 1]) for number in sorted(wanted)]


def check_words(file: Path, lines: list[tuple[int, str]]) -> Iterator[str]:
    """Yield the banned phrases of a file."""
    for number, line in lines:
        found = BANNED.search(line)
        if found and not EXCUSE.search(line):
            yield f"{file.relative_to(ROOT)}:{number} {found[0]!r}: {line.strip()[:100]}"


def check_docstrings(file: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings that open with a question, a pronoun or, for a function, with no verb."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        opening = (ast.get_docstring(node) or "").split()[:2]
        if not opening:
            continue
        first = opening[0].strip("`*.,:;'").lower()
        is_call = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node)
        banned = NOT_IMPERATIVE if is_call else QUESTIONS | PRONOUNS
        if first in banned or [word.lower().strip(".") for word in opening] == ["the", "same"]:
            line = getattr(node, "lineno", 1)
            wanted = "an imperative verb" if is_call else "a noun"
            yield f"{file.relative_to(ROOT)}:{line} docstring opens with {opening[0]!r}; begin with {wanted}"


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if a function is read like an attribute."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
