"""Each decision is a page with the same four parts, and is listed in the index."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
INDEX = (FOLDER / "README.md").read_text()
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
PARTS = ["Context", "Decision", "Why", "Consequences"]


def test_every_record_has_its_four_parts_on_one_page():
    texts = {record.name: record.read_text() for record in RECORDS}
    assert {
        name: parts for name in texts if (parts := re.findall(r"^## (.+)$", texts[name], re.MULTILINE)) != PARTS
    } == {}
    assert {name: lines for name in texts if (lines := len(texts[name].splitlines())) > 60} == {}


def test_every_record_is_in_the_index_by_its_number_and_title():
    for record in RECORDS:
        number, title = re.findall(r"^# (\d+)\. (.+)$", record.read_text(), re.MULTILINE)[0]
        assert int(number) == int(record.stem[:4])
        assert f"| [{number}]({record.name}) | {title} |" in INDEX


def test_the_index_lists_only_records():
    assert re.findall(r"^\| \[\d+\]\(([\w.-]+)\)", INDEX, re.MULTILINE) == [record.name for record in RECORDS]
