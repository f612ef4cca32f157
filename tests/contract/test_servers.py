"""The PostgreSQL servers that run the contract tests."""

from __future__ import annotations

import os

import pytest

from tests import postgres
from tests.contract.conftest import is_on_newest


def test_half_of_the_cases_run_on_the_newest_server():
    cases = [f"tests/contract/test_claim.py::test_claim[postgresql-{number}]" for number in range(1000)]
    assert 450 < sum(map(is_on_newest, cases)) < 550
    assert [is_on_newest(case) for case in cases] == [is_on_newest(case) for case in cases]


@pytest.mark.parametrize("number", range(4))
def test_a_case_runs_on_its_server(number, request, postgresql, cluster, first_server, newest_server):
    expected = newest_server if is_on_newest(request.node.nodeid) else first_server
    assert cluster is expected.cluster
    assert postgresql.reused is expected.reused
    shown = str(postgresql.rows("SHOW server_version")[0][0])
    assert shown.startswith("{}.{}".format(*expected.cluster.version))


def test_the_newest_server_has_at_least_the_newest_known_version(newest_server):
    if not (os.environ.get(postgres.VARIABLE) or os.environ.get(postgres.VERSION)):
        assert newest_server.cluster.version[0] >= int(postgres.NEWEST)
