"""The architecture page: it shows the states that the code has, and lists the code's layers and tables."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from outboxq.database.tables import metadata
from outboxq.model import STATUS_AFTER, EventType
from tests.docs import architecture
from tests.docs.tables import between

ROOT = Path(__file__).parents[2]
TEXT = architecture.PAGE.read_text()
OF_NO_TASK = {EventType.UNROUTED, EventType.SKIPPED, EventType.BATCH_CREATED, EventType.BATCH_COMPLETED}


def section(title: str) -> str:
    _, _, rest = TEXT.partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def first_cells(title: str) -> list[str]:
    return re.findall(r"^\| (`.+?`) \|", section(title), re.MULTILINE)


@pytest.mark.parametrize("name", architecture.PARTS)
def test_the_diagrams_match_the_code(name):
    message = "run: python -m tests.docs.architecture"
    assert between(architecture.PAGE, name) == architecture.PARTS[name](), message


def test_the_diagram_includes_every_task_event():
    assert set(architecture.BEFORE) == set(EventType) - OF_NO_TASK
    assert set(STATUS_AFTER) <= set(architecture.BEFORE)


def test_the_page_lists_all_tables():
    assert {name.strip("`") for name in first_cells("The tables")} == set(metadata.tables)


def test_the_layers_match_the_import_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    checked = [set(re.split(r" [|:] ", layer)) for layer in contract["layers"]]
    assert [set(re.findall(r"`(\w+)`", cell)) for cell in first_cells("The layers")] == checked


def test_each_code_name_on_the_page_is_defined_in_the_file_it_names():
    named = re.findall(r"`(?:(\w+)\.)?(\w+)` in `(outboxq/[\w/]+\.py)`", TEXT)
    assert len(named) > 4
    for owner, name, file in named:
        source = (ROOT / file).read_text()
        assert not owner or f"class {owner}" in source, file
        assert re.search(rf"^\s*(def|class) {name}\b|^{name}\b", source, re.MULTILINE), (name, file)
