"""The cost of checks and repairs: none in `verify` reads a log once for each row of another table, so the cost is linear in the rows read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from benchmarks.verify import Filler
from outboxq.database.dialects import Begin, dialect_for
from outboxq.store.verify import CHECKS
from outboxq.store.verify.batches import unreadable
from outboxq.store.verify.repairs import LOCKS, REPAIRS
from tests import postgres
from tests.conftest import Database
from tests.loops import case

EVENTS = 12_000
LOGS = ("execution_events", "task_executions", "task_steps")
KEYS = re.compile(r"\b(task_execution_id|id|pipeline_execution_id) =")
STATEMENTS = {
    **{f"check {name}": check.broken for name, check in CHECKS.items()},
    **{f"lock of {name}": lock for name, lock in LOCKS.items()},
    **{f"repair of {name}": repair for name, repair in REPAIRS.items()},
}
_BEGINS = {"check": Begin.SNAPSHOT, "lock": Begin.WRITE, "repair": Begin.WRITE}
PLANNERS = {
    "as it is": "",
    "without sequential scans": "enable_seqscan = off",
    # This simulates large tables: a sub-select whose rows do not fit into memory is not hashed, but run again for each row.
    "with little memory": "work_mem = '64kB'; SET LOCAL hash_mem_multiplier = 1",
}


def filled(database: Database) -> Database:
    Filler(engine=database.engine, events=EVENTS).fill()
    return database


@pytest.fixture(scope="module")
def postgresql_log(cluster: postgres.Cluster, migrated_postgresql: str) -> Iterator[Database]:
    url = cluster.create_database(template=migrated_postgresql)
    database = Database("postgresql", url)
    yield filled(database)
    database.close()
    cluster.drop_database(url)


@pytest.fixture(scope="module")
def sqlite_log(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("log") / "log.db"
    shutil.copy(migrated_sqlite, path)
    database = Database("sqlite", f"sqlite:///{path}")
    yield filled(database)
    database.close()


def explained(database: Database, name: str, explain: str, setting: str = "") -> list[Any]:
    """Return the plan and the text of each statement of a check or a repair. A repair's changes are rolled back."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.startswith(("SAVEPOINT", "RELEASE", "SET")):
            seen.append((statement, parameters))

    with database.engine.connect() as connection:
        connection.exec_driver_sql(dialect_for(database.name).begin[_BEGINS[name.partition(" ")[0]]])
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            store, build = database.store, STATEMENTS[name]
            rows = store.run(
                lambda target: target.run(build, {**store.values(target), **unreadable(target, [])}), using=connection
            )
        finally:
            event.remove(database.engine, "before_cursor_execute", note)
        assert seen
        is_judged = name.startswith("check") and CHECKS[name.partition(" ")[2]].is_broken is not None
        assert is_judged or rows == []
        if setting:
            connection.exec_driver_sql(f"SET LOCAL {setting}")
        plans = [(sql, connection.exec_driver_sql(f"{explain} {sql}", values).all()) for sql, values in seen]
        connection.exec_driver_sql("ROLLBACK")
    return plans


def repeated(
    node: dict[str, Any], hashed: set[str], again: bool = False, inner: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the scans of logs that run once for each row of another relation, either in a sub-select or inside a nested loop."""
    kind = node.get("Parent Relationship")
    again = again or (kind == "SubPlan" and node["Subplan Name"] not in hashed) or (kind == "Inner" and inner)
    again = again and kind != "InitPlan"
    if again and node.get("Relation Name") in LOGS:
        yield node
    for child in node.get("Plans", ()):
        yield from repeated(child, hashed, again, node["Node Type"] == "Nested Loop")


@pytest.mark.parametrize("planner", PLANNERS)
def test_postgresql_reads_a_log_in_a_loop_only_by_the_keys_of_its_tasks(postgresql_log, planner):
    for name in STATEMENTS:
        with case(name):
            for sql, [[[answer]]] in explained(
                postgresql_log, name, "EXPLAIN (FORMAT JSON, VERBOSE)", PLANNERS[planner]
            ):
                hashed = set(re.findall(r"hashed (SubPlan \d+)", json.dumps(answer)))
                for node in repeated(answer["Plan"], hashed):
                    condition = node.get("Index Cond", node.get("Recheck Cond", ""))
                    assert KEYS.search(condition), f"{node['Node Type']} {node.get('Index Name')} {condition}\n{sql}"


def test_sqlite_does_not_scan_a_log_in_a_loop(sqlite_log):
    for name in STATEMENTS:
        with case(name):
            for sql, plan in explained(sqlite_log, name, "EXPLAIN QUERY PLAN"):
                aliases = {alias: table for table, alias in re.findall(r"\b(task_\w+|execution_events) AS (\w+)", sql)}
                parents = {row[0]: row[1] for row in plan}
                texts = {row[0]: row[3] for row in plan}
                scanned = set()
                for _, parent, _, text in plan:
                    found = re.match(r"SCAN (\w+)", text)
                    if not found or aliases.get(found[1], found[1]) not in LOGS:
                        continue
                    above = [parent]
                    while above[-1] in parents:
                        above.append(parents[above[-1]])
                    assert not [texts[one] for one in above if "CORRELATED" in texts.get(one, "")], f"{text}\n{sql}"
                    assert parent not in scanned, f"{text} for each row of another scan\n{sql}"
                    scanned.add(parent)


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_verify_finds_no_problem_in_filled_databases(request, kind):
    assert request.getfixturevalue(f"{kind}_log").store.verify() == []
