"""The reference: every name, command, setting and code that users can write has an entry."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
from cases import each
from pages import PAGES, ROOT, blocks, read

import redrive
import redrive.errors
import redrive.testing
from redrive.cli import main
from redrive.cli.doctor_security import CHECKLIST
from redrive.core.engine_messages import ENGINE_TOPICS
from redrive.core.failure_reason import LetterCode
from redrive.core.retry import RETRYABLE_CATEGORIES
from redrive.core.roles import ROLE_PERMISSIONS, Permission, Role
from redrive.policy import CATEGORY_ALIASES, Category
from redrive.reasons import ReasonCode
from redrive.settings import ENVIRONMENT_VARIABLES

REFERENCE = ROOT / "docs/reference"


def headings(name: str) -> set[str]:
    """Return the words in code font in the headings of a page."""
    lines = re.findall(r"^#+ .*$", read(ROOT / "docs" / name), re.MULTILINE)
    return {word for line in lines for word in re.findall(r"`([\w. -]+)", line)}


def test_every_public_name_has_a_heading() -> None:
    assert sorted(set(redrive.__all__) - headings("reference/api.md")) == []


def test_every_public_heading_is_a_public_name() -> None:
    known = {*redrive.__all__, *dir(redrive.Redrive), *dir(redrive.RunHandle), *dir(redrive.RetryPolicy)}
    names = {name.removeprefix("redrive.").partition(".")[2] or name for name in headings("reference/api.md")}
    assert sorted(name for name in names if name not in known) == []


def test_every_error_has_a_heading() -> None:
    assert sorted(set(redrive.errors.__all__) - headings("reference/errors.md")) == []


def test_every_reason_code_has_an_entry_and_nothing_else_has() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", read(REFERENCE / "reasons.md"), re.MULTILINE)
    assert listed == list(ReasonCode)


def test_every_setting_has_an_entry() -> None:
    text = read(REFERENCE / "settings.md")
    assert [variable for variable in ENVIRONMENT_VARIABLES.values() if f"`{variable}`" not in text] == []


def commands(group: click.Group, path: str = "redrive") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name."""
    for name in group.commands:
        _, command, _ = group.resolve_command(click.Context(group), [name])
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def test_every_command_has_a_heading_and_nothing_else_has() -> None:
    named = set(re.findall(r"^#+ `(redrive(?: [a-z-]+)+)", read(REFERENCE / "cli.md"), re.MULTILINE))
    assert named == {name for name, _ in commands(main)}


def test_every_option_is_documented_under_its_command_or_as_shared() -> None:
    shared, *sections = re.split(r"^#+ `", read(REFERENCE / "cli.md"), flags=re.MULTILINE)
    missing = [
        f"{name} {option}"
        for name, command in commands(main)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in parameter.opts
        for section in [next(one for one in sections if re.match(rf"{name}[ `]", one))]
        if f"`{option}" not in section and f"`{option}" not in shared
    ]
    assert missing == []


def test_the_tables_of_options_have_the_words_of_the_help() -> None:
    """A table may say more than the help: its text begins with that of the help."""
    _, *sections = re.split(r"^#+ `", read(REFERENCE / "cli.md"), flags=re.MULTILINE)
    known, different = dict(commands(main)), []
    for section in sections:
        name = re.match(r"redrive(?: [a-z-]+)+", section)
        options = known[name[0]].params if name else []
        helps = {option: each.help for each in options if isinstance(each, click.Option) for option in each.opts}
        for option, text in re.findall(r"^\| `(--[a-z-]+).*?` \| (.*?) \|", section, re.MULTILINE):
            words = " ".join((helps.get(option) or "").partition("[default")[0].split()).rstrip(".")
            if not text.replace("`", "").startswith(words.replace("`", "")):
                different.append((name and name[0], option, words))
    assert different == []


def test_the_tests_of_the_planted_defects_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`: `(test_\w+)`", read(ROOT / "docs/internals/proofs.md"))
    assert named
    assert [each for each in named if f"def {each[1]}(" not in read(ROOT / "tests" / each[0])] == []


def test_every_shell_example_calls_commands_and_options_that_exist() -> None:
    known = dict(commands(main))
    for page in PAGES:
        for block in blocks(page):
            for line in block.code.splitlines() if block.language == "sh" else ():
                for call in re.split(r"[|;&]+", re.sub(r"\s#.*$", "", line)):
                    words = re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", call).split()
                    if "redrive" in words and words[-1] != "redrive":
                        check_call(known, words[words.index("redrive") :], f"{page.name}: {line}")


def check_call(known: dict[str, click.Command], words: list[str], where: str) -> None:
    length = max((n for n in range(2, len(words) + 1) if " ".join(words[:n]) in known), default=0)
    if words[1].startswith("-"):
        return
    assert length, where
    command = known[" ".join(words[:length])]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h", "-"}
    own = words[length : words.index("--")] if "--" in words else words[length:]  # behind it is another program
    given = [word.partition("=")[0] for word in own if word.startswith("-")]
    assert [option for option in given if option not in options] == [], where


def test_every_name_of_the_testing_kit_is_explained() -> None:
    text = read(ROOT / "docs/guides/testing.md")
    assert [name for name in redrive.testing.__all__ if f"`{name}" not in text] == []


@each("category", Category)
def test_the_table_of_categories_tells_what_is_retried(category: Category) -> None:
    row = re.search(
        rf"^\| `{category}` \|.*\| (\w+) \|$", read(ROOT / "docs/concepts/how-retries-decide.md"), re.MULTILINE
    )
    assert row is not None
    assert row[1] == ("yes" if category in RETRYABLE_CATEGORIES else "no")


def test_the_table_of_names_for_categories_is_the_one_in_force() -> None:
    page = read(ROOT / "docs/concepts/how-retries-decide.md")
    table = page[page.index("| name in a policy | categories |") :].split("\n\n")[0]
    rows = [[re.findall(r"`(\w+)`", cell) for cell in line.split("|")[1:3]] for line in table.splitlines()[2:]]
    assert {name: tuple(found) for names, found in rows for name in names} == CATEGORY_ALIASES


def test_every_code_of_a_dead_letter_is_explained() -> None:
    text = read(ROOT / "docs/concepts/how-retries-decide.md")
    assert [code for code in LetterCode if f"| `{code}` |" not in text] == []


def test_the_table_of_roles_is_the_one_in_force() -> None:
    """The table in the documentation equals the one in `core`, cell by cell."""
    order = (Role.VIEWER, Role.STAFF, Role.ADMIN, Role.OWNER, Role.WORKER)
    rows = re.findall(r"^\| ([a-z ]+) \|[^|]*\|(.*)\|$", read(ROOT / "docs/operations/authentication.md"), re.MULTILINE)
    drawn = {name: [cell.strip() == "yes" for cell in cells.split("|")] for name, cells in rows}
    assert drawn == {each.value: [each in ROLE_PERMISSIONS[role] for role in order] for each in Permission}


def test_every_file_that_the_walk_names_exists() -> None:
    named = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|sql)|[\w-]+\.py)`", read(ROOT / "docs/internals/walk.md")))
    assert named
    missing = [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "src/redrive"))]
    assert missing == []


def test_the_walk_has_a_line_for_every_package() -> None:
    text, source = read(ROOT / "docs/internals/walk.md"), ROOT / "src/redrive"
    table = text[text.index("## The packages") : text.index("## From start to end")]
    cells = "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    named = set(re.findall(r"`([\w.]+)`", cells))
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    assert sorted(packages - named) == []
    paths = {name: source / name.replace(".", "/") for name in named}
    missing = [name for name, path in paths.items() if not path.is_dir() and not path.with_suffix(".py").exists()]
    assert sorted(missing) == []


@each("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", read(file), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page.name} links to {target}"


def test_every_test_that_the_requirements_and_the_proofs_name_exists() -> None:
    named = {
        name
        for page in (REFERENCE / "source-requirements.md", ROOT / "docs/internals/proofs.md")
        for name in re.findall(r"`([\w/]+\.py::\w+)`", read(page))
    }
    assert len(named) > 200
    missing = []
    for name in sorted(named):
        file, _, test = name.partition("::")
        path = ROOT / "tests" / file
        if not path.exists() or not re.search(rf"^(async )?def {test}\(", read(path), re.MULTILINE):
            missing.append(name)
    assert missing == []


def test_every_requirement_has_a_place_and_a_test_or_says_why_not() -> None:
    text = read(REFERENCE / "source-requirements.md")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0].strip() != "requirement"]
    assert len(rows) > 276
    assert [row for row in rows if len(row) != 3] == []
    without = [row[0].strip() for row in rows if "::" not in row[2]]
    assert without == ["AC11: no regressions"]


def test_every_page_can_be_reached_from_the_index() -> None:
    reached = {
        (ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", read(ROOT / "docs/index.md"))
    }
    own = {page for page in PAGES if page.is_relative_to(ROOT / "docs") and page.parent.name != "adr"}
    assert sorted(str(page) for page in own - reached if page.name != "index.md") == []


def test_modules_named_in_the_pages_exist() -> None:
    names = {name for page in PAGES for name in re.findall(r"`(redrive\.[a-z_.]+[a-z])`", read(page))}
    missing = [name for name in sorted(names - set(ENGINE_TOPICS)) if not _exists(name)]
    assert missing == []


def _exists(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        parent, _, last = name.rpartition(".")
        return hasattr(import_module(parent), last)
    return True


def test_the_hardening_checklist_is_what_the_doctor_checks() -> None:
    page = read(ROOT / "docs/operations/security.md").partition("## Hardening checklist")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE) == list(CHECKLIST.items())
