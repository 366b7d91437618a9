"""The `redrive` command itself."""

import os
import subprocess
import sys
from importlib import metadata

import click
import click.testing
import pytest

from redrive.cli import main


def invoke(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, arguments)


def test_version_option_prints_the_version() -> None:
    result = invoke("--version")
    assert result.output == f"redrive {metadata.version('redrive')}\n"
    assert result.exit_code == 0


def test_help_names_every_command_with_an_example() -> None:
    output = invoke("--help").output
    for name in main.commands:
        _, command, _ = main.resolve_command(click.Context(main), [name])
        assert f"  {name} " in output
        assert command is not None
        help_text = invoke(name, "-h").output
        assert f"redrive {name}" in help_text.partition("Examples:")[2]
        assert "...\n" not in help_text.partition("Commands:")[2]  # first sentences are short
        assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))


def test_running_the_module_equals_running_the_script() -> None:
    command = [sys.executable, "-m", "redrive", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith("Usage: redrive [OPTIONS]")
    assert output == invoke("--help").output.replace("Usage: main", "Usage: redrive")


def test_invalid_arguments_are_a_usage_error() -> None:
    for arguments in (["nonsense"], ["worker"], ["worker", "a:b", "--nonsense"], ["demo", "--seconds", "-1"]):
        assert invoke(*arguments).exit_code == 2


ENGINE = ("asyncio", "pydantic", "rich", "sqlite3", "redrive.app")
EXTRAS = (
    *("aiosmtplib", "argon2", "asyncpg", "cryptography", "fastapi", "h11", "jinja2", "joserfc", "opentelemetry"),
    *("prometheus_client", "redis", "rich", "uvicorn", "uvloop"),
)
SLOW = ("email.utils", "importlib.resources", "redrive.app.runtime", "redrive.desk", "tempfile")


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import redrive", ("asyncio", "click", "msgspec", "pydantic", "redrive.core")),
        (
            "from redrive.cli import main; main(['--help'], standalone_mode=False)",
            (*ENGINE, "msgspec", "redrive.cli.runs", "redrive.reasons"),
        ),
        (
            "from redrive.cli import main; main(['runs', '--help'], standalone_mode=False)",
            (*ENGINE, "redrive.cli.circuits"),
        ),
        ("from redrive import Redrive", (*EXTRAS, *SLOW)),
        ("import redrive; [getattr(redrive, name) for name in redrive.__all__]", EXTRAS),
    ],
    ids=["redrive", "help", "help of a group", "Redrive", "all names"],
)
def test_starting_imports_nothing_slow(code: str, unwanted: tuple[str, ...]) -> None:
    """Start-up must be fast, and work without the extras. Measuring seconds would depend on the machine."""
    code += f"; import sys; print(*({set(unwanted)!r} & sys.modules.keys()), file=sys.stderr)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stderr.split() == []
