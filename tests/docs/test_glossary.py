"""The glossary: each name in it exists, and no page uses a word that it bans."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import outboxq.store
from outboxq import model
from outboxq.database.tables import metadata, version_table
from tests.docs.test_readme import resolve

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"
ROWS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \| (.*?) ?\| (.*?) ?\| (.*?) ?\|$", PAGE.read_text(), re.MULTILINE)
BANNED = re.findall(r"^\| ([\w -]+) \| .+ \|$", PAGE.read_text().partition("## Words that")[2], re.MULTILINE)[1:]
TABLES = {**metadata.tables, version_table.name: version_table}
OF_OTHERS = {"from-celery.md", "from-django-tasks-db.md", "from-procrastinate.md", PAGE.name}
OF_OTHERS |= {"receive-messages.md", "transports.md"}
"""Pages that describe other queues and brokers in their own terms, and the page that lists the banned words."""


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_there_is_one_row_for_each_word():
    words = [word for word, *_ in ROWS]
    assert len(words) > 40
    assert len(set(words)) == len(words)
    assert len(ROWS) == len(re.findall(r"^\| \*\*", PAGE.read_text(), re.MULTILINE)), "a row does not have five cells"
    for word, _, *places in ROWS:
        assert any(map(names, places)), f"{word} has no name"


def test_each_table_and_column_exists():
    for name in named(2):
        table, _, column = name.partition(".")
        assert table in TABLES, name
        assert not column or column in TABLES[table].c, name


def test_each_code_name_exists():
    assert [name for name in named(3) if not is_there(name)] == []


def test_each_command_and_option_exists():
    for name in named(4):
        words, _, option = name.partition(" --")
        command = resolve(words.split())
        assert command is not None, name
        known = {one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)}
        assert not option or f"--{option}" in known, name


def named(column: int) -> list[str]:
    return sorted({name for row in ROWS for name in names(row[column])})


def is_there(name: str) -> bool:
    """Return True for a name in `outboxq`, its `model` or its store, or a module below it. Later parts are attributes, fields or modules."""
    first, *rest = name.split(".")
    found: object = next((vars(place)[first] for place in (model, outboxq.store) if first in vars(place)), None)
    found = found or getattr(outboxq, first, None) or module(first)
    for part in rest:
        if part in getattr(found, "__annotations__", {}) or re.search(rf"self\.{part}(: .+)? = ", source(found)):
            return True
        found = getattr(found, part, None) or module(
            f"{getattr(found, '__name__', '')}.{part}".removeprefix("outboxq.")
        )
    return found is not None


def module(name: str) -> object:
    try:
        return import_module(f"outboxq.{name}")
    except ModuleNotFoundError:
        return None


def source(found: object) -> str:
    """Return the source of the class, which contains the attributes that `__init__` sets."""
    return inspect.getsource(found) if inspect.isclass(found) else ""


def test_no_page_uses_a_banned_word():
    assert len(BANNED) > 5
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    words = re.compile(rf"\b({'|'.join(BANNED)})s?\b", re.IGNORECASE)
    used = [
        f"{page.name}: {word}"
        for page in pages
        if page.name not in OF_OTHERS
        for word in words.findall(page.read_text())
    ]
    assert used == []
