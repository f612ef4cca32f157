"""The code of docs/how-to/brokers.md makes transports, which connect only when they publish. tests/brokers has them publish."""

from __future__ import annotations

import re
from pathlib import Path

from outboxq import brokers

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "brokers.md").read_text()


def test_its_code_makes_one_transport_of_each_kind():
    names: dict[str, object] = {}
    for source in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        exec(source, names)
    made = {type(one).__name__ for one in names.values() if hasattr(one, "publish") and not isinstance(one, type)}
    assert made == set(brokers.__all__)
