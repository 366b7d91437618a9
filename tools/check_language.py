"""Checks the words of the product: no banned phrases, and docstrings that open as `CONTRIBUTING.md` says.

Reads the strings, comments and docstrings of Python files, the names of test functions, and templates, scripts, SQL
and text files whole. A line that needs a banned phrase says why: `language: <reason>` in a comment on the same line.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src/redrive", "bench", "tools", "tests", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
TEXT_FILES = (".html", ".js", ".sql", ".json", ".txt", ".md")

PHRASES = (
    r"nobody|somebody|whoever|anybody|everybody|goes on|what became of|in words|for ever|mend(?:s|ed|ing)?|told of"
    r"|tells? of|hand(?:s|ed|ing)? over|put(?:s|ting)? down|bur(?:y|ies|ied)|lets? go|letting go"
)
BANNED = re.compile(rf"\b({PHRASES}|is no|of its own)\b", re.IGNORECASE)
BANNED_IN_PAGES = re.compile(rf"\b({PHRASES})\b", re.IGNORECASE)  # a page may say "there is no"
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
            yield from check_test_names(file, ast.parse(text))
        elif file.suffix in TEXT_FILES:
            yield from check_words(file, list(enumerate(file.read_text(encoding="utf-8").splitlines(), 1)))


def python_lines(text: str) -> list[tuple[int, str]]:
    """Return the strings and comments of each line, without its code, with the number of the line."""
    lines: dict[int, str] = {}
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            for number, part in enumerate(token.string.split("\n"), token.start[0]):
                lines[number] = f"{lines[number]} … {part}" if number in lines else part
    return sorted(lines.items())


def check_words(file: Path, lines: list[tuple[int, str]]) -> Iterator[str]:
    """Yield the banned phrases of a file."""
    banned = BANNED_IN_PAGES if file.suffix == ".md" else BANNED
    for number, line in lines:
        found = banned.search(line)
        if found and not EXCUSE.search(line):
            yield f"{file.relative_to(ROOT)}:{number} {found[0]!r}: {line.strip()[:100]}"


def check_docstrings(file: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings that open with a question, a pronoun or, for a function, with no verb.

    The docstring of a test states a behaviour, so it may open with an article.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        opening = (ast.get_docstring(node) or "").split()[:2]
        if not opening:
            continue
        first = opening[0].strip("`*.,:;'").lower()
        is_call = (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node) and not is_test(node)
        )
        banned = NOT_IMPERATIVE if is_call else QUESTIONS | PRONOUNS
        if first in banned or [word.lower().strip(".") for word in opening] == ["the", "same"]:
            line = getattr(node, "lineno", 1)
            wanted = "an imperative verb" if is_call else "a statement" if is_test(node) else "a noun"
            yield f"{file.relative_to(ROOT)}:{line} docstring opens with {opening[0]!r}; begin with {wanted}"


def check_test_names(file: Path, tree: ast.Module) -> Iterator[str]:
    """Yield the banned single words in the names of tests."""
    for node in ast.walk(tree):
        if is_test(node):
            for found in BANNED.finditer(node.name.replace("_", " ")):
                if " " not in found[0]:
                    yield f"{file.relative_to(ROOT)}:{node.lineno} {found[0]!r} in the name {node.name}"


def is_test(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return True for a function that pytest collects."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if a function is read like an attribute."""
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
