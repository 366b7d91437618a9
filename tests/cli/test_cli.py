"""The `redrive` command itself."""

import os
import subprocess
import sys
from importlib import metadata

import click.testing

from redrive.cli import main


def invoke(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, arguments)


def test_version_option_prints_the_version() -> None:
    result = invoke("--version")
    assert result.output == f"redrive {metadata.version('redrive')}\n"
    assert result.exit_code == 0


def test_help_names_every_command_with_an_example() -> None:
    output = invoke("--help").output
    for name, command in main.commands.items():
        assert f"  {name} " in output
        assert f"redrive {name}" in invoke(name, "-h").output.partition("Examples:")[2]
        assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option))


def test_running_the_module_equals_running_the_script() -> None:
    command = [sys.executable, "-m", "redrive", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith("Usage: redrive [OPTIONS]")
    assert output == invoke("--help").output.replace("Usage: main", "Usage: redrive")


def test_invalid_arguments_are_a_usage_error() -> None:
    for arguments in (["nonsense"], ["worker"], ["worker", "a:b", "--nonsense"], ["demo", "--seconds", "-1"]):
        assert invoke(*arguments).exit_code == 2


def test_help_imports_nothing_heavy() -> None:
    """Help must be fast, so it may not load the engine. Measuring seconds would depend on the machine."""
    code = (
        "import sys; from redrive.cli import main; main(['--help'], standalone_mode=False); "
        "print(*(name for name in ('asyncio', 'pydantic', 'rich', 'sqlite3', 'redrive.app') "
        "if name in sys.modules), file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert result.stderr.split() == []
