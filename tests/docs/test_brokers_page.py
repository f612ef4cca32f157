"""The code of docs/how-to/brokers.md creates transports, which connect only when they publish. tests/brokers makes them publish, and
follows docs/how-to/receive-messages.md with a real broker.
"""

from __future__ import annotations

import re
from pathlib import Path

from outboxq import brokers

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = (PAGES / "brokers.md").read_text()


def test_the_code_creates_one_transport_of_each_kind():
    names: dict[str, object] = {}
    for source in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        exec(source, names)
    made = {type(one).__name__ for one in names.values() if hasattr(one, "publish") and not isinstance(one, type)}
    assert made == set(brokers.__all__)


def test_the_sources_listed_in_receive_messages_accept_these_arguments():
    """receive-messages.md lists them in a table."""
    rows = re.findall(r"^\| `(\w+\(.*?\))` \|", (PAGES / "receive-messages.md").read_text(), re.MULTILINE)
    given = {"url": "redis://h", "servers": "nats://h", "queue_url": "https://sqs/q"}
    made = [eval(re.sub(r"(\w+)=…", lambda one: f"{one[1]}={given[one[1]]!r}", row), vars(brokers)) for row in rows]
    assert {type(one).__name__ for one in made} == set(brokers.__all__) - {"RabbitMQ", "Sns"}
    assert all(callable(one.connect) for one in made)
