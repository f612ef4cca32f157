"""docs/autoscaling.md: its SQL runs unchanged, and its table matches the function."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy.engine import make_url

from outboxq.worker.prometheus import METRICS
from tests.docs.tables import between

PAGE = Path(__file__).parents[2] / "docs" / "autoscaling.md"
TEXT = PAGE.read_text()


def block(beginning: str) -> str:
    [found] = re.findall(rf"^```sql\n-- {beginning}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return found


[IN_KEDA] = re.findall(r'^ +query: "(.*)"$', TEXT, re.MULTILINE)


@pytest.fixture
def connection(postgresql) -> Iterator[psycopg.Connection]:
    """A connection in autocommit mode."""
    address = make_url(postgresql.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


def test_the_table_has_the_columns_of_the_function(connection):
    told = dict(re.findall(r"^\| `(\w+)` \| `([\w ]+)` \|", between(PAGE, "columns"), re.MULTILINE))
    found = connection.execute(block("PostgreSQL"))
    assert [column.name for column in found.description] == list(told)
    kinds = connection.execute(
        "SELECT unnest(proallargtypes[2:])::regtype::text FROM pg_proc WHERE proname = 'outboxq_backlog'"
    )
    assert [kind for (kind,) in kinds] == list(told.values())
    assert found.fetchall() == [(0, 0.0, 0, 0)], "an unused queue has zeros"


@pytest.mark.parametrize(
    ("waiting", "claimed", "workers"),
    [
        pytest.param(0, 0, 0, id="nothing to do"),
        pytest.param(1, 0, 1, id="a first task"),
        pytest.param(0, 1, 1, id="a task that runs"),
        pytest.param(0, 9, 2, id="more tasks run than a worker has threads"),
        pytest.param(101, 0, 2, id="more tasks wait than a worker is given"),
    ],
)
def test_the_keda_query_returns_the_number_of_workers(postgresql, connection, waiting, claimed, workers):
    for _ in range(claimed):
        postgresql.add(postgresql.store, queue="mail")
    assert len(postgresql.claim(claimed, postgresql.store) if claimed else []) == claimed
    for _ in range(waiting):
        postgresql.add(postgresql.store, queue="mail")
    assert connection.execute(IN_KEDA).fetchone() == (workers,)
    assert connection.execute(block("PostgreSQL: workers wanted")).fetchone() == (max(1, workers),)


def test_a_fleet_is_scaled_by_the_sum_of_its_queues(postgresql, connection):
    """Sixty tasks in each of two queues justify two workers together, and one worker per queue."""
    fleet = block("PostgreSQL: workers wanted for a fleet")
    assert connection.execute(fleet).fetchone() == (0,)
    for queue in ("mail", "ledger"):
        for _ in range(60):
            postgresql.add(postgresql.store, queue=queue)
    assert connection.execute(IN_KEDA).fetchone() == (1,)
    assert connection.execute(fleet).fetchone() == (2,)


def test_prometheus_queries_use_metrics_and_labels_that_workers_export():
    found = re.findall(r"^ +query: (.*outboxq_\w+.*)\n +threshold: \"(\d+)\"$", TEXT, re.MULTILINE)
    assert [threshold for _, threshold in found] == re.findall(r"(\d+)\.0", IN_KEDA)
    known = {one.name: {*one.labels} for one in METRICS}
    for query, _ in found:
        [name] = re.findall(r"\boutboxq_\w+", query)
        assert set(re.findall(r"by \((\w+)\)|\b(\w+)=", query)) <= {(label, "") for label in known[name]} | {
            ("", label) for label in known[name]
        }


def test_a_busy_queue_that_keeps_up_keeps_its_workers(postgresql, connection):
    """No task is waiting or running. Only the rate shows that the queue is busy."""
    for _ in range(3):
        postgresql.add(postgresql.store, queue="mail")
    for claim in postgresql.claim(3, postgresql.store):
        postgresql.store.complete(claim)
    assert connection.execute(IN_KEDA).fetchone() == (1,)


def test_the_query_for_late_queues_names_them(postgresql, connection):
    assert connection.execute(block("PostgreSQL: late queues")).fetchall() == []
    [now] = postgresql.rows("SELECT clock_timestamp() - interval '6 minutes'")
    postgresql.add(postgresql.store, queue="ledger", available_at=now[0])
    [(name, age)] = connection.execute(block("PostgreSQL: late queues")).fetchall()
    assert name == "ledger"
    assert age >= 360


def test_a_role_can_be_allowed_to_read_only_the_backlog(postgresql, connection):
    postgresql.add(postgresql.store, queue="mail")
    role = f"autoscaler_{uuid4().hex}"
    connection.execute(f"CREATE ROLE {role}")
    try:
        connection.execute(block("PostgreSQL: privileges").replace("autoscaler", role))
        connection.execute(f"SET ROLE {role}")
        assert connection.execute(IN_KEDA).fetchone() == (1,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT count(*) FROM task_outbox")
    finally:
        connection.execute("RESET ROLE")
        connection.execute("ALTER FUNCTION outboxq_backlog SECURITY INVOKER")
        connection.execute("GRANT EXECUTE ON FUNCTION outboxq_backlog TO PUBLIC")
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")
