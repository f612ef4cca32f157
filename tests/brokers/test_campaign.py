"""Each committed event has its effect in the second service once and in the order of its key, even if processes die."""

from __future__ import annotations

import shutil
from datetime import timedelta

import pytest

from tests.brokers.benches import BENCHES
from tests.brokers.campaign import Campaign, Plan
from tests.brokers.conftest import AVAILABLE
from tests.conftest import Database

FEW = Plan(events=200, keys=20, kills=2, crashes=1, patience=120)
FULL = Plan(events=20_000, keys=200, kills=50, crashes=5)


@pytest.fixture
def theirs(request, database, tmp_path):
    """The billing service's database."""
    if database.name == "postgresql":
        cluster = request.getfixturevalue("cluster")
        url = cluster.create_database(template=request.getfixturevalue("migrated_postgresql"))
    else:
        url = f"sqlite:///{tmp_path / 'billing.db'}"
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "billing.db")
    made = Database(name=database.name, url=url)
    yield made
    made.close()
    if database.name == "postgresql":
        cluster.drop_database(url)


@pytest.mark.parametrize("broker", AVAILABLE)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param("few", marks=[pytest.mark.apart, pytest.mark.in_turn, pytest.mark.timeout(900)]),
        pytest.param("full", marks=[pytest.mark.campaign, pytest.mark.timeout(7200)]),
    ],
)
def test_each_committed_event_takes_effect_once_and_in_order(size, broker, servers, database, theirs, tmp_path):
    plan = FEW if size == "few" else FULL
    kind = BENCHES[broker]
    bench = kind(servers(kind.server_type))
    bench.again_after = timedelta(seconds=30)
    campaign = Campaign(plan, bench, database, theirs, tmp_path)
    bench.prepare()
    bench.keep_order()
    try:
        campaign.run()
        print(campaign.figures())
        campaign.check()
    finally:
        bench.close()
        bench.server.cable.mend()
