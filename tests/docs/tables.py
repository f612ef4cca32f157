"""Parts of a page that a test writes. They are between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

from pathlib import Path


def between(page: Path, name: str) -> str:
    _, _, rest = page.read_text().partition(f"<!-- {name} -->\n")
    part, end, _ = rest.partition(f"<!-- /{name} -->")
    assert end, f"{page.name} has no part {name}"
    return part


def put_between(page: Path, name: str, part: str) -> None:
    before = between(page, name)
    text = page.read_text()
    begin = f"<!-- {name} -->\n"
    page.write_text(text.replace(f"{begin}{before}<!-- /{name} -->", f"{begin}{part}<!-- /{name} -->"))
