"""The pages of the documentation, split into blocks, and a runner for their examples.

The words after the three backticks give the kind of a block (`docs/index.md` tells readers the same):

    ```python                 a separate script, where `await` may stand outside functions
    ```python continued       continues the Python block before it on the page
    ```python file=shop.py    a file in the folder of the page; `test_*.py` is run by pytest, a file that is
                              followed by its output is run as a script, others are there to be imported
    ```python file=... fails  the same, and it must fail
    ```text output            what the block above prints; `…` stands for any text
    ```sh                     commands, run one after the other; what is exported stays for later blocks
    ```sh fails               the same, and the last of them must fail
    ```sh background          runs beside the blocks that follow, until the page or the next one of these ends
                              it with Ctrl-C

A block that cannot be run here has a comment in the line above it: `<!-- not run: the reason -->`.
On the few pages of `LOOKED_UP`, shell blocks are examples of single commands that need a run, a server
or an hour; they are not run, but held against the commands and options that exist.
"""

import ast
import asyncio
import contextlib
import io
import os
import re
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shell import BARE, Shell

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "examples/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LOOKED_UP = {
    ROOT / "docs" / name for name in ("reference/cli.md", "operations/postgresql.md", "internals/performance.md")
}

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*?) -->\n)?"
    r"(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_OPTION = re.compile(r"^(?:background|continued|fails|output|file=[\w./-]+)$")
_SHELLS = {"bash", "console", "shell", "zsh"}
_PATIENCE = 120
_MODE = ("-o", "asyncio_mode=auto")  # what pages that use pytest-asyncio tell their readers to set


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    options: tuple[str, ...]
    code: str
    line: int
    not_run: str | None = None

    @property
    def file(self) -> str | None:
        return next((option[5:] for option in self.options if option.startswith("file=")), None)


@dataclass
class Example:
    """Blocks that are run together: a script in one or more parts, or a file."""

    page: Path
    blocks: list[Block]
    outputs: dict[int, str] = field(default_factory=dict)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[Block]:
    text = read(page)
    for found in _FENCE.finditer(text):
        language, *options = found["info"].split() or [""]
        unknown = [option for option in options if not _OPTION.match(option)]
        assert not unknown, f"{page.name}: ```{found['info']} has the unknown option {unknown[0]}"
        assert language not in _SHELLS, f"{page.name}: ```{language} is written ```sh, so that it is run"
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        line = text[: found.start("info")].count("\n") + 1
        yield Block(language, tuple(options), code, line, found["reason"])


def examples(page: Path) -> list[Example]:
    """Return the runnable examples of a page, in order."""
    found: list[Example] = []
    for block in blocks(page):
        if block.language == "python" and "continued" in block.options:
            found[-1].blocks.append(block)
        elif block.language in _runnable(page) and block.not_run is None:
            found.append(Example(page, [block]))
        elif "output" in block.options:
            found[-1].outputs[len(found[-1].blocks) - 1] = block.code
    return found


def _runnable(page: Path) -> set[str]:
    return {"python"} if page in LOOKED_UP else {"python", "sh"}


def run(page: Path, folder: Path, **environment: str) -> None:
    """Run all examples of a page in one folder, in order, as a reader would who follows it.

    `environment` is what the reader has exported in the terminal before.

    Raises whatever they raise, or AssertionError if one prints something else than the page says.
    """
    with Shell(folder, **{"PORT": str(_free_port()), **environment}) as shell:
        for example in examples(page):
            try:
                _run_example(example, shell)
            except BaseException as error:
                error.add_note(f"in the example at {page.name}:{example.blocks[0].line}")
                raise


def _free_port() -> int:
    """Return a free port, so that the servers of several pages can run at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _run_example(example: Example, shell: Shell) -> None:
    first = example.blocks[0]
    if first.language == "sh":
        _run_shell(example, first, shell)
    elif first.file is None:
        _run_here(example, shell.folder)
    else:
        _run_file(example, first, shell.folder)


def _run_shell(example: Example, block: Block, shell: Shell) -> None:
    if "background" in block.options:
        shell.serve(re.sub(r"\s+#.*$", "", block.code, flags=re.MULTILINE))
        return
    printed = shell.run(block.code, fails="fails" in block.options)
    if 0 in example.outputs:
        check_output(printed, example.outputs[0])


def _run_file(example: Example, block: Block, folder: Path) -> None:
    assert block.file is not None
    (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
    (folder / block.file).write_text(block.code, encoding="utf-8")
    expected = example.outputs.get(0)
    compile(block.code, f"{example.page.name}:{block.line}", "exec")
    if Path(block.file).name.startswith("test_"):
        # The options keep the project's own settings out: this is how a reader's folder looks.
        command = ["-m", "pytest", "-q", "--rootdir=.", "-c", os.devnull, *BARE, *_MODE, block.file]
    elif expected is not None:
        command = [block.file]
    else:
        return
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert (done.returncode != 0) == ("fails" in block.options), done.stdout
    if expected is not None:
        check_output(done.stdout, expected)


def _run_here(example: Example, folder: Path) -> None:
    module = types.ModuleType("__main__")
    known = {**sys.modules}
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules["__main__"] = module
    sys.path.insert(0, str(folder))
    try:
        with contextlib.chdir(folder), asyncio.Runner() as runner:
            for number, block in enumerate(example.blocks):
                printed = _run_block(example, block, module, runner)
                if number in example.outputs:
                    check_output(printed, example.outputs[number])
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = before
        sys.modules["__main__"] = known["__main__"]
        for name in set(sys.modules) - set(known):
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def _run_block(example: Example, block: Block, module: types.ModuleType, runner: asyncio.Runner) -> str:
    # Empty lines in front, so that a traceback shows the line of the page.
    source = "\n" * block.line + block.code
    code = compile(source, str(example.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if code.co_flags & 0x80:  # CO_COROUTINE
            runner.run(eval(code, vars(module)))
        else:
            exec(code, vars(module))
    return printed.getvalue()


def check_output(printed: str, expected: str) -> None:
    """Compare what was printed with what the page shows, where `…` stands for any text.

    Alone in a line it stands for any number of lines, or none.
    """
    got = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    wanted = "\n".join(line.rstrip() for line in expected.strip().splitlines())
    anything = re.compile(r"^…\n|\n…$|…", re.MULTILINE)
    pattern = ".*?".join(map(re.escape, anything.split(wanted)))
    assert re.fullmatch(pattern, got, re.DOTALL), f"printed:\n{got}\n\nthe page says:\n{wanted}"
