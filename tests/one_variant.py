"""A plugin that runs only the first variant of each test on each database: `pytest -p tests.one_variant`."""

from __future__ import annotations

import pytest

from tests.conftest import databases_of


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first: dict[tuple[str, frozenset[str]], pytest.Item] = {}
    for item in items:
        first.setdefault((item.nodeid.partition("[")[0], frozenset(databases_of(item))), item)
    left_out = [item for item in items if item not in first.values()]
    config.hook.pytest_deselected(items=left_out)
    items[:] = first.values()
