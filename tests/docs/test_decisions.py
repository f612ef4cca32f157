"""Each decision is one page of the same four parts, and stands in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
INDEX = (FOLDER / "README.md").read_text()
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
PARTS = ["Context", "Decision", "Why", "Consequences"]

of_each = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)


@of_each
def test_a_record_has_its_four_parts_on_one_page(record):
    text = record.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == PARTS
    assert len(text.splitlines()) <= 60


@of_each
def test_a_record_is_in_the_index_by_its_number_and_title(record):
    number, title = re.findall(r"^# (\d+)\. (.+)$", record.read_text(), re.MULTILINE)[0]
    assert int(number) == int(record.stem[:4])
    assert f"| [{number}]({record.name}) | {title} |" in INDEX


def test_the_index_lists_no_more():
    assert re.findall(r"^\| \[\d+\]\(([\w.-]+)\)", INDEX, re.MULTILINE) == [record.name for record in RECORDS]
