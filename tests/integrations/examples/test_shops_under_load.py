"""A shop of `examples/` under load for seconds. `nox -s examples` tests each shop for half a minute per database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import DATABASES
from tests.integrations.examples.load import run
from tests.integrations.examples.shops import SHOPS

pytestmark = pytest.mark.in_turn


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shop.db"
    else:
        cluster = request.getfixturevalue("cluster")
        url = cluster.create_database()
        yield url
        cluster.drop_database(url)


@pytest.mark.parametrize("shop", [SHOPS["fastapi_shop"]])
def test_accepted_orders_are_booked_once_and_refused_ones_never_while_workers_are_killed(shop, empty_url, tmp_path):
    report = run(shop, empty_url, tmp_path, seconds=1.5, rate=50, at_least=30)
    assert report.complaints == []
    assert report.kills == 1
    assert report.refused > 2
