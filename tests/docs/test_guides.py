"""The guides' code is run, block after block, in an empty directory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").rglob("*.md"))


def blocks(guide: Path) -> list[tuple[int, str]]:
    text = guide.read_text()
    fence = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in fence.finditer(text)]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guides_code_runs_from_top_to_bottom(guide, tmp_path, monkeypatch):
    (_, module), *rest = blocks(guide)
    assert module.startswith("# shop.py\n")
    (tmp_path / "shop.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OUTBOXQ_DATABASE_URL", raising=False)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    names: dict[str, object] = {}
    try:
        for before, source in rest:
            exec(compile("\n" * before + source, str(guide), "exec"), names)
        outbox = sys.modules["shop"].outbox
        left = [queue for queue in outbox.store.stats() if queue.ready or queue.running or queue.failed]
        assert left == []
        assert sum(queue.completed for queue in outbox.store.stats()) == 2
        assert outbox.store.verify() == []
    finally:
        if (imported := sys.modules.pop("shop", None)) is not None:
            imported.engine.dispose()


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guides_links_lead_somewhere(guide):
    for target in re.findall(r"\]\(([^)#]+)\)", guide.read_text()):
        assert target.startswith("https://") or (guide.parent / target).exists(), target
