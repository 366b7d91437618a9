"""Errors of `redrive worker` for a `module:app` that does not name a usable app."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click.testing
import pytest
from cases import each

from redrive.cli import main

MODULES = {
    "goodshop.py": """
from redrive import Redrive
app = Redrive()
price = 3
@app.workflow
async def fulfil() -> None: ...
""",
    "factoryshop.py": "def create(): ...",
    "emptyshop.py": "from redrive import Redrive\napp = Redrive()",
    "brokenshop.py": 'import json\ndef load():\n    return json.loads("{")\nload()\n',
    "syntaxshop.py": "def (:\n",
    "lonelyshop.py": "import a_package_nobody_has\n",
    "leavingshop.py": 'raise SystemExit("not today")\n',
    "wrongsetting.py": 'from redrive import Redrive\napp = Redrive(lease="soon")\n',
    "wrongstore.py": """
from redrive import Redrive
app = Redrive("mysql://db/shop")
@app.workflow
async def fulfil() -> None: ...
""",
    "housing/__init__.py": "",
    "housing/rooms.py": "",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the modules above to the current folder; remove them from `sys.modules` afterwards."""
    for name, text in MODULES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in {Path(file).parts[0].removesuffix(".py") for file in MODULES}:
            del sys.modules[name]


def worker(target: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["worker", target])


@each(
    "target, advice",
    [
        ("goodshop", "name the app inside the module as well: goodshop:app"),
        ("goodshop:", "name the app inside the module as well: goodshop:app"),
        ("goodshop.py", "without .py: goodshop:app"),
        ("goodshop.py:app", "without .py: goodshop:app"),
        ("housing/rooms.py:flat", "without .py: housing.rooms:flat"),
        (":app", "write module:app"),
        ("good-shop:app", "write module:app"),
        ("goodshop:app()", "write module:app"),
        ("gooodshop:app", "module 'gooodshop' was not found"),
        ("gooodshop:app", "did you mean 'goodshop'?"),
        ("housing.room:app", "module 'housing.room' was not found in housing; did you mean 'rooms'?"),
        ("nowhere.at.all:app", "module 'nowhere' was not found"),
        ("nowhere.at.all:app", "(looking for 'nowhere.at.all')"),
        ("goodshop:ap", "module 'goodshop' has no 'ap'; the module has the app 'app'"),
        ("factoryshop:creat", "module 'factoryshop' has no 'creat'; did you mean 'create'?"),
        ("goodshop:price", "goodshop:price is an int, not a Redrive app; the module has the app 'app'"),
        ("goodshop:app.settings", "goodshop:app.settings is a Settings, not a Redrive app"),
        ("factoryshop:create", "call it in the module and name the result: app = create()"),
    ],
)
def test_an_invalid_app_name_is_a_usage_error_with_advice(target: str, advice: str) -> None:
    result = worker(target)
    assert advice in result.stderr
    assert result.stderr.startswith("Usage: ")
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("emptyshop:app", ["emptyshop:app has no workflows"]),
        ("brokenshop:app", ['brokenshop.py", line 3, in load', 'json.loads("{")', "JSONDecodeError"]),
        ("syntaxshop:app", ['syntaxshop.py", line 1', "SyntaxError"]),
        ("lonelyshop:app", ['lonelyshop.py", line 1', "No module named 'a_package_nobody_has'"]),
        ("leavingshop:app", ['leavingshop.py", line 1', "SystemExit: not today"]),
        ("wrongsetting:app", ['wrongsetting.py", line 2', "lease (REDRIVE_LEASE) is 'soon'"]),
        ("wrongstore:app", ["mysql", "sqlite:///"]),
    ],
)
def test_an_unusable_app_fails_with_its_location(target: str, words: list[str]) -> None:
    result = worker(target)
    assert [word for word in words if word not in result.stderr] == []
    assert "json/decoder.py" not in result.stderr  # The error shows the user's frame, not the library's.
    assert "Traceback" not in result.stderr
    assert result.exit_code == 1
